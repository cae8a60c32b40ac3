"""Labels beside boxes: text on small opaque tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

from camtool.rendering.text_drawing import load_font_for, shorten_text

if TYPE_CHECKING:
    from camtool.rendering.pixel_checks import Color, Pixels

__all__ = ["draw_labels"]

Box: TypeAlias = tuple[float, float, float, float]
"""``(x0, y0, x1, y1)`` in pixels."""

# The height of letters is this part of the shorter side of the image, within these limits in pixels.
_LETTERS_PER_SIDE, _MIN_LETTERS, _MAX_LETTERS = 28, 11, 36

# A tag that would cover more of the image's height hides more than it explains: it is left out.
_MAX_PART_OF_HEIGHT = 1 / 3

_GAP = 2
"""Pixels between the line of a box and its tag."""


def draw_labels(image: Pixels, boxes: Sequence[Box], labels: Sequence[str], *, paper: Color, ink: Color) -> Pixels:
    """Write labels beside boxes, on a copy of an image.

    A tag is above its box, below it if there is no space above, or else inside. It never leaves the image. Labels that
    are too long are shortened before their last word. An image too small for letters gets none.

    Args:
        image: ``(H, W, 3)`` uint8 RGB.
        boxes: ``(x0, y0, x1, y1)`` in pixels.
        labels: Text for each box.
        paper: Color of the tags.
        ink: Color of letters and edges.

    Returns:
        ``(H, W, 3)`` uint8 RGB.
    """
    canvas = Image.fromarray(image)
    size = min(_MAX_LETTERS, max(_MIN_LETTERS, round(min(image.shape[:2]) / _LETTERS_PER_SIDE)))
    for box, label in zip(boxes, labels, strict=True):
        _draw_label(canvas, load_font_for(label, size), box, label, (paper, ink))
    return np.array(canvas)


def _draw_label(canvas: Image.Image, font: Any, box: Box, label: str, colors: tuple[Color, Color]) -> None:
    from PIL import ImageDraw

    image_width, image_height = canvas.size
    padding = max(2, round(font.size / 4))
    label = shorten_text(label, font, image_width - 2 * padding - 1, keep_last_word=True)
    width, height = round(font.getlength(label)) + 2 * padding, sum(font.getmetrics()) + padding
    if not label or height > _MAX_PART_OF_HEIGHT * image_height:
        return
    left = min(max(0, round(box[0])), image_width - width - 1)
    top = _choose_top(box, height, image_height)
    pen = ImageDraw.Draw(canvas)
    pen.rectangle((left, top, left + width, top + height), fill=colors[0], outline=colors[1])
    pen.text((left + padding, top + height / 2), label, fill=colors[1], font=font, anchor="lm")


def _choose_top(box: Box, height: int, image_height: int) -> int:
    """Return the top of a tag: above the box, below it, or inside."""
    above, below = round(box[1]) - _GAP - height - 1, round(box[3]) + _GAP
    if above >= 0:
        return above
    return below if below + height < image_height else min(max(0, round(box[1]) + _GAP), image_height - height - 1)
