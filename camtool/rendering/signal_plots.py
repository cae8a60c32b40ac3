"""Plots of signals colored by a heatmap, and heatmaps drawn on all frames of a clip or volume."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from camtool.rendering import colormaps, overlay, text_drawing
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.pixel_checks import Heat, Pixels
from camtool.rendering.text_drawing import INK, MUTED, PANEL, PAPER, RULE, SMALL_TEXT_SIZE, TEXT_SIZE

# Pixels: width of the page, its margin, the space for values on the left, the gap between panels.
_WIDTH, _MARGIN, _LEFT, _GAP = 1060, 24, 96, 10

# Height of the band that shows the heatmap by itself.
_BAND_HEIGHT = 14

_LINE_WIDTH = 2
_SUBPIXEL_BITS = 4  # OpenCV draws to a sixteenth of a pixel

# More panels than these would make a page too long for a screen.
_MAX_PANELS = 16

# Up to so many panels, the height of each.
_PANEL_HEIGHTS = ((1, 260), (2, 180), (4, 130), (8, 96), (_MAX_PANELS, 64))

# Two values and their gap need this height. In lower panels they would overlap.
_MIN_HEIGHT_WITH_VALUES = 90

# Pixels: the key to the colors, and the space for its label "high".
_KEY_WIDTH, _KEY_HEIGHT, _KEY_LABEL_WIDTH = 120, 10, 44

# A hint of the overlay's color behind the line can be seen on a small page, where a thin line cannot.
_GROUND_TINT = 0.45

# A line with more values than this becomes a solid area. Only the extremes of each half column are drawn then.
_MAX_VALUES_PER_COLUMN = 4


def blend_frames(images: Pixels, heatmaps: Heat, *, alpha: float | None, colormap: Colormap) -> Pixels:
    """Return images ``(T, H, W, 3)`` with heatmaps ``(T, H, W)`` over them; equal heat has equal color in all."""
    # One tall photo: so a map that is constant in one frame, but not in all, keeps its color.
    tall = np.ascontiguousarray(images).reshape(-1, *images.shape[2:])
    heat = np.ascontiguousarray(heatmaps).reshape(-1, heatmaps.shape[2])
    return overlay.blend(tall, heat, alpha=alpha, colormap=colormap).reshape(images.shape)


def multiply_frames(images: Pixels, heatmaps: Heat) -> Pixels:
    """Return the product of images ``(T, H, W, 3)`` and heatmaps ``(T, H, W)``."""
    return np.rint(images * heatmaps[..., None]).astype(np.uint8)


def draw_signal(
    values: Heat, heatmap: Heat, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
) -> Pixels:
    """Draw the channels of a signal, one panel each, in the colors of a heatmap.

    Each panel has its own scale. Values that are not finite are drawn as 0. The opacity of the color rises with the
    heat as in :func:`camtool.rendering.blend`. A band below the panels shows the heatmap alone. Only the first sixteen
    channels are drawn.

    Args:
        values: ``(C, L)``.
        heatmap: ``(L,)`` in [0, 1].
        alpha: Opacity of the color at full heat: 0 draws plain lines, 0.5 and more draws full colors.
            The default is that of :func:`camtool.rendering.blend`.
        colormap: Name, or matplotlib color map; see :func:`camtool.rendering.colormaps.get_palette`.

    Returns:
        ``(H, 1060, 3)`` uint8 RGB.
    """
    page = _SignalPage(values)
    heat = _resample(heatmap, page.columns)[None]
    alpha = colormaps.get_default_alpha(colormap) if alpha is None else alpha
    panel, ink = (np.full((1, page.columns, 3), color, np.uint8) for color in (PANEL, INK))
    tinted = overlay.blend(panel, heat, alpha=alpha, colormap=colormap)
    # Thin lines need twice the opacity to show as much color as an area does.
    stroke = overlay.blend(ink, heat, alpha=min(1.0, 2 * alpha), colormap=colormap)
    ground = np.rint(panel + _GROUND_TINT * (tinted.astype(float) - panel)).astype(np.uint8)
    page.draw_panels(ground[0], stroke[0], np.ones(page.columns))
    page.draw_band(overlay.colorize(heat, colormap)[0])
    page.draw_color_key(colormaps.get_palette(colormap))
    return page.render()


def draw_faded_signal(values: Heat, heatmap: Heat) -> Pixels:
    """Draw the channels of a signal in panels; the opacity of each point is its heat.

    The arguments are those of :func:`draw_signal`.
    """
    page = _SignalPage(values)
    heat = _resample(heatmap, page.columns)
    ground = np.tile(np.array(PANEL, np.uint8), (page.columns, 1))
    page.draw_panels(ground, np.full_like(ground, INK), heat)
    return page.render()


class _SignalPage:
    """Page of panels below one another, for the channels of a signal ``(C, L)``.

    Attributes:
        columns: Width of a panel in pixels.
    """

    def __init__(self, values: Heat) -> None:
        self._count, self._length = values.shape
        shown = values[:_MAX_PANELS].astype(np.float64)
        self._values: Heat = np.where(np.isfinite(shown), shown, 0)
        self._hidden = self._count - len(self._values)
        self.columns = _WIDTH - _LEFT - _MARGIN
        self._height = next(height for most, height in _PANEL_HEIGHTS if len(self._values) <= most)
        self._band_top = _MARGIN + len(self._values) * (self._height + _GAP)
        # Below the band are the ticks, and below these the title of the axis.
        self._title_top = self._band_top + _BAND_HEIGHT + TEXT_SIZE + 2 * _GAP
        page_height = self._title_top + TEXT_SIZE + _GAP
        self._pixels: Pixels = np.full((page_height, _WIDTH, 3), PAPER, np.uint8)
        self._inside = slice(_LEFT, _LEFT + self.columns)
        self._has_band = False

    def draw_panels(self, ground: Pixels, stroke: Pixels, opacity: Heat) -> None:
        """Draw all panels.

        Args:
            ground: ``(columns, 3)``, color behind each column.
            stroke: ``(columns, 3)``, color of the line in each column.
            opacity: ``(columns,)``, opacity of the line in each column, 0 to 1.
        """
        for panel, channel in enumerate(self._values):
            rows = slice(self._get_top(panel), self._get_top(panel) + self._height)
            area = rows, self._inside
            self._pixels[area] = ground
            if channel.min() < 0 < channel.max():
                zero = rows.start + round(float(self._to_y(channel, np.zeros(1))[0]))
                self._pixels[zero, self._inside] = RULE
            self._pixels[area] = self._draw_line(self._pixels[area], channel, stroke, opacity)

    def draw_band(self, colors: Pixels) -> None:
        """Draw the heatmap's colors ``(columns, 3)`` below the panels."""
        self._pixels[self._band_top : self._band_top + _BAND_HEIGHT, self._inside] = colors
        self._has_band = True

    def draw_color_key(self, palette: Pixels) -> None:
        """Draw the key to the colors of the band below it on the right; ``palette`` is ``(256, 3)``, cold to hot."""
        columns = np.linspace(0, len(palette) - 1, _KEY_WIDTH).round().astype(int)
        left = _LEFT + self.columns - _KEY_LABEL_WIDTH - _KEY_WIDTH
        top = self._title_top + (TEXT_SIZE - _KEY_HEIGHT) // 2
        self._pixels[top : top + _KEY_HEIGHT, left : left + _KEY_WIDTH] = palette[columns]

    def render(self) -> Pixels:
        """Return the page with its text."""
        page = Image.fromarray(self._pixels)
        for panel, channel in enumerate(self._values):
            self._write_values(page, self._get_top(panel), panel, channel)
        self._write_ticks(page)
        self._write_titles(page)
        return np.array(page)

    def _get_top(self, panel: int) -> int:
        return _MARGIN + panel * (self._height + _GAP)

    def _to_y(self, channel: Heat, values: Heat) -> Heat:
        """Return the places of a channel's values in its panel, in pixels from the top."""
        lowest, span = channel.min(), np.ptp(channel)
        share = (values - lowest) / span if span > 0 else np.full_like(values, 0.5)
        padding = max(6, self._height // 10)
        return (1 - share) * (self._height - 1 - 2 * padding) + padding

    def _draw_line(self, ground: Pixels, channel: Heat, stroke: Pixels, opacity: Heat) -> Pixels:
        import cv2

        x, shown = _thin_out(channel, self.columns)
        points = np.stack([x, self._to_y(channel, shown)], 1) * 2**_SUBPIXEL_BITS
        mask = np.zeros(ground.shape[:2], np.uint8)
        cv2.polylines(mask, [np.rint(points).astype(np.int32)], False, 255, _LINE_WIDTH, cv2.LINE_AA, _SUBPIXEL_BITS)
        covered = (mask / 255 * opacity)[..., None]
        return np.rint((1 - covered) * ground + covered * stroke).astype(np.uint8)

    def _write_values(self, page: Image.Image, top: int, panel: int, channel: Heat) -> None:
        """Write the channel's number, its highest value and its lowest, on the left of a panel."""
        if self._count > 1:
            text_drawing.draw_text(page, (_MARGIN, top + self._height // 2), str(panel), TEXT_SIZE, anchor="lm")
        if self._count == 1 or self._height >= _MIN_HEIGHT_WITH_VALUES:
            for value, anchor, shift in ((channel.max(), "ra", -7), (channel.min(), "rd", 7)):
                y = top + round(float(self._to_y(channel, np.array([value]))[0])) + shift
                text_drawing.draw_text(page, (_LEFT - 12, y), f"{value:.3g}", SMALL_TEXT_SIZE, MUTED, anchor=anchor)

    def _write_ticks(self, page: Image.Image) -> None:
        from PIL import ImageDraw

        bottom, pen = self._band_top + _BAND_HEIGHT, ImageDraw.Draw(page)
        for tick in range(0, self._length, choose_tick_step(self._length / 8)):
            x = _LEFT + (tick + 0.5) / self._length * self.columns
            pen.line((x, bottom + 3, x, bottom + 8), fill=MUTED)
            text_drawing.draw_text(page, (x, bottom + 12), str(tick), SMALL_TEXT_SIZE, MUTED, anchor="ma")

    def _write_titles(self, page: Image.Image) -> None:
        """Write the titles of the axes and of the colors."""
        middle, right = self._title_top + TEXT_SIZE // 2, _LEFT + self.columns
        titles = [(_LEFT + self.columns // 2, middle, "position (time step)", "mm")]
        if self._hidden:
            titles.append((_LEFT, middle, f"and {self._hidden} more channels", "lm"))
        if self._has_band:
            titles.append((_LEFT - 12, self._band_top + _BAND_HEIGHT // 2, "heat", "rm"))
            titles.append((right, middle, "high", "rm"))
            titles.append((right - _KEY_LABEL_WIDTH - _KEY_WIDTH - 8, middle, "low", "rm"))
        for x, y, title, anchor in titles:
            text_drawing.draw_text(page, (x, y), title, SMALL_TEXT_SIZE, MUTED, anchor=anchor)
        center = (_MARGIN + self._band_top - _GAP) // 2
        text_drawing.draw_vertical_text(page, (1, center), self._choose_value_title(), SMALL_TEXT_SIZE, MUTED)

    def _choose_value_title(self) -> str:
        if self._count == 1:
            return "value"
        return "channel, value" if self._height >= _MIN_HEIGHT_WITH_VALUES else "channel"


def choose_tick_step(spacing: float) -> int:
    """Return 1, 2 or 5 times a power of ten: the smallest of them that is at least a spacing."""
    least = max(1.0, spacing)
    unit = 10 ** math.floor(math.log10(least))
    return int(next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least))


def _thin_out(values: Heat, columns: int) -> tuple[Heat, Heat]:
    """Return the points ``(x, value)`` of a line; of very many values, the lowest and highest of each half column."""
    x = (np.arange(len(values)) + 0.5) / len(values) * columns - 0.5
    if len(values) <= _MAX_VALUES_PER_COLUMN * columns:
        return x, values
    parts = np.array_split(np.arange(len(values)), 2 * columns)
    kept = [sorted({int(part[values[part].argmin()]), int(part[values[part].argmax()])}) for part in parts]
    chosen = np.concatenate([np.array(indices) for indices in kept])
    return x[chosen], values[chosen]


def _resample(heatmap: Heat, columns: int) -> Heat:
    """Return a heatmap ``(L,)`` with one value per column: interpolated, or the hottest of several values."""
    if len(heatmap) <= columns:
        x = (np.arange(columns) + 0.5) / columns * len(heatmap) - 0.5
        return np.interp(x, np.arange(len(heatmap)), heatmap)
    # The maximum, not the mean: a short peak must stay visible.
    return np.maximum.reduceat(heatmap, np.arange(columns) * len(heatmap) // columns)
