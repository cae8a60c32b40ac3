"""Bands and pages of TIFF files, read from their tags alone: Pillow decodes some files and leaves bands out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO

from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

__all__ = ["first_tags", "is_reduced_page", "is_tiff", "surplus_bands", "tags_of"]

_MAGIC = (b"II*\0", b"MM\0*", b"II+\0")
_BIG = 43

_SUBFILE, _PHOTOMETRIC, _DESCRIPTION, _SAMPLES, _EXTRAS = 254, 262, 270, 277, 338
_COLORS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}
"""The number of samples that make a pixel's color, by photometric interpretation."""
_RGB = 2
_ALPHA = {1, 2}

_CHANNELS = re.compile(r'^channels=(\d+)|SizeC="(\d+)"', re.MULTILINE)
_SHAPE = re.compile(r'^\{.*"shape": \[(\d+), \d+, \d+\]')
_OTHER_AXES = re.compile(r'"axes": "(?!CYX")')
"""A page for each band, as ImageJ, OME and tifffile describe it in the first page."""


def is_tiff(header: bytes) -> bool:
    """Return True if a file that starts with these bytes is a TIFF or a BigTIFF."""
    return header[:4] in _MAGIC


def first_tags(stream: BinaryIO) -> Mapping[int, Any]:
    """Return the tags of the first page of a TIFF; the stream is left at its start.

    Raises:
        Exception: The tags are damaged; the kinds are those that Pillow raises.
    """
    stream.seek(0)
    header = stream.read(8)
    if header[2] == _BIG:  # Pillow reads no big-endian BigTIFF
        header += stream.read(8)
    tags = ImageFileDirectory_v2(header)
    stream.seek(tags.next)
    tags.load(stream)
    stream.seek(0)
    return tags


def tags_of(image: Image.Image) -> Mapping[int, Any]:
    """Return the tags of the page that an opened TIFF stands at; nothing for other formats."""
    return getattr(image, "tag_v2", {})


def surplus_bands(tags: Mapping[int, Any]) -> int | None:
    """Return how many bands a TIFF has if they are more than a picture's gray or color and alpha, else None."""
    samples, photometric = int(tags.get(_SAMPLES, 1)), tags.get(_PHOTOMETRIC, 1)
    color = _COLORS.get(photometric, samples)
    has_alpha = not _ALPHA.isdisjoint(_as_tuple(tags.get(_EXTRAS, ())))
    # A fourth sample of red, green and blue without a meaning is padding, or an alpha that was not declared.
    known = color + (has_alpha or photometric == _RGB)
    if samples > known:
        return samples
    return _bands_as_pages(str(tags.get(_DESCRIPTION, ""))) if samples == 1 else None


def is_reduced_page(image: Image.Image) -> bool:
    """Return True if the page that an opened TIFF stands at is a thumbnail or a mask of another."""
    return bool(tags_of(image).get(_SUBFILE, 0) & 0b101)


def _bands_as_pages(description: str) -> int | None:
    """Return the number of bands in the description of the first page, where each has a page."""
    found = _CHANNELS.search(description)
    if not found and not _OTHER_AXES.search(description):
        found = _SHAPE.search(description)
    bands = int(next(filter(None, found.groups()))) if found else 1
    return bands if bands > 1 else None


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
