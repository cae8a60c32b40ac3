"""Sheets of several images: frames and slices with their heatmaps, and images with captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image

from camtool.rendering import colormaps
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.text_drawing import MUTED, PAPER, RULE, SMALL_TEXT_SIZE, draw_text

if TYPE_CHECKING:
    from camtool.rendering.pixel_checks import Color, Heat, Pixels

__all__ = ["Blend", "Tile", "draw_captioned_images", "draw_contact_sheet"]

_MARGIN, _GAP = 24, 14
"""Pixels around a contact sheet, and between its tiles."""

_SIDE = 220
"""Longer side of a tile's image, in pixels."""

# Captions such as "slice 117" need this width, even below a narrow image.
_MIN_TILE_WIDTH = 84

_COLUMNS = 4
_CAPTION_HEIGHT, _BAR_HEIGHT = 26, 4

# Sheets of captioned images.
_IMAGE_GAP, _IMAGE_CAPTION_HEIGHT, _IMAGE_TEXT_SIZE = 10, 34, 16
_CAPTION_COLOR: Color = (51, 51, 51)


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


Blend: TypeAlias = "Callable[[Pixels, Heat], Pixels]"
"""Function from images ``(T, H, W, 3)`` and heatmaps ``(T, H, W)`` to images."""


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
    places = [(_MARGIN + i // columns * step_y, left + i % columns * step_x) for i in range(len(small))]
    bottom = max(places[-1][0] + height, _MARGIN + large_size[0]) + _BAR_HEIGHT + _CAPTION_HEIGHT
    page: Pixels = np.full((bottom + _GAP, left + columns * step_x - _GAP + _MARGIN, 3), PAPER, np.uint8)
    for group, size, corners in ((large, large_size, [(_MARGIN, _MARGIN)]), (small, (height, width), places)):
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
