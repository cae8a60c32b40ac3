"""DICOM: one image, or the frames of one file, with the values and the contrast that the file asks for.

Pixels go through the modality transformation (rescale or table), then through the VOI transformation (table, window or
the user's window), and MONOCHROME1 is inverted, as DICOM PS3.4 annex N describes the grayscale pipeline.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from camtool.errors import Forgive, ImageError, RaiseAs
from camtool.geometry.origins import Origin
from camtool.inputs.formats import contrast as contrasts
from camtool.inputs.formats.contrast import Contrast
from camtool.inputs.formats.decoding import import_reader, name_in_errors
from camtool.inputs.formats.file_image import FileImage, build_assumed_contrast
from camtool.inputs.formats.reading_options import ReadingOptions
from camtool.warning_codes import MapWarning

_PREAMBLE = 128
_MAGIC = b"DICM"
_META_BYTES = 4096
_DEFLATED = re.escape(b"1.2.840.10008.1.2.1.99")
_INFLATED_BYTES, _INFLATED_PART = 1 << 30, 1 << 24
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
_GRAY = ("MONOCHROME1", "MONOCHROME2")
_GDCM = "python-gdcm"
# Transfer syntax → the package that decodes it: lossless JPEG, JPEG-LS, JPEG with 12 bits.
_PLUGINS = {
    "1.2.840.10008.1.2.4.57": _GDCM,
    "1.2.840.10008.1.2.4.70": _GDCM,
    "1.2.840.10008.1.2.4.80": "pyjpegls",
    "1.2.840.10008.1.2.4.81": "pyjpegls",
    "1.2.840.10008.1.2.4.51": _GDCM,
}
_JPEG_2000 = "pylibjpeg pylibjpeg-openjpeg"


@dataclass(frozen=True, eq=False)
class DicomOrigin(Origin):
    """Place of a DICOM image in the patient.

    Attributes:
        position: ``(x, y, z)`` in mm of the center of the first pixel, towards the patient's left, back and head;
            ``None`` if the file does not say.
        orientation: The direction of a row and of a column, six cosines.
        series: The series' unique identifier.
    """

    position: tuple[float, ...] | None = None
    orientation: tuple[float, ...] | None = None
    series: str | None = None

    format: ClassVar[str] = "DICOM"


def is_dicom(header: bytes) -> bool:
    """Return True if a file that starts with these bytes is a DICOM file; 132 bytes are needed."""
    return header[_PREAMBLE : _PREAMBLE + len(_MAGIC)] == _MAGIC


def read_dicom(stream: BinaryIO, name: str, options: ReadingOptions) -> FileImage:
    """Read a DICOM file: an image, or a volume of its frames.

    Raises:
        ImageError: It is damaged, holds no image, or needs a decoder that is not installed.
    """
    check_options(name, options)
    dataset = open_dataset(stream, name)
    with name_in_errors(name, "DICOM"):
        count = int(dataset.get("NumberOfFrames", None) or 1)
        chosen = options.choose_slice(name, count, "frames")
        frames = range(count) if chosen is None else [chosen]
        planes, needed = len(frames) * dataset.SamplesPerPixel, count_value_bytes(dataset, options)
        options.check_size(name, dataset.Rows, dataset.Columns, planes, needed)
        pixels, photometric = decode_frames(dataset, name, frames)
        parts = [(frame, _get_frame(dataset, index)) for frame, index in zip(pixels, frames, strict=True)]
        return build_file_image(parts, photometric, name, options, slices="frames")


def check_options(name: str, options: ReadingOptions) -> None:
    """Check that the user's options apply to DICOM."""
    options.check_supported(name, "DICOM", "window", "percentiles", "slice")


def open_dataset(stream: BinaryIO, name: str, *, has_pixels: bool = True) -> Any:
    """Parse a DICOM file and check that it holds an image.

    Args:
        stream: The file.
        name: Its name, for messages.
        has_pixels: Read the pixels too.

    Raises:
        ImageError: It is damaged, or holds none.
    """
    pydicom = import_reader("pydicom", "dicom", name, "a DICOM file")
    with name_in_errors(name, "DICOM"):
        _check_inflated_size(stream, name)
        dataset = pydicom.dcmread(stream, stop_before_pixels=not has_pixels)
        is_image = "Rows" in dataset and "Columns" in dataset and "PhotometricInterpretation" in dataset
        if not is_image or (has_pixels and not any(word in dataset for word in _PIXELS)):
            modality = dataset.get("Modality", "") or "unknown"
            raise ImageError(f"{name} is a DICOM file without an image (modality {modality}).")
    return dataset


def _check_inflated_size(stream: BinaryIO, name: str) -> None:
    """Check the size of a file that is compressed as a whole: pydicom unpacks it before any size is known.

    Raises:
        ImageError: It is too large.
    """
    start = stream.read(_META_BYTES)
    stream.seek(0)
    if not re.search(_DEFLATED, start):
        return
    # The group of the file's meta information begins with its own length.
    length = int.from_bytes(start[_PREAMBLE + 12 : _PREAMBLE + 16], "little")
    stream.seek(_PREAMBLE + 16 + length)
    unpacked, inflater = 0, zlib.decompressobj(-zlib.MAX_WBITS)
    data = stream.read()
    while data and unpacked <= _INFLATED_BYTES:
        unpacked += len(inflater.decompress(data, _INFLATED_PART))
        data = inflater.unconsumed_tail
    stream.seek(0)
    if unpacked > _INFLATED_BYTES:
        raise ImageError(f"{name} is too large to be decoded safely: it unpacks to more than {_INFLATED_BYTES} bytes.")


# The attributes that say where an image comes from. None but the first says something of a patient.
TAGS = (
    *("PatientID", "Modality", "InstitutionName", "Manufacturer", "ManufacturerModelName"),
    *("StationName", "BodyPartExamined", "ViewPosition"),
)


def read_tags(path: Path) -> dict[str, str]:
    """Return the attributes in :data:`TAGS` that a DICOM file has; none for another file, or a damaged one."""
    with Forgive(OSError, ImageError), path.open("rb") as stream:
        if is_dicom(stream.read(_PREAMBLE + len(_MAGIC))):
            stream.seek(0)
            dataset = open_dataset(stream, path.name, has_pixels=False)
            return {tag: text for tag in TAGS if (text := str(dataset.get(tag, None) or "").strip())}
    return {}


# ------------------------------------------------------------------------------------------------------- pixels


def count_value_bytes(dataset: Any, options: ReadingOptions) -> int:
    """Return the bytes that reading takes for a value: as stored, decoded, as float32, whether it is valid, drawn."""
    stored = -(-int(dataset.BitsAllocated) // 8)
    return max(2 * stored, stored + 6) + options.percentile_bytes


def decode_frames(dataset: Any, name: str, frames: Sequence[int]) -> tuple[list[NDArray[Any]], str]:
    """Decode frames, ``(H, W)`` or ``(H, W, 3)`` each; return them and their photometric interpretation.

    Raises:
        ImageError: No decoder is installed, or the colors are of another kind.
    """
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.pixels.utils import as_pixel_options

    syntax = dataset.file_meta.TransferSyntaxUID
    text = f"{name} is compressed as {syntax.name}"
    with RaiseAs(lambda _: ImageError(f"{text}, which pydicom cannot decode."), NotImplementedError):
        decoder = get_decoder(syntax)
    package = _PLUGINS.get(syntax, _JPEG_2000)
    if not decoder.is_available:
        raise ImageError(f"{text}, which needs: pip install {package}")
    options = as_pixel_options(dataset)
    if syntax.is_encapsulated:
        _check_compressed(dataset, name, frames)
    hint = f" If it is whole, another decoder may read it: pip install {package}" if syntax.is_compressed else ""
    with RaiseAs(lambda error: ImageError(f"{text} and cannot be decoded: {error}.{hint}"), RuntimeError):
        decoded = [decoder.as_array(dataset, index=index, **options) for index in frames]
    for word in _PIXELS:
        dataset.pop(word, None)  # it takes as much memory as the decoded values
    return _select_colors(decoded, dataset, name)


def _select_colors(
    decoded: Sequence[tuple[NDArray[Any], Mapping[str, Any]]], dataset: Any, name: str
) -> tuple[list[NDArray[Any]], str]:
    """Return decoded frames in gray or RGB, and their photometric interpretation."""
    kinds = {str(properties["photometric_interpretation"]) for _, properties in decoded}
    photometric = kinds.pop()
    if photometric == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        return [apply_color_lut(frame, dataset) for frame, _ in decoded], "RGB"
    # Decoders of JPEG 2000 undo its own color transforms (YBR_ICT, YBR_RCT) and report RGB.
    if kinds or photometric not in (*_GRAY, "RGB"):
        raise ImageError(f"{name} has colors of the kind {photometric}, which is not supported; convert it to RGB.")
    return [frame for frame, _ in decoded], photometric


def _check_compressed(dataset: Any, name: str, frames: Sequence[int]) -> None:
    """Check that compressed frames have the size that the file says: a decoder decodes what the frame itself says.

    Raises:
        ImageError: One has another.
    """
    from pydicom.encaps import get_frame

    size = int(dataset.Columns), int(dataset.Rows)
    count = int(dataset.get("NumberOfFrames", None) or 1)
    for index in frames:
        # JPEG-LS and RLE, which Pillow does not know. Ultralytics replaces Image.open, and asks for a package then.
        with suppress(UnidentifiedImageError, ImportError):
            frame_size = Image.open(BytesIO(get_frame(dataset.PixelData, index, number_of_frames=count))).size
            if frame_size != size:
                raise ImageError(
                    f"{name} is damaged: it says {size[0]} x {size[1]} pixels, and holds {frame_size[0]} x "
                    f"{frame_size[1]}."
                )


def _list_groups(dataset: Any, index: int) -> list[Any]:
    shared = dataset.get("SharedFunctionalGroupsSequence", None) or []
    own = dataset.get("PerFrameFunctionalGroupsSequence", None) or []
    return [*shared[:1], *own[index : index + 1]]


def _get_frame(dataset: Any, index: int) -> Any:
    """Return the attributes of a frame: in enhanced files they are in groups, its own or those of all frames."""
    groups = _list_groups(dataset, index)
    if not groups:
        return dataset
    from pydicom import Dataset

    frame = Dataset()
    frame.update({element.tag: element for element in dataset if element.tag.group == _PIXEL_GROUP})
    for group, keyword in product(groups, _GROUPS):
        for item in (group.get(keyword, None) or [])[:1]:
            frame.update({element.tag: element for element in item})
    for keyword in ("SeriesInstanceUID", "Modality"):
        if keyword in dataset:
            setattr(frame, keyword, dataset.get(keyword))
    frame.file_meta = dataset.file_meta
    return frame


_PIXEL_GROUP = 0x0028
# Groups of an enhanced file that hold the attributes which other files have themselves.
_GROUPS = (
    "PixelValueTransformationSequence",
    "FrameVOILUTSequence",
    "PixelMeasuresSequence",
    "PlanePositionSequence",
    "PlaneOrientationSequence",
)


# ------------------------------------------------------------------------------------------- from pixels to values


def build_file_image(
    parts: Sequence[tuple[NDArray[Any], Any]],
    photometric: str,
    name: str,
    options: ReadingOptions,
    *,
    slices: str,
    notes: tuple[MapWarning, ...] = (),
    spacing: float | None = None,
) -> FileImage:
    """Return the image, or the volume, of one or more frames.

    Args:
        parts: The pixels and the attributes of each frame.
        photometric: The photometric interpretation of the pixels.
        name: The file or the folder, for messages.
        options: The user's.
        slices: What a frame is called in messages.
        notes: What the user should know.
        spacing: The distance of the slices in mm, if it is known.
    """
    first = parts[0][1]
    if photometric == "RGB":
        values, contrast, assumed = _read_colors([pixels for pixels, _ in parts], first, name, options)
    else:
        is_inverted = photometric == "MONOCHROME1"
        values, contrast, assumed = _read_gray(parts, options, is_inverted=is_inverted)
    is_scaled = options.window is not None or options.percentiles is not None
    values = values if len(parts) > 1 else values[0]
    origin = _build_origin(first, name, values.shape[:-1], spacing)
    return FileImage(name, values, contrast, True, is_scaled, slices, origin, (*notes, *assumed))


def _read_colors(
    pixels: Sequence[NDArray[Any]], dataset: Any, name: str, options: ReadingOptions
) -> tuple[NDArray[Any], Contrast, tuple[MapWarning, ...]]:
    """Return RGB values ``(D, H, W, 3)`` and their full range."""
    for option in ("window", "percentiles"):
        if getattr(options, option) is not None:
            raise ImageError(f"{name} is a color image, which needs no {option}=; leave it out.")
    values = np.stack(pixels)
    # A palette has its own number of bits, so the type of the values tells it.
    is_palette = dataset.PhotometricInterpretation == "PALETTE COLOR"
    bits = 8 * values.dtype.itemsize if is_palette else int(dataset.BitsStored)
    return values, Contrast((0.0,), (float(2**bits - 1),)), ()


def _read_gray(
    parts: Sequence[tuple[NDArray[Any], Any]], options: ReadingOptions, *, is_inverted: bool
) -> tuple[NDArray[np.float32], Contrast, tuple[MapWarning, ...]]:
    """Return values ``(D, H, W, 1)`` after the modality transformation, their contrast, and notes."""
    first = parts[0][1]
    values, valid = _compute_values(parts)
    function = _get_function(first)
    # A width of 1 is a threshold in LINEAR; a user who passes it has values in [0, 1] or so.
    is_exact = function == "LINEAR" and options.window is not None and options.window[1] <= 1
    own = "LINEAR_EXACT" if is_exact else function
    chosen = contrasts.choose_contrast(options, values, valid, function=own, is_inverted=is_inverted)
    if chosen is not None:
        return values, chosen, ()
    if first.get("VOILUTSequence", None):
        for plane, (_, frame) in zip(values, parts, strict=True):
            for part in contrasts.cut_parts(plane):
                plane[part] = _apply_table(plane[part], frame.VOILUTSequence[0], frame)
        bits = int(first.VOILUTSequence[0].LUTDescriptor[2])
        white = Contrast((0.0,), (float(2**bits - 1),), is_inverted=is_inverted)
        return values, white, ()
    window = _get_window(first)
    if window is not None:
        return values, Contrast.from_window(*window, function, is_inverted=is_inverted), ()
    assumed, note = build_assumed_contrast(*contrasts.find_range(values, valid), "values")
    return values, replace(assumed, is_inverted=is_inverted), (note,)


def _compute_values(parts: Sequence[tuple[NDArray[Any], Any]]) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
    """Return values ``(D, H, W, 1)`` after the modality transformation, and which are no padding, if some may be."""
    values = np.empty((len(parts), *parts[0][0].shape, 1), np.float32)
    is_padded = any(frame.get("PixelPaddingValue", None) is not None for _, frame in parts)
    valid = np.ones(values.shape, np.bool_) if is_padded else None
    for index, (pixels, frame) in enumerate(parts):
        for part in contrasts.cut_parts(pixels):
            values[index, ..., 0][part] = _apply_modality(pixels[part], frame)
            if valid is not None:
                valid[index, ..., 0][part] = _find_valid(pixels[part], frame)
    return values, valid


def _apply_modality(pixels: NDArray[Any], dataset: Any) -> NDArray[Any]:
    """Return the values of pixels: rescaled, or looked up in the modality table."""
    if dataset.get("ModalityLUTSequence", None):
        return _apply_table(pixels, dataset.ModalityLUTSequence[0], dataset)
    slope, intercept = dataset.get("RescaleSlope", None), dataset.get("RescaleIntercept", None)
    if slope is None or intercept is None:
        return pixels
    return pixels * float(slope) + float(intercept)


def _apply_table(values: NDArray[Any], item: Any, dataset: Any) -> NDArray[Any]:
    """Look values up in a table of DICOM. Values beyond the table get its first or last entry.

    pydicom's own function stores the indices in the type of the results, so those above 255 wrap for 8 bits.
    """
    count, first = (int(number) for number in item.LUTDescriptor[:2])
    entries = item.LUTData
    if isinstance(entries, bytes):
        is_little = dataset.file_meta.TransferSyntaxUID.is_little_endian
        entries = np.frombuffer(entries, "<u2" if is_little else ">u2")
    table = np.asarray(entries, np.uint16)[: count or 2**16]
    index = np.clip(np.rint(values).astype(np.int64) - first, 0, len(table) - 1)
    return np.asarray(table[index])


def _find_valid(pixels: NDArray[Any], dataset: Any) -> NDArray[np.bool_]:
    """Return which pixels are no padding around the image, e.g. beyond the round field of a scanner."""
    padding = dataset.get("PixelPaddingValue", None)
    if not isinstance(padding, int):
        return np.ones(pixels.shape, np.bool_)
    limit = dataset.get("PixelPaddingRangeLimit", None)
    low, high = sorted((padding, limit if isinstance(limit, int) else padding))
    return ~((pixels >= low) & (pixels <= high))


def _get_window(dataset: Any) -> tuple[float, float] | None:
    """Return the first window of a frame, ``(center, width)``; ``None`` if there is none."""
    center, width = (_get_numbers(dataset, word) for word in ("WindowCenter", "WindowWidth"))
    return (center[0], width[0]) if center and width and width[0] > 0 else None


def _get_function(dataset: Any) -> contrasts.WindowFunction:
    """Return the function of the windows of a frame.

    Raises:
        ImageError: The standard has no such function.
    """
    function = str(dataset.get("VOILUTFunction", None) or "LINEAR").upper()
    if function not in get_args(contrasts.WindowFunction):
        raise ImageError(f"the VOI LUT function {function!r} of the file is unknown.")
    return cast("contrasts.WindowFunction", function)


def _build_origin(dataset: Any, name: str, shape: tuple[int, ...], distance: float | None) -> DicomOrigin:
    pixel_spacing = _get_numbers(dataset, "PixelSpacing") or _get_numbers(dataset, "ImagerPixelSpacing")
    spacing: tuple[float, ...] | None = pixel_spacing if pixel_spacing and len(pixel_spacing) == 2 else None
    if spacing is not None and len(shape) == 3:
        spacing = None if distance is None else (distance, *spacing)
    position, orientation = (_get_numbers(dataset, f"Image{word}Patient") for word in ("Position", "Orientation"))
    series = dataset.get("SeriesInstanceUID", None)
    return DicomOrigin(name, shape, spacing, position, orientation, None if series is None else str(series))


def _get_numbers(dataset: Any, keyword: str) -> tuple[float, ...] | None:
    """Return the numbers of an attribute, which may hold one or several; ``None`` if it is absent or empty."""
    value = dataset.get(keyword, None)
    if value is None or value == "":
        return None
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(float(number) for number in several) or None
