"""Oracles of the gradient methods that average over several images."""

from __future__ import annotations

from math import floor

import torch

from tests.oracles.base import Case, Map, Maps, faded, oracle, positions, relu, weighted_sum, zeros_like


@oracle("smoothgradcam++")
def smooth_gradcam_plus_plus(case: Case, samples: int = 10, noise: float = 0.15, seed: int = 0) -> Map:
    """Omeiza et al. 2019: Grad-CAM++ with the means over noisy pictures of the derivatives' powers.

    ``α = D2 / (2 D2 + Σ_ab A(a, b) D3)`` and ``w = Σ_ij α relu(D1)``, with the activations of the picture itself;
    negative ones count by their size in the sum. ``α`` is 0 where its denominator is not positive.
    """
    A, x = case.A, case.x
    generator = torch.Generator().manual_seed(seed)  # the noise cannot be had but from where the package has it
    values = [value for plane in x for row in plane for value in row]
    spread = noise * (max(values) - min(values))
    gradients = []
    for _ in range(samples):
        drawn = torch.randn(len(x), len(x[0]), len(x[0][0]), generator=generator).tolist()
        noisy = [zeros_like(plane) for plane in x]
        for k in range(len(x)):
            for i, j in positions(x[k]):
                noisy[k][i][j] = x[k][i][j] + spread * drawn[k][i][j]
        gradients.append(case.observe(noisy)[1])
    weights = []
    for k in range(len(A)):
        total, weight = 0.0, 0.0
        for a, b in positions(A[k]):
            total += abs(A[k][a][b])
        for i, j in positions(A[k]):
            D1 = sum(g[k][i][j] for g in gradients) / samples
            D2 = sum(g[k][i][j] ** 2 for g in gradients) / samples
            D3 = sum(g[k][i][j] ** 3 for g in gradients) / samples
            if 2 * D2 + total * D3 > 0:
                weight += D2 / (2 * D2 + total * D3) * max(D1, 0.0)
        weights.append(weight)
    return relu(weighted_sum(weights, A))


@oracle("integratedgradcam")
def integrated_gradcam(case: Case, steps: int = 20, black: float = 0.0) -> Map:
    """Sattarzadeh et al. 2021: the mean over the way of ``relu(Σ_k α_k(t) (A_k(t) - A_k(0)))``."""
    x = case.x
    result = zeros_like(case.A[0])
    start, _ = case.observe([[[black for _ in row] for row in plane] for plane in x])
    for step in range(1, steps + 1):
        t = step / steps
        A, g = case.observe([[[black + t * (value - black) for value in row] for row in plane] for plane in x])
        alpha, gained = [], []
        for k in range(len(A)):
            Z, total, beyond = 0, 0.0, zeros_like(A[k])
            for i, j in positions(A[k]):
                Z += 1
                total += g[k][i][j]
                beyond[i][j] = A[k][i][j] - start[k][i][j]
            alpha.append(total / Z)
            gained.append(beyond)
        at_step = relu(weighted_sum(alpha, gained))
        for i, j in positions(result):
            result[i][j] += at_step[i][j] / steps
    return result


@oracle("cameras")
def cameras(case: Case, scales: tuple[float, ...] = (1.0, 1.5, 2.0)) -> Map:
    """Jalwana et al. 2021: ``relu(Σ_k Ā_k ⊙ ḡ_k)``, the means over the scales of maps at the picture's size."""
    height, width = len(case.x[0]), len(case.x[0][0])
    rows, columns, channels = len(case.A[0]), len(case.A[0][0]), len(case.A)
    result = zeros_like(case.x[0])
    all_A, all_g = [], []
    for scale in scales:
        cells = round(rows * scale), round(columns * scale)
        size = round(height / rows * cells[0]), round(width / columns * cells[1])
        A, g = case.observe([resized(plane, *size) for plane in case.x])
        large = [resized(values, height, width, case.first) for values in regrouped(A, channels, *cells)]
        all_A.append([faded(values, cells, case.first) for values in large])  # the product fades once
        all_g.append([resized(values, height, width, case.first) for values in regrouped(g, channels, *cells)])
    for k in range(channels):
        for i, j in positions(result):
            A_mean = sum(A[k][i][j] for A in all_A) / len(scales)
            g_mean = sum(g[k][i][j] for g in all_g) / len(scales)
            result[i][j] += A_mean * g_mean
    return relu(result)


def resized(values: Map, height: int, width: int, first: float = 0.5) -> Map:
    """Resize linearly between the centers of cells; beyond the outermost centers values are constant."""

    def between(place: int, many: int, few: int) -> tuple[int, int, float]:
        at = min(max((place + 0.5) * few / many - first, 0.0), few - 1.0)
        low = floor(at)
        return low, min(low + 1, few - 1), at - low

    result = [[0.0] * width for _ in range(height)]
    for i, j in positions(result):
        up, down, v = between(i, height, len(values))
        left, right, h = between(j, width, len(values[0]))
        top = (1 - h) * values[up][left] + h * values[up][right]
        bottom = (1 - h) * values[down][left] + h * values[down][right]
        result[i][j] = (1 - v) * top + v * bottom
    return result


def regrouped(maps: Maps, channels: int, rows: int, columns: int) -> Maps:
    """Regroup the same numbers as maps of this size: a case holds tokens on the grid of its own image."""
    numbers = [value for plane in maps for row in plane for value in row]
    assert len(numbers) == channels * rows * columns
    lines = [numbers[n : n + columns] for n in range(0, len(numbers), columns)]
    return [lines[n : n + rows] for n in range(0, len(lines), rows)]
