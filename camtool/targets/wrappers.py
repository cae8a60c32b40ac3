"""What makes a target of something else: of a person's own function, or of another target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.outputs import count, image_of
from camtool.targets.base import Target

__all__ = ["Custom", "Negated", "innermost"]


@dataclass(frozen=True, eq=False)
class Custom(Target):
    """A person's own ``function(output of one image) -> number``, asked image by image.

    Attributes:
        function: From one image's part of the model's output, in the same structure and without the axis of the images,
            to a tensor with one number, on the graph.
    """

    function: Callable[[Any], Tensor]

    def __call__(self, output: Any) -> Tensor:
        return torch.stack([self._one(image_of(output, i)) for i in range(count(output))])

    def _one(self, output: Any) -> Tensor:
        """One image's score, ``()``."""
        value = self.function(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TargetError(f"target_class: {self} returned {came}; it must return a tensor with one number.")
        if value.is_complex():
            raise TargetError(f"target_class: {self} returned a complex number; return a real one, e.g. its abs().")
        return value.reshape(())

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True)
class Negated(Target):
    """Minus another target: what speaks against it.

    With a class' score it gives the counterfactual explanations of Grad-CAM, arXiv 1610.02391 (section "Counterfactual
    Explanations"): the regions that, were they gone, would make the model surer of the class.
    """

    target: Target

    def __post_init__(self) -> None:
        if not isinstance(self.target, Target):
            raise TargetError(
                f"Negated takes a target such as ClassScore(3), or Custom(function), got {type(self.target).__name__}."
            )

    def __call__(self, output: Any) -> Tensor:
        return -self.target(output)

    def get_class_index(self) -> int | None:
        """Return the class of the other target."""
        return self.target.get_class_index()

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return what the other target is about, negated."""
        return f"not {self.target.describe(labels)}"

    def has_place(self) -> bool:
        """Return True if the other target is about a part of the image."""
        return self.target.has_place()

    def reads_scores(self) -> bool:
        """Return True if the other target reads the scores."""
        return self.target.reads_scores()

    def get_warnings(self, score: float) -> Sequence[str]:
        """Return the warnings of the other target."""
        return self.target.get_warnings(-score)


def innermost(target: Target) -> Target:
    """The target itself, or what it is the negation of."""
    return innermost(target.target) if isinstance(target, Negated) else target
