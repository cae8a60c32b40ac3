"""Records of photos in ``photos.jsonl``: the batch of each, and what was made of it.

While a run goes on, new records are in a journal beside the file. A batch that the journal begins replaces all that the
file says about the batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from camtool.arguments.regular_files import iterate_lines
from camtool.errors import CamtoolError
from camtool.runs.file_names import is_encodable, is_inside
from camtool.runs.stored_files import build_checked, parse_object, parse_row
from camtool.runs.text_escapes import to_json

PHOTOS = "photos.jsonl"
"""Name of the file in the output folder with one JSON line for each photo of the run."""

JOURNAL = f".{PHOTOS}.part"
"""Name of the file with the records of this start of the run. It exists until the run ends by itself."""


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
