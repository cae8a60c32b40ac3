"""Arithmetic on maps ``(N, *grid)``: scaling into [0, 1], resizing, and merging those of several layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from camtool.errors import MethodError, near

__all__ = ["MERGES", "merge", "merge_function", "normalise", "resize"]


def normalise(maps: Tensor, among: Tensor | None = None) -> Tensor:
    """Scale each map so that its lowest value becomes 0 and its highest 1; a constant map becomes zeros.

    Args:
        maps: ``(N, *grid)``.
        among: ``(*grid)`` or ``(N, *grid)`` booleans: the positions that count. The others come out as 0.

    Returns:
        ``(N, *grid)`` in [0, 1].
    """
    flat = maps.flatten(1)
    ignored = None if among is None else ~among.expand_as(maps).flatten(1)
    lowest = (flat if ignored is None else flat.masked_fill(ignored, torch.inf)).amin(1, keepdim=True)
    highest = (flat if ignored is None else flat.masked_fill(ignored, -torch.inf)).amax(1, keepdim=True)
    # What differs by rounding alone is constant: scaling it up would paint noise over the whole picture.
    rounding = 16 * torch.finfo(maps.dtype).eps * torch.maximum(lowest.abs(), highest.abs())
    varied = (highest - lowest > rounding) & torch.isfinite(highest - lowest)
    scaled = (flat - lowest).div_(torch.where(varied, highest - lowest, torch.inf)).nan_to_num_(nan=0)
    return (scaled if ignored is None else scaled.masked_fill_(ignored, 0)).reshape(maps.shape)


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
