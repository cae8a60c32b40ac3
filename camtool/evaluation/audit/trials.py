"""Trials of candidates on the confirmation half: what happens to the answers without a candidate, and with it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from camtool.evaluation.audit import statistics
from camtool.evaluation.audit.cues.candidates import COMPARED_IMAGES, Change, CueCandidate
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.split import Record
from camtool.evaluation.leaderboard.table import Interval, bootstrap_mean
from camtool.progress import PassCounter, Stage, follow_loop

# Independent groups of images that a test needs: with fewer nothing is claimed.
LEAST_GROUPS = 8

# Least effects that are reported, beyond that of the controls: of the probability, and of the share of answers.
PROBABILITY_FLOOR, ANSWER_FLOOR = 0.1, 0.2

# The reason of a candidate that cannot be removed from any image, nor given to one.
UNCHANGEABLE = "the photos cannot be changed in this way"

# Images whose cue is shown alone on a blank image.
_ALONE = 10

_R = TypeVar("_R", bound=Record)

# ``remember(key, compute)``: the numbers that were computed under a key before, or else are computed now.
Remember = Callable[[str, Callable[[], list[float]]], list[float]]


class PassProgress:
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


class Effect(NamedTuple):
    """The effect of a change on the answers.

    Attributes:
        images: The number of images.
        groups: The number of independent groups of images.
        answers: The share of answers that changed from the class (covering) or to it (pasting), with Wilson interval.
        controls: The same share for the controls.
        probability: The change of the probability of the class beyond that of the controls, with bootstrap interval.
        p: The p-value of the margins against those of the controls.
        change: The change of the probability itself; NaN in audits of an earlier version.
    """

    images: int
    groups: int
    answers: Interval
    controls: float
    probability: Interval
    p: float
    change: float = math.nan

    @classmethod
    def summarize(
        cls, images: int, changed: NDArray[np.float64], shifts: NDArray[np.float64], p: float, seed: int
    ) -> Effect:
        """Return the effect on a number of images.

        Args:
            images: The number of images.
            changed: ``(G, 1 + K)``: the share of answers that change in each group, by the candidate and by K controls.
            shifts: ``(G, 1 + K)``, the change of the probability.
            p: The p-value.
            seed: The seed of the interval.
        """
        share = statistics.compute_share(float(changed[:, 0].sum()), len(changed))
        beyond = bootstrap_mean(statistics.subtract_controls(shifts), seed)
        return cls(images, len(changed), share, float(changed[:, 1:].mean()), beyond, p, float(shifts[:, 0].mean()))

    @property
    def is_large(self) -> bool:
        """True if the effect beyond that of the controls reaches a floor.

        Fills are imperfect, and some images that seem to have a cue do not, so an effect is estimated as too small. It
        suffices that the interval of the probability reaches the floor, and its mean half of it.
        """
        reaches_floor = self.probability.high >= PROBABILITY_FLOOR and 2 * self.probability.mean >= PROBABILITY_FLOOR
        return self.changes_answers or reaches_floor

    @property
    def change_of_controls(self) -> float:
        """The mean change of the probability by the controls."""
        return self.change - self.probability.mean

    @property
    def size(self) -> float:
        """How far the change of the probability is outside of the range from none to that of the controls.

        It counts in either direction. Controls may change more, as they cover what a class should be recognized by:
        that is no effect of the candidate.
        """
        return float(measure_size(self.change, self.change_of_controls))

    @property
    def changes_answers(self) -> bool:
        """True if the share of answers that change beyond the controls' reaches its floor."""
        return self.answers.mean - self.controls >= ANSWER_FLOOR


def measure_size(change: ArrayLike, controls: ArrayLike) -> NDArray[np.float64]:
    """Return how far changes are outside of the range from none to that of the controls, in either direction."""
    outside = np.maximum(np.minimum(0, controls) - change, change - np.maximum(0, controls))
    return np.asarray(outside).clip(min=0)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of all tests of a candidate.

    Attributes:
        candidate: The candidate.
        present: Images of the confirmation half that have it, of those of the class, by number.
        class_count: Images of the class in the confirmation half.
        presence_p: The p-value that the class has it more strongly than the others.
        removals: The effect of removing it, by fill.
        transplants: The effect of giving it to images of other classes; None if that was not possible.
        alone: The share of blank images that it makes the class; None if that was not possible.
        reason: Why it was not tested; empty if it was.
        shifts: ``(G, 2)`` for each of :attr:`effects`: the change of the probability in each group, by the candidate
            and by its controls on average.
    """

    candidate: CueCandidate
    present: tuple[int, ...] = ()
    class_count: int = 0
    presence_p: float = 1.0
    removals: tuple[Effect, ...] = ()
    transplants: Effect | None = None
    alone: float | None = None
    reason: str = ""
    shifts: tuple[NDArray[np.float64], ...] = ()

    @property
    def removal(self) -> Effect | None:
        """The effect with the fill that shows it more."""
        return min(self.removals, key=lambda effect: (effect.p, -effect.answers.mean), default=None)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects with all fills, and that of giving it."""
        return (*self.removals, *([] if self.transplants is None else [self.transplants]))

    @property
    def p(self) -> float:
        """The p-value that the class has it, and that removing or giving it matters: the larger of the two.

        For "removing with one of the fills, or giving" it is their number times the smallest one (Bonferroni), of the
        large effects if there are any.
        """
        effects = [effect.p for effect in self.effects if effect.is_large or not self.is_large]
        return max(self.presence_p, min(1.0, len(self.effects) * min(effects))) if effects else 1.0

    @property
    def is_large(self) -> bool:
        """True if an effect reaches the floor."""
        return any(effect.is_large for effect in self.effects)


class _Choice(NamedTuple):
    """The images of the confirmation half in the tests of a candidate.

    Attributes:
        is_class: True for the images of the class.
        present: The rows of the images of the class that have it.
        others: Those of other classes that do not have it.
        used: Those from which it is removed.
        recipients: Those to which it is given.
        presence_p: The p-value that the class has it more strongly than the others.
    """

    is_class: NDArray[np.bool_]
    present: NDArray[np.int_]
    others: NDArray[np.int_]
    used: list[int]
    recipients: list[int]
    presence_p: float


def name_strengths(candidate: CueCandidate) -> str:
    """Return the name under which it is kept how strongly each image has a candidate."""
    return f"{candidate.key} strengths"


@dataclass(eq=False, kw_only=True)
class Tester(Generic[_R]):
    """Tests of an audit or a comparison on the images of the confirmation half.

    Attributes:
        records: The images of the confirmation half.
        groups: The group of each of these.
        controls: Control regions in each image.
        most_images: Images for each test.
        seed: The seed.
        remember: Keeps what was computed.
        passes: Forward passes of all tests so far, also of those that were remembered.
    """

    records: Sequence[_R]
    groups: Sequence[int]
    controls: int
    most_images: int
    seed: int
    remember: Remember
    passes: int = 0

    def draw(self, rows: Iterable[int], *key: str, most: int | None = None) -> list[int]:
        """Return at most the number of images for a test, drawn by a hash of its key and the image."""
        order = sorted(rows, key=lambda row: hash_parts(self.seed, *key, self.records[row].index))
        return sorted(order[: self.most_images if most is None else most])


@dataclass(eq=False, kw_only=True)
class CueTester(Tester[ImageRecord]):
    """Tests candidates on the images of the confirmation half.

    Attributes:
        images: All images.
        permutations: Arrangements in each test.
        counter: Receives the progress; None for nobody.
    """

    images: AuditImages
    permutations: int = statistics.PERMUTATIONS
    counter: PassProgress | None = None
    _choices: dict[str, _Choice] = field(default_factory=dict, init=False, repr=False)

    def test(self, candidate: CueCandidate, level: float = 1.0) -> Outcome:
        """Run all tests of a candidate.

        Args:
            candidate: The candidate.
            level: The p-value of its presence in the class above which the others are left out: it cannot pass.
        """
        chosen = self._choose(candidate)
        indices = tuple(self.records[row].index for row in chosen.present.tolist())
        outcome = Outcome(candidate, indices, int(chosen.is_class.sum()), chosen.presence_p)
        obstacle = self._find_obstacle(chosen, level)
        if obstacle:
            return replace(outcome, reason=obstacle)
        removals, removed = self._try(candidate, chosen.used, chosen.others, is_removal=True)
        transplants, given = self._try(candidate, chosen.recipients, np.asarray(chosen.used), is_removal=False)
        reason, shifts = "" if removals or transplants else UNCHANGEABLE, (*removed, *given)
        transplant, alone = next(iter(transplants), None), self._show_alone(candidate, chosen.used[:_ALONE])
        return replace(outcome, removals=removals, transplants=transplant, alone=alone, reason=reason, shifts=shifts)

    def _find_obstacle(self, chosen: _Choice, level: float) -> str:
        """Return why a candidate is not tested; empty if it is."""
        if chosen.presence_p > level:
            return "the class does not have it more than the others"
        for rows, what in (
            (chosen.used, "images of the class that have it"),
            (chosen.recipients, "images of other classes"),
        ):
            groups = len({self.groups[row] for row in rows})
            if groups < LEAST_GROUPS:
                return f"independent {what} in the confirmation half: {groups}; {LEAST_GROUPS} are needed"
        return ""

    def limit_images(self, count: int) -> None:
        """Take at most a number of images for each test from now on."""
        self.most_images = count
        self._choices.clear()

    def count_passes(self, candidate: CueCandidate, level: float = 1.0, most: int = sys.maxsize) -> int:
        """Return the forward passes of :meth:`test` with at most some images; a few less if one cannot be changed."""
        chosen = self._choose(candidate)
        if self._find_obstacle(chosen, level):
            return 0
        used, recipients = min(most, len(chosen.used)), min(most, len(chosen.recipients))
        covering = used * self._count_passes(candidate, is_removal=True)
        return covering + recipients * self._count_passes(candidate, is_removal=False) + min(_ALONE, used)

    def _count_passes(self, candidate: CueCandidate, *, is_removal: bool) -> int:
        """Return the forward passes for one image in a test."""
        if candidate.compares_images and is_removal:
            return 2 * (1 + COMPARED_IMAGES)
        if candidate.compares_classes and not is_removal:
            return 2
        # The unchanged image, the candidate and its controls, with each fill.
        return (len(candidate.fills) if is_removal else 1) * (2 + self.controls)

    def measure_strengths(self, candidate: CueCandidate) -> NDArray[np.float64]:
        """Return how strongly each image has a candidate, ``(N,)``."""

        def measure() -> list[float]:
            return [candidate.measure(self.images, record) for record in self.records]

        return np.array(self.remember(name_strengths(candidate), measure))

    def find_present(self, candidate: CueCandidate) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return True for the records of the class, and for those that have the candidate, ``(N,)`` each."""
        strengths = self.measure_strengths(candidate)
        is_class = np.array([record.target == candidate.target for record in self.records])
        return is_class, strengths > float(np.quantile(strengths[~is_class], candidate.present))

    def _choose(self, candidate: CueCandidate) -> _Choice:
        """Return the images in the tests of a candidate, which are chosen once."""
        if candidate.key in self._choices:
            return self._choices[candidate.key]
        strengths, is_class, has_it = self.measure_strengths(candidate), *self.find_present(candidate)
        is_answer = np.array([record.answer == candidate.target for record in self.records])
        present = np.flatnonzero(is_class & has_it)
        others = np.flatnonzero(~is_class & ~is_answer & ~has_it)
        used = self.draw(present[is_answer[present]].tolist(), candidate.key, "removal")
        recipients = self.draw(others.tolist(), candidate.key, "transplant", most=len(used))
        units, of_class = statistics.average_units(strengths[:, None], self.groups, is_class)
        tested = statistics.run_maximum_test(units, of_class, permutations=self.permutations, seed=self.seed)
        presence_p = float(tested.p[0])
        choice = self._choices[candidate.key] = _Choice(is_class, present, others, used, recipients, presence_p)
        return choice

    def _show_alone(self, candidate: CueCandidate, rows: Sequence[int]) -> float | None:
        """Return the share of blank images that become the class with the candidate alone."""

        def run() -> list[float]:
            inputs = [candidate.isolate(self.images, self.records[row].index) for row in rows]
            logits = [self.images.score(image[None]) for image in inputs if image is not None]
            return [float(self.images.measure_margins(scores, candidate.target)[2]) for scores in logits]

        values = self._remember(f"{candidate.key} alone {[*rows]}", run, len(rows))
        return float(np.mean(values)) if values else None

    def _remember(self, key: str, compute: Callable[[], list[float]], passes: int) -> list[float]:
        """Return numbers that were computed by forward passes, and count these."""
        is_new = False

        def run() -> list[float]:
            nonlocal is_new
            is_new = True
            return compute()

        values = self.remember(key, run)
        count = passes if values else 0
        self.passes += count
        if self.counter is not None:
            (self.counter.update if is_new else self.counter.leave_out)(count)
        return values

    def _try(
        self, candidate: CueCandidate, rows: Sequence[int], partners: NDArray[np.int_], *, is_removal: bool
    ) -> tuple[tuple[Effect, ...], tuple[NDArray[np.float64], ...]]:
        """Return the effect of a change by fill, and its shifts; none if the images cannot be changed so."""
        name, results, groups = "removal" if is_removal else "transplant", list[NDArray[np.float64]](), list[int]()
        # Each image has a partner of its own as far as there are enough: a partner of many would make them dependent.
        order = np.random.default_rng(hash_parts(self.seed, candidate.key, name)).permutation(partners)
        for turn, row in enumerate(rows):
            index, partner = self.records[row].index, self.records[int(order[turn % len(order)])].index
            number = hash_parts(self.seed, candidate.key, name, index)

            def run(index: int = index, partner: int = partner, number: int = number, row: int = row) -> list[float]:
                random = np.random.default_rng(number)
                if candidate.compares_images and is_removal:
                    return self._compare_images(candidate, row, random)
                change = candidate.remove if is_removal else candidate.transplant
                variants = change(Change(self.images, index, partner, self.controls, random))
                if variants is None:
                    return []
                if candidate.compares_classes and not is_removal:
                    return self._compare_classes(candidate, self.records[row], variants)
                return self._score(candidate, index, variants)

            passes = self._count_passes(candidate, is_removal=is_removal)
            values = self._remember(f"{candidate.key} {name} {index} {partner}", run, passes)
            if values:
                fills = len(candidate.fills) if is_removal else 1
                results.append(np.asarray(values).reshape(2, fills, -1))
                groups.append(self.groups[row])
        if len({*groups}) < LEAST_GROUPS:
            return (), ()
        by_fill = np.stack(results, 2).swapaxes(0, 1)
        pairs = [self._summarize(values, groups, is_removal=is_removal) for values in by_fill]
        return tuple(effect for effect, _ in pairs), tuple(shifts for _, shifts in pairs)

    def _score(self, candidate: CueCandidate, index: int, variants: Tensor) -> list[float]:
        """Return margins, then probabilities, of the unchanged image and its variants, for each fill."""
        original = self.images.prepare(index).tensor
        shape = variants.shape
        if candidate.changed_layer is None:
            logits = self.images.score(torch.cat([original[None], variants.reshape(-1, *shape[-3:])]))
        else:
            changed = self.images.score_activations(original, candidate.changed_layer, variants.flatten(0, -4))
            logits = torch.cat([self.images.score(original[None]), changed])
        return self.images.list_margins(logits, candidate.target, shape[0] if len(shape) == 5 else 1)

    def _compare_images(self, candidate: CueCandidate, row: int, random: np.random.Generator) -> list[float]:
        """Return the numbers of an image without the cue, and of other images that are changed alike, if it can be.

        These have the cue about as strongly: a change that takes one image back to what is usual would take another one
        away from it.
        """
        strengths = self.measure_strengths(candidate)
        others = [
            other for other, record in enumerate(self.records) if candidate.target not in (record.target, record.answer)
        ]
        nearest = sorted(others, key=lambda other: abs(strengths[other] - strengths[row]))[: 3 * COMPARED_IMAGES]
        chosen = [self.records[int(other)] for other in random.choice(nearest, COMPARED_IMAGES)]
        pairs = candidate.compare_moves(self.images, self.records[row], chosen, random)
        if pairs is None:
            return []
        scores = self.images.score(torch.cat([*pairs])).split(2)
        return self._join_changes([*scores], [candidate.target, *(other.answer for other in chosen)])

    def _compare_classes(self, candidate: CueCandidate, record: ImageRecord, variants: Tensor) -> list[float]:
        """Return the numbers of an image with the cue for the class, and for other classes that are no answer to it."""
        classes = sorted({one.target for one in self.records} - {candidate.target, record.answer, -1})
        count = min(COMPARED_IMAGES, len({one.target for one in self.records} - {-1}) - 2)
        if count < 1:
            return []
        random = np.random.default_rng(hash_parts(self.seed, candidate.key, "classes", record.index))
        chosen = [int(one) for one in random.choice(classes, count, replace=False)]
        logits = self.images.score(torch.cat([self.images.prepare(record.index).tensor[None], variants]))
        return self._join_changes([logits] * (1 + count), [candidate.target, *chosen])

    def _join_changes(self, scores: Sequence[Tensor], targets: Sequence[int]) -> list[float]:
        """Return margins, then probabilities, unchanged, changed, and changed as much as each control.

        Args:
            scores: The logits before and after, ``(2, K)``, for the candidate and for each control.
            targets: The class of each.
        """
        values = [
            torch.stack(self.images.measure_margins(logits, target)[:2])
            for logits, target in zip(scores, targets, strict=True)
        ]
        first, changes = values[0][:, :1], torch.stack([value[:, 1] - value[:, 0] for value in values], 1)
        return [float(value) for value in torch.cat([first, first + changes], 1).flatten()]

    def _summarize(
        self, values: NDArray[np.float64], groups: Sequence[int], *, is_removal: bool
    ) -> tuple[Effect, NDArray[np.float64]]:
        """Return the effect with a fill, and its shifts.

        Args:
            values: ``(margin or probability, image, unchanged and columns)``.
            groups: The group of each image.
            is_removal: True if the cue is removed.
        """
        (margins, probabilities), sign = values, -1 if is_removal else 1
        effects = sign * (margins[:, 1:] - margins[:, :1])
        changed = statistics.average_groups(((sign * margins[:, 1:]) > 0).astype(float), groups)
        shifts = statistics.average_groups(sign * (probabilities[:, 1:] - probabilities[:, :1]), groups)
        p = statistics.run_control_test(effects, groups, permutations=self.permutations, seed=self.seed)
        effect = Effect.summarize(len(margins), changed, shifts, p, self.seed)
        return effect, np.stack([shifts[:, 0], shifts[:, 1:].mean(1)], 1)


def hash_parts(*parts: object) -> int:
    """Return a number below 2^48 that these parts always have."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest(), "big")
