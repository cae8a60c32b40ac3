"""Steps of audits and repairs alike: read the images, split them into halves, choose classes, set up the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, starmap
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from camtool.arguments.message_parts import suggest_names
from camtool.errors import MetricError
from camtool.evaluation.annotations import Region, check_targets, find_targets, match_regions, read_columns
from camtool.evaluation.audit import statistics
from camtool.evaluation.audit.cues.stored import AuditSettings
from camtool.evaluation.audit.images import AuditImages, ImageRecord, pack_records, unpack_records
from camtool.evaluation.audit.split import Half
from camtool.evaluation.audit.state import Run, State
from camtool.evaluation.audit.trials import LEAST_GROUPS, CueTester
from camtool.evaluation.subject import Subject

# Images for each test of a candidate: with 19 controls and two fills they take 2,000 forward passes for covering.
MOST_IMAGES = 50

_PATIENT = "PatientID"


class View(NamedTuple):
    """Classes, and the images in which they are compared, of the discovery and of the confirmation half."""

    targets: Sequence[int]
    found: Half[ImageRecord]
    tested: Half[ImageRecord]


def prepare_run(
    subject: Subject,
    images: Sequence[Any] | Tensor,
    labels: Sequence[int | str | Sequence[int | str]] | None,
    metadata: Mapping[str, Sequence[Any]] | None,
    settings: AuditSettings,
    masks: Region | Sequence[Region | None] | None = None,
    *,
    passes: int,
    level: float,
) -> AuditRun:
    """Return an audit of what the user gave, which is checked, see :func:`audit`. Its state is not open yet.

    Raises:
        MetricError: An argument does not fit, or the model is no classifier.
        CamtoolError: The engine is not installed.
    """
    names = _name_both_answers(subject.explainer.labels)
    targets, has_sets = find_targets(labels, names, len(images))
    columns, group, notes = _choose_columns(images, metadata, settings.group)
    regions = () if masks is None else match_regions("masks", masks, len(images))
    method, batch_size, engine = settings.method, settings.batch_size, settings.engine
    probe = AuditImages(subject, [*images], targets, method, batch_size, regions, has_sets=has_sets, engine=engine)
    check_targets(targets, probe.head.class_count)
    run = AuditRun(
        images=probe,
        names=names,
        passes=passes,
        level=level,
        controls=settings.controls,
        seed=settings.seed,
        has_labels=targets is not None,
        columns=columns,
        settings=replace(settings, group=group),
    )
    run.notes += notes
    return run


def _name_both_answers(labels: Sequence[str] | None) -> Sequence[str] | None:
    """Return the labels, those of a single logit with the name of the other answer."""
    if labels is None or len(labels) != 1:
        return labels
    return f"not {labels[0]}", labels[0]


def _choose_columns(
    images: Sequence[Any] | Tensor, metadata: Mapping[str, Sequence[Any]] | None, group: str | None
) -> tuple[dict[str, list[Any]], str | None, list[str]]:
    """Return the columns, the one of what belongs together, None if each image is on its own, and notes for the user.

    Raises:
        MetricError: There is no such column, or one has another length.
    """
    columns = read_columns(images, metadata)
    if group is None:
        group = _PATIENT if _PATIENT in columns else None
    elif group not in columns:
        hint = suggest_names(group, columns) if columns else " There is none; give metadata=, or --metadata FILE."
        raise MetricError(f"group: metadata has no column {group!r}.{hint}")
    notes = []
    if group is not None and len(columns[group]) > 1 and len({*columns[group]}) == 1:
        notes.append(f"group: all images have one value of '{group}', so it is ignored.")
        group = None
    if group != _PATIENT:
        columns.pop(_PATIENT, None)  # names of patients are no columns of a report
    return columns, group, notes


@dataclass
class AuditRun(Run):
    """An audit on its way.

    Attributes:
        columns: The metadata.
        settings: The settings, with the column of what belongs together.
        units: The words for the groups that are counted.
    """

    columns: Mapping[str, Sequence[Any]]
    settings: AuditSettings
    units: str = field(default="independent images", init=False)

    @property
    def group(self) -> str | None:
        """The column of what belongs together; None if each image is on its own."""
        return self.settings.group

    def open_state(self, folder: Path | None) -> None:
        """Read the numbers in a folder that were computed before with the same model, images and settings."""
        grouping = None if self.group is None else self.columns[self.group]
        self.state = State([self.images], (self.settings, self.images.labels, self.images.has_sets, grouping), folder)

    def record_and_split(self) -> tuple[list[ImageRecord], list[Half[ImageRecord]]]:
        """Return the records of all images, and the discovery and the confirmation half."""
        recorded = self.record_all(self.images.record_batch, pack_records)
        records = [*chain.from_iterable(starmap(unpack_records, recorded.items()))]
        self.images.heats.update({record.index: record.heat for record in records})
        column = None if self.group is None else [self.columns[self.group][record.index] for record in records]
        halves = self.split(records, "near-duplicates, bursts and what the group column joins", column)
        if column is not None:
            is_joined = len({*chain.from_iterable(half.groups for half in halves)}) < len({*column})
            self.units = f"values of '{self.group}'{', near-duplicates joined,' if is_joined else ''}"
        return records, halves

    def make_views(self, records: Sequence[ImageRecord], halves: Sequence[Half[ImageRecord]]) -> list[View]:
        """Return the classes that have enough images, with the images in which they are compared."""
        return [*self._split_by_label(self._choose_classes(records, halves), *halves)]

    def make_tester(self, view: View, permutations: int = statistics.PERMUTATIONS) -> CueTester:
        """Return the tests of the candidates of a view, with a number of arrangements in each."""
        return CueTester(
            images=self.images,
            records=view.tested.records,
            groups=view.tested.groups,
            controls=self.controls,
            most_images=MOST_IMAGES,
            seed=self.seed,
            remember=self.state.remember,
            permutations=permutations,
        )

    def _choose_classes(self, records: Sequence[ImageRecord], halves: Sequence[Half[ImageRecord]]) -> list[int]:
        """Return the classes that have enough groups in both halves; none if there is one class alone."""
        classes = {record.target for record in records}
        if len(classes) > 1:
            return self.choose_classes(halves, self.units)
        label = self.name_class(*classes)
        what = "No image has a label" if classes == {-1} else f"All images are of one class, '{label}'"
        self.not_tested.append(f"{what}: a cue of a class is what the others lack; add images of other classes.")
        return []

    def _split_by_label(
        self, usable: Sequence[int], found: Half[ImageRecord], tested: Half[ImageRecord]
    ) -> Iterator[View]:
        """Yield classes with the records of both halves: all at once, or each label against the images without it."""
        if usable and not self.images.head.is_independent:
            yield View(usable, found, tested)
            return
        for target in usable:
            view = View([target], self._select_label(found, target), self._select_label(tested, target))
            least = min(
                len({group for record, group in half.pairs if record.target != target})
                for half in (view.found, view.tested)
            )
            if least >= LEAST_GROUPS:
                yield view
            else:
                text = f"{self.units} without it in a half: {least}; {LEAST_GROUPS} are needed."
                self.not_tested.append(f"'{self.name_class(target)}': {text}")

    def _select_label(self, half: Half[ImageRecord], target: int) -> Half[ImageRecord]:
        """Return one record of each image: that of the label if it has it, else its first one."""
        chosen = dict[int, tuple[ImageRecord, int]]()
        for record, group in half.pairs:
            if record.target == target or target not in self.images.list_labels(record):
                answer = target if target in record.answers else -1
                chosen.setdefault(record.index, (replace(record, answer=answer), group))
        return Half([record for record, _ in chosen.values()], [group for _, group in chosen.values()])
