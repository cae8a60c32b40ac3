"""One class, by its score or by its probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from camtool.outputs import Link, class_scores, probabilities
from camtool.targets.base import Target, of_class, per_image
from camtool.targets.checks import check_link, check_whole

__all__ = ["ClassScore", "Probability"]


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
