"""Checks of the map: is it about the class, the image, or the padding? Is its grid fine enough, and in its place?

The place is right if the pixels on which the hottest cell depends lie where the cell is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.message_parts import format_count
from camtool.evidence.evidence import Evidence
from camtool.geometry.cell_centers import CellCenters
from camtool.hooks.structures.modules import lacks_gradients
from camtool.layers.places.cell_responses import Cell, CellResponse, cover_parts, measure_responses
from camtool.targets import ClassScore
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding
from camtool.warning_codes import HeatPlaces

# Correlation from which two maps are the same. On the photos and scenes of the tests, the most similar maps of a
# method that tells classes apart (layercam on a model of ten classes) correlate by 0.987 over all classes.
_SAME_MAP = 0.995

# The ranks of the classes that are compared, relative to the number of classes. The classes next to the first may
# look alike, e.g. two breeds of dogs, and have the same map for a good reason; those of all ranks do not.
_RANKS = (0.0, 0.25, 0.5, 0.75, 1.0)

# How far the mean heat at the border exceeds that inside, relative to the range of the map, for a finding. On the
# photos and scenes of the tests, the smaller of the values for image and blank image is at most 0.02.
_BORDER_EXCESS = 0.15

# With fewer cells along a side, a cell covers more than a quarter of the image, as wide as a typical object.
_FEWEST_CELLS = 4


def find_classes_skip_reason(context: CheckContext) -> str | None:
    """Return why the maps of other classes cannot be compared; ``None`` if they can."""
    scores = context.class_scores
    if scores is None or len(scores) < 2:
        return "it takes a classifier of two classes or more"
    return None if context.target.traits.is_class_score else "the target is no class"


def check_classes(context: CheckContext) -> Iterator[Finding]:
    """Find a map that is the same for classes of all ranks."""
    if not context.has_contrast:
        return
    chosen = _choose_other_classes(context)
    link = context.forward_pass.find_link().link or "softmax"
    class_maps = context.compute_maps_of([ClassScore(index, link) for index in chosen])
    lowest = min(_correlate(context.new_map, class_map) for class_map in class_maps)
    if lowest < _SAME_MAP:
        return
    yield Finding(
        "class-agnostic-method" if context.method.is_class_agnostic else "same-map",
        f"{format_count(len(chosen), 'other class')} of all ranks, from the most to the least probable one, "
        f"{'has' if len(chosen) == 1 else 'have'} the same map, so it says nothing about this class in particular.",
        {"correlation": lowest},
    )


def _choose_other_classes(context: CheckContext) -> list[int]:
    """Return classes of all ranks that the target is not about."""
    scores, target = context.class_scores, context.target
    assert scores is not None  # see find_classes_skip_reason
    own = {target.get_class_index(), *chain.from_iterable(target.list_groups(None))}
    others = [index for index in scores.argsort(descending=True).tolist() if index not in own]
    return list(dict.fromkeys(others[round(rank * (len(others) - 1))] for rank in _RANKS))


def check_blank_image(context: CheckContext) -> Iterator[Finding]:
    """Find a map that is the same for an image of one color, or has become constant."""
    if not context.has_contrast or context.is_blank:
        return
    span = float(np.ptp(context.new_map))
    if span == 0:
        yield Finding("constant-map", "Explained again, the map of this image alone has the same value everywhere.")
        return
    similarity, share = _correlate(context.new_map, context.blank_map), float(np.ptp(context.blank_map)) / span
    # Proportional maps of another strength are not the same: the image does make a difference.
    if similarity >= _SAME_MAP and 0.5 <= share <= 2:
        yield Finding(
            "image-ignored",
            "An image of one color, the mean color of this image, has the same map, so the map is not about what the "
            "image shows.",
            {"correlation": similarity},
        )


def find_border_skip_reason(context: CheckContext) -> str | None:
    """Return why the border cannot be checked; ``None`` if it can."""
    return None if context.raw.ndim == 2 else "it takes an image"


def check_border(context: CheckContext) -> Iterator[Finding]:
    """Find heat at the border that is there for an image of one color as well."""
    raw = context.new_map
    if raw.ndim != 2 or min(raw.shape) < _FEWEST_CELLS or not context.has_contrast or context.is_blank:
        return
    span = float(np.ptp(raw))
    # Only with heat there the blank image is worth its forward pass.
    if span == 0 or (excess := _compute_border_excess(raw) / span) < _BORDER_EXCESS:
        return
    blank = _compute_border_excess(context.blank_map) / span
    if blank >= _BORDER_EXCESS:
        yield Finding(
            "border-heat",
            f"The border is hotter than the rest, by {excess:.0%} of the range of the map; an image of one color has "
            f"that too ({blank:.0%}), so it comes from the padding of the model's layers.",
            {"excess": excess, "of a blank image": blank},
        )


def check_grid(context: CheckContext) -> Iterator[Finding]:
    """Find a grid of very few cells along an axis: of an image, a signal, a volume or a clip."""
    grid, size = context.new_map.shape, context.inputs.shape[2:]
    # A cell for each pixel, slice or frame is as fine as the input itself.
    if not any(cells < min(_FEWEST_CELLS, pixels) for cells, pixels in zip(grid, size, strict=True)):
        return
    is_clip = context.item.view.kind == "clip"
    lengths = " x ".join(f"{pixels / cells:.0f}" for cells, pixels in zip(grid, size, strict=True))
    unit = "values" if len(size) == 1 else "frames x pixels" if is_clip else "pixels"
    yield Finding(
        "coarse-layer",
        f"The map has only {' x '.join(map(str, grid))} cells, each of {lengths} {unit} of the model's input, so it "
        f"cannot show {'when and ' if is_clip else ''}where an object is.",
        dict(zip(("frames" if is_clip else "slices", "rows", "columns")[-len(grid) :], grid, strict=True)),
    )


def _correlate(response: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return Pearson's correlation of two maps; 0 if one of them is constant or of another shape."""
    if response.shape != expected.shape:
        return 0.0
    first, second = (raw.astype(np.float64).ravel() - raw.mean(dtype=np.float64) for raw in (response, expected))
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norm if norm > 0 else 0.0


def _compute_border_excess(raw: NDArray[Any]) -> float:
    """Return the mean of the outermost cells of a map ``(h, w)``, minus the mean of the others."""
    is_border = np.ones(raw.shape, np.bool_)
    is_border[1:-1, 1:-1] = False
    return float(raw[is_border].mean(dtype=np.float64) - raw[~is_border].mean(dtype=np.float64))


# ----------------------------------------------------------------------------------------------- the place of the heat


# Distance in cells, beyond the spread of the response, from which heat lies elsewhere. On networks whose places
# are known it is at most 0.5; what a crop, a mirror or a zoom moves has 0.1 to 27 (benchmarks place_proof).
_FURTHEST = 1.5

# How many times as much a cell that sees the whole image must depend on a pixel where it is drawn as on any.
_FEWEST_TIMES = 2.0

# Distance in cells that counts as where a cell is drawn.
_NEAR = 2.0


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
        layer, index = evidence.get_layer(), forward_pass.call_index
        found = measure(forward_pass.model, forward_pass.inputs, layer, [cell], call_index=index)
    if cell in found:  # else nothing reaches the image, and checks of the gradient tell why
        response = found[cell]
        centers = evidence.find_centers() or CellCenters.stretch(raw.shape, response.shares.shape)
        drawn = _Drawn.place(centers, cell)
        yield from _judge(response, drawn, _find_on_photo(drawn, response, context))


def _find_layer(context: CheckContext) -> Evidence | None:
    """Return the evidence of the layer on whose grid the map is; ``None`` if it is on none."""
    on_grid = [of for of in context.evidence if of.layer and tuple(of.get_layer().layout.grid) == context.raw.shape]
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
    pixel_axes = np.meshgrid(*(np.arange(pixels) + 0.5 for pixels in response.shares.shape), indexing="ij", sparse=True)
    squares = sum(((positions - at) / step) ** 2 for positions, at, step in zip(pixel_axes, *drawn, strict=True))
    is_near = np.asarray(squares <= _NEAR**2)
    return float(response.shares[is_near].mean() * response.shares.size) if is_near.any() else 0.0


def _describe_direction(steps: NDArray[np.float64]) -> str:
    """Return the direction of a vector along the axes of an image, a volume or a signal, in words."""
    names = (("earlier", "later"), ("up", "down"), ("left", "right"))[-max(len(steps), 2) :]
    main = np.abs(steps) > np.abs(steps).max() / 2
    words = [pair[int(step > 0)] for pair, step, counts in zip(names, steps, main, strict=False) if counts]
    return " and ".join(words)
