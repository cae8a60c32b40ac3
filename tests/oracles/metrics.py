"""Oracles of metrics of maps: one image, plain loops, float64, from the papers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil, log, sqrt

import numpy as np

from tests.oracles.base import Map, Maps, positions

Score = Callable[[Maps], float]
Pixel = tuple[int, int]


def hottest_first(heat: Map) -> list[Pixel]:
    return sorted(positions(heat), key=lambda place: -heat[place[0]][place[1]])


def replaced(x: Maps, places: list[Pixel], by: Maps) -> Maps:
    """The image with these pixels of another image."""
    result = [[[*row] for row in plane] for plane in x]
    for c in range(len(x)):
        for i, j in places:
            result[c][i][j] = by[c][i][j]
    return result


def curve(score: Score, x: Maps, heat: Map, other: Maps, steps: int) -> list[float]:
    """Petsiuk et al. 2018: the score of ``x`` while its hottest pixels become those of ``other``."""
    order = hottest_first(heat)
    return [score(replaced(x, order[: ceil(step * len(order) / steps)], other)) for step in range(steps + 1)]


def area(values: list[float]) -> float:
    """The trapezoidal rule, for the abscissa from 0 to 1."""
    return sum((one + two) / 2 for one, two in pairwise(values)) / (len(values) - 1)


def deletion(score: Score, x: Maps, heat: Map, blank: Maps, steps: int) -> float:
    return area(curve(score, x, heat, blank, steps))


def insertion(score: Score, x: Maps, heat: Map, blank: Maps, steps: int) -> float:
    return area(curve(score, blank, heat, x, steps))


def impute(x: Maps, removed: list[Pixel]) -> Maps:
    """Rong et al. 2022: each removed pixel is the weighted mean of its neighbors, by one dense system of equations."""
    height, width = len(x[0]), len(x[0][0])
    numbers = {place: number for number, place in enumerate(removed)}
    A, b = np.zeros((len(removed), len(removed))), np.zeros((len(removed), len(x)))
    for (i, j), number in numbers.items():
        for di in (-1, 0, 1):
            for dj in (-1, 0, 1):
                k, m = i + di, j + dj
                if (di, dj) == (0, 0) or not (0 <= k < height and 0 <= m < width):
                    continue
                weight = 1 / 6 if 0 in (di, dj) else 1 / 12
                A[number, number] += weight
                if (k, m) in numbers:
                    A[number, numbers[k, m]] -= weight
                else:
                    b[number] += [weight * plane[k][m] for plane in x]
    values = np.linalg.solve(A, b).T.tolist()
    result = [[[*row] for row in plane] for plane in x]
    for c in range(len(x)):
        for (i, j), number in numbers.items():
            result[c][i][j] = values[c][number]
    return result


def road(score: Score, x: Maps, heat: Map, fractions: list[float]) -> float:
    """Rong et al. 2022 without noise: half of the score without the coldest, less that without the hottest pixels."""
    order, total = hottest_first(heat), 0.0
    for fraction in fractions:
        count = ceil(round(fraction * len(order), 6))
        total += score(impute(x, order[len(order) - count :])) - score(impute(x, order[:count]))
    return total / 2 / len(fractions)


def single_deletion(score: Score, x: Maps, heat: Map, blank: Maps, cells: int) -> float:
    """Hesse et al. 2024: the rank correlation of each cell's heat with the drop of the score without the cell."""
    height, width = len(heat) // cells, len(heat[0]) // cells
    sums, drops = [], []
    for row in range(cells):
        for column in range(cells):
            places = [(row * height + i, column * width + j) for i in range(height) for j in range(width)]
            sums.append(sum(heat[i][j] for i, j in places))
            drops.append(score(x) - score(replaced(x, places, blank)))
    return spearman(sums, drops)


def infidelity(score: Score, x: Maps, heat: Map, blank: Maps, regions: list[list[Pixel]]) -> float:
    """Yeh et al. 2019 with removed regions and the best scale of at least 0, over the mean square of the drops."""
    a = [sum(heat[i][j] for i, j in region) for region in regions]
    d = [score(x) - score(replaced(x, region, blank)) for region in regions]
    scale = max(sum(p * q for p, q in zip(a, d, strict=True)) / sum(p * p for p in a), 0.0)
    return sum((scale * p - q) ** 2 for p, q in zip(a, d, strict=True)) / sum(q * q for q in d)


def ranks(values: list[float]) -> list[float]:
    """One more than the number of lower values, and half of the number of other equal ones."""
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


def pearson(one: list[float], two: list[float]) -> float:
    a, b = sum(one) / len(one), sum(two) / len(two)
    top = sum((p - a) * (q - b) for p, q in zip(one, two, strict=True))
    return top / sqrt(sum((p - a) ** 2 for p in one) * sum((q - b) ** 2 for q in two))


def spearman(one: list[float], two: list[float]) -> float:
    return pearson(ranks(one), ranks(two))


def faithfulness_correlation(score: Score, x: Maps, heat: Map, blank: Maps, regions: list[list[Pixel]]) -> float:
    """Bhatt et al. 2020: Pearson's correlation of the heat in removed regions, here its mean, with the drop."""
    means = [sum(heat[i][j] for i, j in region) / len(region) for region in regions]
    return pearson(means, [score(x) - score(replaced(x, region, blank)) for region in regions])


def coherency(heat: Map, again: Map) -> float:
    """Poppi et al. 2021: Pearson's correlation, scaled into [0, 1]."""
    return (1 + pearson([v for row in heat for v in row], [v for row in again for v in row])) / 2


def entropy(heat: Map) -> float:
    """Bhatt et al. 2020, divided by the logarithm of the number of pixels."""
    values = [value for row in heat for value in row]
    shares = [value / sum(values) for value in values]
    return -sum(p * log(p) for p in shares if p > 0) / log(len(values))


def gini(heat: Map) -> float:
    """Chalasani et al. 2020: half of the mean absolute difference of two pixels, divided by the mean."""
    values = [value for row in heat for value in row]
    differences = sum(abs(p - q) for p in values for q in values)
    return differences / (2 * len(values) * sum(values))


def best_iou(heat: Map, mask: list[list[bool]]) -> float:
    best = 0.0
    for threshold in {value for row in heat for value in row}:
        taken = {(i, j) for i, j in positions(heat) if heat[i][j] >= threshold}
        truth = {(i, j) for i, j in positions(heat) if mask[i][j]}
        best = max(best, len(taken & truth) / len(taken | truth))
    return best
