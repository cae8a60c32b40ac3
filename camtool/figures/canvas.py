"""The one file that opens matplotlib. It is opened itself when the first figure is drawn, and never before.

Nothing here goes through pyplot or sets a style: every size and colour is given where it is used, so a figure looks the
same whatever a person's settings are, except for the typeface, which is theirs. Lengths are inches, from the top left.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure as Figure  # others take it from here
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from camtool.figures.signs import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = [
    "INK",
    "QUIET",
    "Box",
    "Ends",
    "Limits",
    "PaperFigure",
    "Tiles",
    "blank",
    "curve",
    "frame",
    "lattice",
    "lying_bar",
    "number_tiles",
    "picture",
    "plane",
    "scale",
    "sheet",
    "standing_bar",
    "text_width",
    "write",
    "write_above",
    "write_at",
    "write_beside",
    "write_file",
]

Box = tuple[float, float, float, float]
"""left, top, width, height in inches, from the figure's top left."""

Limits = tuple[float, float]
"""The lowest and the highest number of a scale."""

Ends = tuple[str, str, str]
"""What stands before a bar, at its lower end and at its upper end."""

INK, QUIET = "#1c1e22", "#70747c"
"""The colours of words: plain ones, and those that stand back."""

_PALE, _BLUE = "#d6d8dc", "#2b5c8a"
_HAIR = 0.5  # the width of the finest line, in points
_PAD = 3  # between a picture and the words above it, in points
_SCREEN_DPI = 150
_LINE: dict[str, Any] = {"linestyle": "-", "marker": ""}
_PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False, "fontweight": "normal"}  # $ and _ mean nothing
_SETTINGS: Any = {
    "pdf.fonttype": 42,
    "pdf.compression": 6,
    "pdf.use14corefonts": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "camtool",
    "svg.id": None,
    "savefig.bbox": None,
    "text.hinting": "none",  # letters as wide as they are, at any resolution: what fits here fits there
    "image.composite_image": False,  # each picture stays one that can be moved
}
_UNDATED: dict[str, dict[str, None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}
_WRITING = threading.Lock()
"""Matplotlib takes what is in ``_SETTINGS`` from its global settings alone, and two threads that write at once would
each restore the other's."""


@dataclass(frozen=True)
class Tiles:
    """What tiles in a row are: a name for them, their numbers, and where along an axis each number goes."""

    name: str
    numbers: Sequence[int]
    places: Sequence[float]


class PaperFigure(Figure):
    """A matplotlib figure that notebooks show, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        write_file(self, stream, "png", dpi=self.get_dpi())
        return stream.getvalue()


def blank(wide: float, high: float) -> PaperFigure:
    """A white figure of this size."""
    figure = PaperFigure(figsize=(wide, high), dpi=_SCREEN_DPI, facecolor="white", edgecolor="white")
    figure.set_layout_engine("none")
    return figure


def frame(figure: Figure, box: Box) -> Axes:
    """Axes in this place, without ticks or lines; and so without a grid, as long as nobody sets ticks."""
    left, top, wide, high = box
    across, down = figure.get_size_inches()
    axes = figure.add_axes((left / across, 1 - (top + high) / down, wide / across, high / down), facecolor="white")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def sheet(figure: Figure, box: Box) -> Axes:
    """Axes for many pictures, each in a box of its own: places are inches from the axes' top left.

    Axes cost much more than a picture does, so a grid of pictures is one of these and not an axes each.
    """
    axes = frame(figure, box)
    axes.set_xlim(0, box[2])
    axes.set_ylim(box[3], 0)
    return axes


def picture(axes: Axes, pixels: NDArray[np.uint8]) -> None:
    """A picture ``(H, W, 3)`` uint8 that fills the axes."""
    axes.imshow(pixels, origin="upper", aspect="equal", interpolation="antialiased")


def plane(axes: Axes, values: NDArray[Any], limits: Limits, colormap: str, box: Box | None = None) -> None:
    """Numbers ``(h, w)`` in colours, or colours ``(h, w, 3)`` uint8 as they are, each a rectangle of its own.

    They fill the axes or, on a :func:`sheet`, a box. Numbers that are not finite stay white.
    """
    place = None if box is None else (box[0], box[0] + box[2], box[1] + box[3], box[1])
    style: dict[str, Any] = {"origin": "upper", "interpolation": "nearest", "aspect": "auto", "extent": place}
    axes.imshow(np.ma.masked_invalid(values), colormap, vmin=limits[0], vmax=limits[1], **style)


def curve(axes: Axes, values: NDArray[np.floating[Any]], limits: Limits) -> None:
    """Numbers ``(L,)`` as a line, and zero as a paler one; a little room is left around the limits."""
    room = 0.06 * (limits[1] - limits[0])
    axes.axhline(0, color=_PALE, linewidth=_HAIR, zorder=1, **_LINE)
    axes.plot(values, color=_BLUE, linewidth=0.8, zorder=2, solid_joinstyle="round", **_LINE)
    axes.set_xlim(0, max(1, len(values) - 1))
    axes.set_ylim(limits[0] - room, limits[1] + room)


def lattice(axes: Axes, across: int, down: int, wide: int, high: int) -> None:
    """White lines between ``across`` times ``down`` tiles of ``wide`` times ``high`` squares."""
    style: dict[str, Any] = {"color": "white", "linewidth": 1.5, **_LINE}
    for tile in range(1, across):
        axes.axvline(tile * wide - 0.5, **style)
    for tile in range(1, down):
        axes.axhline(tile * high - 0.5, **style)


def write(axes: Axes, words: str, size: float, *, color: str = INK) -> None:
    """Words above axes, in the middle."""
    axes.set_title(words, fontsize=size, color=color, pad=_PAD, loc="center", y=1.0, **_PLAIN)


def write_above(axes: Axes, box: Box, words: str, size: float, *, color: str = INK) -> None:
    """Words above a box on a :func:`sheet`, in the middle."""
    left, top, wide, _ = box
    axes.text(left + wide / 2, top - _PAD / 72, words, fontsize=size, color=color, ha="center", va="baseline", **_PLAIN)


def write_beside(axes: Axes, words: str, size: float, away: float) -> None:
    """Words that stand upright on the left of axes, so many of their widths away from them."""
    axes.set_ylabel(words, fontsize=size, color=INK, loc="center", **_PLAIN)
    axes.yaxis.set_label_coords(-away, 0.5)


def write_at(figure: Figure, left: float, top: float, words: str, size: float, *, color: str = INK) -> None:
    """A line of words that begins here; ``top`` is where the letters stand."""
    across, down = figure.get_size_inches()
    figure.text(left / across, 1 - top / down, words, fontsize=size, color=color, va="baseline", **_PLAIN)


def number_tiles(axes: Axes, size: float, across: Tiles, down: Tiles) -> None:
    """Number tiles along the top and on the left, and say what they are.

    Args:
        axes: Where.
        size: The height of the words, in points.
        across: For the tiles from left to right their name, the numbers, and where each of these goes.
        down: The same for the tiles from top to bottom.
    """
    axes.grid(visible=False)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(across.name, fontsize=size, color=INK, labelpad=3, loc="center", **_PLAIN)
    axes.set_ylabel(down.name, fontsize=size, color=INK, labelpad=3, loc="center", **_PLAIN)
    for axis, tiles, at in (
        (axes.xaxis, across, ("center", "bottom")),
        (axes.yaxis, down, ("right", "center_baseline")),
    ):
        labels = list(map(str, tiles.numbers))
        axis.set_ticks(tiles.places, labels, fontsize=size, color=QUIET, ha=at[0], va=at[1], **_PLAIN)
        axis.set_tick_params(length=0, pad=2)


def lying_bar(figure: Figure, box: Box, colors: NDArray[np.uint8], words: Ends, size: float) -> None:
    """A bar that tells what the colours mean, with words before it and at its ends.

    Args:
        figure: Where.
        box: The bar's alone.
        colors: ``(K, 3)`` uint8.
        words: What stands before all, at the lower end and at the upper end.
        size: The words' height, in points.
    """
    axes = _bar(figure, box, colors[None], (0, 1, 0, 1))
    before, low, high = words
    near: dict[str, Any] = {"fontsize": size, "color": INK, "va": "center_baseline", "transform": axes.transAxes}
    gap = 0.06 / box[2]
    axes.text(-gap, 0.5, f"{before}  {low}", ha="right", **near, **_PLAIN)
    axes.text(1 + gap, 0.5, high, ha="left", **near, **_PLAIN)


def standing_bar(
    figure: Figure, box: Box, colormap: str, limits: Limits, size: float, ends: Sequence[str] = ()
) -> None:
    """A bar that tells what the colours mean, with numbers, or words in their place, to its right."""
    axes = _bar(figure, box, np.linspace(*limits, 256)[:, None], (0, 1, *limits), colormap)
    scale(axes, limits, size, ends)


def _bar(
    figure: Figure, box: Box, ramp: NDArray[Any], ends: tuple[float, float, float, float], colormap: str | None = None
) -> Axes:
    """Axes from ``(left, right, bottom, top)`` that colours fill, under the name that matplotlib gives to such.

    One picture, and not a patch a colour as matplotlib has it: no hair lines in PDFs, and hundreds are quickly drawn.
    """
    axes = frame(figure, box)
    axes.set_label("<colorbar>")
    axes.imshow(ramp, colormap, origin="lower", interpolation="nearest", aspect="auto", extent=ends)
    return axes


def scale(axes: Axes, limits: Limits, size: float, ends: Sequence[str] = ()) -> None:
    """Write the limits, or words in their place, on the right of axes, and zero where it fits between them."""
    low, high = limits
    line = 1.3 * size / axes.bbox.height * axes.get_figure().dpi / 72  # type: ignore[union-attr]
    numbers, shown = [low, high], list(ends) or [short(low), short(high)]
    if 1.5 * line < -low / (high - low) < 1 - 1.5 * line:
        numbers.insert(1, 0.0)
        shown.insert(1, "0")
    axes.grid(visible=False)
    axes.yaxis.tick_right()
    axes.set_yticks(numbers, shown, fontsize=size, color=INK, ha="left", va="center_baseline", **_PLAIN)
    axes.tick_params("y", length=0, pad=3)
    labels = axes.get_yticklabels()
    labels[0].set_verticalalignment("bottom")
    labels[-1].set_verticalalignment("top")


def text_width(words: str, size: float) -> float:
    """How wide a line of words is in this height, in a person's own typeface, in inches."""
    width: float = text_to_path.get_text_width_height_descent(words, FontProperties(size=size), ismath=False)[0]
    return width / 72


def write_file(figure: Figure, stream: BinaryIO, kind: str, *, dpi: float) -> None:
    """Write a figure as ``pdf``, ``svg`` or ``png``; the same figure gives the same bytes."""
    with _WRITING, rc_context(_SETTINGS):
        figure.savefig(stream, format=kind, dpi=dpi, metadata=_UNDATED[kind], facecolor="white", edgecolor="white")
