"""Pyramidal TIFF files that OpenSlide does not know, such as OME-TIFF, read piece by piece by tifffile."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from camtool.arguments.libraries import import_library
from camtool.errors import ImageError, raise_interrupt
from camtool.inputs.formats.decoding import hide_log
from camtool.slides.readers import (
    Level,
    Pixels,
    SlideReader,
    build_region_error,
    check_mpp,
    check_piece,
    find_downsample,
)

_PIECES = 64
"""Most decoded tiles or strips that are kept, as neighboring regions share them."""

_CACHED_BYTES = 2**28
"""Memory of these pieces; there are fewer if they are large."""

_MICROMETERS = {2: 25400.0, 3: 10000.0}
"""TIFF's unit of resolution, inch or centimeter → micrometers."""

_OME_SIZE = re.compile(r'PhysicalSizeX="([\d.eE+-]+)"')
_OME_UNIT = re.compile(r'PhysicalSizeXUnit="([^"]*)"')
_OME_UNITS = {"µm": 1.0, "\u03bcm": 1.0, "&#181;m": 1.0, "nm": 1e-3, "mm": 1e3}


class TiffReader(SlideReader):
    """A TIFF with levels of 8-bit gray or RGB, stored in tiles or strips.

    Args:
        path: The file.

    Raises:
        ImageError: It is no such TIFF, or tifffile is not installed.
    """

    @hide_log("tifffile")
    def __init__(self, path: str) -> None:
        self.path = path
        self._file = _open_tiff(path)
        try:
            self._pages = [_check_page(path, level) for level in self._file.series[0].levels]
            sizes = [(page.imagewidth, page.imagelength) for page in self._pages]
            self.levels = [Level(*size, find_downsample(sizes[0], size)) for size in sizes]
            self.mpp = check_mpp(_read_mpp(self._file))
        except BaseException:
            self.close()
            raise
        # A method decorated with a cache would keep every reader alive.
        largest = max(3 * math.prod(_get_piece(page)) for page in self._pages)
        self._decode_cached = lru_cache(max(1, min(_PIECES, _CACHED_BYTES // largest)))(self._decode)

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Return a region of a level; see :meth:`SlideReader.read`."""
        page = self._pages[level]
        region = np.full((height, width, 3), 255, np.uint8)
        piece_width, piece_height = _get_piece(page)
        across = -(-page.imagewidth // piece_width)
        left, top = max(x, 0), max(y, 0)
        right, bottom = min(x + width, page.imagewidth), min(y + height, page.imagelength)
        for row in range(top // piece_height, -(-bottom // piece_height)):
            for column in range(left // piece_width, -(-right // piece_width)):
                piece = self._decode_cached(level, row * across + column)
                if piece is not None:
                    # The last tiles are padded.
                    inside = piece[: page.imagelength - row * piece_height, : page.imagewidth - column * piece_width]
                    _paste(region, inside, column * piece_width - x, row * piece_height - y)
        return region

    @hide_log("tifffile")
    def _decode(self, level: int, index: int) -> Pixels | None:
        """Return a tile or a strip; ``None`` for one that was left out."""
        page, stream = self._pages[level], self._file.filehandle
        try:
            count = page.databytecounts[index]
            if not count:
                return None
            stream.seek(page.dataoffsets[index])
            values = page.decode(stream.read(count), index, jpegtables=page.jpegtables)[0]
            pixels = np.asarray(values)[0]
            return np.ascontiguousarray(np.broadcast_to(pixels[..., :3], (*pixels.shape[:2], 3)))
        except Exception as error:
            raise_interrupt(error)
            raise build_region_error(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open_tiff(path: str) -> Any:
    tifffile = import_library("tifffile", f"{path} is a TIFF, which needs", "'camtool[slides]'", ImageError)
    try:
        return tifffile.TiffFile(path)
    except Exception as error:  # it is no library of exact errors: a short file is a struct.error
        raise_interrupt(error)
        raise ImageError(f"{path} cannot be read as a TIFF: {error}.") from error


def _check_page(path: str, level: Any) -> Any:
    """Return the page of a level, if its pixels are those of a photo and lie in pieces.

    Raises:
        ImageError: They are not, or the level has several pages.
    """
    page = level.pages[0].keyframe
    # Photometric interpretations 1, 2 and 6: black is zero, RGB, YCbCr of JPEG, which the decoder makes RGB.
    is_photo = page.samplesperpixel in (1, 3, 4) and page.planarconfig == 1 and page.photometric in (1, 2, 6)
    if len(level.pages) > 1 or page.dtype != np.uint8 or not is_photo:
        raise ImageError(
            f"{path} holds {level.dtype} of axes {level.axes} {level.shape}; a slide is 8-bit gray or RGB in one "
            "plane. Choose a plane and channels, and write them as a tiled RGB TIFF."
        )
    check_piece(path, page.imagewidth, page.imagelength, _get_piece(page))
    return page


def _get_piece(page: Any) -> tuple[int, int]:
    """Return width and height of a tile or a strip."""
    if page.is_tiled:
        return int(page.tilewidth), int(page.tilelength)
    return int(page.imagewidth), int(min(page.rowsperstrip, page.imagelength))


def _paste(region: Pixels, piece: Pixels, x: int, y: int) -> None:
    """Copy the part of a piece at (x, y) that lies in the region."""
    height, width = min(len(piece), len(region) - y), min(piece.shape[1], region.shape[1] - x)
    above, before = max(-y, 0), max(-x, 0)
    if height > above and width > before:
        region[y + above : y + height, x + before : x + width] = piece[above:height, before:width]


def _read_mpp(file: Any) -> float | None:
    """Return the micrometers per pixel of OME's metadata, or of the tags of resolution; ``None`` if unknown."""
    size = _OME_SIZE.search(file.ome_metadata or "")
    if size:
        unit = _OME_UNIT.search(file.ome_metadata)
        factor = _OME_UNITS.get(unit[1]) if unit else 1.0  # micrometers are OME's default
        return None if factor is None else float(size[1]) * factor
    tags = file.pages[0].tags
    if "XResolution" not in tags or "ResolutionUnit" not in tags:
        return None
    numerator, denominator = tags["XResolution"].value
    micrometers = _MICROMETERS.get(int(tags["ResolutionUnit"].value))
    return micrometers * denominator / numerator if micrometers and numerator else None
