"""What a target is, how several are asked at once, and what their scores are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from camtool.outputs import check_class, count, image_of

__all__ = ["Target", "of_class", "per_image", "score"]


class Target(ABC):
    """What is explained: called with a model's output for N images, it gives N scores.

    Most questions of your own are a plain function from one image's output to a number, which
    :class:`camtool.targets.Custom` asks image by image. Derive from this what answers for all images in one step. Let
    it be a frozen dataclass: two that ask the same are equal then, so that :func:`score` asks them together. What
    ``str`` gives is its name; it is about no class and no place.

    >>> from dataclasses import dataclass
    >>> from camtool.outputs import logits
    >>> @dataclass(frozen=True)
    ... class Lead(Target):
    ...     def __call__(self, output):
    ...         first, second = logits(output).topk(2).values.T
    ...         return first - second
    >>> Lead()(torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]]))
    tensor([3., 1.])

    A target that could fit no model raises :class:`camtool.TargetError` where it is made, and one that does not fit
    this model where it is called.
    """

    @abstractmethod
    def __call__(self, output: Any, /) -> Tensor:
        """The scores, ``(N,)``, on the graph of the model's whole output.

        Raises:
            TargetError: The output holds nothing that the target could be about.
        """


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
