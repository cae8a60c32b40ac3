"""Merges: how the maps of several layers become one map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from camtool.arguments.message_parts import suggest_names
from camtool.errors import MethodError
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import draw_heat, resample
from camtool.maps import scale_by_peak, scale_min_max, unsqueeze_like

# A function from the maps of several layers ``(L, N, *grid)`` to one map per image ``(N, *grid)``. Each map is divided
# by its own peak and resized to the finest grid among the layers. The layers are in the order of the ``layer``
# argument.
Merge: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ScaledMax:
    """The largest value at each position, with shallow layers raised: LayerCAM's merge, 10.1109/TIP.2021.3089943.

    Maps of shallow layers hold a few strong values among many weak ones. They are therefore scaled first: ``M`` becomes
    ``tanh(gamma * M / max M)``. Maps of deep layers stay unscaled; the paper's VGG-16 has two deep layers of five. A
    map does not show how deep its layer is, so pass the layers from shallow to deep.

    Attributes:
        gamma: How much the shallow layers are raised; 2 in the paper.
        deep: How many layers at the end of the list are deep.
    """

    gamma: float = 2.0
    deep: int = 1

    def __post_init__(self) -> None:
        if not (self.gamma > 0 and self.deep >= 0):
            raise MethodError(f"{self}: gamma must be more than 0, and deep 0 or more.")

    def __call__(self, stacked: Tensor) -> Tensor:
        """Return the maps ``(N, *grid)``."""
        shallow, deep = stacked.tensor_split([max(0, len(stacked) - self.deep)])
        return torch.cat([(self.gamma * shallow).tanh(), deep]).amax(0)


def multiply_maps(stacked: Tensor) -> Tensor:
    """Keep what is high in all layers: RefineCAM, arXiv 2605.14641.

    ``M = Π_l minmax(up(M_l))``. The authors' program and grad-cam multiply at the image's size; here the maps are
    multiplied on the finest grid of the layers, and the result is resized like any other map. If the map of one layer
    is empty, the product is empty.
    """
    return torch.stack([scale_min_max(layer_maps) for layer_maps in stacked]).prod(0)


@dataclass(frozen=True)
class Winsor:
    """The sum of the layers, weighted by importance with outliers clipped: Winsor-CAM, arXiv 2507.10846.

    The importance of a layer is the mean of Grad-CAM's weights over its channels. This equals the mean gradient;
    negative values become 0. Positive importances above the percentile are clipped to it, then scaled to [0.1, 1]. The
    results weigh the maps, each scaled to [0, 1]. If :func:`merge_maps` does not receive the importance, it uses the
    means of the raw maps.

    Attributes:
        percentile: 0 to 100. With a low percentile, all layers with a positive importance count alike; with a high one,
            the most important layers dominate.
    """

    percentile: float = 80.0

    def __post_init__(self) -> None:
        if not 0 <= self.percentile <= 100:
            raise MethodError(f"{self}: percentile must be between 0 and 100.")

    def __call__(self, stacked: Tensor, importance: Tensor | None = None) -> Tensor:
        """Return the maps ``(N, *grid)``, weighted by the importance ``(L, N)``; without it all layers count alike."""
        weights = self.compute_weights(stacked.new_ones(stacked.shape[:2]) if importance is None else importance)
        scaled = torch.stack([scale_min_max(layer_maps) for layer_maps in stacked])
        return (unsqueeze_like(weights, scaled) * scaled).sum(0)

    def compute_weights(self, importance: Tensor) -> Tensor:
        """Return the weights of the layers' maps ``(L, N)`` from the importance of the layers ``(L, N)``."""
        # NaN marks layers that do not count, so that the quantiles are taken over the others.
        counted = torch.where(importance > 0, importance.nan_to_num(), torch.nan)
        clipped = torch.minimum(counted, counted.nanquantile(self.percentile / 100, dim=0))
        lowest, highest = (clipped.nanquantile(q, dim=0) for q in (0.0, 1.0))
        share = torch.where(highest > lowest, (clipped - lowest) / (highest - lowest), 1)
        return (_LOWEST_WEIGHT + (1 - _LOWEST_WEIGHT) * share).where(importance > 0, 0)


# The weight of the least important layer with a positive importance, as in the Winsor-CAM paper.
_LOWEST_WEIGHT = 0.1


@dataclass(frozen=True)
class Cascade:
    """A product from the coarsest map to the finest: Poly-CAM, arXiv 2204.13359.

    ``P_l = up(P_(l+1)) LNorm(M_l)``, with ``LNorm(M) = M / up(down(M))``: a map relative to the mean around each
    position. ``down`` resizes to the grid of the previous map and ``up`` back. Each finer map thus locates the evidence
    within the cells of the previous one. The cascade begins with the coarsest map; of several maps on one grid, it
    begins with the last layer. Negative values of a map count as 0.
    """

    def __call__(self, maps: Tensor | Sequence[Tensor], centers: Sequence[CellCenters | None] | None = None) -> Tensor:
        """Return the map ``(N, *finest)`` of maps ``(N, *grid)``, each on a grid of its own with its own centers."""
        from_the_last = list(zip(maps, [None] * len(maps) if centers is None else centers, strict=True))[::-1]
        # The sort is stable: of maps on the same grid, the last layer stays first.
        (coarsest, place), *finer = sorted(from_the_last, key=lambda pair: pair[0][0].numel())
        result: Tensor = coarsest.relu()
        for layer_maps, own_place in finer:
            grid, positive = layer_maps.shape[1:], layer_maps.relu()
            # The mean around a position is no heat. The heat is what is divided by it.
            pooled = resample(positive, own_place, result.shape[1:], place, holds=True)
            around = resample(pooled, place, grid, own_place, holds=True)
            result = resample(result, place, grid, own_place) * torch.where(around > 0, positive / around, 0)
            place = own_place
        return result


# Name → merge.
MERGES: dict[str, Merge] = {
    "mean": lambda stacked: stacked.mean(0),
    "max": lambda stacked: stacked.amax(0),
    "layercam": ScaledMax(),
    "refinecam": multiply_maps,
    "winsor": Winsor(),
    "polycam": Cascade(),
}


def merge_maps(
    maps: Sequence[Tensor],
    how: str | Merge = "mean",
    importance: Callable[[], Tensor] | None = None,
    centers: Sequence[CellCenters | None] | None = None,
) -> Tensor:
    """Merge the maps of several layers into one map per image.

    Gradients grow and shrink from layer to layer, so the values of two layers are not comparable. Each map is therefore
    divided by its own peak, then resized to the finest grid among them. Only :class:`Cascade` needs the maps at their
    own sizes. A single map is returned unchanged.

    Args:
        maps: The maps ``(N, *grid)`` of each layer.
        how: A name in :data:`MERGES`, or a function from ``(L, N, *grid)`` to ``(N, *grid)``.
        importance: Computes the importance of each layer for each map, ``(L, N)``. Only :class:`Winsor` calls it; by
            default the means of the maps are used.
        centers: Where the cells of each map lie in the model's input, so that the values at one place are merged. By
            default, and where None, each grid covers the input evenly.

    Returns:
        The merged maps ``(N, *finest)``.

    Raises:
        MethodError: The name is unknown.
    """
    function = get_merge(how) if isinstance(how, str) else how
    if len(maps) == 1:
        return maps[0]
    scaled = [scale_by_peak(layer_maps).to(maps[0].device) for layer_maps in maps]  # layers may lie on several devices
    if isinstance(function, Cascade):
        return function(scaled, centers)
    finest = find_finest(maps)
    by_layer = [None] * len(maps) if centers is None else centers
    grid, pairs = maps[finest].shape[1:], zip(scaled, by_layer, strict=True)
    stacked = torch.stack([draw_heat(raw, of_layer, grid, by_layer[finest]) for raw, of_layer in pairs])
    if isinstance(function, Winsor):
        return function(stacked, importance() if importance else compute_means(maps))
    return function(stacked)


def find_finest(maps: Sequence[Tensor]) -> int:
    """Return the index of the map with the most positions; the first of several."""
    positions = [layer_maps[0].numel() for layer_maps in maps]
    return positions.index(max(positions))


def get_merge(how: str | Merge) -> Merge:
    """Return the merge with this name; a function is returned unchanged.

    Raises:
        MethodError: The name is unknown.
    """
    if not isinstance(how, str):
        return how
    if how not in MERGES:
        raise MethodError(f"merge {how!r} is unknown.{suggest_names(how, MERGES)} Known merges: {', '.join(MERGES)}.")
    return MERGES[how]


def compute_means(maps: Sequence[Tensor]) -> Tensor:
    """Return the mean over all axes but the first of L tensors ``(R, ...)``: ``(L, R)``."""
    return torch.stack([tensor.flatten(1).mean(1).to(maps[0].device) for tensor in maps])
