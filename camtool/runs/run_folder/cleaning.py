"""Removing what a run left: temporary files of killed processes, and the results of a run that is overwritten."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from camtool.arguments.regular_files import iterate_lines
from camtool.errors import CamtoolError
from camtool.rendering.image_writing import is_temporary_name
from camtool.runs import file_names
from camtool.runs.file_names import is_inside, resolve
from camtool.runs.manifest import MANIFEST, parse_row
from camtool.runs.run_folder.description import DESCRIPTION, list_methods, read_description
from camtool.runs.run_folder.photo_records import JOURNAL, PHOTOS, PhotoRecord, check_records
from camtool.runs.save_kinds import list_endings
from camtool.runs.stored_files import parse_object

FAILURES = "failures.jsonl"
"""Name of the file in the output folder with one JSON line for each photo that failed."""

LISTS = (MANIFEST, FAILURES, JOURNAL, PHOTOS, DESCRIPTION)
"""Names of the files in the output folder that describe the run and its results."""


def remove_temporary_files(folders: Iterable[Path]) -> None:
    """Remove camtool's temporary files from folders, which killed runs left. Missing folders are left out."""
    for folder in folders:
        if os.path.isdir(folder):  # noqa: PTH112  Path.is_dir raises if the path is too long
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
    """Yield the files that a run lists, or wrote before it was killed, relative to its folder, then its lists.

    The description is the last, so that a removal that is interrupted can be repeated.
    """
    waiting: dict[str, PhotoRecord] = {}
    for name in (PHOTOS, JOURNAL):
        for record in check_records(folder / name, skip_damaged=True):
            yield from record.files
            waiting.pop(record.image, None)
            if not record.is_done:
                waiting[record.image] = record
    yield from list_manifest_files(folder)  # also of records that are damaged
    # There were none before the run, see _check_free of the run folder.
    methods = list_methods(read_description(folder) or {})
    yield from find_result_files(folder, waiting.values(), methods)
    yield from LISTS


def find_result_files(folder: Path, records: Iterable[PhotoRecord], methods: Sequence[str]) -> Iterator[str]:
    """Yield the files of a run folder that are named as results of photos, relative to the folder.

    Args:
        folder: The output folder.
        records: The photos.
        methods: The methods of the run.
    """
    stems: dict[str, list[str]] = {}
    endings = list_endings()
    for record in records:  # there may be millions, and a Path takes long
        place, _, stem = record.stem.rpartition("/")
        stems.setdefault(place, []).append(stem)
    for place, names in stems.items():
        with suppress(OSError):  # most often there is no such folder yet
            for name in file_names.find_results(os.listdir(folder / place), names, methods, endings):  # noqa: PTH208
                yield f"{place}/{name}" if place else name


def list_manifest_files(folder: Path) -> Iterator[str]:
    """Yield the files of the explanations that a run lists. Damaged lines are left out."""
    with suppress(CamtoolError):
        for line in iterate_lines(folder / MANIFEST):
            with suppress(ValueError):
                yield from parse_row(parse_object(line)).files.values()


def remove_run(folder: Path) -> None:
    """Remove a run: the files that it lists, and its lists. Other files are left alone.

    Raises:
        OSError: A file cannot be removed.
    """
    remove_results(folder, list_run_files(folder))


def check_own_files(folder: Path) -> None:
    """Check that a folder holds no lists, or those of a run of camtool.

    Raises:
        CamtoolError: One may be the user's.
    """
    name = next((name for name in LISTS if os.path.lexists(folder / name)), None)
    if name is not None and read_description(folder) is None:
        raise CamtoolError(
            f"{folder / name} is not of a run of camtool, as there is no {DESCRIPTION} beside it. Move it, or give "
            "another folder with --out."
        )


def _may_be_removed(folder: Path, name: str) -> bool:
    """Return True if a recorded path leads to a file in the folder."""
    path = folder / name
    # A link to a folder on the way could lead anywhere.
    return is_inside(name) and resolve(path.parent).is_relative_to(resolve(folder)) and not path.is_dir()
