"""Text on images, drawn by Pillow: fonts, colors, shortening and line breaks.

Pillow's drawing modules are imported with the first text, so that ``import camtool.rendering`` stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from PIL import Image

if TYPE_CHECKING:
    from PIL import ImageFont

    from camtool.rendering.pixel_checks import Color

__all__ = [
    "INK",
    "MUTED",
    "PANEL",
    "PAPER",
    "RULE",
    "SMALL_TEXT_SIZE",
    "TEXT_SIZE",
    "Font",
    "draw_text",
    "draw_vertical_text",
    "load_font",
    "shorten_text",
    "wrap_text",
]

Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

PAPER, PANEL = (255, 255, 255), (247, 248, 250)
"""Background of a page, and of a plot on it."""

INK, MUTED, RULE = (28, 30, 34), (112, 116, 124), (222, 225, 230)
"""Colors of main text, of secondary text, and of thin lines."""

# A page as wide as two columns of a paper shows these at 8 to 9 pt.
TEXT_SIZE, SMALL_TEXT_SIZE = 19, 17
"""Heights of letters, in pixels."""


def load_font(size: int) -> Font:
    """Return the font that comes with Pillow, so that text looks the same on all systems.

    Args:
        size: Height of the letters, in pixels.
    """
    from PIL import ImageFont

    return ImageFont.load_default(size)


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

    font = load_font(size)
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
