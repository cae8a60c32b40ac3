"""Words on a picture: small opaque tags beside boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import ImageDraw

__all__ = ["draw_tags"]

Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]
Box = tuple[float, float, float, float]

_PER_SIDE, _SMALLEST, _LARGEST = 28, 11, 36  # letters fit so often into a side; their least and greatest height
_MOST_OF_HEIGHT = 1 / 3  # a tag that would cover more of a picture is left out
_GAP = 2  # between a box's line and its tag


def draw_tags(picture: Pixels, boxes: Sequence[Box], words: Sequence[str], *, paper: Color, ink: Color) -> Pixels:
    """Write words beside boxes, on a copy of a picture.

    A tag stands above its box, below it where there is no space above, or else inside of it; it never leaves the
    picture. Words that are too long are shortened, all but the last one. A picture too small for letters gets none.

    Args:
        picture: (H, W, 3) uint8 RGB.
        boxes: ``(x0, y0, x1, y1)`` in pixels.
        words: For each box.
        paper: The color of the tags.
        ink: The color of letters and edges.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    height = min(_LARGEST, max(_SMALLEST, round(min(picture.shape[:2]) / _PER_SIDE)))
    font: Any = ImageFont.load_default(height)
    pen = ImageDraw.Draw(image)
    for box, label in zip(boxes, words, strict=True):
        _draw_tag(pen, font, box, label, (paper, ink))
    return np.array(image)


def _draw_tag(pen: ImageDraw.ImageDraw, font: Any, box: Box, words: str, colors: tuple[Color, Color]) -> None:
    wide, high = pen.im.size
    pad = max(2, round(font.size / 4))
    words = _shortened(words, font, wide - 2 * pad - 1)
    across, down = round(font.getlength(words)) + 2 * pad, sum(font.getmetrics()) + pad
    if not words or down > _MOST_OF_HEIGHT * high:
        return
    left = min(max(0, round(box[0])), wide - across - 1)
    top = _top(box, down, high)
    pen.rectangle((left, top, left + across, top + down), fill=colors[0], outline=colors[1])
    pen.text((left + pad, top + down / 2), words, fill=colors[1], font=font, anchor="lm")


def _top(box: Box, down: int, high: int) -> int:
    """Return where a tag begins: above the box, below it, or inside of it."""
    above, below = round(box[1]) - _GAP - down - 1, round(box[3]) + _GAP
    if above >= 0:
        return above
    return below if below + down < high else min(max(0, round(box[1]) + _GAP), high - down - 1)


def _shortened(words: str, font: Any, space: float) -> str:
    """Return words that fit, shortened before the last one; empty if nothing fits."""
    start, _, last = words.rpartition(" ")
    end = f" {last}" if start else ""
    start = start or last
    if font.getlength(words) <= space:
        return words
    fitting = (f"{start[:kept].rstrip()}…{end}" for kept in range(len(start) - 1, 0, -1))
    return next((each for each in fitting if font.getlength(each) <= space), "")
