"""Draw pixels: color maps, overlays, regions, views of inputs, text and contact sheets."""

from __future__ import annotations

from camtool.rendering.colormaps import COLORMAPS as COLORMAPS
from camtool.rendering.colormaps import DEFAULT_COLORMAP as DEFAULT_COLORMAP
from camtool.rendering.colormaps import Colormap as Colormap
from camtool.rendering.overlay import blend as blend
from camtool.rendering.overlay import colorize as colorize
from camtool.rendering.overlay import multiply as multiply
from camtool.rendering.regions import draw_boxes as draw_boxes
from camtool.rendering.regions import draw_contours as draw_contours
from camtool.rendering.regions import find_boxes as find_boxes
from camtool.rendering.regions import find_contours as find_contours
