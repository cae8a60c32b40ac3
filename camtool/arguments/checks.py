"""Checks of argument values. An error names the argument, the value, and what is allowed.

``error`` is the class of the error that is raised: each package has its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial, wraps
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError, Forgive, RaiseAs

# A scheme has two letters or more: C:/ is a drive of Windows.
_SCHEME = "[a-z][a-z0-9+.-]+"
_MOST_YAML_LEVELS = 50  # files of options have two, descriptions of models four


def check_integer(
    name: str, value: object, *, optional: bool = False, error: type[CamtoolError] = CamtoolError
) -> None:
    """Check that a value is an integer of Python or numpy, or a tensor with one integer. Booleans are not.

    Args:
        name: The name of the argument, for the message.
        value: The value.
        optional: Accept ``None``.
        error: The class of the error.
    """
    if optional and value is None:
        return
    try:
        is_integer = not isinstance(value, bool) and getattr(value, "dtype", None) is not torch.bool
        index(value if is_integer else None)  # type: ignore[arg-type]
    except (TypeError, RuntimeError) as cause:
        raise error(f"{name} must be a whole number{_or_none(optional=optional)}, got {value!r}.") from cause


def check_count(
    name: str, value: object, *, least: int = 1, optional: bool = False, error: type[CamtoolError] = CamtoolError
) -> None:
    """Check that a value is an integer of at least ``least``. ``True`` and ``False`` are not."""
    if optional and value is None:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise error(f"{name} must be a whole number of {least} or more{_or_none(optional=optional)}, got {value!r}.")


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    optional: bool = False,
    error: type[CamtoolError] = CamtoolError,
) -> None:
    """Check that a value is a finite number within bounds.

    ``least`` and ``most`` are inclusive; ``above`` and ``below`` are exclusive.
    """
    if optional and value is None:
        return
    x = _to_float(value)
    if math.isfinite(x):
        is_too_low = (above is not None and x <= above) or (least is not None and x < least)
        is_too_high = (below is not None and x >= below) or (most is not None and x > most)
        if not is_too_low and not is_too_high:
            return
    bounds = {"above": above, "at least": least, "below": below, "at most": most}
    within = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)
    raise error(f"{name} must be a finite number{within and ' ' + within}{_or_none(optional=optional)}, got {value!r}.")


def _to_float(value: object) -> float:
    """Return a number as a float; NaN for anything else, and for integers that are too large."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def check_numbers(
    name: str,
    values: object,
    *,
    above: float | None = None,
    least: float | None = None,
    error: type[CamtoolError] = CamtoolError,
) -> None:
    """Check that a value is a list or tuple of at least one number, each of them within the bounds."""
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) == 0:
        raise error(f"{name} must be a list of numbers, at least of one, such as [1, 2]; got {values!r}.")
    for value in values:
        check_number(f"each of {name}", value, above=above, least=least, error=error)


def check_number_tuple(name: str, values: object, count: int, *, error: type[CamtoolError] = CamtoolError) -> None:
    """Check that a value holds exactly ``count`` numbers, e.g. coordinates. They may be tensors of one number."""
    are_numbers = isinstance(values, Iterable) and not isinstance(values, str)
    if not are_numbers or [isinstance(entry, (Real, Tensor)) for entry in values] != [True] * count:  # type: ignore[attr-defined]
        raise error(f"{name} must be {count} numbers, got {values!r}.")


def check_real_tensor(name: str, values: object, *, error: type[CamtoolError] = CamtoolError) -> None:
    """Check that a value is a tensor of real numbers, or an array or list that becomes one."""
    text = f"{name} must be a tensor or an array of numbers, got {type(values).__name__}."
    with RaiseAs(lambda _: error(text), TypeError, ValueError, RuntimeError):
        tensor = torch.as_tensor(values)
    if tensor.is_complex() or tensor.is_meta:
        raise error(f"{name} must hold real numbers, got {tensor.dtype} on {tensor.device}.")


def check_choice(name: str, value: object, among: Collection[str], *, error: type[CamtoolError] = CamtoolError) -> None:
    """Check that a value is one of the known names. The message suggests similar ones."""
    if not isinstance(value, str) or value not in among:
        hint = suggest_names(str(value), among)
        raise error(f"{name} must be one of {', '.join(map(repr, among))}, got {value!r}.{hint}")


def check_not_url(name: str, value: object, error: type[CamtoolError]) -> None:
    """Check that a path is not a URL: only images are downloaded, and ``pathlib`` would turn ``//`` into ``/``."""
    if isinstance(value, str) and re.match(rf"{_SCHEME}://", value, re.IGNORECASE):
        raise error(f"{name} {value!r}: URLs are not read; download the file first and give its path.")
    if isinstance(value, Path) and re.match(rf"{_SCHEME}:/", value.as_posix(), re.IGNORECASE):
        raise error(f"{name} {str(value)!r} is a URL in a Path, not a file; images may have a URL, given as a string.")


def is_web_address(value: object) -> bool:
    """Return True for a string that begins with ``http://`` or ``https://``."""
    return isinstance(value, str) and re.match(r"https?://", value, re.IGNORECASE) is not None


def check_plain_yaml(text: str) -> None:
    """Check that a text in YAML has neither aliases nor deep nesting.

    Some aliases unpack to any size, and one of itself never ends. The time of the parser is quadratic in the depth:
    one of 50 kB can keep it busy for minutes.

    Raises:
        ValueError: It has some.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases of YAML (*name) are not read; write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_YAML_LEVELS:
            raise ValueError(f"lists and mappings of YAML are nested in more than {_MOST_YAML_LEVELS} levels")


def parse_device(device: torch.device | str) -> torch.device:
    """Return the device with this name.

    Raises:
        CamtoolError: Torch has no such device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:  # ValueError: too large a number
        reason = str(error).split("\n", 1)[0]
        raise CamtoolError(f"device={device!r} is not a device of torch: {reason}") from error


def _or_none(*, optional: bool) -> str:
    return ", or None" if optional else ""


def iterate_leaves(nested: Any) -> Iterator[Any]:
    """Yield what nested lists contain, depth first. Strings are values, other iterables are lists."""
    if isinstance(nested, Iterable) and not isinstance(nested, (str, bytes)):
        for entry in nested:
            yield from iterate_leaves(entry)
    else:
        yield nested


# ------------------------------------------------------------------------------- options that say what they accept

# Types of options, with the check of their values that :func:`check_options_of` makes.
Count: TypeAlias = Annotated[int, check_count]
OptionalCount: TypeAlias = Annotated[int | None, partial(check_count, optional=True)]
CountOrZero: TypeAlias = Annotated[int, partial(check_count, least=0)]
Number: TypeAlias = Annotated[float, check_number]
Positive: TypeAlias = Annotated[float, partial(check_number, above=0)]
NotNegative: TypeAlias = Annotated[float, partial(check_number, least=0)]
# A share of something: of all of it, but not of none; or of none, but not of all.
Share: TypeAlias = Annotated[float, partial(check_number, above=0, most=1)]
ShareBelowOne: TypeAlias = Annotated[float, partial(check_number, least=0, below=1)]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def check_options_of(function: Callable[_P, _R], error: type[CamtoolError]) -> Callable[_P, _R]:
    """Return a function that checks its keyword arguments before it runs, by their annotations.

    :data:`Count` and the types like it say which values an option takes, and so does ``Literal``. A function without
    such options is returned as it is.
    """
    if not (checks := find_checks(function)):
        return function

    @wraps(function)
    def check_and_call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name, check in checks.items():
            if name in kwargs:
                check(name, kwargs[name], error=error)
        return function(*args, **kwargs)

    return check_and_call


def find_checks(annotated: Callable[..., Any]) -> dict[str, Callable[..., object]]:
    """Return the checks of the options of a function, or of the fields of a class, by name."""
    hints: dict[str, Any] = {}
    with Forgive(Exception):  # a user's function may have any annotations
        hints = get_type_hints(annotated, include_extras=True)
    return {name: check for name, hint in hints.items() if (check := _find_check(hint)) is not None}


def _find_check(hint: Any) -> Callable[..., object] | None:
    if get_origin(hint) is Literal:
        return partial(check_choice, among=get_args(hint))
    return next(filter(callable, getattr(hint, "__metadata__", ())), None)
