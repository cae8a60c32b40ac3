"""Reasons not to trust a map, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

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
    evidence: Sequence[Evidence], raw: NDArray[Any], output: NDArray[Any], target: targets.Target, row: int
) -> list[str]:
    """Why one row's map should not be trusted; empty where nothing speaks against it.

    Args:
        evidence: What the method saw, one a layer.
        raw: Its map, ``(*grid)``.
        output: The model's logits for the row's image, ``(K,)`` or ``(K, ...)``.
        target: What was explained.
        row: Which of the evidence's rows it is.
    """
    return [
        *_about_the_map(evidence, raw, row),
        *_about_the_target(target, output),
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


def _about_the_target(target: targets.Target, output: NDArray[Any]) -> Iterator[str]:
    index = targets.class_of(target)
    if index is None or output.ndim != 1:
        return
    ahead = int((output > output[index]).sum())
    inner = targets.innermost(target)
    if ahead >= _TOP and inner is target:  # what speaks against a class may well be asked of a class far behind
        yield f"The model ranks this class only {ahead + 1} of {len(output)}, so not much speaks for it."
    if isinstance(inner, targets.Probability) and float(inner(torch.from_numpy(output)[None])) > 1 - _SATURATED:
        yield "The probability is saturated, so its gradient all but vanishes: explain the score (ClassScore) instead."


def _about_the_layers(evidence: Sequence[Evidence]) -> Iterator[str]:
    for each in evidence:
        if each.times_run > 1:
            yield f"Layer {each.layer!r} ran {each.times_run} times in one forward; the map is of the last time."
