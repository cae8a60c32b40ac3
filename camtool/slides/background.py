"""Which tiles show nothing but background: the glass around the tissue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from camtool.arguments.checks import check_choice
from camtool.errors import CamtoolError, ImageError
from camtool.hooks.chunks import iterate_chunks
from camtool.progress import Stage
from camtool.slides.readers import SlideReader, read_scaled
from camtool.slides.tiling import Tile, TileGrid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.slides.readers import Pixels

Background: TypeAlias = 'Literal["bright", "dark", "none"] | Callable[[NDArray[np.uint8]], NDArray[np.bool_]]'
"""The background of a slide, or a function from pixels ``(H, W, 3)`` to ``(H, W)``, True where there is tissue."""

_BRIGHT = 220
"""Glass in bright field: all channels are at least this. Stained tissue absorbs more in one of them."""

_DARK = 20
"""The background of fluorescence: no channel is above this."""

_LOOK = 32
"""Side in pixels to which tiles are reduced to be looked at. A coarse level of the slide is enough for it."""

_GROUP = 64
"""Tiles between two steps of the progress."""

_Rule: TypeAlias = "Callable[[Pixels], NDArray[np.bool_]]"

_RULES: dict[str, _Rule] = {
    "bright": lambda pixels: pixels.min(2) < _BRIGHT,
    "dark": lambda pixels: pixels.max(2) > _DARK,
}


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
    found: NDArray[np.bool_] = np.asarray(mask)
    return found
