"""Slides of microscope makers (SVS, NDPI, MRXS, SCN, DICOM, tiled TIFF ...), read by OpenSlide."""

from __future__ import annotations

from typing import Any

import numpy as np

from camtool.arguments.libraries import import_library
from camtool.errors import ImageError, raise_interrupt
from camtool.inputs.formats.decoding import DECODER_FAULTS
from camtool.slides.readers import (
    Level,
    Pixels,
    SlideReader,
    build_region_error,
    check_mpp,
    check_piece,
    find_downsample,
)


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
    try:
        openslide = import_openslide(path)
    except ImageError:  # who opens slides says why, unless another reader takes the file
        return None
    name: str | None = openslide.OpenSlide.detect_format(path)
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
        try:
            return self._openslide.OpenSlide(self.path)
        except (self._openslide.OpenSlideError, OSError) as error:
            raise_interrupt(error)
            raise ImageError(f"{self.path} cannot be read as a slide: {error}.") from error

    def _get_tile(self, level: int) -> tuple[int, int]:
        """Return the size of a tile as it is stored; one pixel if OpenSlide does not say it."""
        names = (f"openslide.level[{level}].tile-{side}" for side in ("width", "height"))
        width, height = (int(self._slide.properties.get(name, 1)) for name in names)
        return width, height

    def _read_mpp(self) -> float | None:
        """Return the micrometers per pixel; ``None`` if unknown or if pixels are not square."""
        names = (self._openslide.PROPERTY_NAME_MPP_X, self._openslide.PROPERTY_NAME_MPP_Y)
        try:
            across, down = (float(self._slide.properties[name]) for name in names)
        except (KeyError, ValueError):
            return None
        return (across + down) / 2 if abs(across - down) <= 0.02 * max(across, down) else None

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """Return a region of a level; see :meth:`SlideReader.read`."""
        try:
            factor = self._slide.level_downsamples[level]  # OpenSlide's own, as it divides by it again
            region = self._slide.read_region((round(x * factor), round(y * factor)), level, (width, height))
        except (self._openslide.OpenSlideError, *DECODER_FAULTS) as error:
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
