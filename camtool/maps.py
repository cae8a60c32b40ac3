"""Arithmetic on maps ``(N, *grid)``: resizing, merging those of several layers, and at last scaling into [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from camtool.errors import MethodError, near

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "MERGES",
    "Cascade",
    "Merge",
    "ScaledMax",
    "Winsor",
    "in_units_of_its_peak",
    "is_constant",
    "merge",
    "merge_function",
    "min_max",
    "normalise",
    "peaks",
    "per_row",
    "product",
    "resize",
    "widened",
]

_ROUNDING = 16
"""What differs by less, in units of the last digit, is the same."""


def normalise(
    values: NDArray[Any], among: NDArray[np.bool_] | None = None, *, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Scale a map so that its lowest value becomes 0 and its highest 1; a constant map becomes zeros.

    This is the last thing that is done to a map, so it works on arrays: on one core, and without waking others for a
    picture's worth of numbers.

    Args:
        values: A map of any shape, floating.
        among: Booleans of the same shape: the positions that count. The others come out as 0.
        out: Where the result is written; it may be ``values``. By default a new array.

    Returns:
        The same shape and type, in [0, 1]. A map whose extremes are not finite comes out as zeros.
    """
    counted: Any = True if among is None else among
    lowest = float(np.min(values, where=counted, initial=np.inf))
    highest = float(np.max(values, where=counted, initial=-np.inf))
    limits = np.finfo(values.dtype)
    out = np.empty_like(values) if out is None else out
    # What differs by rounding alone is constant: scaling it up would paint noise over the whole picture.
    rounding = _ROUNDING * float(limits.eps) * max(abs(lowest), abs(highest))
    if not rounding < highest - lowest <= float(limits.max):
        out.fill(0)
        return out
    np.subtract(values, lowest, out=out)
    out /= highest - lowest
    if among is not None:
        out[~among] = 0
    return out


def resize(maps: Tensor, grid: Sequence[int]) -> Tensor:
    """Maps ``(N, *grid)`` on another grid, linear between the centres of cells."""
    if tuple(maps.shape[1:]) == tuple(grid):
        return maps
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(grid)]
    return torch.nn.functional.interpolate(maps[:, None], size=tuple(grid), mode=mode, align_corners=False)[:, 0]


def min_max(maps: Tensor) -> Tensor:
    """Each of some maps ``(N, *grid)`` scaled: its lowest value is 0 and its highest 1; constant ones become zero."""
    maps = in_units_of_its_peak(maps)
    over = tuple(range(1, maps.ndim))
    lowest, highest = maps.amin(over, keepdim=True), maps.amax(over, keepdim=True)
    varies = highest - lowest > _ROUNDING * torch.finfo(maps.dtype).eps
    return torch.where(varies, (maps - lowest) / torch.where(varies, highest - lowest, 1), 0)


def is_constant(maps: Tensor) -> Tensor:
    """Which of some maps ``(N, *grid)`` are the same everywhere, up to rounding: ``(N,)``."""
    values = in_units_of_its_peak(maps).flatten(1)
    return values.amax(1) - values.amin(1) <= _ROUNDING * torch.finfo(maps.dtype).eps


def in_units_of_its_peak(maps: Tensor) -> Tensor:
    """Each map ``(N, *grid)`` divided by its largest magnitude, so that no square of its values overflows."""
    return maps / peaks(maps.detach())  # a unit, and no part of what a gradient follows


def peaks(maps: Tensor) -> Tensor:
    """The largest magnitude of each map ``(N, *grid)``, 1 where that is 0, with as many axes as the maps."""
    peak = maps.flatten(1).abs().amax(1)
    return per_row(torch.where(peak == 0, 1, peak), maps)


def widened(tensor: Tensor) -> Tensor:
    """In float32 at least, so that sums and products do not lose what half precision had."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def per_row(values: Tensor, maps: Tensor) -> Tensor:
    """Values of each row, or of each row and channel, with as many axes as the maps, to calculate with them."""
    return values.reshape(*values.shape, *[1] * (maps.ndim - values.ndim))


# -------------------------------------------------------------------------------------------------------- merges


Merge: TypeAlias = Callable[[Tensor], Tensor]
"""From the maps of several layers ``(L, N, *grid)``, each in units of its own peak, in the order in which the layers
were asked for, and on the finest grid among them, to one, ``(N, *grid)``."""


@dataclass(frozen=True)
class ScaledMax:
    """The largest value at each position, those of shallow layers raised: LayerCAM's merge, 10.1109/TIP.2021.3089943.

    The maps of shallow layers hold a few strong values among many weak ones, so they are scaled first: ``M`` becomes
    ``tanh(gamma * M / max M)``. Those of deep layers, of which the paper's VGG-16 has two among five, are left as they
    are. A map does not tell how deep its layer is, so ask for the layers from shallow to deep.

    Attributes:
        gamma: How much the shallow layers are raised; 2 in the paper.
        deep: How many layers, of those asked for last, are deep.
    """

    gamma: float = 2.0
    deep: int = 1

    def __post_init__(self) -> None:
        if not (self.gamma > 0 and self.deep >= 0):
            raise MethodError(f"{self}: gamma must be more than 0, and deep 0 or more.")

    def __call__(self, stacked: Tensor) -> Tensor:
        """The maps ``(N, *grid)``."""
        shallow, deep = stacked.tensor_split([max(0, len(stacked) - self.deep)])
        return torch.cat([(self.gamma * shallow).tanh(), deep]).amax(0)


def product(stacked: Tensor) -> Tensor:
    """Hot is only what is hot in all layers: RefineCAM, arXiv 2605.14641.

    ``M = Π_l minmax(up(M_l))``. The authors' program multiplies at the picture's size, and grad-cam follows it; this
    multiplies on the finest of the layers' grids, from where the map is brought to the picture like any other. A layer
    whose map is empty empties the product.
    """
    return torch.stack([min_max(each) for each in stacked]).prod(0)


@dataclass(frozen=True)
class Winsor:
    """The sum of the layers, each as much as it matters, outliers held back: Winsor-CAM, arXiv 2507.10846.

    The importance of a layer is the mean of Grad-CAM's weights over its channels, which is the mean of the gradient, or
    0 where that is negative. What is above the percentile of the positive ones is brought down to it; then they are
    scaled to between 0.1 and 1, and so weigh the maps, each between 0 and 1. Where :func:`merge` is not told the
    importance it takes the means of the maps themselves, as they came from the method.

    Attributes:
        percentile: 0 to 100. Low ones let all layers that matter count alike; high ones leave the word to those that
            matter most.
    """

    percentile: float = 80.0

    def __post_init__(self) -> None:
        if not 0 <= self.percentile <= 100:
            raise MethodError(f"{self}: percentile must be between 0 and 100.")

    def __call__(self, stacked: Tensor, importance: Tensor | None = None) -> Tensor:
        """The maps ``(N, *grid)``, by the layers' importance ``(L, N)``; without it they count alike."""
        weights = self.weights(stacked.new_ones(stacked.shape[:2]) if importance is None else importance)
        scaled = torch.stack([min_max(each) for each in stacked])
        return (per_row(weights, scaled) * scaled).sum(0)

    def weights(self, importance: Tensor) -> Tensor:
        """What the layers' maps are multiplied by, ``(L, N)``, from the layers' importance ``(L, N)``."""
        counted = torch.where(importance > 0, importance.nan_to_num(), torch.nan)
        clipped = torch.minimum(counted, counted.nanquantile(self.percentile / 100, dim=0))
        lowest, highest = (clipped.nanquantile(q, dim=0) for q in (0.0, 1.0))
        share = torch.where(highest > lowest, (clipped - lowest) / (highest - lowest), 1)
        return (_LEAST + (1 - _LEAST) * share).where(importance > 0, 0)


_LEAST = 0.1
"""The weight of the layer that matters least among those that matter at all."""


@dataclass(frozen=True)
class Cascade:
    """From the coarsest map to the finest, each telling where in the last one's cells: Poly-CAM, arXiv 2204.13359.

    ``P_l = up(P_(l+1)) LNorm(M_l)``, with ``LNorm(M) = M / up(down(M))``, a map in units of what it is around each
    place: ``down`` brings it to the grid of the map before and ``up`` back. The first is the coarsest map, and among
    those on one grid that of the layer asked for last. What is negative in a map counts as 0.
    """

    def __call__(self, maps: Tensor | Sequence[Tensor]) -> Tensor:
        """The map ``(N, *finest)`` of maps ``(N, *grid)``, each on a grid of its own."""
        from_the_last = list(maps)[::-1]
        coarsest, *finer = sorted(from_the_last, key=lambda each: each[0].numel())
        result: Tensor = coarsest.relu()
        for each in finer:
            grid, positive = each.shape[1:], each.relu()
            around = resize(resize(positive, result.shape[1:]), grid)
            result = resize(result, grid) * torch.where(around > 0, positive / around, 0)
        return result


MERGES: dict[str, Merge] = {
    "mean": lambda stacked: stacked.mean(0),
    "max": lambda stacked: stacked.amax(0),
    "layercam": ScaledMax(),
    "refinecam": product,
    "winsor": Winsor(),
    "polycam": Cascade(),
}
"""Name → how the maps of several layers become one."""


def merge(maps: Sequence[Tensor], how: str | Merge = "mean", importance: Callable[[], Tensor] | None = None) -> Tensor:
    """One map from those of several layers.

    A gradient grows and shrinks from layer to layer, so values of two layers do not compare. Each map is therefore
    divided by its own largest magnitude first, then brought to the finest grid among them; :class:`Cascade` alone needs
    them as they are. A single map is left alone.

    Args:
        maps: One ``(N, *grid)`` a layer.
        how: A name in :data:`MERGES`, or a function from ``(L, N, *grid)`` to ``(N, *grid)``.
        importance: Tells how much each layer counts for each map, ``(L, N)``, and is asked only by a merge that goes by
            it; by default the maps' means are taken.

    Raises:
        MethodError: The name is unknown.
    """
    function = merge_function(how)
    if len(maps) == 1:
        return maps[0]
    scaled = [in_units_of_its_peak(each) for each in maps]
    if isinstance(function, Cascade):
        return function(scaled)
    finest = max((tuple(each.shape[1:]) for each in maps), key=lambda grid: torch.Size(grid).numel())
    stacked = torch.stack([resize(each, finest) for each in scaled])
    if isinstance(function, Winsor):
        return function(stacked, importance() if importance else _means(maps))
    return function(stacked)


def merge_function(how: str | Merge) -> Merge:
    """The merge of that name; another one stands for itself.

    Raises:
        MethodError: The name is unknown.
    """
    if not isinstance(how, str):
        return how
    if how not in MERGES:
        raise MethodError(f"merge {how!r} is unknown; known are {', '.join(MERGES)}.{near(how, MERGES)}")
    return MERGES[how]


def _means(maps: Sequence[Tensor]) -> Tensor:
    return torch.stack([each.flatten(1).mean(1) for each in maps])
