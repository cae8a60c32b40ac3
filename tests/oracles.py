"""Every method once more: slow, literal, and without a tensor.

An oracle reads one image's numbers from nested lists and follows its paper's equation, term by term. Python's floats
are float64, and nothing here is shared with the package. ``ORACLES`` pairs each with its method by name; a method
without an oracle fails a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

__all__ = ["ORACLES", "Map", "Maps", "Oracle"]

Map: TypeAlias = list[list[float]]
"""``map[i][j]``, a value at each position."""

Maps: TypeAlias = list[Map]
"""``maps[k][i][j]``, a map for each channel."""

Oracle: TypeAlias = Callable[[Maps, Maps, list[float]], Map]
"""From one image's activations ``A``, gradients ``g`` of the score, and class' row ``w`` of the linear head."""

ORACLES: dict[str, Oracle] = {}


def oracle(name: str) -> Callable[[Oracle], Oracle]:
    def pair(function: Oracle) -> Oracle:
        assert name not in ORACLES, f"two oracles for {name!r}"
        ORACLES[name] = function
        return function

    return pair


@oracle("cam")
def cam(A: Maps, g: Maps, w: list[float]) -> Map:
    """Zhou et al. 2016, eq. 2: ``M(i, j) = Σ_k w_k A_k(i, j)``; signed."""
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += w[k] * A[k][i][j]
    return result


@oracle("gradcam")
def gradcam(A: Maps, g: Maps, w: list[float]) -> Map:
    """Selvaraju et al. 2017, eq. 1: ``α_k = 1/Z Σ_ij g_k(i, j)``; eq. 2: ``relu(Σ_k α_k A_k)``."""
    alpha = []
    for k in range(len(A)):
        Z, total = 0, 0.0
        for i, j in positions(A[k]):
            Z += 1
            total += g[k][i][j]
        alpha.append(total / Z)
    return relu_of_weighted_sum(alpha, A)


@oracle("gradcam++")
def gradcam_plus_plus(A: Maps, g: Maps, w: list[float]) -> Map:
    """Chattopadhay et al. 2018, eq. 19: ``α = g² / (2 g² + Σ_ab A(a, b) g³)``, and ``w = Σ_ij α relu(g)``."""
    weights = []
    for k in range(len(A)):
        total = 0.0
        for a, b in positions(A[k]):
            total += A[k][a][b]
        weight = 0.0
        for i, j in positions(A[k]):
            derivative = g[k][i][j]
            if derivative != 0:  # and else α is 0
                alpha = derivative**2 / (2 * derivative**2 + total * derivative**3)
                weight += alpha * max(derivative, 0.0)
        weights.append(weight)
    return relu_of_weighted_sum(weights, A)


@oracle("xgradcam")
def xgradcam(A: Maps, g: Maps, w: list[float]) -> Map:
    """Fu et al. 2020, eq. 8: ``α_k = Σ_xy A_k(x, y) / Σ_ij A_k(i, j) · g_k(x, y)``, and Grad-CAM's eq. 2."""
    alpha = []
    for k in range(len(A)):
        total = 0.0
        for i, j in positions(A[k]):
            total += A[k][i][j]
        weight = 0.0
        for x, y in positions(A[k]):
            if total != 0:
                weight += A[k][x][y] / total * g[k][x][y]
        alpha.append(weight)
    return relu_of_weighted_sum(alpha, A)


@oracle("hirescam")
def hirescam(A: Maps, g: Maps, w: list[float]) -> Map:
    """Draelos and Carin 2020, eq. 4: ``Σ_k g_k ⊙ A_k``, of which the positive part."""
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += g[k][i][j] * A[k][i][j]
    return relu(result)


@oracle("layercam")
def layercam(A: Maps, g: Maps, w: list[float]) -> Map:
    """Jiang et al. 2021, eq. 4: ``w_k(i, j) = relu(g_k(i, j))``; eq. 5: ``relu(Σ_k w_k ⊙ A_k)``."""
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += max(g[k][i][j], 0.0) * A[k][i][j]
    return relu(result)


def relu_of_weighted_sum(weights: list[float], A: Maps) -> Map:
    result = zeros_like(A[0])
    for k in range(len(A)):
        for i, j in positions(A[k]):
            result[i][j] += weights[k] * A[k][i][j]
    return relu(result)


def relu(values: Map) -> Map:
    return [[max(value, 0.0) for value in row] for row in values]


def positions(values: Map) -> Iterator[tuple[int, int]]:
    for i in range(len(values)):
        for j in range(len(values[i])):
            yield i, j


def zeros_like(values: Map) -> Map:
    return [[0.0 for _ in row] for row in values]
