"""Similarity of two maps: Pearson's and Spearman's correlation of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.maps import is_constant, scale_by_peak


def correlate_pearson(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation of each row of two tensors ``(N, ...)``: ``(N,)``, in [-1, 1].

    Where one of the two is constant, up to rounding, the correlation is not defined. It is 0 then, the chance level.
    """
    a, b = _center(first), _center(second)
    norms = a.norm(dim=1) * b.norm(dim=1)
    is_undefined = is_constant(first) | is_constant(second)
    values = (a * b).sum(1) / torch.where(is_undefined, 1, norms)
    return torch.where(is_undefined, 0, values).clamp(-1, 1)


def correlate_spearman(first: Tensor, second: Tensor) -> Tensor:
    """Return Spearman's rank correlation of each row of two tensors ``(N, ...)``: ``(N,)``, in [-1, 1].

    Equal values have the mean of their ranks. Where one of the two is constant the correlation is 0.
    """
    return correlate_pearson(rank_values(first), rank_values(second))


def rank_values(values: Tensor) -> Tensor:
    """Return the rank of each value in its row, ``(N, K)`` from ``(N, ...)``: 1 for the lowest, the mean of ties."""
    return torch.stack([_rank_row(row) for row in values.flatten(1)]).to(values)


def _rank_row(row: Tensor) -> Tensor:
    _, value_indices, counts = torch.unique(row, return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return ranks[value_indices]


def _center(values: Tensor) -> Tensor:
    rows = scale_by_peak(values.flatten(1))
    return rows - rows.mean(1, keepdim=True)
