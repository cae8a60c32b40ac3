"""Checks of what a run stored as JSON, before it is used: anybody may have written such a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

_MAX_DEPTH = 32
"""Nested lists and objects of JSON. Descriptions and records have about six; recursive functions allow hundreds."""

_Built = TypeVar("_Built")


def parse_object(content: bytes, *, is_finite: bool = True) -> dict[str, Any]:
    """Return an object of JSON.

    Args:
        content: The text.
        is_finite: Refuse NaN and infinity, which JSON lacks, and numbers too large for a float.

    Raises:
        ValueError: The content is no JSON, something else than an object, or nested too deep.
    """
    try:
        parsed = (_FINITE if is_finite else _ANY).decode(content.decode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"it holds a {type(parsed).__name__}, not an object")
    _check_depth(parsed, _MAX_DEPTH)
    return parsed


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    return number if abs(number) < float("inf") else _refuse_number(text)


def _parse_int(text: str) -> int:
    _parse_float(text)
    return int(text)


_FINITE = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_parse_float, parse_int=_parse_int)
_ANY = json.JSONDecoder()


def _check_depth(value: Any, most: int) -> None:
    if isinstance(value, (dict, list)):
        if most == 0:
            raise ValueError("it is nested too deep")
        for entry in value.values() if isinstance(value, dict) else value:
            _check_depth(entry, most - 1)


def build_checked(kind: type[_Built], values: Mapping[str, Any]) -> _Built:
    """Return an instance of a dataclass from values of JSON. Names that it does not know are left out.

    Raises:
        ValueError: A value is missing, or of another type than the field is annotated with.
    """
    checks = _get_checks(kind)  # type: ignore[arg-type]  # mypy takes a class of any type for unhashable
    known = {name: value for name, value in values.items() if name in checks}
    for name, value in known.items():
        if not checks[name](value):
            raise ValueError(f"its {name!r} is of type {type(value).__name__}, or holds a value of another type")
    try:
        return kind(**known)
    except TypeError as error:
        raise ValueError(str(error).partition(") ")[2] or str(error)) from error


@cache
def _get_checks(kind: type) -> dict[str, Callable[[Any], bool]]:
    hints = get_type_hints(kind)
    return {field.name: build_check(hints[field.name]) for field in fields(kind)}


def build_check(hint: Any) -> Callable[[Any], bool]:
    """Return a function that tells if a value of JSON is of an annotated type. Whole numbers are numbers."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is None:
        return _build_plain_check(hint)
    if origin is UnionType:
        checks = [build_check(argument) for argument in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is dict:
        check = build_check(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    return _build_list_check(arguments, has_length=origin is tuple and arguments[-1] is not ...)


def _build_plain_check(kind: type) -> Callable[[Any], bool]:
    if kind is bool:
        return lambda value: isinstance(value, bool)
    allowed = (int, float) if kind is float else kind
    return lambda value: isinstance(value, allowed) and not isinstance(value, bool)


def _build_list_check(arguments: tuple[Any, ...], *, has_length: bool) -> Callable[[Any], bool]:
    check = build_check(arguments[0])

    def is_list(value: Any) -> bool:
        is_as_long = isinstance(value, (list, tuple)) and (not has_length or len(value) == len(arguments))
        return is_as_long and all(map(check, value))

    return is_list
