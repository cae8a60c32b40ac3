"""Nested structures of tensors: the inputs and outputs of models, in tuples, lists, mappings and data classes.

All functions walk a structure depth first, in the same order.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

# The inputs of a model: one tensor, a sequence of positional arguments, or a mapping of keyword arguments, in which
# integer keys stand for positional arguments. :func:`find_main_tensor` returns the image; in a mapping it comes first.
ModelInputs: TypeAlias = Tensor | Sequence[Any] | Mapping[Any, Any]


class SharedInput:
    """An input that all images of a batch share. It is not split or repeated along the batch dimension."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def copy(self) -> Any:
        """Return a copy of the value, as a model may write to its inputs."""
        return map_tensors(self._value, Tensor.clone)

    def has_several_values(self) -> bool:
        """Check that it holds a tensor of more than one value."""
        return any(tensor.numel() > 1 for tensor in find_tensors(self._value))


def shares_several_values(inputs: ModelInputs) -> bool:
    """Check that more images than the user gave might run with other inputs, silently.

    OWL-ViT deals its texts out to the images: two texts belong to one image, or to two images one each.
    """
    shared = inputs.values() if isinstance(inputs, Mapping) else ()
    return any(isinstance(value, SharedInput) and value.has_several_values() for value in shared)


def find_main_tensor(output: Any) -> Tensor | None:
    """Return the first floating or quantized tensor of a structure, or None.

    A quantized tensor is returned as it is: 8-bit integers with a scale and a zero point, as statically quantized
    modules (``torch.ao.quantization``) return. Methods compute with its real values, ``tensor.dequantize()``; for other
    tensors that would be a conversion to float32.

    Nested tensors (``torch.nested``), which transformers use to leave out padding, are skipped: they have no shape from
    which a map could be read.
    """
    for tensor in find_tensors(output):
        if (tensor.is_floating_point() or tensor.is_quantized) and not tensor.is_nested:
            return tensor
    return None


def replace_main_tensor(output: Any, tensor: Tensor) -> Any:
    """Return the same structure with its :func:`find_main_tensor` replaced.

    If that is quantized, real values that replace it are quantized in the same way.
    """
    old = find_main_tensor(output)
    if old is None:
        return output
    new = quantize_like(tensor, old) if old.is_quantized and not tensor.is_quantized else tensor
    if output is old:
        return new
    return map_tensors(output, lambda item: new if item is old else item)


def find_tensors(structure: Any) -> list[Tensor]:
    """Return the tensors of a structure."""
    if isinstance(structure, Tensor):
        return [structure]
    return [tensor for part in _get_parts(structure) for tensor in find_tensors(part)]


def describe_shapes(inputs: Any) -> tuple[object, ...]:
    """Return a key for how the model is called: names of the arguments, shapes for one image, and plain values."""
    if isinstance(inputs, Tensor):
        return (tuple(inputs.shape[1:]),)
    if isinstance(inputs, (str, int, float, bool, type(None))):  # may choose a branch of the model
        return type(inputs).__name__, inputs
    names = inputs if isinstance(inputs, Mapping) else ()
    return (*names, *map(describe_shapes, _get_parts(inputs)))


def locate_tensors(structure: Any, path: str = "output") -> list[tuple[str, Tensor]]:
    """Return the tensors of a structure, each with the expression that selects it, e.g. ``output["age"]``."""
    if isinstance(structure, Tensor):
        return [(path, structure)]
    if isinstance(structure, Mapping):
        parts = [(f"{path}[{key!r}]", item) for key, item in structure.items()]
    elif isinstance(structure, (tuple, list)) and not hasattr(structure, "_fields"):
        parts = [(f"{path}[{index}]", item) for index, item in enumerate(structure)]
    else:
        parts = [(f"{path}.{name}", item) for name, item in get_named_items(structure).items()]
    return [located for part_key, item in parts for located in locate_tensors(item, part_key)]


def map_tensors(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same structure with ``change`` applied to each tensor.

    Tuples, named tuples, lists, mappings and data classes are rebuilt. Other objects are kept.
    """
    if isinstance(structure, Tensor):
        return change(structure)
    return _map_parts(structure, change)


def _map_parts(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    changed: Any = structure
    if isinstance(structure, Mapping):
        changed = _copy_mapping(structure)
        for key, item in structure.items():
            changed[key] = map_tensors(item, change)
    elif isinstance(structure, (tuple, list)):
        # The constructor of a named tuple takes the items one by one.
        make = getattr(structure, "_make", type(structure))
        changed = make([map_tensors(item, change) for item in structure])
    elif _is_data_class(structure):
        changed = copy.copy(structure)
        for field in fields(structure):
            item = map_tensors(getattr(structure, field.name), change)
            object.__setattr__(changed, field.name, item)  # works on frozen data classes, too
    return changed


def map_batch(inputs: ModelInputs, change: Callable[[Tensor], Tensor]) -> ModelInputs:
    """Return the same inputs with ``change`` applied to each tensor that has one entry per image.

    Other tensors belong to no image, e.g. a temperature or a table of constants, and are kept.
    """
    image = find_main_tensor(inputs)
    count = len(image) if image is not None and image.ndim else None

    def change_part(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.ndim and count in (None, len(tensor)) else tensor

    changed: ModelInputs = map_tensors(inputs, change_part)
    return changed


def get_named_items(structure: Any) -> Mapping[Any, Any]:
    """Return the items of a mapping, a data class or a named tuple by name; an empty mapping for anything else."""
    if isinstance(structure, Mapping):
        return structure
    if _is_data_class(structure):
        return {field.name: getattr(structure, field.name) for field in fields(structure)}
    names: Sequence[str] = getattr(structure, "_fields", ()) if isinstance(structure, tuple) else ()
    return {name: getattr(structure, name) for name in names}


def _copy_mapping(structure: Mapping[Any, Any]) -> MutableMapping[Any, Any]:
    """Return a mapping of the same items that can be written to without changing the original."""
    if isinstance(structure, (dict, UserDict)):
        return copy.copy(structure)
    if not isinstance(structure, MutableMapping):
        return dict(structure)
    # A shallow copy of other mappings may share the attribute that holds the items. The memo keeps the items uncopied.
    return copy.deepcopy(structure, {id(item): item for item in structure.values()})


def _get_parts(structure: Any) -> Iterable[Any]:
    return structure if isinstance(structure, (tuple, list)) else get_named_items(structure).values()


def _is_data_class(structure: Any) -> bool:
    """Return True for an instance of a data class. Those that are mappings, too, as in transformers, are mappings."""
    return is_dataclass(structure) and not isinstance(structure, (type, Mapping))


def get_bytes(tensor: Tensor) -> bytes:
    """Return the values of a tensor of any type and device, in the order of its axes."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def quantize_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return real values with the scale, the zero point, the type and the memory format of a quantized tensor.

    Values between two steps are rounded, and values out of range become the smallest or the largest one. The values of
    ``like`` itself come back exactly.

    Args:
        tensor: Real values.
        like: Quantized with one scale for all channels, as all activations of torch are.
    """
    # torch's kernels for the two memory formats round means differently, e.g. in adaptive average pooling, so values
    # in another format would change the score by themselves.
    values = tensor.detach().float().contiguous(memory_format=_find_memory_format(like))
    return torch.quantize_per_tensor(values, like.q_scale(), like.q_zero_point(), like.dtype)


def _find_memory_format(tensor: Tensor) -> torch.memory_format:
    for axes, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == axes and tensor.is_contiguous(memory_format=memory_format):
            return memory_format
    return torch.contiguous_format
