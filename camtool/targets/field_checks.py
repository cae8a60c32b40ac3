"""Checks of the arguments of targets. They raise :class:`camtool.TargetError`, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, TypeAlias

import numpy as np
from torch import Tensor

from camtool.arguments import checks
from camtool.errors import CamtoolError, TargetError

check_confidence = partial(checks.check_number, least=0, most=1, optional=True, error=TargetError)
check_integer = partial(checks.check_integer, error=TargetError)
check_number_tuple = partial(checks.check_number_tuple, error=TargetError)


def check_box(name: str, xyxy: Any, *, error: type[CamtoolError] = TargetError) -> None:
    """Check that a value holds the four numbers of a box that is not empty."""
    checks.check_number_tuple(name, xyxy, 4, error=error)
    x0, y0, x1, y1 = xyxy
    if not (x0 < x1 and y0 < y1):
        raise error(f"{name} {xyxy} is empty; give (x0, y0, x1, y1) with x0 < x1 and y0 < y1.")


def to_tuple(values: Any) -> tuple[Any, ...]:
    """Return what a list, an array, a tensor or another iterable holds, and any other value in a tuple of its own."""
    plain = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else values
    return tuple(plain) if isinstance(plain, Iterable) and not isinstance(plain, str) else (plain,)


def to_integers(name: str, values: Any) -> tuple[int, ...]:
    """Return integers, see :func:`to_tuple`.

    Raises:
        TargetError: One of them is something else.
    """
    entries = to_tuple(values)
    for entry in entries:
        check_integer(name, entry)
    return tuple(map(int, entries))


def check_label(name: str, label: object, *, error: type[CamtoolError] = TargetError) -> None:
    """Check that a label is a text or ``None``."""
    if label is not None and not isinstance(label, str):
        raise error(f"{name} must be a text, or None, got {label!r}.")


# Types of fields, with the check of their values that :class:`camtool.targets.Target` makes.
Integer: TypeAlias = Annotated[int, checks.check_integer]
OptionalInteger: TypeAlias = Annotated[int | None, partial(checks.check_integer, optional=True)]
Label: TypeAlias = Annotated[str | None, check_label]
Confidence: TypeAlias = Annotated[float | None, partial(checks.check_number, least=0, most=1, optional=True)]
