"""Draw pixels: color maps, overlays, regions, views of inputs, text and contact sheets."""

from __future__ import annotations

from camtool.rendering.colormaps import COLORMAPS, DEFAULT_COLORMAP, Colormap
from camtool.rendering.overlay import blend, colorize, multiply
from camtool.rendering.regions import draw_boxes, draw_contours, find_boxes, find_contours

__all__ = [
    "COLORMAPS",
    "DEFAULT_COLORMAP",
    "Colormap",
    "blend",
    "colorize",
    "draw_boxes",
    "draw_contours",
    "find_boxes",
    "find_contours",
    "multiply",
]
