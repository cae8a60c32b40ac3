"""What the slide readers share: levels, resolution, and regions at any scale in bounded memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from typing_extensions import Self

from camtool.errors import ImageError

Pixels: TypeAlias = NDArray[np.uint8]

_MOST_PIXELS = 2**22
"""Pixels of a level that are read at once, 16 MiB with transparency; larger regions are read in parts."""

_MOST_PIXELS_IN_PIECE = 2**26
"""Larger tiles or strips are refused: reading one takes the memory of a whole image, and OpenSlide ends the process if
there is not so much."""

_COARSEST_MPP = 50.0
"""Slides are scanned at 0.1 to 10 micrometers per pixel. A larger number is that of a printer: 72 dots per inch are
353 micrometers."""


@dataclass(frozen=True)
class Level:
    """One resolution of a slide.

    Attributes:
        width: Pixels from left to right.
        height: Pixels from top to bottom.
        downsample: Pixels of level 0 along the side of one pixel.
    """

    width: int
    height: int
    downsample: float


class SlideReader(ABC):
    """An open slide, which reads regions of its levels.

    Attributes:
        path: The file, as the user named it.
        levels: The levels, the finest first.
        mpp: Micrometers per pixel of level 0; ``None`` if the file does not say.
    """

    path: str
    levels: Sequence[Level]
    mpp: float | None

    @abstractmethod
    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Return a region of a level, ``(height, width, 3)`` uint8. What lies outside the scanned area is white.

        Args:
            level: The index of the level.
            x: The left edge in pixels of this level; may be negative.
            y: The upper edge.
            width: Pixels to read.
            height: Pixels to read.

        Raises:
            ImageError: The region is damaged.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_downsample(whole: tuple[int, int], reduced: tuple[int, int]) -> float:
    """Return how many pixels of level 0 lie along the side of a pixel of a reduced level.

    Writers round the size of a level down or up, so the ratio of sizes is slightly off: 10001 / 2500 stands for 4.
    """
    ratio = (whole[0] / reduced[0] + whole[1] / reduced[1]) / 2
    factor = round(ratio)
    is_whole = all(side / factor - 1 < small < side / factor + 1 for side, small in zip(whole, reduced, strict=True))
    return float(factor) if is_whole else ratio


def check_piece(path: str, width: int, height: int, piece: tuple[int, int]) -> None:
    """Check the tiles or strips that a level is stored in.

    Args:
        path: The file.
        width: Pixels of the level from left to right.
        height: Pixels from top to bottom.
        piece: Width and height of a tile or a strip.

    Raises:
        ImageError: They are too large to be read safely.
    """
    if min(width, height, *piece) < 1:
        raise ImageError(f"{path} is damaged: it has a level of {width} x {height} pixels in tiles of {piece}.")
    if piece[0] * piece[1] > _MOST_PIXELS_IN_PIECE:
        raise ImageError(
            f"{path} stores {width} x {height} pixels in pieces of {piece[0]} x {piece[1]}; write it in tiles, e.g. "
            "with vips tiffsave --tile --pyramid."
        )


def check_mpp(mpp: float | None) -> float | None:
    """Return a resolution that a microscope may have had, else ``None``."""
    return mpp if mpp is not None and math.isfinite(mpp) and 0 < mpp < _COARSEST_MPP else None


def read_scaled(reader: SlideReader, scale: float, x: float, y: float, width: int, height: int) -> Pixels:
    """Return a region at any scale, ``(height, width, 3)`` uint8, from the coarsest level that is fine enough.

    Args:
        reader: The slide.
        scale: Pixels of level 0 along the side of one pixel of the result; at least 1.
        x: The left edge, in pixels of the result's scale.
        y: The upper edge.
        width: Pixels of the result.
        height: Pixels of the result.

    Raises:
        ImageError: The region is damaged.
    """
    # The coarsest level that is at least as fine as the scale. Scales are quotients of floats, e.g. of micrometers per
    # pixel.
    index = max(i for i, level in enumerate(reader.levels) if level.downsample <= scale * (1 + 1e-6) or i == 0)
    ratio = scale / reader.levels[index].downsample  # pixels of the level along a pixel of the result
    ratio = 1.0 if math.isclose(ratio, 1, rel_tol=1e-6) else ratio
    if ratio == 1 and float(x).is_integer() and float(y).is_integer():
        return reader.read(index, int(x), int(y), width, height)
    if max(width, height) > 1 and width * height * ratio**2 > _MOST_PIXELS:
        return _read_halves(reader, scale, x, y, width, height)
    left, top, right, bottom = ratio * x, ratio * y, ratio * (x + width), ratio * (y + height)
    first, above = math.floor(left), math.floor(top)
    pixels = reader.read(index, first, above, math.ceil(right) - first, math.ceil(bottom) - above)
    box = (left - first, top - above, right - first, bottom - above)
    # Of PIL's filters that average, this one moves nothing by a part of a pixel.
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR, box))


def _read_halves(reader: SlideReader, scale: float, x: float, y: float, width: int, height: int) -> Pixels:
    """Return a region that is too large to be read at once."""
    if width >= height:
        half = width // 2
        left = read_scaled(reader, scale, x, y, half, height)
        return np.concatenate([left, read_scaled(reader, scale, x + half, y, width - half, height)], axis=1)
    half = height // 2
    upper = read_scaled(reader, scale, x, y, width, half)
    return np.concatenate([upper, read_scaled(reader, scale, x, y + half, width, height - half)], axis=0)


def build_region_error(path: str, error: Exception) -> ImageError:
    """Return the error for a region that cannot be read."""
    return ImageError(f"{path}: a region of the slide cannot be read: {error}.")
