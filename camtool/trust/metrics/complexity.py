"""Complexity metrics: how much of the image a map marks. They need no model, so alone they say nothing about it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from camtool.trust.metrics.metric_registry import metric
from camtool.trust.metrics.scores import check_maps


@metric("entropy", higher_is_better=False, bounds=(0, 1), paper="arXiv 2005.00631")
def compute_entropy(maps: Tensor) -> Tensor:
    """Measure how evenly the heat is spread, by its entropy. Lower is better, from 0 to 1.

    ``-Σ p log p / log n``, with the share p of each of n pixels in the sum of the magnitudes. 0 if one pixel has all of
    the heat, 1 if all have the same, as for a constant map. Chance level: measured, near 1.

    Source: complexity, arXiv 2005.00631, which does not divide by ``log n``.

    Args:
        maps: ``(N, H, W)``.
    """
    check_maps(maps)
    values = maps.flatten(1).abs()
    total = values.sum(1, keepdim=True)
    count = values.shape[1]
    shares = torch.where(total > 0, values / torch.where(total > 0, total, 1), 1 / count)
    entropy: Tensor = torch.special.entr(shares).sum(1)
    return entropy / math.log(max(count, 2))


@metric("sparsity", higher_is_better=True, bounds=(0, 1), paper="arXiv 1810.06583")
def compute_sparsity(maps: Tensor) -> Tensor:
    """Measure how concentrated the heat is, by its Gini index. Higher is better, from 0 to 1.

    ``Σ_i (2i - n - 1) a_i / (n Σ a)`` over the magnitudes a in ascending order, i from 1 to n. 0 if all pixels have the
    same heat, ``1 - 1/n`` if one has all of it. Chance level: measured. It is 1/3 for values that are uniform in
    [0, 1] and lower for smooth maps.

    Source: arXiv 1810.06583.

    Args:
        maps: ``(N, H, W)``.
    """
    check_maps(maps)
    values = maps.flatten(1).abs().sort(1).values
    count = values.shape[1]
    weights = 2 * torch.arange(1, count + 1, device=maps.device) - count - 1
    total = values.sum(1)
    weighted = (values * (weights.to(values) / count)).sum(1)
    return torch.where(total > 0, weighted / torch.where(total > 0, total, 1), 0).clamp(0, 1)


def compute_heat(maps: Tensor) -> Tensor:
    """Return the mean heat of maps ``(N, H, W)`` in [0, 1]: the complexity of ADCC, arXiv 2104.10252.

    It is not a metric on its own: a map of zeros has the lowest value.
    """
    check_maps(maps, least=0, most=1)
    return maps.mean((1, 2))
