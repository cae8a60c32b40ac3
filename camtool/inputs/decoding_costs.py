"""Memory that decoding a photo takes, by what its header says: a small file may claim any size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from camtool.inputs.formats.tiff import get_page_tags

# Bytes for each pixel that a decoder takes beside the decoded image. Measured with Pillow 12.3: 12.0 (WebP), 7.0 (AVIF
# of 8 bits; twice as much with 12 bits), and 8.5 (HEIC with pillow-heif).
_DECODER_BYTES = {"WEBP": 13, "AVIF": 16, "HEIF": 9}

# Bytes of one of the coefficients of a JPEG file in several scans, which are all kept until the last scan.
_COEFFICIENT_BYTES = 2

_START_OF_SCAN = b"\xff\xda"
_PART = 1 << 20

# Tag numbers of the TIFF 6.0 specification.
_BITS, _SAMPLES, _STRIP_ROWS, _TILE_WIDTH, _TILE_HEIGHT = 258, 277, 278, 322, 323


def estimate_memory(image: Image.Image, size: tuple[int, int], scans: int = 1, factor: int = 1) -> int:
    """Return the bytes that decoding takes at most, of an image that is opened and not decoded yet.

    Args:
        image: The opened image, after ``draft``, which reduces a JPEG.
        size: Its size before.
        scans: The scans of a JPEG; see :func:`count_jpeg_scans`.
        factor: Divides its sides when it is converted.
    """
    pixels = image.width * image.height
    beside: float = pixels * _DECODER_BYTES.get(image.format or "", 0)
    if scans > 1:
        beside = _COEFFICIENT_BYTES * size[0] * size[1] * _count_coefficients(image)
    elif image.format == "TIFF":
        beside = _measure_piece(get_page_tags(image), size)
    if image.mode != "RGB" or factor > 1:
        beside = max(beside, pixels // factor**2 * get_pixel_bytes("RGB"))  # it is converted when it is decoded
    return int(pixels * get_pixel_bytes(image.mode) + beside)


def get_pixel_bytes(mode: str) -> int:
    """Return the bytes of a pixel in Pillow's memory."""
    return 2 if mode.startswith("I;16") else 1 if mode in ("1", "L", "P") else 4


def count_jpeg_scans(stream: BinaryIO, enough: int) -> int:
    """Return the number of scans in a JPEG file, or ``enough`` if there are more; 1 for most photos of cameras.

    A decoder goes over all pixels in each scan, and a scan may have a few bytes.
    """
    if _holds_one_scan(stream):
        return 1
    stream.seek(0)
    count, last = 0, b""
    while count < enough and (part := stream.read(_PART)):
        count += (last + part).count(_START_OF_SCAN)
        last = part[-1:]
    return min(count, enough)


def _holds_one_scan(stream: BinaryIO) -> bool:
    """Return True if the first scan of a baseline JPEG file holds all of its components."""
    components = b""
    stream.seek(2)
    while len(head := stream.read(4)) == 4 and head[0] == 0xFF:
        body = stream.read(max(0, int.from_bytes(head[2:], "big") - 2))
        if head[:2] == _START_OF_SCAN:
            return body[:1] == components
        if head[1] in (0xC0, 0xC1):  # baseline and extended; the others are progressive or lossless
            components = body[5:6]
    return False


def _count_coefficients(image: Image.Image) -> float:
    """Return the number of coefficients for each pixel of a JPEG; components of color may have fewer than one."""
    layers = getattr(image, "layer", [])
    across, down = (max((layer[axis] for layer in layers), default=1) for axis in (1, 2))
    return float(sum(layer[1] * layer[2] for layer in layers) / max(1, across * down))


def _measure_piece(tags: Mapping[int, Any], size: tuple[int, int]) -> float:
    """Return the bytes of a strip or a tile of a TIFF, which is decoded at once; tiles may be larger than the image."""
    bits = float(np.max(tags.get(_BITS, 1))) * int(tags.get(_SAMPLES, 1))
    if _TILE_WIDTH in tags:
        pixels = int(tags[_TILE_WIDTH]) * int(tags.get(_TILE_HEIGHT, 1))
    else:
        pixels = size[0] * min(int(tags.get(_STRIP_ROWS, size[1])), size[1])
    return 1.2 * pixels * bits / 8  # and what it is compressed to
