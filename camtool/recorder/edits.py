"""Common edits of tensors and gradients, for :class:`camtool.Recorder`.

An edit is any function of a tensor that returns another tensor, or that writes to its argument and returns nothing::

    with Recorder(model, "layer4", edit={"layer3": scale(2)}, edit_gradients={"layer4": clip(-1, 1)}): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from camtool.errors import CamtoolError

Edit: TypeAlias = Callable[[Tensor], Tensor | None]
"""A function of one tensor that returns another tensor, or writes to its argument and returns nothing."""


def scale(factor: float) -> Edit:
    """Return an edit that multiplies by a number.

    >>> scale(2)(torch.tensor([1.0, -3.0])).tolist()
    [2.0, -6.0]
    """
    return lambda tensor: tensor * factor


def clip(low: float | None = None, high: float | None = None) -> Edit:
    """Return an edit that limits values to ``[low, high]``; ``None`` means no bound.

    >>> clip(-1, 2)(torch.tensor([-5.0, 0.5, 7.0])).tolist()
    [-1.0, 0.5, 2.0]

    Raises:
        CamtoolError: Neither bound is given, or ``low`` is greater than ``high``.
    """
    if low is None and high is None:
        raise CamtoolError("clip needs a bound: give low, high, or both.")
    if low is not None and high is not None and low > high:
        raise CamtoolError(f"clip: low is {low} and high is {high}; low must not be greater than high.")
    return lambda tensor: tensor.clamp(low, high)


def zero() -> Edit:
    """Return an edit that replaces all values by zero. The layers before get the gradient zero.

    >>> zero()(torch.tensor([1.0, -3.0])).tolist()
    [0.0, 0.0]
    """
    return replace(0.0)


def replace(value: float | Tensor) -> Edit:
    """Return an edit that replaces all values by a number or a tensor. The layers before get the gradient zero.

    >>> replace(4)(torch.tensor([1.0, -3.0])).tolist()
    [4.0, 4.0]
    >>> replace(torch.tensor([5.0, 6.0]))(torch.tensor([[1.0, -3.0], [0.0, 0.0]])).tolist()
    [[5.0, 6.0], [5.0, 6.0]]

    Args:
        value: A number, or a tensor that can be broadcast to the shape. Its dtype and device may differ.

    Raises:
        CamtoolError: From the edit, if the shape of ``value`` does not fit.
    """

    def replace_values(tensor: Tensor) -> Tensor:
        other = torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
        try:
            other = other.expand_as(tensor)
        except RuntimeError:
            raise CamtoolError(
                f"replace: a value of shape {tuple(other.shape)} does not fit a tensor of shape {tuple(tensor.shape)}."
            ) from None
        # Unlike a plain copy of the value, this stays on the graph.
        return torch.where(torch.ones_like(tensor, dtype=torch.bool), other, tensor)

    return replace_values


def add_noise(std: float, seed: int) -> Edit:
    """Return an edit that adds normal noise, different in each call. No global generator is used.

    >>> generator = torch.Generator().manual_seed(7)
    >>> expected = 1 + 0.5 * torch.randn(3, generator=generator)
    >>> torch.equal(add_noise(0.5, seed=7)(torch.ones(3)), expected)
    True

    Args:
        std: The standard deviation of the noise, in the unit of the tensor.
        seed: The seed of the noise. The noise is the same on every device and for every dtype.

    Raises:
        CamtoolError: ``std`` is negative.
    """
    if std < 0:
        raise CamtoolError(f"add_noise: std is {std}; a standard deviation is 0 or more.")
    generator = torch.Generator().manual_seed(seed)
    return lambda tensor: tensor + std * torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor)
