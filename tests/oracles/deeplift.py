"""DeepLIFT of a head of two linear layers with an activation function in between, neuron by neuron."""

from __future__ import annotations

from collections.abc import Callable

from tests.oracles.base import Map, Maps, relu, weighted_sum


def contribute(x: list[float], W1: Map, b1: list[float], f: Callable[[float], float], w2: list[float]) -> list[float]:
    """Return each input's contribution to ``w2 · f(W1 x + b1)``, from a reference of zeros.

    Shrikumar et al. 2017: eq. 3 chains multipliers, ``m_x = Σ_j m_x→z_j m_z_j→y``; the Linear rule gives ``W1`` and
    ``w2`` (section 3.4), the Rescale rule ``(f(z) - f(z°)) / (z - z°)`` (section 3.5.1); eq. 2: ``C = m (x - x°)``.
    """
    multipliers = [0.0] * len(x)
    for j in range(len(W1)):
        reference = b1[j]
        z = reference
        for i in range(len(x)):
            z += W1[j][i] * x[i]
        rescaled = (f(z) - f(reference)) / (z - reference)
        for i in range(len(x)):
            multipliers[i] += W1[j][i] * rescaled * w2[j]
    return [multipliers[i] * x[i] for i in range(len(x))]


def lift_cam(A: Maps, contributions: list[float]) -> Map:
    """Jung and Oh 2021: ``relu(Σ_k α_k A_k)``, ``α_k`` being the sum of the contributions of channel k's positions."""
    size = len(A[0]) * len(A[0][0])
    alpha = [sum(contributions[k * size : (k + 1) * size]) for k in range(len(A))]
    return relu(weighted_sum(alpha, A))
