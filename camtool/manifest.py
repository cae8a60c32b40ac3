"""The manifest of an output folder: one JSON line for each explanation, whole and kept however a run ends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from camtool.errors import CamtoolError
from camtool.escapes import to_json
from camtool.images import naming, writing
from camtool.locking import LockedError, locked

__all__ = ["MANIFEST", "Entry", "Manifest", "open_manifest"]

MANIFEST = "explanations.jsonl"
"""The file in the output folder with one JSON line an explanation."""


@dataclass(frozen=True)
class Entry:
    """A line of the manifest: one photo, class and method.

    Attributes:
        image: Where the photo is.
        method: The method's name.
        layer: The layer's name.
        label: What was explained.
        index: The index of the class.
        score: The target's value.
        probability: The probability of the class.
        warnings: Reasons not to trust the map.
        box: ``(x0, y0, x1, y1)`` on the photo, of the detection that was explained; ``None`` for anything else.
        files: Kind → what was written, relative to the output folder.
    """

    image: str
    method: str
    layer: str
    label: str
    index: int | None
    score: float
    probability: float | None
    warnings: tuple[str, ...]
    box: tuple[float, float, float, float] | None
    files: dict[str, str]


class Manifest:
    """The lines that a run adds, each of which is in the file when :meth:`add` returns.

    Args:
        path: Where the manifest will be.
        part: The file that holds the lines until then.
    """

    def __init__(self, path: Path, part: Path) -> None:
        self._path = path
        with naming(path):
            self._file = part.open("xb", buffering=0)
        self.images: set[str] = set()

    def add(self, entry: Entry) -> None:
        """Write a line.

        Raises:
            OSError: The disk refuses; the lines before it stay whole.
        """
        line = memoryview(_line(entry))
        with naming(self._path):
            while line:
                line = line[self._file.write(line) :]

    def complete(self, image: str) -> None:
        """Note that all that was asked about an image is written: lines of earlier runs about it are outdated."""
        self.images.add(image)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def open_manifest(folder: Path) -> Iterator[Manifest]:
    """Open the manifest of an output folder for one run alone; a missing folder is made.

    However the run ends, the manifest then has this run's lines and, before them, the lines of earlier runs about
    results that this run did not replace. Until then it is as it was: the new lines are in a hidden file beside it,
    from which the next run recovers them if this one is killed.

    Raises:
        CamtoolError: Another run writes to the folder.
        OSError: The folder cannot be used, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / f".{MANIFEST}.lock"), _part(folder / MANIFEST, folder / f".{MANIFEST}.part") as manifest:
            yield manifest
    except LockedError as error:
        raise CamtoolError(
            f"out {str(folder)!r}: another run writes to this folder ({error}); wait for it to end, or choose another "
            "folder with --out."
        ) from None


@contextmanager
def _part(path: Path, part: Path) -> Iterator[Manifest]:
    if part.is_symlink():  # of a folder that somebody else prepared
        part.unlink()
    if part.is_file():  # of a run that was killed
        _publish(path, part, set())
    manifest = Manifest(path, part)
    done = False
    try:
        yield manifest
        done = True
    finally:
        manifest.close()
        _publish(path, part, manifest.images, at_least_empty=done)


def _publish(path: Path, part: Path, images: set[str], *, at_least_empty: bool = False) -> None:
    """Put the lines of ``part`` in the place of those that they outdate, in one step.

    Args:
        path: The manifest.
        part: The file with the new lines, of which the last may be cut short; it is gone afterwards.
        images: The images whose earlier lines are all outdated.
        at_least_empty: Make a manifest without lines where there is none.
    """
    new = [line for line in _lines(part) if line.endswith(b"\n")]
    files = {file for line in new for file in _files(_fields(line))}
    kept = [line for line in _lines(path) if not _is_outdated(_fields(line), images, files)]
    if new and kept:
        with writing(path) as stream:
            stream.writelines(line.rstrip(b"\r\n") + b"\n" for line in kept)
            stream.writelines(new)
        part.unlink()
    elif new or (at_least_empty and not kept):
        os.truncate(part, sum(map(len, new)))
        part.replace(path)
    else:
        part.unlink()


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file with their ends; none where there is no file."""
    try:
        return path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _fields(line: bytes) -> dict[str, Any]:
    """Return what a line tells; nothing, if it is garbled."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _files(fields: dict[str, Any]) -> list[str]:
    named = fields.get("files")
    return [*map(str, named.values())] if isinstance(named, dict) else []


def _is_outdated(fields: dict[str, Any], images: set[str], files: set[str]) -> bool:
    """Return True if the image is one of these, or one of its files is; a garbled line is left as it is."""
    return str(fields.get("image", "")) in images or not files.isdisjoint(_files(fields))


def _line(entry: Entry) -> bytes:
    """Return an entry as a line of JSON, which has no word for what is not a finite number but ``null``."""
    fields = asdict(entry)
    for name in ("score", "probability"):
        if fields[name] is not None and not math.isfinite(fields[name]):
            fields[name] = None
    return f"{to_json(fields)}\n".encode()
