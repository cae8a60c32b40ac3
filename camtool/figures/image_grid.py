"""Images in rows and columns, with text above and beside them and one key to the colors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from camtool.figures.paper_style import LINE_HEIGHT, TEXT_SIZE
from camtool.figures.saving import load_canvas
from camtool.rendering.pixel_checks import Pixels

if TYPE_CHECKING:
    from camtool.figures.canvas import PaperFigure


# Factor by which the width shrinks while lines are balanced: small steps find lines of about one length.
_SHRINK = 0.95

# A line may end after a space, and inside names after a separator: "layer4.1.conv2" → "layer4.", "1.", "conv2".
_PIECE = r"[^\s._/+-]*(?:[._/+-]+|\s+|$)"


def fits_in_line(text: str, width: float, size: float = TEXT_SIZE) -> bool:
    """Check that text fits into a line of a width in inches."""
    return bool(load_canvas().measure_text(text.strip(), size) <= width)


def fit_text(text: str, width: float, lines: int = 1, size: float = TEXT_SIZE) -> str:
    """Return text broken into lines that fit; what does not fit is replaced by "…".

    Sentences lose their end. Names without spaces, such as those of layers, lose their start.

    Args:
        text: The text.
        width: Width of a line, in inches.
        lines: Largest number of lines.
        size: Height of the letters, in points.
    """
    pieces = _split_pieces(text, lambda piece: fits_in_line(piece, width, size))
    best = _fill_lines(pieces, width, lines, size)
    # Lines of about one length read better than a full line and a single word.
    while "…" not in best[-1] and len(best) > 1:
        width *= _SHRINK
        balanced = _fill_lines(pieces, width, len(best), size)
        if "…" in balanced[-1]:
            break
        best = balanced
    return "\n".join(best)


def _fill_lines(pieces: list[str], width: float, lines: int, size: float) -> list[str]:
    """Return lines, each with as many pieces as fit."""

    def fits(line: str) -> bool:
        return fits_in_line(line, width, size)

    is_name = not any(" " in piece for piece in pieces)
    filled: list[str] = []
    while len(filled) < lines - 1 and not fits("".join(pieces)):
        count = _count_fitting(pieces, fits)
        filled.append("".join(pieces[:count]).strip())
        pieces = pieces[count:]
    rest = "".join(pieces).strip()
    return [*filled, rest if fits(rest) else _shorten(rest, fits, keep_end=is_name)]


def _split_pieces(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Return the parts after which a line may end. A part that is too long for a line is split into letters."""
    pieces: list[str] = []
    for piece in re.findall(_PIECE, text):
        pieces += [piece] if fits(piece) else list(piece)
    return [piece for piece in pieces if piece]


def _count_fitting(pieces: list[str], fits: Callable[[str], bool]) -> int:
    """Return how many pieces fit into a line, at least 1."""
    count = 1
    while count < len(pieces) and fits("".join(pieces[: count + 1])):
        count += 1
    return count


def _shorten(text: str, fits: Callable[[str], bool], *, keep_end: bool) -> str:
    """Return the longest end, or beginning, of the text that fits with an ellipsis."""
    for length in range(len(text) - 1, 0, -1):
        line = f"…{text[-length:].lstrip(' .')}" if keep_end else f"{text[:length].rstrip(' ,.')}…"
        if fits(line):
            return line
    return "…"


# Distance between images, in inches.
GAP = 0.05

_EDGE = 0.02  # inches above and below everything
_ROW_GAP = 0.07  # inches between rows
_TEXT_GAP = 0.05  # inches between text and image

_MAX_TITLE_LINES, _MAX_LABEL_LINES = 4, 3

# A row of low images is at least this high, in inches, so that the longest word of its label fits beside it.
_MAX_LABEL_HEIGHT = 0.8

# Two layer names may differ only in the part that would be cut, so titles of one word get more lines.
_EXTRA_NAME_LINES = 2

# Height to width, and width to height. An image beyond these is drawn smaller than the others, and not cropped.
_MAX_HEIGHT_RATIO, _MAX_WIDTH_RATIO = 1.4, 1.8

# Largest width of the labels on the left of rows, in inches.
MARGIN = LINE_HEIGHT * _MAX_LABEL_LINES + _TEXT_GAP

# Printers show no more. More pixels would only make files large.
_MAX_DPI = 600

# Inches: size of the color key, and the distance to the images above.
_KEY_HEIGHT, _KEY_WIDTH, _KEY_GAP = 0.08, 0.9, 0.1


@dataclass(frozen=True)
class Caption:
    """Text that may be shortened, and a last part, often a number, that is always kept."""

    words: str
    kept: str = ""

    @property
    def line(self) -> str:
        """Both parts in one line."""
        return f"{self.words} {self.kept}".strip()

    def measure_longest_word(self) -> float:
        """Return the width of the longest word, in inches."""
        return max((float(load_canvas().measure_text(word, TEXT_SIZE)) for word in self.line.split()), default=0.0)

    def break_lines(self, width: float, lines: int) -> str:
        """Return the text in lines of a width in inches, with the last part on its own line."""
        text = fit_text(self.words, width, lines - 1 if self.kept else lines)
        return f"{text}\n{self.kept}".strip()


@dataclass(frozen=True, eq=False)
class GridCell:
    """Image ``(H, W, 3)`` uint8 with the title above it."""

    pixels: Pixels
    title: Caption

    @property
    def aspect(self) -> float:
        """Height divided by width."""
        height, width = self.pixels.shape[:2]
        return float(height / width)


@dataclass(frozen=True)
class GridRow:
    """Images side by side, with a vertical label on their left."""

    cells: Sequence[GridCell]
    label: Caption = Caption("")


@dataclass(frozen=True, eq=False)
class ColorKey:
    """Key to the colors.

    Attributes:
        colors: ``(256, 3)`` uint8, from the lowest value to the highest.
        before: Text before the color bar.
        ends: Text at its lowest and its highest value.
    """

    colors: Pixels
    before: str
    ends: tuple[str, str]


@dataclass(frozen=True)
class _PlacedCell:
    """Cell with the left side and width of its place, the height of its image and its title in lines."""

    cell: GridCell
    left: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class _PlacedRow:
    """Row with its label, its top and its height."""

    cells: list[_PlacedCell]
    label: str
    top: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height


def draw_grid(rows: Sequence[GridRow], width: float, key: ColorKey | None = None) -> PaperFigure:
    """Draw images in rows.

    The images of a row have the same height, so images of one shape form columns. No image is cropped. An image that is
    much higher or wider than the others is drawn smaller.

    Args:
        rows: One or more rows, from the top.
        width: Width of the figure, in inches.
        key: Key to the colors, below everything on the right.
    """
    placed, margin = _place_rows(rows, width)
    bottom = placed[-1].bottom
    key_height = 0 if key is None else _KEY_GAP + LINE_HEIGHT
    figure: PaperFigure = load_canvas().create_figure(width, bottom + key_height + _EDGE)
    for row in placed:
        for number, cell in enumerate(row.cells):
            _draw_cell(figure, cell, row, "" if number else row.label, margin)
    if key is not None:
        _draw_key(figure, key, bottom + _KEY_GAP)
    return figure


def _place_rows(rows: Sequence[GridRow], width: float) -> tuple[list[_PlacedRow], float]:
    """Return the placed rows and the width of their labels: as few lines as the labels need."""
    for lines in range(1, _MAX_LABEL_LINES + 1) if any(row.label.line for row in rows) else [0]:
        margin = LINE_HEIGHT * lines + _TEXT_GAP if lines else 0.0
        placed = _stack_rows(rows, width, margin, lines)
        if not any("…" in row.label for row in placed):
            break
    return placed, margin


def _stack_rows(rows: Sequence[GridRow], width: float, margin: float, label_lines: int) -> list[_PlacedRow]:
    """Return the rows below one another, on the right of a margin for labels."""
    columns = max(len(row.cells) for row in rows)
    column = (width - margin - GAP * (columns - 1)) / columns
    placed: list[_PlacedRow] = []
    for row in rows:
        cells = _place_cells(row.cells, margin, column)
        title_lines = max((cell.title.count("\n") + 1 for cell in cells if cell.title), default=0)
        top = placed[-1].bottom + _ROW_GAP if placed else _EDGE
        top += title_lines * LINE_HEIGHT + _TEXT_GAP if title_lines else 0
        label_height = min(_MAX_LABEL_HEIGHT, row.label.measure_longest_word())
        height = max(max(cell.height for cell in cells), label_height)
        placed.append(_PlacedRow(cells, _break_captions([row.label], [height], label_lines)[0], top, height))
    return placed


def _place_cells(cells: Sequence[GridCell], left: float, column: float) -> list[_PlacedCell]:
    """Return a row's images side by side, together as wide as ``len(cells)`` columns."""
    shares = [min(max(1 / cell.aspect, 1 / _MAX_HEIGHT_RATIO), _MAX_WIDTH_RATIO) for cell in cells]
    height = min(len(cells) * column / sum(shares), _MAX_HEIGHT_RATIO * column)
    widths = [share / sum(shares) * len(cells) * column for share in shares]
    titles = _break_captions([cell.title for cell in cells], widths, _MAX_TITLE_LINES, _EXTRA_NAME_LINES)
    placed = []
    for cell, width, title in zip(cells, widths, titles, strict=True):
        placed.append(_PlacedCell(cell, left, width, min(height, width * cell.aspect), title))
        left += width + GAP
    return placed


def _break_captions(captions: Sequence[Caption], widths: Sequence[float], lines: int, extra: int = 0) -> list[str]:
    """Return captions in one line each if all fit, else in several; single words get some extra lines."""
    if lines == 1 or all(map(fits_in_line, [caption.line for caption in captions], widths)):
        return [fit_text(caption.line, width) for caption, width in zip(captions, widths, strict=True)]
    allowed = [lines + (0 if " " in caption.words else extra) for caption in captions]
    return [caption.break_lines(width, n) for caption, width, n in zip(captions, widths, allowed, strict=True)]


def _draw_cell(figure: PaperFigure, placed: _PlacedCell, row: _PlacedRow, label: str, margin: float) -> None:
    canvas = load_canvas()
    width = placed.height / placed.cell.aspect
    left = placed.left + (placed.width - width) / 2
    axes = canvas.add_axes(figure, (left, row.top + (row.height - placed.height) / 2, width, placed.height))
    canvas.draw_image(axes, _limit_resolution(placed.cell.pixels, width))
    if placed.title:
        canvas.write_title(axes, placed.title, TEXT_SIZE)
    if label:
        canvas.write_row_label(axes, label, TEXT_SIZE, (left - margin + _TEXT_GAP) / width)


def _limit_resolution(pixels: Pixels, width: float) -> Pixels:
    """Return the image with no more pixels than can be printed at a width in inches."""
    enough = round(width * _MAX_DPI)
    if pixels.shape[1] <= enough:
        return pixels
    size = enough, max(1, round(enough * pixels.shape[0] / pixels.shape[1]))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


def _draw_key(figure: PaperFigure, key: ColorKey, top: float) -> None:
    width = figure.get_size_inches()[0]
    label_width = load_canvas().measure_text(key.ends[1], TEXT_SIZE) + 0.1
    box = (width - label_width - _KEY_WIDTH, top + (LINE_HEIGHT - _KEY_HEIGHT) / 2, _KEY_WIDTH, _KEY_HEIGHT)
    load_canvas().draw_horizontal_bar(figure, box, key.colors, (key.before, *key.ends), TEXT_SIZE)
