"""``audit()``: from images to candidates on one half, tests on the other half, and findings."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, starmap
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from camtool.arguments.checks import check_choice
from camtool.arguments.messages import format_count, suggest_names
from camtool.errors import MetricError
from camtool.evaluation.annotations import Region, check_targets, find_targets, is_missing, match_regions, read_columns
from camtool.evaluation.audit import statistics
from camtool.evaluation.audit.cues.candidates import COMPARED_IMAGES, DECOYS, CueCandidate, Discovery, RegionCandidate
from camtool.evaluation.audit.cues.concept import LEAST_CLASSES, find_concepts
from camtool.evaluation.audit.cues.mark import find_marks
from camtool.evaluation.audit.cues.patch import find_patches
from camtool.evaluation.audit.cues.place import find_frames, find_places, find_positions
from camtool.evaluation.audit.cues.property import find_colors, find_properties
from camtool.evaluation.audit.cues.stored import AuditSettings, select_stored
from camtool.evaluation.audit.images import PASSES_PER_MAP, AuditImages, ImageRecord, pack_records, unpack_records
from camtool.evaluation.audit.report.page import FindingPictures, check_results, write_pictures
from camtool.evaluation.audit.result import NAMES, VERDICTS_NAME, Audit, Finding, Verdict, rank_findings, read_verdicts
from camtool.evaluation.audit.split import Half
from camtool.evaluation.audit.state import SHOWN, Run, State, check_options, hold_folder, shorten_list
from camtool.evaluation.audit.trials import ANSWER_FLOOR, LEAST_GROUPS, CueTester, Outcome, PassProgress, name_strengths
from camtool.evaluation.subject import Subject, check_image_list
from camtool.explaining.types import Model
from camtool.models import Transform
from camtool.progress import Stage, follow_each

Find: TypeAlias = Callable[[Discovery], Sequence[CueCandidate]]


class Pair(NamedTuple):
    """A candidate, and its decoys."""

    candidate: CueCandidate
    decoys: list[CueCandidate]


class View(NamedTuple):
    """Classes, and the images in which they are compared, of the discovery and of the confirmation half."""

    targets: Sequence[int]
    found: Half[ImageRecord]
    tested: Half[ImageRecord]


@dataclass(frozen=True)
class Kind:
    """A kind of candidates.

    Attributes:
        find: Finds them in the discovery half.
        least_classes: Classes that exclude one another which it needs; 0 for a kind that needs none.
        reason_to_ask: The reason why it is only used if the user names it; empty if it is used by default.
    """

    find: Find
    least_classes: int = 0
    reason_to_ask: str = ""


# Name → kind of candidates. Of several kinds that find one cue equally clearly, the first one names it.
KINDS: dict[str, Kind] = {
    "border": Kind(find_frames),
    "place": Kind(find_places),
    "mark": Kind(find_marks),
    "patch": Kind(find_patches),
    "position": Kind(find_positions),
    "property": Kind(find_properties),
    "color": Kind(find_colors),
    "concept": Kind(find_concepts, LEAST_CLASSES, "they take several times as long"),
}

# Images for each test of a candidate: with 19 controls and two fills they take 2,000 forward passes for covering.
_MOST_IMAGES = 50

# Images in which the regions of two findings are compared.
_COMPARED = 10

# Share of a class from which on a cue counts as one of all of the class: the threshold misses a few.
_ALL = 0.9

_OUT_OF_BUDGET = "the forward-pass budget ran out, so this decoy is counted as a false finding"

# Share of the pixels of a part that look the same in most images from which on it is a stamp. In two small worlds it
# was at most 0.23 for parts of objects, and at least 0.6 for stamps (``python -m benchmarks audit_worlds``).
_STAMPED = 0.4

# Share of a region outside of the given masks from which on it counts as outside.
_OUTSIDE = 0.5

_PATIENT = "PatientID"

_NEVER_TESTED = (
    "Cues that all classes share, and cues outside of what the model sees of a photo.",
    "Size and aspect of the files before the transform (not tested by intervention).",
    "Concepts of several forms, and those of models without a layer like after a ReLU.",
)


def audit(
    model: Model,
    images: Sequence[Any] | Tensor,
    labels: Sequence[int | str | Sequence[int | str]] | None = None,
    metadata: Mapping[str, Sequence[Any]] | None = None,
    *,
    group: str | None = None,
    passes: int | Literal["all"] = 20_000,
    level: float = 0.02,
    controls: int = 19,
    method: str = "faithcam",
    kinds: Sequence[str] | None = None,
    masks: Region | Sequence[Region | None] | None = None,
    verdicts: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    transform: Transform | None = None,
    class_names: Sequence[str] | None = None,
    device: Any = None,
    batch_size: int = 32,
    engine: str = "eager",
    seed: int = 0,
) -> Audit:
    """Test whether a classifier recognizes classes by something that it should not use.

        audit = camtool.audit(model, photos, labels, out="audit")
        print(audit)

    Half of the images serve to find candidates: places where one class has heat and the others have none. On the other
    half each candidate is covered and pasted, against control regions of the same size. A finding is not an
    accusation: whether it is the object or a shortcut is for the user to say, see :meth:`Audit.mark`.

    Args:
        model: A classifier, or what :func:`camtool.load` returned.
        images: A list of what :func:`camtool.explain` takes as one image. Files are read again when they are needed.
        labels: The class of each image, by index or by name; without them the model's answers are the classes. For a
            model of several labels a list of these for each image, which may be empty. For a single logit 0 and 1.
        metadata: Name of a column → a value for each image, e.g. of sites; a data frame of pandas will do. Tags of
            DICOM files, e.g. ``"Manufacturer"``, are columns as well.
        group: The column of what belongs together, e.g. of patients: it goes to one half, and counts as one. Of DICOM
            files by default ``"PatientID"``.
        passes: Most forward passes, or ``"all"``. The most suspicious candidates come first; each of those beyond it is
            in ``not_tested`` with what it needs. The maps are always computed.
        level: The largest q of a finding.
        controls: Control regions in each image, 1 or more.
        method: The method of the maps.
        kinds: The kinds of candidates, of :data:`KINDS`; by default all but concepts, which take several times as long.
        masks: Where the object is in each image, as for :func:`camtool.testing.assert_looks_at`; None where that is
            unknown. They are no part of the tests: a finding that is outside of them is more suspicious.
        verdicts: A file of verdicts, which must exist; by default that in ``out``, if there is one.
        out: A folder for ``audit.json``, ``audit.md``, the page and the state: a second call with the same arguments
            goes on where the first one stopped.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        class_names: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.
        batch_size: Images in a forward pass.
        engine: How the model answers, see :class:`camtool.Explainer`; maps come from the model as it is.
        seed: The seed of all that is random. On a CPU a second audit gives the same bits.

    Raises:
        MetricError: An argument does not fit, the model is no classifier, there are no images, or another audit works
            in the folder.
        CamtoolError: The method cannot explain the model, the engine is not installed, or ``out`` holds a file that an
            audit would replace and that camtool did not write.
    """
    most_passes = check_options(passes, controls, batch_size, level)
    check_image_list(images)
    folder = check_results(out, NAMES)
    settings = AuditSettings(controls, method, seed, batch_size, engine, group)
    subject = Subject(model, transform, class_names, device)
    inputs = read_inputs(subject, images, labels, metadata, settings, masks)
    chosen = _choose_kinds(kinds)
    default = None if folder is None else folder / VERDICTS_NAME
    user_verdicts = read_verdicts(default if verdicts is None else Path(verdicts), is_required=verdicts is not None)
    with hold_folder(folder):
        run = start_run(inputs, folder, passes=most_passes, level=level, kinds=chosen, verdicts=user_verdicts)
        result = run.run()
        if engine != "eager":
            result = _note_engines(result, run.state, inputs.images.used_engines)
        if folder is not None:
            result.save(folder)
    return result


class AuditInputs(NamedTuple):
    """The images of the user with their classes and columns, as an audit and a repair read them.

    Attributes:
        images: The images with the model.
        names: The names of the classes.
        columns: The metadata.
        settings: The settings, with the column of groups that is used.
        notes: Notes for the user about groups.
    """

    images: AuditImages
    names: Sequence[str] | None
    columns: Mapping[str, Sequence[Any]]
    settings: AuditSettings
    notes: Sequence[str]

    def open_state(self, folder: Path | None) -> State:
        """Return the numbers that were computed before with the same model, images and settings."""
        images, settings = self.images, self.settings
        grouping, inputs = settings.group and self.columns[settings.group], images.hash_first_inputs()
        parts = settings.controls, settings.method, settings.seed, settings.batch_size, settings.engine
        key = *parts, images.labels, images.has_sets, grouping, inputs
        return State(images.subject, images.sources, key, folder, images.score_first_inputs())


def read_inputs(
    subject: Subject,
    images: Sequence[Any] | Tensor,
    labels: Sequence[int | str | Sequence[int | str]] | None,
    metadata: Mapping[str, Sequence[Any]] | None,
    settings: AuditSettings,
    masks: Region | Sequence[Region | None] | None = None,
) -> AuditInputs:
    """Return what the user gave, checked, see :func:`audit`.

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
    return AuditInputs(probe, names, columns, replace(settings, group=group), notes)


def start_run(
    inputs: AuditInputs,
    folder: Path | None,
    *,
    passes: int,
    level: float,
    kinds: Mapping[str, Kind],
    verdicts: Mapping[str, Verdict],
) -> AuditRun:
    """Return an audit that has not run yet, see :class:`AuditRun`."""
    run = AuditRun(
        state=inputs.open_state(folder),
        images=inputs.images,
        names=inputs.names,
        passes=passes,
        level=level,
        controls=inputs.settings.controls,
        seed=inputs.settings.seed,
        has_labels=inputs.images.labels is not None,
        columns=inputs.columns,
        settings=inputs.settings,
        folder=folder,
        kinds=kinds,
        verdicts=verdicts,
    )
    run.notes += inputs.notes
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


def _note_engines(result: Audit, state: State, engines: Iterable[str]) -> Audit:
    """Return a result with a note of the engines that ran, also in earlier starts."""
    used = ", ".join(sorted({*str(state.get("engines") or "").split(", "), *engines} - {""}))
    if used != state.get("engines"):
        state.add("engines", used)
    return replace(result, notes=(*result.notes, f"The tests ran in: {used or 'none'}."))


@dataclass
class AuditRun(Run):
    """An audit on its way.

    Attributes:
        columns: The metadata.
        settings: The settings, with the column of what belongs together.
        folder: The folder for pictures of the findings; None for none.
        kinds: The kinds of candidates that are asked for.
        verdicts: The user's verdicts, by the key of a finding.
        testers: Class → the tests of its candidates.
    """

    columns: Mapping[str, Sequence[Any]]
    settings: AuditSettings
    folder: Path | None
    kinds: Mapping[str, Kind]
    verdicts: Mapping[str, Verdict]
    testers: dict[int, CueTester] = field(default_factory=dict, init=False)

    def run(self) -> Audit:
        """Return the result: records, halves, candidates, tests, findings."""
        records, halves = self.record_and_split()
        noted = len(self.not_tested)
        views = self.make_views(records, halves)
        untested = "" if views else self.not_tested[noted]
        class_count = sum(len(view.targets) for view in views)
        pairs = self._find_candidates(self._choose_possible(class_count), views)
        rest = self.passes - PASSES_PER_MAP * len(records)
        noted, count = len(self.not_tested), len(pairs)
        self._prepare_testers(views, len(pairs))
        self._measure_all([candidate for pair in pairs for candidate in (pair.candidate, *pair.decoys)])
        pairs, most = self.share_passes(pairs, self._count_pair, rest, _MOST_IMAGES, self._name_pair)
        for tester in self.testers.values():
            tester.limit_images(most)
        outcomes, decoys = self._test(pairs, rest)
        self.not_tested += [
            f"{self._name_candidate(outcome.candidate)}: {outcome.reason}." for outcome in outcomes if outcome.reason
        ]
        if count and all(outcome.reason for outcome in outcomes):
            untested = f"{format_count(count, 'candidate')} left out, e.g. {self.not_tested[noted]}"
        return replace(self._conclude(outcomes, decoys, records), untested=untested)

    @property
    def group(self) -> str | None:
        """The column of what belongs together; None if each image is on its own."""
        return self.settings.group

    def record_and_split(self) -> tuple[list[ImageRecord], list[Half[ImageRecord]]]:
        """Return the records of all images, and the discovery and the confirmation half."""
        recorded = self.record_all(self.images.iterate_records, pack_records)
        records = [*chain.from_iterable(starmap(unpack_records, recorded.items()))]
        self.images.heats.update({record.index: record.heat for record in records})
        column = None if self.group is None else [self.columns[self.group][record.index] for record in records]
        return records, self.split(records, "near-duplicates, bursts and what the group column joins", column)

    def make_views(self, records: Sequence[ImageRecord], halves: Sequence[Half[ImageRecord]]) -> list[View]:
        """Return the classes that have enough images, with the images in which they are compared."""
        return self._split_by_label(self._choose_classes(records, halves), *halves)

    def _find_candidates(self, kinds: Mapping[str, Kind], views: Sequence[View]) -> list[Pair]:
        """Return the candidates of the discovery half with their decoys, the clearest ones first."""
        random, pairs = np.random.default_rng(self.seed), list[Pair]()
        for view in views:
            discovery = Discovery(self.images, view.found.records, view.found.groups, view.targets, self.seed)
            candidates = [candidate for kind in kinds.values() for candidate in kind.find(discovery)]
            pairs += [Pair(candidate, _make_decoys(candidate, discovery, random)) for candidate in candidates]
        # Passes that do not suffice for all serve to test what is most suspicious.
        return sorted(pairs, key=lambda pair: (not pair.candidate.suspicion, -pair.candidate.clarity))

    def _count_pair(self, pair: Pair, images: int) -> int:
        """Return the forward passes of a candidate and its decoys, each with at most a number of images."""
        tester = self.testers[pair.candidate.target]
        decoys = sum(tester.count_passes(decoy, self.level, most=images) for decoy in pair.decoys)
        return tester.count_passes(pair.candidate, most=images) + decoys

    def _prepare_testers(self, views: Sequence[View], count: int) -> None:
        """Prepare the tests of a number of candidates, for the classes of each view."""
        # Enough permutations that the smallest possible p, times three effects and all candidates (Bonferroni), stays
        # below `level`.
        permutations = max(statistics.PERMUTATIONS, math.ceil(6 * count / self.level))
        for view in views:
            self.testers |= dict.fromkeys(view.targets, self.make_tester(view, permutations))

    def make_tester(self, view: View, permutations: int = statistics.PERMUTATIONS) -> CueTester:
        """Return the tests of the candidates of a view, with a number of arrangements in each."""
        return CueTester(
            images=self.images,
            records=view.tested.records,
            groups=view.tested.groups,
            controls=self.controls,
            most_images=_MOST_IMAGES,
            seed=self.seed,
            remember=self.state.remember,
            permutations=permutations,
        )

    @property
    def _units(self) -> str:
        """The words for the groups that are counted."""
        return "independent images" if self.group is None else f"values of '{self.group}'"

    def _choose_classes(self, records: Sequence[ImageRecord], halves: Sequence[Half[ImageRecord]]) -> list[int]:
        """Return the classes that have enough groups in both halves; none if there is one class alone."""
        classes = {record.target for record in records}
        if len(classes) > 1:
            return self.choose_classes(halves, self._units)
        label = self.name_class(*classes)
        what = "No image has a label" if classes == {-1} else f"All images are of one class, '{label}'"
        self.not_tested.append(f"{what}: a cue of a class is what the others lack; add images of other classes.")
        return []

    def _choose_possible(self, class_count: int) -> dict[str, Kind]:
        """Return the kinds that the number of classes suffices for; others, and those to ask for, are noted."""
        chosen = dict[str, Kind]()
        for name, kind in KINDS.items():
            if name not in self.kinds and kind.reason_to_ask:
                self.not_tested.append(f"{name.capitalize()}s: only if kinds names '{name}', as {kind.reason_to_ask}.")
            elif name in self.kinds and kind.least_classes > (0 if self.images.head.is_independent else class_count):
                self.not_tested.append(
                    f"{name.capitalize()}s: {kind.least_classes} classes that exclude one another are needed."
                )
            elif name in self.kinds:
                chosen[name] = kind
        return chosen

    def _split_by_label(self, usable: Sequence[int], found: Half[ImageRecord], tested: Half[ImageRecord]) -> list[View]:
        """Return classes with the records of both halves: all at once, or each label against the images without it."""
        if not usable or not self.images.head.is_independent:
            return [View(usable, found, tested)] if usable else []
        views = list[View]()
        for target in usable:
            view = View([target], self._select_label(found, target), self._select_label(tested, target))
            least = min(
                len({group for record, group in half.pairs if record.target != target})
                for half in (view.found, view.tested)
            )
            if least >= LEAST_GROUPS:
                views.append(view)
            else:
                self.not_tested.append(
                    f"'{self.name_class(target)}': {self._units} without it in a half: {least}; "
                    f"{LEAST_GROUPS} are needed."
                )
        return views

    def _select_label(self, half: Half[ImageRecord], target: int) -> Half[ImageRecord]:
        """Return one record of each image: that of the label if it has it, else its first one."""
        chosen = dict[int, tuple[ImageRecord, int]]()
        for record, group in half.pairs:
            if record.target == target or target not in self.images.list_labels(record):
                answer = target if target in record.answers else -1
                chosen.setdefault(record.index, (replace(record, answer=answer), group))
        return Half([record for record, _ in chosen.values()], [group for _, group in chosen.values()])

    def _measure_all(self, candidates: Sequence[CueCandidate]) -> None:
        """Keep how strongly each image has each candidate: image by image, as candidates need the same activations."""
        for tester in {*self.testers.values()}:
            names = {name_strengths(each): each for each in candidates if self.testers[each.target] is tester}
            missing = {name: list[float]() for name in names if self.state.get(name) is None}
            for record in follow_each(tester.records, Stage("Measuring candidates", "image")) if missing else ():
                for name, strengths in missing.items():
                    strengths.append(names[name].measure(self.images, record))
            for name, strengths in missing.items():
                self.state.add(name, strengths)

    def _test(self, pairs: Sequence[Pair], rest: int) -> tuple[list[Outcome], list[Outcome]]:
        """Return the outcomes of the candidates, and those of their decoys."""
        candidates, decoys = [pair.candidate for pair in pairs], [decoy for pair in pairs for decoy in pair.decoys]
        with closing(PassProgress(self._count_tests(candidates, decoys, rest))) as counter:
            for tester in self.testers.values():
                tester.counter = counter
            outcomes = [self.testers[candidate.target].test(candidate) for candidate in candidates]
            return outcomes, [self._test_decoy(decoy, rest) for decoy in decoys]

    def _test_decoy(self, decoy: CueCandidate, rest: int) -> Outcome:
        # A decoy that the class has no more than the others cannot survive, so it takes no passes.
        tester = self.testers[decoy.target]
        is_paid = self._count_done() + tester.count_passes(decoy, self.level) <= rest
        outcome = tester.test(decoy, self.level if is_paid else -1)
        if not is_paid and outcome.presence_p <= self.level:
            return replace(outcome, reason=_OUT_OF_BUDGET)
        return outcome

    def _count_tests(self, candidates: Sequence[CueCandidate], decoys: Sequence[CueCandidate], rest: int) -> int:
        """Return the forward passes of all tests."""
        total = sum(self.testers[candidate.target].count_passes(candidate) for candidate in candidates)
        for decoy in decoys:
            count = self.testers[decoy.target].count_passes(decoy, self.level)
            total += count if total + count <= rest else 0
        return total

    def _count_done(self) -> int:
        """Return the forward passes of all tests so far."""
        return sum(tester.passes for tester in {*self.testers.values()})

    def _conclude(
        self, outcomes: Sequence[Outcome], decoys: Sequence[Outcome], records: Sequence[ImageRecord]
    ) -> Audit:
        q_values = statistics.compute_q_values([outcome.p for outcome in outcomes])
        confirmed, rejected = self._describe_all(outcomes, q_values)
        findings = rank_findings(self._join_cues(confirmed))
        surviving = self._count_surviving(decoys, outcomes, q_values)
        self._note_verdicts([finding for _, finding in confirmed])
        if self.folder is not None:
            self._write_pictures(self.folder, confirmed, findings)
        described = zip(decoys, self._list_keys(decoys), strict=True)
        return Audit(
            findings=findings,
            rejected=tuple(rejected),
            decoys=tuple(self._describe(decoy, 1.0, len(outcomes), key) for decoy, key in described),
            surviving_decoys=surviving,
            false_discovery_rate=statistics.estimate_false_discovery_rate(surviving, len(findings), DECOYS),
            not_tested=(*self.not_tested, *_NEVER_TESTED),
            notes=tuple(self.notes),
            image_count=len({record.index for record in records}),
            level=self.level,
            passes=PASSES_PER_MAP * len(records) + self._count_done(),
            seed=self.seed,
            folder=self.folder,
            unread=self.unread,
            cues=self._select_cues(confirmed, findings),
            settings=self.settings,
        )

    def _describe_all(
        self, outcomes: Sequence[Outcome], q_values: Sequence[float]
    ) -> tuple[list[tuple[Outcome, Finding]], list[Finding]]:
        """Return the outcomes that are confirmed, each as a finding, and the findings of those that are not."""
        confirmed, rejected = list[tuple[Outcome, Finding]](), list[Finding]()
        for outcome, q, key in zip(outcomes, q_values, self._list_keys(outcomes), strict=True):
            if outcome.reason:
                continue
            finding = replace(self._describe(outcome, q, len(outcomes), key), verdict=self.verdicts.get(key))
            if q <= self.level and outcome.is_large:
                confirmed.append((outcome, finding))
            else:
                rejected.append(finding)
        return confirmed, rejected

    def _count_surviving(
        self, decoys: Sequence[Outcome], outcomes: Sequence[Outcome], q_values: Sequence[float]
    ) -> int:
        """Return how many decoys have a p-value that is small enough for a finding, and a large effect."""
        passing = [outcome.p for outcome, q in zip(outcomes, q_values, strict=True) if q <= self.level]
        limit = max([self.level / max(1, len(outcomes)), *passing])
        return sum(decoy.reason == _OUT_OF_BUDGET or (decoy.p <= limit and decoy.is_large) for decoy in decoys)

    def _write_pictures(
        self, folder: Path, confirmed: Sequence[tuple[Outcome, Finding]], findings: Sequence[Finding]
    ) -> None:
        by_key = {finding.key: outcome for outcome, finding in reversed(confirmed)}
        pictures = dict[str, FindingPictures]()
        for finding in findings:
            tester, outcome = self.testers[finding.target], by_key[finding.key]
            pictures[finding.key] = FindingPictures(folder, tester, outcome.candidate, outcome.present, self.name_class)
        write_pictures(folder, pictures)

    def _select_cues(
        self, confirmed: Sequence[tuple[Outcome, Finding]], findings: Sequence[Finding]
    ) -> dict[str, CueCandidate]:
        by_key = {finding.key: outcome.candidate for outcome, finding in confirmed}
        return select_stored({finding.key: by_key[finding.key] for finding in findings})

    def _join_cues(self, confirmed: Sequence[tuple[Outcome, Finding]]) -> list[Finding]:
        """Return one finding for each cue: the clearest, which names the others and is suspicious if one of them is."""
        joined = list[tuple[Outcome, Finding]]()
        for outcome, finding in sorted(confirmed, key=lambda pair: _rank_as_name(pair[0])):
            for index, (other, first) in enumerate(joined):
                is_same = _is_same_cue(self.images, other, outcome)
                if is_same or (first.suspicions and self._is_effect(outcome, other)):
                    also = (*first.also, f"{finding.name} ({finding.kind}, {finding.present} images)")
                    suspicions = dict.fromkeys((*first.suspicions, *(finding.suspicions if is_same else ())))
                    joined[index] = other, replace(first, also=also, suspicions=(*suspicions,))
                    break
            else:
                joined.append((outcome, finding))
        return [finding for _, finding in joined]

    def _is_effect(self, outcome: Outcome, of: Outcome) -> bool:
        """Return True if nothing is left of a cue without a place where the region of another one is not changed.

        A stamp with sharp edges, for example, makes photos sharper.
        """
        rest = outcome.candidate.leave_region(of.candidate) if outcome.candidate.target == of.candidate.target else None
        if rest is None:
            return False
        again = self.testers[rest.target].test(rest)
        return not again.reason and not (again.p <= self.level and again.is_large)

    def _list_keys(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Return a key for each candidate that names no image, so that it stays as it is if images are added."""
        keys, counts = list[str](), Counter[str]()
        for candidate in (outcome.candidate for outcome in outcomes):
            label = self.name_class(candidate.target)
            if self.names is not None and [*self.names].count(label) > 1:
                label += f" ({candidate.target})"
            key = f"{label}: {candidate.kind}: {candidate.title}"
            counts[key] += 1
            keys.append(f"{key} {counts[key]}" if counts[key] > 1 else key)
        return keys

    def _note_verdicts(self, confirmed: Sequence[Finding]) -> None:
        unused = [repr(key) for key in self.verdicts if key not in {finding.key for finding in confirmed}]
        if unused:
            self.notes.append(f"Verdicts that fit no finding: {shorten_list(unused)}.")

    def _describe(self, outcome: Outcome, q: float, tests: int, key: str) -> Finding:
        """Return a finding without a verdict, of one of a number of tests."""
        candidate, present = outcome.candidate, {*outcome.present}
        of_class = [record for record in self.testers[candidate.target].records if record.target == candidate.target]
        having = [record for record in of_class if record.index in present]
        without = [record for record in of_class if record.index not in present]
        by_group, accuracy_by_group = self._count_by_group(of_class, present)
        shown = outcome.present[:SHOWN]
        outside = candidate.measure_outside(self.images, shown)
        sameness = candidate.measure_sameness(self.images, shown) if shown else None
        return Finding(
            key=key,
            kind=candidate.kind,
            label=self.name_class(candidate.target),
            target=candidate.target,
            name=candidate.name,
            area=candidate.area,
            present=len(present),
            class_count=len(of_class),
            removal=outcome.removal,
            transplant=outcome.transplants,
            p=outcome.p,
            q=q,
            smallest_share=self._find_smallest_share(outcome, tests),
            facts=self._list_facts(outcome),
            suspicions=_list_suspicions(outcome, sameness, outside),
            images=tuple(map(self.images.name, outcome.present[:SHOWN])),
            without=tuple(self.images.name(record.index) for record in without[:SHOWN]),
            accuracy=(_measure_accuracy(having), _measure_accuracy(without)) if self.has_labels else None,
            by_group=by_group,
            accuracy_by_group=accuracy_by_group,
            outside=outside,
            sameness=sameness,
        )

    def _find_smallest_share(self, outcome: Outcome, tests: int) -> float:
        """Return the smallest share of answers that the images of a candidate could have shown; infinity for none."""
        if outcome.removal is None or not outcome.removal.groups:
            return math.inf
        candidate = outcome.candidate
        columns = COMPARED_IMAGES + 1 if candidate.compares_images else candidate.count_columns(self.controls)
        level = self.level / max(1, tests * len(outcome.effects))
        return max(statistics.compute_detectable_share(outcome.removal.groups, level, columns), ANSWER_FLOOR)

    def _list_facts(self, outcome: Outcome) -> tuple[str, ...]:
        """Return what is remarkable about a candidate."""
        facts = outcome.candidate.list_facts()
        if 0 < len(outcome.present) < _ALL * outcome.class_count:
            facts.append("only in a part of the class")
        if outcome.transplants is not None and outcome.transplants.is_large and outcome.transplants.p <= self.level:
            facts.append("works on other classes")
        if outcome.alone is not None and outcome.alone >= 0.5:
            facts.append("works alone on a blank image")
        return tuple(facts)

    def _count_by_group(
        self, records: Sequence[ImageRecord], present: set[int]
    ) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[float, float]]]:
        """Return by column and value the images and those with a cue, and the accuracy with it and without it.

        There is no accuracy without labels.
        """
        groups: dict[str, tuple[list[ImageRecord], list[ImageRecord]]] = {}
        for column, values in self.columns.items():
            if column != self.group and len({*map(str, values)}) <= SHOWN:
                for record in records:
                    if not is_missing(value := values[record.index]):
                        groups.setdefault(f"{column} {value}", ([], []))[record.index not in present].append(record)
        counts = {name: (len(cued) + len(others), len(cued)) for name, (cued, others) in groups.items()}
        shares = {name: (_measure_accuracy(cued), _measure_accuracy(others)) for name, (cued, others) in groups.items()}
        return counts, shares if self.has_labels else {}

    def _name_candidate(self, candidate: CueCandidate) -> str:
        return f"'{self.name_class(candidate.target)}', {candidate.name} ({candidate.kind})"

    def _name_pair(self, pair: Pair) -> str:
        return self._name_candidate(pair.candidate)


def _rank_as_name(outcome: Outcome) -> tuple[bool, float, int, int]:
    """Return the rank of a candidate that may name a cue: the clearest, then by its kind.

    What has no place comes last, as it may be an effect of what has one.
    """
    candidate = outcome.candidate
    kind = [*KINDS].index(candidate.kind)
    return not isinstance(candidate, RegionCandidate), outcome.p, kind, -len(outcome.present)


def _list_suspicions(outcome: Outcome, sameness: float | None, outside: float | None) -> tuple[str, ...]:
    """Return why a candidate is no part of an object; nothing if it may be one.

    Args:
        outcome: The candidate, and the images that have it.
        sameness: The share of its pixels that look the same in all images; None if that is unknown.
        outside: The share of it that is outside of the given masks; None without masks.
    """
    # Objects may often be at the border, e.g. in crops, but not all of a class.
    is_common = len(outcome.present) >= _ALL * outcome.class_count
    reasons = {
        outcome.candidate.suspicion: True,
        "at the border in nearly all images": outcome.candidate.is_at_border and is_common,
        "the same pixels in all images": sameness is not None and sameness >= _STAMPED,
        "outside the given masks": outside is not None and outside >= _OUTSIDE,
    }
    return tuple(reason for reason, holds in reasons.items() if reason and holds)


def _make_decoys(candidate: CueCandidate, discovery: Discovery, random: np.random.Generator) -> list[CueCandidate]:
    decoys = (candidate.make_decoy(discovery, random) for _ in range(DECOYS))
    return [decoy for decoy in decoys if decoy is not None]


def _measure_accuracy(records: Sequence[ImageRecord]) -> float:
    """Return the share of right answers, NaN for none."""
    return float(np.mean([record.answer == record.target for record in records])) if records else np.nan


def _is_same_cue(images: AuditImages, this: Outcome, other: Outcome) -> bool:
    """Return True for candidates of a class that most of the same images have, in regions that overlap."""
    both = sorted({*this.present} & {*other.present})
    if this.candidate.target != other.candidate.target or 2 * len(both) < min(len(this.present), len(other.present)):
        return False
    return bool(both) and this.candidate.is_same_cue(other.candidate, images, both[:_COMPARED])


def _choose_kinds(names: Sequence[str] | None) -> dict[str, Kind]:
    if names is None:
        return {name: kind for name, kind in KINDS.items() if not kind.reason_to_ask}
    for name in names:
        check_choice("kinds", name, KINDS, error=MetricError)
    return {name: kind for name, kind in KINDS.items() if name in names}
