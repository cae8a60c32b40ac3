"""The plan of a run that may have been begun: its photos in fixed batches, and which batches must be explained."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from camtool.errors import Forgive
from camtool.runs import file_names
from camtool.runs.job_list import Job, fold_path, parse_source
from camtool.runs.run_folder.hashes import hash_photo
from camtool.runs.run_folder.photo_records import PhotoRecord


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
    known = {record.image for record in recorded}
    taken = {fold_path(Path(record.stem)) for record in recorded}
    new = [job for job in jobs if str(job.source) not in known]
    wanted = [job.stem if fold_path(job.stem) not in taken else job.stem.with_name(job.name) for job in new]
    stems = file_names.make_distinct([*(record.stem for record in recorded), *(stem.as_posix() for stem in wanted)])
    first = recorded[-1].batch + 1 if recorded else 0
    return [
        PhotoRecord(str(job.source), stem, first + number // batch_size)
        for number, (job, stem) in enumerate(zip(new, stems[len(recorded) :], strict=True))
    ]


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
    for number, photos in iterate_batches(records):
        batch = [_build_job(record, planned, listed) for record in photos]
        is_complete = all(map(state.is_complete, photos, batch))
        if is_complete or any(record.image in planned for record in photos):
            yield Batch(number, batch, is_complete)


def iterate_batches(records: Iterable[PhotoRecord]) -> Generator[tuple[int, list[PhotoRecord]], None, None]:
    """Yield the number and the photos of each batch."""
    for number, photos in groupby(records, key=lambda record: record.batch):
        yield number, list(photos)


def _build_job(record: PhotoRecord, planned: dict[str, Job], listed: Collection[str]) -> Job:
    """Return the job of a record. Its results keep their names, also if a new photo has a similar name."""
    source, stem = parse_source(record.image), Path(record.stem)
    job = planned.get(record.image)
    return Job(source, stem, is_asked=record.image in listed) if job is None else replace(job, stem=stem)
