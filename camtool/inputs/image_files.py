"""Image files: read any supported image as an upright RGB image of eight bits, without running other programs.

Color profiles are not applied, because the usual preprocessing of image models does not apply them either.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from camtool.arguments.checks import check_count, check_not_url, is_web_address
from camtool.arguments.libraries import import_library
from camtool.errors import CamtoolError, ImageError, RaiseAs, raise_interrupt
from camtool.geometry.origins import Origin
from camtool.inputs.decoding_costs import count_jpeg_scans, estimate_memory, get_pixel_bytes
from camtool.inputs.formats import format_table, tiff
from camtool.inputs.formats.contrast import Contrast
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.formats.reading_options import MAX_DRAWN, MAX_PIXELS, ReadingOptions
from camtool.warning_codes import MapWarning

# Image that :func:`read_image` takes: a path, a URL, the bytes of a file, a PIL image, an array, or what
# :func:`open_image` returns. An array is gray ``(H, W)`` or ``(H, W, 1)``, RGB ``(H, W, 3)``, or RGB with alpha ``(H,
# W, 4)``. Its values are uint8, bool (black and white), or floats in [0, 1].
ImageSource: TypeAlias = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[Any] | FileImage

_NAMES = "avif bmp gif heic heif jfif jpeg jpg pbm pgm png pnm ppm tif tiff webp"
# The file suffixes, in lower case, that count as images when a folder is searched; see :func:`has_image_suffix`.
IMAGE_SUFFIXES: frozenset[str] = frozenset(
    (*(f".{name}" for name in _NAMES.split()), *(suffix for suffix in format_table.SUFFIXES if suffix.count(".") == 1))
)

# Most bytes of an image file. Some decoders read the whole file at once.
MAX_BYTES = 2 * 2**30

# The formats that PIL may decode here. It knows more, but some of them run other programs: EPS starts Ghostscript.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF")
# An ISO media file lists the brands that it conforms to; these are HEIC's.
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
# Enough for the magic numbers of all formats and for the list of brands in an ISO media file.
_HEADER_BYTES = 64
# The second frame of other formats (MPO, HEIC) is a preview or a depth map.
_FRAME_FORMATS = ("GIF", "TIFF", "WEBP", "PNG", "AVIF")
# Key of the notes in the info of an image that was read here.
_NOTES = "camtool"
# Key of the origin, where the pixels lie in the file and in the world.
_ORIGIN = "camtool-origin"

# A progressive JPEG has 10 to 20 scans. A small file may hold thousands, and each takes a pass over all pixels.
_JPEG = ("JPEG", "MPO")
_USUAL_SCANS, _SCANNED_PIXELS = 30, 1_000_000_000
# Pixels of a strip of an image that is turned upright or converted: the copies that this takes are small.
_STRIP_PIXELS = 1 << 22
# More frames are not counted: a file may hold millions, and Pillow compares each place with all before.
_MOST_COUNTED = 1000

# PIL raises the second if the user turned warnings into errors.
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
# What PIL's readers raise on a file of another format.
_OTHER_FORMAT = (SyntaxError, IndexError, TypeError, struct.error)

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_SIDE = tuple(_UPRIGHT[number] for number in (5, 6, 7, 8))
# The transpositions that make rows columns, and those after which the first row is the last one.
_FROM_BELOW = tuple(_UPRIGHT[number] for number in (3, 4, 6, 7))


def open_image(path: str | os.PathLike[str] | bytes, **reading: Any) -> FileImage:
    """Read a file with a choice of bands, contrast or slice. ``explain`` takes the result in place of a path.

        camtool.explain(model, camtool.open_image("sentinel.tif", bands=(4, 3, 2), percentiles=(2, 98)))

    Args:
        path: A file, the bytes of one, or a folder with the DICOM slices of one series, which are a volume.
        **reading: ``bands``: numbers of the bands, from 1. ``window``: ``(center, width)`` of the values from black to
            white. ``percentiles``: ``(low, high)``, the same as percentiles of each band. ``slice``: the number of a
            slice, a page or a DICOM frame, from 0, or ``"middle"``. ``axis``: the direction of NIfTI slices,
            ``"axial"``, ``"coronal"``, ``"sagittal"``, or ``"ras"`` for the canonical axes. ``frame``: the number of a
            time step, from 0. ``max_pixels``, ``max_memory``, ``max_drawn``: the limits, as for :func:`read_image`.

    Returns:
        The values, what is black and white, and where the pixels lie.

    Raises:
        ImageError: The file cannot be read, or an option is unknown, not allowed or does not apply to the file.
    """
    options = ReadingOptions.from_user(reading)
    if not isinstance(path, (str, os.PathLike, bytes)):
        raise ImageError(f"path: a path or the bytes of a file are needed; {type(path).__qualname__} came.")
    file_image = read_file_image(path, options)
    if file_image is not None:
        return file_image
    image = read_plain(path, options)
    name = str(path) if not isinstance(path, bytes) else "the bytes"
    white = Contrast((0.0,), (255.0,))
    return FileImage(name, np.asarray(image), white, origin=get_origin(image), notes=get_reading_notes(image))


def read_file_image(source: ImageSource, options: ReadingOptions) -> FileImage | None:
    """Read a source as its file holds it, if it is of a format of science, or a folder of DICOM slices; else None.

    Raises:
        ImageError: It cannot be read, or an option does not apply to it.
    """
    if isinstance(source, FileImage):
        return source
    if isinstance(source, bytes):
        return format_table.read_stream(BytesIO(source), "the bytes", options)
    if isinstance(source, str) and is_web_address(source):
        # read_image downloads it, once.
        options.check_supported(source, "a URL; download the file first, or")
        return None
    if not isinstance(source, (str, os.PathLike)) or not str(source).strip():
        return None
    check_not_url("image", source, ImageError)
    path = Path(source)
    if path.is_dir():
        return format_table.read_folder(path, options)
    with _open_file(path) as stream, _name_in_errors(str(path)):
        return format_table.read_stream(stream, str(path), options)


def has_image_suffix(path: os.PathLike[str] | str) -> bool:
    """Check whether a file name ends with one of :data:`IMAGE_SUFFIXES` or with .nii.gz."""
    name = Path(path).name.lower()
    return Path(name).suffix in IMAGE_SUFFIXES or name.endswith(format_table.SUFFIXES)


def read_image(
    source: ImageSource,
    *,
    max_side: int | None = None,
    max_pixels: int = MAX_PIXELS,
    max_memory: int | None = None,
    max_drawn: int | None = None,
) -> Image.Image:
    """Read an image as a browser shows it, from a file, or from the web if the user names a URL.

    The EXIF orientation is applied, transparent pixels are composited over white, and 16 bits are scaled to 8. The
    content decides the format, not the file name. If there are several frames, the first is read (of a PIL image the
    current one), and :func:`get_reading_notes` says so. PIL's modes "I" and "F" have no defined scale, so the values
    decide: "I" is taken as 8 bits if they fit and else as 16, "F" as [0, 1] if they fit and else as [0, 255].

    Args:
        source: A path, a URL (``http://`` or ``https://``, downloaded as :mod:`camtool.inputs.downloads` says), the
            bytes of a file, a PIL image (which is loaded, not changed), or an array; see :data:`ImageSource`.
        max_side: The longest side of the result in pixels; larger images are reduced. JPEG files are then decoded at
            1/2, 1/4 or 1/8 of their size, as far as that is enough, which takes a part of the time and memory.
        max_pixels: The most pixels that a file may have. A PIL image or an array is in memory already, and is not
            limited.
        max_memory: The most bytes that reading a file may take, so that a small file cannot fill the memory; by default
            850 MB, or 4 bytes for each of ``max_pixels`` if that is more. Decoders take 4 to 20 bytes for
            each pixel, e.g. 4 for a baseline JPEG and 17 for WebP.
        max_drawn: The most pixels of the result if ``max_side`` is not given: a larger photo is reduced by a whole
            factor, and :func:`get_reading_notes` says so.

    Returns:
        A new image of mode "RGB" without metadata. Reading it again changes nothing.

    Raises:
        ImageError: The file does not exist, cannot be downloaded, is no image or is damaged; it takes more than
            ``max_pixels`` or ``max_memory`` allow, has more bytes than :data:`MAX_BYTES` or more bands than an image;
            or the array's shape, dtype or range is not allowed.
    """
    options = ReadingOptions(max_pixels=max_pixels, max_memory=max_memory, max_drawn=max_drawn)
    return read_plain(source, options, max_side)


def read_plain(source: ImageSource, options: ReadingOptions, max_side: int | None = None) -> Image.Image:
    """Read an image as :func:`read_image` does, with the limits of the options.

    Raises:
        ImageError: As of :func:`read_image`.
    """
    check_count("max_side", max_side, optional=True, error=ImageError)
    options = options if max_side is None else replace(options, max_drawn=None)
    if isinstance(source, (str, os.PathLike)):
        return _read_place(source, max_side, options)
    if isinstance(source, bytes):
        return _decode(BytesIO(source), "the bytes", max_side, options)
    if isinstance(source, FileImage):
        return _flatten(source, max_side, options)
    if isinstance(source, Image.Image):
        return _add_notes(limit_side(_load(source), max_side), source)
    if isinstance(source, np.ndarray):
        return limit_side(_make_plain(_convert_array(source), "the array"), max_side)
    raise ImageError(f"source must be a path, bytes, a PIL image or a NumPy array; {type(source).__qualname__} came.")


def _read_place(source: str | os.PathLike[str], max_side: int | None, options: ReadingOptions) -> Image.Image:
    """Read a file, a folder of a series, or a URL."""
    if isinstance(source, str) and not source.strip():
        raise ImageError(f"the path is empty ({source!r}); give the path of an image.")
    if isinstance(source, str) and is_web_address(source):
        from camtool.inputs.downloads import download_image

        return _decode(BytesIO(download_image(source)), source, max_side, options)
    check_not_url("image", source, ImageError)
    path = Path(source)
    volume = format_table.read_folder(path, options) if path.is_dir() else None
    if volume is not None:
        return _flatten(volume, max_side, options)
    with _open_file(path) as stream:
        return _decode(stream, str(path), max_side, options)


def _load(image: Image.Image) -> Image.Image:
    name = str(getattr(image, "filename", "")) or "the PIL image"
    with _name_in_errors(name):
        image.load()
    # A user who has chosen a frame has seen that the file has several.
    if image.tell() == 0:
        _check_bands(tiff.get_page_tags(image), name)
    return _make_plain(image, name)


def get_reading_notes(image: Image.Image) -> tuple[MapWarning, ...]:
    """Return what the user should know about an image that :func:`read_image` returned, one sentence each."""
    return tuple(image.info.get(_NOTES, ()))


def get_origin(image: Image.Image) -> Origin | None:
    """Return where the pixels of an image that :func:`read_image` returned lie in its file and in the world."""
    origin = image.info.get(_ORIGIN)
    return origin if isinstance(origin, Origin) else None


# ------------------------------------------------------------------------------------------------------ decoding


def _open_file(path: Path) -> BinaryIO:
    """Open an ordinary file, or raise an error with the reason."""
    try:
        # Opening a pipe would wait forever.
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES:
            return path.open("rb")
        if stat.S_ISREG(status.st_mode):
            reason = f"it has {status.st_size:,} bytes, and an image file may have {MAX_BYTES:,}"
        else:
            reason = "it is a folder" if path.is_dir() else "it is not an ordinary file"
    except FileNotFoundError:
        reason = "there is no such file"
    except OSError as error:
        raise_interrupt(error)
        reason = error.strerror or str(error)
    except ValueError as error:
        # There is a NUL in the name.
        reason = str(error)
    raise ImageError(f"{path} cannot be read: {reason}.")


def _decode(stream: BinaryIO, name: str, max_side: int | None, options: ReadingOptions) -> Image.Image:
    """Identify the format of a stream and decode it to a plain image, whose sides are at most ``max_side``."""
    with _name_in_errors(name):
        header = stream.read(_HEADER_BYTES)
        stream.seek(0)
        if not header:
            raise ImageError(f"{name} cannot be read: empty, 0 bytes.")
        file_image = format_table.read_stream(stream, name, options)
    if file_image is not None:
        return _flatten(file_image, max_side, options)
    return _decode_photo(stream, header, name, max_side, options)


def _decode_photo(
    stream: BinaryIO, header: bytes, name: str, max_side: int | None, options: ReadingOptions
) -> Image.Image:
    formats = _list_formats(header, name)
    with _name_in_errors(name, _UNREADABLE_TIFF if tiff.is_tiff(header) else ""):
        image = _open_image(stream, header, formats)
        options.check_size(name, image.height, image.width)
        size, scans = image.size, _check_scans(image, stream, name) if image.format in _JPEG else 1
        # Pillow turns an image upright, and forgets that it did, when it loads it.
        tags = tiff.get_page_tags(image)
        origin = tiff.build_tiff_origin(tags, name, size[::-1]) if tiff.is_tiff(header) else None
        factor = options.choose_factor(size)
        fit = (max(1, size[0] // factor), max(1, size[1] // factor)) if max_side is None else fit_size(size, max_side)
        if fit != size:
            image.draft(None, fit)  # a reduced scale that is not below this size, of JPEG alone
        factor = options.choose_factor(image.size) if max_side is None else _choose_factor(image.size, max_side)
        options.check_memory(name, estimate_memory(image, size, scans, factor))
        image.load()
    is_plain = factor == 1 and _is_plain(image)
    is_reduced = max_side is not None and max(image.size) > max_side
    copied = image.width * image.height * ((not is_plain) + is_reduced) // factor**2
    options.check_memory(name, image.width * image.height * get_pixel_bytes(image.mode) + 4 * copied)
    # Pillow's own way to another image with the same pixels: a copy would double the memory of most photos.
    plain = image._new(image.im) if is_plain else _make_plain(image, name, factor)
    plain.info = {}
    plain = _add_notes(limit_side(plain, max_side), image)
    if origin is not None:
        plain.info[_ORIGIN] = origin
    return plain if max_side is not None else _note_reduction(plain, size)


def _flatten(file_image: FileImage, max_side: int | None, options: ReadingOptions) -> Image.Image:
    """Return what a file holds as a plain image."""
    plain = limit_side(file_image.to_photo(), max_side)
    size, factor = plain.size, options.choose_factor(plain.size)
    plain = plain if factor == 1 else plain.reduce(factor)
    plain.info.update({_NOTES: file_image.notes, _ORIGIN: file_image.origin})
    return _note_reduction(plain, size)


def _note_reduction(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Add a note to an image that has fewer pixels than its file, which has this size."""
    if image.width * image.height < size[0] * size[1]:
        note = (
            f"The photo has {size[0]} x {size[1]} pixels and was reduced to {image.width} x {image.height} to save "
            f"memory; for more of them, add --max-side {max(size)}."
        )
        image.info[_NOTES] = (*get_reading_notes(image), MapWarning(note, "photo-reduced"))
    return image


def _choose_factor(size: tuple[int, int], max_side: int) -> int:
    """Return by how much the sides of a large photo are divided at first: at least two pixels for one are left."""
    return max(1, max(size) // (2 * max_side)) if size[0] * size[1] > MAX_DRAWN else 1


def limit_side(image: Image.Image, max_side: int | None) -> Image.Image:
    """Return an image whose sides are at most ``max_side``."""
    if max_side is None or max(image.size) <= max_side:
        return image
    return image.resize(fit_size(image.size, max_side), Image.Resampling.LANCZOS)


def fit_size(size: tuple[int, int], max_side: int) -> tuple[int, int]:
    """Return a size with the same proportions whose longer side is at most ``max_side``."""
    scale = min(1, max_side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _check_bands(tags: Mapping[int, Any], name: str) -> None:
    """Check that a TIFF has no more bands than an image; Pillow would decode the first ones or fail.

    Raises:
        ImageError: It has more.
    """
    bands = tiff.count_surplus_bands(tags)
    if bands is not None:
        raise ImageError(
            f"{name} has {bands} bands, and an image has 1 (gray) or 3 (red, green, blue). {_CHOOSE_BANDS} "
            "tifffile.imread(path) returns all bands as an array."
        )


_UNREADABLE_TIFF = (
    " It is a TIFF of numbers that Pillow does not read; choose what is black and white: camtool.open_image(path, "
    "percentiles=(2, 98)), or give an array: tifffile.imread(path)."
)

_CHOOSE_BANDS = (
    "Choose the bands: an array (H, W, 3) of uint8 or of floats in [0, 1] for a model of photos, e.g. "
    "bands[..., [3, 2, 1]] of an array (H, W, bands); or a floating tensor (bands, H, W), normalized as in training, "
    "for a model that takes them all."
)


def _add_notes(plain: Image.Image, source: Image.Image) -> Image.Image:
    """Add to a plain image what the user should know about its source, and where its pixels lie."""
    notes = get_reading_notes(source) or _describe_frames(source)
    if notes:
        plain.info[_NOTES] = notes
    origin = get_origin(source)
    if origin is not None:
        plain.info[_ORIGIN] = origin
    return plain


def _describe_frames(image: Image.Image) -> tuple[MapWarning, ...]:
    """Return a sentence on the frames behind the first one, unless the user has chosen another."""
    if image.format not in _FRAME_FORMATS or image.tell() != 0:
        return ()
    try:
        if image.format == "GIF":  # it is not known how many frames there are before all of the file is read
            frames = 0 if getattr(image, "is_animated", False) else 1
        else:
            frames = _count_whole_pages(image) if image.format == "TIFF" else getattr(image, "n_frames", 1)
    except Exception as error:  # noqa: BLE001  a decoder may raise anything
        raise_interrupt(error, ImportError, MemoryError)
        # A later frame is damaged, but the first can be read.
        return ()
    note = (
        f"The file holds {frames or 'several'} frames or pages and only the first was read; to choose another, pass a "
        "PIL image: image = PIL.Image.open(path); image.seek(1)."
    )
    return (MapWarning(note, "frames-ignored"),) if frames != 1 else ()


def _count_whole_pages(image: Image.Image) -> int:
    """Count the pages of a TIFF that are no thumbnails or masks of others; the image stays at its first page."""
    whole = 0
    try:
        with suppress(EOFError):  # after the last one
            for frame in range(_MOST_COUNTED):
                image.seek(frame)
                whole += not tiff.is_reduced_page(image)
    finally:
        image.seek(0)
    return whole


def _name_in_errors(name: str, unknown: str = "") -> RaiseAs:
    """Turn what PIL raises while it opens and decodes into an :class:`ImageError` with the image's name.

    Args:
        name: The path, or what to call the image.
        unknown: A sentence to add if PIL does not know the format; it starts with a space.
    """

    def build(error: Exception) -> ImageError:
        if isinstance(error, _BOMBS):
            advice = "Save it again with fewer pixels, or give a PIL image."
            return ImageError(f"{name} is too large to be decoded safely: {str(error).rstrip('.')}. {advice}")
        if isinstance(error, UnidentifiedImageError):
            formats = ", ".join([*_FORMATS, "HEIC"])
            return ImageError(f"{name} is no image: its content is none of {formats}.{unknown}")
        return ImageError(f"{name} is damaged or cut short: {error}.")

    return RaiseAs(build, Exception, unless=(CamtoolError, ImportError, MemoryError))


def _list_formats(header: bytes, name: str) -> list[str]:
    """Return the formats, in PIL's names, that a file with this header may have."""
    # An ISO media file names the brands that it conforms to; AVIF differs from HEIC in the brand alone.
    brands = {header[start : start + 4] for start in range(8, len(header), 4)}
    if header[4:8] != b"ftyp" or _HEIC_BRANDS.isdisjoint(brands):
        Image.init()
        # AVIF came with Pillow 11.3.
        return [each for each in _FORMATS if each in Image.OPEN]
    need = f"{name} is a HEIC image, which needs"
    import_library("pillow_heif", need, "'camtool[heic]'", ImageError).register_heif_opener()
    return ["HEIF"]


def _open_image(stream: BinaryIO, header: bytes, formats: Iterable[str]) -> Image.Image:
    """Return the image that one of the readers of PIL opens; its pixels are not decoded yet.

    ``PIL.Image.open`` would warn of many pixels, or refuse them, by a limit of the whole process.

    Raises:
        UnidentifiedImageError: None of them knows the format.
    """
    for format_name in formats:
        factory, accept = Image.OPEN[format_name]
        answer = accept is None or accept(header)
        if not answer or isinstance(answer, str):  # a string says that a library is missing
            continue
        stream.seek(0)
        with suppress(*_OTHER_FORMAT):
            return factory(stream, "")
    raise UnidentifiedImageError(f"none of {', '.join(formats)}")


def _check_scans(image: Image.Image, stream: BinaryIO, name: str) -> int:
    """Return the number of scans in a JPEG.

    Raises:
        ImageError: Together they take too long.
    """
    most = max(_USUAL_SCANS, _SCANNED_PIXELS // (image.width * image.height))
    position = stream.tell()
    scans = count_jpeg_scans(stream, most + 1)
    stream.seek(position)
    if scans > most:
        raise ImageError(f"{name} is not decoded: it has more than {most:,} scans, and photos have up to 20.")
    return scans


def _convert_array(array: npt.NDArray[Any]) -> Image.Image:
    """Return an array ``(H, W)`` or ``(H, W, 1|3|4)`` as a PIL image of mode L, RGB or RGBA."""
    _check_array(array)
    if array.dtype != np.uint8:
        array = _scale_to_levels(array, _choose_white(array, "the array", whites=(1,)))
    return Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)


def _check_array(array: npt.NDArray[Any]) -> None:
    if array.dtype != np.uint8 and array.dtype.kind not in "bf":
        hint = " Divide by the largest value that a pixel can have." if array.dtype.kind in "iu" else ""
        raise ImageError(f"the array has dtype {array.dtype}; uint8, bool, or floats in [0, 1] are allowed.{hint}")
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (1, 3, 4)):
        hint = _suggest_shape(array)
        raise ImageError(f"the array has shape {array.shape}; (H, W) or (H, W, 1|3|4) is allowed.{hint}")
    if array.size == 0:
        raise ImageError(f"the array has shape {array.shape}: no pixels.")


def _suggest_shape(array: npt.NDArray[Any]) -> str:
    """Return, for a message, what to do with an array that is no photo."""
    if array.ndim == 3 and array.shape[0] in (1, 3, 4):  # (C, H, W), as in PyTorch
        return " Channels come last: array.transpose(1, 2, 0)."
    return f" {_CHOOSE_BANDS}" if array.ndim == 3 and min(array.shape) > 1 else ""


# ------------------------------------------------------------------------------------------- from decoded to plain


def _is_plain(image: Image.Image) -> bool:
    """Return True if the pixels of a loaded image need no change."""
    return image.mode == "RGB" and not image.has_transparency_data and _find_transposition(image) is None


def _make_plain(image: Image.Image, name: str, factor: int = 1) -> Image.Image:
    """Return a loaded image as a new RGB image of eight bits: upright, on white, without metadata.

    Args:
        image: The loaded image.
        name: What to call it in errors.
        factor: Divides its sides: each pixel is the mean of a square of this side.
    """
    if 0 in image.size:
        raise ImageError(f"{name} has {image.width} x {image.height} pixels: it is empty.")
    transposition, white = _find_transposition(image), _find_white(image, name)
    is_on_side = transposition in _ON_SIDE
    width, height = (-(-side // factor) for side in image.size)  # a part of a pixel counts as one
    canvas = Image.new("RGB", (height, width) if is_on_side else (width, height), "white")
    for top, strip in _cut_strips(image, factor):
        plain = _convert_strip(strip, white)
        plain = plain if factor == 1 else plain.reduce(factor)
        start = height - top // factor - plain.height if transposition in _FROM_BELOW else top // factor
        if transposition is not None:
            plain = plain.transpose(transposition)
        canvas.paste(plain, (start, 0) if is_on_side else (0, start))
    return canvas


def _cut_strips(image: Image.Image, factor: int = 1) -> Iterator[tuple[int, Image.Image]]:
    """Yield strips of rows, a multiple of ``factor``, and where they begin; a small image as it is."""
    rows = factor * max(1, _STRIP_PIXELS // (factor * image.width))
    if rows >= image.height:
        yield 0, image
        return
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _convert_strip(image: Image.Image, white: int | None) -> Image.Image:
    """Return a strip as RGB on white; ``white`` is the value of white if there are more than eight bits."""
    if white is not None:
        values = np.asarray(image)
        levels = _scale_to_levels(values, white)
        transparent = image.info.get("transparency")
        if transparent is not None:  # a gray PNG may declare one value so
            levels[values == transparent] = 255
        image = Image.fromarray(levels)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    # PIL converts La (premultiplied alpha) to LA only.
    image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(image, mask=image)
    return canvas


def _find_transposition(image: Image.Image) -> Image.Transpose | None:
    """Return the transposition that makes the image upright; None if the EXIF data has none or is damaged."""
    return _UPRIGHT.get(tiff.get_orientation(image))


def _find_white(image: Image.Image, name: str) -> int | None:
    """Return the value of white of the gray modes of more than eight bits (I;16 and its variants, I, F); else None."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return None
    if image.mode == "F":
        whites: tuple[int, ...] = (1, 255)
    elif image.mode == "I" and image.format not in ("PNG", "PPM"):
        whites = (255, 65535)
    else:
        # In PNG and PPM, mode I holds 16 bits.
        whites = (65535,)
    ranges = np.array([(array.min(), array.max()) for array in (np.asarray(strip) for _, strip in _cut_strips(image))])
    return _choose_white(ranges, name, whites)


def _choose_white(values: npt.NDArray[Any], name: str, whites: tuple[int, ...]) -> int:
    """Return the first white so that all values are in [0, white].

    Raises:
        ImageError: There is none.
    """
    low, high = float(values.min()), float(values.max())
    # A float is in range if its nearest level exists: denormalizing gives values such as 1.0000001.
    slack = 0.49 if values.dtype.kind == "f" else 0
    for white in whites:
        if low * 255 / white >= -slack and high * 255 / white <= 255 + slack:
            return white
    problem = f"range from {low:g} to {high:g}" if low <= high else "contain NaN"
    hint = " Divide by 255, or convert to uint8." if whites == (1,) and 0 <= low <= high <= 255 else ""
    if whites != (1,):
        hint = " To choose what is black and white, use camtool.open_image(path, percentiles=(2, 98))."
    raise ImageError(f"the values of {name} {problem}; [0, {whites[-1]}] is allowed.{hint}")


def _scale_to_levels(values: npt.NDArray[Any], white: int) -> npt.NDArray[np.uint8]:
    """Scale [0, white] to the nearest of the levels 0 to 255."""
    if values.dtype == np.uint16:  # a table takes a tenth of the time
        return np.take(_scale_to_levels(np.arange(1 << 16), white), values)
    levels: npt.NDArray[np.uint8] = np.rint(values.astype(np.float32) * np.float32(255 / white)).astype(np.uint8)
    return levels
