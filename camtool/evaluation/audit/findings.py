"""From the outcomes of tests to findings: one for each cue, with what is remarkable and suspicious about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from camtool.evaluation.annotations import is_missing
from camtool.evaluation.audit import statistics
from camtool.evaluation.audit.cues.candidates import COMPARED_IMAGES, DECOYS, Discovery, RegionCandidate
from camtool.evaluation.audit.cues.kinds import KINDS
from camtool.evaluation.audit.cues.stored import select_stored
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.report.page import FindingPictures, write_pictures
from camtool.evaluation.audit.result import Audit, Finding, Verdict, rank_findings
from camtool.evaluation.audit.setup import AuditRun
from camtool.evaluation.audit.state import SHOWN, shorten_list
from camtool.evaluation.audit.trials import ANSWER_FLOOR, UNCHANGEABLE, CueTester, Outcome

# The reason of a decoy for which the passes do not suffice.
OUT_OF_BUDGET = "the forward-pass budget ran out, so this decoy is counted as a false finding"

# Images in which the regions of two findings are compared.
_COMPARED = 10

# Share of a class from which on a cue counts as one of all of the class: the threshold misses a few.
_ALL = 0.9

# Share of the pixels of a part that look the same in most images from which on it is a stamp. In two small worlds it
# was at most 0.23 for parts of objects, and at least 0.6 for stamps (``python -m benchmarks audit_worlds``).
_STAMPED = 0.4

# Share of a region outside of the given masks from which on it counts as outside.
_OUTSIDE = 0.5

_NEVER_TESTED = (
    "Cues that all classes share, and cues outside of what the model sees of a photo.",
    "Size and aspect of the files before the transform (not tested by intervention).",
    "Concepts of several forms, and those of models without a layer like after a ReLU.",
)


@dataclass(frozen=True, eq=False)
class Conclusion:
    """Computes the findings of an audit from the outcomes of all tests.

    Attributes:
        run: The audit.
        testers: Class → the tests of its candidates.
        discoveries: Class → the images in which its candidates are found.
        folder: The folder for pictures of the findings; None for none.
        verdicts: The user's verdicts, by the key of a finding.
    """

    run: AuditRun
    testers: Mapping[int, CueTester]
    discoveries: Mapping[int, Discovery]
    folder: Path | None
    verdicts: Mapping[str, Verdict]

    def conclude(self, outcomes: Sequence[Outcome], decoys: Sequence[Outcome], image_count: int, passes: int) -> Audit:
        """Return the result.

        Args:
            outcomes: Those of the candidates.
            decoys: Those of their decoys.
            image_count: The images that were read.
            passes: The forward passes.
        """
        q_values = statistics.compute_q_values([outcome.p for outcome in outcomes])
        confirmed, rejected = self._describe_all(outcomes, q_values)
        findings = rank_findings(self._join_cues(confirmed))
        surviving = self._count_surviving(decoys, outcomes, q_values)
        self._note_verdicts([finding for _, finding in confirmed])
        by_key = {finding.key: outcome for outcome, finding in reversed(confirmed)}
        if self.folder is not None:
            self._write_pictures(self.folder, by_key, findings)
        described = zip(decoys, self._iterate_keys(decoys), strict=True)
        return Audit(
            findings=findings,
            rejected=tuple(rejected),
            decoys=tuple(self._describe(decoy, 1.0, len(outcomes), key) for decoy, key in described),
            surviving_decoys=surviving,
            false_discovery_rate=statistics.estimate_false_discovery_rate(surviving, len(findings), DECOYS),
            not_tested=(*self.run.not_tested, *_NEVER_TESTED),
            notes=tuple(self.run.notes),
            image_count=image_count,
            level=self.run.level,
            passes=passes,
            seed=self.run.seed,
            folder=self.folder,
            unread=self.run.unread,
            cues=select_stored({finding.key: by_key[finding.key].candidate for finding in findings}),
            settings=self.run.settings,
        )

    def _describe_all(
        self, outcomes: Sequence[Outcome], q_values: Sequence[float]
    ) -> tuple[list[tuple[Outcome, Finding]], list[Finding]]:
        """Return the outcomes that are confirmed, each as a finding, and the findings of those that are not."""
        confirmed, rejected = list[tuple[Outcome, Finding]](), list[Finding]()
        for outcome, q, key in zip(outcomes, q_values, self._iterate_keys(outcomes), strict=True):
            if outcome.reason:
                continue
            finding = replace(self._describe(outcome, q, len(outcomes), key), verdict=self.verdicts.get(key))
            if q <= self.run.level and outcome.is_large:
                confirmed.append((outcome, finding))
            else:
                rejected.append(finding)
        return confirmed, rejected

    def _count_surviving(
        self, decoys: Sequence[Outcome], outcomes: Sequence[Outcome], q_values: Sequence[float]
    ) -> int:
        """Return how many decoys have a p-value that is small enough for a finding, and a large effect."""
        passing = [outcome.p for outcome, q in zip(outcomes, q_values, strict=True) if q <= self.run.level]
        limit = max([self.run.level / max(1, len(outcomes)), *passing])
        return sum(decoy.reason == OUT_OF_BUDGET or (decoy.p <= limit and decoy.is_large) for decoy in decoys)

    def _write_pictures(self, folder: Path, by_key: Mapping[str, Outcome], findings: Sequence[Finding]) -> None:
        pictures = dict[str, FindingPictures]()
        for finding in findings:
            tester, outcome, name_class = self.testers[finding.target], by_key[finding.key], self.run.name_class
            pictures[finding.key] = FindingPictures(folder, tester, outcome.candidate, outcome.present, name_class)
        write_pictures(folder, pictures)

    def _join_cues(self, confirmed: Sequence[tuple[Outcome, Finding]]) -> list[Finding]:
        """Return one finding for each cue: the clearest, which names the others and is suspicious if one of them is."""
        joined = list[tuple[Outcome, Finding]]()
        for outcome, finding in sorted(confirmed, key=lambda pair: _rank_as_name(pair[0])):
            for index, (other, first) in enumerate(joined):
                is_same = _is_same_cue(self.run.images, other, outcome)
                if is_same or (first.suspicions and self._is_effect(outcome, other)):
                    also = (*first.also, f"{finding.name} ({finding.kind}, {finding.present} images)")
                    suspicions = dict.fromkeys((*first.suspicions, *(finding.suspicions if is_same else ())))
                    joined[index] = other, replace(first, also=also, suspicions=(*suspicions,))
                    break
            else:
                joined.append((outcome, finding))
        return [finding for _, finding in joined]

    def _is_effect(self, outcome: Outcome, of: Outcome) -> bool:
        """Return True if nothing is left of a cue outside of the region of another one.

        A stamp with sharp edges, for example, makes photos sharper.
        """
        target = outcome.candidate.target
        if of.candidate.target != target:
            return False
        rest = outcome.candidate.leave_region(of.candidate, self.discoveries[target])
        if rest is None:
            return False
        again = self.testers[target].test(rest, self.run.level)
        if again.presence_p > self.run.level:
            return True
        return again.reason in ("", UNCHANGEABLE) and not (again.p <= self.run.level and again.is_large)

    def _iterate_keys(self, outcomes: Sequence[Outcome]) -> Iterator[str]:
        """Yield a key for each candidate that names no image, so that it stays as it is if images are added."""
        counts = Counter[str]()
        for candidate in (outcome.candidate for outcome in outcomes):
            label = self.run.name_class(candidate.target)
            if self.run.names is not None and [*self.run.names].count(label) > 1:
                label += f" ({candidate.target})"
            key = f"{label}: {candidate.kind}: {candidate.title}"
            counts[key] += 1
            yield f"{key} {counts[key]}" if counts[key] > 1 else key

    def _note_verdicts(self, confirmed: Sequence[Finding]) -> None:
        unused = [repr(key) for key in self.verdicts if key not in {finding.key for finding in confirmed}]
        if unused:
            self.run.notes.append(f"Verdicts that fit no finding: {shorten_list(unused)}.")

    def _describe(self, outcome: Outcome, q: float, tests: int, key: str) -> Finding:
        """Return a finding without a verdict, of one of a number of tests."""
        candidate, present = outcome.candidate, {*outcome.present}
        of_class = [record for record in self.testers[candidate.target].records if record.target == candidate.target]
        having = [record for record in of_class if record.index in present]
        without = [record for record in of_class if record.index not in present]
        by_group, accuracy_by_group = self._count_by_group(of_class, present)
        shown = outcome.present[:SHOWN]
        outside = candidate.measure_outside(self.run.images, shown)
        sameness = candidate.measure_sameness(self.run.images, shown) if shown else None
        return Finding(
            key=key,
            kind=candidate.kind,
            label=self.run.name_class(candidate.target),
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
            images=tuple(map(self.run.images.name, outcome.present[:SHOWN])),
            without=tuple(self.run.images.name(record.index) for record in without[:SHOWN]),
            accuracy=(_measure_accuracy(having), _measure_accuracy(without)) if self.run.has_labels else None,
            by_group=by_group,
            accuracy_by_group=accuracy_by_group,
            outside=outside,
            sameness=sameness,
        )

    def _find_smallest_share(self, outcome: Outcome, tests: int) -> float:
        """Return the smallest share of answers that the images of a candidate could have shown; infinity for none."""
        if outcome.removal is None or not outcome.removal.groups:
            return math.inf
        controls = COMPARED_IMAGES if outcome.candidate.compares_images else self.run.controls
        level = self.run.level / max(1, tests * len(outcome.effects))
        return max(statistics.compute_detectable_share(outcome.removal.groups, level, 1 + controls), ANSWER_FLOOR)

    def _list_facts(self, outcome: Outcome) -> tuple[str, ...]:
        """Return what is remarkable about a candidate."""
        pasting = outcome.transplants
        facts = {
            "only in a part of the class": 0 < len(outcome.present) < _ALL * outcome.class_count,
            "works on other classes": pasting is not None and pasting.is_large and pasting.p <= self.run.level,
            "works alone on a blank image": outcome.alone is not None and outcome.alone >= 0.5,
        }
        return (*outcome.candidate.list_facts(), *(fact for fact, holds in facts.items() if holds))

    def _count_by_group(
        self, records: Sequence[ImageRecord], present: set[int]
    ) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[float, float]]]:
        """Return by column and value the images and those with a cue, and the accuracy with it and without it.

        There is no accuracy without labels.
        """
        groups: dict[str, tuple[list[ImageRecord], list[ImageRecord]]] = {}
        for column, values in self.run.columns.items():
            if column != self.run.group and len({*map(str, values)}) <= SHOWN:
                for record in records:
                    if not is_missing(value := values[record.index]):
                        groups.setdefault(f"{column} {value}", ([], []))[record.index not in present].append(record)
        counts = {name: (len(cued) + len(others), len(cued)) for name, (cued, others) in groups.items()}
        shares = {name: (_measure_accuracy(cued), _measure_accuracy(others)) for name, (cued, others) in groups.items()}
        return counts, shares if self.run.has_labels else {}


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


def _measure_accuracy(records: Sequence[ImageRecord]) -> float:
    """Return the share of right answers, NaN for none."""
    return float(np.mean([record.answer == record.target for record in records])) if records else np.nan


def _is_same_cue(images: AuditImages, this: Outcome, other: Outcome) -> bool:
    """Return True for candidates of a class that most of the same images have, in regions that overlap."""
    both = sorted({*this.present} & {*other.present})
    if this.candidate.target != other.candidate.target or 2 * len(both) < min(len(this.present), len(other.present)):
        return False
    return bool(both) and this.candidate.is_same_cue(other.candidate, images, both[:_COMPARED])
