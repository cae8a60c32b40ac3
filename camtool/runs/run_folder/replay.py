"""Replay of a run: make its explanations again, and compare them with the stored ones, bit by bit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError, ImageError
from camtool.explaining.explainer import Explainer
from camtool.models.loading import is_offline
from camtool.rendering.written_files import resolve
from camtool.runs.job_list import Job, parse_source
from camtool.runs.run_folder import description, photo_records
from camtool.runs.run_folder.hashes import hash_photo
from camtool.runs.run_folder.photo_records import JOURNAL, PHOTOS, PhotoRecord
from camtool.runs.run_folder.resumable_folder import RunStart
from camtool.runs.save_kinds import OutputSettings


@dataclass(frozen=True)
class ReplayedExplanation:
    """A stored explanation that was made again, or a photo that failed.

    Attributes:
        image: The path of the photo.
        method: The method's name; None for a photo that failed.
        label: The label of the target; None for a photo that failed.
        differences: What differs, one text for each; none if all numbers and the bytes of all files are the same.
    """

    image: str
    method: str | None
    label: str | None
    differences: list[str]


@dataclass
class Replayer:
    """Makes the explanations of a run again, each batch as a whole, in another folder.

    Args:
        folder: The run folder.
        image: A photo of the run: its recorded path, or the end of it. By default all are replayed.

    Attributes:
        changes: What is other than in the run: versions, weights, device.
        explanations: The explanations that were replayed.

    Raises:
        CamtoolError: The folder holds no run, or the run was started in another directory.
        ImageError: The run has no such photo.
    """

    folder: Path
    image: str | None = None
    changes: list[str] = field(default_factory=list, init=False)
    explanations: list[ReplayedExplanation] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        described = description.read_description(self.folder)
        if described is None or "command" not in described:
            name = description.DESCRIPTION
            raise CamtoolError(f"run {str(self.folder)!r} holds no {name}, so it cannot be replayed.")
        _check_shape(described, self.folder / description.DESCRIPTION)
        description.check_directory(described)
        self.description: dict[str, Any] = described
        done = [record.image for record in self._read_stored() if record.is_done]
        if not done:
            raise CamtoolError(f"run {str(self.folder)!r} has explained no photo yet; start it again with camtool run.")
        if self.image is not None:
            self.image = _find_image(self.image, done)

    def list_foreign(self) -> list[str]:
        """Return what a replay would run or open because the files of the run name it: code, hubs and addresses.

        Somebody else may have written the files, and what they name may be a trap.
        """
        command = self.description["command"]
        model, weights, transform = (command.get(name) for name in ("model", "weights", "transform"))
        texts = _iterate_texts({name: value for name, value in command.items() if name not in ("model", "paths")})
        photos = (record.image for record in self._select_batches())
        addresses = [text for text in (*texts, *command["paths"], *photos) if _ADDRESS.match(text)]
        return [
            *([] if is_offline(model, weights) else [f"--model {model}"]),
            *([f"--transform {transform}"] if transform is not None else []),
            *dict.fromkeys(addresses),
        ]

    @property
    def is_identical(self) -> bool:
        """True if no explanation differs."""
        return not any(explanation.differences for explanation in self.explanations)

    def replay(
        self, explainer: Explainer[Any], targets: Any, output: OutputSettings, batch_size: int, now: Mapping[str, Any]
    ) -> None:
        """Explain the photos again, and compare.

        Args:
            explainer: The explainer, made as in the run.
            targets: The targets of the run.
            output: The settings of the run, with an empty folder for the new results.
            batch_size: The batch size of the run.
            now: The description of this replay.
        """
        from camtool.runs.executor import run_jobs

        stored = [record for record in self._select_batches() if record.is_done]
        plan = [record.without_results() for record in self._select_batches()]
        jobs = [Job(parse_source(record.image), Path(record.stem)) for record in plan]
        start = RunStart(now, plan=plan)
        with closing(run_jobs(explainer, jobs, targets, output, batch_size=batch_size, start=start)) as outcomes:
            for _ in outcomes:
                pass
        self.changes = description.find_changes({**self.description, "command": {}}, {**now, "command": {}})
        made = {record.image: record for record in photo_records.read_records(output.folder / PHOTOS)}
        self.explanations = [*self._compare_photos(stored, made)]

    def _compare_photos(self, stored: list[PhotoRecord], made: dict[str, PhotoRecord]) -> Iterator[ReplayedExplanation]:
        changed = {record.image for record in stored if made[record.image].sha256 != record.sha256}
        for record in stored:
            if self.image in (None, record.image):
                photos = _describe_photos(record, stored, changed)
                yield from _compare(self.folder, record, made[record.image], photos)

    def _read_stored(self) -> Iterator[PhotoRecord]:
        journal = photo_records.check_records(self.folder / JOURNAL, skip_damaged=True)
        return photo_records.merge_records(photo_records.check_records(self.folder / PHOTOS), journal)

    def _select_batches(self) -> Iterator[PhotoRecord]:
        """Yield all photos of the batches that hold a photo to replay."""
        batches = {photo.batch for photo in self._read_stored() if photo.is_done and self.image in (None, photo.image)}
        if self.description.get("engine", "eager") != "eager":
            # The first photos decide whether the engine can be used.
            first = next((photo.batch for photo in self._read_stored() if photo.explanations is not None), None)
            batches |= set() if first is None else {first}
        return (photo for photo in self._read_stored() if photo.batch in batches)


# The start of a URL or URI. One slash alone starts a local path, also where a folder is named ``scan:``.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def _check_shape(described: Mapping[str, Any], path: Path) -> None:
    """Check the parts of a description that a replay uses.

    Raises:
        CamtoolError: One is of another type.
    """
    if description.is_cluster_run(described):
        raise CamtoolError(f"{path} is of camtool cluster, whose runs cannot be replayed.")
    paths, model, weights = (described["command"].get(name) for name in ("paths", "model", "weights"))
    are_paths = isinstance(paths, list) and all(isinstance(entry, str) for entry in paths)
    if not are_paths or not isinstance(model, str) or not isinstance(weights, str | None):
        raise CamtoolError(f"{path} is damaged: its command names no valid paths, model or weights.")


def _iterate_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value of JSON, also the names in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in _iterate_texts(part))
    elif isinstance(value, list):
        yield from (text for entry in value for text in _iterate_texts(entry))


def _find_image(asked: str, images: Sequence[str]) -> str:
    """Return the recorded path of a photo.

    Raises:
        ImageError: None, or several, end like this.
    """
    parts = Path(asked).parts
    same = [image for image in images if image == asked or resolve(Path(image)) == resolve(Path(asked))]
    ending = [image for image in images if Path(image).parts[-len(parts) :] == parts]
    names = same[:1] or ending
    if len(names) == 1:
        return names[0]
    if names:
        raise ImageError(f"image {asked!r} is one of {len(names)} photos of the run, e.g. {names[0]} and {names[1]}.")
    raise ImageError(f"image {asked!r} is no photo of the run.{suggest_names(asked, images)}")


def _describe_photos(record: PhotoRecord, stored: Sequence[PhotoRecord], changed: set[str]) -> list[str]:
    """Return what has changed in the photos of a batch."""
    if record.image in changed:
        return ["the photo has changed"]
    others = [other.image for other in stored if other.batch == record.batch and other.image in changed]
    return [f"a photo of the same batch has changed: {others[0]}"] if others else []


def _compare(folder: Path, stored: PhotoRecord, made: PhotoRecord, photos: list[str]) -> Iterator[ReplayedExplanation]:
    """Yield what differs in each explanation of a photo.

    Args:
        folder: The run folder.
        stored: What the run recorded of the photo.
        made: What was made now.
        photos: What has changed in the photos; it is told with each explanation that differs.
    """
    if stored.explanations is None or made.explanations is None:
        then, now = (record.failure or "none" for record in (stored, made))
        differs = [f"failure then: {then}", f"failure now: {now}", *photos] if then != now else []
        yield ReplayedExplanation(stored.image, None, None, differs)
        return
    for number, row in enumerate(stored.explanations):
        now_row = made.explanations[number] if number < len(made.explanations) else {}
        differs = [*_compare_numbers(row, now_row), *_compare_files(folder, row, stored, made)]
        reasons = [*photos, *differs] if differs else []
        yield ReplayedExplanation(stored.image, row.get("method"), row.get("label"), reasons)


def _compare_numbers(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs in the fields of a row; the files are compared by their bytes."""
    names = [name for name in then if name != "files" and then[name] != now.get(name)]
    return [f"{name}: {_show(then[name])} then, {_show(now.get(name))} now" for name in names]


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _compare_files(folder: Path, row: Mapping[str, Any], stored: PhotoRecord, made: PhotoRecord) -> Iterator[str]:
    """Yield what differs in the files of an explanation: the new ones, or the stored ones since they were written."""
    for kind, name in row["files"].items():
        recorded = stored.files[name]["sha256"]
        if made.files.get(name, {}).get("sha256") != recorded:
            yield f"{kind}: other bytes than those of {name}"
        if hash_photo(folder / name) != recorded:
            yield f"{kind}: {name} was changed or removed after the run"
