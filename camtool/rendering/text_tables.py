"""Text tables that fit the width of a terminal without breaking a word."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TypeAlias

# Line of text and its style: ``"bold"``, ``"dim"``, ``""``, ...
StyledLine: TypeAlias = tuple[str, str]

# Space between two columns.
_GAP = "  "

# Minimum width of a wrapped column, in characters. Lines exceed the width of the terminal rather than this one.
_MIN_WIDTH = 16


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line for each row, with aligned columns, without a limit to the width.

    Args:
        rows: Cells of each row. All rows have the same number of cells.
    """
    widths = _measure_columns(rows)
    return [_GAP.join(map(str.ljust, row, widths)).rstrip() for row in rows]


def fit_columns(rows: Sequence[Sequence[str]], width: int, *, keep: int, wrapped: int) -> list[list[str]]:
    """Return the lines of each row, with aligned columns, within a given width.

    Args:
        rows: Cells of each row. All rows have the same number of cells. The least important columns come last.
        width: Maximum number of characters on a line.
        keep: Number of columns that are always shown. Later columns are shown if the lines stay within the width.
        wrapped: Position of the column that is wrapped between words if the lines are still too wide.
    """
    widths = _measure_columns(rows)
    shown = len(widths)
    while shown > keep and _sum_up(widths[:shown]) > width:
        shown -= 1
    spare = width - (_sum_up(widths[:shown]) - widths[wrapped])
    parts = [_wrap_cell(row[:shown], wrapped, max(spare, _MIN_WIDTH)) for row in rows]
    lines = iter(align_columns([part for row in parts for part in row]))
    return [[next(lines) for _ in row] for row in parts]


def wrap_paragraph(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text in lines of limited width, wrapped between words; ``width=None`` gives a single line.

    Args:
        text: The text. Its own line breaks are ignored.
        width: Maximum number of characters on a line.
        indent: Text in front of each line except the first.
    """
    words = " ".join(text.split())
    if width is None:
        return [words]
    return wrap(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _wrap_cell(row: Sequence[str], at: int, width: int) -> list[list[str]]:
    """Return a row as several rows: the first has all cells, the others have the rest of the wrapped cell."""
    first, *others = wrap_paragraph(row[at], width) or [""]
    before, behind = [""] * at, [""] * (len(row) - at - 1)
    return [[*row[:at], first, *row[at + 1 :]], *([*before, other, *behind] for other in others)]


def _measure_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _sum_up(widths: Sequence[int]) -> int:
    """Return the width of a line with columns of these widths."""
    return sum(widths) + len(_GAP) * (len(widths) - 1)
