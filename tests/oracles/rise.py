"""Methods that mask the picture."""

from __future__ import annotations

from functools import cache
from math import ceil, floor

import torch

from tests.oracles.base import Case, Map, oracle, positions, zeros_like
from tests.oracles.scorecam import masked, resized, softmax

__all__ = ["rise"]


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
