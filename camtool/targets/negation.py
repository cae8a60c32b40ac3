"""The negative of another target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from camtool.errors import TargetError
from camtool.targets.base import Corners, ImageOutput, ScoreContext, Target, Traits


@dataclass(frozen=True)
class Negated(Target):
    """The negative of another target: the map shows what speaks against it.

    With the score of a class it gives the counterfactual explanations of Grad-CAM, arXiv 1610.02391 (section
    "Counterfactual Explanations"): the regions whose removal would make the model more confident in the class.

    Attributes:
        target: The other target.
    """

    target: Target

    def __post_init__(self) -> None:
        if not isinstance(self.target, Target):
            raise TargetError(
                f"Negated takes a target such as ClassScore(3), or Custom(function), got {type(self.target).__name__}."
            )

    @property
    def traits(self) -> Traits:
        """The traits of the other target, but another score, which speaks against what that one speaks for."""
        of_other = self.target.traits
        return replace(of_other, is_class_score=False, is_similarity=False, opposes_class=not of_other.opposes_class)

    def __call__(self, output: Any) -> Tensor:
        return -self.target(output)

    def resolve_on(self, image: ImageOutput) -> Negated:
        """Return the negative of the other target, resolved."""
        return Negated(self.target.resolve_on(image))

    def get_class_index(self) -> int | None:
        """Return the class of the other target."""
        return self.target.get_class_index()

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return "not" and the label of the other target."""
        return f"not {self.target.describe(labels)}"

    def get_probability(self, context: ScoreContext) -> float | None:
        """Return the probability of the other target."""
        return self.target.get_probability(replace(context, score=-context.score))

    def get_box(self) -> Corners | None:
        """Return the box of the other target."""
        return self.target.get_box()

    def get_warnings(self, context: ScoreContext) -> Sequence[str]:
        """Return the warnings of the other target."""
        return self.target.get_warnings(replace(context, score=-context.score))
