"""What a model's result depends on beside its weights: attributes of modules, as ``stride``, and forward functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from torch import nn

# Types of attributes that are compared as they are; tuples of them are, too.
_PLAIN = {bool, int, float, str, type(None)}

# Attributes of every module: its weights, children and hooks, which others compare, and the flag ``training``, which
# is that of the moment. Most attributes are among them, so it takes long to read them.
_OF_TORCH = frozenset(vars(nn.Module()))

_Attributes: TypeAlias = Mapping[str, Any]


class ModuleSettings:
    """The settings of some modules at one moment: their own attributes, and the forward functions of their classes.

    The attributes to watch are listed once, here. To compare them, all are read at once, as one list of values:

    * A value has the type that it had. This is all that is known of tensors and objects, which a forward pass may make.
    * Plain values are equal.
    * Lists, mappings and sets hold what they held, and functions are the same. A forward pass may write to containers
      whose name begins with an underscore, so these are left out.

    Args:
        modules: The modules, in a fixed order.
    """

    __slots__ = ("_contents", "_counts", "_functions", "_has_content", "_is_plain", "_plain", "_readers", "_types")

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        attributes = [*map(vars, modules)]
        names = [[name for name in own if name not in _OF_TORCH] for own in attributes]
        self._counts = [*map(len, attributes)]
        self._readers = [(index, _make_reader(of_module)) for index, of_module in enumerate(names) if of_module]
        values = self._read(attributes)
        self._types = [*map(type, values)]
        self._is_plain = [*map(_is_plain, values)]
        self._plain = [*compress(values, self._is_plain)]
        watched = zip(chain.from_iterable(names), values, self._is_plain, strict=True)
        self._has_content = [not is_plain and _has_content(name, value) for name, value, is_plain in watched]
        self._contents = [_freeze(value, id) for value in compress(values, self._has_content)]
        self._functions = _find_functions(modules)

    def equal_those_of(self, modules: Sequence[nn.Module]) -> bool:
        """Return True if the modules have the same attributes, of the same values, and the same functions."""
        attributes = [*map(vars, modules)]
        if [*map(len, attributes)] != self._counts or _find_functions(modules) != self._functions:
            return False
        try:
            values = self._read(attributes)
        except KeyError:  # one attribute came and another went
            return False
        # Nearly always all are the same objects, which lists compare without a look at their values.
        return (
            [*map(type, values)] == self._types
            and [*compress(values, self._is_plain)] == self._plain
            and [_freeze(value, id) for value in compress(values, self._has_content)] == self._contents
        )

    def _read(self, attributes: Sequence[_Attributes]) -> list[Any]:
        """Return the values of all attributes that are watched."""
        return [*chain.from_iterable([read(attributes[index]) for index, read in self._readers])]


def describe_settings(modules: Sequence[nn.Module]) -> list[object]:
    """Return names, values and code; other processes have the same, if no module has a function of its own."""
    attributes = [*map(vars, modules)]
    settings = [
        (index, name, _freeze(value, _name_function))
        for index, own in enumerate(attributes)
        for name, value in own.items()
        if name not in _OF_TORCH and (_is_plain(value) or _has_content(name, value))
    ]
    own_functions = [(index, id(own["forward"])) for index, own in enumerate(attributes) if "forward" in own]
    codes = sorted(
        (f"{kind.__module__}.{kind.__qualname__}", _describe_code(function))
        for kind, function in _find_functions(modules).items()
    )
    return [settings, own_functions, codes]


def _make_reader(names: Sequence[str]) -> Callable[[_Attributes], tuple[Any, ...]]:
    """Return a function that reads the attributes of these names."""
    if len(names) == 1:  # of a single name, itemgetter returns no tuple
        return lambda own: (own[names[0]],)
    return itemgetter(*names)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _has_content(name: str, value: Any) -> bool:
    """Return True for functions, and for containers to look into."""
    is_public = not name.startswith("_") or type(value) is tuple
    return is_public and _freeze(value, id) is not ...


def _freeze(value: Any, describe: Callable[[Any], object], depth: int = 4) -> Any:
    """Return what is the same while a value is; ``...`` for tensors and objects, which a pass may make.

    No reference to a function is kept, as it may refer to the model.
    """
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
    return describe(value) if callable(value) else ...


def _name_function(function: Any) -> object:
    return getattr(function, "__qualname__", type(function).__qualname__), _describe_code(function)


def _find_functions(modules: Sequence[nn.Module]) -> dict[type, Any]:
    """Return the forward functions of the modules' classes."""
    return {kind: getattr(kind, "forward", None) for kind in {*map(type, modules)}}


def _describe_code(function: Any) -> str:
    """Return what changes if the source of a function is edited; functions that it calls are not read."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return repr((code.co_code, code.co_names, [constant for constant in code.co_consts if _is_plain(constant)]))
