"""Drawing with matplotlib. This is the only module that imports it, and it is imported with the first figure.

It uses neither pyplot nor styles. Every size and color is given where it is used, so figures look the same with any
user settings, except for the font, which the user chooses. Lengths are in inches, from the top left.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Figure  # other modules import it from here
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from numpy.typing import NDArray

from camtool.figures.paper_style import format_number

# Left, top, width and height in inches, from the figure's top left.
Box = tuple[float, float, float, float]

# Lowest and highest value of a scale.
Limits = tuple[float, float]

# Text before a bar, at its lower end and at its upper end.
Ends = tuple[str, str, str]

# Colors of main text and of secondary text.
INK, MUTED = "#1c1e22", "#70747c"

_PALE, _BLUE = "#d6d8dc", "#2b5c8a"
_THIN_LINE = 0.5  # points
_TITLE_PADDING = 3  # points between an image and the title above it
_PLOT_PADDING = 0.06  # part of a plot's range that is left free above and below
_SCREEN_DPI = 150

# User settings may change these, so they are always given.
_LINE_STYLE: dict[str, Any] = {"linestyle": "-", "marker": ""}

# Class and layer names may contain $ and _, which matplotlib would read as formulas.
_TEXT_STYLE: dict[str, Any] = {"parse_math": False, "usetex": False, "fontweight": "normal"}

_SETTINGS: Any = {
    # TrueType fonts: journals reject the default, Type 3.
    "pdf.fonttype": 42,
    "pdf.compression": 6,
    "pdf.use14corefonts": False,
    "svg.fonttype": "none",
    # A fixed salt, so that the same figure gives the same bytes.
    "svg.hashsalt": "camtool",
    "svg.id": None,
    "savefig.bbox": None,
    # With hinting, letters would be wider at some resolutions than measured.
    "text.hinting": "none",
    # Each image stays an object that can be moved in an editor.
    "image.composite_image": False,
}

# Without dates and versions, the same figure gives the same bytes.
_METADATA = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
# matplotlib reads these settings only from its global ones. Two threads that write at once would restore each other's.
_WRITE_LOCK = threading.RLock()


@dataclass(frozen=True)
class TileNumbers:
    """Numbers along an axis.

    Attributes:
        name: Name of the axis.
        numbers: The numbers.
        places: Position of each number, in the data coordinates of the axis.
    """

    name: str
    numbers: Sequence[int]
    places: Sequence[float]


class PaperFigure(Figure):
    """matplotlib figure that notebooks show even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        write_file(self, stream, "png", dpi=self.get_dpi())
        return stream.getvalue()


def create_figure(width: float, height: float) -> PaperFigure:
    """Return an empty white figure of this size."""
    figure = PaperFigure(figsize=(width, height), dpi=_SCREEN_DPI, facecolor="white", edgecolor="white")
    figure.set_layout_engine("none")
    return figure


def add_axes(figure: Figure, box: Box) -> Axes:
    """Return axes in a box of the figure, without ticks and lines."""
    left, top, wide, high = box
    across, down = figure.get_size_inches()
    axes = figure.add_axes((left / across, 1 - (top + high) / down, wide / across, high / down), facecolor="white")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def add_image_axes(figure: Figure, box: Box) -> Axes:
    """Return axes for many images, each in its own box: positions are inches from the axes' top left.

    Axes cost much more time than images, so a grid of images shares one of them.
    """
    axes = add_axes(figure, box)
    axes.set_xlim(0, box[2])
    axes.set_ylim(box[3], 0)
    return axes


def draw_image(axes: Axes, pixels: NDArray[np.uint8]) -> None:
    """Draw an image ``(H, W, 3)`` uint8 that fills the axes."""
    axes.imshow(pixels, origin="upper", aspect="equal", interpolation="antialiased")


def draw_plane(axes: Axes, values: NDArray[Any], limits: Limits, colormap: str, box: Box | None = None) -> None:
    """Draw values ``(h, w)`` in colors, or colors ``(h, w, 3)`` uint8, each as a rectangle.

    They fill the axes, or a box of axes from :func:`add_image_axes`. NaN and infinite values stay white.
    """
    extent = None if box is None else (box[0], box[0] + box[2], box[1] + box[3], box[1])
    style: dict[str, Any] = {"origin": "upper", "interpolation": "nearest", "aspect": "auto", "extent": extent}
    axes.imshow(np.ma.masked_invalid(values), colormap, vmin=limits[0], vmax=limits[1], **style)


def draw_curve(axes: Axes, values: NDArray[np.floating[Any]], limits: Limits) -> None:
    """Draw values ``(L,)`` as a line, and zero as a pale line."""
    padding = _PLOT_PADDING * (limits[1] - limits[0])
    axes.axhline(0, color=_PALE, linewidth=_THIN_LINE, zorder=1, **_LINE_STYLE)
    axes.plot(values, color=_BLUE, linewidth=0.8, zorder=2, solid_joinstyle="round", **_LINE_STYLE)
    axes.set_xlim(0, max(1, len(values) - 1))
    axes.set_ylim(limits[0] - padding, limits[1] + padding)


def draw_intervals(axes: Axes, intervals: NDArray[np.floating[Any]], limits: Limits, chance: float) -> None:
    """Draw a point and an interval in each of the rows, from top to bottom, and the level of chance as a pale line.

    Args:
        axes: Empty axes.
        intervals: ``(R, 3)``: mean, low and high of each row; a row of NaN stays empty.
        limits: Lowest and highest value of the axes.
        chance: The value of chance; NaN for no line.
    """
    rows = np.arange(len(intervals))
    means, lows, highs = intervals.T
    for row in range(len(rows)):
        axes.axhline(row, color=_PALE, linewidth=0.3, zorder=1, **_LINE_STYLE)
    if np.isfinite(chance):
        axes.axvline(chance, color=MUTED, linewidth=0.8, zorder=1, linestyle=(0, (2, 2)), marker="")
    axes.hlines(rows, lows, highs, color=_BLUE, linewidth=1.2, zorder=2)
    axes.plot(means, rows, color=_BLUE, marker="o", markersize=3, linestyle="none", zorder=3)
    axes.set_xlim(*limits)
    axes.set_ylim(len(intervals) - 0.5, -0.5)


def draw_tile_borders(axes: Axes, across: int, down: int, wide: int, high: int) -> None:
    """Draw white lines between ``across`` times ``down`` tiles of ``wide`` times ``high`` values."""
    style: dict[str, Any] = {"color": "white", "linewidth": 1.5, **_LINE_STYLE}
    for tile in range(1, across):
        axes.axvline(tile * wide - 0.5, **style)
    for tile in range(1, down):
        axes.axhline(tile * high - 0.5, **style)


def write_title(axes: Axes, text: str, size: float, *, color: str = INK) -> None:
    """Write a centered title above axes."""
    axes.set_title(text, fontsize=size, color=color, pad=_TITLE_PADDING, loc="center", y=1.0, **_TEXT_STYLE)


def write_above_box(axes: Axes, box: Box, text: str, size: float, *, color: str = INK) -> None:
    """Write a centered title above a box of axes from :func:`add_image_axes`."""
    left, top, wide, _ = box
    style: dict[str, Any] = {"fontsize": size, "color": color, "ha": "center", "va": "baseline", **_TEXT_STYLE}
    axes.text(left + wide / 2, top - _TITLE_PADDING / 72, text, **style)


def write_row_label(axes: Axes, text: str, size: float, distance: float) -> None:
    """Write vertical text on the left of axes, at a distance in widths of the axes."""
    axes.set_ylabel(text, fontsize=size, color=INK, loc="center", **_TEXT_STYLE)
    axes.yaxis.set_label_coords(-distance, 0.5)


def write_line(figure: Figure, left: float, top: float, text: str, size: float, *, color: str = INK) -> None:
    """Write a line of text on the figure; ``top`` is its baseline."""
    across, down = figure.get_size_inches()
    figure.text(left / across, 1 - top / down, text, fontsize=size, color=color, va="baseline", **_TEXT_STYLE)


def number_tiles(axes: Axes, size: float, across: TileNumbers, down: TileNumbers) -> None:
    """Write numbers and names along the top and the left of axes.

    Args:
        axes: Axes of the tiles.
        size: Height of the text, in points.
        across: Numbers from left to right.
        down: Numbers from top to bottom.
    """
    axes.grid(visible=False)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(across.name, fontsize=size, color=INK, labelpad=3, loc="center", **_TEXT_STYLE)
    axes.set_ylabel(down.name, fontsize=size, color=INK, labelpad=3, loc="center", **_TEXT_STYLE)
    sides = ((axes.xaxis, across, ("center", "bottom")), (axes.yaxis, down, ("right", "center_baseline")))
    for axis, tiles, at in sides:
        labels = list(map(str, tiles.numbers))
        axis.set_ticks(tiles.places, labels, fontsize=size, color=MUTED, ha=at[0], va=at[1], **_TEXT_STYLE)
        axis.set_tick_params(length=0, pad=2)


def draw_horizontal_bar(figure: Figure, box: Box, colors: NDArray[np.uint8], labels: Ends, size: float) -> None:
    """Draw a horizontal color bar with text before it and at its ends.

    Args:
        figure: Figure to draw on.
        box: Box of the bar, without the text.
        colors: ``(K, 3)`` uint8.
        labels: Text before the bar, at its lower end and at its upper end.
        size: Height of the text, in points.
    """
    axes = _add_bar(figure, box, colors[None], (0, 1, 0, 1))
    before, low, high = labels
    near: dict[str, Any] = {"fontsize": size, "color": INK, "va": "center_baseline", "transform": axes.transAxes}
    gap = 0.06 / box[2]
    axes.text(-gap, 0.5, f"{before}  {low}", ha="right", **near, **_TEXT_STYLE)
    axes.text(1 + gap, 0.5, high, ha="left", **near, **_TEXT_STYLE)


def draw_vertical_bar(
    figure: Figure, box: Box, colormap: str, limits: Limits, size: float, ends: Sequence[str] = ()
) -> None:
    """Draw a vertical color bar with numbers, or ``ends`` instead, on its right."""
    axes = _add_bar(figure, box, np.linspace(*limits, 256)[:, None], (0, 1, *limits), colormap)
    draw_scale(axes, limits, size, ends)


def _add_bar(
    figure: Figure, box: Box, ramp: NDArray[Any], ends: tuple[float, float, float, float], colormap: str | None = None
) -> Axes:
    """Return axes filled with colors; ``ends`` are their data limits (left, right, bottom, top).

    The colors are one image. matplotlib draws a patch for each color instead, which shows thin lines in PDF files.
    """
    axes = add_axes(figure, box)
    axes.set_label("<colorbar>")
    axes.imshow(ramp, colormap, origin="lower", interpolation="nearest", aspect="auto", extent=ends)
    return axes


def draw_scale(axes: Axes, limits: Limits, size: float, ends: Sequence[str] = ()) -> None:
    """Write the limits, or ``ends`` instead, on the right of axes, and zero if it fits between them."""
    low, high = limits
    line = 1.3 * size / axes.bbox.height * axes.get_figure().dpi / 72  # type: ignore[union-attr]
    numbers, shown = [low, high], list(ends) or [format_number(low), format_number(high)]
    # Zero needs one and a half lines of distance from both ends.
    if 1.5 * line < -low / (high - low) < 1 - 1.5 * line:
        numbers.insert(1, 0.0)
        shown.insert(1, "0")
    axes.grid(visible=False)
    axes.yaxis.tick_right()
    axes.set_yticks(numbers, shown, fontsize=size, color=INK, ha="left", va="center_baseline", **_TEXT_STYLE)
    axes.tick_params("y", length=0, pad=3)
    labels = axes.get_yticklabels()
    labels[0].set_verticalalignment("bottom")
    labels[-1].set_verticalalignment("top")


def measure_text(text: str, size: float) -> float:
    """Return the width of a line of text in the user's font, in inches."""
    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]
    return width / 72


def write_file(figure: Figure, stream: BinaryIO, kind: str, *, dpi: float) -> None:
    """Write a figure as ``"pdf"``, ``"svg"`` or ``"png"``. The same figure gives the same bytes."""
    with _WRITE_LOCK, rc_context(_SETTINGS):
        figure.savefig(stream, format=kind, dpi=dpi, metadata=_METADATA[kind], facecolor="white", edgecolor="white")
