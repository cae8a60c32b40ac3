"""Pictures of what is no photo: lines coloured by a heatmap, and sheets of many small pictures.

Every picture returned is a new ``(H, W, 3)`` uint8 RGB array. Lines are drawn by OpenCV, words by Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from camtool import overlay

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image, ImageDraw

    from camtool.overlay import Colormap

    Pixels: TypeAlias = NDArray[np.uint8]
    Floats: TypeAlias = NDArray[np.floating[Any]]

__all__ = ["Finish", "Tile", "blended", "faded_lines", "lines", "multiplied", "sheet"]

_PAPER, _PANEL = (255, 255, 255), (247, 248, 250)
_INK, _QUIET, _RULE = (28, 30, 34), (112, 116, 124), (222, 225, 230)
_TEXT, _SMALL = 19, 17  # heights of letters, in pixels: 8 to 9 pt where a page is as wide as two columns of a paper
_SUBPIXEL_BITS = 4


def blended(pictures: Pixels, heatmap: Floats, *, alpha: float | None, colormap: Colormap) -> Pixels:
    """Pictures ``(T, H, W, 3)`` with heatmaps ``(T, H, W)`` over them, as if they were one tall photo."""
    tall = overlay.blend(
        np.ascontiguousarray(pictures).reshape(-1, *pictures.shape[2:]),
        np.ascontiguousarray(heatmap).reshape(-1, heatmap.shape[2]),
        alpha=alpha,
        colormap=colormap,
    )
    return tall.reshape(pictures.shape)


def multiplied(pictures: Pixels, heatmap: Floats) -> Pixels:
    """Pictures ``(T, H, W, 3)`` times heatmaps ``(T, H, W)``."""
    product: Pixels = np.rint(pictures * heatmap[..., None]).astype(np.uint8)
    return product


# ------------------------------------------------------------------------------------------------------- lines

_WIDTH, _MARGIN, _LEFT, _BETWEEN = 1060, 24, 96, 10
_STRIP = 14  # the height of the band that shows the heatmap by itself
_THICKNESS = 2
_MOST_PANELS = 16
_LEAST_WITH_VALUES = 90  # the height from which on a panel among others has its values beside it
_KEY_WIDE, _KEY_HIGH, _KEY_ROOM = 120, 10, 44  # the key to the colors, and what its last word takes
_TINT = 0.45
"""How much of an overlay's colour the ground behind the line gets: a hint of where to look, from afar."""


def lines(values: Floats, heatmap: Floats, *, alpha: float | None = None, colormap: Colormap = "heat") -> Pixels:
    """Draw the channels of a signal, one panel each, in the colours of a heatmap.

    Each panel has its own scale, and what is not finite is drawn as 0. The opacity of the colour rises with the heat as
    in :func:`camtool.overlay.blend`; below the panels a band shows the heatmap alone. Only the first sixteen channels
    are drawn.

    Args:
        values: ``(C, L)``.
        heatmap: ``(L,)`` in [0, 1].
        alpha: How opaque the color is where it is hot: 0 draws plain lines, from a half on the colors are full.
            The default is that of :func:`camtool.overlay.blend`.
        colormap: A name or a color map of matplotlib; see :func:`camtool.overlay.palette`.

    Returns:
        ``(H, 1060, 3)`` uint8 RGB.
    """
    page = _Page(values)
    heat = _resampled(heatmap, page.across)[None]
    alpha = overlay.default_alpha(colormap) if alpha is None else alpha
    panel, ink = (np.full((1, page.across, 3), color, np.uint8) for color in (_PANEL, _INK))
    tinted = overlay.blend(panel, heat, alpha=alpha, colormap=colormap)
    stroke = overlay.blend(ink, heat, alpha=min(1.0, 2 * alpha), colormap=colormap)
    ground = np.rint(panel + _TINT * (tinted.astype(float) - panel)).astype(np.uint8)
    page.draw(ground[0], stroke[0], np.ones(page.across), overlay.colorize(heat, colormap)[0])
    page.draw_key(overlay.palette(colormap))
    return page.finished()


def faded_lines(values: Floats, heatmap: Floats) -> Pixels:
    """Draw the channels of a signal in panels, each point as strong as the heatmap is there.

    The arguments are those of :func:`lines`.
    """
    page = _Page(values)
    heat = _resampled(heatmap, page.across)
    plain = np.tile(np.array(_PANEL, np.uint8), (page.across, 1))
    page.draw(plain, np.full_like(plain, _INK), heat, None)
    return page.finished()


class _Page:
    """A page of panels below one another, for the channels of a signal ``(C, L)``."""

    def __init__(self, values: Floats) -> None:
        self._count, self._length = values.shape
        shown = values[:_MOST_PANELS].astype(np.float64)
        self._values: Floats = np.where(np.isfinite(shown), shown, 0)
        self._left_out = self._count - len(self._values)
        self.across = _WIDTH - _LEFT - _MARGIN
        self._height = _height_of_a_panel(len(self._values))
        self._strip = _MARGIN + len(self._values) * (self._height + _BETWEEN)
        self._title = self._strip + _STRIP + _TEXT + 2 * _BETWEEN  # where what stands below the ticks begins
        below = self._title + _TEXT + _BETWEEN
        self._canvas: NDArray[np.uint8] = np.full((below, _WIDTH, 3), _PAPER, np.uint8)
        self._has_heat = False

    def draw(self, ground: Pixels, stroke: Pixels, strength: Floats, band: Pixels | None) -> None:
        """Draw all panels.

        Args:
            ground: ``(across, 3)``, the colour behind each column.
            stroke: ``(across, 3)``, the colour of the line in each column.
            strength: ``(across,)``, how much of the line is seen there, 0 to 1.
            band: ``(across, 3)``, what is shown below the panels; nothing where it is left out.
        """
        inside = slice(_LEFT, _LEFT + self.across)
        for panel, own in enumerate(self._values):
            rows = slice(self._top(panel), self._top(panel) + self._height)
            self._canvas[rows, inside] = ground
            if own.min() < 0 < own.max():
                self._canvas[rows.start + round(float(self._y(own, np.zeros(1))[0])), inside] = _RULE
            self._canvas[rows, inside] = self._with_line(self._canvas[rows, inside], own, stroke, strength)
        if band is not None:
            self._canvas[self._strip : self._strip + _STRIP, inside] = band

    def draw_key(self, colors: Pixels) -> None:
        """Draw what the colors of the band mean, below it on the right; ``(256, 3)``, from cold to hot."""
        columns = np.linspace(0, len(colors) - 1, _KEY_WIDE).round().astype(int)
        left = _LEFT + self.across - _KEY_ROOM - _KEY_WIDE
        top = self._title + (_TEXT - _KEY_HIGH) // 2
        self._canvas[top : top + _KEY_HIGH, left : left + _KEY_WIDE] = colors[columns]
        self._has_heat = True

    def _top(self, panel: int) -> int:
        return _MARGIN + panel * (self._height + _BETWEEN)

    def _y(self, own: Floats, values: Floats) -> Floats:
        """Where values of a channel lie in its panel, in pixels from its top."""
        lowest, span = own.min(), np.ptp(own)
        share = (values - lowest) / span if span > 0 else np.full_like(values, 0.5)
        room = max(6, self._height // 10)
        result: Floats = (1 - share) * (self._height - 1 - 2 * room) + room
        return result

    def _with_line(self, ground: Pixels, own: Floats, stroke: Pixels, strength: Floats) -> Pixels:
        import cv2

        x, shown = _thinned(own, self.across)
        points = np.stack([x, self._y(own, shown)], 1) * 2**_SUBPIXEL_BITS
        mask = np.zeros(ground.shape[:2], np.uint8)
        cv2.polylines(mask, [np.rint(points).astype(np.int32)], False, 255, _THICKNESS, cv2.LINE_AA, _SUBPIXEL_BITS)
        opacity = (mask / 255 * strength)[..., None]
        return np.rint((1 - opacity) * ground + opacity * stroke).astype(np.uint8)

    def finished(self) -> Pixels:
        """The page with its words."""
        from PIL import Image

        page = Image.fromarray(self._canvas)
        pen = _pen(page)
        for panel, own in enumerate(self._values):
            top = self._top(panel)
            if self._count > 1:
                _write(pen, (_MARGIN, top + self._height // 2), str(panel), _TEXT, anchor="lm")
            if self._count == 1 or self._height >= _LEAST_WITH_VALUES:
                for value, anchor in ((own.max(), "ra"), (own.min(), "rd")):
                    y = top + round(float(self._y(own, np.array([value]))[0])) + (-7 if anchor == "ra" else 7)
                    _write(pen, (_LEFT - 12, y), f"{value:.3g}", _SMALL, _QUIET, anchor)
        bottom = self._strip + _STRIP
        for tick in range(0, self._length, _step(self._length)):
            x = _LEFT + (tick + 0.5) / self._length * self.across
            pen.line((x, bottom + 3, x, bottom + 8), fill=_QUIET)
            _write(pen, (x, bottom + 12), str(tick), _SMALL, _QUIET, "ma")
        self._write_titles(page, pen)
        return np.array(page)

    def _write_titles(self, page: Image.Image, pen: ImageDraw.ImageDraw) -> None:
        """Say what the axes and the colors are."""
        middle, right = self._title + _TEXT // 2, _LEFT + self.across
        _write(pen, (_LEFT + self.across // 2, middle), "position (time step)", _SMALL, _QUIET, "mm")
        if self._left_out:
            _write(pen, (_LEFT, middle), f"and {self._left_out} more channels", _SMALL, _QUIET, "lm")
        if self._has_heat:
            _write(pen, (_LEFT - 12, self._strip + _STRIP // 2), "heat", _SMALL, _QUIET, "rm")
            _write(pen, (right, middle), "high", _SMALL, _QUIET, "rm")
            _write(pen, (right - _KEY_ROOM - _KEY_WIDE - 8, middle), "low", _SMALL, _QUIET, "rm")
        _write_upright(page, (1, (_MARGIN + self._strip - _BETWEEN) // 2), self._value_title(), _SMALL, _QUIET)

    def _value_title(self) -> str:
        if self._count == 1:
            return "value"
        return "channel, value" if self._height >= _LEAST_WITH_VALUES else "channel"


def _height_of_a_panel(count: int) -> int:
    return next(height for most, height in ((1, 260), (2, 180), (4, 130), (8, 96), (_MOST_PANELS, 64)) if count <= most)


def _step(length: int) -> int:
    """1, 2 or 5 times a power of ten, so that there are about eight ticks."""
    rough = max(1.0, length / 8)
    unit = 10 ** math.floor(math.log10(rough))
    return int(next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough))


def _thinned(values: Floats, across: int) -> tuple[Floats, Floats]:
    """The points ``(x, value)`` of a line over so many columns; of many values those that reach highest and lowest."""
    at = (np.arange(len(values)) + 0.5) / len(values) * across - 0.5
    if len(values) <= 4 * across:
        return at, values
    parts = np.array_split(np.arange(len(values)), 2 * across)
    kept = [sorted({int(part[values[part].argmin()]), int(part[values[part].argmax()])}) for part in parts]
    chosen = np.concatenate([np.array(each) for each in kept])
    return at[chosen], values[chosen]


def _resampled(heatmap: Floats, across: int) -> Floats:
    """A heatmap ``(L,)`` in so many columns: linear between values or, where those are more, the hottest of each."""
    if len(heatmap) <= across:
        at = (np.arange(across) + 0.5) / across * len(heatmap) - 0.5
        return np.interp(at, np.arange(len(heatmap)), heatmap)
    hottest: Floats = np.maximum.reduceat(heatmap, np.arange(across) * len(heatmap) // across)
    return hottest


# ------------------------------------------------------------------------------------------------------ sheets

_SIDE = 220  # the longer side of a picture on a sheet
_LEAST = 84  # the room that a picture takes at least, for its caption's sake
_COLUMNS = 4
_GAP, _CAPTION, _BAR = 14, 26, 4


@dataclass(frozen=True, eq=False)
class Tile:
    """A small picture, its heatmap and what it is.

    Attributes:
        picture: ``(H, W, 3)`` uint8.
        heatmap: ``(H, W)`` in [0, 1].
        caption: Stands below it.
        is_large: It stands before all others, as large as four of them.
    """

    picture: Pixels
    heatmap: Floats
    caption: str
    is_large: bool = False


Finish: TypeAlias = "Callable[[Pixels, Floats], Pixels]"
"""From pictures ``(T, H, W, 3)`` and heatmaps ``(T, H, W)`` to pictures."""


def sheet(tiles: Sequence[Tile], finish: Finish, *, colormap: Colormap = "heat") -> Pixels:
    """Set small pictures on a page, below each a bar that is as long and as hot as its hottest place.

    Args:
        tiles: Of one size, four in a row; but beside a large one, which comes first, in two rows.
        finish: Lays heatmaps on pictures, once both have the size in which they are shown.
        colormap: Of the bars, as for :func:`camtool.overlay.palette`.

    Returns:
        ``(H, W, 3)`` uint8 RGB.
    """
    large = [tile for tile in tiles if tile.is_large]
    small = [tile for tile in tiles if not tile.is_large]
    height, width = _fitted(small[0].picture, (_SIDE, _SIDE))
    down, across = height + _BAR + _CAPTION + _GAP, max(width, _LEAST) + _GAP
    big = _fitted(large[0].picture, (down + height, 2 * width + _GAP)) if large else (0, 0)
    columns = -(-len(small) // 2) if large else min(_COLUMNS, len(small))
    left = _MARGIN + (max(big[1], 2 * _LEAST) + _GAP if large else 0)
    places = [(_MARGIN + i // columns * down, left + i % columns * across) for i in range(len(small))]
    bottom = max(places[-1][0] + height, _MARGIN + big[0]) + _BAR + _CAPTION
    page: Pixels = np.full((bottom + _GAP, left + columns * across - _GAP + _MARGIN, 3), _PAPER, np.uint8)
    for some, size, where in ((large, big, [(_MARGIN, _MARGIN)]), (small, (height, width), places)):
        for tile, picture, place in zip(some, _shown(some, size, finish), where, strict=False):
            page = _set(page, tile, picture, place, colormap)
    return page


def _fitted(picture: Pixels, box: tuple[int, int]) -> tuple[int, int]:
    """The size ``(h, w)`` of a picture that just fits into a box."""
    scale = min(room / side for room, side in zip(box, picture.shape[:2], strict=True))
    return max(1, round(picture.shape[0] * scale)), max(1, round(picture.shape[1] * scale))


def _shown(tiles: Sequence[Tile], size: tuple[int, int], finish: Finish) -> Pixels:
    """The tiles' pictures as they are shown, ``(T, *size, 3)``."""
    import cv2

    if not tiles:
        return np.empty((0, *size, 3), np.uint8)
    grows = size[0] > tiles[0].picture.shape[0]
    smooth, plain = (cv2.INTER_CUBIC, cv2.INTER_LINEAR) if grows else (cv2.INTER_AREA, cv2.INTER_AREA)
    pictures = [cv2.resize(np.ascontiguousarray(tile.picture), size[::-1], interpolation=smooth) for tile in tiles]
    heats = [cv2.resize(np.ascontiguousarray(tile.heatmap), size[::-1], interpolation=plain) for tile in tiles]
    return finish(np.stack(pictures), np.stack(heats).clip(0, 1))


def _set(page: Pixels, tile: Tile, picture: Pixels, place: tuple[int, int], colormap: Colormap) -> Pixels:
    """The page with a picture, its bar and its caption at a place ``(top, left)``."""
    from PIL import Image

    (top, left), (height, width) = place, picture.shape[:2]
    peak = float(tile.heatmap.max())
    bar = slice(top + height + _BAR // 2, top + height + _BAR // 2 + _BAR)
    page[top : top + height, left : left + width] = picture
    page[bar, left : left + width] = _RULE
    page[bar, left : left + round(peak * width)] = overlay.palette(colormap)[round(255 * peak)]
    image = Image.fromarray(page)
    _write(_pen(image), (left, bar.stop + 5), tile.caption, _SMALL, _QUIET)
    return np.array(image)


# ------------------------------------------------------------------------------------------------------- words


def _pen(page: Image.Image) -> ImageDraw.ImageDraw:
    from PIL import ImageDraw

    return ImageDraw.Draw(page)


def _write(
    pen: ImageDraw.ImageDraw,
    at: tuple[float, float],
    words: str,
    height: int,
    color: tuple[int, int, int] = _INK,
    anchor: str = "la",
) -> None:
    from PIL import ImageFont

    pen.text(at, words, fill=color, font=ImageFont.load_default(height), anchor=anchor)


def _write_upright(
    page: Image.Image, at: tuple[int, int], words: str, height: int, color: tuple[int, int, int]
) -> None:
    """Write words that run upward; ``at`` is their left side and their middle."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(height)
    strip = Image.new("RGB", (round(font.getlength(words)) + 2, height + 4), _PAPER)
    ImageDraw.Draw(strip).text((1, 0), words, fill=color, font=font)
    turned = strip.transpose(Image.Transpose.ROTATE_90)
    page.paste(turned, (at[0], max(0, at[1] - turned.height // 2)))
