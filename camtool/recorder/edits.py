"""Ready-made edits: what a recorder does to a tensor, or to a gradient, on its way through a model.

An edit is any function that takes a tensor and returns another, or that writes to the one it is given and returns
nothing. These are a few that are wanted often::

    with Recorder(model, "layer4", edit={"layer3": scale(2)}, edit_gradients={"layer4": clip(-1, 1)}): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from camtool.errors import CamtoolError

__all__ = ["Edit", "add_noise", "clip", "replace", "scale", "zero"]

Edit: TypeAlias = Callable[[Tensor], Tensor | None]
"""A function of one tensor that returns another, or writes to it and returns nothing."""


def scale(factor: float) -> Edit:
    """Multiply by a number.

    >>> scale(2)(torch.tensor([1.0, -3.0])).tolist()
    [2.0, -6.0]
    """
    return lambda tensor: tensor * factor


def clip(low: float | None = None, high: float | None = None) -> Edit:
    """Bring what lies below ``low`` up to it, and what lies above ``high`` down to it; ``None`` is no bound.

    >>> clip(-1, 2)(torch.tensor([-5.0, 0.5, 7.0])).tolist()
    [-1.0, 0.5, 2.0]

    Raises:
        CamtoolError: Neither bound is given, or ``low`` lies above ``high``.
    """
    if low is None and high is None:
        raise CamtoolError("clip needs a bound: give low, high, or both.")
    if low is not None and high is not None and low > high:
        raise CamtoolError(f"clip: low is {low} and high is {high}; low must not lie above high.")
    return lambda tensor: tensor.clamp(low, high)


def zero() -> Edit:
    """Put zero everywhere. What came before the layer gets the gradient zero.

    >>> zero()(torch.tensor([1.0, -3.0])).tolist()
    [0.0, 0.0]
    """
    return replace(0.0)


def replace(value: float | Tensor) -> Edit:
    """Put a number everywhere, or another tensor in the place of this one. What came before gets the gradient zero.

    >>> replace(4)(torch.tensor([1.0, -3.0])).tolist()
    [4.0, 4.0]
    >>> replace(torch.tensor([5.0, 6.0]))(torch.tensor([[1.0, -3.0], [0.0, 0.0]])).tolist()
    [[5.0, 6.0], [5.0, 6.0]]

    Args:
        value: A number, or a tensor that fits by torch's rules of broadcasting. Type and device need not be the same.

    Raises:
        CamtoolError: When it is applied, the tensor's shape does not fit.
    """

    def put(tensor: Tensor) -> Tensor:
        other = torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
        try:
            other = other.expand_as(tensor)
        except RuntimeError:
            raise CamtoolError(
                f"replace: a value of shape {tuple(other.shape)} does not fit a tensor of shape {tuple(tensor.shape)}."
            ) from None
        return torch.where(torch.ones_like(tensor, dtype=torch.bool), other, tensor)  # so that it stays on the graph

    return put


def add_noise(std: float, seed: int) -> Edit:
    """Add normal noise, other noise at each call; no global generator is used.

    >>> dice = torch.Generator().manual_seed(7)
    >>> expected = 1 + 0.5 * torch.randn(3, generator=dice)
    >>> torch.equal(add_noise(0.5, seed=7)(torch.ones(3)), expected)
    True

    Args:
        std: The noise's standard deviation, in the tensor's own unit.
        seed: Of the noise, which is the same on every device and for every type of numbers.

    Raises:
        CamtoolError: ``std`` is negative.
    """
    if std < 0:
        raise CamtoolError(f"add_noise: std is {std}; a standard deviation is 0 or more.")
    dice = torch.Generator().manual_seed(seed)
    return lambda tensor: tensor + std * torch.randn(tensor.shape, generator=dice, device="cpu").to(tensor)
