"""Groups of classes as targets: why a dog, why a dog and not a wolf, why this dog and not another one.

Elisha et al., arXiv 2511.13081, sort such questions by contrast (why this, or why this and not that) and by granularity
(a class, or a group of classes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Integral
from typing import Any, TypeAlias

from torch import Tensor

from camtool.arguments.explain_arguments import check_class_index
from camtool.arguments.message_parts import format_count
from camtool.errors import TargetError
from camtool.outputs.class_scores import Link, compute_class_scores, compute_probabilities, find_predicted
from camtool.outputs.detections import Detections
from camtool.targets.base_target import (
    ImageOutput,
    ResolvedTarget,
    ScoreContext,
    Target,
    Traits,
    flatten_positions,
    get_class_label,
)
from camtool.targets.class_targets import ClassScore, Probability
from camtool.targets.classes_by_name import find_classes, find_label, list_labeled
from camtool.targets.contrast_targets import Contrast
from camtool.targets.place_targets import Region

# A word that stands for several classes, or a list of indices, labels and words.
Classes: TypeAlias = str | int | Sequence[str | int]

# The number of classes that a label names; all of them are in ``Explanation.groups``.
_MAX_NAMED = 3

# Largest difference of a sum of probabilities from 1, in half precision.
_SUM_ROUNDING = 1e-3


@dataclass(frozen=True)
class Group(ResolvedTarget):
    """Several classes as one: the logarithm of the sum of the exponentials of their logits.

    With a softmax the probability of the group is the sum of those of its classes. The score minus that of all classes
    is its logarithm, and the score minus that of another group is the logarithm of the ratio of both. Each class counts
    by its share of the group's probability. With independent labels the score is a smooth maximum.

        Group("dog")                            # why a dog?
        Group("dog", against="wolf")            # why a dog and not a wolf?
        Group(["Siberian husky", "malamute"])

    ImageNet's classes are grouped as in WordNet. Elsewhere a word stands for the classes whose labels end with it. It
    is refused if no label does, and if it is a label itself besides. :attr:`camtool.Explanation.groups` lists the
    classes. For score planes ``(N, K, *size)`` the scores are summed over the positions where the model predicts one
    of the classes; if there is none, over all. If the model returns probabilities, these are summed.

    Attributes:
        classes: A word, a class, or a list of indices, labels and words.
        against: Others, whose score is subtracted. If they hold all of ``classes`` and more, these are left out of
            them: ``Group("malamute", against="dog")`` is against all other dogs.
    """

    classes: Classes
    against: Classes | None = None

    traits = Traits(reads="scores", is_group=True)

    def __post_init__(self) -> None:
        for name, value in (("classes", self.classes), ("against", self.against)):
            if not (name == "against" and value is None):
                object.__setattr__(self, name, _check_classes(f"Group's {name}", value))

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the score of the classes in this image.

        Raises:
            TargetError: A class does not exist, a word is unknown or ambiguous, a class is there twice, no class is
                left out, or the model is a detector.
        """
        scores = _require_scores("Group", image)
        members, text = _find_members("Group's classes", self.classes, image.labels, len(scores))
        rivals: tuple[int, ...] = ()
        if self.against is not None:
            rivals, against = self._find_rivals(self.against, members, image.labels, len(scores))
            text = f"{text} rather than {against}"
        elif len(members) == len(scores):
            raise TargetError(
                f"Group's classes are all {len(scores)} classes of the model, so nothing can speak for another one; "
                "leave some out."
            )
        mask = None
        if scores.ndim >= 3:
            is_predicted = find_predicted(scores, image.link)[list(members)].any(0)
            mask = is_predicted if is_predicted.any() else None
        return GroupScore(members, rivals, text, image.link or "softmax", mask)

    def _find_rivals(
        self, classes: Classes, members: tuple[int, ...], labels: Sequence[str] | None, count: int
    ) -> tuple[tuple[int, ...], str]:
        """Return the classes whose score is subtracted, and a label for all of them."""
        rivals, text = _find_members("Group's against", classes, labels, count)
        both = [index for index in members if index in rivals]
        if len(both) == len(members) < len(rivals):
            others = tuple(index for index in rivals if index not in both)
            return others, f"the other {len(others)} of {text}"
        if both:
            named = _join_texts([get_class_label(index, labels) for index in both], "and")
            raise TargetError(f"Group's classes and against both hold {named}; leave out what is in both.")
        return rivals, text

    def __str__(self) -> str:
        return f"Group({self.classes!r}{'' if self.against is None else f', against={self.against!r}'})"


# eq=False: masks have no single truth value, so == would fail.
@dataclass(frozen=True, eq=False)
class GroupScore(Target):
    """The score of a group of classes, minus that of others; :class:`Group` resolves to it.

    Attributes:
        members: The classes.
        rivals: The others.
        label: The label of the explanation.
        of: See :class:`camtool.targets.ClassScore`; ``"identity"`` sums probabilities.
        mask: ``(*size)``, True at the positions of score planes that count; ``None`` for all.
    """

    members: tuple[int, ...]
    rivals: tuple[int, ...]
    label: str
    of: Link = "softmax"
    mask: Tensor | None = field(default=None, repr=False)

    @property
    def traits(self) -> Traits:
        """A class score if nothing is subtracted; a place if only some positions count."""
        has_place, is_group = self.mask is not None, bool(self.rivals) or len(self.members) > 1
        is_class_score = not has_place and not self.rivals
        return Traits(has_place=has_place, is_class_score=is_class_score, is_group=is_group, reads="scores")

    def __call__(self, output: Any) -> Tensor:
        values = compute_class_scores(output, self.of)
        score = self._join(values, self.members)
        score = score - self._join(values, self.rivals) if self.rivals else score
        return flatten_positions(score if self.mask is None else score * self.mask.to(score)).sum(1)

    def _join(self, values: Tensor, classes: tuple[int, ...]) -> Tensor:
        """Return the scores ``(N, *size)`` of some classes together."""
        chosen = values[:, list(classes)]
        return chosen.sum(1) if self.of == "identity" else chosen.logsumexp(1)

    @classmethod
    def score_rows(cls, targets: Sequence[Target], output: Any, images: Sequence[int]) -> Tensor | None:
        """Return the scores of one group in several images in one step."""
        own = [target for target in targets if isinstance(target, GroupScore) and target.mask is None]
        if len(own) < len(targets) or len({(target.members, target.rivals, target.of) for target in own}) > 1:
            return None
        return own[0](output)[list(images)]

    def get_class_index(self) -> int | None:
        """Return the class of a group of one; a group of several has none."""
        return self.members[0] if len(self.members) == 1 else None

    def list_groups(self, labels: Sequence[str] | None) -> tuple[Mapping[int, str], ...]:
        """Return the classes of the group, and the others if there are any."""
        groups = (self.members, self.rivals) if self.rivals else (self.members,)
        return tuple({index: get_class_label(index, labels) for index in group} for group in groups)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the label."""
        return self.label

    def get_probability(self, context: ScoreContext) -> float | None:
        """Return the sum of the classes' probabilities; ``None`` if they are not those of classes that exclude others.

        For score planes it is the mean over the positions that count.
        """
        values = context.probabilities
        if values is None:
            return None
        excludes = context.link == "softmax" or bool(abs(values.sum(0) - 1).max() <= _SUM_ROUNDING)
        if len(self.members) > 1 and (context.link == "sigmoid" or not excludes):
            return None
        joint = values[list(self.members)].sum(0)
        return float(joint.mean() if self.mask is None else joint[self.mask.cpu().numpy()].mean())

    def find_rivals(self, image: ImageOutput, count: int) -> Sequence[Target]:
        """Return the classes outside of the group with the highest scores; on planes those of the largest areas."""
        scores, beyond = image.prediction, count + len(self.members)
        if not isinstance(scores, Tensor) or self.rivals:
            return ()
        first = self.members[0]
        strongest = ClassScore(first, self.of) if self.mask is None else Region(first, self.mask, self.of)
        ranked: Sequence[Target] = strongest.find_rivals(image, beyond)
        return [rival for rival in ranked if rival.get_class_index() not in self.members][:count]

    def to_probability(self) -> Target | None:
        """Return the probability of the group, if its classes exclude others and nothing is subtracted."""
        if self.rivals or self.mask is not None or len(self.members) == 1:
            return None if self.rivals or self.mask is not None else Probability(self.members[0], self.of)
        return None if self.of == "sigmoid" else GroupProbability(self.members, self.of)


@dataclass(frozen=True)
class GroupProbability(Target):
    """The sum of the probabilities of some classes, on average over all positions.

    Attributes:
        members: The classes.
        of: See :class:`camtool.targets.Probability`.
    """

    members: tuple[int, ...]
    of: Link = "softmax"

    traits = Traits(reads="scores")

    def __call__(self, output: Any) -> Tensor:
        return flatten_positions(compute_probabilities(output, self.of)[:, list(self.members)].sum(1)).mean(1)


@dataclass(frozen=True)
class Within(ResolvedTarget):
    """The strongest class of a group against the second strongest one of it: why this dog and not that one?

    Both are chosen once for each image, by the logits, before any method runs.

    Attributes:
        classes: As for :class:`Group`; two or more.
    """

    classes: Classes

    traits = Traits(reads="scores", is_group=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _check_classes("Within's classes", self.classes))

    def resolve_on(self, image: ImageOutput) -> Contrast:
        """Return the contrast of both.

        Raises:
            TargetError: As for :class:`Group`; or the group has one class, or the model returns score planes.
        """
        scores = _require_scores("Within", image)
        members, _ = _find_members("Within's classes", self.classes, image.labels, len(scores))
        if len(members) < 2 or scores.ndim != 1:
            got = f"scores {tuple(scores.shape)}" if scores.ndim != 1 else get_class_label(members[0], image.labels)
            raise TargetError(f"Within compares two classes of a group by their scores (K,), got {got}; use Contrast.")
        first, second = scores[list(members)].topk(2).indices.tolist()
        return Contrast(members[first], members[second], link=image.link or "softmax")


def parse_group(text: str, labels: Sequence[str] | None) -> Target | None:
    """Return the target that a text asks for, or ``None`` for a label and any other text.

    ``"group:dog"`` or ``"group:Siberian husky, malamute"`` is a :class:`Group`, ``"within:dog"`` is :class:`Within`,
    and ``"husky vs wolf"`` a group against another; each side is a label, an index, a word or a list with commas.

    Raises:
        TargetError: There are more than two sides.
    """
    if labels is not None and list_labeled(text, labels):
        return None
    sides = re.split(r"\s+vs\.?\s+", text.strip(), flags=re.IGNORECASE)
    if len(sides) > 2:
        raise TargetError(f"target_class {text!r} has {len(sides)} sides; compare two, e.g. 'husky vs wolf'.")
    if len(sides) == 2:
        return Group(_parse_side(sides[0], labels), against=_parse_side(sides[1], labels))
    kind, colon, rest = text.partition(":")
    if not colon or kind.strip() not in ("group", "within"):
        return None
    entries = _parse_entries(rest)
    return (Group if kind.strip() == "group" else Within)(entries[0] if len(entries) == 1 else entries)


def _parse_side(text: str, labels: Sequence[str] | None) -> Classes:
    """Return a side of a comparison: a label as it is everywhere, else a word or a list."""
    if text.startswith("group:"):
        (entry, *others) = _parse_entries(text.removeprefix("group:"))
        return (entry, *others) if others else entry
    return (text,) if labels is not None and list_labeled(text, labels) else _parse_entries(text)


def _parse_entries(text: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.strip().isdecimal() else part.strip() for part in text.split(","))


def _check_classes(name: str, classes: Any) -> Classes:
    """Return a word or a class as it is, and a list as a tuple.

    Raises:
        TargetError: It is something else, or empty.
    """
    entries = classes if isinstance(classes, (list, tuple, range)) else [classes]
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, (str, Integral)):
            raise TargetError(f"{name} takes a word, or indices and labels in a list, got {type(entry).__name__}.")
    if not entries or not all(str(entry).strip() for entry in entries):
        raise TargetError(f"{name} is empty; pass a word such as 'dog', or indices and labels in a list.")
    plain = tuple(entry if isinstance(entry, str) else int(entry) for entry in entries)
    return plain if entries is classes else plain[0]


def _require_scores(name: str, image: ImageOutput) -> Tensor:
    if isinstance(image.prediction, Detections):
        raise TargetError(f"{name} is about the scores of a classifier, and a detection has one class; pass a class.")
    return image.prediction


def _find_members(name: str, classes: Classes, labels: Sequence[str] | None, count: int) -> tuple[tuple[int, ...], str]:
    """Return the indices of the classes in increasing order, and a label for all of them.

    Raises:
        TargetError: A class does not exist or is there twice, or a word is unknown or ambiguous.
    """
    if isinstance(classes, str):
        by_entry: list[tuple[str | int, tuple[int, ...]]] = [(classes, find_classes(classes, labels))]
    else:
        listed = [classes] if isinstance(classes, int) else classes
        by_entry = [(entry, _find_entry(entry, labels)) for entry in listed]
    members = sorted(index for _, indices in by_entry for index in indices)
    for index in (members[0], members[-1]):
        check_class_index(index, count)
    twice = [index for index, following in pairwise(members) if index == following]
    if twice:
        raise TargetError(f"{name} hold {get_class_label(twice[0], labels)} ({twice[0]}) twice; name each class once.")
    return tuple(members), _join_texts([_name_entry(entry, indices, labels) for entry, indices in by_entry], "or")


def _name_entry(entry: str | int, indices: tuple[int, ...], labels: Sequence[str] | None) -> str:
    if len(indices) == 1:
        return get_class_label(indices[0], labels)
    return f"{entry} ({format_count(len(indices), 'class')})"


def _join_texts(texts: Sequence[str], word: str) -> str:
    """Return a list of texts as one, with the number of those that are too many."""
    shown = texts if len(texts) <= _MAX_NAMED else [*texts[: _MAX_NAMED - 1], f"{len(texts) - _MAX_NAMED + 1} more"]
    return f"{', '.join(shown[:-1])} {word} {shown[-1]}" if len(shown) > 1 else shown[0]


def _find_entry(entry: str | int, labels: Sequence[str] | None) -> tuple[int, ...]:
    """Return the classes of one entry of a list: a label as it is everywhere, else those of a word."""
    if not isinstance(entry, str):
        return (int(entry),)
    is_label = labels is not None and bool(list_labeled(entry, labels))
    return (find_label(entry, labels),) if is_label else find_classes(entry, labels)
