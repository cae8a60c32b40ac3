"""Oracles of the methods that mask the image at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, sqrt

import torch

from tests.oracles.base import Case, Map, Maps, oracle, positions, zeros_like
from tests.oracles.scorecam import masked, resized, softmax


@dataclass(frozen=True)
class Found:
    """One detection: its box ``(x0, y0, x1, y1)``, the probabilities of its classes, and its objectness."""

    box: list[float]
    probabilities: list[float]
    objectness: float


@dataclass(frozen=True)
class DetectorCase:
    """One image, one of its detections, and the detections in any other image."""

    x: Maps
    target: Found
    detect: Callable[[Maps], list[Found]]


@oracle("occlusion")
def occlusion(case: Case, window: float = 0.25, stride: float = 0.125) -> Map:
    """Zeiler and Fergus 2014: at each pixel the mean drop of the score over the windows that cover it, set to 0."""
    height, width = len(case.x[0]), len(case.x[0][0])
    total, count = zeros_like(case.x[0]), zeros_like(case.x[0])
    score = case.model(case.x)[case.index]
    for top, bottom in spans(height, window, stride):
        for left, right in spans(width, window, stride):
            mask = [[float(not (top <= i < bottom and left <= j < right)) for j in range(width)] for i in range(height)]
            drop = score - case.model(masked(case.x, mask))[case.index]
            for i in range(top, bottom):
                for j in range(left, right):
                    total[i][j] += drop
                    count[i][j] += 1
    return [[total[i][j] / count[i][j] for j in range(width)] for i in range(height)]


def spans(length: int, window: float, stride: float) -> list[tuple[int, int]]:
    """Where windows begin and end along one axis; one more ends at the border if they do not fit evenly."""
    side, step, start, found = max(1, round(window * length)), max(1, round(stride * length)), 0, []
    while start + side < length:
        found.append((start, start + side))
        start += step
    return [*found, (length - side, length)]


@oracle("rise")
def rise(case: Case, samples: int = 2000, cells: int = 7, keep: float = 0.5) -> Map:
    """Petsiuk et al. 2018: ``Σ_i f(I ∘ M_i) M_i / Σ_i M_i``, with the sum for ``N E[M]``; the masks are the paper's."""
    result, seen = zeros_like(case.x[0]), zeros_like(case.x[0])
    for mask in random_masks(len(result), len(result[0]), samples, cells, keep):
        probability = softmax(case.model(masked(case.x, mask)))[case.index]
        for i, j in positions(mask):
            result[i][j] += probability * mask[i][j]
            seen[i][j] += mask[i][j]
    return [
        [value / shown for value, shown in zip(values, shares, strict=True)]
        for values, shares in zip(result, seen, strict=True)
    ]


@oracle("drise")
def drise(case: DetectorCase, samples: int = 5000, cells: int = 16, keep: float = 0.5) -> Map:
    """Petsiuk et al. 2021: ``Σ_i max_d s(t, d) M_i``, divided by ``Σ_i M_i``, with ``s = s_L s_P s_O``."""
    result, seen = zeros_like(case.x[0]), zeros_like(case.x[0])
    for mask in random_masks(len(result), len(result[0]), samples, cells, keep):
        weight = max((similarity(case.target, each) for each in case.detect(masked(case.x, mask))), default=0.0)
        for i, j in positions(mask):
            result[i][j] += weight * mask[i][j]
            seen[i][j] += mask[i][j]
    return [
        [value / shown for value, shown in zip(values, shares, strict=True)]
        for values, shares in zip(result, seen, strict=True)
    ]


def similarity(target: Found, other: Found) -> float:
    """The overlap of the boxes, times the cosine of the class probabilities, times the objectness."""
    (a0, b0, a1, b1), (c0, d0, c1, d1) = target.box, other.box
    shared = max(min(a1, c1) - max(a0, c0), 0.0) * max(min(b1, d1) - max(b0, d0), 0.0)
    union = (a1 - a0) * (b1 - b0) + (c1 - c0) * (d1 - d0) - shared
    p, q = target.probabilities, other.probabilities
    dot = sum(one * two for one, two in zip(p, q, strict=True))
    cosine = dot / sqrt(sum(one * one for one in p)) / sqrt(sum(two * two for two in q))
    return shared / union * cosine * other.objectness


@cache
def random_masks(height: int, width: int, samples: int, cells: int, keep: float) -> list[Map]:
    """The same for all pictures of a size."""
    chance = torch.Generator().manual_seed(0)
    grids = torch.rand(samples, cells, cells, generator=chance).tolist()
    shifts = torch.rand(samples, 2, generator=chance, dtype=torch.float64).tolist()
    tall, wide = ceil(height / cells), ceil(width / cells)
    large: Map = [[0.0] * ((cells + 1) * wide) for _ in range((cells + 1) * tall)]
    masks = []
    for grid, (down, across) in zip(grids, shifts, strict=True):
        mask = resized([[1.0 if value < keep else 0.0 for value in row] for row in grid], large)
        top, left = floor(down * tall), floor(across * wide)
        masks.append([row[left : left + width] for row in mask[top : top + height]])
    return masks
