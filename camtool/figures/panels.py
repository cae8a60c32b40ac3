"""Panels: the channels or the filters of a layer, small and many, on one scale, below the layer's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool.figures.paper import HEADING, LINE, TEXT, balanced, canvas, fitted
from camtool.figures.signs import short

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import Limits, PaperFigure

__all__ = ["BAR_GAP", "BAR_WIDE", "EDGE", "Panel", "head", "head_high", "limits_of", "page", "room_for_scale"]

EDGE = 0.03
"""Above and below all, in inches."""

BAR_GAP, BAR_WIDE = 0.08, 0.08
_HEAD, _RISE, _BEHIND = 0.19, 0.11, 0.12  # a panel's name: with what is below it, where its letters stand, and after it
_GAP = 0.05  # between the small pictures
_BETWEEN = 0.2  # between panels
_TALLEST_BAR, _LOWEST_BAR = 1.6, 2.1 * LINE
_LINE_SLOPE = 0.4  # how high the plot of a line is, in its widths
_STEEPEST, _FLATTEST = 1.5, 0.25  # how high a plane may be drawn, in its widths
_LEAST, _WIDE = ((16, 0.72), (64, 0.5)), 6.25  # up to so many planes, alone on a page so wide, are at least so wide
_LEAST_OF_MANY = 0.3
_LEAST_LINE = 1.2


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


def limits_of(values: NDArray[Any]) -> Limits:
    """The lowest and the highest of the numbers that are finite; some room where they are all the same."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def page(panels: Sequence[Panel], width: float, columns: int | None = None) -> PaperFigure:
    """Set panels below one another.

    Args:
        panels: Not empty.
        width: In inches.
        columns: How many small pictures stand in a row; by default as many as can be well seen.
    """
    room = max(0.0 if panel.is_colors else room_for_scale(panel.limits, panel.ends) for panel in panels)
    across = _in_columns(panels, width - room) if columns is None else [columns] * len(panels)
    heads = [head_high(panel.name, panel.words, width) for panel in panels]
    heights = [above + _height(panel, width - room, n) for panel, n, above in zip(panels, across, heads, strict=True)]
    figure: PaperFigure = canvas().blank(width, sum(heights) + _BETWEEN * (len(panels) - 1) + 2 * EDGE)
    top = EDGE
    for panel, n, above, high in zip(panels, across, heads, heights, strict=True):
        head(figure, panel.name, panel.words, top)
        _draw(figure, panel, n, top + above, width - room)
        top += high + _BETWEEN
    return figure


def head_high(name: str, words: str, width: float) -> float:
    """How much room a panel's name and words take, with what is between them and what stands below."""
    return _HEAD if _in_one_line(name, words, width) else _HEAD + LINE


def head(figure: PaperFigure, name: str, words: str, top: float) -> None:
    """A name, and words that stand back, behind it or, where there is no room, below it."""
    width, quiet = float(figure.get_size_inches()[0]), canvas().QUIET
    canvas().write_at(figure, 0, top + _RISE, fitted(name, width, size=HEADING), HEADING)
    if _in_one_line(name, words, width):
        behind = canvas().text_width(name, HEADING) + _BEHIND
        canvas().write_at(figure, behind, top + _RISE, words, TEXT, color=quiet)
    else:
        canvas().write_at(figure, 0, top + _RISE + LINE, fitted(words, width), TEXT, color=quiet)


def _in_one_line(name: str, words: str, width: float) -> bool:
    return bool(canvas().text_width(name, HEADING) + _BEHIND + canvas().text_width(words, TEXT) <= width)


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
    return balanced(count, max(1, int((width + _GAP) / (least + _GAP))))


def _cell(panel: Panel, width: float, columns: int) -> tuple[float, float]:
    """How wide and how high each small picture is."""
    wide = (width - _GAP * (columns - 1)) / columns
    return wide, wide * panel.slope


def _height(panel: Panel, width: float, columns: int) -> float:
    """How high the small pictures are together, or the scale beside them where that is higher."""
    rows = -(-len(panel.values) // columns)
    high = rows * (LINE + _cell(panel, width, columns)[1]) + (rows - 1) * _GAP
    return high if panel.is_lines or panel.is_colors else max(high, LINE + _LOWEST_BAR)


def _draw(figure: PaperFigure, panel: Panel, columns: int, top: float, width: float) -> None:
    wide, high = _cell(panel, width, columns)
    for i, (values, number) in enumerate(zip(panel.values, panel.numbers, strict=True)):
        row, column = divmod(i, columns)
        box = (column * (wide + _GAP), top + LINE + row * (LINE + high + _GAP), wide, high)
        axes = canvas().frame(figure, box)
        _show(axes, panel, values)
        canvas().write(axes, str(number), TEXT, color=canvas().QUIET)
        if panel.is_lines and column == min(columns, len(panel.values)) - 1 and row == 0:
            canvas().scale(axes, panel.limits, TEXT, panel.ends)
    if not panel.is_lines and not panel.is_colors:
        tall = min(_height(panel, width, columns) - LINE, _TALLEST_BAR)
        bar = (width + BAR_GAP, top + LINE, BAR_WIDE, tall)
        canvas().standing_bar(figure, bar, panel.colormap, panel.limits, TEXT, panel.ends)


def _show(axes: Any, panel: Panel, values: NDArray[Any]) -> None:
    if panel.is_lines:
        canvas().curve(axes, values, panel.limits)
    elif panel.is_colors:
        canvas().picture(axes, values, smooth=False)
    else:
        canvas().plane(axes, values, panel.limits, panel.colormap)
