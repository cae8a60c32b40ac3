"""The attention of one layer: its matrices, the map of any head and query on the photo, and a picture of all heads.

The queries are the tokens of the image, the objects of a detector, or the query of a pooling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.arguments.checks import check_number_tuple
from camtool.arguments.explain_arguments import explain_foreign_arguments
from camtool.arguments.message_parts import format_count
from camtool.errors import ImageError, LayerError, TargetError
from camtool.evidence.evidence import Evidence
from camtool.explaining.explainer import explain
from camtool.explaining.explanation import Explanation
from camtool.explaining.types import Layers, Model
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.hooks.structures.nested_tensors import find_main_tensor
from camtool.layers.layouts import Layout
from camtool.rendering import image_writing, regions
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.views import View
from camtool.targets.function_targets import Custom
from camtool.warning_codes import to_map_warning

# A query by its number, the class token, a pixel ``(x, y)`` of the photo, or None for the default.
Query: TypeAlias = "int | Literal['class'] | Sequence[float] | None"

QueryKind: TypeAlias = Literal["tokens", "objects", "others"]

Box: TypeAlias = "tuple[float, float, float, float]"

# Names of parameters for a class token, e.g. ``cls_token``, ``class_token``, ``embeddings.class_embedding``.
_CLASS_TOKEN = re.compile(r"(^|[._])(cls|class)(_?(tokens?|emb|embed|embedding))?$")


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
        row, column = (self._find_nearest(axis, position) for axis, position in enumerate((at_y, at_x)))
        return self.layout.cells[row * self.layout.grid[1] + column]

    def _find_nearest(self, axis: int, position: float) -> int:
        """Return the cell along an axis whose center is the nearest to a place in the model's input."""
        first, stride = self._locate(axis, 0)
        # Halfway between two centers a new cell begins.
        return min(max(math.floor((position - first) / stride + 0.5), 0), self.layout.grid[axis] - 1)

    def _locate(self, axis: int, cell: int) -> tuple[float, float]:
        """Return the center and the length of a cell along an axis, in pixels of the model's input."""
        centers = self.centers or CellCenters.stretch(self.layout.grid, self.geometry.size)
        return centers.axes[axis].offset + cell * centers.axes[axis].stride, centers.axes[axis].stride

    def _find_cell(self, index: int) -> tuple[int, int] | None:
        """Return the row and the column of a token; None for tokens beside the grid."""
        cells = self.layout.cells
        return divmod(cells.index(index), self.layout.grid[1]) if index in cells else None


# A head by its number, or the mean of all heads; None is the default.
Head: TypeAlias = "int | Literal['mean'] | None"

# Numbers of images in a row of a picture: six of 240 pixels fill the width of a screen.
_COLUMNS = range(4, 7)

# Width of an image in a picture, and of the line around the query on it, in pixels.
_IMAGE_WIDTH, _LINE_WIDTH = 240, 2

# Share of the attention for the image below which the user is warned. A map shows that share alone, at full contrast.
# With the uniform attention of a small ViT, 49 patches and a class token, it is 0.98.
_SMALL_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class AttentionMaps(image_writing.Displayable):
    """Attention of one layer to the image, shown in a notebook as the overlays of all heads.

    Attributes:
        matrices: ``(H, T, S)`` float32: for each head, how much each of T queries attends to each of S keys. The keys
            are tokens of the image. Each row sums to 1.
        layer: Dotted name of the module that computes the attention.
        layers: The names of all attention layers of the model, in order; their numbers are values of ``layer=``.
        layout: How the keys lie on the image: ``layout.grid`` is ``(h, w)``, ``layout.cells`` the indices of its tokens
            row by row, and ``layout.others`` those of the class token and registers.
        queries: What the queries are.
        view: The photo, and the placement of maps on it.
        head: The head that is shown; ``None`` shows all of them and their mean.
        query: The query that is shown; ``None`` is the default of :meth:`map`.
        warnings: Reasons not to trust the maps, one sentence each.
    """

    matrices: NDArray[np.float32]
    layer: str
    layers: tuple[str, ...]
    layout: Layout
    queries: Queries
    view: View
    head: int | None = None
    query: Query = None
    warnings: tuple[str, ...] = ()

    def map(self, *, head: Head = None, query: Query = None) -> Explanation:
        """Return how much one query attends to each token of the image, as a heatmap on the photo.

        ``raw`` of the result holds the numbers ``(h, w)`` of the matrix; ``score`` is their sum, the share of the
        attention that the image gets. The rest goes to other tokens.

        Args:
            head: A head, or ``"mean"`` for the mean of all; by default the one that was asked for, else the mean.
            query: The number of a query; ``"class"`` for the class token; a pixel ``(x, y)`` of the photo for the token
                there. By default the one that was asked for, else the class token, the most confident object of a
                detector, or the mean of all queries that are tokens of the image.

        Raises:
            LayerError: There is no such head.
            TargetError: There is no such query.
        """
        chosen = self.head if head is None else self._check_head(head)
        indices = self.queries.select(self.query if query is None else query)
        matrix = self.matrices.mean(0) if chosen is None else self.matrices[chosen]
        row = matrix[indices].mean(0)
        raw = row[[*self.layout.cells]].reshape(self.layout.grid)
        share = float(raw.sum())
        return Explanation(
            raw=raw,
            view=self.view,
            label=f"{self.queries.describe(indices)}, {self._describe_head(chosen)}",
            index=None,
            score=share,
            probability=None,
            method="attention",
            layer=self.layer,
            warnings=tuple(to_map_warning(note, "method-note") for note in (*self.warnings, *_find_warnings(share))),
            box=self.queries.find_box(indices) if self.queries.kind == "objects" else None,
            centers=self.queries.centers,
        )

    @property
    def heatmap(self) -> NDArray[np.float32]:
        """``(H, W)`` float32 in [0, 1]: the heatmap of :meth:`map`."""
        return self.map().heatmap

    def overlay(self, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP) -> NDArray[np.uint8]:
        """Return the photo with the heatmap of :meth:`map` over it, ``(H, W, 3)`` uint8.

        Args:
            alpha: As for :meth:`camtool.Explanation.overlay`.
            colormap: As for :meth:`camtool.Explanation.overlay`.
        """
        return self.map().overlay(alpha, colormap)

    def to_pixels(self) -> NDArray[np.uint8]:
        """Draw the photo, on which the query is marked, the mean of the heads and each head, ``(H, W, 3)`` uint8.

        If a head was asked for, only that one is drawn beside the photo. Each overlay has the full range of colors.
        """
        several: list[Head] = ["mean", *range(len(self.matrices))] if len(self.matrices) > 1 else [0]
        heads = several if self.head is None else [self.head]
        indices = self.queries.select(self.query)
        images = [self._mark_query(indices), *(self._draw_head(head) for head in heads)]
        captions = [self._describe_query(indices), *(self._describe_head(self._check_head(head)) for head in heads)]
        return draw_captioned_images(images, captions, columns=_choose_columns(len(images)), width=_IMAGE_WIDTH)

    def __len__(self) -> int:
        return len(self.matrices)

    def __repr__(self) -> str:
        shape = ", ".join(map(format_count, self.matrices.shape, ("head", "query", "key")))
        return f"<AttentionMaps of {self.layer!r}: {shape} ({self.layout}); {self.map().label}>"

    # ----------------------------------------------------------------------------------------------------- internals

    def _check_head(self, head: Head) -> int | None:
        """Return the index of a head; None for the mean of all."""
        return check_head(head, len(self.matrices), self.layer)

    def _describe_head(self, head: int | None) -> str:
        return f"mean of {len(self.matrices)} heads" if head is None and len(self.matrices) > 1 else f"head {head or 0}"

    def _describe_query(self, indices: list[int]) -> str:
        described = self.queries.describe(indices)
        return described if len(indices) > 1 or "query" in described else f"query: {described}"

    def _draw_head(self, head: Head) -> NDArray[np.uint8]:
        """Return the overlay of a head, without the box of an object, which the photo beside it has."""
        explanation, view = self.map(head=head), self.view.enlarge()
        return view.draw_overlay(view.to_heatmap(explanation.raw, explanation.centers))

    def _mark_query(self, indices: list[int]) -> NDArray[np.uint8]:
        """Return the photo with a box around the query."""
        photo, times, box = self.view.enlarge().photo, self.view.enlargement, self.queries.find_box(indices)
        if box is None:
            return photo
        width = max(1, round(_LINE_WIDTH * photo.shape[1] / _IMAGE_WIDTH))
        return regions.draw_boxes(photo, [regions.grow_to_one_pixel(box, times)], width=width)


def check_head(head: Head, count: int, layer: str) -> int | None:
    """Return the index of a head; None for the mean of all.

    Raises:
        LayerError: The layer has no such head.
    """
    if head is None or head == "mean":
        return None
    if not isinstance(head, Integral) or isinstance(head, bool) or not -count <= head < count:
        raise LayerError(f"head={head!r}: layer {layer!r} has {count} heads, 0 to {count - 1}; 'mean' is their mean.")
    return int(head) % count


def _choose_columns(count: int) -> int:
    """Return the number of columns that leaves the fewest places empty."""
    return count if count < _COLUMNS.stop else min(_COLUMNS, key=lambda columns: (-count % columns, -columns))


def _find_warnings(share: float) -> list[str]:
    if share >= _SMALL_SHARE:
        return []
    return [f"Only {share:.1%} of the attention goes to the image, the rest to other tokens; the map shows that part."]


@explain_foreign_arguments
def patch_similarity(
    model: Model, img: Any, place: Sequence[float], *, layer: Layers = None, **settings: Any
) -> Explanation:
    """Return how similar the features of all places of an image are to those of one place, as a map.

        camtool.patch_similarity(dino, "dog.jpg", (120, 80)).save("similar.png")

    The features are the activations of a layer, ``(C, h, w)``; the value of a cell is the cosine of the angle between
    its features and those of the cell at the place: 1 there, 0 for features that share no direction. It shows what the
    layer takes for alike, e.g. parts of an object in DINO, and knows no class.

    Args:
        model: As for :func:`camtool.explain`.
        img: One image.
        place: ``(x, y)`` in pixels of the photo.
        layer: One layer, as for :func:`camtool.explain`; by default the best one for the whole output.
        **settings: Settings of :func:`camtool.explain`.

    Raises:
        ImageError: ``img`` is not one image.
        TargetError: The place is outside of what reaches the model.
        CamtoolError: As for :func:`camtool.explain`.
    """
    check_number_tuple("place", place, 2, error=TargetError)
    features: list[Tensor] = []

    def keep_features(evidence: Evidence) -> Tensor:
        features.append(evidence.activations.detach())
        return evidence.activations.detach().mean(1)

    output = Custom(_sum_squares, label="output")
    found: Any = explain(model, img, output, method=keep_features, layer=layer, **settings)
    results: list[Explanation] = found if isinstance(found, list) else [found]
    geometry = results[0].geometry if len(results) == len(features) == 1 else None
    if geometry is None:
        raise ImageError(f"img, layer: one image and one layer are compared; {len(results)} images came.")
    result, (cells,) = results[0], features
    rows, columns = cells.shape[2:]
    queries = Queries(rows * columns, "tokens", Layout("channels first", (rows, columns)), geometry, result.centers)
    try:
        row, column = divmod(queries.select(place)[0], columns)
    except TargetError as error:
        raise TargetError(str(error).replace("query", "place", 1)) from None
    vectors = torch.nn.functional.normalize(cells[0].double(), dim=0)
    raw = (vectors * vectors[:, row, column, None, None]).sum(0)
    label = f"like ({place[0]:g}, {place[1]:g})"
    values = np.asarray(raw.float().cpu().numpy())
    box = queries.find_box([row * columns + column])
    # Warnings about the map or the score are about what was left out here.
    notes = tuple(warning for warning in result.warnings if warning.code not in ("constant-map", "method-note"))
    changed: Any = {"label": label, "score": 1.0, "method": "patch-similarity", "box": box, "warnings": notes}
    return replace(result, raw=values, source=None, **changed)


def _sum_squares(output: Any) -> Tensor:
    """Return the sum of the squares of an output, which depends on every layer before it."""
    tensor = find_main_tensor(output)
    return torch.zeros(()) if tensor is None else tensor.float().square().sum()
