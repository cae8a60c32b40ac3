"""Readers of slides: levels, resolution, and regions at any scale in bounded memory.

OpenSlide reads the files of microscope makers (SVS, NDPI, MRXS, SCN, DICOM, tiled TIFF ...), tifffile pyramidal TIFF
files that OpenSlide does not know, such as OME-TIFF, piece by piece.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.arguments.checks import check_not_url
from camtool.arguments.libraries import import_library
from camtool.errors import ImageError, RaiseAs, raise_interrupt
from camtool.inputs.formats.decoding import hide_log, name_in_errors

Pixels: TypeAlias = NDArray[np.uint8]

# Pixels of a level that are read at once, 16 MiB with transparency; larger regions are read in parts.
_MOST_PIXELS = 2**22

# Larger tiles or strips are refused: reading one takes the memory of a whole image, and OpenSlide ends the process if
# there is not so much.
_MOST_PIXELS_IN_PIECE = 2**26

# Slides are scanned at 0.1 to 10 micrometers per pixel. A larger number is that of a printer: 72 dots per inch are
# 353 micrometers.
_COARSEST_MPP = 50.0


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


class SlideReader(AbstractContextManager["SlideReader"]):
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
    right, down = (width // 2, 0) if width >= height else (0, height // 2)
    first = read_scaled(reader, scale, x, y, right or width, down or height)
    second = read_scaled(reader, scale, x + right, y + down, width - right, height - down)
    return np.concatenate([first, second], axis=1 if right else 0)


def build_region_error(path: str, error: Exception) -> ImageError:
    """Return the error for a region that cannot be read."""
    return ImageError(f"{path}: a region of the slide cannot be read: {error}.")


def import_openslide(name: str) -> Any:
    """Return the package ``openslide``.

    Args:
        name: The slide that needs it, for the message.

    Raises:
        ImageError: It is not installed, or its import fails, e.g. as its library is missing.
    """
    return import_library("openslide", f"slide {name!r} needs OpenSlide", "'camtool[slides]'", ImageError)


def find_format(path: str) -> str | None:
    """Return OpenSlide's name for the format of a file; ``None`` if it does not know it or cannot be imported."""
    name: str | None = None
    with suppress(ImageError):  # who opens slides says why, unless another reader takes the file
        name = import_openslide(path).OpenSlide.detect_format(path)
    return name


class OpenSlideReader(SlideReader):
    """A slide that OpenSlide reads.

    Args:
        path: The file.

    Raises:
        ImageError: The file is damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._openslide = import_openslide(path)
        self._slide = self._open()
        sizes: list[tuple[int, int]] = list(self._slide.level_dimensions)
        for number, (width, height) in enumerate(sizes):
            check_piece(path, width, height, self._get_tile(number))
        self.levels = [Level(width, height, find_downsample(sizes[0], (width, height))) for width, height in sizes]
        self.mpp = check_mpp(self._read_mpp())

    def _open(self) -> Any:
        faults = self._openslide.OpenSlideError, OSError
        with RaiseAs(lambda error: ImageError(f"{self.path} cannot be read as a slide: {error}."), *faults):
            return self._openslide.OpenSlide(self.path)

    def _get_tile(self, level: int) -> tuple[int, int]:
        """Return the size of a tile as it is stored; one pixel if OpenSlide does not say it."""
        names = (f"openslide.level[{level}].tile-{side}" for side in ("width", "height"))
        width, height = (int(self._slide.properties.get(name, 1)) for name in names)
        return width, height

    def _read_mpp(self) -> float | None:
        """Return the micrometers per pixel; ``None`` if unknown or if pixels are not square."""
        names = (self._openslide.PROPERTY_NAME_MPP_X, self._openslide.PROPERTY_NAME_MPP_Y)
        with suppress(KeyError, ValueError):
            across, down = (float(self._slide.properties[name]) for name in names)
            return (across + down) / 2 if abs(across - down) <= 0.02 * max(across, down) else None
        return None

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Return a region of a level; see :meth:`SlideReader.read`."""
        try:
            factor = self._slide.level_downsamples[level]  # OpenSlide's own, as it divides by it again
            region = self._slide.read_region((round(x * factor), round(y * factor)), level, (width, height))
        except Exception as error:
            raise_interrupt(error)
            # After an error OpenSlide refuses every other region.
            self._slide.close()
            self._slide = self._open()
            raise build_region_error(self.path, error) from error
        return _put_on_white(np.asarray(region))

    def close(self) -> None:
        """Close the file."""
        self._slide.close()


def _put_on_white(region: Pixels) -> Pixels:
    """Return RGBA pixels ``(H, W, 4)`` on white; what was not scanned is transparent."""
    alpha = region[..., 3:]
    if alpha.min() == 255:
        return np.ascontiguousarray(region[..., :3])
    opacity = alpha.astype(np.float32) / 255
    return np.rint(region[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)


# Most decoded tiles or strips that are kept, as neighboring regions share them.
_PIECES = 64

# Memory of these pieces; there are fewer if they are large.
_CACHED_BYTES = 2**28

# TIFF's unit of resolution, inch or centimeter → micrometers.
_MICROMETERS = {2: 25400.0, 3: 10000.0}

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
        with RaiseAs(partial(build_region_error, self.path), Exception):
            count = page.databytecounts[index]
            if not count:
                return None
            stream.seek(page.dataoffsets[index])
            values = page.decode(stream.read(count), index, jpegtables=page.jpegtables)[0]
            pixels = np.asarray(values)[0]
            return np.ascontiguousarray(np.broadcast_to(pixels[..., :3], (*pixels.shape[:2], 3)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open_tiff(path: str) -> Any:
    tifffile = import_library("tifffile", f"{path} is a TIFF, which needs", "'camtool[slides]'", ImageError)
    # It is no library of exact errors: a short file is a struct.error.
    with RaiseAs(lambda error: ImageError(f"{path} cannot be read as a TIFF: {error}."), Exception):
        return tifffile.TiffFile(path)


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


# OpenSlide's name for tiled TIFF files of no microscope's maker. It does not see the sub-files of OME.
_PLAIN_TIFF = "generic-tiff"

_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def open_slide(path: str | PathLike[str]) -> SlideReader:
    """Open a slide by OpenSlide, or by tifffile if OpenSlide does not know the file.

    Raises:
        ImageError: There is no such file, it is no slide, or what reads it is not installed.
    """
    check_not_url("slide", path, ImageError)
    name = fspath(path)
    if not Path(name).is_file():
        raise ImageError(f"slide {name!r}: there is no such file.")
    with name_in_errors(name, "a slide"):
        return _open_by_format(name)


def _open_by_format(name: str) -> SlideReader:
    kind = find_format(name)
    if kind is not None:
        slide = OpenSlideReader(name)
        return slide if kind != _PLAIN_TIFF else _choose_more_levels(slide)
    with Path(name).open("rb") as stream:
        is_tiff = stream.read(4) in _TIFF_MAGIC
    if is_tiff:
        return TiffReader(name)
    import_openslide(name)
    raise ImageError(
        f"slide {name!r} is of no format that OpenSlide reads, and no TIFF. For a photo, use camtool.explain or "
        "camtool run."
    )


def _choose_more_levels(slide: SlideReader) -> SlideReader:
    """Return OpenSlide's reader of a tiled TIFF, or tifffile's if that sees more levels."""
    try:
        with name_in_errors(slide.path, "a TIFF"):
            other = TiffReader(slide.path)
    except ImageError:  # tifffile is not installed, or does not take this file
        return slide
    if len(other.levels) <= len(slide.levels):
        other.close()
        return slide
    slide.close()
    return other
