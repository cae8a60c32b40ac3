"""Orientation: how cameras and scanners were held, by the tag of TIFF and EXIF, and values turned upright by it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.errors import Forgive
from camtool.inputs.formats.decoding import DECODER_FAULTS

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
