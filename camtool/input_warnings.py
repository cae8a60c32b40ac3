"""Warnings about an input: it is probably not what the user thinks that the model got."""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image
from torch import Tensor

from camtool.geometry import Geometry

__all__ = ["about_photo", "about_tensor", "is_byte_range", "is_unit_range"]

_LITTLE = 1 / 4
"""Less of a photo than this is little. Center crops keep 57 % of 4:3, 43 % of 16:9, 27 % of 14:5 and 10 % of 15:2."""

_DARK = 16
"""Values of 12 bits, or fewer, in a file of 16 bits become levels up to this one."""

_BRIGHT = 64
"""Normalized values stay far below this; the brightest byte of a photo hardly ever does."""

_ROUNDING = 1e-3
_CONSTANT = "The input is the same everywhere, so there is nothing that the model could have looked at; check the file."


def about_photo(photo: Image.Image, geometry: Geometry) -> Iterator[str]:
    """Yield what is odd about a photo, or about the part of it that the model sees, one sentence each."""
    extrema = [_pair(band) for band in photo.getextrema()]
    brightest = max(high for _, high in extrema)
    if all(low == high for low, high in extrema):
        yield _CONSTANT
    elif brightest <= _DARK:
        yield (
            f"The photo is nearly black (its brightest value is {brightest} of 255); if its file holds fewer bits than "
            "it has space for, scale it and give an array of floats in [0, 1]."
        )
    share = _share_seen(geometry)
    if share < _LITTLE:
        yield (
            f"The model saw only {share:.0%} of the photo, as its preparation cuts the rest off; to show it all, pass "
            "transform= with a resize to the input's size, e.g. Resize((224, 224)), in the place of the crop."
        )


def about_tensor(tensor: Tensor, black: Tensor | None, white: Tensor | None) -> Iterator[str]:
    """Yield what is odd about a prepared input, one sentence each.

    Args:
        tensor: ``(C, *size)``, floating.
        black: ``(C,)``, the value of a black pixel; ``None`` where the preparation is not known.
        white: ``(C,)``, the value of a white one.
    """
    planes = tensor.detach().flatten(1)
    low, high = planes.amin(1).tolist(), planes.amax(1).tolist()  # a sixth of aminmax's time
    lowest, highest = min(low), max(high)
    if low == high:
        yield _CONSTANT
    elif (
        len(tensor) in (1, 3) and is_byte_range(lowest, highest) and (white is None or highest > 2 * float(white.max()))
    ):
        yield (
            f"The input's values range from {lowest:g} to {highest:g}, like the bytes of a photo; unless the model "
            "scales them itself, divide by 255 and normalize as in training, or give the photo as uint8."
        )
    elif is_unit_range(lowest, highest) and black is not None and float(black.max()) < 0:
        yield (
            "The input's values lie in [0, 1], but the model's preparation normalizes them; do that too, or give the "
            "photo instead of a tensor."
        )


def is_unit_range(lowest: float, highest: float) -> bool:
    """Return True if values from lowest to highest lie in [0, 1], up to rounding."""
    return lowest >= -_ROUNDING and highest <= 1 + _ROUNDING


def is_byte_range(lowest: float, highest: float) -> bool:
    """Return True if values from lowest to highest are those of a photo's bytes, and no normalized ones."""
    return lowest >= -_ROUNDING and _BRIGHT < highest <= 255 + _ROUNDING


def _share_seen(geometry: Geometry) -> float:
    """Return the share of the photo's area that is in the input, 0 to 1."""
    top, left, bottom, right = geometry.box
    height, width = geometry.photo
    rows = min(max(top, bottom), height) - max(min(top, bottom), 0)
    columns = min(max(left, right), width) - max(min(left, right), 0)
    return max(rows, 0) * max(columns, 0) / (height * width)


def _pair(band: object) -> tuple[int, int]:
    assert isinstance(band, tuple)
    return int(band[0]), int(band[1])
