"""``audit()``: from images to candidates on one half, tests on the other half, and findings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

import camtool
from camtool.arguments.checks import check_choice, check_count, check_number
from camtool.arguments.messages import format_count, suggest_names
from camtool.errors import MetricError
from camtool.evaluation.annotations import Region, match_regions
from camtool.evaluation.audit.candidates import DECOYS, CueCandidate, Discovery
from camtool.evaluation.audit.concept import LEAST_CLASSES, find_concepts
from camtool.evaluation.audit.images import PASSES_PER_MAP, AuditImages, ImageRecord, pack_records, unpack_records
from camtool.evaluation.audit.patch import find_patches
from camtool.evaluation.audit.place import find_frames, find_places, find_positions
from camtool.evaluation.audit.property_shift import find_properties
from camtool.evaluation.audit.report.page import check_page
from camtool.evaluation.audit.report.pictures import FindingPictures, write_pictures
from camtool.evaluation.audit.result import VERDICTS_NAME, Audit, Finding, Verdict, rank_findings, read_verdicts
from camtool.evaluation.audit.split import group_images, split_in_halves
from camtool.evaluation.audit.statistics import (
    compute_detectable_share,
    compute_q_values,
    estimate_false_discovery_rate,
)
from camtool.evaluation.audit.trials import ANSWER_FLOOR, LEAST_GROUPS, Bench, Outcome, count_passes, name_strengths
from camtool.evaluation.leaderboard.measurement import Checkpoint, hash_tensors
from camtool.evaluation.subject import Subject
from camtool.inputs.formats.dicom import TAGS, read_tags
from camtool.models import Loaded, Transform
from camtool.progress import PassCounter, Stage, follow_loop
from camtool.runs.file_names import check_inside
from camtool.runs.locking import LockedError, hold_lock

Find: TypeAlias = Callable[[Discovery], Sequence[CueCandidate]]
Pair: TypeAlias = "tuple[CueCandidate, list[CueCandidate]]"
"""A candidate and its decoys."""
Half: TypeAlias = "tuple[Sequence[ImageRecord], Sequence[int]]"
"""Records and the group of each."""
View: TypeAlias = "tuple[Sequence[int], Half, Half]"
"""Classes, and the records in which they are compared, of the discovery and of the confirmation half."""

KINDS: dict[str, Find] = {
    "place": find_places,
    "border": find_frames,
    "position": find_positions,
    "patch": find_patches,
    "property": find_properties,
    "concept": find_concepts,
}
"""Name of a kind of candidates → function that finds them in the discovery half."""

_MOST_IMAGES = 50
"""Images for each test of a candidate: with 19 controls and two fills they take 2,000 forward passes for covering."""

_SHOWN = 20

_COMPARED = 10
"""Images in which the regions of two findings are compared."""

_ALL = 0.9
"""Share of a class from which on a cue counts as one of all of the class: the threshold misses a few."""

_ON_DEMAND = "concept"
"""A kind that is no default: finding its candidates takes longer than all other kinds together."""

_NOT_PAID = "the passes do not suffice, so it counts as surviving"

_OUTSIDE = 0.5
"""Share of a region outside of the given masks from which on it counts as outside."""

_PATIENT = "PatientID"

_STATE_NAME = "state.jsonl"
_LOCK_NAME = f".{_STATE_NAME}.lock"

_NEVER_TESTED = (
    "Cues that all classes share, and cues outside of what the model sees of a photo.",
    "Size and aspect of the files before the transform (not tested by intervention).",
    "Concepts of several forms, and those of models without a layer like after a ReLU.",
)


def audit(
    model: nn.Module | Loaded,
    images: Sequence[Any] | Tensor,
    labels: Sequence[int | str | Sequence[int | str]] | None = None,
    metadata: Mapping[str, Sequence[Any]] | None = None,
    *,
    group: str | None = None,
    passes: int = 20_000,
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
        passes: Most forward passes. Candidates beyond it are in ``not_tested``; the maps are always computed.
        level: The largest q of a finding.
        controls: Control regions in each image, 1 or more.
        method: The method of the maps.
        kinds: The kinds of candidates, of :data:`KINDS`; by default all but concepts, which take several times as long.
        masks: Where the object is in each image, as for :func:`camtool.testing.assert_looks_at`; None where that is
            unknown. They are no part of the tests: a finding that is outside of them is more suspicious.
        verdicts: A file of verdicts; by default that in ``out``.
        out: A folder for ``audit.json``, ``audit.md`` and the state: a second call with the same arguments goes on
            where the first one stopped.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        class_names: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.
        batch_size: Images in a forward pass.
        engine: How the model answers, see :class:`camtool.Explainer`; maps come from the model as it is.
        seed: The seed of all that is random. On a CPU a second audit gives the same bits.

    Raises:
        MetricError: An argument does not fit, the model is no classifier, there are no images, or another audit works
            in the folder.
        CamtoolError: The method cannot explain the model, or the engine is not installed.
    """
    for name, value in (("passes", passes), ("controls", controls), ("batch_size", batch_size)):
        check_count(name, value, error=MetricError)
    check_number("level", level, above=0, below=1, error=MetricError)
    if isinstance(images, (str, os.PathLike)):
        raise MetricError(f"images must be a list, got {os.fspath(images)!r}; give the files of a folder one by one.")
    subject = Subject(model, transform, class_names, device)
    names = class_names if class_names is not None else subject.explainer.labels
    names = names if names is None or len(names) != 1 else (f"not {names[0]}", names[0])
    targets, has_sets = find_targets(labels, names, len(images))
    columns = {**_read_tags(images), **_read_columns(metadata, len(images))}
    if group is None and _PATIENT in columns:
        group = _PATIENT
    elif group is not None and group not in columns:
        raise MetricError(f"group: metadata has no column {group!r}.{suggest_names(group, columns)}")
    elif group != _PATIENT:
        columns.pop(_PATIENT, None)  # names of patients are no columns of a report
    chosen = _choose_kinds(kinds)
    sources = [*images]
    regions = () if masks is None else match_regions("masks", masks, len(sources))
    probe = AuditImages(subject, sources, targets, method, batch_size, regions, has_sets=has_sets, engine=engine)
    _check_classes(targets, probe.head.class_count)
    grouping, inputs = group and columns[group], probe.hash_first_inputs()
    settings = controls, method, seed, batch_size, engine, targets, has_sets, grouping, inputs
    folder = None if out is None else Path(out)
    if folder is not None:
        check_page(folder)
    known = read_verdicts(folder / VERDICTS_NAME if verdicts is None and folder is not None else _to_path(verdicts))
    with _hold_folder(folder):
        state = State(subject, sources, settings, folder)
        run = _Run(probe, names, columns, group, passes, level, controls, seed, state, targets is not None, folder)
        result = run.run(chosen, known)
        if folder is not None:
            result.save(folder)
    return result


def _to_path(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)


@contextmanager
def _hold_folder(folder: Path | None) -> Iterator[None]:
    """Keep other audits out of a folder during the block.

    Raises:
        MetricError: One works in it.
    """
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    check_inside(folder, Path(_LOCK_NAME))
    try:
        with hold_lock(folder / _LOCK_NAME):
            yield
    except LockedError as error:
        raise MetricError(
            f"out: another audit works in {folder} ({error}); wait for its end, or give another folder."
        ) from error


class State:
    """Numbers that were computed under a key, in memory and in a file of the folder; those of other settings are kept.

    Args:
        subject: The model.
        sources: The images.
        settings: All that numbers depend on.
        folder: The folder; None keeps them in memory only.
    """

    def __init__(self, subject: Subject, sources: Sequence[Any], settings: object, folder: Path | None) -> None:
        stamps = [_stamp(source) for source in sources]
        tensors = [*subject.model.parameters(), *subject.model.buffers()]
        self._prefix = hash_tensors(tensors, repr(subject.model), camtool.__version__, settings, stamps)
        if folder is not None:
            check_inside(folder, Path(_STATE_NAME))
        self._store = Checkpoint(None if folder is None else folder / _STATE_NAME)

    def get(self, key: str) -> list[float] | str | None:
        """Return the numbers under a key, or the text; None if there are none."""
        name = f"{self._prefix} {key}"
        if name not in self._store:
            return None
        entry = self._store[name]
        return entry["values"] if "values" in entry else str(entry["error"])

    def add(self, key: str, value: list[float] | str) -> None:
        """Keep numbers, or a text."""
        self._store.add({f"{self._prefix} {key}": {"error" if isinstance(value, str) else "values": value}})

    def remember(self, key: str, compute: Callable[[], list[float]]) -> list[float]:
        """Return the numbers under a key, which are computed if there are none."""
        known = self.get(key)
        if not isinstance(known, list):
            self.add(key, known := compute())
        return known


def _stamp(source: Any) -> object:
    """Return what changes when an image does: of a file its size and time, else a hash of the values."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return (str(source), *((status := path.stat()).st_size, status.st_mtime_ns)) if path.is_file() else str(source)
    values = source.detach().cpu().numpy() if isinstance(source, Tensor) else np.asarray(source)
    return blake2b(np.ascontiguousarray(values).tobytes(), digest_size=8).hexdigest()


class _PassCounter:
    """Follows the forward passes of tests. Those that an earlier start did are left out, as they take no time.

    Args:
        count: All passes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop: PassCounter | None = None

    def update(self, passes: int, /) -> None:
        """Note that passes are done."""
        self._loop = self._loop or follow_loop(self._count, Stage("Testing", "pass"))
        self._loop.update(passes)

    def leave_out(self, passes: int) -> None:
        """Note that an earlier start did passes."""
        self._count -= passes
        if self._loop is not None:
            self._loop.update(passes)

    def close(self) -> None:
        """Note the end."""
        if self._loop is not None:
            self._loop.close()


@dataclass
class _Run:
    """An audit on its way.

    Attributes:
        images: The images and the model.
        names: The names of the classes.
        columns: The metadata.
        group: The column of what belongs together.
        passes: Most forward passes.
        level: The largest q of a finding.
        controls: Control regions in each image.
        seed: The seed.
        state: What was computed before.
        has_labels: True if the user gave the classes.
        folder: The folder for pictures of the findings; None for none.
        not_tested: What was left out, and why.
        notes: What the user should know.
    """

    images: AuditImages
    names: Sequence[str] | None
    columns: Mapping[str, Sequence[Any]]
    group: str | None
    passes: int
    level: float
    controls: int
    seed: int
    state: State
    has_labels: bool
    folder: Path | None = None
    not_tested: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, kinds: Mapping[str, Find], verdicts: Mapping[str, Verdict]) -> Audit:
        """Return the result: records, halves, candidates, tests, findings."""
        records = self._record_all()
        self.images.heats.update({record.index: record.heat for record in records})
        groups = self._group(records)
        classes = [record.target for record in records]
        confirms = split_in_halves(np.stack([record.hash for record in records]), groups, classes, self.seed)
        halves = [np.flatnonzero(confirms == half).tolist() for half in (False, True)]
        (found, found_groups), (tested, tested_groups) = (
            ([records[row] for row in half], [groups[row] for row in half]) for half in halves
        )
        usable = self._choose_classes(found, found_groups, tested, tested_groups)
        if _ON_DEMAND not in kinds:
            self.not_tested.append("Concepts: only if kinds names 'concept', as they take several times as long.")
        elif self.images.head.is_independent or len(usable) < LEAST_CLASSES:
            kinds = {name: find for name, find in kinds.items() if name != _ON_DEMAND}
            self.not_tested.append(f"Concepts: {LEAST_CLASSES} classes that exclude one another are needed.")
        views = self._split_by_label(usable, (found, found_groups), (tested, tested_groups))
        random, pairs = np.random.default_rng(self.seed), list[Pair]()
        for targets, part, _ in views:
            discovery = Discovery(self.images, *part, targets, self.seed)
            candidates = [candidate for find in kinds.values() for candidate in find(discovery)]
            pairs += [(candidate, _make_decoys(candidate, discovery, random)) for candidate in candidates]
        pairs, most = self._share_passes(pairs, len(records))
        benches = dict[int, Bench]()
        for targets, _, part in views:
            bench = Bench(self.images, *part, self.controls, most, self.seed, self.state.remember)
            benches |= dict.fromkeys(targets, bench)
        outcomes, decoys = self._test(benches, pairs, self.passes - PASSES_PER_MAP * len(records))
        return self._conclude(benches, outcomes, decoys, verdicts, records)

    def _split_by_label(
        self, usable: Sequence[int], found: Half, tested: Half
    ) -> list[tuple[Sequence[int], Half, Half]]:
        """Return classes with the records of both halves: all at once, or each label against the images without it."""
        if not usable or not self.images.head.is_independent:
            return [(usable, found, tested)] if usable else []
        views = list[View]()
        for target in usable:
            halves = self._select_label(found, target), self._select_label(tested, target)
            counts = [
                len({group for record, group in zip(*half, strict=True) if record.target != target}) for half in halves
            ]
            if min(counts) >= LEAST_GROUPS:
                views.append(([target], *halves))
            else:
                self.not_tested.append(
                    f"'{self._name_class(target)}': independent images without it in a half: {min(counts)}; "
                    f"{LEAST_GROUPS} are needed."
                )
        return views

    def _select_label(self, half: Half, target: int) -> Half:
        """Return one record of each image: that of the label if it has it, else its first one."""
        chosen = dict[int, tuple[ImageRecord, int]]()
        for record, group in zip(*half, strict=True):
            if record.target == target or target not in self.images.list_labels(record):
                answer = target if target in record.answers else -1
                chosen.setdefault(record.index, (replace(record, answer=answer), group))
        return [record for record, _ in chosen.values()], [group for _, group in chosen.values()]

    def _record_all(self) -> list[ImageRecord]:
        known = {index: self.state.get(f"image {index}") for index in range(len(self.images))}
        missing = [index for index, values in known.items() if values is None]
        with closing(follow_loop(len(missing), Stage("Explaining", "image", self.images.batch_size))) as counter:
            waiting = 0
            for index, record in self.images.iterate_records(missing):
                known[index] = record if isinstance(record, str) else pack_records(record)
                self.state.add(f"image {index}", known[index] or "")
                waiting += 1
                if (index + 1) % self.images.batch_size == 0 or index == missing[-1]:
                    # One step for each batch, or the first images would seem to take no time.
                    counter.update(waiting)
                    waiting = 0
        unread = {index: reason for index, reason in known.items() if isinstance(reason, str)}
        self.not_tested += [f"{self._name_image(index)}: {reason}" for index, reason in unread.items()]
        packed = {index: values for index, values in known.items() if isinstance(values, list)}
        records = [record for index, values in packed.items() for record in unpack_records(index, values)]
        if not records:
            raise MetricError(f"images: none of {len(known)} can be read. {next(iter(unread.values()), '')}")
        return records

    def _group(self, records: Sequence[ImageRecord]) -> list[int]:
        column = None if self.group is None else [self.columns[self.group][record.index] for record in records]
        times = [self.images.read_capture_time(record.index) for record in records]
        groups = group_images(np.stack([record.hash for record in records]), times, column)
        count, images = len({*groups}), len({record.index for record in records})
        if count < images:
            self.notes.append(
                f"{format_count(images, 'image')} are {format_count(count, 'independent group')}: "
                "near-duplicates, bursts and what the group column joins count as one."
            )
        return groups

    def _choose_classes(
        self,
        found: Sequence[ImageRecord],
        found_groups: Sequence[int],
        tested: Sequence[ImageRecord],
        tested_groups: Sequence[int],
    ) -> list[int]:
        """Return the classes that have enough groups in both halves; the others are noted."""
        halves = [
            {(record.target, group) for record, group in zip(records, groups, strict=True)}
            for records, groups in ((found, found_groups), (tested, tested_groups))
        ]
        counts = [Counter(target for target, _ in half) for half in halves]
        classes = sorted({*counts[0], *counts[1]})
        named = [target for target in classes if target >= 0]
        usable = [target for target in named if min(count[target] for count in counts) >= LEAST_GROUPS]
        small = [f"'{self._name_class(target)}'" for target in named if target not in usable]
        if len(classes) < 2:
            self.not_tested.append(
                f"All images are of one class, '{self._name_class(classes[0])}': a cue of a class is what the others "
                "lack; add images of other classes."
            )
            return []
        if small:
            self.not_tested.append(
                f"{format_count(len(small), 'class')} with fewer than {LEAST_GROUPS} independent images in a half: "
                f"{', '.join(small[:_SHOWN])}{', ...' if len(small) > _SHOWN else ''}. Give {2 * LEAST_GROUPS} or more "
                "of each."
            )
        return usable

    def _share_passes(self, pairs: list[Pair], count: int) -> tuple[list[Pair], int]:
        """Return the candidates that the passes suffice for, and the images for each test."""
        rest = self.passes - PASSES_PER_MAP * count
        pairs = sorted(pairs, key=lambda pair: -pair[0].promise)
        costs = [2 * count_passes(candidate, self.controls) for candidate, _ in pairs]
        kept = len(pairs)
        while kept and rest // sum(costs[:kept]) < LEAST_GROUPS:
            kept -= 1
        self.not_tested += [
            f"{self._name_candidate(candidate)}: {self.passes:,} passes do not suffice; give more."
            for candidate, _ in pairs[kept:]
        ]
        return pairs[:kept], min(_MOST_IMAGES, rest // sum(costs[:kept])) if kept else 0

    def _measure(self, bench: Bench, candidates: Sequence[CueCandidate]) -> None:
        """Keep how strongly each image has each candidate: image by image, as candidates need the same activations."""
        names = {name_strengths(candidate): candidate for candidate in candidates}
        missing = {name: list[float]() for name in names if self.state.get(name) is None}
        with closing(follow_loop(len(bench.records), Stage("Measuring candidates", "image"))) as counter:
            for record in bench.records if missing else ():
                for name, strengths in missing.items():
                    strengths.append(names[name].measure(self.images, record))
                counter.update(1)
        for name, strengths in missing.items():
            self.state.add(name, strengths)

    def _test(
        self, benches: Mapping[int, Bench], pairs: Sequence[Pair], rest: int
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Return the outcomes of the candidates, and those of their decoys."""
        outcomes, decoys = list[Outcome](), list[Outcome]()
        for bench in {*benches.values()}:
            own = [one for candidate, made in pairs for one in (candidate, *made) if benches[one.target] is bench]
            self._measure(bench, own)
        with closing(_PassCounter(self._count_tests(benches, pairs, rest))) as counter:
            for bench in {*benches.values()}:
                bench.counter = counter
            for candidate, _ in pairs:
                outcomes.append(benches[candidate.target].test(candidate))
            for decoy in (decoy for _, made in pairs for decoy in made):
                bench = benches[decoy.target]
                # A decoy that the class has no more than the others cannot survive, so it takes no passes.
                is_paid = _count_all(benches) + bench.count_passes(decoy, self.level) <= rest
                outcome = bench.test(decoy, self.level if is_paid else -1)
                if not is_paid and outcome.presence_p <= self.level:
                    outcome = replace(outcome, reason=_NOT_PAID)
                decoys.append(outcome)
        return outcomes, decoys

    def _count_tests(self, benches: Mapping[int, Bench], pairs: Sequence[Pair], rest: int) -> int:
        """Return the forward passes of all tests."""
        total = sum(benches[candidate.target].count_passes(candidate) for candidate, _ in pairs)
        for decoy in (decoy for _, made in pairs for decoy in made):
            count = benches[decoy.target].count_passes(decoy, self.level)
            total += count if total + count <= rest else 0
        return total

    def _conclude(
        self,
        benches: Mapping[int, Bench],
        outcomes: Sequence[Outcome],
        decoys: Sequence[Outcome],
        verdicts: Mapping[str, Verdict],
        records: Sequence[ImageRecord],
    ) -> Audit:
        q_values = compute_q_values([outcome.p for outcome in outcomes])
        limit = max((outcome.p for outcome, q in zip(outcomes, q_values, strict=True) if q <= self.level), default=0)
        limit = max(limit, self.level / max(1, len(outcomes)))
        confirmed, rejected = list[tuple[Outcome, Finding]](), list[Finding]()
        for outcome, q in zip(outcomes, q_values, strict=True):
            if not outcome.reason:
                finding = self._describe(benches, outcome, q, len(outcomes), verdicts)
                if q <= self.level and outcome.is_large:
                    confirmed.append((outcome, finding))
                else:
                    rejected.append(finding)
        self.not_tested += [
            f"{self._name_candidate(outcome.candidate)}: {outcome.reason}." for outcome in outcomes if outcome.reason
        ]
        surviving = sum(decoy.reason == _NOT_PAID or (decoy.p <= limit and decoy.is_large) for decoy in decoys)
        findings = rank_findings(self._join_cues(confirmed))
        if self.folder is not None:
            by_key = {finding.key: outcome for outcome, finding in reversed(confirmed)}
            shown = [
                (benches[one.target], one.key, by_key[one.key].candidate, by_key[one.key].present) for one in findings
            ]
            naming = self._name_image, self._name_class
            write_pictures(self.folder, [FindingPictures(self.folder, *one, *naming) for one in shown])
        return Audit(
            findings,
            tuple(rejected),
            tuple(self._describe(benches, decoy, 1.0, len(outcomes), {}) for decoy in decoys),
            surviving,
            estimate_false_discovery_rate(surviving, len(findings), DECOYS),
            (*self.not_tested, *_NEVER_TESTED),
            tuple(self.notes),
            len({record.index for record in records}),
            self.level,
            PASSES_PER_MAP * len(records) + _count_all(benches),
            self.seed,
            folder=self.folder,
        )

    def _join_cues(self, confirmed: Sequence[tuple[Outcome, Finding]]) -> list[Finding]:
        """Return one finding for each cue: the clearest, which names the others."""
        joined = list[tuple[Outcome, Finding]]()
        for outcome, finding in sorted(confirmed, key=lambda pair: (pair[0].p, -len(pair[0].present))):
            for place, (other, first) in enumerate(joined):
                if _is_same_cue(self.images, other, outcome):
                    name = f"{finding.name} ({finding.kind}, {finding.present} images)"
                    joined[place] = other, replace(first, also=(*first.also, name))
                    break
            else:
                joined.append((outcome, finding))
        return [finding for _, finding in joined]

    def _describe(
        self, benches: Mapping[int, Bench], outcome: Outcome, q: float, tests: int, verdicts: Mapping[str, Verdict]
    ) -> Finding:
        candidate, present = outcome.candidate, {*outcome.present}
        label = self._name_class(candidate.target)
        of_class = [record for record in benches[candidate.target].records if record.target == candidate.target]
        without = [record for record in of_class if record.index not in present]
        key = f"{label}: {candidate.kind}: {candidate.name}"
        facts = candidate.list_facts()
        facts += ["only in a part of the class"] * (0 < len(present) < _ALL * len(of_class))
        if outcome.transplants is not None and outcome.transplants.is_large and outcome.transplants.p <= self.level:
            facts.append("works on other classes")
        facts += ["works alone on a blank image"] * (outcome.alone is not None and outcome.alone >= 0.5)
        outside = candidate.measure_outside(self.images, outcome.present[:_SHOWN])
        facts += ["outside the given masks"] * (outside is not None and outside >= _OUTSIDE)
        groups = outcome.removal.groups if outcome.removal is not None else 0
        columns = candidate.count_columns(self.controls)
        smallest = compute_detectable_share(groups, self.level / max(1, tests), columns) if groups else np.inf
        accuracy = tuple(
            float(np.mean([record.answer == record.target for record in part])) if part else np.nan
            for part in ([record for record in of_class if record.index in present], without)
        )
        return Finding(
            key,
            candidate.kind,
            label,
            candidate.target,
            candidate.name,
            candidate.area,
            len(present),
            len(of_class),
            outcome.removal,
            outcome.transplants,
            outcome.p,
            q,
            max(smallest, ANSWER_FLOOR),
            tuple(facts),
            tuple(self._name_image(index) for index in outcome.present[:_SHOWN]),
            tuple(self._name_image(record.index) for record in without[:_SHOWN]),
            (accuracy[0], accuracy[1]) if self.has_labels else None,
            self._count_by_group(of_class, present),
            verdicts.get(key),
            accuracy_by_group=self._measure_by_group(of_class, present),
            outside=outside,
        )

    def _measure_by_group(self, records: Sequence[ImageRecord], present: set[int]) -> dict[str, tuple[float, float]]:
        """Return the accuracy with and without a cue by column and value; nothing without labels."""
        right: dict[str, tuple[list[bool], list[bool]]] = {}
        for name, record in self._iterate_groups(records) if self.has_labels else ():
            right.setdefault(name, ([], []))[record.index not in present].append(record.answer == record.target)
        mean = {name: [float(np.mean(part)) if part else np.nan for part in parts] for name, parts in right.items()}
        return {name: (with_it, without_it) for name, (with_it, without_it) in mean.items()}

    def _count_by_group(self, records: Sequence[ImageRecord], present: set[int]) -> dict[str, tuple[int, int]]:
        counts: dict[str, tuple[int, int]] = {}
        for name, record in self._iterate_groups(records):
            count, having = counts.get(name, (0, 0))
            counts[name] = count + 1, having + (record.index in present)
        return counts

    def _iterate_groups(self, records: Sequence[ImageRecord]) -> Iterator[tuple[str, ImageRecord]]:
        for column, values in self.columns.items():
            if column != self.group and len({*map(str, values)}) <= _SHOWN:
                yield from ((f"{column} {values[record.index]}", record) for record in records)

    def _name_class(self, target: int) -> str:
        return self.names[target] if self.names is not None and target < len(self.names) else f"class {target}"

    def _name_candidate(self, candidate: CueCandidate) -> str:
        return f"'{self._name_class(candidate.target)}', {candidate.name} ({candidate.kind})"

    def _name_image(self, index: int) -> str:
        return self.images.name(index)


def _make_decoys(candidate: CueCandidate, discovery: Discovery, random: np.random.Generator) -> list[CueCandidate]:
    decoys = (candidate.make_decoy(discovery, random) for _ in range(DECOYS))
    return [decoy for decoy in decoys if decoy is not None]


def _count_all(benches: Mapping[int, Bench]) -> int:
    """Return the forward passes of all tests so far."""
    return sum(bench.passes for bench in {*benches.values()})


def _is_same_cue(images: AuditImages, one: Outcome, other: Outcome) -> bool:
    """Return True for candidates of a class that most of the same images have, in regions that overlap."""
    both = sorted({*one.present} & {*other.present})
    if one.candidate.target != other.candidate.target or 2 * len(both) < min(len(one.present), len(other.present)):
        return False
    return bool(both) and one.candidate.is_same_cue(other.candidate, images, both[:_COMPARED])


def find_targets(
    labels: Sequence[Any] | None, names: Sequence[str] | None, count: int
) -> tuple[list[tuple[int, ...]] | None, bool]:
    """Return the indices of the classes of each image, None without labels; and True if sets of labels were given.

    Raises:
        MetricError: There are more or fewer labels than images, or one is no class of the model.
    """
    if not count:
        raise MetricError("images is empty; give 16 or more of each of two classes.")
    if labels is None:
        return None, False
    if len(labels) != count:
        raise MetricError(f"labels has {len(labels)} entries for {count} images; give one for each.")
    known = {name: index for index, name in reversed([*enumerate(names or ())])}
    several = [isinstance(label, (list, tuple, set, frozenset)) for label in labels]
    targets = []
    for label, is_set in zip(labels, several, strict=True):
        own = {_find_index(one, known) for one in (label if is_set else (label,))}
        targets.append(tuple(sorted(own)))
    return targets, any(several)


def _find_index(label: Any, known: Mapping[str, int]) -> int:
    index = known.get(label, -1) if isinstance(label, str) else -1
    with suppress(TypeError, ValueError):  # e.g. None or NaN
        index = int(label) if not isinstance(label, str) and int(label) == label else index
    if index < 0:
        raise MetricError(f"labels: {label!r} is no class of the model.{suggest_names(str(label), known)}")
    return index


def _check_classes(targets: Sequence[tuple[int, ...]] | None, count: int) -> None:
    """Check that the model has the classes.

    Raises:
        MetricError: It has fewer.
    """
    highest = max((target for own in targets or () for target in own), default=0)
    if highest >= count:
        raise MetricError(f"labels: {highest} is no class of the model, which has the classes 0 to {count - 1}.")


def _read_columns(metadata: Any, count: int) -> dict[str, list[Any]]:
    """Return the metadata as lists.

    Raises:
        MetricError: A column has another length.
    """
    columns = {} if metadata is None else {str(name): [*metadata[name]] for name in metadata}
    for name, values in columns.items():
        if len(values) != count:
            raise MetricError(f"metadata[{name!r}] has {len(values)} entries for {count} images; give one for each.")
    return columns


def _read_tags(images: Sequence[Any] | Tensor) -> dict[str, list[str | None]]:
    """Return the tags of DICOM files that some of the images have, as columns; None where one has none."""
    tags = [read_tags(Path(image)) if isinstance(image, (str, os.PathLike)) else {} for image in images]
    return {name: [one.get(name) for one in tags] for name in TAGS if any(name in one for one in tags)}


def _choose_kinds(kinds: Sequence[str] | None) -> dict[str, Find]:
    for kind in kinds or ():
        check_choice("kinds", kind, KINDS, error=MetricError)
    return {kind: find for kind, find in KINDS.items() if (kind != _ON_DEMAND if kinds is None else kind in kinds)}
