"""What a model's result depends on beside its weights: plain attributes, e.g. ``stride``, and forward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from torch import nn

__all__ = ["ModuleSettings"]

_PLAIN = {bool, int, float, str, type(None), tuple}
"""Types of attributes that are compared. Others, e.g. lists and objects, may be changed in place."""


class ModuleSettings:
    """The plain attributes and the forward functions of some modules at one moment.

    Args:
        modules: The modules, in a fixed order.
    """

    __slots__ = ("_counts", "_functions", "_names", "_own_functions", "_values")

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        attributes = [vars(module) for module in modules]
        self._names = [_find_names(own) for own in attributes]
        self._values = [[own[name] for name in names] for own, names in zip(attributes, self._names, strict=True)]
        self._counts = [*map(len, attributes)]
        self._own_functions = _find_own_functions(attributes)
        self._functions = _find_functions(modules)

    def equal_those_of(self, modules: Sequence[nn.Module]) -> bool:
        """Return True if the modules have the same attributes, of the same values, and the same functions."""
        attributes = [vars(module) for module in modules]
        return (
            [*map(len, attributes)] == self._counts
            and _find_own_functions(attributes) == self._own_functions
            and _find_functions(modules) == self._functions
            and all(map(_are_equal, attributes, self._names, self._values))
        )

    def describe(self) -> list[object]:
        """Return names, values and code; other processes have the same, if no module has a function of its own."""
        values = [[*zip(names, values, strict=True)] for names, values in zip(self._names, self._values, strict=True)]
        codes = sorted((name, _describe_code(function)) for name, function in self._functions.items())
        return [values, self._own_functions, codes]


def _find_names(own: Mapping[str, Any]) -> list[str]:
    # The flag "training" is that of the moment, and models run in evaluation mode.
    return [name for name, value in own.items() if type(value) in _PLAIN and name != "training"]


def _find_own_functions(attributes: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return which modules have a forward function of their own, and its id: the function may refer to the model."""
    return [(index, id(own["forward"])) for index, own in enumerate(attributes) if "forward" in own]


def _find_functions(modules: Sequence[nn.Module]) -> dict[str, Any]:
    """Return the forward functions of the modules' classes."""
    return {
        f"{kind.__module__}.{kind.__qualname__}": getattr(kind, "forward", None) for kind in set(map(type, modules))
    }


def _describe_code(function: Any) -> str:
    """Return what changes if the source of a function is edited; functions that it calls are not read."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return repr((code.co_code, code.co_names, [each for each in code.co_consts if type(each) in _PLAIN]))


def _are_equal(own: Mapping[str, Any], names: Sequence[str], before: Sequence[Any]) -> bool:
    now = [*map(own.get, names)]
    # Nearly all are the same objects, which is found fast.
    return all(map(is_, now, before)) or ([*map(type, now)] == [*map(type, before)] and now == before)
