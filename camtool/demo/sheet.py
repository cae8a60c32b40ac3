"""Pages of pictures with captions: what a person opens first, after the demo has run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

__all__ = ["GOOD", "INK", "POOR", "QUIET", "Block", "Cell", "Color", "sheet"]

Pixels: TypeAlias = NDArray[np.uint8]
Color: TypeAlias = tuple[int, int, int]

INK, QUIET, GOOD, POOR = (28, 30, 34), (112, 116, 124), (22, 128, 84), (200, 44, 44)
"""Colours of words: plain ones, those that stand back, and those that say that something is right or wrong."""

_PAPER, _RULE = (255, 255, 255), (206, 209, 214)
_TITLE, _TEXT, _CAPTION = 38, 21, 18  # heights of letters, in pixels
_MARGIN, _GAP = 48, 16
_ABOVE, _BELOW = 48, 54  # room for what stands above and below the pictures


@dataclass(frozen=True, eq=False)
class Cell:
    """A picture and what stands below it.

    Attributes:
        picture: (S, S, 3) uint8; of one size throughout a page.
        caption: Below it, on the left.
        note: Below it, on the right.
        color: The note's.
    """

    picture: Pixels
    caption: str
    note: str = ""
    color: Color = QUIET


@dataclass(frozen=True, eq=False)
class Block:
    """Pictures that belong together, side by side under a heading."""

    heading: str
    cells: Sequence[Cell]


def sheet(title: str, words: str, blocks: Sequence[Block], *, columns: int) -> Pixels:
    """Set a page.

    Args:
        title: Above all.
        words: A few sentences below the title.
        blocks: Each stays on one row; a row takes as many as it has room for.
        columns: How many pictures there are in a row, at most.

    Returns:
        (H, W, 3) uint8.
    """
    side = len(blocks[0].cells[0].picture)
    across = columns * (side + _GAP) - _GAP
    lines, rows = _lines(words, across), _rows(blocks, columns)
    top = _MARGIN + _TITLE + 20 + len(lines) * (_TEXT + 10) + 24
    step = _ABOVE + side + _BELOW
    page = Image.new("RGB", (across + 2 * _MARGIN, top + len(rows) * step + _MARGIN // 2), _PAPER)
    _write(page, _MARGIN, _MARGIN, title, _TITLE)
    for i, line in enumerate(lines):
        _write(page, _MARGIN, _MARGIN + _TITLE + 20 + i * (_TEXT + 10), line, _TEXT, QUIET)
    for i, row in enumerate(rows):
        left = _MARGIN
        for block in row:
            _draw(page, block, left, top + i * step)
            left += len(block.cells) * (side + _GAP)
    return np.asarray(page)


def _lines(words: str, width: int) -> list[str]:
    """Words broken into lines that are no wider than this."""
    font = ImageFont.load_default(_TEXT)
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _rows(blocks: Iterable[Block], columns: int) -> list[list[Block]]:
    """Each block in the first row that has room for it."""
    rows: list[list[Block]] = []
    for block in blocks:
        for row in rows:
            if sum(len(each.cells) for each in row) + len(block.cells) <= columns:
                row.append(block)
                break
        else:
            rows.append([block])
    return rows


def _draw(page: Image.Image, block: Block, left: int, top: int) -> None:
    side = len(block.cells[0].picture)
    right = left + len(block.cells) * (side + _GAP) - _GAP
    ImageDraw.Draw(page).line((left, top, right - 1, top), fill=_RULE, width=1)
    _write(page, left, top + 13, block.heading, _TEXT)
    for i, cell in enumerate(block.cells):
        x, below = left + i * (side + _GAP), top + _ABOVE + side + 10
        page.paste(Image.fromarray(cell.picture), (x, top + _ABOVE))
        _write(page, x, below, cell.caption, _CAPTION, QUIET)
        _write(page, x + side, below, cell.note, _CAPTION, cell.color, anchor="ra")


def _write(
    page: Image.Image, x: int, y: int, words: str, height: int, color: Color = INK, *, anchor: str = "la"
) -> None:
    ImageDraw.Draw(page).text((x, y), words, fill=color, font=ImageFont.load_default(height), anchor=anchor)
