"""``audit()``: from images to candidates on one half, tests on the other half, and findings."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from camtool.arguments.message_parts import format_count
from camtool.evaluation.annotations import Region
from camtool.evaluation.audit import statistics
from camtool.evaluation.audit.cues.candidates import DECOYS, CueCandidate, Discovery
from camtool.evaluation.audit.cues.kinds import KINDS, Kind, choose_kinds
from camtool.evaluation.audit.cues.stored import AuditSettings
from camtool.evaluation.audit.findings import OUT_OF_BUDGET, Conclusion
from camtool.evaluation.audit.images import PASSES_PER_MAP
from camtool.evaluation.audit.report.page import check_results
from camtool.evaluation.audit.result import NAMES, VERDICTS_NAME, Audit, Verdict, read_verdicts
from camtool.evaluation.audit.setup import MOST_IMAGES, AuditRun, View, prepare_run
from camtool.evaluation.audit.state import State, check_options, hold_folder
from camtool.evaluation.audit.trials import CueTester, Outcome, PassProgress, name_strengths
from camtool.evaluation.subject import Subject, check_image_list
from camtool.explaining.types import Model
from camtool.models import Transform
from camtool.progress import Stage, follow_each


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
    run = prepare_run(subject, images, labels, metadata, settings, masks, passes=most_passes, level=level)
    chosen = choose_kinds(kinds)
    default = None if folder is None else folder / VERDICTS_NAME
    user_verdicts = read_verdicts(default if verdicts is None else Path(verdicts), is_required=verdicts is not None)
    with hold_folder(folder):
        run.open_state(folder)
        result = AuditTests(run, chosen).find_and_test(folder, user_verdicts)
        if engine != "eager":
            result = _note_engines(result, run.state, run.images.used_engines)
        if folder is not None:
            result.save(folder)
    return result


def _note_engines(result: Audit, state: State, engines: Iterable[str]) -> Audit:
    """Return a result with a note of the engines that ran, also in earlier starts."""
    used = ", ".join(sorted({*str(state.get("engines") or "").split(", "), *engines} - {""}))
    if used != state.get("engines"):
        state.add("engines", used)
    return replace(result, notes=(*result.notes, f"The tests ran in: {used or 'none'}."))


class Pair(NamedTuple):
    """A candidate, and its decoys."""

    candidate: CueCandidate
    decoys: list[CueCandidate]


@dataclass(frozen=True, eq=False)
class AuditTests:
    """The candidates of an audit, and their tests.

    Attributes:
        run: The audit.
        kinds: The kinds of candidates that are asked for.
        testers: Class → the tests of its candidates.
        discoveries: Class → the images in which its candidates are found.
    """

    run: AuditRun
    kinds: Mapping[str, Kind]
    testers: dict[int, CueTester] = field(default_factory=dict, init=False)
    discoveries: dict[int, Discovery] = field(default_factory=dict, init=False)

    def find_and_test(self, folder: Path | None, verdicts: Mapping[str, Verdict]) -> Audit:
        """Return the result: records, halves, candidates, tests, findings.

        Args:
            folder: The folder for pictures of the findings; None for none.
            verdicts: The user's verdicts, by the key of a finding.
        """
        records, halves = self.run.record_and_split()
        noted = len(self.run.not_tested)
        views = self.run.make_views(records, halves)
        untested = "" if views else self.run.not_tested[noted]
        class_count = sum(len(view.targets) for view in views)
        pairs = self._find_candidates(self._choose_possible(class_count), views)
        rest = self.run.passes - PASSES_PER_MAP * len(records)
        noted, count = len(self.run.not_tested), len(pairs)
        self._prepare_testers(views, len(pairs))
        self._measure_all([candidate for pair in pairs for candidate in (pair.candidate, *pair.decoys)])
        outcomes, decoys = self._test_all(pairs, rest)
        if count and all(outcome.reason for outcome in outcomes):
            untested = f"{format_count(count, 'candidate')} left out, e.g. {self.run.not_tested[noted]}"
        image_count, passes = len({record.index for record in records}), self.run.passes - rest + self._count_done()
        conclusion = Conclusion(self.run, self.testers, self.discoveries, folder, verdicts)
        return replace(conclusion.conclude(outcomes, decoys, image_count, passes), untested=untested)

    def _find_candidates(self, kinds: Mapping[str, Kind], views: Sequence[View]) -> list[Pair]:
        """Return the candidates of the discovery half with their decoys, the clearest ones first."""
        random, pairs = np.random.default_rng(self.run.seed), list[Pair]()
        for view in views:
            discovery = Discovery(self.run.images, view.found.records, view.found.groups, view.targets, self.run.seed)
            self.discoveries.update(dict.fromkeys(view.targets, discovery))
            candidates = [candidate for kind in kinds.values() for candidate in kind.find(discovery)]
            pairs += [Pair(candidate, _make_decoys(candidate, discovery, random)) for candidate in candidates]
        # Passes that do not suffice for all serve to test what is most suspicious.
        return sorted(pairs, key=lambda pair: (not pair.candidate.suspicion, -pair.candidate.clarity))

    def _count_pair(self, pair: Pair, images: int) -> int:
        """Return the forward passes of a candidate and its decoys, each with at most a number of images."""
        tester = self.testers[pair.candidate.target]
        decoys = sum(tester.count_passes(decoy, self.run.level, most=images) for decoy in pair.decoys)
        return tester.count_passes(pair.candidate, most=images) + decoys

    def _prepare_testers(self, views: Sequence[View], count: int) -> None:
        """Prepare the tests of a number of candidates, for the classes of each view."""
        # Enough permutations that the smallest possible p, times three effects and all candidates (Bonferroni), stays
        # below `level`.
        permutations = max(statistics.PERMUTATIONS, math.ceil(6 * count / self.run.level))
        for view in views:
            self.testers.update(dict.fromkeys(view.targets, self.run.make_tester(view, permutations)))

    def _choose_possible(self, class_count: int) -> dict[str, Kind]:
        """Return the kinds that the number of classes suffices for; others, and those to ask for, are noted."""
        chosen, is_independent = dict[str, Kind](), self.run.images.head.is_independent
        for name, kind in KINDS.items():
            title = f"{name.capitalize()}s"
            if name not in self.kinds and kind.reason_to_ask:
                self.run.not_tested.append(f"{title}: only if kinds names '{name}', as {kind.reason_to_ask}.")
            elif name in self.kinds and kind.least_classes > (0 if is_independent else class_count):
                needed = f"{kind.least_classes} classes that exclude one another are needed."
                self.run.not_tested.append(f"{title}: {needed}")
            elif name in self.kinds:
                chosen[name] = kind
        return chosen

    def _measure_all(self, candidates: Sequence[CueCandidate]) -> None:
        """Keep how strongly each image has each candidate: image by image, as candidates need the same activations."""
        for tester in {*self.testers.values()}:
            names = {name_strengths(each): each for each in candidates if self.testers[each.target] is tester}
            missing = {name: list[float]() for name in names if self.run.state.get(name) is None}
            for record in follow_each(tester.records, Stage("Measuring candidates", "image")) if missing else ():
                for name, strengths in missing.items():
                    strengths.append(names[name].measure(self.run.images, record))
            for name, strengths in missing.items():
                self.run.state.add(name, strengths)

    def _test_all(self, pairs: Sequence[Pair], rest: int) -> tuple[list[Outcome], list[Outcome]]:
        """Return the outcomes of the candidates that the passes suffice for, and those of their decoys."""
        outcomes, decoys, left = list[Outcome](), list[Outcome](), pairs
        while left:
            # What cannot be changed takes no passes, so there are some for what was left out before.
            spare = rest - self._count_done()
            kept, left, most = self.run.share_passes(left, self._count_pair, spare, MOST_IMAGES)
            if not kept:
                costs = {self._name_candidate(pair.candidate): self._count_pair(pair, most) for pair in left}
                self.run.note_left_out(costs, spare)
                break
            for tester in self.testers.values():
                tester.limit_images(most)
            tested = self._test(kept, rest)
            outcomes, decoys = outcomes + tested[0], decoys + tested[1]
        self.run.not_tested += [
            f"{self._name_candidate(outcome.candidate)}: {outcome.reason}." for outcome in outcomes if outcome.reason
        ]
        return outcomes, decoys

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
        is_paid = self._count_done() + tester.count_passes(decoy, self.run.level) <= rest
        outcome = tester.test(decoy, self.run.level if is_paid else -1)
        if not is_paid and outcome.presence_p <= self.run.level:
            return replace(outcome, reason=OUT_OF_BUDGET)
        return outcome

    def _count_tests(self, candidates: Sequence[CueCandidate], decoys: Sequence[CueCandidate], rest: int) -> int:
        """Return the forward passes of all tests."""
        total = sum(self.testers[candidate.target].count_passes(candidate) for candidate in candidates)
        for decoy in decoys:
            count = self.testers[decoy.target].count_passes(decoy, self.run.level)
            total += count if total + count <= rest else 0
        return total

    def _count_done(self) -> int:
        """Return the forward passes of all tests so far."""
        return sum(tester.passes for tester in {*self.testers.values()})

    def _name_candidate(self, candidate: CueCandidate) -> str:
        return f"'{self.run.name_class(candidate.target)}', {candidate.name} ({candidate.kind})"


def _make_decoys(candidate: CueCandidate, discovery: Discovery, random: np.random.Generator) -> list[CueCandidate]:
    decoys = (candidate.make_decoy(discovery, random) for _ in range(DECOYS))
    return [decoy for decoy in decoys if decoy is not None]
