"""The modules of a model: how they are nested, their names, their weights, and kinds that allow no hooks or gradients.

Every explanation reads the modules several times. A model is walked through when it is first seen. Later it is only
compared with what was found, by operations on whole lists, which take less time. Within :data:`HELD_TREES` it is
compared once, and again after each forward pass: the code of a model may replace its modules, and nothing else does in
such a block.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, fx, nn

from camtool.arguments.message_parts import suggest_names
from camtool.errors import LayerError
from camtool.hooks.private_torch import get_buffers, get_children, get_parameters, get_write_counts


class ModuleTree:
    """The modules of a model at one moment. It keeps them alive, so nobody keeps it for long.

    Args:
        modules: Each module once, in the order of ``model.modules()``.

    Attributes:
        modules: As above.
        children: The children of each module, one module after the other; ``None`` for those that were set to it. A
            module with several parents comes once for each.
        names: Their names.
        counts: The number of children of each module.
        structure: What is the same for all trees of a model until its structure changes.
    """

    __slots__ = ("children", "counts", "modules", "names", "structure")

    structure: Structure

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules
        # Copied in one step, because a forward pass of another thread may add some. TorchScript's are no mappings.
        own = [dict(children) if len(children) else {} for children in map(get_children, modules)]
        self.counts = [*map(len, own)]
        parents = [*filter(None, own)]
        self.children: list[nn.Module | None] = [*chain.from_iterable(map(dict.values, parents))]
        self.names: list[str] = [*chain.from_iterable(parents)]


class Structure:
    """The structure of a model: its modules, their classes, and how they are nested. It keeps no module alive.

    Args:
        tree: The tree of the model. Its own structure is this one from then on.
        drop: Called when the model is gone.

    Attributes:
        model: A weak reference to the model.
        modules: Weak references to its modules. Python may give the id of a deleted module to a new one.
        lacks_gradients: True if one is a quantized module of torch, or of a class that says so: no gradient passes it.
        buffers: The buffers of the modules by group, see :class:`camtool.hooks.state.guard.BufferSnapshot`.
        queues: Attributes that are queues, e.g. of a policy's next actions, or dictionaries with queues: the place of
            the module, and the name.
    """

    __slots__ = ("_classes", "_counts", "_links", "_names", "buffers", "lacks_gradients", "model", "modules", "queues")

    def __init__(self, tree: ModuleTree, drop: Callable[[object], None]) -> None:
        modules = tree.modules
        self.model, self.modules = weakref.ref(modules[0], drop), [*map(weakref.ref, modules)]
        self._classes, self._names, self._counts = [*map(type, modules)], tree.names, tree.counts
        indices = {id(module): index for index, module in enumerate(modules)}
        indices[id(None)] = len(modules)
        self._links = [indices[id(child)] for child in tree.children]
        self.lacks_gradients = any(
            getattr(kind, "lacks_gradients", False)
            or (".quantized" in kind.__module__ and kind.__name__ not in _FLOAT_KINDS)
            for kind in {*self._classes}
        )
        self.buffers: tuple[tuple[list[Any], ...], list[list[int]]] | None = None
        attributes = [(index, *item) for index, module in enumerate(modules) for item in vars(module).items()]
        self.queues = [(index, name) for index, name, value in attributes if list_queues(value)]
        tree.structure = self

    def fits(self, tree: ModuleTree) -> bool:
        """Return True, and set it in the tree, if the same modules are of the same classes and nested as before.

        If each module has the children that it had, no other module is part of the model.
        """
        with_none = [*tree.modules, None]
        fits = (
            tree.counts == self._counts
            and tree.names == self._names
            and [*map(type, tree.modules)] == self._classes
            and all(map(is_, tree.children, map(with_none.__getitem__, self._links)))
        )
        if fits:
            tree.structure = self
        return fits


def iterate_queues(model: nn.Module) -> Iterator[tuple[str, deque[Any]]]:
    """Yield the queues that a model keeps, with the name of the attribute."""
    tree = read_tree(model)
    for index, name in tree.structure.queues:
        for queue in list_queues(vars(tree.modules[index]).get(name)):
            yield name, queue


def list_queues(value: object) -> list[deque[Any]]:
    """Return the queues that an attribute of a module is, or has as values."""
    values = [*value.values()] if isinstance(value, dict) else [value]
    return [queue for queue in values if isinstance(queue, deque)]


class _HeldTrees(threading.local):
    """The trees of the models that this thread holds, by id; ``None`` if a tree must be read again.

    Each block of :func:`camtool.hooks.state.guard.guard` holds its model, and keeps it alive. A forward pass sets all
    to ``None``, as its code may have replaced modules.
    """

    def __init__(self) -> None:
        self.by_model: dict[int, ModuleTree | None] = {}


HELD_TREES = _HeldTrees()

# The structures by the id of the model, for as long as the model lives. Each step is a single dictionary operation, so
# threads need no lock, and a forked process inherits no locked one.
_STRUCTURES: dict[int, Structure] = {}


def read_tree(model: nn.Module) -> ModuleTree:
    """Return the modules of a model as they are now."""
    held = HELD_TREES.by_model
    tree = held.get(id(model))
    if tree is None:
        structure = _STRUCTURES.get(id(model))
        tree = _read_known_modules(model, structure) or _walk_through(model, structure)
        if id(model) in held:
            held[id(model)] = tree
    return tree


def _read_known_modules(model: nn.Module, structure: Structure | None) -> ModuleTree | None:
    """Return the modules that a model had, if it has them still, and no others."""
    if structure is None or structure.model() is not model:
        return None
    modules = [module for module in [reference() for reference in structure.modules] if module is not None]
    tree = ModuleTree(modules)
    return tree if structure.fits(tree) else None


def _walk_through(model: nn.Module, structure: Structure | None) -> ModuleTree:
    """Read all modules anew. TorchScript wraps children anew each time, so this may find what was known before."""
    tree = ModuleTree(_list_modules(model))
    before = [] if structure is None else [reference() for reference in structure.modules]
    is_known = len(tree.modules) == len(before) and all(map(is_, tree.modules, before))
    if structure is None or not is_known or not structure.fits(tree):
        _STRUCTURES[id(model)] = Structure(tree, partial(drop_entry, _STRUCTURES, id(model)))
    return tree


def _list_modules(model: nn.Module) -> list[nn.Module]:
    """Return what ``model.modules()`` yields, several times faster."""
    entered: dict[int, nn.Module] = {}
    stack: list[nn.Module | None] = [model]
    while stack:
        module = stack.pop()
        if module is None or id(module) in entered:
            continue
        entered[id(module)] = module
        children = get_children(module)
        if children:
            stack += reversed([*children.values()])
    return [*entered.values()]


def drop_entry(by_model: dict[int, Any], key: int, _: object) -> None:
    """Drop what is kept of a model that is gone. When Python ends, this module may have no names any more."""
    by_model.pop(key, None)


# ---------------------------------------------------------------------------------------------------------------- names


def get_modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Return each module once, by the first of its dotted names. The model itself is ``""``."""
    return dict(model.named_modules())


def iterate_hookable_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the names and modules that accept hooks: all except those of TorchScript."""
    return ((name, module) for name, module in model.named_modules() if not isinstance(module, torch.jit.ScriptModule))


def find_module(model: nn.Module, layer: str) -> nn.Module:
    """Return the module with this dotted name. If a module has several names, each of them finds it.

    Raises:
        LayerError: There is none. The message suggests similar names.
    """
    module = model
    # The same steps as in get_submodule, which TorchScript modules do not have.
    for name in layer.split(".") if layer else ():
        child = getattr(module, name, None)
        if not isinstance(child, nn.Module):
            raise LayerError(describe_unknown_layer(model, layer))
        module = child
    return module


def describe_unknown_layer(model: nn.Module, layer: str) -> str:
    """Return the error message for a layer that the model does not have, with similar names."""
    return (
        f"the model has no layer {layer!r}.{suggest_names(layer, get_modules_by_name(model))} To list its layers, use "
        "camtool.candidate_layers(model, img), or on the command line: python -m camtool layers MODEL"
    )


def find_module_name(model: nn.Module, layer: str | nn.Module) -> str:
    """Return the dotted name of a module of the model. A name is checked and returned.

    Raises:
        LayerError: The module is not part of the model, or the name is unknown.
    """
    if isinstance(layer, str):
        find_module(model, layer)
        return layer
    for name, module in get_modules_by_name(model).items():
        if module is layer:
            return name
    raise LayerError(f"layer: this {type(layer).__name__} is not a module of the model; pass one of its modules.")


def find_detector_transform(model: nn.Module) -> nn.Module | None:
    """Return the module with which a detector prepares its images itself, as torchvision's do; None for other models.

    Such a model is called with a list of images ``(C, H, W)`` of any size with values in [0, 1]. Its ``transform``
    normalizes and resizes them, and pads them at the bottom and on the right to form one batch.
    """
    transform = getattr(model, "transform", None)
    # Torchvision's class is not imported here. These are the attributes that the geometry relies on.
    is_transform = all(hasattr(transform, name) for name in ("batch_images", "postprocess", "min_size", "max_size"))
    return transform if isinstance(transform, nn.Module) and is_transform else None


def has_matrix(module: nn.Module) -> bool:
    """Check that a module has a parameter of its own with two or more axes, as linear layers and convolutions have."""
    return any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))


# -------------------------------------------------------------------------------------------------------------- weights


def list_weights(model: nn.Module, *, buffers: bool = True) -> list[Tensor]:
    """Return the parameters and buffers of a model, faster than ``model.parameters()``; shared ones come repeatedly."""
    modules = read_tree(model).modules
    own = chain(map(get_parameters, modules), map(get_buffers, modules) if buffers else ())
    # Most modules have none, so empty mappings are left out first. The others are copied in one step, because a forward
    # pass of another thread may add buffers.
    return [tensor for tensors in filter(len, own) for tensor in [*tensors.values()] if tensor is not None]


class WeightStates:
    """The states of some weights at one moment: a cached answer notices that they were trained, loaded or replaced.

    It does not keep the weights alive.

    Args:
        weights: Parameters or buffers.
        indices: The indices of the weights whose values are compared, by default all. The others must only be the same
            tensors.
    """

    __slots__ = ("_indices", "_pointers", "_weights", "_write_counts")

    def __init__(self, weights: Iterable[Tensor], indices: Sequence[int] | None = None) -> None:
        now = list(weights)
        self._weights, self._indices = [weakref.ref(weight) for weight in now], indices
        self._write_counts, self._pointers = self._read(now)

    def equal_those_of(self, weights: Iterable[Tensor]) -> bool:
        """Return True if these are the same weights in the same states; writes to ``parameter.data`` go unnoticed."""
        # Whole lists are compared, as every explanation compares hundreds of weights.
        now = list(weights)
        return (
            len(now) == len(self._weights)
            and all(map(is_, now, [reference() for reference in self._weights]))
            and self._read(now) == (self._write_counts, self._pointers)
        )

    def equal_parameters_of(self, everything: WeightStates) -> bool:
        """Return True if these are all parameters among the weights of a model, in the same states. None is read.

        Args:
            everything: The states of what :func:`list_weights` returned: parameters come first, then buffers.
        """
        count = len(self._weights)
        parameters, others = everything._weights[:count], everything._weights[count:]
        has_more = bool(others) and isinstance(others[0](), nn.Parameter)
        if has_more or len(parameters) != count or not all(map(is_, parameters, self._weights)):
            return False
        indices = range(count) if self._indices is None else self._indices
        write_counts, pointers = everything._write_counts, everything._pointers
        return [write_counts[index] for index in indices] == self._write_counts and [
            pointers[index] for index in indices
        ] == self._pointers

    def _read(self, weights: list[Tensor]) -> tuple[list[int], list[int]]:
        """Return numbers that change when weights are written to, and those that change when they get other memory."""
        chosen = weights if self._indices is None else [weights[index] for index in self._indices]
        return get_write_counts(chosen), [*map(Tensor.data_ptr, chosen)]


# ------------------------------------------------------------------------------------------------------ kinds of models


# The name of the module that torch.export adds to an exported graph to check the shapes of its inputs.
_GUARDS = "_guards_fn"

# Classes in torch.ao.nn.quantized that compute with floats: they are in models that are prepared for quantization.
_FLOAT_KINDS = ("FloatFunctional", "FXFloatFunctional")


def describe_unhookable(model: nn.Module) -> str | None:
    """Return "TorchScript", "an exported graph" or "a function" if no submodules can be hooked, else None."""
    if isinstance(model, torch.jit.ScriptModule):
        return "TorchScript"
    if isinstance(model, fx.GraphModule):
        called = {node.target for node in model.graph.nodes if node.op == "call_module"}
        # A graph that was traced with torch.fx still calls submodules; an exported one calls operators only.
        return None if called - {_GUARDS} else "an exported graph"
    return getattr(model, "unhookable", None)


def is_exported_for_one_image(model: nn.Module) -> bool:
    """Return True for a model that was exported with a batch of one image, so it accepts no larger batch."""
    if not isinstance(model, fx.GraphModule):
        return False
    examples = (node.meta.get("val") for node in model.graph.nodes if node.op == "placeholder")
    image = next(
        (example for example in examples if isinstance(example, torch.Tensor) and example.is_floating_point()), None
    )
    # A dimension that may vary is a torch.SymInt.
    return image is not None and image.ndim > 0 and isinstance(image.shape[0], int) and image.shape[0] == 1


def runs_outside_torch(model: nn.Module) -> bool:
    """Return True for a function or a file of another runtime as a module: its class says that it has no gradients."""
    return getattr(model, "lacks_gradients", False) is True


def lacks_gradients(model: nn.Module) -> bool:
    """Return True if the model has quantized modules of torch, or runs outside of torch: it has no gradients."""
    return read_tree(model).structure.lacks_gradients
