"""Text tables that fit the width of a terminal without breaking a word."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TypeAlias

__all__ = ["Styled", "align", "fit", "paragraph"]

Styled: TypeAlias = tuple[str, str]
"""A line of text and its style: ``"bold"``, ``"dim"``, ``""``, ..."""

_GAP = "  "
"""The space between two columns."""

_LEAST = 16
"""The least width of a wrapped column, in characters. Lines exceed the asked width rather than go below it."""


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line for each row, with the cells of a column below each other, as wide as that gets.

    Args:
        rows: The cells of each row; all rows have the same number of cells.
    """
    widths = _widths(rows)
    return [_GAP.join(map(str.ljust, row, widths)).rstrip() for row in rows]


def fit(rows: Sequence[Sequence[str]], width: int, *, keep: int, wrapped: int) -> list[list[str]]:
    """Return the lines of each row, with the cells of a column below each other, at a given width.

    Args:
        rows: The cells of each row; all rows have the same number of cells. The least important columns stand last.
        width: The most characters on a line.
        keep: How many of the first columns are always shown. Columns behind them are shown if the lines stay
            within the width.
        wrapped: The position of the column that is wrapped between words if the lines are still too wide.
    """
    widths = _widths(rows)
    shown = len(widths)
    while shown > keep and _sum_up(widths[:shown]) > width:
        shown -= 1
    spare = width - (_sum_up(widths[:shown]) - widths[wrapped])
    parts = [_wrap_cell(row[:shown], wrapped, max(spare, _LEAST)) for row in rows]
    lines = iter(align([part for row in parts for part in row]))
    return [[next(lines) for _ in row] for row in parts]


def paragraph(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text as lines of at most a width, wrapped between words; ``width=None`` gives a single line.

    Args:
        text: The text; its own line breaks do not matter.
        width: The most characters on a line.
        indent: What stands in front of each line but the first.
    """
    words = " ".join(text.split())
    if width is None:
        return [words]
    return wrap(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _wrap_cell(row: Sequence[str], at: int, width: int) -> list[list[str]]:
    """Return a row as several: the first has all cells, the next ones have only the rest of the wrapped cell."""
    first, *others = paragraph(row[at], width) or [""]
    before, behind = [""] * at, [""] * (len(row) - at - 1)
    return [[*row[:at], first, *row[at + 1 :]], *([*before, other, *behind] for other in others)]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _sum_up(widths: Sequence[int]) -> int:
    """Return the width of a line with columns of these widths."""
    return sum(widths) + len(_GAP) * (len(widths) - 1)
