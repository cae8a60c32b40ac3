"""The page that shows concepts: photos in their colours, and beside them what the colours mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOST", "Entry", "page"]

MOST = 24
"""How many photos fit on a page."""

_PAPER, _INK, _QUIET, _RULE = (255, 255, 255), (28, 30, 34), (112, 116, 124), (228, 230, 234)
_MARGIN, _GAP, _GUTTER = 28, 10, 32  # around the page, between pictures, between them and the key
_ACROSS, _KEY = 860, 330  # how wide the pictures and the key may be
_HEAD, _ENTRY = 66, 74  # how high the key's heading and each of its entries are
_INDENT, _BAR = 32, 190  # where the key's words begin, how long the bar of a concept that is all would be
_HEIGHTS = ((1, 420), (2, 340), (6, 240), (12, 190), (MOST, 140))
"""Up to so many pictures on a page, how high each is drawn."""


@dataclass(frozen=True)
class Entry:
    """A line of the key.

    Attributes:
        color: Red, green and blue.
        name: What the colour means.
        others: What else it may mean; may be empty.
        share: How long the bar is, 0 to 1.
    """

    color: tuple[int, int, int]
    name: str
    others: str
    share: float


def page(photos: Sequence[NDArray[np.uint8]], title: str, words: str, entries: Sequence[Entry]) -> NDArray[np.uint8]:
    """The photos in rows, and the key to their colours on the right, ``(H, W, 3)`` uint8.

    Args:
        photos: ``(H, W, 3)`` uint8 each; at most :data:`MOST`.
        title: What stands above the key.
        words: What stands below the title.
        entries: The key.
    """
    boxes, width, below = _in_rows([photo.shape[1] / photo.shape[0] for photo in photos])
    key = _key(title, words, entries)
    size = (width + 2 * _MARGIN + _GUTTER + key.width, max(below, key.height) + 2 * _MARGIN)
    sheet = Image.new("RGB", size, _PAPER)
    for photo, (x, y, wide, high) in zip(photos, boxes, strict=True):
        tile = Image.fromarray(photo).resize((wide, high), Image.Resampling.LANCZOS)
        sheet.paste(tile, (_MARGIN + x, _MARGIN + y))
    sheet.paste(key, (_MARGIN + width + _GUTTER, _MARGIN))
    return np.asarray(sheet)


def _in_rows(aspects: Sequence[float]) -> tuple[list[tuple[int, int, int, int]], int, int]:
    """Where pictures of these widths to one height go, as x, y, width and height; and the width and height of all.

    Full rows are as wide as each other, so their heights differ a little.
    """
    height = next(height for most, height in _HEIGHTS if len(aspects) <= most)
    boxes: list[tuple[int, int, int, int]] = []
    row: list[float] = []
    y = widest = 0
    for i, aspect in enumerate(aspects):
        row.append(aspect)
        room = _ACROSS - _GAP * (len(row) - 1)
        if sum(row) * height < room and i < len(aspects) - 1:
            continue
        high, x = round(min(height, room / sum(row))), 0
        for each in row:
            boxes.append((x, y, max(1, round(each * high)), high))
            x += boxes[-1][2] + _GAP
        y, widest, row = y + high + _GAP, max(widest, x - _GAP), []
    return boxes, widest, y - _GAP


def _key(title: str, words: str, entries: Sequence[Entry]) -> Image.Image:
    key = Image.new("RGB", (_KEY, _HEAD + len(entries) * _ENTRY), _PAPER)
    _write(key, 0, 0, title, 19, room=_KEY)
    _write(key, 0, 28, words, 14, _QUIET, room=_KEY)
    for number, entry in enumerate(entries):
        top, draw = _HEAD + number * _ENTRY, ImageDraw.Draw(key)
        draw.rectangle((0, top + 1, 19, top + 20), fill=entry.color)
        _write(key, _INDENT, top, entry.name, 17, room=_KEY - _INDENT)
        draw.rectangle((_INDENT, top + 30, _INDENT + _BAR, top + 34), fill=_RULE)
        draw.rectangle((_INDENT, top + 30, _INDENT + round(entry.share * _BAR), top + 34), fill=entry.color)
        _write(key, _INDENT + _BAR + 10, top + 24, f"{entry.share:.0%} of that", 13, _QUIET)
        _write(key, _INDENT, top + 42, entry.others, 13, _QUIET, room=_KEY - _INDENT)
    return key


def _write(
    page: Image.Image, x: int, y: int, words: str, height: int, colour: tuple[int, int, int] = _INK, *, room: int = 999
) -> None:
    """Set words, cut short where there is no room for all of them."""
    font, short = ImageFont.load_default(height), words
    while short and font.getlength(short) > room:
        words = words[:-1]
        short = f"{words.rstrip(' ,')}…"
    ImageDraw.Draw(page).text((x, y), short, fill=colour, font=font)
