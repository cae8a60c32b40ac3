"""What targets are made with, checked before anything runs: a wrong argument is told of by its name."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from operator import index as as_index
from typing import Any, get_args

import torch
from torch import Tensor

from camtool.errors import TargetError, near
from camtool.outputs import Link

__all__ = ["check_choice", "check_link", "check_numbers", "check_real", "check_whole"]


def check_whole(what: str, value: Any, *, optional: bool = False) -> None:
    """See that a number is whole, of Python or numpy, or a tensor with one; or ``None``, where it is optional.

    Raises:
        TargetError: It is not.
    """
    if optional and value is None:
        return
    try:
        as_index(value)
    except (TypeError, RuntimeError) as error:
        raise TargetError(f"{what} is {value!r}; it must be a whole number.") from error


def check_numbers(what: str, values: Any, count: int) -> None:
    """See that something holds so many numbers, of Python or numpy, or tensors.

    Raises:
        TargetError: It does not.
    """
    is_sequence = isinstance(values, Iterable) and not isinstance(values, str)
    if not is_sequence or [isinstance(value, (Real, Tensor)) for value in values] != [True] * count:
        raise TargetError(f"{what} must be {count} numbers, got {values!r}.")


def check_real(what: str, values: Any) -> None:
    """Check that a tensor, or what becomes one, holds real numbers.

    Raises:
        TargetError: It does not.
    """
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(f"{what} must be a tensor or an array of numbers, got {type(values).__name__}.") from error
    if tensor.is_complex() or tensor.is_meta:
        raise TargetError(f"{what} must hold real numbers, got {tensor.dtype} on {tensor.device}.")


def check_choice(what: str, name: str, known: Iterable[str]) -> None:
    """See that a name is one of those that are known.

    Raises:
        TargetError: It is not; the message suggests near ones.
    """
    known = list(known)
    if name not in known:
        raise TargetError(f"{what} {name!r} is unknown; known are {', '.join(known)}.{near(name, known)}")


def check_link(what: str, link: str) -> None:
    """See that it is known how scores become probabilities.

    Raises:
        TargetError: It is none of the ways of :data:`camtool.outputs.Link`.
    """
    check_choice(what, link, get_args(Link))
