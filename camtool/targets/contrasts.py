"""One class against others: those that are named, those that are nearest to it, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.outputs import check_class, class_scores
from camtool.targets.base import Target, label_of, of_class, per_image
from camtool.targets.checks import check_choice, check_whole
from camtool.targets.classes import ClassScore

__all__ = ["AgainstRest", "Contrast", "Finer"]


@dataclass(frozen=True)
class Contrast(Target):
    """A class against others: ``score(of) - weight * mean(score(against))``.

    With the classes that a model confuses, it shows the details that tell them apart; :class:`Finer` finds these
    classes by itself.

    Attributes:
        of: The class.
        against: The other class, or several.
        weight: How much the others count.
        shares: How much each of the others counts in their mean; by default all alike.
    """

    of: int
    against: int | tuple[int, ...]
    weight: float = 1.0
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_whole("Contrast's of", self.of)
        for rival in self.rivals:
            check_whole("Contrast's against", rival)
        if not self.rivals:
            raise TargetError("Contrast's against is empty; name the class, or the classes, to hold against.")
        if self.shares is not None:
            _check_shares(self.shares, len(self.rivals))

    def __call__(self, output: Any) -> Tensor:
        scores = torch.stack([ClassScore(rival)(output) for rival in self.rivals])
        shares = scores.new_tensor(self.shares or [1.0] * len(self.rivals))
        return ClassScore(self.of)(output) - self.weight * (shares * scores.T).sum(1) / shares.sum()

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.of)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the class' label and those of the others."""
        return f"{label_of(self.of, labels)} rather than {', '.join(label_of(rival, labels) for rival in self.rivals)}"

    def reads_scores(self) -> bool:
        """Return True."""
        return True

    @property
    def rivals(self) -> tuple[int, ...]:
        """The other classes."""
        return tuple(self.against) if isinstance(self.against, (tuple, list)) else (self.against,)


def _check_shares(shares: tuple[float, ...], rivals: int) -> None:
    if not (len(shares) == rivals and min(shares) >= 0 and 0 < sum(shares) < inf):
        raise TargetError(f"Contrast's shares {shares} do not fit its {rivals} rivals; give each a positive number.")


@dataclass(frozen=True)
class Finer(Target):
    """A class against those most similar to it: Finer-CAM, arXiv 2501.11309.

    The score is ``y_c - weight * Σ_d s_d y_d``, over the rivals ``d``. These are the classes whose weights in the
    model's linear head have the largest cosine similarity to those of the class, as in the paper: the same for every
    image. For a model without such a head, and where the target is called on an output by itself, they are the classes
    whose logits on the image are nearest to the class' own, as in the authors' program. The label of an explanation
    names them.

    With the weighting ``"probability"``, that of the authors' code, the shares are ``s_d = p_d / Σ p``, with the
    model's probabilities ``p``; with ``"mean"`` all rivals count alike.

    Rivals and shares are settled once for each image, before any method runs, by :func:`camtool.targets.choose`: a
    method that scores changed images compares the same classes throughout. So no gradient flows through the shares: the
    paper explains the differences between logits, of which the shares only make an average. In the authors' code it
    does, and the map shows in part what would change the probabilities.

    Attributes:
        index: The class.
        rivals: How many others it is held against; fewer where the model has fewer.
        weight: How much they count, the paper's γ: 0 is the class alone, and more shows finer details.
        weighting: ``"probability"`` or ``"mean"``.
        similar: Classes in order of their similarity to this one, most similar first; by default found as above.
    """

    index: int
    rivals: int = 3
    weight: float = 1.0
    weighting: Literal["probability", "mean"] = "probability"
    similar: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_whole("Finer's index", self.index)
        for other in self.similar or ():
            check_whole("Finer's similar", other)
        check_whole("Finer's rivals", self.rivals)
        if self.rivals < 1:
            raise TargetError(f"Finer's rivals is {self.rivals}; it must be 1 or more.")
        check_choice("Finer's weighting", self.weighting, ("probability", "mean"))

    def __call__(self, output: Any) -> Tensor:
        return torch.cat([self.settled(one)(one[None]) for one in class_scores(output)])

    def compared_by(self, vectors: Tensor) -> Finer:
        """Return the target with :attr:`similar` found by the cosine similarity of the classes' vectors.

        Args:
            vectors: The weights of a linear head, ``(K, C)``.
        """
        if not 0 <= self.index < len(vectors):
            return self
        cosines = torch.nn.functional.cosine_similarity(vectors, vectors[self.index], dim=1)
        order = cosines.argsort(descending=True, stable=True).tolist()
        return replace(self, similar=tuple(other for other in order if other != self.index))

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.index)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the class' label and that it is held against similar ones."""
        return f"{label_of(self.index, labels)} rather than its like"

    def reads_scores(self) -> bool:
        """Return True."""
        return True

    def settled(self, output: Tensor) -> Contrast:
        """Return the contrast that it comes to for one image.

        Args:
            output: That image's logits, ``(K,)``.

        Raises:
            TargetError: The class does not exist or has no rivals, or the output is not one logit a class.
        """
        if output.ndim != 1 or len(output) < 2:
            raise TargetError(
                f"Finer holds a class against others, but the model's output for an image has shape "
                f"{tuple(output.shape)}, not (K,) with two classes or more; use ClassScore or Contrast."
            )
        check_class(self.index, len(output))
        values = output.detach()
        nearest = (values - values[self.index]).abs().argsort(stable=True).tolist()
        rivals = [other for other in self.similar or nearest if other != self.index][: self.rivals]
        for rival in rivals:
            check_class(rival, len(output))
        # The probabilities' shares in their sum, without a sum that could vanish.
        shares = values[rivals].softmax(0).tolist() if self.weighting == "probability" else [1.0] * len(rivals)
        return Contrast(self.index, tuple(rivals), self.weight, tuple(shares))


@dataclass(frozen=True)
class AgainstRest(Target):
    """A class against all the others at once: DiffGradCAM, arXiv 2506.08514.

    ``y_c - aggregate of the other logits``. A softmax looks at differences between logits alone, and so does this: what
    raises all classes together does not show. For planes ``(N, K, *size)`` it is summed over all places.

    Attributes:
        index: The class.
        how: What sums up the others: ``"mean"``; ``"max"``, which is the strongest rival; or ``"logsumexp"``, with
            which the score is ``log(p / (1 - p))``, whose gradient does not vanish where the probability nears 1.
    """

    index: int
    how: Literal["mean", "max", "logsumexp"] = "mean"

    def __post_init__(self) -> None:
        check_whole("AgainstRest's index", self.index)
        check_choice("AgainstRest's how", self.how, _AGGREGATES)

    def __call__(self, output: Any) -> Tensor:
        values = class_scores(output)
        own = of_class(values, self.index)
        rest = torch.cat([values[:, : self.index], values[:, self.index + 1 :]], 1)
        return per_image(own - _AGGREGATES[self.how](rest)).sum(1)

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.index)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the class' label and that it is held against all others."""
        return f"{label_of(self.index, labels)} rather than the rest"

    def reads_scores(self) -> bool:
        """Return True."""
        return True


_AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rest: rest.mean(1),
    "max": lambda rest: rest.amax(1),
    "logsumexp": lambda rest: rest.logsumexp(1),
}
"""From the other classes' logits ``(N, K - 1, *size)`` to ``(N, *size)``."""
