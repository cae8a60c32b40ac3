"""Targets about one class: its score or its probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from camtool.arguments.explain_arguments import check_class_index
from camtool.outputs.class_scores import LINKS, Link, compute_class_scores, compute_probabilities
from camtool.outputs.detections import Detections
from camtool.targets.base_target import (
    ClassTarget,
    ImageOutput,
    ScoreContext,
    Target,
    Traits,
    flatten_positions,
    get_class_label,
    select_class,
)
from camtool.targets.detection_targets import find_most_confident
from camtool.warning_codes import MapWarning

# A probability closer to 1 than this has almost no gradient: the gradient of the softmax is at most this distance
# times the gradient of the logit, so less than a ten thousandth of it is left.
_SATURATED = 1e-4


@dataclass(frozen=True)
class ClassScore(ClassTarget):
    """The logit of a class: the usual target. Score planes ``(N, K, *size)`` are summed over all positions.

    If the model has a single logit, class 1 is that logit and class 0 is its negative.

    Attributes:
        index: The class.
        of: How the model's scores become probabilities, which some methods need; ``"identity"`` if the model returns
            probabilities. :func:`camtool.explain` finds it out.
    """

    of: Link = "softmax"

    traits = Traits(is_class_score=True, reads="scores")

    def __post_init__(self) -> None:
        # The usual case skips the checks: explain() creates this target for each image.
        if type(self.index) is not int or self.of not in LINKS:
            super().__post_init__()

    def __call__(self, output: Any) -> Tensor:
        scores = compute_class_scores(output, self.of)
        check_class_index(self.index, scores.shape[1])
        own = scores[:, self.index]
        return own if own.ndim == 1 else flatten_positions(own).sum(1)

    @classmethod
    def score_rows(cls, targets: Sequence[Target], output: Any, images: Sequence[int]) -> Tensor | None:
        """Return the logits of the classes, if the output is ``(N, K)``."""
        own = [target for target in targets if type(target) is ClassScore]
        is_alike = len(own) == len(targets) and len({target.of for target in own}) == 1
        if not is_alike or not isinstance(output, Tensor) or output.ndim != 2:
            return None
        scores = compute_class_scores(output, own[0].of)
        for target in own:
            check_class_index(target.index, scores.shape[1])
        index = torch.tensor([int(target.index) for target in own], device=scores.device)
        by_row = scores if list(images) == list(range(len(scores))) else scores[list(images)]
        return by_row.gather(1, index[:, None])[:, 0]

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the score with the model's link, or the most confident detection of the class."""
        if isinstance(image.prediction, Detections):
            return find_most_confident(self.index, image)
        check_class_index(self.index, len(image.prediction))
        # What the user wrote as `of` is replaced: the model's output shows whether the scores are probabilities.
        return self if image.link is None else replace(self, of=image.link)

    def find_rivals(self, image: ImageOutput, count: int) -> Sequence[ClassScore]:
        """Return the other classes with the highest scores."""
        scores = image.prediction
        if not isinstance(scores, Tensor) or scores.ndim > 1 or len(scores) == 1:
            return ()
        ranked = scores.topk(min(count + 1, len(scores))).indices.tolist()
        return [replace(self, index=index) for index in ranked if index != self.index][:count]

    def to_probability(self) -> Probability:
        """Return the probability of the class."""
        return Probability(self.index, self.of)


@dataclass(frozen=True)
class Probability(ClassTarget):
    """The probability of a class. For score planes ``(N, K, *size)`` it is the mean over all positions.

    The gradient vanishes where the probability is close to 1, and with it any map that is made of gradients.

    Attributes:
        index: The class.
        of: ``"softmax"`` over all classes, or ``"sigmoid"`` for each class on its own, for multi-label models. For a
            single logit it is the sigmoid in either case. ``"identity"`` if the model returns probabilities itself,
            which :func:`camtool.explain` finds out.
    """

    of: Link = "softmax"

    traits = Traits(reads="scores")

    def __call__(self, output: Any) -> Tensor:
        return flatten_positions(select_class(compute_probabilities(output, self.of), self.index)).mean(1)

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the probability as the model gives it, or the most confident detection of the class."""
        if isinstance(image.prediction, Detections):
            return find_most_confident(self.index, image)
        check_class_index(self.index, len(image.prediction))
        # The user's choice of softmax or sigmoid counts, unless the scores are probabilities already.
        return replace(self, of="identity") if image.link == "identity" else self

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return "probability of" and the class' label."""
        return f"probability of {get_class_label(self.index, labels)}"

    def get_probability(self, context: ScoreContext) -> float:
        """Return the score, which is the probability."""
        return context.score

    def get_warnings(self, context: ScoreContext) -> Sequence[str]:
        """Return a warning if the probability is so close to 1 that it has no gradient."""
        # Probabilities that the model returns itself get a warning of their own, however close to 1 they are.
        if self.of == "identity" or context.score <= 1 - _SATURATED:
            return ()
        warning = "The probability is saturated: its gradient is almost zero. Explain the score (ClassScore) instead."
        return (MapWarning(warning, "saturated-probability"),)

    def to_probability(self) -> Probability:
        """Return the target itself."""
        return self
