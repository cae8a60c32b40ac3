"""Targets that set classes against each other, and the negative of a target.

A class is compared with named ones, with the most similar ones, or with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from camtool.arguments.checks import Number
from camtool.arguments.explain_arguments import check_class_index
from camtool.errors import TargetError
from camtool.outputs.class_scores import Link, compute_class_scores
from camtool.outputs.detections import Detections
from camtool.targets.base_target import (
    ClassTarget,
    Corners,
    ImageOutput,
    ResolvedTarget,
    ScoreContext,
    Target,
    Traits,
    flatten_positions,
    get_class_label,
    select_class,
)
from camtool.targets.class_targets import ClassScore
from camtool.targets.field_checks import Integer, to_integers, to_tuple


@dataclass(frozen=True)
class Contrast(Target):
    """A class against others: ``score(of) - weight * mean(score(against))``.

    Name the classes that a model confuses, and the map shows the details that tell them apart. :class:`Finer` finds
    these classes itself.

    Attributes:
        of: The class.
        against: The other class, or several.
        weight: The factor of the others.
        shares: The weight of each other class in their mean; by default all are equal.
        link: See :attr:`camtool.targets.ClassScore.of`.
    """

    of: Integer
    against: int | Sequence[int]
    weight: Number = 1.0
    shares: Sequence[float] | None = None
    link: Link = "softmax"

    traits = Traits(reads="scores")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "against", to_integers("Contrast's against", self.against))
        if not self.rivals:
            raise TargetError("Contrast's against is empty; pass one or more classes to compare with.")
        if self.of in self.rivals:
            raise TargetError(f"Contrast's of, class {self.of}, is in against as well; leave it out there.")
        if self.shares is not None:
            shares, rivals = to_tuple(self.shares), len(self.rivals)
            are_weights = all(isinstance(share, Real) and float(share) >= 0 for share in shares)
            if not (len(shares) == rivals and are_weights and 0 < sum(shares) < inf):
                raise TargetError(f"Contrast's shares {shares} do not fit its {rivals} rivals; pass one above 0 each.")
            object.__setattr__(self, "shares", shares)

    def __call__(self, output: Any) -> Tensor:
        scores = torch.stack([ClassScore(rival, self.link)(output) for rival in self.rivals])  # (rivals, N)
        shares = scores.new_tensor(self.shares or [1.0] * len(self.rivals))
        return ClassScore(self.of, self.link)(output) - self.weight * (shares * scores.T).sum(1) / shares.sum()

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the contrast with the model's link."""
        super().resolve_on(image)
        return replace(self, link=image.link or self.link)

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.of)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the label of the class and those of the others."""
        rivals = ", ".join(get_class_label(rival, labels) for rival in self.rivals)
        return f"{get_class_label(self.of, labels)} rather than {rivals}"

    @property
    def rivals(self) -> tuple[int, ...]:
        """The other classes."""
        return to_tuple(self.against)


@dataclass(frozen=True)
class Finer(ClassTarget, ResolvedTarget):
    """A class against those most similar to it: Finer-CAM, arXiv 2501.11309.

    The score is ``y_c - weight * Σ_d s_d y_d``, over the rivals ``d``. As in the paper, these are the classes whose
    weights in the model's linear head have the largest cosine similarity to those of the class: the same for every
    image. If the model has no such head, or the target is called on an output directly, they are the classes whose
    logits on the image are nearest to that of the class, as in the authors' code. The label of an explanation names
    them.

    With the weighting ``"probability"``, as in the authors' code, the shares are ``s_d = p_d / Σ p``, with the
    model's probabilities ``p``; with ``"mean"`` all rivals count the same.

    Rivals and shares are set once for each image, before any method runs, by :func:`camtool.targets.resolve_targets`: a
    method that scores changed images compares the same classes throughout. So no gradient flows through the shares: the
    paper explains differences between logits, and the shares only average them. In the authors' code the gradient does
    flow, and the map shows in part what would change the probabilities.

    Attributes:
        index: The class.
        rivals: The number of other classes; fewer if the model has fewer.
        weight: The factor of the rivals, γ in the paper: 0 is the class alone, larger values show finer details.
        weighting: ``"probability"`` or ``"mean"``.
        similar: Classes in order of similarity to this one, most similar first; by default found as above.
    """

    rivals: Integer = 3
    weight: Number = 1.0
    weighting: Literal["probability", "mean"] = "probability"
    similar: Sequence[int] | None = None

    traits = Traits(reads="scores")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.similar is not None:
            object.__setattr__(self, "similar", to_integers("Finer's similar", self.similar))
        if self.rivals < 1:
            raise TargetError(f"Finer's rivals is {self.rivals}; it must be 1 or more.")

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the contrast with the rivals in this image.

        Raises:
            TargetError: The class does not exist or has no rivals, or the output is not one logit per class.
        """
        scores = image.prediction
        if isinstance(scores, Detections):
            return self  # the call raises an error that names the remedy
        if scores.ndim != 1 or len(scores) < 2:
            raise TargetError(
                f"Finer compares a class with others, but the model's output for an image has shape "
                f"{tuple(scores.shape)}, not (K,) with two classes or more; use ClassScore or Contrast."
            )
        check_class_index(self.index, len(scores))
        rivals = self._find_rivals(image, scores.detach())
        # A softmax over the rivals alone: p_d / Σ p without a sum of probabilities that could vanish.
        shares = [1.0] * len(rivals) if self.weighting == "mean" else scores.detach()[rivals].softmax(0).tolist()
        return Contrast(self.index, tuple(rivals), self.weight, tuple(shares), image.link or "softmax")

    def rank_by_similarity(self, class_vectors: Tensor) -> tuple[int, ...]:
        """Return the other classes in order of the cosine similarity of their vectors to that of the class.

        Args:
            class_vectors: The weights of a linear head, ``(K, C)``.
        """
        cosines = torch.nn.functional.cosine_similarity(class_vectors, class_vectors[self.index], dim=1)
        # A stable sort puts the lower index first if two classes are equally similar, on every device.
        order = cosines.argsort(descending=True, stable=True).tolist()
        return tuple(other for other in order if other != self.index)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the label of the class, and that it is compared with similar classes."""
        return f"{get_class_label(self.index, labels)} rather than similar classes"

    def _find_rivals(self, image: ImageOutput, scores: Tensor) -> list[int]:
        """Return the most similar classes by the user's order, else by the head, else by scores ``(K,)``."""
        order = self.similar or None
        if order is None:
            class_vectors = None if image.find_class_vectors is None else image.find_class_vectors()
            # A single logit has one vector, but stands for two classes.
            if class_vectors is not None and len(class_vectors) == len(scores):
                order = self.rank_by_similarity(class_vectors)
        if order is None:
            order = tuple((scores - scores[self.index]).abs().argsort(stable=True).tolist())
        # The nearest logit is the class's own, and the user's order may hold the class as well.
        rivals = [other for other in order if other != self.index][: self.rivals]
        for rival in rivals:
            check_class_index(rival, len(scores))
        return rivals


@dataclass(frozen=True)
class AgainstRest(ClassTarget):
    """A class against all others at once: DiffGradCAM, arXiv 2506.08514.

    The score is ``y_c - aggregate of the other logits``. A softmax depends only on differences between logits, and so
    does this score: what raises all classes together does not show. Score planes ``(N, K, *size)`` are summed over all
    positions.

    Attributes:
        index: The class.
        how: How the others are aggregated: ``"mean"``; ``"max"``, the strongest rival; or ``"logsumexp"``, with which
            the score is ``log(p / (1 - p))``, whose gradient does not vanish where the probability is close to 1.
        link: See :attr:`camtool.targets.ClassScore.of`.
    """

    how: Literal["mean", "max", "logsumexp"] = "mean"
    link: Link = "softmax"

    traits = Traits(reads="scores")

    def __call__(self, output: Any) -> Tensor:
        values = compute_class_scores(output, self.link)
        own = select_class(values, self.index)
        # Slices, as a list of indices would have to be transferred to the device.
        rest = torch.cat([values[:, : self.index], values[:, self.index + 1 :]], 1)
        return flatten_positions(own - _AGGREGATES[self.how](rest)).sum(1)

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the contrast with the model's link."""
        super().resolve_on(image)
        return replace(self, link=image.link or self.link)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the label of the class, and that it is compared with all others."""
        return f"{get_class_label(self.index, labels)} rather than the rest"


# From the other classes' logits ``(N, K - 1, *size)`` to ``(N, *size)``.
_AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rest: rest.mean(1),
    "max": lambda rest: rest.amax(1),
    "logsumexp": lambda rest: rest.logsumexp(1),
}


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

    def list_groups(self, labels: Sequence[str] | None) -> tuple[Mapping[int, str], ...]:
        """Return those of the other target."""
        return self.target.list_groups(labels)

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
