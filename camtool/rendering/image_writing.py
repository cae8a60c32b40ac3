"""Images as files and in notebooks. A file is written completely or not at all."""

from __future__ import annotations

import os
import re
import sys
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from PIL import Image

from camtool.errors import ImageError, raise_interrupt

_FORMATS: dict[str, dict[str, Any]] = {
    # Level 2 takes a third of the time of the usual level 6, and files are a tenth larger.
    ".png": {"format": "PNG", "compress_level": 2},
    # 4:4:4: with the default subsampling, colors of an overlay would spread over blocks of 2 x 2 pixels.
    ".jpg": {"format": "JPEG", "subsampling": 0},
    ".jpeg": {"format": "JPEG", "subsampling": 0},
    ".webp": {"format": "WEBP"},
    ".pdf": {"format": "PDF", "subsampling": 0, "resolution": 144},  # pixels of a JPEG on one page
    ".svg": {"format": "SVG"},  # pixels of a PNG
}


def write_image(path: str | os.PathLike[str], pixels: npt.NDArray[np.uint8], *, quality: int = 92) -> Path:
    """Write pixels to an image file, completely or not at all.

    Args:
        path: File to write. The suffix (png, jpg, webp, pdf, svg) chooses the format. Missing folders are created.
        pixels: (H, W, 3) or (H, W), uint8; or (H, W, 4) with an alpha channel, which JPEG and PDF do not have.
        quality: 1 to 100, for JPEG, WebP and PDF; PNG is lossless.

    Returns:
        The path.

    Raises:
        ImageError: The suffix, the pixels or the quality is invalid.
        OSError: The file cannot be written. An existing file at `path` is unchanged.
    """
    path = Path(path)
    options = _check_encoding(pixels, path.suffix, quality)
    with open_atomically(path) as stream:
        _encode(pixels, stream, quality, options)
    return path


def encode_image(pixels: npt.NDArray[np.uint8], suffix: str = ".png", *, quality: int = 92) -> bytes:
    """Encode pixels as the bytes of an image file.

    Args:
        pixels: (H, W, 3) or (H, W), uint8; or (H, W, 4) with an alpha channel, which JPEG does not have.
        suffix: .png, .jpg, .jpeg or .webp.
        quality: 1 to 100, for JPEG and WebP; PNG is lossless.

    Returns:
        Content of a file with this suffix.

    Raises:
        ImageError: The suffix, the pixels or the quality is invalid.
    """
    buffer = BytesIO()
    _encode(pixels, buffer, quality, _check_encoding(pixels, suffix, quality))
    return buffer.getvalue()


def _check_encoding(pixels: npt.NDArray[np.uint8], suffix: str, quality: int) -> dict[str, Any]:
    """Return the options of Pillow for a suffix, after a check of all arguments."""
    options = _get_format(suffix)
    if not 1 <= quality <= 100:
        raise ImageError(f"quality must be from 1 to 100, got {quality}.")
    _check_pixels(pixels)
    return options


def _encode(pixels: npt.NDArray[np.uint8], stream: BinaryIO, quality: int, options: dict[str, Any]) -> None:
    """Write an image file to a stream. An image of many pixels is not in memory a third time, encoded."""
    if options["format"] == "SVG":
        size = f'width="{pixels.shape[1]}" height="{pixels.shape[0]}"'
        image = f'<image {size} href="data:image/png;base64,{b64encode(encode_image(pixels)).decode()}"/>'
        stream.write(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{image}</svg>\n'.encode())
        return
    try:
        Image.fromarray(pixels).save(stream, quality=quality, **options)
    except (OSError, ValueError) as error:
        raise_interrupt(error)
        if isinstance(error, OSError) and error.errno is not None:  # it is the disk's, not the encoder's
            raise
        size = " x ".join(map(str, pixels.shape[:2]))
        raise ImageError(f"pixels of size {size} cannot be written as {options['format']}: {error}.") from error


def check_suffix(path: Path) -> None:
    """Check that a path has the suffix of an image file, before its pixels are drawn.

    Raises:
        ImageError: It has not.
    """
    _get_format(path.suffix)


def _get_format(suffix: str) -> dict[str, Any]:
    options = _FORMATS.get(suffix.lower())
    if options is None:
        raise ImageError(f"suffix must be one of {', '.join(_FORMATS)}, got {suffix!r}.")
    return options


def show_image(pixels: npt.NDArray[np.uint8]) -> None:
    """Show pixels below the cell of a notebook, or elsewhere in the system's image viewer.

    Args:
        pixels: (H, W, 3) or (H, W), uint8.
    """
    image = Image.fromarray(pixels)
    notebook = sys.modules.get("IPython")
    if notebook is not None and notebook.get_ipython() is not None:
        notebook.display.display(image)
    else:
        image.show()


class Displayable(ABC):
    """Object that is displayed as one image: in a notebook, in the image viewer, or in a file."""

    @abstractmethod
    def to_pixels(self) -> npt.NDArray[np.uint8]:
        """Draw the object, ``(H, W, 3)`` uint8."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_pixels` to a file; the suffix chooses the format (png, jpg, webp, pdf, svg).

        Raises:
            ImageError: The suffix is unknown.
        """
        return write_image(path, self.to_pixels())

    def show(self) -> None:
        """Show :meth:`to_pixels` below the cell of a notebook, or elsewhere in the system's image viewer."""
        show_image(self.to_pixels())

    def _repr_png_(self) -> bytes:
        return encode_image(self.to_pixels())


@contextmanager
def open_atomically(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends, and is deleted if the block raises.

    Until the end of the block, `path` is unchanged, also after Ctrl-C. The file gets the default permissions. A
    symbolic link at `path` stays a link. Missing folders are created and stay. If the process is killed, the temporary
    file remains; :func:`remove_temporary_files` removes it.

    Args:
        path: Path of the finished file.
        durable: Write the file and its name to the disk before the function returns, so that a power failure loses
            neither. By default it may lose the newest files.

    Yields:
        The file to write to, in the folder of `path` under a hidden, temporary name.

    Raises:
        OSError: The file cannot be written; ``filename`` is `path`.
    """
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".camtool-{uuid4().hex}.tmp")
    try:
        with name_path_in_errors(path):
            with temporary.open("xb") as stream:
                yield stream
                if durable:
                    stream.flush()
                    os.fsync(stream.fileno())
            temporary.replace(target)
            if durable:
                _flush_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary_files(folders: Iterable[Path], *, least_age: float = 0.0) -> None:
    """Remove the temporary files of :func:`open_atomically` that killed processes left in folders.

    Args:
        folders: The folders. Missing ones are left out.
        least_age: Seconds for which nothing was written to a file: where no lock keeps other processes out, one of them
            may be writing it.
    """
    for path in (path for folder in folders if os.path.isdir(folder) for path in folder.iterdir()):  # noqa: PTH112  long
        if re.fullmatch(r"\.camtool-[0-9a-f]{32}\.tmp", path.name):
            with suppress(OSError):  # another process has removed it, or it is another user's
                if path.stat().st_mtime <= time.time() - least_age:
                    path.unlink()


def _flush_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Windows does this by itself and opens no folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def name_path_in_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the user's path into each OSError of the block. The error of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise_interrupt(error)
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _check_pixels(pixels: npt.NDArray[np.uint8]) -> None:
    """Check that pixels are (H, W), (H, W, 3) or (H, W, 4), uint8, and not empty."""
    shape, dtype = np.shape(pixels), getattr(pixels, "dtype", type(pixels).__qualname__)
    if dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or 0 in shape:
        raise ImageError(f"pixels must be (H, W), (H, W, 3) or (H, W, 4) uint8, got {dtype} of shape {shape}.")
