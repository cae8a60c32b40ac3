"""Targets that score the probability of a class instead of its logit, for methods whose papers do so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from camtool.maps import upcast
from camtool.outputs.class_scores import find_logits
from camtool.targets import Target

__all__ = ["convert_to_probability", "prefer_probability"]


def convert_to_probability(target: Target) -> Target | None:
    """Return a target that scores the probability of a target's class, or ``None`` if the target has none."""
    probability = target.to_probability()
    return None if probability is None else _UpcastTarget(probability)


def prefer_probability(target: Target) -> Target:
    """Return a target that scores the probability of a target's class, or the target itself if it has none."""
    return convert_to_probability(target) or target


@dataclass(frozen=True)
class _UpcastTarget(Target):
    """A target on the logits in float32 or wider: in half precision, probabilities that differ slightly are equal."""

    target: Target

    def __call__(self, output: Any) -> Tensor:
        return self.target(upcast(find_logits(output)))
