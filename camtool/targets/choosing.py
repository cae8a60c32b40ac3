"""From what a person asks for to targets, settled on what the model says of the very image."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeAlias

from torch import Tensor

from camtool.errors import TargetError, format_count, near
from camtool.geometry import Geometry
from camtool.outputs import Answer, Detections, Link, check_class, class_scores
from camtool.targets.about import class_of, label_of
from camtool.targets.base import Target
from camtool.targets.checks import check_whole
from camtool.targets.classes import ClassScore, Probability
from camtool.targets.contrasts import Finer
from camtool.targets.detections import Box, Detected, Detection, nothing_found
from camtool.targets.places import Point, Region
from camtool.targets.values import Similarity, Value
from camtool.targets.wrappers import Custom, Negated

__all__ = ["Top", "Want", "choose", "from_texts"]


@dataclass(frozen=True)
class Top:
    """Not one target but what the model itself ranks highest, as up to ``k`` targets.

    These are classes; of a segmenter the classes that cover most of the picture, background last; of a detector the
    detections that it is surest of.
    """

    k: int = 1


Want: TypeAlias = int | str | Top | Target | Callable[[Any], Tensor] | None
"""What a person may ask of one image: its top class, a class by index or name, the top k, a target, a callable."""


def choose(
    want: Want,
    answer: Answer,
    labels: Sequence[str] | None,
    geometry: Geometry | None = None,
    link: Link | None = "softmax",
    class_vectors: Callable[[], Tensor | None] | None = None,
) -> list[Target]:
    """The targets that a person's wish comes to on one image; only :class:`Top` gives more than one.

    What ``None``, an index and a name mean follows from what the model returns:

    * scores ``(K,)``: the class' logit; ``None`` is the highest.
    * a single score: two classes, 1 for the score itself and 0 for minus it; ``None`` is the one that its sign says.
      A regression looks the same, so ask for :class:`camtool.targets.Value`. A single probability: 1 for itself and 0
      for the rest.
    * an embedding ``(D,)``: one of its dimensions; ``None`` is the highest.
    * planes ``(K, h, w)``: the class where the model sees it; where it sees it nowhere, the class' logits summed over
      the picture. ``None`` is the class that covers most of the picture, the background only where nothing else is
      seen. A class is background if its label says so, and class 0 if there are no labels.
    * detections: the one of that class that the model is surest of; ``None`` is the surest of all.

    Args:
        want: See :data:`Want`.
        answer: What the model said of that image.
        labels: The names of the K classes.
        geometry: How the photo, on which a person points at places, became the model's input.
        link: How scores become probabilities; ``None`` where the answer is an embedding.
        class_vectors: Returns the weights of the model's head, ``(K, C)``, or ``None`` if it has no linear one. Only
            called where a target compares classes by them.

    Raises:
        TargetError: The class does not exist, its name is unknown or belongs to several, or no class can be ranked.
        NothingFoundError: The detector found nothing of the kind in this image.
    """
    if isinstance(answer, Tensor):
        if link is None:
            _check_that_it_needs_no_class(want, answer)
        answer = class_scores(answer[None], link or "identity")[0]
    return [_linked(target, link) for target in _chosen(want, answer, labels, geometry, class_vectors)]


def from_texts(wants: Sequence[Any], encode: Callable[[Sequence[str]], Tensor]) -> list[Any]:
    """What is asked of a model that compares pictures with texts, with each text as its similarity to the picture.

    Args:
        wants: For each image a wish, or a list of them.
        encode: From T texts to their embeddings, ``(T, D)``; it is asked once.

    Returns:
        The wishes, in the same order and nesting.

    Raises:
        TargetError: A class is asked for, or nothing, of a model that has no classes.
    """
    asked = [each for want in wants for each in (want if isinstance(want, (list, tuple)) else [want])]
    for each in asked:
        if each is None or isinstance(each, (Integral, Tensor, Top)) or class_of(each) is not None:
            raise TargetError(
                f"target_class is {each!r}, but this model compares pictures with texts and has no classes; say in "
                "words what to look for: 'a photo of a dog'."
            )
    texts = list(dict.fromkeys(each for each in asked if isinstance(each, str)))
    embeddings = encode(texts) if texts else ()
    known = {text: Similarity(embedding, text) for text, embedding in zip(texts, embeddings, strict=True)}

    def meant(each: Any) -> Any:
        return known[each] if isinstance(each, str) else each

    return [list(map(meant, want)) if isinstance(want, (list, tuple)) else meant(want) for want in wants]


# ------------------------------------------------------------------------------- from what is asked to targets


def _chosen(
    want: Any,
    answer: Answer,
    labels: Sequence[str] | None,
    geometry: Geometry | None,
    class_vectors: Callable[[], Tensor | None] | None,
) -> list[Target]:
    """See :func:`choose`, whose user may give anything; the targets do not know yet how scores become probabilities."""
    if want is None:
        want = Top(1)
    if isinstance(want, Top):
        return _ranked(want, answer, labels, geometry)
    if isinstance(want, str):
        want = _index_of(want, labels)
    if isinstance(want, Tensor) and want.ndim == 0:
        want = want.item()  # a float is refused below
    if isinstance(want, Integral) and not isinstance(want, bool):  # numpy's integers are Integral too
        return [_of_index(int(want), answer, labels, geometry)]
    if isinstance(want, Target):
        return [_settled(_compared(want, class_vectors), answer, labels, geometry)]
    if callable(want):
        return [Custom(want)]
    raise TargetError(
        f"target_class must be None, an index, a class name, a callable or a target, got {type(want).__name__}."
    )


def _ranked(top: Top, answer: Answer, labels: Sequence[str] | None, geometry: Geometry | None) -> list[Target]:
    """What the model ranks highest, in that order."""
    check_whole("Top's k", top.k)
    if top.k < 1:
        raise TargetError(f"target_class {top}: k must be 1 or more.")
    if isinstance(answer, Detections):
        if not len(answer):
            raise nothing_found("the model found nothing in this image.")
        return [Detection(n).settled(answer, geometry) for n in range(min(top.k, len(answer)))]
    if _is_planes(answer):
        return [_of_class(index, answer) for index in _by_cover(answer, labels)[: top.k]]
    if answer.ndim != 1:
        raise TargetError(
            f"target_class=None asks for the top class, but the model's output for an image has shape "
            f"{tuple(answer.shape)}, not (K,); pass a class index, or a callable from that output to a number."
        )
    return [ClassScore(index) for index in answer.argsort(descending=True).tolist()[: top.k]]


def _index_of(name: str, labels: Sequence[str] | None) -> int:
    """The class that has this name, in whatever case."""
    if labels is None:
        raise TargetError(f"target_class {name!r} is a name, but no labels are known; pass labels=[...] or an index.")
    matches = [i for i, label in enumerate(labels) if str(label).casefold() == name.casefold()]
    if not matches:
        raise TargetError(
            f"target_class {name!r} is not among the {len(labels)} labels.{_similar_labels(name, [*map(str, labels)])}"
        )
    if len(matches) > 1:
        raise TargetError(f"target_class {name!r} names the classes {matches}; pass one of these indices.")
    return matches[0]


_MOST_LISTED = 20
"""The most labels that a message lists."""


def _similar_labels(name: str, labels: Sequence[str]) -> str:
    """Return a sentence with the labels that contain a word, and their indices, or with those spelled like it."""
    word = name.casefold().strip()
    starts = [i for i, label in enumerate(labels) if word and re.search(rf"\b{re.escape(word)}", label.casefold())]
    whole = [i for i in starts if re.search(rf"\b{re.escape(word)}\b", labels[i].casefold())]
    found = [*whole, *(i for i in starts if i not in whole)]
    if len(found) < 2:
        return near(name, [labels[i] for i in found] or labels)
    listed = ", ".join(f"{labels[i]} ({i})" for i in found[:_MOST_LISTED])
    more = f", and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
    return f" Labels with {name!r}: {listed}{more}; ask for one by its name or its index."


def _of_index(index: int, answer: Answer, labels: Sequence[str] | None, geometry: Geometry | None) -> Target:
    """A class on one image, whatever the model said of it."""
    if isinstance(answer, Detections):
        return _surest_of_class(index, answer, labels, geometry)
    return _of_class(index, answer)


def _surest_of_class(
    index: int, found: Detections, labels: Sequence[str] | None, geometry: Geometry | None
) -> Detected:
    """The detection of a class that the model is surest of in one image."""
    if index < 0 or (labels is not None and index >= len(labels)):
        known = "classes count from 0" if labels is None else f"labels has {format_count(len(labels), 'name')}"
        raise TargetError(f"target_class {index} does not exist: {known}.")
    of_class = found.of_class(index)
    if not len(of_class):
        raise nothing_found(f"the model found no {label_of(index, labels)} in this image.")
    return Detection().settled(of_class, geometry)


def _of_class(index: int, values: Tensor) -> ClassScore | Region:
    """A class' score in one image, ``(K, *size)``; in planes its score where the model sees it, if it does."""
    check_class(index, len(values))
    if not _is_planes(values):
        return ClassScore(index)
    seen = values.argmax(0) == index
    return Region(index, seen) if seen.any() else ClassScore(index)


def _is_planes(answer: Tensor) -> bool:
    """Whether one image's scores ``(K, *size)`` are of places."""
    return answer.ndim >= 3


def _by_cover(planes: Tensor, labels: Sequence[str] | None) -> list[int]:
    """The classes that the model sees, that which covers most of the picture first, background last."""
    places = planes.argmax(0).flatten().bincount(minlength=len(planes)).tolist()
    seen = [index for index in range(len(planes)) if places[index]]
    return sorted(seen, key=lambda index: (_is_background(index, labels), -places[index]))


def _is_background(index: int, labels: Sequence[str] | None) -> bool:
    """Whether a class is what is left of a picture; without labels it is the first, as models mostly have it."""
    if labels is None or index >= len(labels):
        return index == 0
    return "background" in labels[index].casefold()


# ------------------------------------------------------------------------- what targets leave to image and model


def _compared(target: Target, class_vectors: Callable[[], Tensor | None] | None) -> Target:
    """Return the target; :class:`Finer` with the classes that the model's head holds for the most similar ones."""
    if isinstance(target, Negated):
        return Negated(_compared(target.target, class_vectors))
    if not isinstance(target, Finer) or class_vectors is None or target.similar is not None:
        return target
    vectors = class_vectors()
    return target if vectors is None else target.compared_by(vectors)


def _settled(target: Target, answer: Answer, labels: Sequence[str] | None, geometry: Geometry | None) -> Target:
    """The target with all decided that it leaves to what the model said of the image itself."""
    if isinstance(target, Negated):
        return Negated(_settled(target.target, answer, labels, geometry))
    if isinstance(answer, Detections):
        if isinstance(target, (Box, Detection)):
            return target.settled(answer, geometry)
        if isinstance(target, (ClassScore, Probability)):
            return _surest_of_class(target.index, answer, labels, geometry)
        return target
    if isinstance(target, Finer):
        return target.settled(answer)
    if isinstance(target, Point):
        return target.settled(answer, geometry)
    if isinstance(target, Region):
        check_class(target.class_index, len(answer))
        return Region(target.class_index, target.over(answer[target.class_index], geometry))
    index = target.get_class_index()
    if index is not None:
        check_class(index, len(answer))
    return target


def _linked(target: Target, link: Link | None) -> Target:
    """The target with what it needs to know of how the model's scores become probabilities."""
    if isinstance(target, Negated):
        return Negated(_linked(target.target, link))
    if link is None:
        return Value(target.index, f"dimension {target.index}") if isinstance(target, ClassScore) else target
    if isinstance(target, (ClassScore, Region)) or (isinstance(target, Probability) and link == "identity"):
        return replace(target, of=link)
    return target


def _check_that_it_needs_no_class(want: Want, features: Tensor) -> None:
    """See that what is asked of an embedding ``(D,)``, or of features that have more axes, is not about a class."""
    if class_of(want) is not None:
        raise TargetError(
            f"target_class is {want}, but this model returns an embedding and has no classes; ask for one of its "
            "dimensions, Value(3), or how near it is to another embedding, Similarity(embedding)."
        )
    if features.ndim > 1 and (want is None or isinstance(want, (Integral, Top))):
        raise TargetError(
            f"target_class is {want!r}, but this model has no classes and returns features {tuple(features.shape)} for "
            "an image; pass a callable from these to a number."
        )
