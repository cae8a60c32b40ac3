"""The attention of one layer: its matrices, the map of any head and query on the photo, and a picture of all heads."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.messages import format_count
from camtool.attention_maps.queries import Queries, Query
from camtool.errors import LayerError
from camtool.explaining.explanation import Explanation
from camtool.layers.layouts import Layout
from camtool.rendering import image_writing, regions
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.views import View
from camtool.warning_codes import to_map_warning

Head: TypeAlias = "int | Literal['mean'] | None"
"""A head by its number, or the mean of all heads; None is the default."""

_COLUMNS = range(4, 7)
"""Numbers of images in a row of a picture: six of 240 pixels fill the width of a screen."""

_IMAGE_WIDTH, _LINE_WIDTH = 240, 2
"""Width of an image in a picture, and of the line around the query on it, in pixels."""

_SMALL_SHARE = 0.1
"""Share of the attention for the image below which the user is warned. A map shows that share alone, at full contrast.
With the uniform attention of a small ViT, 49 patches and a class token, it is 0.98."""


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
        return view.draw_overlay(view.place_map(explanation.raw, explanation.centers))

    def _mark_query(self, indices: list[int]) -> NDArray[np.uint8]:
        """Return the photo with a box around the query."""
        photo, times, box = self.view.enlarge().photo, self.view.enlargement, self.queries.find_box(indices)
        if box is None:
            return photo
        width = max(1, round(_LINE_WIDTH * photo.shape[1] / _IMAGE_WIDTH))
        x0, y0, x1, y1 = box
        enlarged = regions.grow_to_one_pixel((times * x0, times * y0, times * x1, times * y1))
        return regions.draw_boxes(photo, [enlarged], width=width)


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
