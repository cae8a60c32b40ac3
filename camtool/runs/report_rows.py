"""The manifest of an output folder: one JSON line for each explanation. No line is lost or cut, however a run ends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from camtool.errors import CamtoolError
from camtool.rendering.image_writing import name_path_in_errors, open_atomically
from camtool.runs.locking import LockedError, hold_lock
from camtool.runs.text_escapes import to_json

__all__ = ["MANIFEST", "Manifest", "ManifestLine", "open_manifest"]

MANIFEST = "explanations.jsonl"
"""Name of the file in the output folder with one JSON line for each explanation."""


@dataclass(frozen=True)
class ManifestLine:
    """One line of the manifest: one photo, target and method.

    Attributes:
        image: The path of the photo.
        method: The method's name.
        layer: The layer's name.
        label: The label of the target.
        index: The class index; None for other targets.
        score: The score of the target.
        probability: The probability of the class; None if unknown.
        warnings: Reasons not to trust the map.
        box: ``(x0, y0, x1, y1)`` on the photo in pixels, of the explained detection; None for other targets.
        files: Kind → path of the file, relative to the output folder.
        warning_codes: The codes of the warnings, in the same order.
        predicted_label: The label of the model's top class, whatever was explained; None if it predicts no class.
        true_label: The label of the true class; None if it is not known.
        correct: True if the top class is the true one; None if one of them is not known.
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
    warning_codes: tuple[str, ...] = ()
    predicted_label: str | None = None
    true_label: str | None = None
    correct: bool | None = None


class Manifest:
    """Lines that a run adds. Each is in the file when :meth:`add` returns.

    Args:
        path: The path of the finished manifest.
        part: The file that holds the new lines until the run ends.
    """

    def __init__(self, path: Path, part: Path) -> None:
        self._path = path
        with name_path_in_errors(path):
            # Without a buffer, a killed run loses no line.
            self._file = part.open("xb", buffering=0)
        self.images: set[str] = set()

    def add(self, lines: Sequence[ManifestLine]) -> None:
        """Write lines.

        Raises:
            OSError: The disk is full or damaged. Earlier lines stay complete.
        """
        rest = memoryview(b"".join(map(_encode_line, lines)))
        with name_path_in_errors(self._path):
            # An unbuffered write may write only a part.
            while rest:
                rest = rest[self._file.write(rest) :]

    def mark_complete(self, image: str) -> None:
        """Mark an image as complete: lines of earlier runs about it are outdated."""
        self.images.add(image)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def open_manifest(folder: Path) -> Iterator[Manifest]:
    """Open the manifest of an output folder for this run alone. Create the folder if it is missing.

    However the run ends, the manifest then holds the lines of earlier runs about results that this run did not
    replace, followed by this run's lines. Until then the manifest is unchanged: new lines are in a hidden file beside
    it. If this run is killed, the next run recovers them from there.

    Raises:
        CamtoolError: Another run writes to the folder.
        OSError: The folder cannot be used, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock, part = (folder / f".{MANIFEST}.{suffix}" for suffix in ("lock", "part"))
        with hold_lock(lock), _open_part(folder / MANIFEST, part) as manifest:
            yield manifest
    except LockedError as error:
        raise CamtoolError(
            f"out {str(folder)!r}: another run writes to this folder ({error}); wait for it to end, or give another "
            "folder with --out."
        ) from None


@contextmanager
def _open_part(path: Path, part: Path) -> Iterator[Manifest]:
    # In a folder that another user prepared, a link could lead to any file.
    if part.is_symlink():
        part.unlink()
    # A run that was killed left its lines.
    if part.is_file():
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
    """Replace outdated lines of the manifest by those of ``part``, in one step.

    Args:
        path: The manifest.
        part: The file with the new lines, the last of which may be cut. It is removed.
        images: Images whose earlier lines are all outdated.
        at_least_empty: Create an empty manifest if there is none.
    """
    new = [line for line in _read_lines(part) if line.endswith(b"\n")]
    files = {file for line in new for file in _get_files(_parse_line(line))}
    kept = [line for line in _read_lines(path) if not _is_outdated(_parse_line(line), images, files)]
    if new and kept:
        with open_atomically(path) as stream:
            stream.writelines(line.rstrip(b"\r\n") + b"\n" for line in kept)
            stream.writelines(new)
        part.unlink()
    elif new or (at_least_empty and not kept):
        os.truncate(part, sum(map(len, new)))
        part.replace(path)
    else:
        part.unlink()


def _read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file with their line ends; none if there is no file."""
    try:
        return path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _parse_line(line: bytes) -> dict[str, Any]:
    """Return the fields of a line; none if it is damaged."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _get_files(fields: dict[str, Any]) -> list[str]:
    named = fields.get("files")
    return [*map(str, named.values())] if isinstance(named, dict) else []


def _is_outdated(fields: dict[str, Any], images: set[str], files: set[str]) -> bool:
    """Return True if a line is about one of the images or files. A damaged line is never outdated."""
    return str(fields.get("image", "")) in images or not files.isdisjoint(_get_files(fields))


def _encode_line(line: ManifestLine) -> bytes:
    """Return a line as JSON. Infinity and NaN, which JSON lacks, become null."""
    fields = asdict(line)
    for name in ("score", "probability"):
        if fields[name] is not None and not math.isfinite(fields[name]):
            fields[name] = None
    return f"{to_json(fields)}\n".encode()
