"""Check of places: do the pixels on which the hottest cell depends lie where the cell is drawn?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from camtool.evidence.evidence import Evidence
from camtool.geometry.cell_centers import CellCenters
from camtool.hooks.structures.modules import lacks_gradients
from camtool.layers.places.cell_responses import Cell, CellResponse, cover_parts, measure_responses
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding
from camtool.warning_codes import HeatPlaces

_FURTHEST = 1.5
"""Distance in cells, beyond the spread of the response, from which heat lies elsewhere. On networks whose places
are known it is at most 0.5; what a crop, a mirror or a zoom moves has 0.1 to 27 (benchmarks place_proof)."""

_FEWEST_TIMES = 2.0
"""How many times as much a cell that sees the whole image must depend on a pixel where it is drawn as on any."""

_NEAR = 2.0
"""Distance in cells that counts as where a cell is drawn."""


def find_place_skip_reason(context: CheckContext) -> str | None:
    """Return why the place of the heat cannot be tested; ``None`` if it can."""
    if _find_layer(context) is None:
        return "the map is not on the grid of one layer"
    return None if context.has_contrast else "the map is constant"


def check_place(context: CheckContext) -> Iterator[Finding]:
    """Find heat that is drawn elsewhere than the pixels lie on which the hottest cell depends.

    One forward pass and two backward passes; without gradients, a forward pass for some covered images.
    """
    evidence = _find_layer(context)
    assert evidence is not None  # see find_place_skip_reason
    raw, forward_pass = context.new_map, context.forward_pass
    hottest = int(np.nan_to_num(raw, nan=-np.inf).argmax())
    cell: Cell = tuple(int(index) for index in np.unravel_index(hottest, raw.shape))
    measure = cover_parts if lacks_gradients(forward_pass.model) else measure_responses
    with forward_pass.restore_autocast():
        found = measure(
            forward_pass.model, forward_pass.inputs, evidence.get_layer(), [cell], call_index=forward_pass.call_index
        )
    if cell in found:  # else nothing reaches the image, and checks of the gradient tell why
        response = found[cell]
        centers = evidence.find_centers() or CellCenters.stretch(raw.shape, response.shares.shape)
        drawn = _Drawn.place(centers, cell)
        yield from _judge(response, drawn, _find_on_photo(drawn, response, context))


def _find_layer(context: CheckContext) -> Evidence | None:
    """Return the evidence of the layer on whose grid the map is; ``None`` if it is on none."""
    on_grid = [one for one in context.evidence if one.layer and tuple(one.get_layer().layout.grid) == context.raw.shape]
    return on_grid[0] if on_grid and not context.method.at_input_size else None


class _Drawn(NamedTuple):
    """Where a cell is drawn.

    Attributes:
        center: Its center in pixels of the model's input.
        strides: The distances between neighboring cells along each axis, in pixels.
    """

    center: NDArray[np.float64]
    strides: NDArray[np.float64]

    @classmethod
    def place(cls, centers: CellCenters, cell: Cell) -> _Drawn:
        """Return where the centers of all cells have one."""
        strides = np.array([axis.stride for axis in centers.axes])
        return cls(np.array([axis.offset for axis in centers.axes]) + strides * cell, np.abs(strides))


def _judge(response: CellResponse, drawn: _Drawn, places: HeatPlaces | None) -> Iterator[Finding]:
    steps = (response.center - drawn.center) / drawn.strides
    distance, spread = float(np.linalg.norm(steps)), float(np.linalg.norm(response.spread / drawn.strides))
    numbers = {"distance": distance, "spread": spread}
    if response.sees_all:
        times = _compare_with_all(response, drawn)
        if times < _FEWEST_TIMES:
            yield Finding(
                "no-places",
                "The hottest cell depends on the whole image alike, and no more on the pixels where it is drawn, so "
                "heat says nothing about where.",
                {**numbers, "times as much there": times},
            )
        else:
            yield Finding(
                "global-cells",
                f"The hottest cell sees the whole image, and depends on a pixel where it is drawn {times:.0f} times as "
                "much as on any pixel.",
                {**numbers, "times as much there": times},
            )
    elif distance > _FURTHEST + spread:
        yield Finding(
            "heat-elsewhere",
            f"The pixels on which the hottest cell depends lie {distance:.1f} cells {_describe_direction(steps)} "
            "from where it is drawn.",
            numbers,
            places,
        )


def _find_on_photo(drawn: _Drawn, response: CellResponse, context: CheckContext) -> HeatPlaces | None:
    """Return both places in pixels of the photo; ``None`` for an input that is not the crop of a photo."""
    geometry = context.geometry
    if geometry is None or geometry.size != response.shares.shape:
        return None
    (y0, x0), (y1, x1) = drawn.center.tolist(), response.center.tolist()
    return HeatPlaces(geometry.to_photo_point(x0, y0), geometry.to_photo_point(x1, y1))


def _compare_with_all(response: CellResponse, drawn: _Drawn) -> float:
    """Return how many times as much a cell depends on a pixel near to where it is drawn as on any pixel."""
    places = np.meshgrid(*(np.arange(pixels) + 0.5 for pixels in response.shares.shape), indexing="ij", sparse=True)
    squares = sum(((place - at) / step) ** 2 for place, at, step in zip(places, *drawn, strict=True))
    is_near = np.asarray(squares <= _NEAR**2)
    return float(response.shares[is_near].mean() * response.shares.size) if is_near.any() else 0.0


def _describe_direction(steps: NDArray[np.float64]) -> str:
    """Return the direction of a vector along the axes of an image, a volume or a signal, in words."""
    names = (("earlier", "later"), ("up", "down"), ("left", "right"))[-max(len(steps), 2) :]
    main = np.abs(steps) > np.abs(steps).max() / 2
    words = [pair[int(step > 0)] for pair, step, counts in zip(names, steps, main, strict=False) if counts]
    return " and ".join(words)
