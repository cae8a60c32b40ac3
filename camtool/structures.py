"""Structures of tensors: what a model is called with and what it returns, in tuples, mappings, data classes or bare.

They are walked depth first, in one order: :func:`tensors_in` and :func:`map_tensors` meet the same tensors.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from torch import Tensor

__all__ = [
    "Inputs",
    "Shared",
    "by_name",
    "located_tensors",
    "main_tensor",
    "map_batch",
    "map_tensors",
    "tensors_in",
    "with_main_tensor",
]

Inputs: TypeAlias = Tensor | Sequence[Any] | Mapping[Any, Any]
"""What a model is called with: one tensor, positional arguments, or a mapping of keyword arguments, in which whole
numbers stand for positions. Its :func:`main_tensor` is the picture; in a mapping that is the entry that comes first."""


class Shared:
    """What a model is given for all images alike, in a mapping of inputs: it is never cut or multiplied with them."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def copied(self) -> Any:
        """A copy, as a model may write to what it is given."""
        return map_tensors(self._value, Tensor.clone)


def main_tensor(output: Any) -> Tensor | None:
    """The first floating tensor in a module's output, searched depth first.

    Tuples, lists, mappings and data classes are looked into. Nested tensors, in which transformers leave out padding,
    have no shape to read a map from, and are passed over.
    """
    return next((tensor for tensor in tensors_in(output) if tensor.is_floating_point() and not tensor.is_nested), None)


def with_main_tensor(output: Any, tensor: Tensor) -> Any:
    """``output`` with its :func:`main_tensor` replaced, in the same structure."""
    old = main_tensor(output)
    return map_tensors(output, lambda item: tensor if item is old else item)


def tensors_in(structure: Any) -> list[Tensor]:
    """The tensors of a structure, depth first: in the order in which :func:`map_tensors` meets them."""
    if isinstance(structure, Tensor):
        return [structure]
    return [tensor for part in _parts(structure) for tensor in tensors_in(part)]


def located_tensors(structure: Any, path: str = "output") -> list[tuple[str, Tensor]]:
    """Return the tensors of a structure, depth first, each with the expression that gives it: ``output["age"]``."""
    if isinstance(structure, Tensor):
        return [(path, structure)]
    if isinstance(structure, Mapping):
        parts = [(f"{path}[{key!r}]", item) for key, item in structure.items()]
    elif isinstance(structure, (tuple, list)) and not hasattr(structure, "_fields"):
        parts = [(f"{path}[{index}]", item) for index, item in enumerate(structure)]
    else:
        parts = [(f"{path}.{name}", item) for name, item in by_name(structure).items()]
    return [found for place, item in parts for found in located_tensors(item, place)]


def map_tensors(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure of tuples, named tuples, lists, dictionaries and data classes, with each tensor changed."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, Mapping) and not isinstance(structure, MutableMapping):
        return {key: map_tensors(item, change) for key, item in structure.items()}
    if isinstance(structure, MutableMapping):
        changed = _copied(structure)
        for key, item in structure.items():
            changed[key] = map_tensors(item, change)
        return changed
    if isinstance(structure, (tuple, list)):
        items = [map_tensors(item, change) for item in structure]
        make = getattr(structure, "_make", type(structure))  # a named tuple's own constructor may ask more of its items
        return make(items)
    if _is_data(structure):
        changed = copy.copy(structure)
        for each in fields(structure):
            item = map_tensors(getattr(structure, each.name), change)
            object.__setattr__(changed, each.name, item)  # it may be frozen
        return changed
    return structure


def map_batch(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same inputs, with each tensor changed that has an entry for each image.

    The rest belongs to no image, a temperature or a table of constants say, and is handed on as it is.
    """
    picture = main_tensor(inputs)
    count = None if picture is None else len(picture)

    def part(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.ndim and count in (None, len(tensor)) else tensor

    changed: Inputs = map_tensors(inputs, part)
    return changed


def by_name(structure: Any) -> Mapping[Any, Any]:
    """What a mapping, a data class or a named tuple holds, by name; nothing where there are no names."""
    if isinstance(structure, Mapping):
        return structure
    if _is_data(structure):
        return {each.name: getattr(structure, each.name) for each in fields(structure)}
    names: Sequence[str] = getattr(structure, "_fields", ()) if isinstance(structure, tuple) else ()
    return {name: getattr(structure, name) for name in names}


def _copied(structure: MutableMapping[Any, Any]) -> MutableMapping[Any, Any]:
    """Another mapping of the same items, to which may be written."""
    if isinstance(structure, (dict, UserDict)):
        return copy.copy(structure)
    # Those that hold their items in an attribute would share it with a shallow copy.
    return copy.deepcopy(structure, {id(item): item for item in structure.values()})


def _parts(structure: Any) -> Iterable[Any]:
    return structure if isinstance(structure, (tuple, list)) else by_name(structure).values()


def _is_data(structure: Any) -> bool:
    """Whether it is a data class' instance; those that are mappings too, as Hugging Face's, are taken for mappings."""
    return is_dataclass(structure) and not isinstance(structure, (type, Mapping))
