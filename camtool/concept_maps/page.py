"""Page that shows concepts: photos tinted with the concepts' colors, and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from camtool.rendering.pixel_checks import Color, Pixels
from camtool.rendering.text_drawing import MUTED, PAPER, draw_text

MAX_PHOTOS = 24
"""Largest number of photos on a page."""

_RULE = (228, 230, 234)
"""Gray of the bars' background."""

_MARGIN, _GAP, _GUTTER = 28, 10, 32
"""Pixels around the page, between photos, and between photos and legend."""

_PHOTOS_WIDTH, _LEGEND_WIDTH = 860, 330
"""Largest width of the photos, and width of the legend, in pixels."""

_HEADING_HEIGHT, _ENTRY_HEIGHT = 66, 74
_INDENT, _BAR_WIDTH = 32, 190
"""Pixels on the left of an entry's text, and width of the bar of a concept that explains everything."""

_ROW_HEIGHTS = ((1, 420), (2, 340), (6, 240), (12, 190), (MAX_PHOTOS, 140))
"""Up to so many photos on a page, the height of a row of them."""


@dataclass(frozen=True)
class LegendEntry:
    """Entry of the legend.

    Attributes:
        color: Red, green and blue.
        name: Most probable class of the concept.
        others: Other probable classes; may be empty.
        share: Part of the explained activity, 0 to 1.
    """

    color: Color
    name: str
    others: str
    share: float


def draw_page(photos: Sequence[Pixels], title: str, subtitle: str, entries: Sequence[LegendEntry]) -> Pixels:
    """Draw photos in rows, and a legend on their right.

    Args:
        photos: ``(H, W, 3)`` uint8 each; at most :data:`MAX_PHOTOS`.
        title: Title of the legend.
        subtitle: Text below the title.
        entries: Entries of the legend.

    Returns:
        ``(H, W, 3)`` uint8.
    """
    boxes, width, height = _arrange_in_rows([photo.shape[1] / photo.shape[0] for photo in photos])
    legend = _draw_legend(title, subtitle, entries)
    size = (width + 2 * _MARGIN + _GUTTER + legend.width, max(height, legend.height) + 2 * _MARGIN)
    page = Image.new("RGB", size, PAPER)
    for photo, (x, y, wide, high) in zip(photos, boxes, strict=True):
        thumbnail = Image.fromarray(photo).resize((wide, high), Image.Resampling.LANCZOS)
        page.paste(thumbnail, (_MARGIN + x, _MARGIN + y))
    page.paste(legend, (_MARGIN + width + _GUTTER, _MARGIN))
    return np.asarray(page)


def _arrange_in_rows(aspects: Sequence[float]) -> tuple[list[tuple[int, int, int, int]], int, int]:
    """Return the boxes ``(x, y, width, height)`` of photos, and the width and height of all together.

    Full rows have the same width, so their heights differ a little.

    Args:
        aspects: Width divided by height of each photo.
    """
    row_height = next(height for most, height in _ROW_HEIGHTS if len(aspects) <= most)
    boxes: list[tuple[int, int, int, int]] = []
    row: list[float] = []
    y = widest = 0
    for i, aspect in enumerate(aspects):
        row.append(aspect)
        available = _PHOTOS_WIDTH - _GAP * (len(row) - 1)
        if sum(row) * row_height < available and i < len(aspects) - 1:
            continue
        height, x = round(min(row_height, available / sum(row))), 0
        for ratio in row:
            boxes.append((x, y, max(1, round(ratio * height)), height))
            x += boxes[-1][2] + _GAP
        y, widest, row = y + height + _GAP, max(widest, x - _GAP), []
    return boxes, widest, y - _GAP


def _draw_legend(title: str, subtitle: str, entries: Sequence[LegendEntry]) -> Image.Image:
    legend = Image.new("RGB", (_LEGEND_WIDTH, _HEADING_HEIGHT + len(entries) * _ENTRY_HEIGHT), PAPER)
    draw_text(legend, (0, 0), title, 19, max_width=_LEGEND_WIDTH)
    draw_text(legend, (0, 28), subtitle, 14, MUTED, max_width=_LEGEND_WIDTH)
    for number, entry in enumerate(entries):
        _draw_entry(legend, _HEADING_HEIGHT + number * _ENTRY_HEIGHT, entry)
    return legend


def _draw_entry(legend: Image.Image, top: int, entry: LegendEntry) -> None:
    pen, available = ImageDraw.Draw(legend), _LEGEND_WIDTH - _INDENT
    pen.rectangle((0, top + 1, 19, top + 20), fill=entry.color)
    draw_text(legend, (_INDENT, top), entry.name, 17, max_width=available)
    pen.rectangle((_INDENT, top + 30, _INDENT + _BAR_WIDTH, top + 34), fill=_RULE)
    pen.rectangle((_INDENT, top + 30, _INDENT + round(entry.share * _BAR_WIDTH), top + 34), fill=entry.color)
    draw_text(legend, (_INDENT + _BAR_WIDTH + 10, top + 24), f"{entry.share:.0%} of that", 13, MUTED)
    draw_text(legend, (_INDENT, top + 42), entry.others, 13, MUTED, max_width=available)
