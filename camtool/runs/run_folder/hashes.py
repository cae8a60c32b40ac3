"""Hashes of files and of a model's weights: SHA-256, in hexadecimal digits."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from camtool.errors import ImageError
from camtool.inputs.image_files import MAX_BYTES

if TYPE_CHECKING:
    from torch import Tensor, nn


def hash_file(path: Path) -> str:
    """Return the hash of a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.sha256()
        # Files of the system claim to be empty, and some never end. hashlib.file_digest needs Python 3.11.
        size = os.fstat(file.fileno()).st_size
        while chunk := file.read(min(1 << 20, size)):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()


def hash_photo(path: Path) -> str | None:
    """Return the hash of a photo, or of the slices in a folder; None if it cannot be read, or is of another kind."""
    try:
        if path.is_dir():
            return _hash_slices(path)
        # Opening a pipe would wait forever, and a sparse file may claim any size; such files are not read as photos.
        status = path.stat()
        return hash_file(path) if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES else None
    except (OSError, ValueError, ImageError):  # ValueError: there is a NUL in the name
        return None


def _hash_slices(folder: Path) -> str | None:
    from camtool.inputs.formats.dicom_series import list_dicom_files

    slices = list_dicom_files(folder)
    return hash_text("\n".join(f"{hash_file(each)} {each.name}" for each in slices)) if slices else None


def hash_text(text: str) -> str:
    """Return the hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_weights(model: nn.Module) -> str:
    """Return the hash of all parameters and buffers of a model: their names, types, shapes and values."""
    digest = hashlib.sha256()
    _add_value(digest, model.state_dict())
    return digest.hexdigest()


def remove_addresses(text: str) -> str:
    """Return the text of ``repr`` without addresses in memory, which differ in each process."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)


def _add_value(digest: hashlib._Hash, value: Any) -> None:
    from torch import Tensor

    if isinstance(value, Tensor):
        _add_tensor(digest, value)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            digest.update(f"{name}:".encode())
            _add_value(digest, each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _add_value(digest, each)
    else:
        digest.update(remove_addresses(repr(value)).encode("utf-8", "surrogatepass"))


def _add_tensor(digest: hashlib._Hash, tensor: Tensor) -> None:
    import torch

    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.is_quantized:
        digest.update(repr(tensor.flatten()[:0]).encode())  # scale and zero point
        tensor = tensor.int_repr()
    plain = tensor.detach().to_dense().cpu().contiguous().flatten()
    digest.update(plain.view(torch.uint8).numpy().data)
