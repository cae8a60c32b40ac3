"""Oracles of FullGrad and of the input gradient methods.

An oracle is told of gradients towards the layer, not towards the picture. But every trunk that the tests look at is an
affine function and, at most, a ReLU, so its slopes can be read off what it makes of single pixels.

The pictures have fewer than 100 pixels, so the 99th percentile of a map, at which the methods cut off, is its peak.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tests.oracles.base import Case, Map, Maps, faded, oracle, positions, relu, zeros_like


class Slope(NamedTuple):
    """Derivative of an active activation ``A_k(i, j)`` with respect to a pixel ``x_c(u, v)``."""

    k: int
    i: int
    j: int
    c: int
    u: int
    v: int
    value: float


@oracle("smoothgrad")
def smoothgrad(case: Case) -> Map:
    """Smilkov et al. 2017: ``1/n Σ M(x + N(0, σ²))``, 50 samples, 15% noise; in absolute values over the colors.

    The draws of a seed are part of what the method promises, so they are torch's here as well.
    """
    generator = torch.Generator().manual_seed(0)
    x = case.x
    values = [x[c][u][v] for c in range(len(x)) for u, v in positions(x[c])]
    sigma = 0.15 * (max(values) - min(values))
    mean = [zeros_like(channel) for channel in x]
    for _ in range(50):
        epsilon = torch.randn(len(x), len(x[0]), len(x[0][0]), generator=generator).tolist()
        noisy = combined(x, 1.0, epsilon, sigma)
        mean = combined(mean, 1.0, gradient(case, noisy), 1 / 50)
    return absolute_sum(mean)


@oracle("guided-backprop")
def guided_backprop(case: Case) -> Map:
    """Springenberg et al. 2015, figure 1: what comes back to a ReLU passes where it and the input are positive."""
    return absolute_sum(guided_gradient(case))


@oracle("guided-gradcam")
def guided_gradcam(case: Case) -> Map:
    """Selvaraju et al. 2017, section 3.2: Grad-CAM, brought to the picture's size, times guided backpropagation."""
    cam = zeros_like(case.A[0])
    for k in range(len(case.A)):
        Z, total = 0, 0.0
        for i, j in positions(case.A[k]):
            Z += 1
            total += case.g[k][i][j]
        for i, j in positions(case.A[k]):
            cam[i][j] += total / Z * case.A[k][i][j]
    guided = absolute_sum(guided_gradient(case))
    coarse = faded(upsampled(relu(cam), case.x[0], case.first), (len(cam), len(cam[0])), case.first)
    return [[guided[u][v] * coarse[u][v] for v in range(len(guided[u]))] for u in range(len(guided))]


@oracle("inputxgradient")
def input_x_gradient(case: Case) -> Map:
    """Shrikumar et al. 2016: ``x ⊙ ∂f/∂x``; summed over the colors, and of that the positive part."""
    return relu(sum_of_products(case.x, gradient(case, case.x)))


@oracle("integrated-gradients")
def integrated_gradients(case: Case) -> Map:
    """Sundararajan et al. 2017: ``(x - 0) × ∫ ∂f(α x)/∂x dα``, by the middles of 50 steps; the positive part."""
    mean = [zeros_like(channel) for channel in case.x]
    for step in range(50):
        alpha = (step + 0.5) / 50
        part_of_the_way = combined(case.x, alpha, case.x, 0.0)
        mean = combined(mean, 1.0, gradient(case, part_of_the_way), 1 / 50)
    return relu(sum_of_products(case.x, mean))


@oracle("fullgrad")
def fullgrad(case: Case) -> Map:
    """Srinivas and Fleuret 2019, section 5: ``ψ(x ⊙ ∂f/∂x)`` and ``ψ(b ⊙ ∂f/∂z)`` of the one convolution, summed.

    Where the convolution's output fires it is ``b + Σ w x``, which tells ``b``; elsewhere it has no gradient.
    """
    dx = gradient(case, case.x)
    from_pixels = [zeros_like(channel) for channel in case.x]
    for c in range(len(case.x)):
        for u, v in positions(case.x[c]):
            from_pixels[c][u][v] = case.x[c][u][v] * dx[c][u][v]
    bias = [[list(row) for row in channel] for channel in case.A]
    for k, i, j, c, u, v, slope in slopes_of(case):
        bias[k][i][j] -= slope * case.x[c][u][v]
    from_biases = [zeros_like(channel) for channel in case.A]
    for k in range(len(case.A)):
        for i, j in positions(case.A[k]):
            if case.A[k][i][j] != 0:
                from_biases[k][i][j] = bias[k][i][j] * case.g[k][i][j]
    result = zeros_like(case.x[0])
    for term, first in ((from_pixels, 0.5), (from_biases, case.first)):
        total = zeros_like(term[0])
        for channel in scaled(term):
            for i, j in positions(total):
                total[i][j] += channel[i][j]
        lowest = min(map(min, total))  # to which the sum fades
        lifted = [[value - lowest for value in row] for row in total]
        large = faded(upsampled(lifted, case.x[0], first), (len(total), len(total[0])), first)
        for u, v in positions(result):
            result[u][v] += lowest + large[u][v]
    return result


# ------------------------------------------------------------------------------------------------ slopes of the trunk


def gradient(case: Case, picture: Maps) -> Maps:
    """Return the gradient of the class's score with respect to the input."""
    A, g = case.observe(picture)
    return pulled_back(case, A, g)


def guided_gradient(case: Case) -> Maps:
    """Return the gradient through a final ReLU of the trunk that passes positive gradients only."""
    return pulled_back(case, case.A, [relu(channel) for channel in case.g])


def pulled_back(case: Case, A: Maps, g: Maps) -> Maps:
    result = [zeros_like(channel) for channel in case.x]
    for k, i, j, c, u, v, slope in slopes_of(case):
        if A[k][i][j] != 0:  # an activation that does not fire has no slope
            result[c][u][v] += slope * g[k][i][j]
    return result


def slopes_of(case: Case) -> list[Slope]:
    """Those of the trunk, which is known again by what it makes of a ramp, as finding them takes a while."""
    numbers = iter(range(10**6))
    ramp = [[[0.5 - next(numbers) / 100 for _ in row] for row in channel] for channel in case.x]
    known = str(case.observe(ramp)[0])
    if known not in FOUND:
        FOUND[known] = find_slopes(case)
    return FOUND[known]


FOUND: dict[str, list[Slope]] = {}


def find_slopes(case: Case) -> list[Slope]:
    """One pixel so bright that the bias drowns: ``relu(w t + b) / t`` is ``w``, or with ``-t`` its negative."""
    bright, found = 2.0**60, {}
    for c in range(len(case.x)):
        for u, v in positions(case.x[c]):
            for sign in (1, -1):
                picture = [zeros_like(channel) for channel in case.x]
                picture[c][u][v] = sign * bright
                A = case.observe(picture)[0]
                for k in range(len(A)):
                    for i, j in positions(A[k]):
                        value = sign * A[k][i][j] / bright
                        if abs(value) > 1e-12:  # and not the bias alone
                            found[k, i, j, c, u, v] = Slope(k, i, j, c, u, v, value)
    return list(found.values())


# --------------------------------------------------------------------------------------------- arithmetic on lists


def combined(one: Maps, a: float, other: Maps, b: float) -> Maps:
    return [
        [[a * one[c][u][v] + b * other[c][u][v] for v in range(len(one[c][u]))] for u in range(len(one[c]))]
        for c in range(len(one))
    ]


def absolute_sum(values: Maps) -> Map:
    result = zeros_like(values[0])
    for c in range(len(values)):
        for u, v in positions(values[c]):
            result[u][v] += abs(values[c][u][v])
    return result


def sum_of_products(one: Maps, other: Maps) -> Map:
    result = zeros_like(one[0])
    for c in range(len(one)):
        for u, v in positions(one[c]):
            result[u][v] += one[c][u][v] * other[c][u][v]
    return result


def scaled(values: Maps) -> Maps:
    """Absolute values, the least of all channels at 0 and the largest at 1."""
    sizes = [abs(values[c][u][v]) for c in range(len(values)) for u, v in positions(values[c])]
    lowest, highest = min(sizes), max(sizes)
    return [[[(abs(value) - lowest) / (highest - lowest) for value in row] for row in channel] for channel in values]


def upsampled(values: Map, like: Map, first: float) -> Map:
    """Resize linearly between the centers of cells; beyond the outermost centers values are constant."""
    h, w, H, W = len(values), len(values[0]), len(like), len(like[0])
    result = zeros_like(like)
    for u, v in positions(like):
        y, x = min(max((u + 0.5) * h / H - first, 0.0), h - 1), min(max((v + 0.5) * w / W - first, 0.0), w - 1)
        top, left = int(y), int(x)
        bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
        upper = values[top][left] * (1 - (x - left)) + values[top][right] * (x - left)
        lower = values[bottom][left] * (1 - (x - left)) + values[bottom][right] * (x - left)
        result[u][v] = upper * (1 - (y - top)) + lower * (y - top)
    return result
