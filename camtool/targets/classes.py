"""One class, by its score or by its probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from camtool.outputs import Link, class_scores, probabilities
from camtool.targets.base import Target, label_of, of_class, per_image
from camtool.targets.checks import check_link, check_whole

__all__ = ["ClassScore", "Probability"]

_SATURATED = 1e-4
"""The distance from 1 below which a probability has almost no gradient left: the gradient of softmax is at most this
times that of the logit."""


@dataclass(frozen=True)
class ClassScore(Target):
    """The logit of a class: the usual thing to explain. For planes ``(N, K, *size)`` it is summed over all places.

    Where the model has a single logit, class 1 is that logit and class 0 is minus it.

    Attributes:
        index: The class.
        of: How the model's scores become probabilities, which some methods ask for; ``"identity"`` where they are some.
            In :func:`camtool.explain` it is found out.
    """

    index: int
    of: Link = "softmax"

    def __post_init__(self) -> None:
        check_whole("ClassScore's index", self.index)
        check_link("ClassScore's of", self.of)

    def __call__(self, output: Any) -> Tensor:
        return per_image(of_class(class_scores(output, self.of), self.index)).sum(1)

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.index)

    def reads_scores(self) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True)
class Probability(Target):
    """The probability of a class; of planes ``(N, K, *size)`` the mean over all places.

    Where it nears 1 its gradient vanishes, and with it any map that is made of gradients.

    Attributes:
        index: The class.
        of: ``"softmax"`` over all classes, or the class' own ``"sigmoid"``, for models whose labels do not exclude one
            another. Of a single logit it is the sigmoid in either case. ``"identity"`` where the model returns
            probabilities itself, which :func:`camtool.explain` finds out.
    """

    index: int
    of: Link = "softmax"

    def __post_init__(self) -> None:
        check_whole("Probability's index", self.index)
        check_link("Probability's of", self.of)

    def __call__(self, output: Any) -> Tensor:
        return per_image(of_class(probabilities(output, self.of), self.index)).mean(1)

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.index)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the class' label and that its probability is meant."""
        return f"probability of {label_of(self.index, labels)}"

    def reads_scores(self) -> bool:
        """Return True."""
        return True

    def get_warnings(self, score: float) -> Sequence[str]:
        """Return a warning where the probability nears 1 and so has no gradient."""
        if self.of == "identity" or abs(score) <= 1 - _SATURATED:
            return ()
        return (
            "The probability is saturated, so its gradient all but vanishes: explain the score (ClassScore) instead.",
        )
