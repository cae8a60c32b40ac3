"""Reading what a run stored, or what its user names: anybody may have written such a file.

Only regular files are read, and no more of them than fits into memory. Text is checked before it is used.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from camtool.errors import CamtoolError

__all__ = ["build_checked", "is_encodable", "iterate_lines", "open_regular", "parse_object", "read_regular"]

_MAX_DOCUMENT_BYTES = 2**28
"""Bytes of a file that is read as a whole: a table about three million photos."""

_MAX_LIST_BYTES = 2**34
"""Bytes of a file that is read line by line."""

_MAX_LINE_BYTES = 2**24
"""Bytes of a line: thousands of explanations of one photo."""

_MAX_DEPTH = 32
"""Nested lists and objects of JSON. Descriptions and records have about six; recursive functions allow hundreds."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_Built = TypeVar("_Built")


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
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:  # ValueError: there is a NUL in the name
        raise CamtoolError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    found = f"it has {status.st_size:,} bytes, and {max_bytes:,} are allowed" if kind is None else f"it is {kind}"
    raise CamtoolError(f"{path} cannot be read: {found}.")


@contextmanager
def _name_in_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading into a sentence: some files of the system can be opened, and not read."""
    try:
        yield
    except OSError as error:
        raise CamtoolError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_regular(path: Path, max_bytes: int = _MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        CamtoolError: As of :func:`open_regular`.
        FileNotFoundError: There is no such file.
        NotADirectoryError: A part of the path is no folder.
    """
    with open_regular(path, max_bytes) as file, _name_in_errors(path):
        content = file.read(max_bytes + 1) or b""  # None: one of the system has nothing to read yet
    if len(content) > max_bytes:  # some files of the system claim to be empty
        raise CamtoolError(f"{path} cannot be read: it has more than {max_bytes:,} bytes.")
    return content


def iterate_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file, with their ends; none if there is no such file.

    Raises:
        CamtoolError: As of :func:`open_regular`, or a line is too long.
    """
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with file, _name_in_errors(path):
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > _MAX_LINE_BYTES:
                raise CamtoolError(f"{path}, line {number}: it has more than {_MAX_LINE_BYTES:,} bytes.")
            yield line


# ------------------------------------------------------------------------------------------------------------- JSON


def parse_object(content: bytes, *, is_finite: bool = True) -> dict[str, Any]:
    """Return an object of JSON.

    Args:
        content: The text.
        is_finite: Refuse NaN and infinity, which JSON lacks, and numbers too large for a float.

    Raises:
        ValueError: The content is no JSON, something else than an object, or nested too deep.
    """
    try:
        found = (_FINITE if is_finite else _ANY).decode(content.decode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not an object")
    _check_depth(found, _MAX_DEPTH)
    return found


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    return number if abs(number) < float("inf") else _refuse_number(text)


def _parse_int(text: str) -> int:
    _parse_float(text)
    return int(text)


_FINITE = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_parse_float, parse_int=_parse_int)
_ANY = json.JSONDecoder()


def _check_depth(value: Any, most: int) -> None:
    if isinstance(value, (dict, list)):
        if most == 0:
            raise ValueError("it is nested too deep")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, most - 1)


def is_encodable(text: str) -> bool:
    """Return True if a text can be the name of a file here."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def build_checked(kind: type[_Built], values: Mapping[str, Any]) -> _Built:
    """Return an instance of a dataclass from values of JSON. Names that it does not know are left out.

    Raises:
        ValueError: A value is missing, or of another type than the field is annotated with.
    """
    checks = _get_checks(kind)  # type: ignore[arg-type]  # mypy takes a class of any type for unhashable
    known = {name: value for name, value in values.items() if name in checks}
    for name, value in known.items():
        if not checks[name](value):
            raise ValueError(f"its {name!r} is of type {type(value).__name__}, or holds a value of another type")
    try:
        return kind(**known)
    except TypeError as error:
        raise ValueError(str(error).partition(") ")[2] or str(error)) from error


@cache
def _get_checks(kind: type) -> dict[str, Callable[[Any], bool]]:
    hints = get_type_hints(kind)
    return {each.name: _build_check(hints[each.name]) for each in fields(kind)}


def _build_check(hint: Any) -> Callable[[Any], bool]:
    """Return a function that tells if a value of JSON is of an annotated type. Whole numbers are numbers."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is None:
        allowed = (int, float) if hint is float else hint
        return lambda value: isinstance(value, allowed) and (hint is bool or (value is not True and value is not False))
    if origin is UnionType:
        checks = [_build_check(each) for each in arguments]
        return lambda value: any(check(value) for check in checks)
    check = _build_check(arguments[1 if origin is dict else 0])
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    length = len(arguments) if origin is tuple and arguments[-1] is not ... else None
    return lambda value: isinstance(value, (list, tuple)) and length in (None, len(value)) and all(map(check, value))
