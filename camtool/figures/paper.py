"""What all figures share: the widths of columns, the sizes of type, words that fit, and how they become files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

from camtool import images
from camtool.errors import CamtoolError, near

if TYPE_CHECKING:
    from os import PathLike

    from camtool.figures.canvas import Figure

__all__ = [
    "HEADING",
    "LINE",
    "SCALES",
    "TEXT",
    "WIDTHS",
    "Scale",
    "Width",
    "balanced",
    "canvas",
    "check_choice",
    "check_columns",
    "check_count",
    "fits",
    "fitted",
    "in_inches",
    "save",
]

SCALES = ("each", "shared")
"""Whether maps are coloured each on its own scale, or on one."""

Scale: TypeAlias = Literal["each", "shared"]

WIDTHS = {"single": 3.25, "double": 6.75}
"""The widths of one and of two columns, in inches: ICML's. Those of CVPR, ACM and IEEE are a little wider."""

Width: TypeAlias = 'Literal["single", "double"] | float'
"""``"single"``, ``"double"``, see :data:`WIDTHS`, or a number of inches."""

TEXT, HEADING = 8, 9
"""The heights of plain words and of headings, in points."""

LINE = 1.25 * TEXT / 72
"""From one line of plain words to the next, in inches."""

_KINDS = ("pdf", "svg", "png")
_LEAST, _MOST = 0.5, 100.0  # inches
_PIXELS = 2**16  # Agg draws no picture that is longer


def canvas() -> ModuleType:
    """The room that draws.

    Raises:
        CamtoolError: matplotlib is not installed.
    """
    try:
        from camtool.figures import canvas
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise CamtoolError("figures need matplotlib: pip install 'camtool[figures]'") from error
    return canvas


def in_inches(width: Width) -> float:
    """A width in inches.

    Raises:
        CamtoolError: It is neither a name in :data:`WIDTHS` nor a number that a page could have.
    """
    if isinstance(width, str):
        if width not in WIDTHS:
            raise CamtoolError(f"width {width!r} is unknown; give 'single', 'double' or inches.{near(width, WIDTHS)}")
        return WIDTHS[width]
    if not _LEAST <= width <= _MOST:
        raise CamtoolError(f"width is {width} inches; give {_LEAST} to {_MOST:.0f}, or 'single' or 'double'.")
    return float(width)


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """See that a word is one of those that an argument takes.

    Raises:
        CamtoolError: It is not.
    """
    if value not in known:
        raise CamtoolError(f"{name} {value!r} is unknown; known are {', '.join(known)}.{near(value, known)}")


def check_count(name: str, number: int | None) -> None:
    """See that a number of things is one or more, where it is given.

    Raises:
        CamtoolError: It is less.
    """
    if number is not None and number < 1:
        raise CamtoolError(f"{name} is {number}; give 1 or more.")


def check_columns(columns: int, most: int) -> None:
    """See that so many columns find room.

    Raises:
        CamtoolError: They do not.
    """
    if columns > most:
        raise CamtoolError(
            f"columns is {columns}, but {most} find room side by side; give {most} or less, or more width."
        )


def balanced(count: int, most: int) -> int:
    """In how many columns things stand: at most ``most``, in as few rows as can be, and these as even as can be."""
    rows = -(-count // most)
    return -(-count // rows)


def save(figure: Figure, path: str | PathLike[str], *, dpi: float = 300) -> Path:
    """Write a figure, whole or not at all: the same figure gives the same bytes.

    Words stay words: PDFs embed the typeface (TrueType, which all venues take), SVGs leave it to the reader.

    Args:
        figure: What any function of :mod:`camtool.figures` returned; any other matplotlib figure too.
        path: Where to; the suffix decides: ``.pdf``, ``.svg`` or ``.png``. Missing folders are made.
        dpi: The resolution of pictures, and of what is inside PDFs and SVGs no line and no word.

    Returns:
        The path written.

    Raises:
        CamtoolError: The suffix is unknown, or the picture would be too large; or matplotlib is not installed.
        OSError: The disk or a folder refuses.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _KINDS:
        raise CamtoolError(
            f"figures are not written as {path.suffix or path.name!r}; give a path in .pdf, .svg or .png."
        )
    longest = max(figure.get_size_inches())
    if kind == "png" and longest * dpi >= _PIXELS:
        raise CamtoolError(
            f"dpi={dpi:g} makes a picture of {longest * dpi:,.0f} pixels in height; give less than "
            f"{_PIXELS / longest:.0f}, or write a .pdf."
        )
    with images.writing(path) as stream:
        canvas().write_file(figure, stream, kind, dpi=dpi)
    return path


# ------------------------------------------------------------------------------------------------ words that fit


def fits(words: str, room: float, size: float = TEXT) -> bool:
    """Whether words find room in a line of so many inches."""
    return bool(canvas().text_width(words.strip(), size) <= room)


def fitted(words: str, room: float, lines: int = 1, size: float = TEXT) -> str:
    """Words in as many lines as they need, or as there are; what has no place gives way to "…".

    Sentences lose their end, and names without spaces, such as a layer's, what stands before their end.

    Args:
        words: What is to be said.
        room: How wide a line may be, in inches.
        lines: How many there may be.
        size: The height of the words, in points.
    """
    pieces = _pieces(words, lambda piece: fits(piece, room, size))
    best = _filled(pieces, room, lines, size)
    while "…" not in best[-1] and len(best) > 1:  # lines of about one length: no word is left alone on the last
        room *= 0.95
        even = _filled(pieces, room, len(best), size)
        if "…" in even[-1]:
            break
        best = even
    return "\n".join(best)


def _filled(pieces: list[str], room: float, lines: int, size: float) -> list[str]:
    """The lines, each as full as can be."""

    def fit(line: str) -> bool:
        return fits(line, room, size)

    keep_end = not any(" " in piece for piece in pieces)
    filled: list[str] = []
    while len(filled) < lines - 1 and not fit("".join(pieces)):
        taken = _how_many(pieces, fit)
        filled.append("".join(pieces[:taken]).strip())
        pieces = pieces[taken:]
    rest = "".join(pieces).strip()
    return [*filled, rest if fit(rest) else _shortened(rest, fit, keep_end=keep_end)]


def _pieces(words: str, fit: Callable[[str], bool]) -> list[str]:
    """The parts between which a line may end; those that are too long for a line are cut anywhere."""
    pieces: list[str] = []
    for piece in re.findall(r"[^\s._/+-]*(?:[._/+-]+|\s+|$)", words):
        pieces += [piece] if fit(piece) else list(piece)
    return [piece for piece in pieces if piece]


def _how_many(pieces: list[str], fit: Callable[[str], bool]) -> int:
    """How many pieces a line has room for: one at least."""
    taken = 1
    while taken < len(pieces) and fit("".join(pieces[: taken + 1])):
        taken += 1
    return taken


def _shortened(words: str, fit: Callable[[str], bool], *, keep_end: bool) -> str:
    """As much of a line as fits, beside an ellipsis."""
    for length in range(len(words) - 1, 0, -1):
        line = f"…{words[-length:].lstrip(' .')}" if keep_end else f"{words[:length].rstrip(' ,.')}…"
        if fit(line):
            return line
    return "…"
