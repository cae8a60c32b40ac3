"""Arithmetic on maps ``(N, *grid)``: resizing, merging those of several layers, and at last scaling into [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from camtool.errors import MethodError, near

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MERGES", "merge", "merge_function", "normalise", "resize"]


def normalise(values: NDArray[Any], among: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """Scale a map so that its lowest value becomes 0 and its highest 1; a constant map becomes zeros.

    This is the last thing that is done to a map, on its way to a person, so it works on arrays: on one core, and
    without waking others for a picture's worth of numbers.

    Args:
        values: A map of any shape, floating.
        among: Booleans of the same shape: the positions that count. The others come out as 0.

    Returns:
        The same shape and type, in [0, 1]. A map whose extremes are not finite comes out as zeros.
    """
    counted = values if among is None else values[among]
    lowest, highest = (float(counted.min()), float(counted.max())) if counted.size else (0.0, 0.0)
    limits = np.finfo(values.dtype)
    # What differs by rounding alone is constant: scaling it up would paint noise over the whole picture.
    rounding = 16 * float(limits.eps) * max(abs(lowest), abs(highest))
    if not rounding < highest - lowest <= float(limits.max):
        return np.zeros_like(values)
    scaled: NDArray[Any] = values - lowest
    scaled /= highest - lowest
    if among is not None:
        scaled[~among] = 0
    return scaled


def resize(maps: Tensor, grid: Sequence[int]) -> Tensor:
    """Maps ``(N, *grid)`` on another grid, linear between the centres of cells."""
    if tuple(maps.shape[1:]) == tuple(grid):
        return maps
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(grid)]
    return torch.nn.functional.interpolate(maps[:, None], size=tuple(grid), mode=mode, align_corners=False)[:, 0]


MERGES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda stacked: stacked.mean(0),
    "max": lambda stacked: stacked.amax(0),
}
"""Name → how the maps of several layers, ``(L, N, *grid)``, become one, ``(N, *grid)``."""


def merge(maps: Sequence[Tensor], how: str | Callable[[Tensor], Tensor] = "mean") -> Tensor:
    """One map from those of several layers.

    A gradient grows and shrinks from layer to layer, so values of two layers do not compare. Each map is therefore
    divided by its own largest magnitude first, then brought to the finest grid among them. A single map is left alone.

    Args:
        maps: One ``(N, *grid)`` a layer.
        how: A name in :data:`MERGES`, or a function from ``(L, N, *grid)`` to ``(N, *grid)``.

    Raises:
        MethodError: The name is unknown.
    """
    function = merge_function(how)
    if len(maps) == 1:
        return maps[0]
    finest = max((tuple(each.shape[1:]) for each in maps), key=lambda grid: torch.Size(grid).numel())
    return function(torch.stack([resize(_in_units_of_its_peak(each), finest) for each in maps]))


def merge_function(how: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The merge of that name; a function stands for itself.

    Raises:
        MethodError: The name is unknown.
    """
    if callable(how):
        return how
    if how not in MERGES:
        raise MethodError(f"merge {how!r} is unknown; known are {', '.join(MERGES)}.{near(how, MERGES)}")
    return MERGES[how]


def _in_units_of_its_peak(maps: Tensor) -> Tensor:
    peak = maps.flatten(1).abs().amax(1).reshape(-1, *[1] * (maps.ndim - 1))
    return maps / torch.where(peak > 0, peak, 1)
