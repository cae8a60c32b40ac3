"""Interpolate and average values along the axes of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Floats", "average_cells", "build_interpolation_matrix", "find_pixels_inside"]

Floats: TypeAlias = NDArray[np.floating[Any]]


@lru_cache(maxsize=32)
def build_interpolation_matrix(
    n_in: int, start: float, stop: float, n_out: int, offset: float = 0.5, stride: float = 1.0
) -> Tensor:
    """Return the matrix that interpolates ``n_in`` cells, which cover ``start`` to ``stop``, at ``n_out`` pixels.

    It is linear between the centers of the cells, constant beyond the outermost centers, and 0 outside of the cells.

    Args:
        n_in: Number of cells.
        start: Begin of the first cell, in output pixels.
        stop: End of the last cell; smaller than ``start`` if the cells run backwards.
        n_out: Number of output pixels.
        offset: Center of the first cell, in lengths of a cell from ``start``.
        stride: Distance between neighboring centers, in lengths of a cell. By default the cells tile the span.

    Returns:
        (n_out, n_in) float64 on the CPU. Calls share it: do not change it in place.
    """
    centers = np.arange(n_out) + 0.5
    # Position of each pixel's center in units of cells; clipping continues the outermost cells.
    cell = np.clip(((centers - start) / (stop - start) * n_in - offset) / stride, 0, n_in - 1)
    weights = np.clip(1 - np.abs(cell[:, None] - np.arange(n_in)), 0, None)
    weights[~find_pixels_inside(start, stop, n_out)] = 0
    # The matrix is cached. A tensor that is created in inference mode can never be part of a graph.
    with torch.inference_mode(False):
        return torch.from_numpy(weights)


def average_cells(values: Tensor, spans: Sequence[tuple[float, float]], size: Sequence[int]) -> Tensor:
    """Return the mean of cells in each cell of another grid, weighted by area.

    Args:
        values: ``(*cells)``, floating.
        spans: Begin and end of the other grid along each axis, in cells; a flipped axis runs backwards.
        size: Size of the other grid.

    Returns:
        ``(*size)``; what is beyond the cells counts as 0.
    """
    for axis, ((start, stop), n_out) in enumerate(zip(spans, size, strict=True)):
        edges = torch.linspace(start, stop, n_out + 1, dtype=torch.float64)
        low, high = torch.minimum(edges[:-1], edges[1:])[:, None], torch.maximum(edges[:-1], edges[1:])[:, None]
        cells = torch.arange(values.shape[axis])
        # Overlap of each cell of the other grid with each cell, as a share of its length.
        shares = (torch.minimum(high, cells + 1) - torch.maximum(low, cells)).clamp_min(0) / (high - low)
        values = (values.movedim(axis, -1) @ shares.T.to(values)).movedim(-1, axis)
    return values


def find_pixels_inside(start: float, stop: float, n: int) -> NDArray[np.bool_]:
    """Return (n,) booleans, True where the center of a pixel is between ``start`` and ``stop``."""
    centers = np.arange(n) + 0.5
    inside: NDArray[np.bool_] = (centers >= min(start, stop)) & (centers <= max(start, stop))
    return inside
