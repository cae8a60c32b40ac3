"""Bands, pages and orientation of TIFF files, by their tags: Pillow decodes some files and leaves bands out silently.

EXIF data has the tag of the orientation, too: how cameras and scanners were held.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from camtool.errors import Forgive
from camtool.inputs.formats.decoding import DECODER_FAULTS

# Little-endian TIFF, big-endian TIFF, little-endian BigTIFF.
_MAGIC = (b"II*\0", b"MM\0*", b"II+\0")
# The version number of BigTIFF; that of TIFF is 42.
_BIG = 43

# Tag numbers of the TIFF 6.0 specification.
_SUBFILE, _PHOTOMETRIC, _DESCRIPTION, _SAMPLES, _EXTRAS = 254, 262, 270, 277, 338
_COLORS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}
"""The number of samples that make a pixel's color, by photometric interpretation."""
_RGB = 2
REDUCED = 0b101
"""Bits of the kind of a page: bit 0 is a reduced version of another image, bit 2 a transparency mask."""
ALPHA = {1, 2}
"""Values of ExtraSamples: associated and unassociated alpha."""

_CHANNELS = re.compile(r'^channels=(\d+)|SizeC="(\d+)"', re.MULTILINE)
_SHAPE = re.compile(r'^\{.*"shape": \[(\d+), \d+, \d+\]')
_OTHER_AXES = re.compile(r'"axes": "(?!CYX")')
"""Patterns of a page for each band, as ImageJ, OME and tifffile write it into the first page's description."""


def is_tiff(header: bytes) -> bool:
    """Return True if a file that starts with these bytes is a TIFF or a BigTIFF."""
    return header[:4] in _MAGIC


def read_first_tags(stream: BinaryIO) -> Mapping[int, Any]:
    """Return the tags of the first page of a TIFF, and set the stream back to its start.

    Raises:
        Exception: The tags are damaged; the kinds are those that Pillow raises.
    """
    stream.seek(0)
    header = stream.read(8)
    # A BigTIFF has a header of 16 bytes. Pillow reads no big-endian ones.
    if header[2] == _BIG:
        header += stream.read(8)
    tags = ImageFileDirectory_v2(header)
    stream.seek(tags.next)
    tags.load(stream)
    stream.seek(0)
    return tags


def get_page_tags(image: Image.Image) -> Mapping[int, Any]:
    """Return the tags of the current page of an opened TIFF; none for other formats."""
    return getattr(image, "tag_v2", {})


def count_surplus_bands(tags: Mapping[int, Any]) -> int | None:
    """Return the number of a TIFF's bands if it has more than an image's color and alpha, else None."""
    samples, photometric = int(tags.get(_SAMPLES, 1)), tags.get(_PHOTOMETRIC, 1)
    color = _COLORS.get(photometric, samples)
    has_alpha = not ALPHA.isdisjoint(_to_tuple(tags.get(_EXTRAS, ())))
    # A fourth sample of an RGB image without a declared meaning is padding or an undeclared alpha.
    known = color + (has_alpha or photometric == _RGB)
    if samples > known:
        return samples
    return _count_bands_in_description(str(tags.get(_DESCRIPTION, ""))) if samples == 1 else None


def is_reduced_page(image: Image.Image) -> bool:
    """Return True if the current page of an opened TIFF is a thumbnail or a mask of another page."""
    return bool(get_page_tags(image).get(_SUBFILE, 0) & REDUCED)


def _count_bands_in_description(description: str) -> int | None:
    """Return the number of bands by the description of the first page, if each band has a page."""
    match = _CHANNELS.search(description)
    if not match and not _OTHER_AXES.search(description):
        match = _SHAPE.search(description)
    bands = int(next(filter(None, match.groups()))) if match else 1
    return bands if bands > 1 else None


def _to_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


# ------------------------------------------------------------------------------------------------- orientation

ORIENTATION_TAG = 274
_ON_SIDE = (5, 6, 7, 8)
_FLIPPED = {2: (-2,), 3: (-3, -2), 4: (-3,), 6: (-2,), 7: (-3, -2), 8: (-3,)}
"""Orientations that exchange rows and columns, and the axes that run backwards after that."""


def get_orientation(image: Image.Image) -> Any:
    """Return the orientation of a loaded image, 1 to 8; 1 if the EXIF data has none or is damaged."""
    with Forgive(*DECODER_FAULTS):
        return image.getexif().get(ORIENTATION_TAG, 1)
    return 1  # the pixels can be read, and image viewers show them


def turn_upright(values: NDArray[Any], orientation: Any) -> NDArray[Any]:
    """Return a view of values ``(..., H, W, C)`` that is upright; an unknown orientation changes nothing."""
    turned = values.swapaxes(-3, -2) if orientation in _ON_SIDE else values
    upright: NDArray[Any] = np.flip(turned, _FLIPPED.get(orientation, ()))
    return upright
