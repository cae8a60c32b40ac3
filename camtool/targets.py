"""What is explained: from the model's output to one score per image.

Every target is a small frozen dataclass that is called with the model's whole output and gives ``(N,)`` scores. A
plain callable serves as well: it is given one image's output and gives one number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from camtool.errors import TargetError, near
from camtool.hooks import main_tensor, map_tensors

__all__ = [
    "ClassScore",
    "Contrast",
    "Custom",
    "Probability",
    "Region",
    "Similarity",
    "Target",
    "Top",
    "Value",
    "Want",
    "choose",
    "class_of",
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

    With the classes that a model confuses, it shows the details that tell them apart: Finer-CAM, arXiv 2501.11309.
    """

    of: int
    against: int | tuple[int, ...]
    weight: float = 1.0

    def __call__(self, output: Any) -> Tensor:
        others = (self.against,) if isinstance(self.against, int) else self.against
        rivals = torch.stack([ClassScore(other)(output) for other in others]).mean(0)
        return ClassScore(self.of)(output) - self.weight * rivals


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

_TARGETS = (ClassScore, Probability, Contrast, Value, Region, Similarity, Custom)

_CLASS_ATTRIBUTES: dict[type, str] = {
    ClassScore: "index",
    Probability: "index",
    Contrast: "of",
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
        return [want]
    if callable(want):
        return [Custom(want)]
    raise TargetError(
        f"target_class must be None, an index, a class name, a callable or a target, got {type(want).__name__}."
    )


def class_of(target: Target) -> int | None:
    """The index of the class that a target is about, ``None`` where it is about something else."""
    attribute = _CLASS_ATTRIBUTES.get(type(target))
    return None if attribute is None else int(getattr(target, attribute))


def name_of(target: Target, labels: Sequence[str] | None) -> str:
    """What a target is about, in a word or two: the label of its class where it has one."""
    index = class_of(target)
    if index is None:
        return str(target)
    if isinstance(target, Contrast):
        others = (target.against,) if isinstance(target.against, int) else target.against
        return f"{_label(index, labels)} rather than {', '.join(_label(other, labels) for other in others)}"
    label = _label(index, labels)
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


def _index_of(name: str, labels: Sequence[str] | None) -> int:
    if labels is None:
        raise TargetError(f"target_class {name!r} is a name, but no labels are known; pass labels=[...] or an index.")
    matches = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    if not matches:
        raise TargetError(f"target_class {name!r} is not among the {len(labels)} labels.{near(name, labels)}")
    if len(matches) > 1:
        raise TargetError(f"target_class {name!r} names the classes {matches}; pass one of these indices.")
    return matches[0]
