"""Checks of the map: is it about the class, about the image, or about the padding? Is its grid fine enough?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool.arguments.messages import format_count
from camtool.targets import ClassScore
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAME_MAP = 0.995
"""Correlation from which two maps are the same. On the photos and scenes of the tests, the most similar maps of a
method that tells classes apart (layercam on a model of ten classes) correlate by 0.987 over all classes."""

_RANKS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The ranks of the classes that are compared, relative to the number of classes. The classes next to the first may
look alike, e.g. two breeds of dogs, and have the same map for a good reason; those of all ranks do not."""

_BORDER_EXCESS = 0.15
"""How far the mean heat at the border exceeds that inside, relative to the range of the map, for a finding. On the
photos and scenes of the tests, the smaller of the values for image and blank image is at most 0.02."""

_FEWEST_CELLS = 4
"""With fewer cells along a side, a cell covers more than a quarter of the image, as wide as a typical object."""


def find_classes_skip_reason(context: CheckContext) -> str | None:
    """Return why the maps of other classes cannot be compared; ``None`` if they can."""
    scores = context.class_scores
    if scores is None or len(scores) < 2:
        return "it takes a classifier of two classes or more"
    return None if context.target.traits.is_class_score else "the target is no class"


def check_classes(context: CheckContext) -> Iterator[Finding]:
    """Find a map that is the same for classes of all ranks."""
    scores, target = context.class_scores, context.target
    if scores is None or len(scores) < 2 or not target.traits.is_class_score or not context.has_contrast:
        return
    ranked = scores.argsort(descending=True).tolist()
    own = {target.get_class_index(), *(index for group in target.list_groups(None) for index in group)}
    others = [index for index in ranked if index not in own]
    chosen = list(dict.fromkeys(others[round(rank * (len(others) - 1))] for rank in _RANKS))
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


def _correlate(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return Pearson's correlation of two maps; 0 if one of them is constant or of another shape."""
    if one.shape != other.shape:
        return 0.0
    first, second = (raw.astype(np.float64).ravel() - raw.mean(dtype=np.float64) for raw in (one, other))
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norm if norm > 0 else 0.0


def _compute_border_excess(raw: NDArray[Any]) -> float:
    """Return the mean of the outermost cells of a map ``(h, w)``, minus the mean of the others."""
    is_border = np.ones(raw.shape, np.bool_)
    is_border[1:-1, 1:-1] = False
    return float(raw[is_border].mean(dtype=np.float64) - raw[~is_border].mean(dtype=np.float64))
