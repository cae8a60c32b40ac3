"""Arithmetic on maps, one or a batch ``(N, *grid)``: resizing, scaling into [0, 1], and finding constant maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Values that differ by fewer machine epsilons are equal: a sum rounds more than once.
ROUNDING_STEPS = 16


def normalize(
    values: NDArray[Any], among: NDArray[np.bool_] | None = None, *, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Scale a map so that its lowest value is 0 and its highest 1; a constant map becomes zeros.

    This is the last step of every map. It works on numpy arrays, because torch would wake other threads for the few
    numbers of one image.

    Args:
        values: A map of any shape, floating-point.
        among: A boolean mask of the same shape: the positions that count. The others become 0.
        out: Where the result is written; it may be ``values``. By default a new array.

    Returns:
        The same shape and type, in [0, 1]. A map whose lowest or highest value is not finite becomes zeros.
    """
    out = np.empty_like(values) if out is None else out
    limits = find_limits(values, among)
    if limits is None:
        out.fill(0)
        return out
    lowest, highest = limits
    np.subtract(values, lowest, out=out)
    out /= highest - lowest
    if among is not None:
        out[~among] = 0
    return out


def find_limits(values: NDArray[Any], among: NDArray[np.bool_] | None = None) -> tuple[float, float] | None:
    """Return the lowest and the highest value; ``None`` if they are equal but for rounding, or not finite."""
    where: Any = True if among is None else among
    lowest = float(np.min(values, where=where, initial=np.inf))
    highest = float(np.max(values, where=where, initial=-np.inf))
    # A map that varies by rounding alone is constant: scaled up, it would show noise over the whole image.
    types = np.finfo(values.dtype)
    rounding = ROUNDING_STEPS * float(types.eps) * max(abs(lowest), abs(highest))
    # The upper limit catches infinite values, and differences that overflow. NaN fails both comparisons.
    return (lowest, highest) if rounding < highest - lowest <= float(types.max) else None


def resize_to_grid(maps: Tensor, grid: Sequence[int]) -> Tensor:
    """Return maps ``(N, *grid)`` on another grid, by linear interpolation between the centers of cells."""
    if tuple(maps.shape[1:]) == tuple(grid):
        return maps
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(grid)]
    return torch.nn.functional.interpolate(maps[:, None], size=tuple(grid), mode=mode, align_corners=False)[:, 0]


def scale_min_max(maps: Tensor) -> Tensor:
    """Scale each map ``(N, *grid)`` so that its lowest value is 0 and its highest 1; constant maps become zeros."""
    # Divide by the peak first, so that the difference of two huge values does not overflow.
    maps = scale_by_peak(maps)
    axes = tuple(range(1, maps.ndim))
    lowest, highest = maps.amin(axes, keepdim=True), maps.amax(axes, keepdim=True)
    varies = highest - lowest > ROUNDING_STEPS * torch.finfo(maps.dtype).eps
    return torch.where(varies, (maps - lowest) / torch.where(varies, highest - lowest, 1), 0)


def is_constant(maps: Tensor) -> Tensor:
    """Return for each map ``(N, *grid)`` True if it is the same everywhere, up to rounding: ``(N,)``."""
    values = scale_by_peak(maps).flatten(1)
    return values.amax(1) - values.amin(1) <= ROUNDING_STEPS * torch.finfo(maps.dtype).eps


def scale_by_peak(maps: Tensor) -> Tensor:
    """Divide each map ``(N, *grid)`` by its largest magnitude, so that squares of its values do not overflow."""
    # The peak is a unit of measurement, so gradients do not pass through it.
    return maps / find_peaks(maps.detach())


def find_peaks(maps: Tensor) -> Tensor:
    """Return the largest magnitude of each map ``(N, *grid)``, or 1 where it is 0, with as many axes as the maps."""
    peak = maps.flatten(1).abs().amax(1)
    return unsqueeze_like(torch.where(peak == 0, 1, peak), maps)


def upcast(tensor: Tensor) -> Tensor:
    """Return a half-precision tensor in float32, so that sums stay exact; wider types stay unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def unsqueeze_like(values: Tensor, maps: Tensor) -> Tensor:
    """Append axes of length 1 to values of each row ``(R, ...)``, until there are as many axes as the maps have."""
    return values.reshape(*values.shape, *[1] * (maps.ndim - values.ndim))
