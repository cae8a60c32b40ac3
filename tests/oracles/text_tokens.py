"""Literal versions of TAM (Li et al. 2025, arXiv 2506.23270), cell by cell, in float64, and of raw attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.oracles.base import oracle

Floats = NDArray[np.float64]


@oracle("tam")
def compute_tam(
    logits: Floats,
    ids: Sequence[int],
    image: Sequence[int],
    grid: tuple[int, int],
    words: Sequence[int],
    answer_start: int,
    position: int,
    window: int = 3,
) -> Floats:
    """Return the map of the token at a position.

    Args:
        logits: ``(T, V)``, behind each token.
        ids: The T tokens.
        image: Positions of the image's tokens, row by row.
        grid: The grid that they form.
        words: Positions of the words of prompt and answer.
        answer_start: Where the answer begins.
        position: The explained token.
        window: The side of the filter.
    """
    token = ids[position]
    own = np.array([max(logits[place, token], 0) for place in image])  # eq. 1
    maps, relevance = [], []
    for word in words:
        if word >= position or ids[word] == token:
            continue
        maps.append([max(logits[place, ids[word]], 0) for place in image])
        relevance.append(max(logits[word - 1 if word >= answer_start else word, token], 0))
    if maps and sum(relevance) > 0:
        weights = np.array(relevance) / sum(relevance)  # eq. 2 and 3
        interference = sum(weight * np.array(each) for weight, each in zip(weights, maps, strict=True))
        if interference.any():
            (scale,), *_ = np.linalg.lstsq(interference[:, None], own, rcond=None)  # eq. 4
            own = np.maximum(own - scale * interference, 0)  # eq. 5
    return filter_by_rank(own.reshape(grid), window)


def filter_by_rank(plane: Floats, window: int) -> Floats:
    """Return the rank Gaussian filter of a plane (eq. 6 and 7)."""
    margin, out = window // 2, np.zeros_like(plane)
    padded = np.pad(plane, margin, mode="reflect")
    for row in range(plane.shape[0]):
        for column in range(plane.shape[1]):
            values = np.sort(padded[row : row + window, column : column + window].ravel())
            mean = values.mean()
            width = values.std() / mean if mean > 0 else 0
            if width < 1e-12:
                out[row, column] = mean
                continue
            ranks = np.arange(window**2) - window**2 // 2
            weights = np.exp(-(ranks**2) / (2 * width**2))
            out[row, column] = (weights * values).sum() / weights.sum()
    return out


@oracle("raw-attention")
def average_attention(matrices: Floats, rows: Sequence[int], image: Sequence[int], grid: tuple[int, int]) -> Floats:
    """Return the mean over layers, heads and rows of ``(L, H, T, T)`` at the image's tokens."""
    layers, heads = matrices.shape[:2]
    cells = []
    for place in image:
        read = [matrices[layer, head, row, place] for layer in range(layers) for head in range(heads) for row in rows]
        cells.append(sum(read) / len(read))
    return np.array(cells).reshape(grid)
