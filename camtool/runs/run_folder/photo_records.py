"""Records of photos in ``photos.jsonl``: the batch of each, and what was made of it.

While a run goes on, new records are in a journal beside the file. A batch that the journal begins replaces all that the
file says about the batch.

Also removing what a run left, and keeping aside the run of a folder that is overwritten. Left are temporary files of
killed processes, and results. An overwritten run is restored if the new one never has a result: a typo in an option is
found when the first photo is explained, and until then nothing may be lost.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from camtool.arguments.regular_files import iterate_lines
from camtool.errors import CamtoolError
from camtool.rendering.written_files import check_inside, resolve
from camtool.runs import file_names
from camtool.runs.file_names import is_encodable, is_inside
from camtool.runs.run_folder.description import DESCRIPTION, list_methods, read_description
from camtool.runs.save_kinds import list_endings
from camtool.runs.stored_files import MANIFEST, build_checked, parse_object, parse_row
from camtool.runs.text_escapes import to_json

# Name of the file in the output folder with one JSON line for each photo of the run.
PHOTOS = "photos.jsonl"

# Name of the file with the records of this start of the run. It exists until the run ends by itself.
JOURNAL = f".{PHOTOS}.part"


@dataclass(frozen=True)
class PhotoRecord:
    """What a run knows about one photo.

    Attributes:
        image: The path of the photo.
        stem: The path of its results, relative to the output folder, without their endings.
        batch: The number of its batch. The photos of a batch are explained together, which may change the last bits.
        bytes: The size of the photo's file; None if it could not be read, or is not done.
        sha256: The hash of the photo's file; None if it could not be read, or is not done.
        explanations: The photo's rows of the manifest; None if it is not done, or failed.
        failure: Why it could not be explained; None for others.
        files: Path of each file relative to the output folder → its ``bytes`` and ``sha256``.
    """

    image: str
    stem: str
    batch: int
    bytes: int | None = None
    sha256: str | None = None
    explanations: list[dict[str, Any]] | None = None
    failure: str | None = None
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """True if the photo was explained or failed."""
        return self.explanations is not None or self.failure is not None

    def without_results(self) -> PhotoRecord:
        """Return the record of the photo before it is done."""
        return PhotoRecord(self.image, self.stem, self.batch)


def encode_record(record: PhotoRecord) -> bytes:
    """Return a record as a line of JSON. A photo that is not done has only its path, stem and batch."""
    given = record if record.is_done else record.without_results()
    fields = {name: value for name, value in vars(given).items() if value is not None and value != {}}
    return f"{to_json(fields)}\n".encode()


def read_records(path: Path) -> Iterator[PhotoRecord]:
    """Yield the records in a file that this process wrote, or that :func:`check_records` has passed, one at a time.

    A last line that was cut is left out; a missing file has none.
    """
    for line in iterate_lines(path):
        if line.endswith(b"\n"):
            yield PhotoRecord(**json.loads(line))


def check_records(path: Path, *, skip_damaged: bool = False) -> Iterator[PhotoRecord]:
    """Yield the records as :func:`read_records` does, of a file that anybody may have written.

    Args:
        path: The file.
        skip_damaged: Leave all damaged lines out. Without it one is an error, as the photo of it is not known.

    Raises:
        CamtoolError: A line is damaged, or the file is no regular one.
    """
    images: set[str] = set()
    batch = 0
    for number, line in enumerate(iterate_lines(path), 1):
        if not line.endswith(b"\n"):
            return
        try:
            record = _parse_record(line)
            if record.image in images:
                raise ValueError(f"the photo {record.image} has another line")
            if record.batch < batch:
                raise ValueError(f"batch {record.batch} stands behind batch {batch}")
        except ValueError as error:
            if skip_damaged:
                continue
            raise CamtoolError(
                f"{path}, line {number} is damaged: {error}. Remove the line, and the run explains its photo again; or "
                "start anew with --overwrite."
            ) from error
        images.add(record.image)
        batch = record.batch
        yield record


def merge_records(planned: Iterable[PhotoRecord], journal: Iterable[PhotoRecord]) -> Iterator[PhotoRecord]:
    """Yield the planned records in their order, with those of the journal in their place, one batch at a time.

    Of a batch that the journal began and did not complete, the other photos are not done.

    Args:
        planned: All photos of the run, by increasing batch.
        journal: Photos of some batches, in the same order.
    """
    news = iterate_batches(journal)
    upcoming = next(news, None)
    for batch, photos in iterate_batches(planned):
        while upcoming is not None and upcoming[0] < batch:
            upcoming = next(news, None)
        if upcoming is None or upcoming[0] != batch:
            yield from photos
            continue
        done = {record.image: record for record in upcoming[1]}
        yield from (done.get(record.image, record.without_results()) for record in photos)
        upcoming = next(news, None)


def iterate_batches(records: Iterable[PhotoRecord]) -> Generator[tuple[int, list[PhotoRecord]], None, None]:
    """Yield the number and the photos of each batch."""
    for number, photos in groupby(records, key=lambda record: record.batch):
        yield number, [*photos]


def _parse_record(line: bytes) -> PhotoRecord:
    """Return the record of a line.

    Raises:
        ValueError: It is damaged, or says what camtool does not write.
    """
    values = parse_object(line)
    unknown = values.keys() - PhotoRecord.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"camtool writes no {min(unknown)!r}")
    record = build_checked(PhotoRecord, values)
    if record.batch < 0 or not record.image or not is_encodable(record.image):
        raise ValueError("its batch or its image is invalid")
    _check_files(record, _list_files(record))
    return record


def _list_files(record: PhotoRecord) -> set[str]:
    """Return the files that the explanations of a record name."""
    rows = [parse_row(row) for row in record.explanations or ()]
    if any(row.image != record.image for row in rows) or (rows and record.failure is not None):
        raise ValueError("its explanations are of another photo")
    return {name for row in rows for name in row.files.values()}


def _check_files(record: PhotoRecord, of_explanations: Collection[str]) -> None:
    if not all(name and is_inside(name) for name in (record.stem, *record.files)):
        raise ValueError("a path leads out of the folder")
    for facts in record.files.values():
        if not isinstance(facts.get("bytes"), int) or not isinstance(facts.get("sha256"), str):
            raise ValueError("a file has no size or no hash")
    if not record.files.keys() >= {*of_explanations}:
        raise ValueError("a file of an explanation is not listed")


# Name of the file in the output folder with one JSON line for each photo that failed.
FAILURES = "failures.jsonl"

# Names of the files in the output folder that describe the run and its results.
LISTS = (MANIFEST, FAILURES, JOURNAL, PHOTOS, DESCRIPTION)

# Name of the subfolder while files of the old run are moved to it or back.
_MOVING = ".camtool-moving"

# Name of the same subfolder while the old run is in it, and the lists in the folder are those of the new run.
_ASIDE = ".camtool-replaced"

# Name of the same subfolder when the new run has a result. Renaming it decides in one step which run counts.
_DISCARDED = ".camtool-removed"


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
        subfolder, _, stem = record.stem.rpartition("/")
        stems.setdefault(subfolder, []).append(stem)
    for subfolder, names in stems.items():
        with suppress(OSError):  # most often there is no such folder yet
            listed = os.listdir(folder / subfolder)  # noqa: PTH208
            for name in file_names.find_results(listed, names, methods, endings):
                yield f"{subfolder}/{name}" if subfolder else name


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
        walked = ((Path(path), files) for path, _, files in os.walk(moving))  # links to folders are not followed
        names = [(path / name).relative_to(moving).as_posix() for path, files in walked for name in files]
        move_results(moving, names, folder)
        shutil.rmtree(moving)
