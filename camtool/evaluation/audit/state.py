"""An audit, or a comparison of two models, on its way: its state file and lock, and the steps that both have."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

import camtool
from camtool.arguments.checks import check_count, check_number
from camtool.arguments.message_parts import format_count
from camtool.errors import ImageError, MetricError
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.audit.split import Half, Record, group_images, read_capture_time, split_in_halves
from camtool.evaluation.audit.trials import LEAST_GROUPS
from camtool.evaluation.leaderboard.measurement import Checkpoint, hash_model, hash_tensors, replace_checkpoint
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.image_files import read_image
from camtool.progress import Stage, follow_loop
from camtool.rendering.image_writing import remove_temporary_files
from camtool.rendering.written_files import check_inside
from camtool.runs.locking import LockedError, hold_lock

# Names of images or classes that are listed.
SHOWN = 20

_STATE_NAME = "state.jsonl"
_LOCK_NAME = f".{_STATE_NAME}.lock"

# Difference of logits, as such and as a share, up to which a model counts as the same.
_LOGIT_ERROR = 1e-4

_T = TypeVar("_T")


_R = TypeVar("_R", bound=Record)


def check_options(passes: int | str, controls: int, batch_size: int, level: float) -> int:
    """Check the numbers that an audit and a comparison have, and return the most forward passes.

    Raises:
        MetricError: One is too small or too large.
    """
    most_passes = sys.maxsize if passes == "all" else passes
    for name, value in (("passes", most_passes), ("controls", controls), ("batch_size", batch_size)):
        check_count(name, value, error=MetricError)
    check_number("level", level, above=0, below=1, error=MetricError)
    return int(most_passes)


def shorten_list(names: Sequence[str]) -> str:
    """Return the first names, for a message."""
    return f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"


@contextmanager
def hold_folder(folder: Path | None) -> Iterator[None]:
    """Keep other audits out of a folder during the block. A folder that an error leaves empty is removed again.

    Raises:
        MetricError: One works in it.
    """
    if folder is None:
        yield
        return
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    check_inside(folder, Path(_LOCK_NAME))
    try:
        with hold_lock(folder / _LOCK_NAME):
            remove_temporary_files([folder])
            yield
    except BaseException as error:
        if is_new:
            with suppress(OSError):  # there are files in it
                folder.rmdir()
        if not isinstance(error, LockedError):
            raise
        raise MetricError(f"out: another audit works in {folder} ({error}); wait, or give another folder.") from error


@contextmanager
def replace_state(folder: Path, *, is_asked: bool) -> Iterator[None]:
    """Put the numbers of earlier starts aside for the block, see :func:`replace_checkpoint`.

    Raises:
        CamtoolError: Another audit works in the folder, or its state file is not camtool's.
    """
    with ExitStack() as stack:
        if folder.exists():
            with hold_folder(folder):
                stack.enter_context(replace_checkpoint(folder, _STATE_NAME, is_asked=is_asked))
        yield


class State:
    """Numbers that were computed under a key, in memory and in a file of the folder; those of other settings are kept.

    Args:
        images: The images, with each model.
        settings: All else that numbers depend on.
        folder: The folder; None keeps them in memory only.
    """

    def __init__(self, images: Sequence[AuditImages], settings: object, folder: Path | None) -> None:
        models, stamps = [hash_model(one.subject.model) for one in images], [*map(_stamp, images[0].sources)]
        hashes, parts = zip(*(one.score_first_inputs() for one in images), strict=True)
        # They tell of code that neither weights nor settings show, e.g. another activation function.
        logits = [*chain.from_iterable(parts)]
        inputs_of_all = models, camtool.__version__, settings, stamps, hashes
        if folder is not None:
            check_inside(folder, Path(_STATE_NAME))
        self._store = Checkpoint(None if folder is None else folder / _STATE_NAME)
        self._unwritten = dict[str, dict[str, Any]]()
        for variant in count():
            self._prefix = hash_tensors([], *inputs_of_all, variant)
            before = self.get("logits")
            if not isinstance(before, list):
                self._unwritten = {f"{self._prefix} logits": {"values": logits}}
                break
            # Those that differ in the last bits count as the same.
            if len(before) == len(logits) and np.allclose(before, logits, _LOGIT_ERROR, _LOGIT_ERROR, equal_nan=True):
                break

    def get(self, key: str) -> list[float] | str | None:
        """Return the numbers under a key, or the text; None if there are none."""
        entry = self._store.get(f"{self._prefix} {key}", {"values": None})
        return entry["values"] if "values" in entry else str(entry["error"])

    def add(self, key: str, value: list[float] | str) -> None:
        """Keep numbers, or a text."""
        entry = {f"{self._prefix} {key}": {"error" if isinstance(value, str) else "values": value}}
        self._store.add({**self._unwritten, **entry})
        self._unwritten = {}

    def remember(self, key: str, compute: Callable[[], list[float]]) -> list[float]:
        """Return the numbers under a key, which are computed if there are none."""
        value = self.get(key)
        if not isinstance(value, list):
            self.add(key, value := compute())
        return value


def _stamp(source: Any) -> object:
    """Return what changes when an image does: of a file its size and time, else a hash of its values and shape."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return (str(source), *((status := path.stat()).st_size, status.st_mtime_ns)) if path.is_file() else str(source)
    if isinstance(source, Tensor):
        return hash_tensors([source])
    about, values = "", source
    if isinstance(source, FileImage):
        about, values = repr(source), source.values
    elif isinstance(source, Image.Image):
        try:  # its palette, transparency and orientation are beside its pixels, and change what is seen
            values = read_image(source)
        except ImageError as error:
            return str(error)
    values = np.ascontiguousarray(values)
    about = f"{about} {values.dtype} {values.shape}"
    return blake2b(about.encode() + values.tobytes(), digest_size=8).hexdigest()


@dataclass
class Run:
    """An audit or a comparison on its way.

    Attributes:
        images: The images with the model, of a comparison with the old one.
        names: The names of the classes.
        passes: Most forward passes.
        level: The largest q of a finding.
        controls: Control regions in each image.
        seed: The seed.
        has_labels: True if the user gave the classes.
        state: The numbers that were computed before, which are read as soon as the folder is held.
        not_tested: The parts that were left out, and why.
        notes: Notes for the user about images and groups.
        unread: Images that could not be read.
    """

    images: AuditImages
    names: Sequence[str] | None
    passes: int
    level: float
    controls: int
    seed: int
    has_labels: bool
    state: State = field(init=False)
    not_tested: list[str] = field(default_factory=list, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    unread: int = field(default=0, init=False)

    def name_class(self, target: int) -> str:
        """Return the name of a class, or its number; ``"none"`` for the answer of an image without any label."""
        if target < 0:
            return "none"
        return self.names[target] if self.names is not None and target < len(self.names) else f"class {target}"

    def record_all(
        self, record_batch: Callable[[Sequence[int]], Iterator[tuple[int, _T | str]]], pack: Callable[[_T], list[float]]
    ) -> dict[int, list[float]]:
        """Return the numbers of each image that can be read; of those that an earlier start recorded, they are known.

        The batches are always the same, also if a part of one is known already: in another batch an image may give
        other last bits.

        Args:
            record_batch: Yields the images with some numbers, each with what was recorded of it, or with why it cannot
                be read.
            pack: Returns what was recorded as numbers.

        Raises:
            MetricError: No image can be read.
        """
        recorded = {index: self.state.get(f"image {index}") for index in range(len(self.images))}
        missing, batch_size = {index for index, values in recorded.items() if values is None}, self.images.batch_size
        with closing(follow_loop(len(missing), Stage("Explaining", "image", batch_size))) as counter:
            for start in range(0, len(recorded), batch_size):
                numbers = range(start, min(start + batch_size, len(recorded)))
                wanted = missing.intersection(numbers)
                for index, record in record_batch(numbers) if wanted else ():
                    if index in wanted:
                        recorded[index] = values = record if isinstance(record, str) else pack(record)
                        self.state.add(f"image {index}", values)
                # One step for each batch, or the first images would seem to take no time.
                counter.update(len(wanted))
        return self._choose_readable(recorded)

    def _choose_readable(self, recorded: Mapping[int, list[float] | str | None]) -> dict[int, list[float]]:
        """Return the numbers of the images that could be read; the others, with a reason as text, are noted.

        Raises:
            MetricError: There are none.
        """
        unread = {index: reason for index, reason in recorded.items() if isinstance(reason, str)}
        self.unread = len(unread)
        self.not_tested += [
            reason if (name := self.images.name(index)) in reason else f"{name}: {reason}"
            for index, reason in unread.items()
        ]
        readable = {index: values for index, values in recorded.items() if isinstance(values, list)}
        if not readable:
            raise MetricError(f"images: none of {len(recorded)} can be read. {next(iter(unread.values()), '')}")
        return readable

    def split(self, records: Sequence[_R], joined: str, column: Sequence[Hashable] | None = None) -> list[Half[_R]]:
        """Return the discovery and the confirmation half.

        Args:
            records: All records.
            joined: Words for the images that count as one, for a note.
            column: See :func:`camtool.evaluation.audit.split.group_images`.
        """
        hashes = np.stack([record.hash for record in records])
        times = [read_capture_time(self.images.sources[record.index]) for record in records]
        groups = group_images(hashes, times, column)
        independent, images = len({*groups}), len({record.index for record in records})
        if independent < images:
            text = f"{format_count(images, 'image')} are {format_count(independent, 'independent group')}"
            self.notes.append(f"{text}: {joined} count as one.")
        confirms = split_in_halves(hashes, groups, [record.target for record in records], self.seed)
        halves = (np.flatnonzero(confirms == half).tolist() for half in (False, True))
        return [Half([records[row] for row in rows], [groups[row] for row in rows]) for rows in halves]

    def choose_classes(self, halves: Sequence[Half[_R]], units: str = "independent images") -> list[int]:
        """Return the classes that have enough groups in both halves; the others are noted.

        Args:
            halves: Both halves.
            units: The words for groups.
        """
        if self._note_one_group(halves):
            return []
        counts = [half.count_groups() for half in halves]
        classes = sorted(target for target in {*counts[0], *counts[1]} if target >= 0)
        least = {target: min(count[target] for count in counts) for target in classes}
        small = [target for target, count in least.items() if count < LEAST_GROUPS]
        if small:
            listed = shorten_list([f"'{self.name_class(target)}' ({least[target]})" for target in small])
            self.not_tested.append(
                f"{format_count(len(small), 'class')} with fewer than {LEAST_GROUPS} {units} in a half: {listed}. "
                f"Give {2 * LEAST_GROUPS} or more of each."
            )
        return [target for target in classes if target not in small]

    def _note_one_group(self, halves: Sequence[Half[_R]]) -> bool:
        """Return True if all images are one group, and note it."""
        if len({*chain.from_iterable(half.groups for half in halves)}) > 1:
            return False
        images = format_count(len({record.index for half in halves for record in half.records}), "image")
        self.not_tested.append(f"All {images} look alike or belong together, so they count as one; give others.")
        return True

    def share_passes(
        self, tests: Sequence[_T], count_passes: Callable[[_T, int], int], rest: int, most: int
    ) -> tuple[list[_T], list[_T], int]:
        """Return the tests that the passes suffice for, the first ones first, the others, and the images for each.

        Args:
            tests: All tests, the most important first.
            count_passes: Returns the forward passes of a test with a number of images.
            rest: The forward passes that are left for all tests.
            most: Most images for each test.
        """
        for images in range(most, LEAST_GROUPS - 1, -1):
            if sum(count_passes(test, images) for test in tests) <= rest:
                return [*tests], [], images
        kept, left = list[_T](), list[_T]()
        for test in tests:
            cost = count_passes(test, LEAST_GROUPS)
            (kept if cost <= rest else left).append(test)
            rest -= cost if cost <= rest else 0
        return kept, left, LEAST_GROUPS

    def note_left_out(self, costs: Mapping[str, int], rest: int) -> None:
        """Note the tests that the passes do not suffice for, by name, with what each would need.

        Args:
            costs: The forward passes of each with the fewest images.
            rest: Those that are left.
        """
        self.not_tested += [
            f"{name}: needs {cost:,} forward passes, {max(0, rest):,} of {self.passes:,} are left; "
            f"give passes={self.passes + cost - max(0, rest):,} for it, or passes='all'."
            for name, cost in costs.items()
        ]
