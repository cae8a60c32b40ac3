"""The queries of an attention layer: the tokens of the image, the objects of a detector, or the query of a pooling."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from camtool.arguments.checks import check_number_tuple
from camtool.errors import TargetError
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.layers.layouts import Layout

Query: TypeAlias = "int | Literal['class'] | Sequence[float] | None"
"""A query by its number, the class token, a pixel ``(x, y)`` of the photo, or None for the default."""

QueryKind: TypeAlias = Literal["tokens", "objects", "others"]

Box: TypeAlias = "tuple[float, float, float, float]"

_CLASS_TOKEN = re.compile(r"(^|[._])(cls|class)(_?(tokens?|emb|embed|embedding))?$")
"""Names of parameters for a class token, e.g. ``cls_token``, ``class_token``, ``embeddings.class_embedding``."""


def find_class_token(model: nn.Module, layout: Layout) -> int | None:
    """Return the index of the class token among the tokens of an image; None if there is none.

    A single token before the last cell is a class token. Of several, e.g. with registers, it is the first one if the
    model has a parameter with such a name; some models have registers only. If they lie between the cells, too, it is
    unknown which is it.
    """
    others = layout.others[: len(layout.others) - layout.suffix]
    if len(others) < 2 or layout.positions:
        return others[0] if len(others) == 1 else None
    has_parameter = any(_CLASS_TOKEN.search(name) for name, _ in model.named_parameters())
    return 0 if has_parameter else None


@dataclass(frozen=True, eq=False)
class Queries:
    """The queries of a layer.

    Attributes:
        count: Their number T.
        kind: ``"tokens"`` are the same tokens as the keys, ``"objects"`` are the queries of a detector.
        layout: The layout of the keys on the image.
        geometry: The crop and resize from the photo to the model's input.
        centers: Where the cells of the grid lie in the model's input; ``None`` for a grid that is stretched over it.
        class_token: The index of the class token; ``None`` if there is none among the queries.
        boxes: ``(T, 4)``, the box ``(x0, y0, x1, y1)`` of each object in pixels of the photo, if queries are objects.
        best: The object with the highest confidence, if queries are objects.
    """

    count: int
    kind: QueryKind
    layout: Layout
    geometry: Geometry
    centers: CellCenters | None = None
    class_token: int | None = None
    boxes: NDArray[np.float32] | None = None
    best: int | None = None

    def select(self, query: Query) -> list[int]:
        """Return the indices of a query, or of several whose mean is meant.

        Raises:
            TargetError: There is no such query.
        """
        if query is None:
            return self._select_default()
        if isinstance(query, str):
            return [self._select_named(query)]
        if isinstance(query, Integral) and not isinstance(query, bool):
            number = int(query)
            if not -self.count <= number < self.count:
                raise TargetError(f"query={number}: the layer has {self.count} queries, 0 to {self.count - 1}.")
            return [number % self.count]
        check_number_tuple("query, unless it is a number or 'class',", query, 2, error=TargetError)
        return [self._find_token_at(*map(float, query))]  # type: ignore[arg-type]

    def describe(self, indices: Sequence[int]) -> str:
        """Return what the queries are, e.g. ``"class token"`` or ``"image token (3, 5)"``: row and column."""
        if len(indices) > 1:
            return f"mean of {len(indices)} {'image tokens' if self.kind == 'tokens' else 'queries'}"
        index = indices[0]
        if self.count == 1:
            return "single query"
        if self.kind != "tokens":
            return f"{'object query' if self.kind == 'objects' else 'query'} {index}"
        if index == self.class_token:
            return "class token"
        cell = self._find_cell(index)
        if cell is not None:
            return f"image token {cell}"
        is_behind = index >= self.layout.token_count - self.layout.suffix
        return f"{'prefix' if index < self.layout.prefix else 'suffix' if is_behind else 'inner'} token {index}"

    def find_box(self, indices: Sequence[int]) -> Box | None:
        """Return the box of a single query on the photo: of the object, or of the patch; None for others."""
        if len(indices) > 1:
            return None
        if self.kind == "objects" and self.boxes is not None:
            x0, y0, x1, y1 = map(float, self.boxes[indices[0]])
        else:
            cell = self._find_cell(indices[0]) if self.kind == "tokens" else None
            if cell is None:
                return None
            (y, height), (x, width) = (self._locate(axis, index) for axis, index in enumerate(cell))
            x0, y0, x1, y1 = self.geometry.to_photo_box((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
        rows, columns = self.geometry.photo
        inside = max(x0, 0.0), max(y0, 0.0), min(x1, float(columns)), min(y1, float(rows))
        return inside if inside[0] < inside[2] and inside[1] < inside[3] else None

    # ----------------------------------------------------------------------------------------------------- internals

    def _select_default(self) -> list[int]:
        """Return the class token, the best object, the only query, or all tokens of the image."""
        single = self.class_token if self.best is None else self.best
        if single is not None:
            return [single]
        return [*self.layout.cells] if self.kind == "tokens" else [*range(self.count)]

    def _select_named(self, name: str) -> int:
        if name == "class" and self.class_token is not None:
            return self.class_token
        if name != "class":
            raise TargetError(f"query={name!r} is unknown; pass 'class', a number, or a pixel (x, y) of the photo.")
        first = len(self.layout.others) - self.layout.suffix if self.kind == "tokens" else 0
        others = f"its {first} other tokens have no known meaning" if first else "none of its queries is one"
        raise TargetError(f"query='class': this layer has no class token: {others}; pass the number of a query.")

    def _find_token_at(self, x: float, y: float) -> int:
        """Return the index of the token whose cell is the nearest to a pixel of the photo."""
        if self.kind != "tokens":
            what = "objects" if self.kind == "objects" else "no tokens of the image"
            raise TargetError(
                f"query=({x:g}, {y:g}): the queries of this layer are {what}; pass a number from 0 to {self.count - 1}."
            )
        rows, columns = self.geometry.photo
        at_x, at_y = self.geometry.to_input_box((x, y, x, y))[:2]  # a point is a box without extent
        height, width = self.geometry.size
        is_seen = 0 <= at_x < width and 0 <= at_y < height
        if not (0 <= x < columns and 0 <= y < rows and is_seen):
            raise TargetError(
                f"query=({x:g}, {y:g}) is outside of the part of the photo that reaches the model; the photo has "
                f"{columns} x {rows} pixels."
            )
        row, column = (self._find_nearest(axis, place) for axis, place in enumerate((at_y, at_x)))
        return self.layout.cells[row * self.layout.grid[1] + column]

    def _find_nearest(self, axis: int, place: float) -> int:
        """Return the cell along an axis whose center is the nearest to a place in the model's input."""
        first, stride = self._locate(axis, 0)
        # Halfway between two centers a new cell begins.
        return min(max(math.floor((place - first) / stride + 0.5), 0), self.layout.grid[axis] - 1)

    def _locate(self, axis: int, cell: int) -> tuple[float, float]:
        """Return the center and the length of a cell along an axis, in pixels of the model's input."""
        centers = self.centers or CellCenters.stretch(self.layout.grid, self.geometry.size)
        return centers.axes[axis].offset + cell * centers.axes[axis].stride, centers.axes[axis].stride

    def _find_cell(self, index: int) -> tuple[int, int] | None:
        """Return the row and the column of a token; None for tokens beside the grid."""
        cells = self.layout.cells
        return divmod(cells.index(index), self.layout.grid[1]) if index in cells else None
