"""PNG with a chosen contrast: gray images of 16 bits, as microscopes and depth cameras write them."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.errors import ImageError
from camtool.inputs.formats import contrast as contrasts
from camtool.inputs.formats.decoding import name_in_errors
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.formats.reading_options import ReadingOptions
from camtool.inputs.tiff import get_orientation, turn_upright

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def is_png(header: bytes) -> bool:
    """Return True if a file that starts with these bytes is a PNG."""
    return header.startswith(_SIGNATURE)


def read_png(stream: BinaryIO, name: str, options: ReadingOptions) -> FileImage | None:
    """Read a gray PNG with the user's contrast; ``None`` without options: other code reads usual photos.

    Raises:
        ImageError: It is damaged, or no gray image.
    """
    if not options.list_given():
        return None
    options.check_supported(name, "PNG", "window", "percentiles")
    with name_in_errors(name, "PNG"):
        image = Image.open(stream, formats=["PNG"])
        # As Pillow decodes it and as an array, of up to 4 and 2 bytes, and what is drawn.
        options.check_size(name, image.height, image.width, value_bytes=8 + options.percentile_bytes)
        if image.mode != "L" and image.mode != "I" and not image.mode.startswith("I;16"):
            raise ImageError(
                f"{name} is a PNG of mode {image.mode}; window= and percentiles= apply to gray images. Pillow reads "
                "8 of the 16 bits of color PNGs; save it as TIFF to keep them."
            )
        values: NDArray[np.uint8 | np.uint16] = np.asarray(image)
    # Pillow's mode I holds 16 bits in PNG.
    values = values[..., None] if image.mode == "L" else values.astype(np.uint16)[..., None]
    values = np.ascontiguousarray(turn_upright(values, get_orientation(image)))
    return FileImage(name, values, contrasts.choose_contrast(options, values), is_scaled=True)
