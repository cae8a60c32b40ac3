"""What people ask of a method, checked before anything runs: a wrong option is told of by its name."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from numbers import Integral, Real

from camtool.errors import MethodError, near
from camtool.evidence import Evidence
from camtool.targets import has_a_place

__all__ = ["check_choice", "check_count", "check_number", "check_numbers", "refuse_places"]


def check_count(name: str, value: object, *, least: int = 1, optional: bool = False) -> None:
    """See that an option is a whole number, of ``least`` or more; or ``None``, where it is optional.

    Raises:
        MethodError: It is not.
    """
    if optional and value is None:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        or_none = ", or None" if optional else ""
        raise MethodError(f"{name} must be a whole number of {least} or more{or_none}, got {value!r}.")


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    optional: bool = False,
) -> None:
    """See that an option is a finite number within bounds, or ``None``, where it is optional.

    Of the bounds ``least`` and ``most`` themselves are allowed.

    Raises:
        MethodError: It is not.
    """
    if optional and value is None:
        return
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
        x = float(value)
        too_low = (above is not None and x <= above) or (least is not None and x < least)
        too_high = (below is not None and x >= below) or (most is not None and x > most)
        if not too_low and not too_high:
            return
    bounds = {"above": above, "at least": least, "below": below, "at most": most}
    within = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)
    or_none = ", or None" if optional else ""
    raise MethodError(f"{name} must be a finite number{within and ' ' + within}{or_none}, got {value!r}.")


def check_numbers(name: str, values: object, *, above: float | None = None, least: float | None = None) -> None:
    """See that an option is a list or tuple of one number or more, each of them within the bounds.

    Raises:
        MethodError: It is not.
    """
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) == 0:
        raise MethodError(f"{name} must be a list of numbers, at least of one, such as [1, 2]; got {values!r}.")
    for value in values:
        check_number(f"each of {name}", value, above=above, least=least)


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """See that an option is one of the names that are known.

    Raises:
        MethodError: It is not; the message suggests near ones.
    """
    if not isinstance(value, str) or value not in known:
        names = ", ".join(map(repr, known))
        raise MethodError(f"{name} must be one of {names}, got {value!r}.{near(str(value), known)}")


def refuse_places(evidence: Evidence, because: str) -> None:
    """See that no target is about a part of the picture, for methods that move, cut or resize the picture.

    Args:
        evidence: What the method may look at.
        because: What is done to the picture, as the message is to begin.

    Raises:
        MethodError: A target is.
    """
    for target in evidence.targets:
        if has_a_place(target):
            raise MethodError(f"{because}, but {type(target).__name__} is about a part of it that stays where it is.")
