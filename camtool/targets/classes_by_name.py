"""Classes by their names: one by its label, several by a word such as "dog"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from camtool.arguments.message_parts import format_count, suggest_names
from camtool.errors import TargetError

# The number of similar labels that an error lists: about as many lines as a terminal shows at a glance. ImageNet has
# over a hundred dogs.
_MAX_SUGGESTIONS = 20


def find_label(name: str, labels: Sequence[str] | None) -> int:
    """Return the index of the class with this label; upper and lower case do not matter.

    Raises:
        TargetError: No labels are known, no class has this label, or several have it.
    """
    matches = list_labeled(name, _require(name, labels))
    if not matches:
        raise TargetError(_describe_unknown(name, labels or ()))
    if len(matches) > 1:
        raise TargetError(f"target_class {name!r} names the classes {matches}; pass one of these indices.")
    return matches[0]


def list_labeled(name: str, labels: Sequence[str]) -> list[int]:
    """Return the indices of the classes with exactly this label; upper and lower case do not matter."""
    return [i for i, label in enumerate(labels) if str(label).casefold() == name.casefold()]


def find_classes(word: str, labels: Sequence[str] | None) -> tuple[int, ...]:
    """Return the classes that a word stands for, in order.

    For ImageNet's labels these are the classes below it in WordNet, if :func:`read_imagenet_groups` has the word: most
    names of dogs do not say so. Otherwise they are the classes whose labels end with the word: for "cat" a tiger cat,
    and no cat flap. A label may be several names with commas between them.

    Raises:
        TargetError: No labels are known, the word is in none, or it is the name of one class and the end of others.
    """
    texts = [*map(str, _require(word, labels))]
    folded, groups = " ".join(word.casefold().split()), _find_groups(texts)
    if folded in groups:
        return groups[folded]
    is_end = re.compile(rf"(?:^|.*[\s-]){re.escape(folded)}$")
    ending = [i for i, text in enumerate(texts) if folded and any(map(is_end.match, _split(text)))]
    if not ending:
        raise TargetError(_describe_unknown(word, texts, groups))
    if len(ending) > 1 and any(folded in _split(texts[i]) for i in ending):
        listed = ", ".join(f"{texts[i]!r} ({i})" for i in ending)
        raise TargetError(
            f"target_class: the word {word!r} is ambiguous between {listed}; list what you mean, e.g. "
            f"Group([{ending[0]}, {ending[1]}])."
        )
    return tuple(ending)


def _require(name: str, labels: Sequence[str] | None) -> Sequence[str]:
    if labels is None:
        raise TargetError(f"target_class {name!r} is a name, but no labels are known; pass labels=[...] or an index.")
    return labels


def _split(label: str) -> list[str]:
    """Return the names in a label, e.g. "timber wolf" and "grey wolf", which Hugging Face separates by commas."""
    return [name.strip() for name in label.casefold().split(",")]


def _describe_unknown(name: str, labels: Sequence[str], groups: Iterable[str] = ()) -> str:
    """Return the error for a name that no label has, with similar groups or labels."""
    texts, word = [*map(str, labels)], name.casefold()
    members = _find_groups(texts).get(word, ())
    hint = f" 'group:{word}' is {format_count(len(members), 'class')} together." if members else ""
    similar = suggest_names(name, groups) or _suggest_labels(name, texts)
    return f"target_class {name!r} is not among the {len(texts)} labels.{similar}{hint}"


def _suggest_labels(name: str, labels: Sequence[str]) -> str:
    """Return a sentence with the labels that contain a word, and their indices, or with those of similar spelling."""
    word = re.escape(name.casefold().strip())
    starts = [i for i, label in enumerate(labels) if word and re.search(rf"\b{word}", label.casefold())]
    # Words that start with the name come after whole words: for "cat" first "tiger cat", then "catamaran".
    indices = sorted(starts, key=lambda i: re.search(rf"\b{word}\b", labels[i].casefold()) is None)
    if len(indices) < 2:
        return suggest_names(name, [labels[i] for i in indices] or labels)
    listed = ", ".join(f"{labels[i]} ({i})" for i in indices[:_MAX_SUGGESTIONS])
    more = f", and {len(indices) - _MAX_SUGGESTIONS} more" if len(indices) > _MAX_SUGGESTIONS else ""
    return f" Labels with {name!r}: {listed}{more}; pass one of these labels or indices."


# --------------------------------------------------------------------------------------------------- ImageNet's groups

_NAMES = ("goldfish", "bald eagle", "flamingo", "lion", "zebra", "school bus", "orange", "volcano")
# Classes that all lists of ImageNet's labels name alike. Labels that have them in these places are ImageNet's.
_LANDMARKS = dict(zip((1, 22, 130, 291, 340, 779, 950, 980), _NAMES, strict=True))


def _find_groups(labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Return the groups of ImageNet's classes by word, if these labels are ImageNet's, maybe behind a background."""
    first = len(labels) - 1000
    is_imagenet = first in (0, 1) and all(_split(labels[first + i])[0] == name for i, name in _LANDMARKS.items())
    groups = read_imagenet_groups() if is_imagenet else {}
    return {word: tuple(first + index for index in members) for word, members in groups.items()} if first else groups


@cache
def read_imagenet_groups() -> dict[str, tuple[int, ...]]:
    """Return word → the classes of ImageNet below it in WordNet 3.0, in the usual order of the thousand classes.

    ImageNet's classes were chosen from WordNet's synsets. ``tools/make_imagenet_groups.py`` makes the table. No word in
    it is the label of a class.
    """
    table = json.loads((Path(__file__).parent / "imagenet_groups.json").read_text(encoding="utf-8"))
    groups = {}
    for word, ranges in table["groups"].items():
        ends = [part.split("-") for part in ranges.split()]
        groups[word] = tuple(index for end in ends for index in range(int(end[0]), int(end[-1]) + 1))
    return groups
