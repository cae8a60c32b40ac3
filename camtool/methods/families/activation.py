"""Methods that use the activations alone: FEM, and random weights as a baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.evidence.evidence import Evidence
from camtool.maps import unsqueeze_like
from camtool.methods.families.eigencam import split_by_peak
from camtool.methods.options import check_count, check_number
from camtool.methods.registry import method, weighting


@method("fem", paper="10.1109/IPTA50016.2020.9286629", needs="activations")
def fem(evidence: Evidence, *, threshold: float = 2.0) -> Tensor:
    """Mark where channels fire unusually strongly.

    ``M = Σ_k μ_k [A_k ≥ μ_k + T σ_k]``, where ``μ_k`` and ``σ_k`` are the mean and the standard deviation of channel k
    over the positions (Fuad et al. 2020).

    Args:
        evidence: The activations.
        threshold: ``T``: a position counts if it is this many standard deviations above the channel's mean.

    Returns:
        Maps ``(R, *grid)``. If the activations are not rectified, a channel with a negative mean counts negatively.

    Raises:
        MethodError: ``threshold`` is not a finite number.
    """
    check_number("threshold", threshold)
    # The squares of large activations overflow, so they are computed relative to the peak.
    A, peak = split_by_peak(evidence.activations)
    axes = tuple(range(2, A.ndim))
    deviation, mean = torch.std_mean(A, axes, correction=0, keepdim=True)
    return peak * (mean * (mean + threshold * deviation <= A)).sum(1)


@weighting("random", paper="arXiv 1810.03292", needs="activations")
def random(evidence: Evidence, *, seed: int = 0) -> Tensor:
    """Weigh channels at random, as a baseline.

    Every other method has to beat this map.

    ``w_k`` is uniform between -1 and 1, and the same for every image. This is a baseline, not the method of a paper.
    The cited paper (Adebayo et al. 2018) requires that an explanation differs from one that is independent of the
    model's decision.

    Args:
        evidence: The activations.
        seed: The seed of the random weights.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: ``seed`` is not a whole number of 0 or more.
    """
    check_count("seed", seed, least=0)
    A = evidence.activations
    generator = torch.Generator().manual_seed(seed)
    # Drawn in float64 on the CPU, so that every device and type gets the same weights.
    weights = 2 * torch.rand(A.shape[1], generator=generator, dtype=torch.float64, device="cpu") - 1
    return unsqueeze_like(weights.to(A)[None], A).expand(len(A), *[-1] * (A.ndim - 1))
