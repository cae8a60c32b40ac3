"""The output folder of a run: one run at a time, continued where it stopped, and complete however a run ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from camtool.arguments.regular_files import iterate_lines, open_regular
from camtool.errors import CamtoolError, Forgive
from camtool.rendering.image_writing import name_path_in_errors, open_atomically, remove_temporary_files
from camtool.rendering.written_files import check_inside
from camtool.runs import file_names
from camtool.runs.job_list import Job, fold_path, parse_source
from camtool.runs.locking import lock_folder
from camtool.runs.run_folder import description, photo_records
from camtool.runs.run_folder.hashes import hash_photo
from camtool.runs.run_folder.photo_records import JOURNAL, PHOTOS, PhotoRecord
from camtool.runs.stored_files import MANIFEST
from camtool.runs.text_escapes import to_json


@dataclass(frozen=True)
class Batch:
    """Photos that are explained together.

    Attributes:
        number: Its number in the run.
        jobs: The photos.
        is_complete: True if all results are there, so that nothing must be done.
    """

    number: int
    jobs: list[Job]
    is_complete: bool


def plan_new_photos(jobs: Sequence[Job], recorded: Sequence[PhotoRecord], batch_size: int) -> list[PhotoRecord]:
    """Return a record for each photo that is not recorded, in batches behind the recorded ones.

    Batches that were begun never get another photo. The results of a new photo are named so that they overwrite none
    of a recorded one.
    """
    done = {record.image for record in recorded}
    new = [job for job in jobs if str(job.source) not in done]
    stems = _choose_stems(new, [record.stem for record in recorded])
    first = recorded[-1].batch + 1 if recorded else 0
    return [
        PhotoRecord(str(job.source), stem, first + number // batch_size)
        for number, (job, stem) in enumerate(zip(new, stems, strict=True))
    ]


def _choose_stems(jobs: Sequence[Job], recorded: Sequence[str]) -> list[str]:
    """Return the names of results of new photos: none is that of a recorded one."""
    taken = {fold_path(Path(stem)) for stem in recorded}
    wanted = [job.stem if fold_path(job.stem) not in taken else job.stem.with_name(job.name) for job in jobs]
    return file_names.make_distinct([*recorded, *(stem.as_posix() for stem in wanted)])[len(recorded) :]


@dataclass(frozen=True)
class FolderState:
    """What decides whether recorded results still count.

    Attributes:
        folder: The output folder.
        started: When the run was started first, in nanoseconds since 1970. Photos that changed later are compared with
            their hash.
        was_killed: True if the last start did not end by itself, so that files may be damaged; all are compared with
            their hash.
        retry_failed: Photos that failed are explained again.
    """

    folder: Path
    started: int
    was_killed: bool
    retry_failed: bool

    def is_complete(self, record: PhotoRecord, job: Job) -> bool:
        """Return True if a photo need not be explained again: it is done, its files are whole, it has not changed.

        A photo that is not in the user's paths any more is not opened, so it counts as unchanged.
        """
        if not record.is_done or (job.is_asked and self.retry_failed and record.failure is not None):
            return False
        return not (job.is_asked and self._has_changed(record)) and all(
            self._is_whole(self.folder / name, facts) for name, facts in record.files.items()
        )

    def _is_whole(self, path: Path, facts: dict[str, object]) -> bool:
        with Forgive(OSError):
            is_as_long = path.stat().st_size == facts["bytes"]
            return is_as_long and (not self.was_killed or hash_photo(path) == facts["sha256"])
        return False

    def _has_changed(self, record: PhotoRecord) -> bool:
        """Return True if the photo is another than the one that was explained. One that is gone has not changed."""
        path = Path(record.image)
        try:
            facts = path.stat()
        except (OSError, ValueError):
            return False
        # On Windows st_ctime is the time of creation; elsewhere it is that of the last change, also by copying.
        # The times and the size of a folder do not tell whether a slice in it was written again.
        is_older = not path.is_dir() and max(facts.st_mtime_ns, facts.st_ctime_ns) < self.started
        if is_older and record.bytes in (None, facts.st_size):
            return False
        return hash_photo(path) != record.sha256


def find_batches(
    records: Iterable[PhotoRecord], jobs: Sequence[Job], listed: Collection[str], state: FolderState
) -> Iterator[Batch]:
    """Yield the batches of a run in their order, without those of which no photo is planned and some are not done.

    Args:
        records: All photos of the run.
        jobs: The photos as they are planned now.
        listed: The photos in the user's paths that are not planned. All others were removed since the run began.
        state: What decides whether recorded results still count.
    """
    planned = {str(job.source): job for job in jobs}
    for number, photos in photo_records.iterate_batches(records):
        batch = [_build_job(record, planned, listed) for record in photos]
        is_complete = all(map(state.is_complete, photos, batch))
        if is_complete or any(record.image in planned for record in photos):
            yield Batch(number, batch, is_complete)


def _build_job(record: PhotoRecord, planned: dict[str, Job], listed: Collection[str]) -> Job:
    """Return the job of a record. Its results keep their names, also if a new photo has a similar name."""
    source, stem = parse_source(record.image), Path(record.stem)
    job = planned.get(record.image)
    return Job(source, stem, is_asked=record.image in listed) if job is None else replace(job, stem=stem)


_LOCK = f".{MANIFEST}.lock"


@dataclass(frozen=True)
class RunStart:
    """How a run is started in its folder.

    Attributes:
        description: What the results depend on, as :func:`describe_run` returns it. A run in the folder is continued
            if its description is the same. None if it is unknown: then the folder must hold no run.
        overwrite: Remove a run that is in the folder, and start anew. It is removed when a photo of the new run is
            explained, or when the new run ends; if that fails before, the old run stays as it was.
        retry_failed: Explain photos again that failed in an earlier start.
        plan: Photos in batches that replace those of the jobs, e.g. of a run that is replayed.
        listed: The photos in the user's paths, also those that are no jobs, e.g. behind ``--limit``. One that an
            earlier start recorded may be explained beside others of its batch.
    """

    description: Mapping[str, Any] | None = None
    overwrite: bool = False
    retry_failed: bool = False
    plan: Sequence[PhotoRecord] = field(default=())
    listed: Collection[str] = frozenset()

    @property
    def uses_engine(self) -> bool:
        """True if the model may run by another engine than PyTorch's."""
        return self.description is not None and self.description.get("engine", "eager") != "eager"


class RunFolder:
    """A run folder that is open for one process.

    Args:
        folder: The output folder.
        batches: The batches of the run. The records of those that are complete are in the folder.
        state: What decides whether recorded results still count.
        discard_old_run: Called before the first photo is recorded that was explained.

    Attributes:
        batches: The batches.
    """

    def __init__(
        self, folder: Path, batches: Sequence[Batch], state: FolderState, discard_old_run: Callable[[], None]
    ) -> None:
        self.batches, self._folder, self._state, self._discard_old_run = batches, folder, state, discard_old_run
        self._journal = _open_journal(folder) if any(not batch.is_complete for batch in batches) else None
        self._old = photo_records.iterate_batches(photo_records.read_records(folder / PHOTOS))
        self._begun: dict[str, PhotoRecord] = {}

    def read_complete(self) -> Iterator[PhotoRecord]:
        """Yield the records of all complete batches."""
        complete = {batch.number for batch in self.batches if batch.is_complete}
        return (record for record in photo_records.read_records(self._folder / PHOTOS) if record.batch in complete)

    def read_batch(self, batch: Batch) -> list[PhotoRecord]:
        """Return the earlier records of a batch. Batches are asked for in their order, each once."""
        return next(photos for number, photos in self._old if number == batch.number)

    def begin_batch(self, batch: Batch) -> dict[str, PhotoRecord]:
        """Begin to explain a batch, maybe again: then what is recorded of it no longer counts.

        Returns:
            Path of a photo that is not in the user's paths any more → its results of an earlier start, which are kept.
        """
        records = self.read_batch(batch)
        self._begun = {record.image: record for record in records}
        kept = {
            record.image: record
            for record, job in zip(records, batch.jobs, strict=True)
            if not job.is_asked and self._state.is_complete(record, job)
        }
        # At once: if the process is killed within the batch, what is not in the journal is not done.
        self._write(b"".join(map(photo_records.encode_record, kept.values())))
        return kept

    def add(self, image: str, results: Mapping[str, Any]) -> None:
        """Record a photo of the batch that was begun last. It is in the folder when this method returns.

        Files of its earlier results that are no longer its results are removed.

        Args:
            image: The path of the photo.
            results: Fields of its :class:`PhotoRecord`.

        Raises:
            OSError: The disk is full or damaged. Earlier records stay complete.
        """
        if results.get("explanations") is not None:
            self._discard_old_run()
        earlier = self._begun.pop(image)
        # Before the record: if the process is killed in between, the photo is explained again.
        photo_records.remove_results(self._folder, earlier.files.keys() - results.get("files", {}).keys())
        self._write(photo_records.encode_record(replace(earlier.without_results(), **results)))

    def _write(self, lines: bytes) -> None:
        """Write records to the journal."""
        assert self._journal is not None, "all batches are complete"
        rest = memoryview(lines)
        with name_path_in_errors(self._folder / PHOTOS):
            # Without a buffer a killed run loses no record; such a write may write only a part.
            while rest:
                rest = rest[self._journal.write(rest) :]

    def close(self) -> None:
        """Close the files."""
        self._old.close()
        if self._journal is not None:
            self._journal.close()


@contextmanager
def open_run_folder(folder: Path, jobs: Sequence[Job], batch_size: int, start: RunStart) -> Iterator[RunFolder]:
    """Open the output folder for this run alone: begin a run, or continue the one that is there. Create the folder.

    However the run ends, the folder then lists all photos that are done. A run that is killed leaves a journal, which
    the next start reads.

    Args:
        folder: The output folder.
        jobs: The photos. Those that the run does not know yet form batches of their own at the end.
        batch_size: The number of photos in a batch.
        start: How the run is started.

    Raises:
        CamtoolError: Another process writes to the folder, or it holds a run with other settings.
        OSError: The folder cannot be used, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if start.overwrite:
        description.check_removable(description.read_description(folder), str(folder), by_cluster=False)
    for name in (MANIFEST, photo_records.FAILURES, description.DESCRIPTION, PHOTOS):
        check_inside(folder, Path(name))
        with suppress(FileNotFoundError):
            open_regular(folder / name).close()
    lock = lock_folder(folder / _LOCK, str(folder))
    with lock, photo_records.replace_old_run(folder, is_asked=start.overwrite) as discard_old_run:
        opened, is_refused = _open(folder, jobs, batch_size, start, discard_old_run), False
        try:
            yield opened
        except CamtoolError:
            is_refused = True
            raise
        finally:
            opened.close()
            _publish(folder)
            # A request that cannot be served at all must not keep the user from correcting it.
            if is_refused and not any(record.is_done for record in photo_records.read_records(folder / PHOTOS)):
                photo_records.remove_run(folder)


def _open(
    folder: Path, jobs: Sequence[Job], batch_size: int, start: RunStart, discard_old_run: Callable[[], None]
) -> RunFolder:
    if not start.overwrite:
        _check_folder(folder, start)
    was_killed = (folder / JOURNAL).exists()
    _merge_journal(folder)
    recorded = list(start.plan) or [record.without_results() for record in photo_records.check_records(folder / PHOTOS)]
    remove_temporary_files({folder, *(folder / Path(record.stem).parent for record in recorded)})
    new = [] if start.plan else plan_new_photos(jobs, recorded, batch_size)
    _check_free(folder, new, start)
    if description.read_description(folder) is None:
        description.write_description(folder, start.description or {})
    _write_plan(folder, new, start.plan)
    started = (folder / description.DESCRIPTION).stat().st_mtime_ns
    state = FolderState(folder, started, was_killed, start.retry_failed)
    batches = [*find_batches(photo_records.read_records(folder / PHOTOS), jobs, start.listed, state)]
    return RunFolder(folder, batches, state, discard_old_run)


def _write_plan(folder: Path, new: Sequence[PhotoRecord], plan: Sequence[PhotoRecord]) -> None:
    """Add new photos to the list of the folder, or replace the list by a plan."""
    kept = () if plan else photo_records.read_records(folder / PHOTOS)
    if new or plan:
        _write_lines(folder / PHOTOS, map(photo_records.encode_record, chain(kept, plan, new)))


def _check_folder(folder: Path, start: RunStart) -> None:
    """Check that a folder holds no run, or one that may be continued.

    Raises:
        CamtoolError: It holds another run.
    """
    if start.description is not None:
        description.check_unchanged(folder, start.description)
    elif description.read_description(folder) is not None:
        raise CamtoolError(
            f"out {str(folder)!r} holds results whose settings are unknown; give another folder with --out, or remove "
            "them and start anew with --overwrite."
        )


def _check_free(folder: Path, new: Sequence[PhotoRecord], start: RunStart) -> None:
    """Check that no file has the name of a result of photos that are new in a folder.

    Raises:
        CamtoolError: One has, so that it may be the user's.
    """
    taken = [*photo_records.find_result_files(folder, new, description.list_methods(start.description or {}))]
    # The record of a photo may have been damaged.
    listed = {*photo_records.list_manifest_files(folder)} if taken else set()
    name = next((name for name in taken if name not in listed), None)
    if name is not None:
        raise CamtoolError(
            f"{folder / name} has the name of a result, and is not of a run in this folder. Move it, or give another "
            "folder with --out."
        )


def _open_journal(folder: Path) -> Any:
    with name_path_in_errors(folder / PHOTOS):
        return (folder / JOURNAL).open("xb", buffering=0)


def _merge_journal(folder: Path) -> None:
    """Write the records of the journal to the list of photos, in one step, and remove the journal."""
    journal, photos = folder / JOURNAL, folder / PHOTOS
    # In a folder that another user prepared, a link could lead to any file.
    if journal.is_symlink():
        journal.unlink()
    if journal.is_file():
        # A power failure may have damaged the journal anywhere.
        _merge(photos, photo_records.check_records(photos), photo_records.check_records(journal, skip_damaged=True))
        journal.unlink()


def _merge(photos: Path, planned: Iterable[PhotoRecord], done: Iterable[PhotoRecord]) -> None:
    _write_lines(photos, map(photo_records.encode_record, photo_records.merge_records(planned, done)))


def _publish(folder: Path) -> None:
    """Write the lists of the folder from the records: photos, explanations and failures.

    If the process is killed meanwhile, the next start does it again: the journal is removed last.
    """
    journal, photos = folder / JOURNAL, folder / PHOTOS
    if journal.exists():
        _merge(photos, photo_records.read_records(photos), photo_records.read_records(journal))
    for name, list_lines in ((MANIFEST, _list_rows), (photo_records.FAILURES, _list_failures)):
        if not _holds_lines(folder / name, list_lines(photos)):
            _write_lines(folder / name, list_lines(photos))
    journal.unlink(missing_ok=True)


def _list_rows(photos: Path) -> Iterator[bytes]:
    for record in photo_records.read_records(photos):
        for row in record.explanations or ():
            yield f"{to_json(row)}\n".encode()


def _list_failures(photos: Path) -> Iterator[bytes]:
    for record in photo_records.read_records(photos):
        if record.failure is not None:
            yield f"{to_json({'image': record.image, 'reason': record.failure})}\n".encode()


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    with open_atomically(path, durable=True) as file:
        file.writelines(lines)


def _holds_lines(path: Path, lines: Iterable[bytes]) -> bool:
    with suppress(CamtoolError):  # a line is too long
        return path.exists() and all(ours == theirs for ours, theirs in zip_longest(lines, iterate_lines(path)))
    return False
