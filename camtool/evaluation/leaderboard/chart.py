"""The figure of an evaluation: one panel for each metric, one row for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from camtool.figures.paper_style import HEADING_SIZE, LINE_HEIGHT, TEXT_SIZE, balance_columns, format_number
from camtool.figures.saving import load_canvas
from camtool.trust.metrics import METRICS

if TYPE_CHECKING:
    from camtool.figures.canvas import Figure

# Inches. A panel is wider than _PANEL if the name of a metric is.
_PANEL, _GAP, _EDGE, _ROW = 1.25, 0.18, 0.12, 0.17
_HEAD, _FOOT = 0.5, 0.28

_NAME_SIZE = HEADING_SIZE - 1
"""Height of the name of a metric, in points."""

_ACROSS = 6
"""Panels beside one another; more are drawn below."""

_PADDING = 0.06
"""Space on both sides of the intervals, as a share of their range."""


def draw_chart(
    names: Sequence[str], intervals: Mapping[str, NDArray[np.floating[Any]]], image_count: int, chance: int | None
) -> Figure:
    """Return the figure of an evaluation.

    Args:
        names: The names of the rows.
        intervals: Name of a metric → mean, low and high of each row, (rows, 3).
        image_count: The number of images, for the note.
        chance: The index of the row of random maps, whose mean is the chance level; None if there is none.

    Raises:
        CamtoolError: matplotlib is not installed.
    """
    canvas = load_canvas()
    margin = 2 * _EDGE + max(canvas.measure_text(name, TEXT_SIZE) for name in names)
    # All panels are equally wide, so that names of metrics do not run into one another.
    panel = max(_PANEL, *(canvas.measure_text(metric, _NAME_SIZE) for metric in intervals))
    across = balance_columns(len(intervals), _ACROSS)
    bands = -(-len(intervals) // across)
    height = _HEAD + len(names) * _ROW + _FOOT
    values = "Values of 1 image, no" if image_count == 1 else f"Mean of {image_count} images, 95 %"
    notes = (f"{values} interval.", "Dashed: random, whose weights are drawn.")
    widest_note = max(canvas.measure_text(note, TEXT_SIZE) for note in notes)
    width = max(margin + across * (panel + _GAP), widest_note + 2 * _EDGE)
    figure: Figure = canvas.create_figure(width, bands * height + len(notes) * LINE_HEIGHT + _EDGE)
    for number, metric in enumerate(intervals):
        band, column = divmod(number, across)
        top = band * height
        if not column:
            _write_names(canvas, figure, names, margin, top + _HEAD)
        box = margin + column * (panel + _GAP), top + _HEAD, panel, len(names) * _ROW
        _draw_panel(canvas, figure, box, metric, intervals[metric], chance)
    for number, note in enumerate(notes):
        bottom = bands * height + (number + 0.5) * LINE_HEIGHT
        canvas.write_line(figure, _EDGE, bottom, note, TEXT_SIZE, color=canvas.MUTED)
    return figure


def _write_names(canvas: Any, figure: Figure, names: Sequence[str], margin: float, top: float) -> None:
    for row, name in enumerate(names):
        left = margin - _EDGE - canvas.measure_text(name, TEXT_SIZE)
        canvas.write_line(figure, left, top + (row + 0.5) * _ROW + TEXT_SIZE / 72 / 3, name, TEXT_SIZE)


def _draw_panel(
    canvas: Any, figure: Figure, box: Any, metric: str, intervals: NDArray[np.floating[Any]], chance: int | None
) -> None:
    left, top, wide, high = box
    limits = _find_limits(intervals)
    axes = canvas.add_axes(figure, box)
    canvas.draw_intervals(axes, intervals, limits, np.nan if chance is None else intervals[chance, 0])
    canvas.write_line(figure, left, top - 0.24, metric, _NAME_SIZE)
    direction = "higher is better" if METRICS[metric].higher_is_better else "lower is better"
    canvas.write_line(figure, left, top - 0.1, direction, TEXT_SIZE - 1.5, color=canvas.MUTED)
    for value, share in zip(limits, (0.0, 1.0), strict=True):
        text = format_number(value)
        start = left + share * (wide - canvas.measure_text(text, TEXT_SIZE - 1))
        canvas.write_line(figure, start, top + high + 0.13, text, TEXT_SIZE - 1, color=canvas.MUTED)


def _find_limits(intervals: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Return the ends of an axis that holds all intervals, with some space on both sides."""
    known = intervals[np.isfinite(intervals)]
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    space = _PADDING * (high - low) or 0.1
    return low - space, high + space
