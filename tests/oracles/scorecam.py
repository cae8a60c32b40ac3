"""Methods that mask the picture."""

from __future__ import annotations

from math import ceil, exp, floor

import torch

from tests.oracles.base import Case, Map, Maps, oracle, positions, relu, weighted_sum, zeros_like


@oracle("scorecam")
def scorecam(case: Case) -> Map:
    """Wang et al. 2020, Algorithm 1: ``α = softmax_k(S_k)``, ``S_k = f(X ∘ s(Up(A_k))) - f(X_b)``; ``X_b`` is black."""
    black = case.model([zeros_like(channel) for channel in case.x])[case.index]
    scores = [case.model(masked(case.x, scaled(resized(a, case.x[0], case.first))))[case.index] - black for a in case.A]
    return relu(weighted_sum(softmax(scores), case.A))


@oracle("sscam")
def sscam(case: Case, samples: int = 10, sigma: float = 2.0) -> Map:
    """Wang et al. 2020, SS-CAM (1): the mean over n of the scores of ``X ∘ s(Up(A_k + N(0, σ)))``."""
    noise = drawn(samples, len(case.A[0]), len(case.A[0][0]))
    scores = []
    for a in case.A:
        total = 0.0
        for n in range(samples):
            noisy = zeros_like(a)
            for i, j in positions(a):
                noisy[i][j] = a[i][j] + sigma * noise[n][i][j]
            total += case.model(masked(case.x, scaled(resized(noisy, case.x[0], case.first))))[case.index]
        scores.append(total / samples)
    return relu(weighted_sum(softmax(scores), case.A))


@oracle("iscam")
def iscam(case: Case, samples: int = 10) -> Map:
    """Naidu et al. 2020, as an integral: the mean over i of the scores of ``i/n X ∘ s(Up(A_k))``."""
    scores = []
    for a in case.A:
        mask, total = scaled(resized(a, case.x[0], case.first)), 0.0
        for i in range(1, samples + 1):
            part = [[i / samples * value for value in row] for row in mask]
            total += case.model(masked(case.x, part))[case.index]
        scores.append(total / samples)
    return relu(weighted_sum(softmax(scores), case.A))


@oracle("groupcam")
def groupcam(case: Case, groups: int = 32, theta: float = 0.7, radius: int = 25, sigma: float = 50.0) -> Map:
    """Zhang et al. 2021: ``relu(Σ_l α_l M_l)``, ``α_l = p(M_l ∘ X + (1 - M_l) ∘ blur(X)) - p(blur(X))``."""
    A, g, x = case.A, case.g, case.x
    groups = min(groups, len(A))
    blurred = [blur(blur(channel, radius, sigma, along=0), radius, sigma, along=1) for channel in x]
    baseline = softmax(case.model(blurred))[case.index]
    result = zeros_like(x[0])
    for channels in split(len(A), groups):
        total = zeros_like(A[0])
        for k in channels:
            values = [value for row in g[k] for value in row]
            for i, j in positions(A[k]):
                total[i][j] += sum(values) / len(values) * A[k][i][j]
        mask = scaled(resized(denoised(relu(total), theta), x[0], case.first))
        shown = [zeros_like(channel) for channel in x]
        for c in range(len(x)):
            for i, j in positions(mask):
                shown[c][i][j] = mask[i][j] * x[c][i][j] + (1 - mask[i][j]) * blurred[c][i][j]
        alpha = softmax(case.model(shown))[case.index] - baseline
        for i, j in positions(mask):
            result[i][j] += alpha * mask[i][j]
    return relu(result)


# ------------------------------------------------------------------------------------------------- their arithmetic


def resized(values: Map, like: Map, first: float = 0.5) -> Map:
    """Linear between the centers of cells; beyond the outer centers, the outer values."""
    result = zeros_like(like)
    for i, j in positions(like):
        upper, lower, down = between(i, len(like), len(values), first)
        left, right, across = between(j, len(like[0]), len(values[0]), first)
        above = (1 - across) * values[upper][left] + across * values[upper][right]
        below = (1 - across) * values[lower][left] + across * values[lower][right]
        result[i][j] = (1 - down) * above + down * below
    return result


def between(index: int, length: int, source: int, first: float) -> tuple[int, int, float]:
    """Return the two source cells around a cell's center, and its position between them."""
    center = (index + 0.5) * source / length - first
    center = min(max(center, 0.0), source - 1.0)
    return floor(center), min(floor(center) + 1, source - 1), center - floor(center)


def scaled(values: Map) -> Map:
    lowest, highest = min(map(min, values)), max(map(max, values))
    if lowest == highest:
        return zeros_like(values)
    return [[(value - lowest) / (highest - lowest) for value in row] for row in values]


def masked(picture: Maps, mask: Map) -> Maps:
    result = [zeros_like(channel) for channel in picture]
    for c in range(len(picture)):
        for i, j in positions(mask):
            result[c][i][j] = mask[i][j] * picture[c][i][j]
    return result


def softmax(scores: list[float]) -> list[float]:
    powers = [exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def split(count: int, parts: int) -> list[list[int]]:
    """Neighbours together; where it does not come out even the first parts have one more."""
    result, start = [], 0
    for part in range(parts):
        size = count // parts + (1 if part < count % parts else 0)
        result.append(list(range(start, start + size)))
        start += size
    return result


def denoised(values: Map, theta: float) -> Map:
    """Set values up to the percentile, linear between the ranks, to zero."""
    ranked = sorted(value for row in values for value in row)
    rank = theta * (len(ranked) - 1)
    low, high = ranked[floor(rank)], ranked[ceil(rank)]
    threshold = low + (rank - floor(rank)) * (high - low)
    return [[value if value > threshold else 0.0 for value in row] for row in values]


def blur(values: Map, radius: int, sigma: float, along: int) -> Map:
    height, width = len(values), len(values[0])
    length = (height, width)[along]
    radius = min(radius, length - 1)
    bell = {step: exp(-(step**2) / (2 * sigma**2)) for step in range(-radius, radius + 1)}
    result = zeros_like(values)
    for i, j in positions(values):
        for step, weight in bell.items():
            place = (i, j)[along] + step
            place = -place if place < 0 else 2 * (length - 1) - place if place >= length else place
            value = values[place][j] if along == 0 else values[i][place]
            result[i][j] += weight / sum(bell.values()) * value
    return result


def drawn(*shape: int) -> list[Maps]:
    """The noise is a given: the numbers that this generator gives."""
    numbers: list[Maps] = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).tolist()
    return numbers
