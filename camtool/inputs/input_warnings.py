"""Warnings about an input that is probably not what the user meant to give the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from camtool.geometry.crop_and_resize import Geometry
from camtool.warning_codes import MapWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALL_SHARE = 1 / 4
"""A smaller share of the image than this is worth a warning. Center crops keep 57 % of an image of 4:3, 43 % of 16:9,
27 % of 14:5 and 10 % of 15:2: common photos pass, panoramas do not."""

_DARK = 16
"""The highest level that values of 12 bits or fewer reach in a file of 16 bits: 2 ** 12 / 2 ** 16 of 256 levels."""

_BRIGHT = 64
"""Normalized values stay far below this; the brightest byte of an image hardly ever does."""

_ROUNDING = 1e-3
"""The precision of float16 near 1."""

_CONSTANT = "The input is the same everywhere, so there is nothing that the model could have looked at; check the file."


def find_image_warnings(image: Image.Image, geometry: Geometry) -> Iterator[MapWarning]:
    """Yield warnings about an image, or about the part of it that the model sees, one sentence each."""
    extrema = [_get_extrema(band) for band in image.getextrema()]
    brightest = max(high for _, high in extrema)
    if all(low == high for low, high in extrema):
        yield MapWarning(_CONSTANT, "constant-image")
    elif brightest <= _DARK:
        yield MapWarning(
            f"The photo is nearly black (its brightest value is {brightest} of 255); if its file holds fewer bits than "
            "it has space for, read it with camtool.open_image(path, percentiles=(2, 98)), on the command line with "
            "--percentiles 2,98, or give an array of floats in [0, 1].",
            "dark-image",
        )
    share = _compute_seen_share(geometry)
    if share < _SMALL_SHARE:
        yield MapWarning(
            f"The model saw only {share:.0%} of the photo, as its preparation cuts the rest off; to show it all, pass "
            "transform= (--transform) with a resize to the input's size, e.g. Resize((224, 224)), instead of the crop.",
            "small-part-seen",
        )


@dataclass(frozen=True)
class ValueRange:
    """The range of the values of an input.

    Attributes:
        channels: The number of planes.
        lowest: The lowest value; NaN if a value is NaN.
        highest: The highest value; NaN if a value is NaN.
        is_constant: True if each plane has a single value.
    """

    channels: int
    lowest: float
    highest: float
    is_constant: bool

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> ValueRange:
        """Find the range of a floating tensor ``(C, *size)``."""
        low, high = _find_extrema(tensor.detach().flatten(1))
        return cls(len(tensor), float(low.min()), float(high.max()), bool((low == high).all()))


def _find_extrema(planes: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lowest and the highest value of each plane ``(C, P)``."""
    if planes.device.type == "cpu" and planes.dtype in (torch.float32, torch.float64):
        # Torch would divide this among threads, which then wait for more work and keep the cores from an engine for
        # longer than a small model runs.
        arrays = planes.numpy()
        return arrays.min(1), arrays.max(1)
    # Reducing each plane by itself takes a sixth of the time of torch.aminmax over all of them.
    return np.array(planes.amin(1).tolist()), np.array(planes.amax(1).tolist())


def find_tensor_warnings(value_range: ValueRange, black: Tensor | None, white: Tensor | None) -> Iterator[MapWarning]:
    """Yield warnings about a prepared input, one sentence each.

    Args:
        value_range: The range of its values.
        black: ``(C,)``, the value of a black pixel; ``None`` if the normalization is unknown.
        white: ``(C,)``, the value of a white one.
    """
    lowest, highest = value_range.lowest, value_range.highest
    if value_range.is_constant:
        yield MapWarning(_CONSTANT, "constant-image")
    elif (
        value_range.channels in (1, 3)
        and is_byte_range(lowest, highest)
        and (white is None or highest > 2 * float(white.max()))
    ):
        yield MapWarning(
            f"The input's values range from {lowest:g} to {highest:g}, like the bytes of a photo; unless the model "
            "scales them itself, divide by 255 and normalize as in training, or give the photo as uint8.",
            "byte-range",
        )
    elif is_unit_range(lowest, highest) and black is not None and float(black.max()) < 0:
        yield MapWarning(
            "The input's values are in [0, 1], but the model's preparation normalizes them; do that too, or give the "
            "photo instead of a tensor.",
            "not-normalized",
        )


def is_unit_range(lowest: float, highest: float) -> bool:
    """Return True if values from lowest to highest are in [0, 1], up to rounding."""
    return lowest >= -_ROUNDING and highest <= 1 + _ROUNDING


def is_byte_range(lowest: float, highest: float) -> bool:
    """Return True if values from lowest to highest are the bytes of an image rather than normalized values."""
    return lowest >= -_ROUNDING and _BRIGHT < highest <= 255 + _ROUNDING


def _compute_seen_share(geometry: Geometry) -> float:
    """Return the share of the image's area that is in the input, 0 to 1."""
    top, left, bottom, right = geometry.box
    height, width = geometry.photo
    rows = min(max(top, bottom), height) - max(min(top, bottom), 0)
    columns = min(max(left, right), width) - max(min(left, right), 0)
    return max(rows, 0) * max(columns, 0) / (height * width)


def _get_extrema(band: object) -> tuple[int, int]:
    assert isinstance(band, tuple)
    return int(band[0]), int(band[1])
