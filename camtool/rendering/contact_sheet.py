"""Sheets of several images: frames and slices with their heatmaps, and pictures with captions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from PIL import Image

from camtool.rendering import colormaps
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.overlay import UNSEEN_GRAY, blend_scale
from camtool.rendering.pixel_checks import Color, Floats, Heat, Pixels
from camtool.rendering.regions import draw_cross, draw_ring
from camtool.rendering.text_drawing import INK, MUTED, PANEL, PAPER, RULE, SMALL_TEXT_SIZE, draw_text, load_font_for

# Pixels around a contact sheet, and between its tiles.
_MARGIN, _GAP = 24, 14

# Longer side of a tile's image, in pixels.
_SIDE = 220

# Captions such as "slice 117" need this width, even below a narrow image.
_MIN_TILE_WIDTH = 84

_COLUMNS = 4
_CAPTION_HEIGHT, _BAR_HEIGHT = 26, 4

# Sheets of captioned images.
_IMAGE_GAP, _IMAGE_CAPTION_HEIGHT, _IMAGE_TEXT_SIZE = 10, 34, 16
_CAPTION_COLOR: Color = (51, 51, 51)

# Colors of the words for a right and for a wrong prediction. Both have a contrast above 5 to paper.
RIGHT, WRONG = (17, 112, 60), (190, 30, 45)

# Letters grow with the picture, which is shown reduced if it is large. A line then has space for about 60 letters.
# Below the smallest size letters cannot be read; above a twelfth of the height they would outweigh the picture.
_LETTERS_PER_WIDTH, _LETTERS_PER_HEIGHT, _MIN_LETTERS = 30, 12, 13

# Pixels below which a caption has no space: narrower pictures get paper at their right.
_MIN_WIDTH = 200

# Letter heights between the two ends of a line: further apart they would not be read together.
_MAX_WIDTH_IN_LETTERS = 30

# Characters beyond which text is cut before it is measured.
_LONGEST_TEXT = 200

# In letter heights.
_LINE_HEIGHT, _PADDING = 1.4, 0.5

# Width of the color bar of a legend, in letter heights.
_LEGEND_WIDTH = 8

# Sheets of pictures.
_SHEET_SIDE, _SHEET_GAP, _SHEET_MARGIN, _SHEET_LETTERS = 230, 18, 24, 14


@dataclass(frozen=True, eq=False)
class Tile:
    """An image on a contact sheet, with its heatmap and caption.

    Attributes:
        image: ``(H, W, 3)`` uint8.
        heatmap: ``(H, W)`` in [0, 1].
        caption: Text below the image.
        is_large: The tile comes first and takes the space of four others.
    """

    image: Pixels
    heatmap: Heat
    caption: str
    is_large: bool = False


# Function from images ``(T, H, W, 3)`` and heatmaps ``(T, H, W)`` to images.
Blend: TypeAlias = "Callable[[Pixels, Heat], Pixels]"


def draw_contact_sheet(tiles: Sequence[Tile], blend: Blend, *, colormap: Colormap = DEFAULT_COLORMAP) -> Pixels:
    """Draw small images with their heatmaps on a page.

    The bar below an image is as long, and as hot, as the hottest place of its heatmap.

    Args:
        tiles: Images of one size. They are drawn four in a row, or in two rows beside a large one.
        blend: Function that draws heatmaps on images. It gets both at the size in which they are shown.
        colormap: Color map of the bars, as for :func:`camtool.rendering.colormaps.get_palette`.

    Returns:
        ``(H, W, 3)`` uint8 RGB.
    """
    large = [tile for tile in tiles if tile.is_large]
    small = [tile for tile in tiles if not tile.is_large]
    height, width = _fit_size(small[0].image, (_SIDE, _SIDE))
    step_y, step_x = height + _BAR_HEIGHT + _CAPTION_HEIGHT + _GAP, max(width, _MIN_TILE_WIDTH) + _GAP
    # A large image covers two rows, and the width of two columns.
    large_size = _fit_size(large[0].image, (step_y + height, 2 * width + _GAP)) if large else (0, 0)
    columns = -(-len(small) // 2) if large else min(_COLUMNS, len(small))
    left = _MARGIN + (max(large_size[1], 2 * _MIN_TILE_WIDTH) + _GAP if large else 0)
    top_lefts = [(_MARGIN + i // columns * step_y, left + i % columns * step_x) for i in range(len(small))]
    bottom = max(top_lefts[-1][0] + height, _MARGIN + large_size[0]) + _BAR_HEIGHT + _CAPTION_HEIGHT
    page: Pixels = np.full((bottom + _GAP, left + columns * step_x - _GAP + _MARGIN, 3), PAPER, np.uint8)
    for group, size, corners in ((large, large_size, [(_MARGIN, _MARGIN)]), (small, (height, width), top_lefts)):
        for tile, image, corner in zip(group, _render_tiles(group, size, blend), corners, strict=False):
            page = _place_tile(page, tile, image, corner, colormap)
    return page


def draw_captioned_images(
    images: Sequence[Pixels], captions: Sequence[str], *, columns: int, width: int = 240
) -> Pixels:
    """Draw images of equal width in rows, each with a caption below its center.

    Args:
        images: ``(H, W, 3)`` uint8 each.
        captions: One for each image. Captions wider than the image are shortened.
        columns: Number of images in a row.
        width: Width of each image, in pixels.

    Returns:
        ``(H, W, 3)`` uint8 RGB.
    """
    thumbnails = [_resize_to_width(image, width) for image in images]
    step_x = width + _IMAGE_GAP
    step_y = max(thumbnail.height for thumbnail in thumbnails) + _IMAGE_CAPTION_HEIGHT
    page = Image.new("RGB", (columns * step_x - _IMAGE_GAP, -(-len(images) // columns) * step_y), PAPER)
    for i, (thumbnail, caption) in enumerate(zip(thumbnails, captions, strict=True)):
        left, top = i % columns * step_x, i // columns * step_y
        page.paste(thumbnail, (left, top))
        center = left + width / 2, top + thumbnail.height + _IMAGE_CAPTION_HEIGHT / 2
        draw_text(page, center, caption, _IMAGE_TEXT_SIZE, _CAPTION_COLOR, anchor="mm", max_width=width)
    return np.asarray(page)


def _resize_to_width(image: Pixels, width: int) -> Image.Image:
    height = max(1, round(width * image.shape[0] / image.shape[1]))
    return Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS)


def _fit_size(image: Pixels, box: tuple[int, int]) -> tuple[int, int]:
    """Return the largest size ``(h, w)`` of an image that fits into a box."""
    scale = min(available / side for available, side in zip(box, image.shape[:2], strict=True))
    return max(1, round(image.shape[0] * scale)), max(1, round(image.shape[1] * scale))


def _render_tiles(tiles: Sequence[Tile], size: tuple[int, int], blend: Blend) -> Pixels:
    """Return the tiles' images with their heatmaps, ``(T, *size, 3)``."""
    import cv2

    if not tiles:
        return np.empty((0, *size, 3), np.uint8)
    # Cubic interpolation keeps enlarged images sharp. It would overshoot [0, 1] on heatmaps.
    is_enlarged = size[0] > tiles[0].image.shape[0]
    of_images, of_heat = (cv2.INTER_CUBIC, cv2.INTER_LINEAR) if is_enlarged else (cv2.INTER_AREA, cv2.INTER_AREA)
    images = [cv2.resize(np.ascontiguousarray(tile.image), size[::-1], interpolation=of_images) for tile in tiles]
    heats = [cv2.resize(np.ascontiguousarray(tile.heatmap), size[::-1], interpolation=of_heat) for tile in tiles]
    return blend(np.stack(images), np.stack(heats).clip(0, 1))


def _place_tile(page: Pixels, tile: Tile, image: Pixels, corner: tuple[int, int], colormap: Colormap) -> Pixels:
    """Return the page with an image, its bar and its caption at ``(top, left)``."""
    (top, left), (height, width) = corner, image.shape[:2]
    peak = float(tile.heatmap.max())
    bar = slice(top + height + _BAR_HEIGHT // 2, top + height + _BAR_HEIGHT // 2 + _BAR_HEIGHT)
    page[top : top + height, left : left + width] = image
    page[bar, left : left + width] = RULE
    page[bar, left : left + round(peak * width)] = colormaps.get_palette(colormap)[round(255 * peak)]
    canvas = Image.fromarray(page)
    draw_text(canvas, (left, bar.stop + 5), tile.caption, SMALL_TEXT_SIZE, MUTED)
    return np.array(canvas)


# -------------------------------------------------------------------------------------------------------- captions


@dataclass(frozen=True)
class CaptionLine:
    """One line of a caption.

    Attributes:
        text: The text at the left. It is cut if the line is too short.
        color: Its color.
        end: The text at the right, which is cut only if it fills more than two fifths of the line.
        end_color: Its color.
    """

    text: str
    color: Color = INK
    end: str = ""
    end_color: Color = MUTED


Caption: TypeAlias = Sequence[CaptionLine]


def add_caption(picture: Pixels, caption: Caption) -> Pixels:
    """Return a picture with a caption on a strip of paper below it.

    Args:
        picture: ``(H, W, 3)`` uint8 RGB.
        caption: The lines.

    Returns:
        ``(H + strip, max(W, 200), 3)`` uint8 RGB.
    """
    page, letters, padding = _add_strip(picture, len(caption))
    _draw_caption(page, (padding, len(picture) + padding), page.width - 2 * padding, caption, letters)
    return np.asarray(page)


def _add_strip(picture: Pixels, line_count: int) -> tuple[Image.Image, int, int]:
    """Return a page with a picture and a strip of paper below it; the height of letters, and the space around them."""
    height, width = picture.shape[:2]
    letters = _choose_letters(height, width)
    page = Image.new("RGB", (max(width, _MIN_WIDTH), height + _compute_strip(line_count, letters)), PAPER)
    page.paste(Image.fromarray(picture), (0, 0))
    return page, letters, round(_PADDING * letters)


def add_legend(
    picture: Pixels,
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
    *,
    has_unseen: bool = False,
    has_places: bool = False,
) -> Pixels:
    """Return an overlay with a legend on a strip of paper below it: the colors as they look on a gray photo.

    Args:
        picture: ``(H, W, 3)`` uint8 RGB.
        alpha: The opacity of the overlay's colors.
        colormap: The overlay's color map.
        has_unseen: Explain the gray part, too, which the model did not see.
        has_places: Explain the marks of :func:`camtool.rendering.regions.draw_places`, too.

    Returns:
        ``(H + strip, max(W, 200), 3)`` uint8 RGB.
    """
    texts = ["most heat", *(["not seen by the model"] if has_unseen else [])]
    texts += ["hottest cell as drawn", "pixels it depends on"] if has_places else []
    page, letters, padding = _add_strip(picture, len(texts))
    line, low = round(_LINE_HEIGHT * letters), "little heat"
    before, after = (int(load_font_for(text, letters).getlength(text)) for text in (low, texts[0]))
    # On a narrow picture the words need the space more than the bar.
    length = max(letters, min(_LEGEND_WIDTH * letters, page.width - 4 * padding - 4 - before - after))
    field = np.full((letters, 2 * letters, 3), UNSEEN_GRAY, np.uint8)
    swatches = [blend_scale(length, alpha, colormap).repeat(letters, axis=0), *([field] if has_unseen else [])]
    swatches += [_draw_mark(field.shape, draw) for draw in (draw_ring, draw_cross)] if has_places else []
    for number, (swatch, text) in enumerate(zip(swatches, texts, strict=True)):
        top, left = len(picture) + padding + number * line + (line - letters) // 2, padding
        if number == 0:
            draw_text(page, (left, top + letters / 2), low, letters, INK, anchor="lm", max_width=page.width - left - 2)
            left += before + padding
        page.paste(Image.fromarray(swatch), (left, top))
        left += swatch.shape[1] + padding
        draw_text(page, (left, top + letters / 2), text, letters, INK, anchor="lm", max_width=page.width - left - 2)
    return np.asarray(page)


def _draw_mark(size: tuple[int, ...], draw: Callable[[Pixels, Floats, float], None]) -> Pixels:
    """Return a mark in the middle of a gray field."""
    field = np.full(size, 128, np.uint8)
    height, width = size[:2]
    draw(field, np.array([width / 2, height / 2]), 0.3 * height)
    return field


def remove_caption(picture: Pixels, line_count: int = 2) -> Pixels:
    """Return a picture without the strip that :func:`add_caption` put below it.

    A picture that was narrower than its caption keeps the paper at its right.

    Args:
        picture: ``(H, W, 3)`` uint8 RGB.
        line_count: The number of lines of the caption.
    """
    total, width = picture.shape[:2]
    # Both limits of the letters grow with the height of the picture, so at most one size fits to what it leaves.
    for letters in range(_MIN_LETTERS, total):
        height = total - _compute_strip(line_count, letters)
        if height < 1:
            break
        if _choose_letters(height, width) == letters:
            return picture[:height]
    return picture


def draw_picture_sheet(pictures: Iterable[tuple[Pixels, Caption]], *, columns: int, side: int = _SHEET_SIDE) -> Pixels:
    """Draw pictures of any size in rows, each fitted into a square, with its caption below.

    Args:
        pictures: ``(H, W, 3)`` uint8 RGB each, with its caption. Only one at a time is kept at full size.
        columns: The number of pictures in a row.
        side: The side of the squares in pixels.

    Returns:
        ``(H, W, 3)`` uint8 RGB.
    """
    tiles = [(_fit_square(picture, side), caption) for picture, caption in pictures]
    step_x = side + _SHEET_GAP
    text_height = max((round(len(caption) * _LINE_HEIGHT * _SHEET_LETTERS) for _, caption in tiles), default=0)
    step_y = side + _SHEET_GAP + text_height + 6
    columns = max(1, min(columns, len(tiles)))
    rows = max(1, -(-len(tiles) // columns))
    size = (2 * _SHEET_MARGIN + columns * step_x - _SHEET_GAP, 2 * _SHEET_MARGIN + rows * step_y - _SHEET_GAP)
    page = Image.new("RGB", size, PAPER)
    for number, (tile, caption) in enumerate(tiles):
        left, top = _SHEET_MARGIN + number % columns * step_x, _SHEET_MARGIN + number // columns * step_y
        page.paste(PANEL, (left, top, left + side, top + side))
        page.paste(tile, (left + (side - tile.width) // 2, top + (side - tile.height) // 2))
        _draw_caption(page, (left, top + side + 6), side, caption, _SHEET_LETTERS)
    return np.asarray(page)


def _fit_square(picture: Pixels, side: int) -> Image.Image:
    scale = side / max(picture.shape[:2])
    size = tuple(max(1, round(length * scale)) for length in picture.shape[1::-1])
    return Image.fromarray(picture).resize((size[0], size[1]), Image.Resampling.LANCZOS, reducing_gap=3.0)


def _choose_letters(height: int, width: int) -> int:
    return max(_MIN_LETTERS, round(min(width / _LETTERS_PER_WIDTH, height / _LETTERS_PER_HEIGHT)))


def _compute_strip(line_count: int, letters: int) -> int:
    return round(line_count * _LINE_HEIGHT * letters) + 2 * round(_PADDING * letters)


def _draw_caption(page: Image.Image, corner: tuple[int, int], width: int, caption: Caption, letters: int) -> None:
    width = min(width, _MAX_WIDTH_IN_LETTERS * letters)
    for number, line in enumerate(caption):
        middle = corner[1] + (number + 0.5) * _LINE_HEIGHT * letters
        text, end = line.text[:_LONGEST_TEXT], line.end[:_LONGEST_TEXT]
        end_width = min(load_font_for(end, letters).getlength(end), 0.4 * width) if end else 0.0
        if end:
            right = (corner[0] + width, middle)
            draw_text(page, right, end, letters, line.end_color, anchor="rm", max_width=end_width + 1)
        left_over = width - end_width - (letters if end else 0)
        draw_text(page, (corner[0], middle), text, letters, line.color, anchor="lm", max_width=left_over)
