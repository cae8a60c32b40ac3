"""Text that fits into lines of a given width, in inches."""

from __future__ import annotations

import re
from collections.abc import Callable

from camtool.figures.paper_style import TEXT_SIZE
from camtool.figures.saving import load_canvas

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
