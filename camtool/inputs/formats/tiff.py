"""TIFF with several bands, slices or time steps, or with numbers that need a contrast: microscopy and remote sensing.

Usual TIFF photos are left to Pillow. The coordinate reference system and the transform of a GeoTIFF are kept, and
written again with heatmaps.

Also bands, pages and orientation of all TIFF files, by their tags: Pillow decodes some files and leaves bands out
silently. EXIF data has the tag of the orientation, too: how cameras and scanners were held.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from camtool.errors import Forgive, ImageError
from camtool.geometry.origins import Origin, fit_to_origin
from camtool.inputs.formats import contrast as contrasts
from camtool.inputs.formats.decoding import hide_log, name_in_errors
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.formats.reading_options import ReadingOptions
from camtool.warning_codes import MapWarning

# Tags of the GeoTIFF 1.1 specification, with the types in which they are written.
_SCALE, _TIEPOINT, _MATRIX, _KEYS, _DOUBLES, _TEXTS = 33550, 33922, 34264, 34735, 34736, 34737
_TAG_TYPES = {_SCALE: "d", _TIEPOINT: "d", _MATRIX: "d", _KEYS: "H", _DOUBLES: "d", _TEXTS: "s"}
# Keys of the GeoTIFF 1.1 specification, section 7.
_RASTER_TYPE, _CITATION = 1025, 1026
_GEODETIC, _GEODETIC_CITATION = 2048, 2049
_PROJECTED, _PROJECTED_CITATION = 3072, 3073
_PIXEL_IS_POINT, _USER_DEFINED = 2, 32767


@dataclass(frozen=True, eq=False)
class TiffOrigin(Origin):
    """Place of a TIFF image in the world.

    Attributes:
        tags: The GeoTIFF tags, by number; empty for a TIFF without.
        crs: The coordinate reference system, ``"EPSG:32633"``, or the name that the file gives; ``None`` without one.
        transform: ``(a, b, c, d, e, f)`` as of rasterio: ``x = a column + b row + c``, ``y = d column + e row + f``
            of the upper left corner of a pixel; ``None`` without one.
    """

    tags: Mapping[int, Any]
    crs: str | None
    transform: tuple[float, float, float, float, float, float] | None

    format: ClassVar[str] = "TIFF"
    unit: ClassVar[str] = "units of the coordinate reference system"
    suffixes: ClassVar[tuple[str, ...]] = (".tif", ".tiff")

    def write_heatmap(self, path: Path, heatmap: NDArray[np.float32]) -> None:
        """Write a heatmap as a float32 TIFF of the file's size, with its GeoTIFF tags.

        Raises:
            ImageError: The heatmap is that of a stack.
        """
        import tifffile

        from camtool.rendering.image_writing import open_atomically

        if heatmap.ndim != len(self.shape):
            raise ImageError(f"{path}: the heatmap is {heatmap.shape}, but the image of {self.name} is {self.shape}.")
        heatmap = fit_to_origin(heatmap, self.shape)
        buffer = BytesIO()
        tags = [(tag, _TAG_TYPES[tag], _count(value), value, True) for tag, value in self.tags.items()]
        tifffile.imwrite(
            buffer, heatmap, photometric="minisblack", compression="zlib", metadata=None, extratags=tags, software=False
        )
        with open_atomically(path) as stream:
            stream.write(buffer.getvalue())


def build_tiff_origin(tags: Mapping[int, Any], name: str, shape: tuple[int, ...]) -> TiffOrigin | None:
    """Return the origin of a TIFF from its tags by number.

    ``None`` if the file asks to be shown rotated: GeoTIFF has no meaning for that, and a heatmap would be misplaced.
    """
    if tags.get(_ORIENTATION, 1) != 1:
        return None
    plain_tags = {tag: _to_plain(tags[tag]) for tag in _TAG_TYPES if tag in tags}
    keys = _parse_keys(plain_tags)
    transform = _find_transform(plain_tags, keys)
    spacing = None
    if transform is not None and len(shape) == 2:
        a, b, _, d, e, _ = transform
        spacing = (float(np.hypot(b, e)), float(np.hypot(a, d)))
    return TiffOrigin(name, shape, spacing, plain_tags, _find_crs(keys), transform)


def _to_plain(value: Any) -> Any:
    """Return the value of a tag as Pillow or tifffile reads it: a text, or a tuple of numbers."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else tuple(value) if hasattr(value, "__len__") else (value,)


def _count(value: Any) -> int:
    return 0 if isinstance(value, str) else len(value)


def _parse_keys(tags: Mapping[int, Any]) -> dict[int, int | str]:
    """Return the whole numbers and texts of the key directory, by key."""
    directory, texts = tags.get(_KEYS, ()), str(tags.get(_TEXTS, ""))
    entries: dict[int, int | str] = {}
    for start in range(4, len(directory) - 3, 4):
        key, location, count, value = (int(number) for number in directory[start : start + 4])
        if location == 0:
            entries[key] = value
        elif location == _TEXTS:
            entries[key] = texts[value : value + count].rstrip("|\0")
    return entries


def _find_crs(keys: Mapping[int, int | str]) -> str | None:
    for key in (_PROJECTED, _GEODETIC):
        code = keys.get(key)
        if isinstance(code, int) and 0 < code < _USER_DEFINED:
            return f"EPSG:{code}"
        if code == _USER_DEFINED:
            break
    names = (keys.get(key) for key in (_PROJECTED_CITATION, _CITATION, _GEODETIC_CITATION))
    return next((str(name) for name in names if name), None)


def _find_transform(
    tags: Mapping[int, Any], keys: Mapping[int, int | str]
) -> tuple[float, float, float, float, float, float] | None:
    if len(tags.get(_MATRIX, ())) == 16:
        matrix = tags[_MATRIX]
        a, b, c, d, e, f = (float(matrix[index]) for index in (0, 1, 3, 4, 5, 7))
    elif len(tags.get(_SCALE, ())) >= 2 and len(tags.get(_TIEPOINT, ())) == 6:
        across, down = (float(scale) for scale in tags[_SCALE][:2])
        column, row, _, x, y, _ = (float(coordinate) for coordinate in tags[_TIEPOINT])
        a, b, c, d, e, f = across, 0.0, x - column * across, 0.0, -down, y + row * down
    else:
        return None
    if keys.get(_RASTER_TYPE) == _PIXEL_IS_POINT:
        # The coordinates are those of the centers of pixels.
        c, f = c - (a + b) / 2, f - (d + e) / 2
    return a, b, c, d, e, f


# Tag numbers of the TIFF 6.0 specification, and of GDAL.
_DESCRIPTION, _PHOTOMETRIC, _EXTRA_SAMPLES, _SAMPLE_FORMAT, _NODATA = 270, 262, 338, 339, 42113
_SIGNED = 2
_ASSOCIATED = 1
# Descriptions of the first page that say what the pages are: of ImageJ, OME and tifffile.
_DECLARED = re.compile(r'^ImageJ=|<OME|^\{.*"shape": ')
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _YCBCR = 0, 1, 2, 6
# Bytes that a value takes while it is drawn.
_DRAWN_BYTES = 2
# Strips or tiles that tifffile decodes at once, at most.
_THREADS = 8
# Bytes that a byte of a TIFF may be unpacked to: Deflate reaches 1032.
_MOST_UNPACKED = 1100
_ORDER = "TZYXCS"
# tifffile's letters of axes. Pages without a declared meaning are "I" or "Q".
_ROLES = {"T": "T", "Z": "Z", "I": "Z", "Q": "Z", "Y": "Y", "X": "X", "C": "C", "S": "S"}


def read_tiff(stream: BinaryIO, name: str, options: ReadingOptions) -> FileImage | None:
    """Read a TIFF; ``None`` if it is a usual photo and no option was given, which Pillow reads.

    Raises:
        ImageError: It is damaged, or its axes or colors are of an unusual kind.
    """
    with name_in_errors(name, "TIFF"):
        tags = _read_first_tags(stream)
        bands = count_surplus_bands(tags)
        is_declared = bool(_DECLARED.search(str(tags.get(_DESCRIPTION, ""))))
        is_signed = _SIGNED in np.atleast_1d(tags.get(_SAMPLE_FORMAT, 1))
    # Pillow takes signed numbers of 8 bits for unsigned ones.
    may_be_photo = not options.list_given() and bands is None and not is_signed
    if may_be_photo and not is_declared:
        return None
    options.check_supported(name, "TIFF", "bands", "window", "percentiles", "slice", "frame")
    import tifffile

    with name_in_errors(name, "TIFF"), _raise_logged_errors(), tifffile.TiffFile(stream, _multifile=False) as file:
        series = file.series[0]
        axes = _name_axes(series, name, are_bands=bands is not None)
        sizes = dict(zip(axes, series.shape, strict=True))
        if may_be_photo and {axis for axis in sizes if sizes[axis] > 1} <= {*"YXS"}:
            return None
        _check_series(series, sizes, name, options)
        array = series.asarray(maxworkers=_THREADS)
        if array.shape != series.shape:
            raise ValueError(f"{array.shape} of {series.shape} values are there")
        array = tifffile.transpose_axes(array, axes, _ORDER)
        stack = array.reshape(*array.shape[:4], -1)  # (T, Z, Y, X, bands)
        page_tags = {tag.code: tag.value for tag in series.keyframe.tags}
        notes = _describe_series(file.series)
    return replace(_build_file_image(stack, sizes, page_tags, name, options), notes=notes)


@contextmanager
def _raise_logged_errors() -> Iterator[None]:
    """Raise the first error that tifffile logs in this thread: it logs damage and goes on with zeros.

    Raises:
        ValueError: It has logged one.
    """
    with hide_log("tifffile") as errors:
        yield
    if errors:
        raise ValueError(errors[0])


def _name_axes(series: Any, name: str, *, are_bands: bool) -> str:
    """Return the axes of a series in the letters of :data:`_ORDER`.

    Raises:
        ImageError: There is an axis of another kind, e.g. the lifetime of fluorescence.
    """
    has_colors = "C" in series.axes or "S" in series.axes
    roles = {**_ROLES, "Q": "C", "I": "C"} if are_bands and not has_colors else _ROLES
    unknown = [axis for axis in series.axes if axis not in roles]
    axes = "".join(roles.get(axis, axis) for axis in series.axes)
    if unknown or len({*axes}) < len(axes):
        raise ImageError(
            f"{name} has the axes {series.axes} {series.shape}; camtool reads T (time), Z (depth), C (bands), Y and X. "
            "Choose an image: tifffile.imread(path) returns all of them as an array."
        )
    return axes


def _describe_series(series: Sequence[Any]) -> tuple[MapWarning, ...]:
    """Return a note on the series behind the first one, e.g. pages of another size, that are no thumbnails or masks."""
    whole = sum(not each.keyframe.subfiletype & _REDUCED for each in series)
    note = (
        f"The file holds {whole} series of frames or pages and only the first was read; to choose another, pass an "
        "array: tifffile.imread(path, series=1)."
    )
    return (MapWarning(note, "frames-ignored"),) if whole > 1 else ()


def _check_series(series: Any, sizes: Mapping[str, int], name: str, options: ReadingOptions) -> None:
    """Check a series before it is decoded.

    Raises:
        ImageError: It is too large, its pages are in other files, or its values are no plain numbers.
    """
    height, width = sizes.get("Y", 1), sizes.get("X", 1)
    # The decoded values and the chosen ones; then those that are drawn.
    needed = 2 * series.dtype.itemsize + _DRAWN_BYTES + options.percentile_bytes
    options.check_size(name, height, width, math.prod(n for axis, n in sizes.items() if axis not in "YX"), needed)
    _check_pages(series, name, options)
    if any(page is None for page in series.pages):
        raise ImageError(f"{name} lacks some of its pages; they may be in other files of the same OME data set.")
    if series.dtype.kind not in "biuf":
        raise ImageError(f"{name} holds values of the type {series.dtype}; real numbers are needed.")
    photometric = int(series.keyframe.photometric)
    if photometric not in (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _YCBCR):
        given = ", ".join(f"{option}=" for option in options.list_given())
        raise ImageError(f"{name} holds colors of the kind {series.keyframe.photometric.name}; leave {given} out.")


def _check_pages(series: Any, name: str, options: ReadingOptions) -> None:
    """Check what the pages hold, and what decoding them takes beside their values.

    Raises:
        ImageError: There are fewer bytes than they can be unpacked from; or a strip or a tile is too large.
    """
    pages = [page for page in series.pages if page is not None]
    key = series.keyframe
    threads = 1 if key.chunks is None else min(_THREADS, math.prod(key.chunked))
    options.check_memory(name, threads * math.prod(key.chunks) * key.dtype.itemsize)
    there = min(sum(sum(page.databytecounts) for page in pages), key.parent.filehandle.size)
    if there * _MOST_UNPACKED < series.nbytes:
        raise ImageError(
            f"{name} is damaged or cut short: it announces {series.nbytes:,} bytes of pixels, and there are {there:,} "
            "to unpack them from."
        )


def _build_file_image(
    stack: NDArray[Any], sizes: Mapping[str, int], tags: Mapping[int, Any], name: str, options: ReadingOptions
) -> FileImage:
    """Return the chosen part of a stack ``(T, Z, Y, X, bands)``."""
    volume = stack[options.choose_frame(name, len(stack))]
    index = options.choose_slice(name, len(volume), "slices or pages")
    values = volume if index is None else volume[index]
    photometric = int(tags.get(_PHOTOMETRIC, _BLACK_IS_ZERO))
    is_rgb = photometric in (_RGB, _YCBCR) and sizes.get("C", 1) == 1 and sizes.get("S", 1) >= 3
    values, opacity, is_color = _choose_samples(values, tags, name, options, is_rgb=is_rgb)
    orientation = tags.get(_ORIENTATION, 1)
    values = np.ascontiguousarray(turn_upright(values, orientation))
    if opacity is not None:
        opacity = np.ascontiguousarray(turn_upright(opacity, orientation))
        if _ASSOCIATED in np.atleast_1d(tags[_EXTRA_SAMPLES]):
            _divide_by_opacity(values, opacity)
    contrast = _choose_contrast(values, opacity, tags, options, is_inverted=photometric == _WHITE_IS_ZERO)
    origin = build_tiff_origin(tags, name, values.shape[:-1])
    is_scaled = options.window is not None or options.percentiles is not None
    return FileImage(name, values, contrast, is_color, is_scaled, "slices or pages", origin, opacity=opacity)


def _choose_samples(
    values: NDArray[Any], tags: Mapping[int, Any], name: str, options: ReadingOptions, *, is_rgb: bool
) -> tuple[NDArray[Any], NDArray[np.float32] | None, bool]:
    """Return the chosen bands or the colors, their opacity if there is one, and whether they are shown as a photo."""
    bands = options.choose_bands(name, values.shape[-1])
    # Chosen bands are shown as they are: GDAL declares the fourth of any four bands of bytes to be an opacity.
    opacity = _find_opacity(values, tags) if is_rgb and bands is None else None
    if bands is not None:
        values = values[..., bands]
    elif is_rgb and values.shape[-1] == 4:
        # The fourth sample is the opacity, or padding.
        values = values[..., :3]
    is_color = values.shape[-1] == 1 or bands is not None or (is_rgb and values.shape[-1] == 3)
    return values, opacity, is_color


def _find_opacity(values: NDArray[Any], tags: Mapping[int, Any]) -> NDArray[np.float32] | None:
    """Return the opacity ``(..., H, W, 1)`` in [0, 1] of RGBA values; ``None`` if their fourth sample is none."""
    kinds = np.atleast_1d(tags.get(_EXTRA_SAMPLES, 0))
    if values.shape[-1] != 4 or int(kinds[0]) not in _ALPHA or values.dtype.kind not in "uf":
        return None
    opacity: NDArray[np.float32] = values[..., 3:].astype(np.float32)
    opacity /= _find_largest(values.dtype)
    return np.clip(opacity, 0, 1, out=opacity)


def _divide_by_opacity(values: NDArray[Any], opacity: NDArray[np.float32]) -> None:
    """Turn colors that were multiplied by their opacity (associated alpha) back, in place, as Pillow does."""
    for part in contrasts.cut_parts(values):
        own = values[part] / np.where(opacity[part] > 0, opacity[part], 1.0)
        values[part] = np.rint(np.minimum(own, _find_largest(values.dtype))) if values.dtype.kind == "u" else own


def _find_largest(dtype: np.dtype[Any]) -> float:
    return float(np.iinfo(dtype).max) if dtype.kind == "u" else 1.0


def _choose_contrast(
    values: NDArray[Any],
    opacity: NDArray[np.float32] | None,
    tags: Mapping[int, Any],
    options: ReadingOptions,
    *,
    is_inverted: bool,
) -> contrasts.Contrast | None:
    nodata = _parse_nodata(tags.get(_NODATA))
    valid = None if nodata is None else values != nodata
    if opacity is not None and options.percentiles is not None:
        is_seen = np.broadcast_to(opacity > 0, values.shape)
        valid = is_seen if valid is None else valid & is_seen
    chosen = contrasts.choose_contrast(options, values, valid, is_inverted=is_inverted)
    if chosen is not None:
        return chosen
    full = contrasts.find_full_range(values)
    return None if full is None else contrasts.Contrast(full.low, full.high, is_inverted=is_inverted)


def _parse_nodata(text: Any) -> float | None:
    """Return the value that GDAL marks pixels without data with; ``None`` if there is none."""
    with suppress(ValueError):
        return float(str(text).strip("\0 "))
    return None


# Little-endian TIFF, big-endian TIFF, little-endian BigTIFF.
_MAGIC = (b"II*\0", b"MM\0*", b"II+\0")
# The version number of BigTIFF; that of TIFF is 42.
_BIG = 43

_SUBFILE, _SAMPLES = 254, 277
# The number of samples that make a pixel's color, by photometric interpretation.
_COLORS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}
# Bits of the kind of a page: bit 0 is a reduced version of another image, bit 2 a transparency mask.
_REDUCED = 0b101
# Values of ExtraSamples: associated and unassociated alpha.
_ALPHA = {1, 2}

_CHANNELS = re.compile(r'^channels=(\d+)|SizeC="(\d+)"', re.MULTILINE)
_SHAPE = re.compile(r'^\{.*"shape": \[(\d+), \d+, \d+\]')
# Patterns of a page for each band, as ImageJ, OME and tifffile write it into the first page's description.
_OTHER_AXES = re.compile(r'"axes": "(?!CYX")')


def is_tiff(header: bytes) -> bool:
    """Return True if a file that starts with these bytes is a TIFF or a BigTIFF."""
    return header[:4] in _MAGIC


def _read_first_tags(stream: BinaryIO) -> Mapping[int, Any]:
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
    has_alpha = not _ALPHA.isdisjoint(np.atleast_1d(tags.get(_EXTRA_SAMPLES, ())).tolist())
    # A fourth sample of an RGB image without a declared meaning is padding or an undeclared alpha.
    used = color + (has_alpha or photometric == _RGB)
    if samples > used:
        return samples
    return _count_bands_in_description(str(tags.get(_DESCRIPTION, ""))) if samples == 1 else None


def is_reduced_page(image: Image.Image) -> bool:
    """Return True if the current page of an opened TIFF is a thumbnail or a mask of another page."""
    return bool(get_page_tags(image).get(_SUBFILE, 0) & _REDUCED)


def _count_bands_in_description(description: str) -> int | None:
    """Return the number of bands by the description of the first page, if each band has a page."""
    match = _CHANNELS.search(description)
    if not match and not _OTHER_AXES.search(description):
        match = _SHAPE.search(description)
    bands = int(next(filter(None, match.groups()))) if match else 1
    return bands if bands > 1 else None


# ------------------------------------------------------------------------------------------------- orientation

_ORIENTATION = 274
_ON_SIDE = (5, 6, 7, 8)
# Orientations that exchange rows and columns, and the axes that run backwards after that.
_FLIPPED = {2: (-2,), 3: (-3, -2), 4: (-3,), 6: (-2,), 7: (-3, -2), 8: (-3,)}


def get_orientation(image: Image.Image) -> Any:
    """Return the orientation of a loaded image, 1 to 8; 1 if the EXIF data has none or is damaged."""
    with Forgive(Exception):
        return image.getexif().get(_ORIENTATION, 1)
    return 1  # the pixels can be read, and image viewers show them


def turn_upright(values: NDArray[Any], orientation: Any) -> NDArray[Any]:
    """Return a view of values ``(..., H, W, C)`` that is upright; an unknown orientation changes nothing."""
    turned = values.swapaxes(-3, -2) if orientation in _ON_SIDE else values
    return np.flip(turned, _FLIPPED.get(orientation, ()))
