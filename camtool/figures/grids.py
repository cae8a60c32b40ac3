"""Pictures in rows and columns, with words above and beside them and one bar that tells what the colours mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from camtool.figures.paper import LINE, TEXT, canvas, fits, fitted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import PaperFigure

__all__ = ["GAP", "MARGIN", "Cell", "Key", "Row", "Words", "grid"]

GAP = 0.05
"""Between pictures, in inches."""

_EDGE = 0.02  # above all and below all
_BETWEEN_ROWS = 0.07
_ABOVE = 0.05  # between words and what they stand above or beside
_TITLE_LINES, _LABEL_LINES = 4, 3
_LONG = 0.8  # so much of a label's longest word has room beside a row, however low its pictures are
_MORE_OF_A_NAME = 2  # lines: a layer's name that is cut short may be another layer's
_TALLEST, _WIDEST = 1.4, 1.8  # height to width, width to height: a picture beyond that is smaller than the others
MARGIN = LINE * _LABEL_LINES + _ABOVE
"""The room for words on the left of rows, in inches, at most."""

_FINEST = 600  # pixels an inch: more than any printer shows
_KEY_HIGH, _KEY_WIDE, _KEY_ABOVE = 0.08, 0.9, 0.1


@dataclass(frozen=True)
class Words:
    """Words that may be shortened, and a last one, a number mostly, that stays whatever happens to them."""

    words: str
    kept: str = ""

    @property
    def line(self) -> str:
        """All in one line."""
        return f"{self.words} {self.kept}".strip()

    @property
    def longest(self) -> float:
        """How wide the longest single word is, in inches."""
        return max((float(canvas().text_width(word, TEXT)) for word in self.line.split()), default=0.0)

    def below_one_another(self, room: float, lines: int) -> str:
        """The words, in lines of no more than so many inches, and the last one below them."""
        words = fitted(self.words, room, lines - 1 if self.kept else lines)
        return f"{words}\n{self.kept}".strip()


@dataclass(frozen=True, eq=False)
class Cell:
    """A picture ``(H, W, 3)`` uint8 and the words above it."""

    pixels: NDArray[np.uint8]
    title: Words

    @property
    def slope(self) -> float:
        """How high it is, in its widths."""
        high, wide = self.pixels.shape[:2]
        return float(high / wide)


@dataclass(frozen=True)
class Row:
    """Pictures side by side, and the words that stand upright on their left."""

    cells: Sequence[Cell]
    label: Words = Words("")


@dataclass(frozen=True, eq=False)
class Key:
    """What the colours mean.

    Attributes:
        colors: ``(256, 3)`` uint8, from the lowest value to the highest.
        before: Words before the bar.
        ends: Words for its lowest and its highest value.
    """

    colors: NDArray[np.uint8]
    before: str
    ends: tuple[str, str]


@dataclass(frozen=True)
class _Slot:
    """A picture's place: from where to where across, how high the picture is, and its title, broken into lines."""

    cell: Cell
    left: float
    wide: float
    high: float
    title: str


@dataclass(frozen=True)
class _Line:
    """A row in its place."""

    slots: list[_Slot]
    label: str
    top: float
    high: float

    @property
    def below(self) -> float:
        return self.top + self.high


def grid(rows: Sequence[Row], width: float, key: Key | None = None) -> PaperFigure:
    """Set pictures in rows.

    Pictures in a row are equally high, so those of one format are in columns. No picture is cropped; one that is much
    higher or wider than the others is smaller.

    Args:
        rows: Not empty; from the top.
        width: In inches.
        key: Below all, on the right.
    """
    lines, margin = _settled(rows, width)
    below = lines[-1].below
    figure: PaperFigure = canvas().blank(width, below + (0 if key is None else _KEY_ABOVE + LINE) + _EDGE)
    for line in lines:
        for number, slot in enumerate(line.slots):
            _draw(figure, slot, line, "" if number else line.label, margin)
    if key is not None:
        _draw_key(figure, key, below + _KEY_ABOVE)
    return figure


def _settled(rows: Sequence[Row], width: float) -> tuple[list[_Line], float]:
    """The rows below one another, and how much room their labels take: no more lines than they need."""
    for lines in range(1, _LABEL_LINES + 1) if any(row.label.line for row in rows) else [0]:
        margin = LINE * lines + _ABOVE if lines else 0.0
        settled = _below_one_another(rows, width, margin, lines)
        if not any("…" in line.label for line in settled):
            break
    return settled, margin


def _below_one_another(rows: Sequence[Row], width: float, margin: float, label_lines: int) -> list[_Line]:
    columns = max(len(row.cells) for row in rows)
    column = (width - margin - GAP * (columns - 1)) / columns
    settled: list[_Line] = []
    for row in rows:
        slots = _slots(row.cells, margin, column)
        above = max((slot.title.count("\n") + 1 for slot in slots if slot.title), default=0)
        top = (settled[-1].below + _BETWEEN_ROWS if settled else _EDGE) + (above * LINE + _ABOVE if above else 0)
        high = max(max(slot.high for slot in slots), min(_LONG, row.label.longest))
        settled.append(_Line(slots, _in_lines([row.label], [high], label_lines)[0], top, high))
    return settled


def _slots(cells: Sequence[Cell], left: float, column: float) -> list[_Slot]:
    """A row's pictures side by side, all as wide together as so many columns."""
    shares = [min(max(1 / cell.slope, 1 / _TALLEST), _WIDEST) for cell in cells]
    high = min(len(cells) * column / sum(shares), _TALLEST * column)
    room = [share / sum(shares) * len(cells) * column for share in shares]
    titles = _in_lines([cell.title for cell in cells], room, _TITLE_LINES, _MORE_OF_A_NAME)
    slots = []
    for cell, wide, title in zip(cells, room, titles, strict=True):
        slots.append(_Slot(cell, left, wide, min(high, wide * cell.slope), title))
        left += wide + GAP
    return slots


def _in_lines(words: Sequence[Words], room: Sequence[float], lines: int, more: int = 0) -> list[str]:
    """Each in one line where all of them find room in one, else each in several; names may have some more."""
    if lines == 1 or all(map(fits, [each.line for each in words], room)):
        return [fitted(each.line, wide) for each, wide in zip(words, room, strict=True)]
    several = [lines + (0 if " " in each.words else more) for each in words]
    return [each.below_one_another(wide, n) for each, wide, n in zip(words, room, several, strict=True)]


def _draw(figure: PaperFigure, slot: _Slot, line: _Line, label: str, margin: float) -> None:
    across = slot.high / slot.cell.slope
    left = slot.left + (slot.wide - across) / 2
    axes = canvas().frame(figure, (left, line.top + (line.high - slot.high) / 2, across, slot.high))
    canvas().picture(axes, _no_finer_than_print(slot.cell.pixels, across))
    if slot.title:
        canvas().write(axes, slot.title, TEXT)
    if label:
        canvas().write_beside(axes, label, TEXT, (left - margin + _ABOVE) / across)


def _no_finer_than_print(pixels: NDArray[np.uint8], across: float) -> NDArray[np.uint8]:
    """A picture with no more pixels than can be seen in this width, so that files stay small."""
    enough = round(across * _FINEST)
    if pixels.shape[1] <= enough:
        return pixels
    size = enough, max(1, round(enough * pixels.shape[0] / pixels.shape[1]))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


def _draw_key(figure: PaperFigure, key: Key, top: float) -> None:
    width = figure.get_size_inches()[0]
    room = canvas().text_width(key.ends[1], TEXT) + 0.1
    box = (width - room - _KEY_WIDE, top + (LINE - _KEY_HIGH) / 2, _KEY_WIDE, _KEY_HIGH)
    canvas().lying_bar(figure, box, key.colors, (key.before, *key.ends), TEXT)
