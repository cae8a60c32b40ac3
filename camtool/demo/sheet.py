"""Pages of captioned images in groups: the results of the demo."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from camtool.rendering.pixel_checks import Color, Pixels
from camtool.rendering.text_drawing import MUTED, PAPER, draw_text, load_font, wrap_text

CORRECT, WRONG = (22, 128, 84), (200, 44, 44)
"""Colors of notes on correct and on wrong results."""

_RULE = (206, 209, 214)
"""Color of the line above a group."""

_TITLE_SIZE, _TEXT_SIZE, _CAPTION_SIZE = 38, 21, 18
"""Heights of letters, in pixels."""

_MARGIN, _GAP, _LINE_GAP = 48, 16, 10
"""Pixels around the page, between images, and between lines of text."""

_HEADING_HEIGHT, _CAPTION_HEIGHT = 48, 54
"""Pixels above and below the images of a group, for its heading and the captions."""


@dataclass(frozen=True, eq=False)
class CaptionedImage:
    """Image with a caption and a note below it.

    Attributes:
        image: (S, S, 3) uint8; all images of a page have one size.
        caption: Text below it on the left.
        note: Text below it on the right.
        color: Color of the note.
    """

    image: Pixels
    caption: str
    note: str = ""
    color: Color = MUTED


@dataclass(frozen=True, eq=False)
class ImageGroup:
    """Images that belong together, side by side under a heading."""

    heading: str
    images: Sequence[CaptionedImage]


def draw_page(title: str, introduction: str, groups: Sequence[ImageGroup], *, columns: int) -> Pixels:
    """Draw groups of images below a title and an introduction.

    Args:
        title: Title of the page.
        introduction: A few sentences below the title.
        groups: Each group stays in one row. A row takes as many groups as fit.
        columns: Largest number of images in a row.

    Returns:
        (H, W, 3) uint8.
    """
    side = len(groups[0].images[0].image)
    width = columns * (side + _GAP) - _GAP
    lines, rows = wrap_text(introduction, load_font(_TEXT_SIZE), width), _fill_rows(groups, columns)
    lines_top = _MARGIN + _TITLE_SIZE + 20
    top = lines_top + len(lines) * (_TEXT_SIZE + _LINE_GAP) + 24
    row_height = _HEADING_HEIGHT + side + _CAPTION_HEIGHT
    page = Image.new("RGB", (width + 2 * _MARGIN, top + len(rows) * row_height + _MARGIN // 2), PAPER)
    draw_text(page, (_MARGIN, _MARGIN), title, _TITLE_SIZE)
    for i, line in enumerate(lines):
        draw_text(page, (_MARGIN, lines_top + i * (_TEXT_SIZE + _LINE_GAP)), line, _TEXT_SIZE, MUTED)
    for i, row in enumerate(rows):
        left = _MARGIN
        for group in row:
            _draw_group(page, group, left, top + i * row_height)
            left += len(group.images) * (side + _GAP)
    return np.asarray(page)


def _fill_rows(groups: Iterable[ImageGroup], columns: int) -> list[list[ImageGroup]]:
    """Return rows of groups: each group is in the first row that has space for it."""
    rows: list[list[ImageGroup]] = []
    for group in groups:
        for row in rows:
            if sum(len(each.images) for each in row) + len(group.images) <= columns:
                row.append(group)
                break
        else:
            rows.append([group])
    return rows


def _draw_group(page: Image.Image, group: ImageGroup, left: int, top: int) -> None:
    side = len(group.images[0].image)
    right = left + len(group.images) * (side + _GAP) - _GAP
    ImageDraw.Draw(page).line((left, top, right - 1, top), fill=_RULE, width=1)
    draw_text(page, (left, top + 13), group.heading, _TEXT_SIZE)
    for i, each in enumerate(group.images):
        x, below = left + i * (side + _GAP), top + _HEADING_HEIGHT + side + 10
        page.paste(Image.fromarray(each.image), (x, top + _HEADING_HEIGHT))
        draw_text(page, (x, below), each.caption, _CAPTION_SIZE, MUTED)
        draw_text(page, (x + side, below), each.note, _CAPTION_SIZE, each.color, anchor="ra")
