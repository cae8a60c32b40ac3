"""Files that camtool writes under names of its own: what it did not write itself is never replaced."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from camtool.arguments.message_parts import map_json
from camtool.arguments.regular_files import append_json_lines, hash_stream, iterate_lines, open_regular
from camtool.errors import CamtoolError, Forgive
from camtool.rendering.image_writing import remove_temporary_files

# The list of what camtool wrote to a folder: a line with a name and a hash for each time that a file was written.
RECORD = ".camtool-files.jsonl"

# Time after which a temporary file is that of a killed process, where no lock tells.
SECONDS_TO_WRITE = 24 * 3600

# In place of the hash of what is absent or cannot be read; nothing is recognized by it.
_NOTHING = "nothing"


def check_inside(folder: Path, path: Path) -> None:
    """Check that no link leads a file out of the output folder: somebody else may have prepared the folder.

    Args:
        folder: The output folder. It may itself be a link, as the user has named it.
        path: The file, relative to the folder; it need not exist.

    Raises:
        CamtoolError: The file, or a folder on the way to it, is a link that leads outside.
    """
    target = resolve(folder / path)
    if not target.is_relative_to(resolve(folder)):
        raise CamtoolError(f"{folder / path}: a link in the output folder leads out of it, to {target}; remove it.")


def resolve(path: Path) -> Path:
    """Return a path without links. One that leads to itself stays, where ``Path.resolve`` may raise a RuntimeError."""
    return Path(os.path.realpath(path))


def check_replaceable(folder: Path, names: Iterable[str]) -> None:
    """Check that files and subfolders with these names are absent from a folder, or as camtool wrote them there.

    Args:
        folder: The output folder; it need not exist.
        names: The names, relative to the folder. Of a subfolder it does not matter what is in it.

    Raises:
        CamtoolError: One is the user's, was changed after camtool wrote it, or is a link that leads out of the folder.
    """
    recorded, foreign = _read_record(folder), []
    for name in names:
        check_inside(folder, Path(name))
        path, digest = folder / name, recorded.get(name, _NOTHING)
        is_own = digest is None or (digest != _NOTHING and digest == _identify(path))
        if os.path.lexists(path) and not is_own:
            foreign.append(repr(str(path)))
    if foreign:
        raise CamtoolError(
            "there are files that are not as camtool wrote them, or that an earlier version wrote: "
            f"{', '.join(foreign)}; move them, or give another folder for the results."
        )


@contextmanager
def replace_files(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Record what the block writes to a folder, so that it may be written again. Create the folder.

    Raises:
        CamtoolError: As of :func:`check_replaceable`.
    """
    check_replaceable(folder, names)
    folder.mkdir(parents=True, exist_ok=True)
    remove_temporary_files([folder, *(folder / name for name in names)], least_age=SECONDS_TO_WRITE)
    # Before the block: if the process is killed in it, the files are camtool's nevertheless.
    _add_to_record(folder, dict.fromkeys(names))
    try:
        yield
    finally:
        _add_to_record(folder, {name: _identify(folder / name) for name in names})


def replace_infinite(value: Any) -> Any:
    """Return a value for JSON, which has no infinite and no unknown numbers: they become None."""
    return map_json(value, lambda entry: None if isinstance(entry, float) and not math.isfinite(entry) else entry)


def _identify(path: Path) -> str:
    """Return the hash of a file, a word for a folder, or :data:`_NOTHING`."""
    if path.is_dir():
        return "a folder"
    with Forgive(CamtoolError, OSError), open_regular(path, sys.maxsize) as stream:
        return hash_stream(stream)
    return _NOTHING


def _read_record(folder: Path) -> dict[str, str | None]:
    """Return the last hash of each name; None if its writing never ended."""
    check_inside(folder, Path(RECORD))
    recorded = dict[str, str | None]()
    for line in iterate_lines(folder / RECORD):
        # A line may be cut off, or somebody else may have written it.
        with suppress(ValueError, RecursionError, LookupError, TypeError):
            entry = json.loads(line)
            recorded[entry["name"]] = entry["sha256"]
    return recorded


def _add_to_record(folder: Path, hashes: dict[str, str | None]) -> None:
    append_json_lines(folder / RECORD, ({"name": name, "sha256": digest} for name, digest in hashes.items()))
