"""Hashes of what a run depends on, SHA-256 in hexadecimal digits: files, a model's weights, and the user's code.

The user's code are the source files of ``--model package.module:factory`` and of ``--transform``.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from camtool.arguments.regular_files import hash_stream
from camtool.errors import Forgive, ImageError
from camtool.inputs.formats.dicom_series import list_dicom_files
from camtool.inputs.image_files import MAX_BYTES

# Folders of installed libraries, whose imports are not followed: they lead to all of them.
_INSTALLED = ("site-packages", "dist-packages")

# A package that is not followed: its version is in the description.
_OWN = "camtool"


def hash_file(path: Path) -> str:
    """Return the hash of a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        # Files of the system claim to be empty, and some never end.
        return hash_stream(file, os.fstat(file.fileno()).st_size)


def hash_photo(path: Path) -> str | None:
    """Return the hash of a photo, or of the slices in a folder; None if it cannot be read, or is of another kind."""
    with Forgive(OSError, ValueError, ImageError):  # ValueError: there is a NUL in the name
        if path.is_dir():
            slices = list_dicom_files(path)
            return hash_text("\n".join(f"{hash_file(file)} {file.name}" for file in slices)) if slices else None
        # Opening a pipe would wait forever, and a sparse file may claim any size; such files are not read as photos.
        status = path.stat()
        return hash_file(path) if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES else None
    return None


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
    if isinstance(value, Tensor):
        _add_tensor(digest, value)
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            digest.update(f"{name}:".encode())
            _add_value(digest, entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            _add_value(digest, entry)
    else:
        digest.update(remove_addresses(repr(value)).encode("utf-8", "surrogatepass"))


def _add_tensor(digest: hashlib._Hash, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.is_quantized:
        digest.update(repr(tensor.flatten()[:0]).encode())  # scale and zero point
        tensor = tensor.int_repr()
    plain = tensor.detach().to_dense().cpu().contiguous().flatten()
    digest.update(plain.view(torch.uint8).numpy().data)


def hash_user_code(names: Iterable[str | None]) -> dict[str, str]:
    """Return the hash of each source file that named functions are made of.

    These are the file of the function's module and the files that it imports from the same folder, or from the folder
    of its package, and so on. The import statements are read and not followed by running them, so the result does not
    depend on what the process has loaded.

    Args:
        names: ``"package.module:function"``, already loaded. Other names, such as ``"timm:resnet18"``, are left out.

    Returns:
        Path relative to the folder that the modules are imported from → hash.
    """
    hashes: dict[str, str] = {}
    for name in names:
        module, _, attribute = (name or "").partition(":")
        path = _find_file(module, attribute)
        if path is not None:
            base = path.parents[module.count(".") + (path.name == "__init__.py")]
            hashes |= {file.relative_to(base).as_posix(): hash_file(file) for file in _list_sources(module, path, base)}
    return dict(sorted(hashes.items()))


def _find_file(module: str, attribute: str) -> Path | None:
    """Return the source file of a loaded module that has this function; None for other names."""
    loaded = sys.modules.get(module)
    path = getattr(loaded, "__file__", None)
    if not callable(getattr(loaded, attribute, None)) or not isinstance(path, str) or module.startswith(f"{_OWN}."):
        return None
    return Path(path) if path.endswith(".py") and Path(path).is_file() else None


def _list_sources(module: str, path: Path, base: Path) -> set[Path]:
    """Return the file of a module, and those that it imports from a folder, directly or by another one."""
    if base.name in _INSTALLED:
        return {path}
    files: set[Path] = set()
    waiting = [(module, path), *_locate(module, base)]
    while waiting:
        name, file = waiting.pop()
        files.add(file)
        for imported in _list_imports(name, file):
            waiting += [pair for pair in _locate(imported, base) if pair[1] not in files]
    return files


def _list_imports(name: str, path: Path) -> Iterator[str]:
    """Yield the full name of each module that a file imports. A name in a module may look like a submodule."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # it is not imported, or the import failed
        return
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            start = ".".join([*filter(None, parents), *filter(None, [node.module])])
            yield from (".".join(filter(None, [start, alias.name])) for alias in node.names)


def _locate(name: str, base: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each part of a module's name that is in a folder: packages, then the module."""
    parts = name.split(".")
    if parts[0] == _OWN:
        return
    for count in range(1, len(parts) + 1):
        path = base.joinpath(*parts[:count])
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                yield ".".join(parts[:count]), file
