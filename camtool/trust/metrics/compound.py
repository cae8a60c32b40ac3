"""Compound metrics: harmonic means of faithfulness, coherency and simplicity, so that no trivial map can win."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from camtool.trust.metrics.complexity import compute_heat
from camtool.trust.metrics.correlation import correlate_pearson
from camtool.trust.metrics.faithfulness import compute_average_drop, compute_road
from camtool.trust.metrics.metric_registry import metric
from camtool.trust.metrics.removal import Removal, make_baseline
from camtool.trust.metrics.scores import Explain, Score, check_maps, explain_again


@metric("coherency", higher_is_better=True, bounds=(0, 1), paper="arXiv 2104.10252")
def compute_coherency(explain: Explain, images: Tensor, maps: Tensor, *, removal: Removal = "zero") -> Tensor:
    """Measure whether the map stays the same where the image is dimmed by it. Higher is better, from 0 to 1.

    ``(1 + r) / 2``, with Pearson's correlation r of the map and ``explain(x ⊙ map)``; 0.5 for a constant map. A method
    that ignores the image has the best value. Chance level: measured, near 0.5.

    Source: arXiv 2104.10252.

    Args:
        explain: The method.
        images: ``(N, C, H, W)``.
        maps: The method's maps for the images, ``(N, H, W)``, in [0, 1].
        removal: What dimmed pixels fade to, a name of :data:`~.removal.BASELINES` or a function.
    """
    check_maps(maps, images, least=0, most=1)
    weights = maps.to(images)[:, None]
    again = explain_again(explain, images * weights + make_baseline(images, removal) * (1 - weights))
    return (1 + correlate_pearson(again.to(maps), maps)) / 2


@metric("adcc", higher_is_better=True, bounds=(0, 1), score="probability", paper="arXiv 2104.10252")
def compute_adcc(
    score: Score, explain: Explain, images: Tensor, maps: Tensor, *, removal: Removal = "zero", chunk: int | None = None
) -> Tensor:
    """Combine average drop, coherency and complexity in a harmonic mean. Higher is better, from 0 to 1.

    ``3 / (1 / coherency + 1 / (1 - complexity) + 1 / (1 - drop))``; 0 if one of the terms is 0. The complexity is the
    mean heat. Chance level: measured.

    Source: arXiv 2104.10252.

    Args:
        score: The score, a probability.
        explain: The method.
        images: ``(N, C, H, W)``.
        maps: The method's maps for the images, ``(N, H, W)``, in [0, 1].
        removal: What dimmed pixels fade to, a name of :data:`~.removal.BASELINES` or a function.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.
    """
    coherency = compute_coherency(explain, images, maps, removal=removal)
    drop = compute_average_drop(score, images, maps, removal=removal, chunk=chunk)
    return _harmonic_mean(coherency, 1 - compute_heat(maps), 1 - drop)


@metric("arcc", higher_is_better=True, bounds=(0, 1), score="probability", paper="arXiv 2605.14641")
def compute_arcc(
    score: Score,
    explain: Explain,
    images: Tensor,
    maps: Tensor,
    *,
    fractions: Sequence[float] = (0.2, 0.4, 0.6, 0.8),
    noise: float = 0.01,
    seed: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """Combine ROAD, coherency and complexity in a harmonic mean. Higher is better, from 0 to 1.

    ``3 / (1 / coherency + 1 / (1 - complexity) + 1 / road)``, with ROAD doubled and clipped to [0, 1]; 0 if one of the
    terms is 0. Chance level: measured.

    Source: arXiv 2605.14641.

    Args:
        score: The score, a probability.
        explain: The method.
        images: ``(N, C, H, W)``.
        maps: The method's maps for the images, ``(N, H, W)``, in [0, 1].
        fractions: The fractions of the pixels that ROAD removes.
        noise: The standard deviation of ROAD's noise, in units of the input.
        seed: The seed of ROAD.
        chunk: The number of images that run at once; by default as many as fit into the memory budget.
    """
    coherency = compute_coherency(explain, images, maps)
    road = compute_road(score, images, maps, fractions=fractions, noise=noise, seed=seed, chunk=chunk)
    return _harmonic_mean(coherency, 1 - compute_heat(maps), (2 * road).clamp(0, 1))


def _harmonic_mean(*terms: Tensor) -> Tensor:
    """Return the harmonic mean of values of at least 0; 0 if one of them is 0."""
    # 1 / 0 is infinite, and 1 / infinite is 0; abs() makes 0 of -0, whose inverse is negative.
    return len(terms) / torch.stack([1 / term.clamp_min(0).abs() for term in terms]).sum(0)
