"""The table of formats: how a file is recognized, and the function that reads it.

Of PNG, the gray ones of 16 bits are read here, as microscopes and depth cameras write them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.arguments.regular_files import name_file_in_errors
from camtool.errors import ImageError
from camtool.inputs.formats import contrast as contrasts
from camtool.inputs.formats.decoding import name_in_errors
from camtool.inputs.formats.dicom import is_dicom, read_dicom
from camtool.inputs.formats.dicom_series import holds_dicom, list_dicom_files, read_series
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.formats.nifti import is_nifti, read_nifti
from camtool.inputs.formats.reading_options import ReadingOptions
from camtool.inputs.formats.tiff import get_orientation, is_tiff, read_tiff, turn_upright

# From a file at its start, its name and the user's options to the image; ``None`` if it is a usual photo.
Reader: TypeAlias = Callable[[BinaryIO, str, ReadingOptions], FileImage | None]

# Bytes by which a file is recognized; a compressed NIfTI file needs more than its header's 348.
HEADER_BYTES = 4096


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        name: Its name.
        suffixes: Suffixes that count as images when a folder is searched, in lower case.
        matches: Whether a file starts with these bytes.
        read: Reads a file.
    """

    name: str
    suffixes: tuple[str, ...]
    matches: Callable[[bytes], bool]
    read: Reader


def _read_png(stream: BinaryIO, name: str, options: ReadingOptions) -> FileImage | None:
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


# All formats, in the order in which they are tried.
FORMATS: tuple[Format, ...] = (
    # A DICOM file may hold anything in its first 128 bytes, also the start of a TIFF, so it is tried first.
    Format("DICOM", (".dcm", ".dicom", ".ima"), is_dicom, read_dicom),
    Format("NIfTI", (".nii", ".nii.gz"), is_nifti, read_nifti),
    Format("TIFF", (".tif", ".tiff"), is_tiff, read_tiff),
    Format("PNG", (".png",), lambda header: header.startswith(b"\x89PNG\r\n\x1a\n"), _read_png),
)

# The suffixes of all formats.
SUFFIXES: tuple[str, ...] = tuple(suffix for file_format in FORMATS for suffix in file_format.suffixes)


def read_stream(stream: BinaryIO, name: str, options: ReadingOptions) -> FileImage | None:
    """Read a file of one of the formats; ``None`` if it is a usual photo. The stream is then at its start.

    Raises:
        ImageError: It cannot be read, or the options do not apply to it.
    """
    header = stream.read(HEADER_BYTES)
    stream.seek(0)
    file_format = next((candidate for candidate in FORMATS if candidate.matches(header)), None)
    image = None if file_format is None else file_format.read(stream, name, options)
    if image is None:
        options.check_supported(name, "this file" if file_format is None else file_format.name)
        stream.seek(0)
    return image


def read_folder(folder: Path, options: ReadingOptions) -> FileImage | None:
    """Read a folder of DICOM slices as a volume; ``None`` if it holds none."""
    with name_file_in_errors(folder, ImageError):
        return read_series(folder, options) if list_dicom_files(folder) else None


def is_dicom_file(path: Path) -> bool:
    """Check whether a file without a usual suffix is an image of DICOM: scanners name files by numbers."""
    is_numbered = path.suffix == "" or path.suffix[1:].isdigit()
    # The run reports a file that cannot be read when it opens it, if it is one of its photos.
    return path.name != "DICOMDIR" and is_numbered and holds_dicom(path)
