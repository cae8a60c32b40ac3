"""Stitching: the raw maps of overlapping tiles become one map of the slide, without seams and in bounded memory."""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from camtool.errors import CamtoolError
from camtool.explaining.explanation import Explanation
from camtool.hooks.chunks import iterate_chunks
from camtool.progress import Stage
from camtool.slides.tiling import Tile, TileGrid

Map: TypeAlias = NDArray[np.float32]

_LEAST = 1e-6
"""Weight of the margin of a tile. It counts only where no neighbor is."""

_ROWS = 512
"""Rows of a heatmap that are in memory at once."""


class Stitcher:
    """The map of a slide while its tiles come in.

    In the overlap of two tiles the map changes linearly from one to the other. The outer quarter of the overlap is left
    to the neighbor, as a layer's padding spoils a map at its border. Only one row of tiles is in memory; what is above
    it is on disk.

    Args:
        grid: The tiles, which must come in its order.
    """

    def __init__(self, grid: TileGrid) -> None:
        self._grid = grid
        height, width = grid.heatmap_size
        top, left, bottom, right = grid.seen
        # The weight of each pixel of a tile's heatmap, (side / cell, side / cell); 0 where it was not seen.
        self._window = np.outer(_compute_ramp(grid, top, bottom), _compute_ramp(grid, left, right)).astype(np.float32)
        self._rows = len(self._window)
        self._values: Map = np.zeros((self._rows, width), np.float32)
        self._weights: Map = np.zeros((self._rows, width), np.float32)
        self._top = 0
        self._map: Map = allocate_on_disk((height, width), np.float32)
        self._explained: NDArray[np.bool_] = allocate_on_disk((height, width), np.bool_)
        self._limits = (np.inf, -np.inf)

    def add(self, tile: Tile, values: Map) -> None:
        """Add the map of a tile, ``(side, side)``, not normalized and finite."""
        cell, rows = self._grid.cell, self._rows
        self._advance(tile.y // cell)
        means = values.reshape(rows, cell, rows, cell).mean((1, 3))
        left = tile.x // cell
        width = min(rows, self._values.shape[1] - left)
        self._values[:, left : left + width] += (self._window * means)[:, :width]
        self._weights[:, left : left + width] += self._window[:, :width]

    def finish(self) -> tuple[Map, NDArray[np.bool_], tuple[float, float]]:
        """Return the heatmap in [0, 1], where the slide was explained, and the raw values that became 0 and 1.

        One scale holds for the whole slide. A constant map becomes zeros.
        """
        self._advance(self._top + self._rows)
        low, high = (float(limit) for limit in self._limits)
        # As camtool.maps.normalize: a map that varies by rounding alone is constant.
        rounding = 16 * float(np.finfo(np.float32).eps) * max(abs(low), abs(high))
        factor = 1 / (high - low) if high - low > rounding else 0.0
        for rows in iterate_chunks(len(self._map), _ROWS, Stage("Stitching", "row", _ROWS)):
            part, inside = self._map[rows], self._explained[rows]
            part[:] = np.where(inside, ((part - low) * factor).clip(0, 1), 0)
        return self._map, self._explained, (low, high)

    def _advance(self, top: int) -> None:
        """Move the band down: rows above ``top`` are complete."""
        done = min(top - self._top, self._rows)
        if done <= 0:
            return
        self._store(done)
        for band in (self._values, self._weights):
            band[:-done] = band[done:]
            band[-done:] = 0
        self._top = top

    def _store(self, count: int) -> None:
        """Write the first rows of the band to the map."""
        count = min(count, len(self._map) - self._top)
        weights = self._weights[:count]
        inside = weights > 0
        means = np.divide(self._values[:count], weights, where=inside, out=np.zeros_like(weights))
        self._map[self._top : self._top + count] = means
        self._explained[self._top : self._top + count] = inside
        if inside.any():
            low, high = self._limits
            self._limits = min(low, means[inside].min()), max(high, means[inside].max())


def _compute_ramp(grid: TileGrid, start: float, stop: float) -> NDArray[np.float64]:
    """Return the weights along one axis."""
    edges = np.arange(grid.side // grid.cell) * float(grid.cell)
    is_seen = (edges >= start) & (edges + grid.cell <= stop)
    middles = edges + grid.cell / 2
    distance = np.minimum(middles - start, stop - middles)
    shared = (stop - start) * grid.overlap
    ramp = np.ones(len(edges)) if shared == 0 else ((distance - shared / 4) / (shared / 2)).clip(_LEAST, 1)
    return ramp * is_seen


def place_on_tile(explanation: Explanation, side: int) -> Map:
    """Return the raw map of a tile at the tile's size, not normalized; 0 where the model did not see it.

    Raises:
        CamtoolError: The model was explained on something else than an image.
    """
    geometry = explanation.geometry
    if geometry is None or geometry.photo != (side, side):
        raise CamtoolError("slides: the model takes no images, but a slide is read as images.")
    # Nothing fades toward the edge of a tile, where the slide goes on.
    return geometry.place(torch.from_numpy(explanation.raw), explanation.centers, holds=True).numpy()


def allocate_on_disk(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of zeros in a file without a name, which the system removes when the array is freed."""
    with TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)
