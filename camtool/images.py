"""Reading pictures safely; writing whole or not at all.

This room owns the way from anything a person may call a picture to one plain kind, an upright "RGB" image
of eight bits, and the way of pixels to a file that is there either whole or not at all. Colour profiles are
not applied, as the usual preprocessing of image models does not apply them either.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from camtool.errors import ImageError, refuse_url
from camtool.tiff import first_tags, is_reduced_page, is_tiff, surplus_bands, tags_of

__all__ = ["SUFFIXES", "ImageSource", "Shown", "encode", "naming", "notes_of", "read", "show", "write", "writing"]

ImageSource: TypeAlias = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[Any]
"""What `read` takes: a path, the bytes of a file, a PIL image, or an array.

An array is (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): grey, grey, red-green-blue, or red-green-blue-alpha.
Its values are uint8, bool (black and white), or floats in [0, 1].
"""

_NAMES = "avif bmp gif heic heif jfif jpeg jpg pbm pgm png pnm ppm tif tiff webp"
SUFFIXES: frozenset[str] = frozenset(f".{name}" for name in _NAMES.split())
"""The file suffixes, in lower case, that count as pictures when a folder is searched."""

# PIL knows many more, some of which run other programs (EPS starts Ghostscript).
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF")
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_HEADER_BYTES = 64
_WITH_FRAMES = ("GIF", "TIFF", "WEBP", "PNG", "AVIF")  # the second frame of other formats is a preview or a depth map
_NOTES = "camtool"

_WRITERS: dict[str, dict[str, Any]] = {
    ".png": {"format": "PNG"},
    # Without 4:4:4 the colours of an overlay bleed into blocks of 2 x 2 pixels.
    ".jpg": {"format": "JPEG", "subsampling": 0},
    ".jpeg": {"format": "JPEG", "subsampling": 0},
    ".webp": {"format": "WEBP"},
}

_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
# What PIL's decoders let through on damaged files. Warnings are here for those who made them errors.
_DECODER_FAULTS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    Warning,
    struct.error,
    zlib.error,
)

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read(source: ImageSource) -> Image.Image:
    """Read a picture as a browser shows it.

    The EXIF orientation is applied, transparency lies on white, and 16 bits are scaled to 8. Of several frames the
    first is taken (of a PIL image, the frame it stands at), which :func:`notes_of` the result tells. The name of the
    file does not matter. PIL's modes "I" and "F" carry no scale, so the values decide: "I" fits 8 bits or else 16, "F"
    fits [0, 1] or else [0, 255].

    Args:
        source: A path, the bytes of a file, a PIL image (which is loaded, not changed), or an array; see
            `ImageSource`.

    Returns:
        A new image of mode "RGB", without the metadata of the source: reading it again changes nothing.

    Raises:
        ImageError: There is no such file, it is no picture, it is damaged, it has more pixels than
            `PIL.Image.MAX_IMAGE_PIXELS`, it has more bands than a picture, or the array's shape, dtype or range is not
            one of those allowed.
    """
    if isinstance(source, str) and not source.strip():
        raise ImageError(f"the path is empty ({source!r}); give the path of a picture.")
    if isinstance(source, (str, os.PathLike)):
        refuse_url("image", source, ImageError)
        path = Path(source)
        with _open(path) as stream:
            return _decode(stream, str(path))
    if isinstance(source, bytes):
        return _decode(BytesIO(source), "the bytes")
    if isinstance(source, Image.Image):
        name = str(getattr(source, "filename", "")) or "the PIL image"
        with _naming(name):
            source.load()
        if source.tell() == 0:
            _check_bands(tags_of(source), name)
        return _noted(_plain(source, name), source)
    if isinstance(source, np.ndarray):
        return _plain(_from_array(source), "the array")
    raise ImageError(
        f"source: a picture is a path, bytes, a PIL image or a NumPy array; {type(source).__qualname__} came."
    )


def notes_of(image: Image.Image) -> tuple[str, ...]:
    """Return what the user should know about an image that :func:`read` returned, one sentence each."""
    return tuple(image.info.get(_NOTES, ()))


def write(path: str | os.PathLike[str], pixels: npt.NDArray[np.uint8], *, quality: int = 92) -> Path:
    """Write pixels to a picture file, whole or not at all.

    Args:
        path: Where to; the suffix (.png, .jpg, .jpeg, .webp) chooses the format. Missing folders are made.
        pixels: (H, W, 3) or (H, W), uint8; or (H, W, 4) with an alpha channel, which JPEG does not have.
        quality: From 1 to 100, for JPEG and WebP; PNG is lossless.

    Returns:
        The path written.

    Raises:
        ImageError: The suffix, the pixels or the quality is not one of those allowed.
        OSError: The disk or a folder refuses; what was at `path` before is still there.
    """
    path = Path(path)
    data = encode(pixels, path.suffix, quality=quality)
    with writing(path) as stream:
        stream.write(data)
    return path


def encode(pixels: npt.NDArray[np.uint8], suffix: str = ".png", *, quality: int = 92) -> bytes:
    """Encode pixels as the bytes of a picture file.

    Args:
        pixels: (H, W, 3) or (H, W), uint8.
        suffix: .png, .jpg, .jpeg or .webp.
        quality: From 1 to 100, for JPEG and WebP; PNG is lossless.

    Returns:
        What a file with this suffix holds.

    Raises:
        ImageError: The suffix, the pixels or the quality is not one of those allowed.
    """
    options = _WRITERS.get(suffix.lower())
    if options is None:
        raise ImageError(f"suffix: {suffix!r} came; pictures can be written as {', '.join(_WRITERS)}.")
    if not 1 <= quality <= 100:
        raise ImageError(f"quality: {quality} came; it goes from 1 to 100.")
    _check_pixels(pixels)
    buffer = BytesIO()
    try:
        Image.fromarray(pixels).save(buffer, quality=quality, **options)
    except (OSError, ValueError) as error:
        size = " x ".join(map(str, pixels.shape[:2]))
        raise ImageError(f"pixels: {size} cannot be written as {options['format']}: {error}.") from error
    return buffer.getvalue()


def show(pixels: npt.NDArray[np.uint8]) -> None:
    """Show pixels to a person: below the cell in a notebook, elsewhere in the system's picture viewer.

    Args:
        pixels: (H, W, 3) or (H, W), uint8.
    """
    picture = Image.fromarray(pixels)
    notebook = sys.modules.get("IPython")
    if notebook is not None and notebook.get_ipython() is not None:
        notebook.display.display(picture)
    else:
        picture.show()


class Shown(ABC):
    """What a person sees as one picture: it is saved, shown, and in a notebook shows itself."""

    @abstractmethod
    def picture(self) -> npt.NDArray[np.uint8]:
        """The pixels, ``(H, W, 3)``."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the :meth:`picture`, whole or not at all; the suffix decides the format (png, jpg, webp).

        Raises:
            ImageError: The suffix is unknown.
        """
        return write(path, self.picture())

    def show(self) -> None:
        """Show the :meth:`picture`: in a notebook below the cell, elsewhere in the system's picture viewer."""
        show(self.picture())

    def _repr_png_(self) -> bytes:
        return encode(self.picture())


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file that becomes `path` when the block ends well, and vanishes when it does not.

    Until the end, `path` is what it was before: nobody sees half a file, not even after Ctrl-C. The file has
    the permissions of any newly made file, and a symbolic link at `path` stays a link. Missing folders are
    made and stay. No disk is flushed: a power cut may still cost the newest files.

    Args:
        path: Where the file shall be.

    Yields:
        The file to write to. It lies beside `path` under a hidden, temporary name.

    Raises:
        OSError: The disk or a folder refuses; its ``filename`` is `path`.
    """
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{uuid4().hex}.tmp")
    try:
        with naming(path):
            with temporary.open("xb") as stream:
                yield stream
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let each OSError of the block name the path that the user knows; that of a full disk names none by itself."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


# From a source to a decoded picture


def _open(path: Path) -> BinaryIO:
    """Open an ordinary file, or say why not."""
    try:
        if stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for ever
            return path.open("rb")
        reason = "it is a folder" if path.is_dir() else "it is not an ordinary file"
    except FileNotFoundError:
        reason = "there is no such file"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:  # a NUL in the name
        reason = str(error)
    raise ImageError(f"{path} cannot be read: {reason}.")


def _decode(stream: BinaryIO, name: str) -> Image.Image:
    """Identify and decode what is in the stream, and make it plain."""
    with _naming(name):
        header = stream.read(_HEADER_BYTES)
    if not header:
        raise ImageError(f"{name} cannot be read: empty, 0 bytes.")
    formats = _formats(header, name)
    if is_tiff(header):
        with _naming(name):
            tags = first_tags(stream)
        _check_bands(tags, name)
    with _naming(name, _ODD_TIFF if is_tiff(header) else ""):
        image = Image.open(stream, formats=formats)
        _check_size(image)
        image.load()
    return _noted(_plain(image, name), image)


def _check_bands(tags: Mapping[int, Any], name: str) -> None:
    """Refuse a TIFF of more bands than a picture has, of which Pillow would show the first or none.

    Raises:
        ImageError: It has more.
    """
    bands = surplus_bands(tags)
    if bands is not None:
        raise ImageError(
            f"{name} has {bands} bands, and a picture has 1 (gray) or 3 (red, green, blue). {_CHOOSE_BANDS} "
            "tifffile.imread(path) returns all bands as an array."
        )


_ODD_TIFF = " It is a TIFF of numbers that Pillow does not read; give an array: tifffile.imread(path)."

_CHOOSE_BANDS = (
    "Choose the bands: an array (H, W, 3) of uint8 or of floats in [0, 1] for a model of photos, e.g. "
    "bands[..., [3, 2, 1]] of an array (H, W, bands); or a floating tensor (bands, H, W), normalized as in training, "
    "for a model that takes them all."
)


def _noted(plain: Image.Image, source: Image.Image) -> Image.Image:
    """A plain image with what the user should know about its source."""
    notes = notes_of(source) or _note_on_frames(source)
    if notes:
        plain.info[_NOTES] = notes
    return plain


def _note_on_frames(image: Image.Image) -> tuple[str, ...]:
    """A sentence about the frames behind the first one, unless the user has turned to another."""
    if image.format not in _WITH_FRAMES or image.tell() != 0:
        return ()
    try:
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format == "TIFF":
            frames = _count_whole_pages(image, frames)
    except _DECODER_FAULTS:  # later frames are damaged, and the first is sound
        return ()
    note = (
        f"The file holds {frames} frames or pages and only the first was read; to choose another, pass a PIL image: "
        "image = PIL.Image.open(path); image.seek(1)."
    )
    return (note,) if frames > 1 else ()


def _count_whole_pages(image: Image.Image, frames: int) -> int:
    """Count the pages of a TIFF that are no thumbnails or masks of others; the image stays at its first."""
    whole = 0
    try:
        for frame in range(frames):
            image.seek(frame)
            whole += not is_reduced_page(image)
    finally:
        image.seek(0)
    return whole


@contextmanager
def _naming(name: str, unknown: str = "") -> Iterator[None]:
    """Turn what PIL raises while it opens and decodes into an `ImageError` with the picture's name.

    Args:
        name: What the picture is called.
        unknown: What to add where PIL does not know the format, a sentence that starts with a space.
    """
    try:
        yield
    except _BOMBS as error:
        advice = "If you trust it, raise PIL.Image.MAX_IMAGE_PIXELS."
        raise ImageError(f"{name} is too large to be decoded safely: {error} {advice}") from error
    except UnidentifiedImageError as error:
        known = ", ".join([*_FORMATS, "HEIC"])
        raise ImageError(f"{name} is no picture: its content is none of {known}.{unknown}") from error
    except _DECODER_FAULTS as error:
        raise ImageError(f"{name} is damaged or cut short: {error}.") from error


def _formats(header: bytes, name: str) -> list[str]:
    """The formats, in PIL's names, that a file with this header may have."""
    if not _is_heic(header):
        Image.init()
        return [known for known in _FORMATS if known in Image.OPEN]  # AVIF came with Pillow 11.3
    try:
        import_module("pillow_heif").register_heif_opener()
    except ImportError as error:
        raise ImageError(f"{name} is a HEIC picture, which needs: pip install 'camtool[heic]'") from error
    return ["HEIF"]


def _is_heic(header: bytes) -> bool:
    """Whether an ISO media file names one of the HEIC brands; AVIF shares all but the brand."""
    brands = {header[start : start + 4] for start in range(8, len(header), 4)}
    return header[4:8] == b"ftyp" and not _HEIC_BRANDS.isdisjoint(brands)


def _check_size(image: Image.Image) -> None:
    """Refuse what PIL only warns of, going by the header, so that no warning filter has to be touched."""
    pixels, limit = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if limit is not None and pixels > limit:
        raise Image.DecompressionBombError(f"Image size ({pixels} pixels) exceeds limit of {limit} pixels.")


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    """(H, W) or (H, W, 1|3|4) to a PIL image of mode L, RGB or RGBA."""
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if array.dtype != np.uint8 and array.dtype.kind not in "bf":
        hint = " Divide by the largest value that a pixel can have." if array.dtype.kind in "iu" else ""
        raise ImageError(f"the array has dtype {array.dtype}; uint8, bool, or floats in [0, 1] are allowed.{hint}")
    if not grey and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        hint = " Channels come last: array.transpose(1, 2, 0)." if _channels_first(array) else ""
        hint = f" {_CHOOSE_BANDS}" if array.ndim == 3 and not hint and min(array.shape) > 1 else hint
        raise ImageError(f"the array has shape {array.shape}; (H, W) or (H, W, 1|3|4) is allowed.{hint}")
    if array.size == 0:
        raise ImageError(f"the array has shape {array.shape}: no pixels.")
    if array.dtype != np.uint8:
        array = _levels(array, "the array", whites=(1,))
    return Image.fromarray(array.reshape(array.shape[:2]) if grey else array)


def _channels_first(array: npt.NDArray[Any]) -> bool:
    """Whether the shape is PyTorch's (C, H, W)."""
    return array.ndim == 3 and array.shape[0] in (1, 3, 4)


# From a decoded picture to a plain one


def _plain(image: Image.Image, name: str) -> Image.Image:
    """A loaded image as a new RGB image of eight bits: upright, on white, without metadata."""
    if 0 in image.size:
        raise ImageError(f"{name} has {image.width} x {image.height} pixels: nothing to see.")
    turn = _turn(image)
    image = _eight_bits(image, name)
    canvas = Image.new("RGB", image.size, "white")
    if image.has_transparency_data:
        # PIL leads La only to LA.
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        canvas.paste(image, mask=image)
    else:
        canvas.paste(image.convert("RGB"))
    return canvas if turn is None else canvas.transpose(turn)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What makes the picture upright; nothing, where the EXIF data says nothing or is garbled."""
    try:
        return _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except _DECODER_FAULTS:  # the pixels are sound, and viewers show them
        return None


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Scale the deep grey modes (I;16 and its kin, I, F) to mode L; hand on all others."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    if image.mode == "F":
        whites: tuple[int, ...] = (1, 255)
    elif image.mode == "I" and image.format not in ("PNG", "PPM"):  # there, I holds 16 bits
        whites = (255, 65535)
    else:
        whites = (65535,)
    values = np.asarray(image)
    levels = _levels(values, name, whites)
    levels[values == image.info.get("transparency")] = 255  # a grey PNG may declare one value transparent
    return Image.fromarray(levels)


def _levels(values: npt.NDArray[Any], name: str, whites: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Scale [0, white] to the nearest of the levels 0 to 255, by the first white that holds all values.

    A float is in range where its nearest level exists: undoing a normalisation gives 1.0000001 now and then.
    """
    low, high = float(values.min()), float(values.max())
    slack = 0.49 if values.dtype.kind == "f" else 0
    for white in whites:
        if low * 255 / white >= -slack and high * 255 / white <= 255 + slack:
            scaled = values.astype(np.float32) * np.float32(255 / white)
            levels: npt.NDArray[np.uint8] = np.rint(scaled).astype(np.uint8)
            return levels
    found = f"range from {low:g} to {high:g}" if low <= high else "contain NaN"
    hint = " Divide by 255, or convert to uint8." if whites == (1,) and 0 <= low <= high <= 255 else ""
    raise ImageError(f"the values of {name} {found}; [0, {whites[-1]}] is allowed.{hint}")


def _check_pixels(pixels: npt.NDArray[np.uint8]) -> None:
    """Check that what is to be written is (H, W), (H, W, 3) or (H, W, 4), uint8, and not empty."""
    shape, dtype = np.shape(pixels), getattr(pixels, "dtype", type(pixels).__qualname__)
    if dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or 0 in shape:
        raise ImageError(f"pixels: {dtype} of shape {shape} came; uint8 of (H, W), (H, W, 3) or (H, W, 4) is needed.")
