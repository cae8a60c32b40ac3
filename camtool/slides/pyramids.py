"""Pyramids: an image in halves of its size down to a small one, as a tiled TIFF that slide viewers open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool.arguments.libraries import import_library
from camtool.errors import ImageError
from camtool.hooks.chunks import iterate_chunks
from camtool.progress import Stage
from camtool.rendering.image_writing import open_atomically
from camtool.slides.stitching import allocate_on_disk

if TYPE_CHECKING:
    from camtool.slides.readers import Pixels

_TILE = 256
_ROWS = 512
"""Rows of a level that are halved at once."""

_LARGEST_CLASSIC = 2**31
"""Bytes without compression from which the offsets of 64 bits of BigTIFF are used."""

_MICROMETERS_PER_CENTIMETER = 10000


def build_levels(pixels: Pixels, max_side: int = 2 * _TILE) -> list[Pixels]:
    """Return an image and its halves, down to one whose longer side is at most ``max_side``. They are on disk.

    Args:
        pixels: ``(H, W)`` or ``(H, W, 3)`` uint8.
        max_side: In pixels.
    """
    levels = [pixels]
    while max(levels[-1].shape[:2]) > max_side and min(levels[-1].shape[:2]) > 1:
        levels.append(_halve(levels[-1]))
    return levels


def _halve(pixels: Pixels) -> Pixels:
    """Return the means of 2 x 2 pixels; an odd last row or column is left out."""
    height, width = (side // 2 for side in pixels.shape[:2])
    half = allocate_on_disk((height, width, *pixels.shape[2:]), np.uint8)
    for top in range(0, height, _ROWS):
        part = pixels[2 * top : 2 * min(top + _ROWS, height), : 2 * width].astype(np.uint16)
        total = part[::2, ::2] + part[1::2, ::2] + part[::2, 1::2] + part[1::2, 1::2]
        half[top : top + _ROWS] = (total + 2) // 4
    return half  # type: ignore[no-any-return]


def write_pyramid(path: Path, levels: Sequence[Pixels], mpp: float | None, description: str) -> None:
    """Write levels as a tiled TIFF, completely or not at all.

    Args:
        path: The file.
        levels: Each ``(H, W)`` or ``(H, W, 3)`` uint8, half as large as the one before.
        mpp: Micrometers per pixel of the first one; ``None`` if unknown.
        description: What the image is.

    Raises:
        ImageError: tifffile is not installed.
        OSError: The file cannot be written.
    """
    tifffile = import_library("tifffile", f"{path} is a TIFF, which needs", "'camtool[slides]'", ImageError)
    size = sum(level.size for level in levels)
    with open_atomically(path) as stream, tifffile.TiffWriter(stream, bigtiff=size > _LARGEST_CLASSIC) as file:
        steps = iterate_chunks(len(levels), 1, Stage("Writing", "level"))
        for (number, level), _ in zip(enumerate(levels), steps, strict=True):
            file.write(
                level,
                tile=(_TILE, _TILE),
                photometric="rgb" if level.ndim == 3 else "minisblack",
                compression="adobe_deflate",
                subfiletype=int(number > 0),  # 1: a reduced image of the first one
                description=description.encode("ascii", "backslashreplace").decode("ascii"),
                metadata=None,
                software="camtool",
                **_describe_resolution(mpp, 2**number),
            )


def _describe_resolution(mpp: float | None, factor: int) -> dict[str, Any]:
    if mpp is None:
        return {}
    density = _MICROMETERS_PER_CENTIMETER / (mpp * factor)
    return {"resolution": (density, density), "resolutionunit": "CENTIMETER"}
