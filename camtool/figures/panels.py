"""Panels: the channels or the filters of a layer, small and many, on one scale, below the layer's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool.figures.paper import HEADING, LINE, TEXT, balanced, canvas, check_columns, fitted
from camtool.figures.signs import MINUS, short

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import Box, Limits, PaperFigure

__all__ = [
    "BAR_GAP",
    "BAR_WIDE",
    "DIVERGING",
    "EDGE",
    "Panel",
    "around_zero",
    "head",
    "head_high",
    "limits_of",
    "page",
    "room_for_scale",
]

DIVERGING = "RdBu_r"
"""The color map of values of both signs: red is positive, white is zero, blue is negative."""


EDGE = 0.03
"""Above and below all, in inches."""

BAR_GAP, BAR_WIDE = 0.08, 0.08
_HEAD, _RISE, _BEHIND = 0.19, 0.11, 0.12  # a panel's name: with what is below it, where its letters stand, and after it
_GAP, _GAP_OF_LINES = 0.05, 0.15  # between the small pictures: lines have no edge where they end
_BETWEEN = 0.2  # between panels
_TALLEST_BAR, _LOWEST_BAR = 1.6, 2.1 * LINE
_LINE_SLOPE = 0.4  # how high the plot of a line is, in its widths
_STEEPEST, _FLATTEST = 1.5, 0.25  # how high a plane may be drawn, in its widths
_LEAST, _WIDE = ((16, 0.72), (64, 0.5)), 6.25  # up to so many planes, alone on a page so wide, are at least so wide
_LEAST_OF_MANY = 0.3
_MOST = 2.0  # and however few they are, at most so wide
_LEAST_LINE = 1.2
_LINES_OF_WORDS = 3


@dataclass(frozen=True, eq=False)
class Panel:
    """Some of a layer's channels or filters.

    Attributes:
        name: The layer's.
        words: What else there is to say of it: its shape.
        values: ``(n, h, w)`` or ``(n, L)`` numbers, or ``(n, h, w, 3)`` uint8, which needs no scale.
        numbers: Which channels these are.
        colormap: A name that matplotlib knows.
        limits: The lowest and the highest number of the scale.
        ends: What stands at the ends of the scale in place of these numbers, where each plane has a scale of its own.
    """

    name: str
    words: str
    values: NDArray[Any]
    numbers: Sequence[int]
    colormap: str
    limits: Limits
    ends: tuple[str, ...] = ()

    @property
    def is_lines(self) -> bool:
        """Whether these are signals."""
        return self.values.ndim == 2

    @property
    def is_colors(self) -> bool:
        """Whether these are pictures."""
        return self.values.ndim == 4

    @property
    def slope(self) -> float:
        """How high each is drawn, in its widths."""
        if self.is_lines:
            return _LINE_SLOPE
        high, wide = self.values.shape[1:3]
        return float(min(max(high / wide, _FLATTEST), _STEEPEST))

    @property
    def gap(self) -> float:
        """How far apart they stand in a row."""
        return _GAP_OF_LINES if self.is_lines else _GAP


def limits_of(values: NDArray[Any]) -> Limits:
    """The lowest and the highest of the numbers that are finite; some room where they are all the same."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def around_zero(values: NDArray[Any], scale: str) -> tuple[NDArray[Any], float, tuple[str, ...]]:
    """Put values of both signs on a scale that is symmetric around zero.

    Args:
        values: ``(n, ...)``, of n channels or filters.
        scale: ``"shared"`` by all; or ``"each"`` in units of its own largest finite magnitude.

    Returns:
        The values on this scale, the number at its upper end, and what stands at its ends in place of numbers.
    """
    size = np.where(np.isfinite(values), np.abs(values), np.float32(0))
    if scale == "shared":
        return values, float(size.max()) or 1.0, ()
    reach = size.max(tuple(range(1, values.ndim)), keepdims=True)
    return values / np.where(reach > 0, reach, np.float32(1)), 1.0, (f"{MINUS}max", "max")


def page(panels: Sequence[Panel], width: float, columns: int | None = None) -> PaperFigure:
    """Set panels below one another.

    Args:
        panels: Not empty.
        width: In inches.
        columns: How many small pictures stand in a row; by default as many as can be well seen.

    Raises:
        CamtoolError: So many do not find room side by side.
    """
    inner = width - max(0.0 if panel.is_colors else room_for_scale(panel.limits, panel.ends) for panel in panels)
    across = _in_columns(panels, inner) if columns is None else [columns] * len(panels)
    grids = [_Grid.of(panel, inner, n) for panel, n in zip(panels, across, strict=True)]
    heads = [head_high(panel.name, panel.words, width) for panel in panels]
    heights = [above + grid.height for grid, above in zip(grids, heads, strict=True)]
    figure: PaperFigure = canvas().blank(width, sum(heights) + _BETWEEN * (len(panels) - 1) + 2 * EDGE)
    top, right = EDGE, max(grid.width for grid in grids)
    for panel, grid, above, high in zip(panels, grids, heads, heights, strict=True):
        head(figure, panel.name, panel.words, top)
        grid.draw(figure, top + above, right)
        top += high + _BETWEEN
    return figure


def head_high(name: str, words: str, width: float) -> float:
    """How much room a panel's name and words take, with what is between them and what stands below."""
    return _HEAD if _in_one_line(name, words, width) else _HEAD + LINE * len(_below(words, width))


def head(figure: PaperFigure, name: str, words: str, top: float) -> None:
    """A name, and words that stand back, behind it or, where there is no room, below it."""
    width, quiet = float(figure.get_size_inches()[0]), canvas().QUIET
    canvas().write_at(figure, 0, top + _RISE, fitted(name, width, size=HEADING), HEADING)
    if _in_one_line(name, words, width):
        behind = canvas().text_width(name, HEADING) + _BEHIND
        canvas().write_at(figure, behind, top + _RISE, words, TEXT, color=quiet)
    else:
        for number, line in enumerate(_below(words, width), 1):
            canvas().write_at(figure, 0, top + _RISE + LINE * number, line, TEXT, color=quiet)


def _in_one_line(name: str, words: str, width: float) -> bool:
    return bool(canvas().text_width(name, HEADING) + _BEHIND + canvas().text_width(words, TEXT) <= width)


def _below(words: str, width: float) -> list[str]:
    return fitted(words, width, _LINES_OF_WORDS).split("\n")


def room_for_scale(limits: Limits, ends: Sequence[str] = ()) -> float:
    """How much room a standing bar and the numbers, or words, beside it take, in inches."""
    shown = ends or [short(limit) for limit in limits]
    return BAR_GAP + BAR_WIDE + 0.06 + max(float(canvas().text_width(end, TEXT)) for end in shown)


def _in_columns(panels: Sequence[Panel], width: float) -> list[int]:
    """In how many columns each panel stands; those of one kind are in line with each other."""
    own = [(panel.is_lines, _columns(panel, width, alone=len(panels) == 1)) for panel in panels]
    return [max(columns for kind, columns in own if kind == panel.is_lines) for panel in panels]


def _columns(panel: Panel, width: float, *, alone: bool) -> int:
    count = len(panel.values)
    fine = next((inches for most, inches in _LEAST if alone and count <= most), _LEAST_OF_MANY)
    least = _LEAST_LINE if panel.is_lines else max(_LEAST_OF_MANY, fine * width / _WIDE)
    return balanced(count, max(1, int((width + panel.gap) / (least + panel.gap))))


@dataclass(frozen=True)
class _Grid:
    """A panel's small pictures in their places: how many stand in a row, and how wide and how high each is."""

    panel: Panel
    columns: int
    wide: float
    high: float

    @classmethod
    def of(cls, panel: Panel, room: float, columns: int) -> _Grid:
        """Share so much room.

        Raises:
            CamtoolError: There is less of it than the numbers above the pictures need.
        """
        least = canvas().text_width(str(max(panel.numbers)), TEXT)
        check_columns(columns, max(1, int((room + panel.gap) / (least + panel.gap))))
        wide = (room - panel.gap * (columns - 1)) / columns
        wide = wide if panel.is_lines else min(wide, _MOST)
        return cls(panel, columns, wide, wide * panel.slope)

    @property
    def width(self) -> float:
        """How wide they are together."""
        return self.columns * (self.wide + self.panel.gap) - self.panel.gap

    @property
    def height(self) -> float:
        """How high they are together, or the scale beside them where that is higher."""
        rows = -(-len(self.panel.values) // self.columns)
        high = rows * (LINE + self.high) + (rows - 1) * _GAP
        return high if self.panel.is_lines or self.panel.is_colors else max(high, LINE + _LOWEST_BAR)

    def draw(self, figure: PaperFigure, top: float, right: float) -> None:
        """Draw them here, and the scale on their right, from ``right`` on."""
        if self.panel.is_lines:
            self._draw_lines(figure, top)
            return
        self._draw_planes(figure, top)
        if not self.panel.is_colors:
            bar = (right + BAR_GAP, top + LINE, BAR_WIDE, min(self.height - LINE, _TALLEST_BAR))
            canvas().standing_bar(figure, bar, self.panel.colormap, self.panel.limits, TEXT, self.panel.ends)

    def _draw_lines(self, figure: PaperFigure, top: float) -> None:
        for place, (values, number) in enumerate(zip(self.panel.values, self.panel.numbers, strict=True)):
            left, below, wide, high = self._box(place)
            axes = canvas().frame(figure, (left, top + below, wide, high))
            canvas().curve(axes, values, self.panel.limits)
            canvas().write(axes, str(number), TEXT, color=canvas().QUIET)
            if place == min(self.columns, len(self.panel.values)) - 1:
                canvas().scale(axes, self.panel.limits, TEXT, self.panel.ends)

    def _draw_planes(self, figure: PaperFigure, top: float) -> None:
        sheet = canvas().sheet(figure, (0, top, self.width, self.height))
        for place, (values, number) in enumerate(zip(self.panel.values, self.panel.numbers, strict=True)):
            box = self._box(place)
            canvas().plane(sheet, values, self.panel.limits, self.panel.colormap, box)
            canvas().write_above(sheet, box, str(number), TEXT, color=canvas().QUIET)

    def _box(self, place: int) -> Box:
        """Where a picture stands, from the top left of all of them."""
        row, column = divmod(place, self.columns)
        return column * (self.wide + self.panel.gap), LINE + row * (LINE + self.high + _GAP), self.wide, self.high
