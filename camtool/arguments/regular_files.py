"""Reading regular files: anybody may have written what a user names, or what a run stored.

No pipe and no device is opened to wait or to read without end, and no more is read than fits into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from camtool.errors import CamtoolError, RaiseAs, raise_interrupt

# Bytes of a file that is read as a whole: a table about three million photos.
_MAX_DOCUMENT_BYTES = 2**28

# Bytes of a file that is read line by line.
_MAX_LIST_BYTES = 2**34

# Bytes of a line: thousands of explanations of one photo.
_MAX_LINE_BYTES = 2**24

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def describe_kind(status: os.stat_result) -> str | None:
    """Return what is neither a file nor a link, in words; None for those."""
    return _KINDS.get(stat.S_IFMT(status.st_mode))


def open_regular(path: Path, max_bytes: int = _MAX_LIST_BYTES) -> BinaryIO:
    """Open a regular file to read its bytes. A pipe would wait forever, and a device may have no end.

    Raises:
        CamtoolError: It is of another kind, larger than ``max_bytes``, or cannot be opened.
        FileNotFoundError: There is no such file.
        NotADirectoryError: A part of the path is no folder.
    """
    flags = (getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK"))
    try:
        descriptor = os.open(path, os.O_RDONLY | sum(flags))
    except (OSError, ValueError) as error:  # ValueError: there is a NUL in the name
        raise_interrupt(error, FileNotFoundError, NotADirectoryError)
        raise CamtoolError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    kind = describe_kind(status)
    why = f"it has {status.st_size:,} bytes, and {max_bytes:,} are allowed" if kind is None else f"it is {kind}"
    raise CamtoolError(f"{path} cannot be read: {why}.")


def name_file_in_errors(path: Path, kind: type[CamtoolError] = CamtoolError) -> RaiseAs:
    """Turn errors of reading into a sentence: some files of the system can be opened, and not read."""
    return RaiseAs(lambda error: kind(f"{path} cannot be read: {error.strerror or error}."), OSError)


def read_regular(path: Path, max_bytes: int = _MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        CamtoolError: As of :func:`open_regular`.
        FileNotFoundError: There is no such file.
        NotADirectoryError: A part of the path is no folder.
    """
    with open_regular(path, max_bytes) as file, name_file_in_errors(path):
        content = file.read(max_bytes + 1) or b""  # None: one of the system has nothing to read yet
    if len(content) > max_bytes:  # some files of the system claim to be empty
        raise CamtoolError(f"{path} cannot be read: it has more than {max_bytes:,} bytes.")
    return content


def hash_stream(stream: BinaryIO, max_bytes: int = sys.maxsize) -> str:
    """Return the SHA-256 of what is left in a stream, or of its next ``max_bytes``."""
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    while chunk := stream.read(min(2**20, max_bytes)):
        digest.update(chunk)
        max_bytes -= len(chunk)
    return digest.hexdigest()


def append_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Add values of JSON to a file, one a line, behind an empty line: it ends one that was cut off."""
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(["", *map(json.dumps, values), ""]))


def iterate_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file, with their ends; none if there is no such file.

    Raises:
        CamtoolError: As of :func:`open_regular`, or a line is too long.
    """
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with file, name_file_in_errors(path):
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > _MAX_LINE_BYTES:
                raise CamtoolError(f"{path}, line {number}: it has more than {_MAX_LINE_BYTES:,} bytes.")
            yield line
