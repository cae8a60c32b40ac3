"""The base of all targets, how several are asked at once, and what their scores are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from camtool.outputs import check_class, count, image_of

__all__ = ["Target", "label_of", "of_class", "per_image", "score"]


class Target(ABC):
    """The thing that is explained: called with a model's output for N images, it gives N scores.

    Most questions of your own are a plain function from one image's output to a number, which
    :class:`camtool.targets.Custom` asks image by image. Derive from this what answers for all images in one step. Let
    it be a frozen dataclass: two that ask the same are equal then, so that :func:`score` asks them together.

    A target answers for itself. Override what differs: :meth:`get_class_index`, :meth:`describe`, :meth:`has_place`,
    :meth:`reads_scores` and :meth:`get_warnings`. Without that it is about no class and no place, and its name is what
    ``str`` gives.

    >>> from dataclasses import dataclass
    >>> from camtool.outputs import logits
    >>> @dataclass(frozen=True)
    ... class Lead(Target):
    ...     def __call__(self, output):
    ...         first, second = logits(output).topk(2).values.T
    ...         return first - second
    >>> Lead()(torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]]))
    tensor([3., 1.])

    A class in a part of the image is about a place, so that methods do not move the image under it:

    >>> @dataclass(frozen=True)
    ... class UpperHalf(Target):
    ...     index: int
    ...     def __call__(self, output):
    ...         planes = logits(output)[:, self.index]
    ...         return planes[:, : planes.shape[1] // 2].sum((1, 2))
    ...     def get_class_index(self):
    ...         return self.index
    ...     def describe(self, labels):
    ...         return f"{super().describe(labels)} in the upper half"
    ...     def has_place(self):
    ...         return True
    >>> UpperHalf(1).describe(["sky", "road"])
    'road in the upper half'

    A target that could fit no model raises :class:`camtool.TargetError` where it is made, and one that does not fit
    this model where it is called.
    """

    @abstractmethod
    def __call__(self, output: Any, /) -> Tensor:
        """The scores, ``(N,)``, on the graph of the model's whole output.

        Raises:
            TargetError: The output holds nothing that the target could be about.
        """

    def get_class_index(self) -> int | None:
        """Return the index of the class that the target is about, ``None`` where it is about something else."""
        return None

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return what the target is about in a few words: by default its class' label, or else its ``str``.

        Args:
            labels: The names of the K classes, ``None`` where they are not known.
        """
        index = self.get_class_index()
        return str(self) if index is None else label_of(index, labels)

    def has_place(self) -> bool:
        """Return True if the target is about a part of the image, so that the image must not be flipped or cut."""
        return False

    def reads_scores(self) -> bool:
        """Return True if the target reads the scores that :func:`camtool.outputs.logits` finds in an output.

        A model may return several tensors; the user is told then which one was taken for the scores.
        """
        return False

    def get_warnings(self, score: float) -> Sequence[str]:
        """Return reasons to doubt a map of this target, one sentence each.

        Args:
            score: The target's score on the image.
        """
        return ()


def score(targets: Sequence[Target], output: Any, images: Sequence[int] | None = None) -> Tensor:
    """Each target on the output of its own image: ``(R,)`` for R targets.

    Args:
        targets: The targets.
        output: The model's whole output.
        images: Which image each target is about; by default one each, in order.

    Raises:
        TargetError: A target does not fit the output.
    """
    images = range(len(targets)) if images is None else images
    in_order = list(images) == list(range(count(output)))
    if in_order and all(target is targets[0] or target == targets[0] for target in targets):
        return targets[0](output)  # in one step for all
    return torch.cat([target(image_of(output, i, keep=True)) for i, target in zip(images, targets, strict=True)])


def label_of(index: int, labels: Sequence[str] | None) -> str:
    """Return a class' label, or its number where it has none."""
    return str(labels[index]) if labels is not None and index < len(labels) else f"class {index}"


def of_class(values: Tensor, index: int) -> Tensor:
    """One class' part ``(N, *size)`` of values ``(N, K, *size)``.

    Raises:
        TargetError: There is no such class.
    """
    check_class(index, values.shape[1])
    return values[:, index]


def per_image(values: Tensor) -> Tensor:
    """Values ``(N, *size)`` as one row an image: ``(N, places)``, of one place where there is no size."""
    return values.reshape(len(values), -1)
