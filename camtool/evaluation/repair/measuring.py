"""The numbers of a repair: effects and accuracies of two models, on the half that the repair did not learn from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.evaluation.audit.report.page import resize, to_pixels
from camtool.evaluation.audit.result import WorstGroup
from camtool.evaluation.audit.setup import AuditRun
from camtool.evaluation.audit.statistics import average_groups, compute_share
from camtool.evaluation.audit.trials import LEAST_GROUPS, Outcome, measure_size
from camtool.evaluation.leaderboard.table import Interval, bootstrap_mean
from camtool.evaluation.repair.result import Accuracy, ChangedAnswer, CueRepair, Effects, Repair
from camtool.evaluation.repair.variants import Cue, MendedImages, ReadVariants, Variant
from camtool.rendering.image_writing import encode_image

# Answers that became right, and those that became wrong, of which there are pictures.
_PICTURES = 12

# Draws of groups for the interval of a change.
_DRAWS = 2000


class Answer(NamedTuple):
    """The answers of both models to an image of the confirmation half, as it is or changed.

    Attributes:
        variant: The image.
        answers: The class with the highest score, before and after; of several labels the one that counts, or -1.
        share_right: ``(2,)``, the share of right answers: of several labels that of the cue, or of all.
    """

    variant: Variant
    answers: tuple[int, int]
    share_right: NDArray[np.float64]


def list_answers(tested: ReadVariants, before: Tensor, after: Tensor) -> list[Answer]:
    """Return the answers to images.

    Args:
        tested: The images.
        before: ``(M, K)``, the logits of the audited model.
        after: Those of the mended one.
    """
    sides = [_judge(tested, logits) for logits in (before, after)]
    answers, shares = (torch.stack(parts, 1) for parts in zip(*sides, strict=True))
    triples = zip(tested.variants, answers.tolist(), shares.double().numpy(), strict=True)
    return [Answer(variant, (pair[0], pair[1]), share) for variant, pair, share in triples]


def _judge(tested: ReadVariants, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the answer to each image, and the share of it that is right, ``(M,)`` each."""
    labels = tested.examples.labels
    if not tested.examples.is_independent:
        answers = logits.argmax(1)
        return answers, labels.gather(1, answers[:, None])[:, 0]
    targets = torch.tensor([variant.target for variant in tested.variants])
    rows, columns = torch.arange(len(logits)), targets.clamp_min(0)
    is_right = ((logits > 0) == (labels > 0)).double()
    has_cue = torch.tensor([variant.cue is not None for variant in tested.variants])
    answers = torch.where(logits[rows, columns] > 0, targets, -1)
    return answers, torch.where(has_cue, is_right[rows, columns], is_right.mean(1))


def measure(run: AuditRun, cues: Sequence[Cue], answers: Sequence[Answer], mended: MendedImages) -> Repair:
    """Return the effects and the accuracies of both models.

    Args:
        run: The audit.
        cues: The cues.
        answers: Those to the images of the half that the repair did not learn from.
        mended: The images with the mended model.
    """
    plain = [answer for answer in answers if answer.variant.cue is None]
    with_cue, without_cue = _split_by_cue(cues, answers)
    groups = {**_group(run, with_cue, "with a cue"), **_group(run, without_cue, "without a cue")}
    by_group = {name: _compare(run, chosen) for name, chosen in groups.items()}
    return Repair(
        cues=tuple(_measure_cue(cue, mended) for cue in cues),
        accuracy=_compare(run, plain),
        with_cue=_compare(run, with_cue),
        without_cue=_compare(run, without_cue),
        by_class={name: _compare(run, chosen) for name, chosen in _group(run, plain, "", least=1).items()},
        worst_groups=tuple(_find_worst(by_group, side) for side in ("before", "after")),
        changed=tuple(_describe_changes(run, answers)),
        tested=len(plain),
    )


def _measure_cue(cue: Cue, mended: MendedImages) -> CueRepair:
    """Return the effects of a cue before and after, on the same images."""
    after = replace(cue.tested, images=mended, remember=lambda _, compute: compute())
    finding, (old, new) = cue.finding, [tester.test(cue.candidate) for tester in (cue.tested, after)]
    change, sides = compare_sizes(old.shifts, new.shifts, cue.tested.seed), (_choose_effects(old), _choose_effects(new))
    return CueRepair(finding.key, finding.kind, finding.label, finding.name, *sides, change)


def _choose_effects(outcome: Outcome) -> Effects:
    """Return the effects of a cue; of removing it by the fill that shows it more, in either direction."""
    removal = max(outcome.removals, key=lambda effect: effect.size, default=None)
    return Effects(removal, outcome.transplants)


def compare_sizes(
    before: Sequence[NDArray[np.float64]], after: Sequence[NDArray[np.float64]], seed: int = 0
) -> Interval:
    """Return the change of the size of the largest effect, see :attr:`Effect.size`, paired: with bootstrap interval.

    Both models answer the same photos, so the same groups are drawn for both.

    Args:
        before: ``(G, 2)`` for each effect: the change of the probability in each group by the cue and by its controls.
        after: Those of the mended model.
        seed: The seed of the interval.
    """
    if not before:
        return Interval(0.0, math.nan, math.nan)
    sizes = np.zeros((2, 1 + _DRAWS))
    for pair in zip(before, after, strict=True):
        shifts, count = np.stack(pair), len(pair[0])
        # The groups as they are, then those that are drawn: the same ones for all fills.
        drawn = np.random.default_rng(seed).integers(count, size=(_DRAWS, count))
        means = shifts[:, np.concatenate([np.arange(count)[None], drawn])].mean(2)
        sizes = np.maximum(sizes, measure_size(means[..., 0], means[..., 1]))
    changes = sizes[1] - sizes[0]
    return Interval(float(changes[0]), *np.quantile(changes[1:], (0.025, 0.975)).tolist())


def _split_by_cue(cues: Sequence[Cue], answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """Return the answers to images which have one of the cues or are given it, and those to images without any."""
    present = set[int]().union(*(cue.list_present(cue.tested) for cue in cues))
    sides: tuple[list[Answer], list[Answer]] = [], []
    for answer in answers:
        variant = answer.variant
        is_without = variant.record.index not in present if variant.cue is None else variant.edit == "without it"
        sides[is_without].append(answer)
    return sides


def _compare(run: AuditRun, answers: Sequence[Answer]) -> Accuracy:
    """Return the accuracies of both models on images, with intervals over groups, and their paired difference."""
    groups = [answer.variant.group for answer in answers]
    shares = average_groups(np.reshape([answer.share_right for answer in answers], (-1, 2)), groups)
    before, after = (compute_share(float(side.sum()), len(side)) for side in shares.T)
    return Accuracy(len(answers), before, after, bootstrap_mean(shares[:, 1] - shares[:, 0], run.seed))


def _group(run: AuditRun, answers: Sequence[Answer], ending: str, least: int = LEAST_GROUPS) -> dict[str, list[Answer]]:
    """Return the answers by class; classes with few images are one group."""
    by_class = dict[str, list[Answer]]()
    for answer in answers:
        by_class.setdefault(run.name_class(answer.variant.record.target), []).append(answer)
    groups = dict[str, list[Answer]]()
    for label, chosen in sorted(by_class.items()):
        name = f"'{label}'" if len({answer.variant.group for answer in chosen}) >= least else "other classes"
        groups.setdefault(f"{name} {ending}".strip(), []).extend(chosen)
    return groups


def _find_worst(groups: Mapping[str, Accuracy], side: Literal["before", "after"]) -> WorstGroup:
    """Return the group with the lowest accuracy of one of the models."""
    sides: dict[str, Interval] = {name: getattr(accuracy, side) for name, accuracy in groups.items()}
    name = min(groups, key=lambda name: (sides[name].mean, -groups[name].images))
    return WorstGroup(name, sides[name], groups[name].images)


def _describe_changes(run: AuditRun, answers: Sequence[Answer]) -> Iterator[ChangedAnswer]:
    """Yield the answers that became right, and those that became wrong; the first of each with a picture."""
    drawn = {True: 0, False: 0}
    for variant, (first, second), (before, after) in answers:
        if before == after:
            continue
        is_better = bool(after > before)
        drawn[is_better] += 1
        yield ChangedAnswer(
            image=run.images.name(variant.record.index),
            label=run.name_class(variant.record.target),
            edit=variant.edit if variant.cue is None else f"{variant.edit}: {variant.cue.finding.name}",
            answers=(run.name_class(first), run.name_class(second)),
            is_better=is_better,
            picture=_draw(run, variant) if drawn[is_better] <= _PICTURES else b"",
        )


def _draw(run: AuditRun, variant: Variant) -> bytes:
    """Return an image as the model sees it, as a JPEG file."""
    tensor = variant.make(run.images)
    assert tensor is not None  # it was answered
    return encode_image(resize(to_pixels(run.images.prepare(variant.record.index), tensor)), ".jpg", quality=88)
