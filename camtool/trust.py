"""Reasons not to trust a map, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from camtool import maps, targets
from camtool.evidence import Evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["doubts"]

_TOP = 5
"""A class outside the model's first five: a map of what the model does not believe in says little."""

_SATURATED = 1e-4
"""How near to 1 a probability has no gradient to speak of left: softmax's is at most this times that of the logit."""


def doubts(
    evidence: Sequence[Evidence], raw: NDArray[Any], logits: Tensor, target: targets.Target, image: int
) -> list[str]:
    """Why one image's map should not be trusted; empty where nothing speaks against it.

    Args:
        evidence: What the method saw, one a layer.
        raw: Its map of the image, ``(*grid)``.
        logits: The model's output, ``(N, K)`` or ``(N, K, ...)``.
        target: What was explained.
        image: Which of the N images.
    """
    return [
        *_about_the_map(evidence, raw, image),
        *_about_the_target(target, logits[image : image + 1]),
        *_about_the_layers(evidence),
    ]


def _about_the_map(evidence: Sequence[Evidence], raw: NDArray[Any], image: int) -> Iterator[str]:
    used = [each for each in evidence if each.gradients_used]
    if used and not any(each.gradients[image].any() for each in used):
        yield "The score's gradient at the layer is zero everywhere, so the map says nothing."
    elif not np.isfinite(raw).all():
        yield "The map holds values that are not finite, so it is shown as empty."
    elif not maps.normalise(raw).any():
        yield "The map is constant: nothing in the picture speaks for the target more than the rest does."


def _about_the_target(target: targets.Target, logits: Tensor) -> Iterator[str]:
    index = targets.class_of(target)
    if index is None or logits.ndim != 2:
        return
    ahead = int((logits[0] > logits[0, index]).sum())
    if ahead >= _TOP:
        yield f"The model ranks this class only {ahead + 1} of {logits.shape[1]}, so not much speaks for it."
    if isinstance(target, targets.Probability) and float(target(logits)) > 1 - _SATURATED:
        yield "The probability is saturated, so its gradient all but vanishes: explain the score (ClassScore) instead."


def _about_the_layers(evidence: Sequence[Evidence]) -> Iterator[str]:
    for each in evidence:
        if each.times_run > 1:
            yield f"Layer {each.layer!r} ran {each.times_run} times in one forward; the map is of the last time."
