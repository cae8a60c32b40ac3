"""Removing what a run left: temporary files of killed processes, and the results of a run that is overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from camtool.rendering.image_writing import is_temporary_name
from camtool.runs.report_rows import MANIFEST
from camtool.runs.run_folder.description import DESCRIPTION
from camtool.runs.run_folder.photo_records import JOURNAL, PHOTOS, read_records
from camtool.runs.run_folder.planning import is_inside

__all__ = [
    "FAILURES",
    "LISTS",
    "list_run_files",
    "move_results",
    "remove_results",
    "remove_run",
    "remove_temporary_files",
]

FAILURES = "failures.jsonl"
"""Name of the file in the output folder with one JSON line for each photo that failed."""

LISTS = (MANIFEST, FAILURES, JOURNAL, PHOTOS, DESCRIPTION)
"""Names of the files in the output folder that describe the run and its results."""


def remove_temporary_files(folders: Iterable[Path]) -> None:
    """Remove camtool's temporary files from folders, which killed runs left. Missing folders are left out."""
    for folder in folders:
        if folder.is_dir():
            for path in folder.iterdir():
                if is_temporary_name(path.name):
                    path.unlink(missing_ok=True)


def remove_results(folder: Path, names: Iterable[str]) -> None:
    """Remove recorded files from a run folder. Paths that lead out of it, and folders, are left alone.

    Raises:
        OSError: A file cannot be removed.
    """
    for name in names:
        if _may_be_removed(folder, name):
            (folder / name).unlink(missing_ok=True)


def move_results(folder: Path, names: Iterable[str], target: Path) -> None:
    """Move files from one folder to the same places in another one, with the caution of :func:`remove_results`.

    Files that are not there are left out, so that it can be repeated.

    Raises:
        OSError: A file cannot be moved.
    """
    for name in names:
        path, moved = folder / name, target / name
        if _may_be_removed(folder, name) and os.path.lexists(path):
            moved.parent.mkdir(parents=True, exist_ok=True)
            if moved.parent.resolve().is_relative_to(target.resolve()):
                path.replace(moved)


def list_run_files(folder: Path) -> Iterator[str]:
    """Yield the files that a run lists, relative to its folder, then its lists.

    The description is the last, so that a removal that is interrupted can be repeated.
    """
    records = chain(read_records(folder / PHOTOS), read_records(folder / JOURNAL))
    yield from chain.from_iterable(record.files for record in records)
    yield from _list_manifest_files(folder / MANIFEST)
    yield from LISTS


def remove_run(folder: Path) -> None:
    """Remove a run: the files that it lists, and its lists. Other files are left alone.

    Raises:
        OSError: A file cannot be removed.
    """
    remove_results(folder, list_run_files(folder))


def _may_be_removed(folder: Path, name: str) -> bool:
    """Return True if a recorded path leads to a file in the folder."""
    path = folder / name
    # A link to a folder on the way could lead anywhere.
    return is_inside(name) and path.parent.resolve().is_relative_to(folder.resolve()) and not path.is_dir()


def _list_manifest_files(path: Path) -> Iterator[str]:
    """Yield the files that a manifest names: the only list that camtool wrote before it kept records."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with suppress(ValueError):
                yield from _get_files(json.loads(line))


def _get_files(row: Any) -> list[str]:
    files = row.get("files") if isinstance(row, dict) else None
    return [*map(str, files.values())] if isinstance(files, dict) else []
