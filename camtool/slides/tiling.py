"""The tiles of a slide: at which scale, how large, where, which show nothing but background; and one map of their maps.

The raw maps of overlapping tiles are stitched without seams and in bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from camtool.arguments.checks import check_choice, check_integer, check_number
from camtool.errors import CamtoolError, ImageError
from camtool.explaining.explanation import Explanation
from camtool.geometry.crop_and_resize import Geometry
from camtool.hooks.chunks import iterate_chunks
from camtool.hooks.structures.caches import cached_property
from camtool.maps import find_limits
from camtool.progress import Stage
from camtool.slides.readers import Pixels, SlideReader, read_scaled

# Sides of a heatmap's pixel in pixels of a tile, the first that divides the tile's side. Maps of layers are coarser
# by far; a heatmap at full resolution would take the memory of the slide.
_CELLS = (4, 2, 1)

# The largest slides of microscopes have about one million.
_MOST_TILES = 4_000_000

# The background of a slide, or a function from pixels ``(H, W, 3)`` to ``(H, W)``, True where there is tissue.
Background: TypeAlias = 'Literal["bright", "dark", "none"] | Callable[[NDArray[np.uint8]], NDArray[np.bool_]]'

# Glass in bright field: all channels are at least this. Stained tissue absorbs more in one of them.
_BRIGHT = 220

# The background of fluorescence: no channel is above this.
_DARK = 20

# Side in pixels to which tiles are reduced to be looked at. A coarse level of the slide is enough for it.
_LOOK = 32

# Tiles between two steps of the progress.
_GROUP = 64

_Rule: TypeAlias = "Callable[[Pixels], NDArray[np.bool_]]"

_RULES: dict[str, _Rule] = {
    "bright": lambda pixels: pixels.min(2) < _BRIGHT,
    "dark": lambda pixels: pixels.max(2) > _DARK,
}


@dataclass(frozen=True)
class Tile:
    """A square of a slide that the model gets as one image.

    Attributes:
        x: The left edge, in pixels of the grid's scale.
        y: The upper edge.
    """

    x: int
    y: int


@dataclass(frozen=True)
class TileGrid:
    """Tiles that cover a slide, in rows from the top, each from the left.

    Attributes:
        width: The slide's width in pixels of the scale that the model sees.
        height: The slide's height.
        scale: Pixels of level 0 along the side of one of these pixels.
        side: The side of a tile.
        seen: The part of a tile that the model's preparation does not cut off, ``(top, left, bottom, right)``.
        overlap: The share of the seen part that neighboring tiles have in common, 0 to 0.9.
    """

    width: int
    height: int
    scale: float
    side: int
    seen: tuple[float, float, float, float]
    overlap: float

    @cached_property
    def cell(self) -> int:
        """The side of a pixel of the heatmap, in pixels of the scale that the model sees."""
        return next(cell for cell in _CELLS if self.side % cell == 0)

    @property
    def heatmap_size(self) -> tuple[int, int]:
        """``(h, w)`` of the heatmap. Up to three pixels at the right and at the bottom are beyond it."""
        return max(1, self.height // self.cell), max(1, self.width // self.cell)

    def list_tiles(self) -> list[Tile]:
        """Return the tiles, row by row.

        Raises:
            ImageError: There are too many: a small file may claim any size.
        """
        top, left, bottom, right = self.seen
        rows, columns = self._list_starts(self.height, bottom - top), self._list_starts(self.width, right - left)
        if len(rows) * len(columns) > _MOST_TILES:
            raise ImageError(
                f"the slide has {len(rows) * len(columns):,} tiles, and the limit is {_MOST_TILES:,}; choose a coarser "
                "resolution with level= or mpp=."
            )
        return [Tile(x, y) for y in rows for x in columns]

    def _list_starts(self, length: int, seen: float) -> Sequence[int]:
        """Return where tiles begin along an axis: multiples of a cell, so that no map has to be shifted by a part."""
        step = max(self.cell, int(seen * (1 - self.overlap)) // self.cell * self.cell)
        last = max(0, (length - self.side) // self.cell * self.cell)
        if last // step >= _MOST_TILES:
            return range(0, last + step, step)
        return [min(start, last) for start in range(0, last + step, step)]


def choose_scale(reader: SlideReader, level: int | None, mpp: float | None) -> float:
    """Return the pixels of level 0 along the side of a pixel that the model sees.

    Args:
        reader: The slide.
        level: The index of a level; negative numbers count from the coarsest.
        mpp: Micrometers per pixel.

    Raises:
        CamtoolError: Both are given, or there is no such level, or ``mpp`` is finer than the slide.
        ImageError: The file does not say how large its pixels are.
    """
    check_integer("level", level, optional=True)
    check_number("mpp", mpp, above=0, optional=True)
    if level is not None and mpp is not None:
        raise CamtoolError("level and mpp both choose the resolution; give one of them.")
    if mpp is None:
        level, count = level or 0, len(reader.levels)
        if not -count <= level < count:
            raise ImageError(f"level={level} does not exist; the slide has levels 0 to {count - 1}.")
        return reader.levels[level].downsample
    if reader.mpp is None:
        raise ImageError(f"mpp={mpp:g}: {reader.path} does not say how large its pixels are; choose a level=.")
    scale = mpp / reader.mpp
    if scale < 0.98:
        raise ImageError(f"mpp={mpp:g} is finer than the slide, which has {reader.mpp:.3g} micrometers per pixel.")
    nearest = min(reader.levels, key=lambda candidate: abs(math.log(candidate.downsample / scale)))
    # Scanners write 0.2508 for 0.25; a resampling by so little would only blur.
    return nearest.downsample if abs(nearest.downsample / scale - 1) < 0.02 else scale


def find_seen_part(geometry: Geometry) -> tuple[float, float, float, float]:
    """Return the part of an image that reaches the model, ``(top, left, bottom, right)`` in its pixels."""
    top, left, bottom, right = geometry.box
    height, width = geometry.photo
    rows, columns = sorted((top, bottom)), sorted((left, right))
    return max(rows[0], 0.0), max(columns[0], 0.0), min(rows[1], float(height)), min(columns[1], float(width))


def check_background(background: object) -> None:
    """Check that this is a background.

    Raises:
        CamtoolError: It is an unknown name, or cannot be called.
    """
    if not callable(background):
        check_choice("background", background, (*_RULES, "none"))


def select_tissue(reader: SlideReader, grid: TileGrid, background: Background, min_tissue: float) -> Iterator[Tile]:
    """Yield the tiles of which at least the share ``min_tissue`` is tissue; a progress bar is shown.

    Raises:
        CamtoolError: A user's function returned something else than a mask.
    """
    tiles = grid.list_tiles()
    if background == "none":
        yield from tiles
        return
    rule = background if callable(background) else _RULES[background]
    for part in iterate_chunks(len(tiles), _GROUP, Stage("Searching", "tile", _GROUP)):
        yield from (tile for tile in tiles[part] if _measure_tissue(reader, grid, tile, rule) >= min_tissue)


def _measure_tissue(reader: SlideReader, grid: TileGrid, tile: Tile, rule: _Rule) -> float:
    """Return the share of tissue in a tile; 1 for one that cannot be read, so that it is reported."""
    factor = grid.side / _LOOK
    try:
        look = read_scaled(reader, grid.scale * factor, tile.x / factor, tile.y / factor, _LOOK, _LOOK)
    except ImageError:
        return 1.0
    return float(_check_mask(rule(look)).mean())


def _check_mask(mask: Any) -> NDArray[np.bool_]:
    if np.shape(mask) != (_LOOK, _LOOK) or np.asarray(mask).dtype != np.bool_:
        raise CamtoolError(
            f"background: the function returned {np.shape(mask)} for pixels {(_LOOK, _LOOK, 3)}; it must return a mask "
            "(H, W) of booleans, True where there is tissue."
        )
    return np.asarray(mask)


Map: TypeAlias = NDArray[np.float32]

# Weight of the margin of a tile. It counts only where no neighbor is.
_LEAST = 1e-6

# Rows of a heatmap that are in memory at once.
_ROWS = 512


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
        factor = 0.0 if find_limits(np.array([low, high], np.float32)) is None else 1 / (high - low)
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
    return geometry.place_on_photo(torch.from_numpy(explanation.raw), explanation.centers, holds=True).numpy()


def allocate_on_disk(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of zeros in a file without a name, which the system removes when the array is freed."""
    with TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)
