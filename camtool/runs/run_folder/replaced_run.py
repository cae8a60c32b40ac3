"""The old run of a folder that is overwritten: kept aside until the new run has a result, and restored if it never has.

A typo in an option of the new run is found when its first photo is explained. Until then nothing may be lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from camtool.runs.file_names import check_inside
from camtool.runs.run_folder.cleaning import check_own_files, list_run_files, move_results, remove_run

_MOVING = ".camtool-moving"
"""Name of the subfolder while files of the old run are moved to it or back."""

_ASIDE = ".camtool-replaced"
"""Name of the same subfolder while the old run is in it, and the lists in the folder are those of the new run."""

_DISCARDED = ".camtool-removed"
"""Name of the same subfolder when the new run has a result. Renaming it decides in one step which run counts."""


def is_interrupted(folder: Path) -> bool:
    """Return True if the lists in a folder may be those of a new run that was killed before it had a result.

    The next run in the folder restores the old one.
    """
    return any((folder / name).exists() for name in (_MOVING, _ASIDE))


@contextmanager
def replace_old_run(folder: Path, *, is_asked: bool) -> Iterator[Callable[[], None]]:
    """Put the run in a folder aside for the block, if that is asked for, and yield the function that discards it.

    If the block is left by an exception, also Ctrl-C, before that function was called, the old run is restored. If the
    process is killed before, the next call for the folder restores it.

    Args:
        folder: The output folder, which must be locked.
        is_asked: Replace the run. Otherwise only an earlier replacement is completed, or undone.

    Raises:
        CamtoolError: A link in the folder leads out of it, or lists in it are not of a run of camtool.
        OSError: A file cannot be moved.
    """
    for name in (_MOVING, _ASIDE, _DISCARDED):
        check_inside(folder, Path(name))
    shutil.rmtree(folder / _DISCARDED, ignore_errors=True)
    _restore(folder)
    check_own_files(folder)
    if is_asked:
        move_results(folder, list_run_files(folder), folder / _MOVING)
        if (folder / _MOVING).exists():
            (folder / _MOVING).rename(folder / _ASIDE)
    try:
        yield lambda: _discard(folder)
    except BaseException:
        _restore(folder)
        raise
    _discard(folder)


def _discard(folder: Path) -> None:
    """Decide that the new run counts."""
    if (folder / _ASIDE).exists():
        (folder / _ASIDE).rename(folder / _DISCARDED)
        shutil.rmtree(folder / _DISCARDED)


def _restore(folder: Path) -> None:
    """Move the old run back, if one is aside. A kill at any moment leaves what the next call completes."""
    moving, aside = folder / _MOVING, folder / _ASIDE
    if aside.exists():
        remove_run(folder)  # the new one, which has recorded no files yet
        aside.rename(moving)
    if moving.exists():
        places = ((Path(place), files) for place, _, files in os.walk(moving))  # links to folders are not followed
        names = [(place / name).relative_to(moving).as_posix() for place, files in places for name in files]
        move_results(moving, names, folder)
        shutil.rmtree(moving)
