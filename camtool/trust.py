"""Reasons not to trust a map, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool import maps, targets
from camtool.evidence import Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["doubts"]

_TOP = 5
"""A class outside the model's first five: a map of what the model does not believe in says little."""


def doubts(
    evidence: Sequence[Evidence], raw: NDArray[Any], chances: NDArray[Any] | None, target: targets.Target, row: int
) -> list[str]:
    """Why one row's map should not be trusted; empty where nothing speaks against it.

    Args:
        evidence: What the method saw, one a layer.
        raw: Its map, ``(*grid)``.
        chances: What the model gives each class in the row's image, ``(K,)`` or ``(K, *size)``; ``None`` of a detector.
        target: What was explained.
        row: Which of the evidence's rows it is.
    """
    return [
        *_about_the_map(evidence, raw, row),
        *_about_the_scores(evidence[0], target),
        *_about_the_target(target, chances, float(evidence[0].scores[row])),
        *_about_the_layers(evidence),
    ]


def _about_the_map(evidence: Sequence[Evidence], raw: NDArray[Any], row: int) -> Iterator[str]:
    used = [each for each in evidence if each.gradients_used]
    if used and all(each.silent[row] for each in used):
        yield "The score's gradient at the layer is zero everywhere, so the map says nothing."
    elif not np.isfinite(raw).all():
        yield "The map holds values that are not finite, so it is shown as empty."
    elif not maps.normalise(raw).any():
        yield "The map is constant: nothing in the picture speaks for the target more than the rest does."


def _about_the_scores(evidence: Evidence, target: targets.Target) -> Iterator[str]:
    if evidence.link is None and isinstance(targets.innermost(target), targets.Value):
        yield (
            "The model returns an embedding and has no classes, so the map is of one of its dimensions; Similarity "
            "shows what makes a picture like another."
        )
    if evidence.link == "identity" and targets.class_of(target) is not None:
        yield (
            "The score is a probability, whose gradient vanishes where it nears 1: let the model return its logits, "
            "without the softmax or sigmoid at its end."
        )


def _about_the_target(target: targets.Target, chances: NDArray[Any] | None, score: float) -> Iterator[str]:
    inner, index = targets.innermost(target), targets.class_of(target)
    if index is None or chances is None:
        yield from target.get_warnings(score)
        return
    if chances.ndim == 1:
        ahead = int((chances > chances[index]).sum())
        if ahead >= _TOP and inner is target:  # what speaks against a class may well be asked of a class far behind
            yield f"The model ranks this class only {ahead + 1} of {len(chances)}, so not much speaks for it."
    elif isinstance(target, targets.ClassScore) and not (chances.argmax(0) == index).any():
        yield "The model sees this class nowhere in the picture, so the map is of its score summed over all of it."
    yield from target.get_warnings(score)


def _about_the_layers(evidence: Sequence[Evidence]) -> Iterator[str]:
    for each in evidence:
        if each.times_run > 1 and not each.is_call_chosen:
            yield (
                f"Layer {each.layer!r} ran {each.times_run} times in one forward; the map is of the last time. Choose "
                f"another with call=: 0 is the first, {each.times_run - 1} the last."
            )
