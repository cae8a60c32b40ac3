"""Refinement, literally: masks point by point, and the regression as its docstring says, with explicit inverses."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

ROUNDS = [(4, 1), (8, 1), (4, 48), (16, 1), (12, 5), (20, 1)]


def draw_masks(passes: int, height: int, width: int) -> list[list[list[bool]]]:
    """Masks of an image of ``height`` x ``width`` points, by the sites of the sequence R_2."""
    plastic = 1.324717957244746  # the real root of g³ = g + 1
    masks: list[list[list[bool]]] = []
    number = 1
    for groups, pieces in ROUNDS * passes:
        groups = min(groups, passes - len(masks))
        sites = []
        for _ in range(groups * pieces):
            sites.append(((0.5 + number / plastic) % 1, (0.5 + number / plastic**2) % 1))
            number += 1
        round_masks = [[[False] * width for _ in range(height)] for _ in range(groups)]
        for i, j in product(range(height), range(width)):
            y, x = (i + 0.5) / height, (j + 0.5) / width
            distances = [(y - a) ** 2 + (x - b) ** 2 for a, b in sites]
            round_masks[distances.index(min(distances)) % groups][i][j] = True
        masks += round_masks
        if len(masks) == passes:
            return masks
    raise AssertionError


def measure_edges(cover: Values) -> float:
    """The mean difference between the shares ``(rows, columns)`` of neighboring cells."""
    rows, columns = cover.shape
    below = [abs(cover[i, j] - cover[i + 1, j]) for i in range(rows - 1) for j in range(columns)]
    beside = [abs(cover[i, j] - cover[i, j + 1]) for i in range(rows) for j in range(columns - 1)]
    return sum(below + beside) / len(below + beside)


def measure_noise(cover: Values, mean: Values) -> float:
    """The variance of the noise of a region ``(rows, columns)`` that is asked for, in units of ``s²``."""
    area, edge, evidence = cover.mean(), measure_edges(cover), [abs(drop) for drop in mean[:-3]]
    hidden = sum(share * drop for share, drop in zip(cover.ravel(), evidence, strict=True)) / sum(evidence)
    as_mask = (0.02 + area) ** 1.5 * (1 + 10 * edge) + edge
    return float(1.4 * (as_mask + 10 * area**4) * (0.4 + 0.6 * hidden / area))


def regress(covers: Values, drops: Values, heat: Values) -> tuple[Values, Values, float]:
    """Mean and covariance of cells, any mask, edges, and edges by fill, and ``s²``; covers ``(n, rows, columns)``."""
    n, rows, columns = covers.shape
    count = rows * columns
    places = [((i + 0.5) / rows, (j + 0.5) / columns) for i in range(rows) for j in range(columns)]
    h = heat.ravel()
    edges = [measure_edges(cover) for cover in covers]
    design = np.array([[*covers[i].ravel(), 1.0, edges[i], edges[i] if i % 2 else -edges[i]] for i in range(n)])
    noise = np.diag([(0.02 + c.mean()) ** 1.5 * (1 + 10 * e) + e for c, e in zip(covers, edges, strict=True)])
    weights, means, covariances, noises = [], [], [], []
    for t in [2 * math.exp(2 * step / 3) for step in range(-3, 4)]:
        prior = np.zeros((count + 3, count + 3))
        for c, k in product(range(count), repeat=2):
            v = [math.sqrt((0.03 + count * h[at]) / 1.03) if h.any() else 1.0 for at in (c, k)]
            distance = sum((a - b) ** 2 for a, b in zip(places[c], places[k], strict=True))
            smooth = t**2 * v[0] * v[1] * math.exp(-distance / (2 * 0.1**2)) / count**2
            prior[c, k] = smooth + 25 * h[c] * h[k]
        prior[count, count], prior[count + 1, count + 1], prior[count + 2, count + 2] = 0.01, 4.0, 4.0
        inverse = np.linalg.inv(design @ prior @ design.T + noise)
        fit = drops @ inverse @ drops
        # The likelihood with s² integrated out, whose prior is 1 / s².
        likelihood = math.sqrt(np.linalg.det(inverse)) * fit ** (-n / 2)
        weights.append(likelihood * math.exp(-(math.log(t / 2) ** 2) / (2 * 0.5**2)))
        noises.append(fit / (n - 2))
        means.append(prior @ design.T @ inverse @ drops)
        covariances.append(noises[-1] * (prior - prior @ design.T @ inverse @ design @ prior))
    shares = np.array(weights) / sum(weights)
    mean = sum(share * of_t for share, of_t in zip(shares, means, strict=True))
    covariance = sum(
        share * (of_t + np.outer(its_mean - mean, its_mean - mean))
        for share, of_t, its_mean in zip(shares, covariances, means, strict=True)
    )
    return mean, covariance, float(shares @ np.array(noises))
