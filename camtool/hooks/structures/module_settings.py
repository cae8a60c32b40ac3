"""What a model's result depends on beside its weights: plain attributes, e.g. ``stride``, and forward functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any, TypeAlias

import numpy as np
from torch import nn

_PLAIN = {bool, int, float, str, type(None), tuple}
"""Types of attributes that are compared as they are."""

_Attributes: TypeAlias = Mapping[str, Any]


class ModuleSettings:
    """The plain attributes and the forward functions of some modules at one moment.

    Args:
        modules: The modules, in a fixed order.
    """

    __slots__ = ("_counts", "_functions", "_named_others", "_others", "_own_functions", "_plain", "_readers", "_values")

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        attributes = [*map(vars, modules)]
        self._plain = [*map(_select_plain, attributes)]
        self._readers = [*map(_make_reader, self._plain)]
        self._values = [*chain.from_iterable(_read(self._readers, attributes))]
        self._others = [*_iterate_others(attributes, id)]
        self._named_others = [*_iterate_others(attributes, _name_function)]
        self._counts = [*map(len, attributes)]
        self._own_functions = _find_own_functions(attributes)
        self._functions = _find_functions(modules)

    def equal_those_of(self, modules: Sequence[nn.Module]) -> bool:
        """Return True if the modules have the same attributes, of the same values, and the same functions."""
        attributes = [*map(vars, modules)]
        return (
            [*map(len, attributes)] == self._counts
            and _find_own_functions(attributes) == self._own_functions
            and _find_functions(modules) == self._functions
            and self._have_equal_values(attributes)
            and [*_iterate_others(attributes, id)] == self._others
        )

    def _have_equal_values(self, attributes: Sequence[_Attributes]) -> bool:
        try:
            now = [*chain.from_iterable(_read(self._readers, attributes))]
        except KeyError:  # one attribute came and another went
            return False
        # Nearly always all are the same objects. As one list, the values of hundreds of modules are compared fast.
        before = self._values
        return all(map(is_, now, before)) or ([*map(type, now)] == [*map(type, before)] and now == before)

    def describe(self) -> list[object]:
        """Return names, values and code; other processes have the same, if no module has a function of its own."""
        values = [[*plain.items()] for plain in self._plain]
        codes = sorted((name, _describe_code(function)) for name, function in self._functions.items())
        return [values, self._own_functions, codes, self._named_others]


def _select_plain(own: _Attributes) -> dict[str, Any]:
    # The flag "training" is that of the moment, and models run in evaluation mode.
    return {name: value for name, value in own.items() if type(value) in _PLAIN and name != "training"}


def _iterate_others(
    attributes: Sequence[_Attributes], describe: Callable[[Any], object]
) -> Iterator[tuple[int, str, object]]:
    """Yield the public attributes that are not plain: containers by what they hold, functions by what describes them.

    No reference to a function is kept, as it may refer to the model.
    """
    for index, own in enumerate(attributes):
        for name, value in own.items():
            if type(value) not in _PLAIN and not name.startswith("_"):
                frozen = _freeze(value, describe)
                if frozen is not ...:
                    yield index, name, frozen


def _freeze(value: Any, describe: Callable[[Any], object], depth: int = 4) -> Any:
    """Return what is the same while a value is; ``...`` for tensors, modules and objects, which a pass may make."""
    if isinstance(value, np.generic):
        return value.dtype.str, value.item()
    if isinstance(value, (list, tuple)) and depth:
        return type(value).__name__, *(_freeze(item, describe, depth - 1) for item in value)
    if isinstance(value, Mapping) and depth:
        return "mapping", *((repr(key), _freeze(item, describe, depth - 1)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return "set", *sorted(map(repr, value))
    if type(value) in _PLAIN:
        return value
    return describe(value) if callable(value) and not isinstance(value, nn.Module) else ...


def _name_function(function: Any) -> object:
    return getattr(function, "__qualname__", type(function).__qualname__), _describe_code(function)


def _make_reader(names: Collection[str]) -> Callable[[_Attributes], tuple[Any, ...]]:
    """Return a function that reads the attributes of these names."""
    if not names:
        return lambda _: ()
    # A tuple comes of two names or more, so a single one is read twice.
    return itemgetter(*names, *names) if len(names) == 1 else itemgetter(*names)


def _read(
    readers: Sequence[Callable[[_Attributes], tuple[Any, ...]]], attributes: Sequence[_Attributes]
) -> list[tuple[Any, ...]]:
    return [read(own) for read, own in zip(readers, attributes, strict=True)]


def _find_own_functions(attributes: Sequence[_Attributes]) -> list[tuple[int, int]]:
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
    return repr((code.co_code, code.co_names, [constant for constant in code.co_consts if type(constant) in _PLAIN]))
