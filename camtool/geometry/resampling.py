"""Interpolate and average values along the axes of a grid.

How a map is drawn between the centers of its cells, and beyond the outermost ones, is written once, in
:func:`weigh_cells`. :func:`camtool.maps.resize_to_grid` is the same for grids that cover one input evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.maps import resize_to_grid

Floats: TypeAlias = NDArray[np.floating[Any]]

# The rule of :func:`weigh_cells`, as runs and exported files note it: heatmaps of another rule are not mixed in.
DRAWING = "cells cover half a stride beyond their centers"

# Rounding of places, in distances between centers: cells that tile the input end at its edges.
_PLACE_ROUNDING = 1e-6


def weigh_cells(positions: Floats, cells: int, edges: tuple[float, float], *, holds: bool = False) -> Floats:
    """Return how much each of a row of cells counts at each of some positions.

    Values are linear between the centers of the cells. Beyond the outermost ones, each cell covers as much as on its
    inner side, half a stride: its value is constant up to an edge of the input that is as near, and fades to 0 toward
    one that is further away, at most within a stride. So cells that tile the input are drawn up to its edges, and an
    outermost cell that lies further inward covers no more of the input than the others.

    Args:
        positions: ``(P,)``, in distances between the centers from the first one: 0 is the first center, 1 the second.
        cells: Number of cells.
        edges: Begin and end of the input, as positions; the other way round for cells that run backwards.
        holds: Keep the value of the outermost cells up to the edges: for what is no heat, e.g. a mask, and for parts of
            a picture that goes on beyond their edges, e.g. tiles.

    Returns:
        ``(P, cells)``.
    """
    first, last = sorted(edges)
    inside = np.clip(positions, 0, cells - 1)
    weights: Floats = np.clip(1 - np.abs(inside[:, None] - np.arange(cells)), 0, None)
    for beyond, space in ((-positions, -first), (positions - (cells - 1), last - (cells - 1))):
        if not holds and space > 0.5 + _PLACE_ROUNDING:
            end = min(space, 1.0)
            # From 1 - end to end the value falls to 0, so that it covers half a stride in all.
            weights *= np.clip((end - beyond) / (2 * end - 1), 0, 1)[:, None]
    return weights


@lru_cache(maxsize=32)
def build_interpolation_matrix(
    cells: int,
    start: float,
    stop: float,
    points: int,
    axis: AxisCenters | None = None,
    pixels: int = 0,
    *,
    holds: bool = False,
) -> Tensor:
    """Return the matrix that interpolates cells, whose input covers ``start`` to ``stop``, at some points.

    Its rows are those of :func:`weigh_cells`, and 0 outside of the input.

    Args:
        cells: Number of cells.
        start: Begin of the input, in lengths of a point.
        stop: End of the input; smaller than ``start`` if it runs backwards.
        points: Number of points, e.g. the pixels of a row of the photo.
        axis: The centers of the cells in the input; None if the cells tile it.
        pixels: Length of the input in pixels, for ``axis``.
        holds: As for :func:`weigh_cells`.

    Returns:
        (points, cells) float64 on the CPU. Calls share it: do not change it in place.
    """
    # Center of the first cell and distance between two, in lengths of a cell that tiles the input.
    offset, stride = (0.5, 1.0) if axis is None else (axis.offset * cells / pixels, axis.stride * cells / pixels)
    centers = np.arange(points) + 0.5
    positions = ((centers - start) / (stop - start) * cells - offset) / stride
    weights = weigh_cells(positions, cells, (-offset / stride, (cells - offset) / stride), holds=holds)
    weights[~find_pixels_inside(start, stop, points)] = 0
    # The matrix is cached. A tensor that is created in inference mode can never be part of a graph.
    with torch.inference_mode(False):
        return torch.from_numpy(weights)


def resample(
    maps: Tensor, centers: CellCenters | None, grid: Sequence[int], onto: CellCenters | None, *, holds: bool = False
) -> Tensor:
    """Return maps on another grid, each of whose cells gets the value at its own place in the input.

    Between and beyond the centers of the old cells it is drawn as :func:`weigh_cells` says.

    Args:
        maps: ``(N, *old)``, floating.
        centers: Where the old cells lie; None for a grid that covers the input evenly.
        grid: Number of new cells along each axis.
        onto: Where the new cells lie; None likewise.
        holds: As for :func:`weigh_cells`.

    Returns:
        ``(N, *grid)``.
    """
    if (centers is None and onto is None) or (centers == onto and maps.shape[1:] == tuple(grid)):
        return resize_to_grid(maps, grid)
    # Lengths in shares of the input, so that a grid without centers needs no size.
    spans = zip(_scale_to_input(centers, maps.shape[1:]), _scale_to_input(onto, grid), strict=True)
    for axis, ((offset, stride), (new_offset, new_stride)) in enumerate(spans, 1):
        positions = (new_offset + new_stride * np.arange(grid[axis - 1], dtype=np.float64) - offset) / stride
        edges = -offset / stride, (1 - offset) / stride
        weights = torch.from_numpy(weigh_cells(positions, maps.shape[axis], edges, holds=holds)).to(maps)
        maps = (maps.movedim(axis, -1) @ weights.T).movedim(-1, axis)
    return maps


def draw_heat(
    maps: Tensor, centers: CellCenters | None, grid: Sequence[int], onto: CellCenters | None = None
) -> Tensor:
    """Return what :func:`resample` does, but each map fades to its lowest value; a constant map stays constant.

    Args:
        maps: ``(N, *old)``, floating.
        centers: Where the old cells lie; None for a grid that covers the input evenly.
        grid: Number of new cells along each axis, e.g. the input's size.
        onto: Where the new cells lie; None likewise.

    Returns:
        ``(N, *grid)``.
    """
    lowest = maps.amin(tuple(range(1, maps.ndim)), keepdim=True)
    return lowest + resample(maps - lowest, centers, grid, onto)


def _scale_to_input(centers: CellCenters | None, grid: Sequence[int]) -> list[tuple[float, float]]:
    """Return the offset and the stride along each axis, in lengths of the input."""
    if centers is None:
        return [(0.5 / cells, 1 / cells) for cells in grid]
    return [(axis.offset / side, axis.stride / side) for axis, side in zip(centers.axes, centers.size, strict=True)]


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
        edges = torch.linspace(start, stop, n_out + 1, dtype=torch.float64, device="cpu")
        low, high = torch.minimum(edges[:-1], edges[1:])[:, None], torch.maximum(edges[:-1], edges[1:])[:, None]
        cells = torch.arange(values.shape[axis], device="cpu")
        # Overlap of each cell of the other grid with each cell, as a share of its length.
        shares = (torch.minimum(high, cells + 1) - torch.maximum(low, cells)).clamp_min(0) / (high - low)
        values = (values.movedim(axis, -1) @ shares.T.to(values)).movedim(-1, axis)
    return values


def find_pixels_inside(start: float, stop: float, n: int) -> NDArray[np.bool_]:
    """Return (n,) booleans, True where the center of a pixel is between ``start`` and ``stop``."""
    centers = np.arange(n) + 0.5
    return (centers >= min(start, stop)) & (centers <= max(start, stop))
