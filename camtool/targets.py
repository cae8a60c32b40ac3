"""What is explained: from the model's output to one score per image.

Every target is a small frozen dataclass that is called with the model's whole output and gives ``(N,)`` scores. A
plain callable serves as well: it is given one image's output and gives one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from camtool.errors import TargetError, near
from camtool.hooks import main_tensor, map_tensors

__all__ = [
    "AgainstRest",
    "ClassScore",
    "Contrast",
    "Custom",
    "Finer",
    "Negated",
    "Probability",
    "Region",
    "Similarity",
    "Target",
    "Top",
    "Value",
    "Want",
    "choose",
    "class_of",
    "has_a_place",
    "logits",
    "name_of",
    "probabilities",
    "score",
]


class Target(Protocol):
    """What the targets of this room have in common: they turn a model's output for N images into N scores."""

    def __call__(self, output: Any, /) -> Tensor:
        """The scores, ``(N,)``."""
        ...


@dataclass(frozen=True)
class ClassScore:
    """The logit of a class: the usual thing to explain. For ``(N, K, ...)`` outputs it is summed over the rest."""

    index: int

    def __call__(self, output: Any) -> Tensor:
        return _per_image(_of_class(logits(output), self.index)).sum(1)


@dataclass(frozen=True)
class Probability:
    """The probability of a class, softmax over all of them, or the sigmoid of a single logit.

    Where it nears 1 its gradient vanishes, and with it any map that is made of gradients.
    """

    index: int

    def __call__(self, output: Any) -> Tensor:
        return _per_image(_of_class(probabilities(output), self.index)).mean(1)


@dataclass(frozen=True)
class Contrast:
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
        given, rivals = self.shares, len(self.rivals)
        if not rivals:
            raise TargetError("Contrast's against is empty; name the class, or the classes, to hold against.")
        if given is not None and not (len(given) == rivals and min(given) >= 0 and 0 < sum(given) < float("inf")):
            raise TargetError(f"Contrast's shares {given} do not fit its {rivals} rivals; give each a positive number.")

    def __call__(self, output: Any) -> Tensor:
        scores = torch.stack([ClassScore(rival)(output) for rival in self.rivals])
        shares = scores.new_tensor(self.shares or [1.0] * len(self.rivals))
        return ClassScore(self.of)(output) - self.weight * (shares * scores.T).sum(1) / shares.sum()

    @property
    def rivals(self) -> tuple[int, ...]:
        """The other classes."""
        return (self.against,) if isinstance(self.against, int) else self.against


@dataclass(frozen=True)
class Finer:
    """A class against those that the model finds most like it in the very image: Finer-CAM, arXiv 2501.11309.

    The score is ``y_c - weight * Σ_d s_d y_d``, over the rivals ``d``: the classes whose logits are nearest to the
    class' own, above or below it. With the weighting ``"probability"``, that of the authors' code, their shares are
    ``s_d = p_d / Σ p``, with the model's probabilities ``p``; with ``"mean"`` they count alike.

    Rivals and shares are settled once for each image, on what the model says of the image itself, by :func:`choose`:
    a method that asks about changed images compares the same classes throughout. So no gradient flows through the
    shares: the paper explains the differences between logits, of which the shares only make an average. In the
    authors' code it does, and the map shows in part what would change the probabilities.

    Attributes:
        index: The class.
        rivals: How many others it is held against; fewer where the model has fewer.
        weight: How much they count, the paper's γ: 0 is the class alone, and more shows finer details.
        weighting: ``"probability"`` or ``"mean"``.
    """

    index: int
    rivals: int = 3
    weight: float = 1.0
    weighting: Literal["probability", "mean"] = "probability"

    def __post_init__(self) -> None:
        if self.rivals < 1:
            raise TargetError(f"Finer's rivals is {self.rivals}; it must be 1 or more.")
        _check_name("Finer's weighting", self.weighting, ("probability", "mean"))

    def __call__(self, output: Any) -> Tensor:
        return torch.cat([self.settled(one)(one[None]) for one in logits(output)])

    def settled(self, output: Tensor) -> Contrast:
        """The contrast that it comes to for one image.

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
        values = output.detach()
        nearest = (values - values[_checked(self.index, len(values))]).abs().argsort(stable=True).tolist()
        rivals = [index for index in nearest if index != self.index][: self.rivals]
        # The probabilities' shares in their sum, without a sum that could vanish.
        shares = values[rivals].softmax(0).tolist() if self.weighting == "probability" else [1.0] * len(rivals)
        return Contrast(self.index, tuple(rivals), self.weight, tuple(shares))


@dataclass(frozen=True)
class AgainstRest:
    """A class against all the others at once: DiffGradCAM, arXiv 2506.08514.

    ``y_c - aggregate of the other logits``. A softmax looks at differences between logits alone, and so does this: what
    raises all classes together does not show.

    Attributes:
        index: The class.
        how: What sums up the others: ``"mean"``; ``"max"``, which is the strongest rival; or ``"logsumexp"``, with
            which the score is ``log(p / (1 - p))``, whose gradient does not vanish where the probability nears 1.
    """

    index: int
    how: Literal["mean", "max", "logsumexp"] = "mean"

    def __post_init__(self) -> None:
        _check_name("AgainstRest's how", self.how, _AGGREGATES)

    def __call__(self, output: Any) -> Tensor:
        values = logits(output)
        own = _of_class(values, self.index)
        if values.shape[1] < 2:
            raise TargetError("AgainstRest: the model has one class, so there is no rest; use ClassScore.")
        rest = torch.cat([values[:, : self.index], values[:, self.index + 1 :]], 1)
        return _per_image(own - _AGGREGATES[self.how](rest)).sum(1)


_AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rest: rest.mean(1),
    "max": lambda rest: rest.amax(1),
    "logsumexp": lambda rest: rest.logsumexp(1),
}


@dataclass(frozen=True)
class Negated:
    """Minus another target: what speaks against it.

    With a class' score it gives the counterfactual explanations of Grad-CAM, arXiv 1610.02391 (section "Counterfactual
    Explanations"): the regions that, were they gone, would make the model surer of the class.
    """

    target: Target

    def __post_init__(self) -> None:
        if not isinstance(self.target, _TARGETS):
            raise TargetError(
                f"Negated takes a target such as ClassScore(3), or Custom(function), got {type(self.target).__name__}."
            )

    def __call__(self, output: Any) -> Tensor:
        return -self.target(output)


@dataclass(frozen=True)
class Value:
    """One number of a regression's output, ``(N,)`` or ``(N, K)``."""

    index: int = 0

    def __call__(self, output: Any) -> Tensor:
        return _of_class(_per_image(logits(output)), self.index)


@dataclass(frozen=True, eq=False)
class Region:
    """A class inside a mask, for segmentation: Seg-Grad-CAM, arXiv 2002.11434.

    Attributes:
        class_index: The class, along the second axis of the ``(N, K, H, W)`` logits.
        mask: ``(H, W)``, the weight of each pixel; zeros and ones, or booleans.
    """

    class_index: int
    mask: Tensor

    def __call__(self, output: Any) -> Tensor:
        plane = _of_class(logits(output), self.class_index)
        if plane.shape[1:] != self.mask.shape:
            raise TargetError(
                f"Region's mask has shape {tuple(self.mask.shape)}, but the model's output has "
                f"{tuple(plane.shape[1:])} pixels; resize the mask to the output."
            )
        return _per_image(plane * self.mask.to(plane)).sum(1)


@dataclass(frozen=True, eq=False)
class Similarity:
    """The cosine similarity to an embedding ``(D,)``, for models that return ``(N, D)`` embeddings."""

    embedding: Tensor

    def __call__(self, output: Any) -> Tensor:
        vectors = logits(output)
        return torch.cosine_similarity(vectors, self.embedding.to(vectors), dim=-1)

    def __str__(self) -> str:
        return "similarity"


@dataclass(frozen=True, eq=False)
class Custom:
    """A person's own ``function(output of one image) -> number``, asked image by image."""

    function: Callable[[Any], Tensor]

    def __call__(self, output: Any) -> Tensor:
        return torch.stack([self._one(image_of(output, i)) for i in range(len(logits(output)))])

    def _one(self, output: Any) -> Tensor:
        value = self.function(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TargetError(f"target_class: {self} returned {came}; it must return a tensor with one number.")
        return value.reshape(())

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True)
class Top:
    """Not one target but the ``k`` classes that the model itself ranks highest, as that many targets."""

    k: int = 1


Want: TypeAlias = int | str | Top | Target | Callable[[Any], Tensor] | None
"""What a person may ask of one image: its top class, a class by index or name, the top k, a target, a callable."""

_TARGETS = (ClassScore, Probability, Contrast, Finer, AgainstRest, Negated, Value, Region, Similarity, Custom)

_CLASS_ATTRIBUTES: dict[type, str] = {
    ClassScore: "index",
    Probability: "index",
    Contrast: "of",
    Finer: "index",
    AgainstRest: "index",
    Region: "class_index",
}


def choose(want: Want, output: Tensor, labels: Sequence[str] | None) -> list[Target]:
    """The targets that a person's wish comes to on one image; only :class:`Top` gives more than one.

    Args:
        want: See :data:`Want`.
        output: That image's logits, ``(K, ...)``.
        labels: The names of the K classes.

    Raises:
        TargetError: The class does not exist, its name is unknown or belongs to several, or no class can be ranked.
    """
    if want is None:
        want = Top(1)
    if isinstance(want, Top):
        if want.k < 1:
            raise TargetError(f"target_class {want}: k must be 1 or more.")
        return [ClassScore(index) for index in _ranked(output)[: want.k]]
    if isinstance(want, str):
        want = _index_of(want, labels)
    if isinstance(want, Tensor) and want.ndim == 0:
        want = want.item()  # type: ignore[assignment]  # a float is refused below
    if isinstance(want, Integral) and not isinstance(want, bool):  # numpy's integers are Integral too
        return [ClassScore(_checked(int(want), len(output)))]
    if isinstance(want, _TARGETS):
        return [_settled(want, output)]
    if callable(want):
        return [Custom(want)]
    raise TargetError(
        f"target_class must be None, an index, a class name, a callable or a target, got {type(want).__name__}."
    )


def _settled(target: Target, output: Tensor) -> Target:
    """The target with all decided that it leaves to the image's own output ``(K, ...)``."""
    if isinstance(target, Negated):
        return Negated(_settled(target.target, output))
    return target.settled(output) if isinstance(target, Finer) else target


def has_a_place(target: Target) -> bool:
    """Whether a target is about a part of the picture, so that it must not be moved or cut."""
    return isinstance(target, Region) or (isinstance(target, Negated) and has_a_place(target.target))


def innermost(target: Target) -> Target:
    """The target itself, or what it is the negation of."""
    return innermost(target.target) if isinstance(target, Negated) else target


def class_of(target: Target) -> int | None:
    """The index of the class that a target is about, ``None`` where it is about something else."""
    target = innermost(target)
    attribute = _CLASS_ATTRIBUTES.get(type(target))
    return None if attribute is None else int(getattr(target, attribute))


def name_of(target: Target, labels: Sequence[str] | None) -> str:
    """What a target is about, in a word or two: the label of its class where it has one."""
    if isinstance(target, Negated):
        return f"not {name_of(target.target, labels)}"
    index = class_of(target)
    if index is None:
        return str(target)
    label = _label(index, labels)
    if isinstance(target, Contrast):
        return f"{label} rather than {', '.join(_label(rival, labels) for rival in target.rivals)}"
    if isinstance(target, Finer):
        return f"{label} rather than its like"
    if isinstance(target, AgainstRest):
        return f"{label} rather than the rest"
    return f"probability of {label}" if isinstance(target, Probability) else label


def _label(index: int, labels: Sequence[str] | None) -> str:
    return labels[index] if labels is not None and index < len(labels) else f"class {index}"


def score(targets: Sequence[Target], output: Any, images: Sequence[int] | None = None) -> Tensor:
    """Each target on the output of its own image: ``(R,)`` for R targets.

    Args:
        targets: The targets.
        output: The model's whole output.
        images: Which image each target is about; by default one each, in order.
    """
    images = range(len(targets)) if images is None else images
    in_order = list(images) == list(range(len(logits(output))))
    if in_order and all(target is targets[0] or target == targets[0] for target in targets):
        return targets[0](output)  # in one step for all
    return torch.cat([target(image_of(output, i, keep=True)) for i, target in zip(images, targets, strict=True)])


def logits(output: Any) -> Tensor:
    """The tensor of scores in a model's output: itself, a mapping's ``logits`` or ``out``, or the first one inside.

    Raises:
        TargetError: There is none.
    """
    if isinstance(output, Mapping):
        output = next((output[key] for key in ("logits", "out") if key in output), output)
    tensor = main_tensor(output)
    if tensor is None or tensor.ndim == 0:
        raise TargetError(
            f"the model returned {type(output).__name__} without a tensor of scores (N, K); wrap the model so that it "
            "returns one."
        )
    return tensor if tensor.ndim > 1 else tensor[:, None]


def probabilities(output: Any) -> Tensor:
    """Softmax over the classes, ``(N, K, ...)``; the sigmoid where there is a single logit."""
    values = logits(output)
    return values.sigmoid() if values.shape[1] == 1 else values.softmax(1)


def image_of(output: Any, index: int, *, keep: bool = False) -> Any:
    """One image's part of a batch's output, in the same structure; ``keep`` leaves the batch dimension in place.

    A tensor that does not have one entry an image, a temperature or the texts' embeddings say, is handed on whole.
    """
    images = len(logits(output))

    def part(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) != images:
            return tensor
        return tensor[index : index + 1] if keep else tensor[index]

    return map_tensors(output, part)


def _ranked(output: Tensor) -> list[int]:
    if output.ndim != 1:
        raise TargetError(
            f"target_class=None asks for the top class, but the model's output for an image has shape "
            f"{tuple(output.shape)}, not (K,); pass a class index or a target such as Region."
        )
    return output.argsort(descending=True).tolist()


def _of_class(values: Tensor, index: int) -> Tensor:
    return values[:, _checked(index, values.shape[1])]


def _per_image(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1)


def _checked(index: int, classes: int) -> int:
    if not 0 <= index < classes:
        raise TargetError(f"target_class {index} does not exist: the model has {classes} classes, 0 to {classes - 1}.")
    return index


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in (known := list(known)):
        raise TargetError(f"{what} {name!r} is unknown; known are {', '.join(known)}.{near(name, known)}")


def _index_of(name: str, labels: Sequence[str] | None) -> int:
    if labels is None:
        raise TargetError(f"target_class {name!r} is a name, but no labels are known; pass labels=[...] or an index.")
    matches = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    if not matches:
        raise TargetError(f"target_class {name!r} is not among the {len(labels)} labels.{near(name, labels)}")
    if len(matches) > 1:
        raise TargetError(f"target_class {name!r} names the classes {matches}; pass one of these indices.")
    return matches[0]
