"""Text on images, drawn by Pillow: fonts, colors, shortening and line breaks.

Pillow's drawing modules are imported with the first text, so that ``import camtool.rendering`` stays fast.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from PIL import Image

if TYPE_CHECKING:
    from PIL import ImageFont

    from camtool.rendering.pixel_checks import Color

Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

# Background of a page, and of a plot on it.
PAPER, PANEL = (255, 255, 255), (247, 248, 250)

# Colors of main text, of secondary text, and of thin lines.
INK, MUTED, RULE = (28, 30, 34), (112, 116, 124), (222, 225, 230)

# Pillow's own font has ASCII only. Fonts that systems bring, by file name, those for most scripts first; Pillow finds
# them in the folders of the system.
_SYSTEM_FONTS = Path(__file__).with_name("system_fonts.txt").read_text(encoding="utf-8").splitlines()
# No font has a letter for it, so it is drawn as what stands for missing letters.
_UNASSIGNED = "\U0010ffff"

# Heights of letters, in pixels. A page as wide as two columns of a paper shows these at 8 to 9 pt.
TEXT_SIZE, SMALL_TEXT_SIZE = 19, 17


def load_font(size: int) -> Font:
    """Return the font that comes with Pillow, so that text looks the same on all systems.

    Args:
        size: Height of the letters, in pixels.
    """
    return _load_named("", size)


def load_font_for(text: str, size: int) -> Font:
    """Return Pillow's font if it has the letters of a text, or else the first font of the system that has them.

    If none has them all, it is the one that has most; missing letters are drawn as boxes. The letters are joined and
    ordered as the script demands if Pillow was built with Raqm, as its wheels are.

    Args:
        text: The text.
        size: Height of the letters, in pixels.
    """
    return _load_named(_choose_font(frozenset(_list_letters(text))), size)


def find_undrawable(texts: Iterable[str]) -> list[str]:
    """Return the texts with letters that no font of this system has."""
    return [text for text in texts if not _is_drawable(frozenset(_list_letters(text)))]


def _is_drawable(letters: frozenset[str]) -> bool:
    name = _choose_font(letters)
    return all(_has_letter(name, letter) for letter in letters)


def _list_letters(text: str) -> list[str]:
    """Return the characters that need a letter in the font: no spaces, and no marks, which fonts may compose."""
    kinds = [(character, unicodedata.category(character)) for character in text]
    return [character for character, kind in kinds if kind[0] not in "ZM" and kind not in ("Cc", "Cf")]


@lru_cache(maxsize=4096)
def _choose_font(letters: frozenset[str]) -> str:
    """Return the name of a font, empty for Pillow's own."""
    best, most = "", -1
    for name in ("", *_SYSTEM_FONTS):
        if not _is_installed(name):
            continue
        count = sum(_has_letter(name, letter) for letter in letters)
        if count > most:
            best, most = name, count
        if most == len(letters):
            break
    return best


@lru_cache(maxsize=256)
def _load_named(name: str, size: int) -> Font:
    from PIL import ImageFont

    return ImageFont.truetype(name, size) if name else ImageFont.load_default(size)


@lru_cache(maxsize=64)
def _is_installed(name: str) -> bool:
    try:
        _load_named(name, 16)
    except OSError:
        return False
    return True


@lru_cache(maxsize=65536)
def _has_letter(name: str, letter: str) -> bool:
    font = _load_named(name, 16)
    return letter.isascii() or bytes(font.getmask(letter)) != bytes(font.getmask(_UNASSIGNED))


def draw_text(
    page: Image.Image,
    at: tuple[float, float],
    text: str,
    size: int,
    color: Color = INK,
    *,
    anchor: str = "la",
    max_width: float | None = None,
) -> None:
    """Draw one line of text.

    Args:
        page: Image to draw on, in place.
        at: ``(x, y)`` of the anchor, in pixels.
        text: The line.
        size: Height of the letters, in pixels.
        color: Color of the letters.
        anchor: Pillow's name for the point of the text that ``at`` gives: ``"la"`` is the top left.
        max_width: Width in pixels from which on the text is shortened.
    """
    from PIL import ImageDraw

    font = load_font_for(text, size)
    if max_width is not None:
        text = shorten_text(text, font, max_width)
    ImageDraw.Draw(page).text(at, text, fill=color, font=font, anchor=anchor)


def draw_vertical_text(page: Image.Image, at: tuple[int, int], text: str, size: int, color: Color) -> None:
    """Draw text that reads from bottom to top; ``at`` is its left edge and its vertical center."""
    from PIL import ImageDraw

    font = load_font(size)
    strip = Image.new("RGB", (round(font.getlength(text)) + 2, size + 4), PAPER)
    ImageDraw.Draw(strip).text((1, 0), text, fill=color, font=font)
    rotated = strip.transpose(Image.Transpose.ROTATE_90)
    page.paste(rotated, (at[0], max(0, at[1] - rotated.height // 2)))


def shorten_text(text: str, font: Font, max_width: float, *, keep_last_word: bool = False) -> str:
    """Return the text, cut and ended with "…" where it is too wide; empty where not even that fits.

    Args:
        text: One line.
        font: Font that the line is drawn in.
        max_width: Available width, in pixels.
        keep_last_word: Cut before the last word, which is often a number that must stay.
    """
    if font.getlength(text) <= max_width:
        return text
    start, _, last = text.rpartition(" ") if keep_last_word else (text, "", "")
    if not start:
        start, last = last, ""
    end = f" {last}" if last else ""
    candidates = (f"{start[:length].rstrip(' ,')}…{end}" for length in range(len(start) - 1, 0, -1))
    return next((line for line in candidates if font.getlength(line) <= max_width), "")


def wrap_text(text: str, font: Font, max_width: float) -> list[str]:
    """Return the text in lines that fit into a width in pixels, broken between words."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= max_width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
