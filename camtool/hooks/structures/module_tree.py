"""The modules of a model and how they are nested, which every explanation reads several times.

A model is walked through when it is first seen. Later it is only compared with what was found, by operations on whole
lists, which take less time. Within :data:`HELD_TREES` it is compared once, and again after each forward pass: the code
of a model may replace its modules, and nothing else does in such a block.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import is_

from torch import Tensor, nn

from camtool.hooks.private_torch import get_buffers, get_children, get_parameters


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

    __slots__ = ("_weights", "children", "counts", "modules", "names", "structure")

    structure: Structure

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules
        own = [*map(get_children, modules)]
        self.counts = [*map(len, own)]
        parents = [*filter(len, own)]
        # For TorchScript these are no mappings, but have the same methods.
        self.children: list[nn.Module | None] = [child for each in parents for child in each.values()]
        self.names: list[str] = [name for each in parents for name in each.keys()]  # noqa: SIM118
        self._weights: tuple[list[Tensor], list[Tensor]] | None = None

    @property
    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters, and the buffers; shared ones come repeatedly."""
        if self._weights is None:
            self._weights = (
                _list_tensors(map(get_parameters, self.modules)),
                _list_tensors(map(get_buffers, self.modules)),
            )
        return self._weights


def _list_tensors(mappings: Iterable[Mapping[str, Tensor | None]]) -> list[Tensor]:
    """Return the tensors of several mappings. Most modules have none, so empty mappings are left out first."""
    return [each for own in filter(len, mappings) for each in own.values() if each is not None]


class Structure:
    """The structure of a model: its modules, their classes, and how they are nested. It keeps no module alive.

    Args:
        tree: The tree of the model. Its own structure is this one from then on.
        drop: Called when the model is gone.

    Attributes:
        model: A weak reference to the model.
    """

    __slots__ = ("_classes", "_counts", "_modules", "_names", "_places", "model")

    def __init__(self, tree: ModuleTree, drop: Callable[[object], None]) -> None:
        modules = tree.modules
        # Weak references instead of ids, as Python may give the id of a deleted module to a new one.
        self.model, self._modules = weakref.ref(modules[0], drop), [*map(weakref.ref, modules)]
        self._classes, self._names, self._counts = [*map(type, modules)], tree.names, tree.counts
        places = {id(module): place for place, module in enumerate(modules)}
        places[id(None)] = len(modules)
        self._places = [places[id(child)] for child in tree.children]
        tree.structure = self

    def read(self) -> ModuleTree | None:
        """Return the tree of the model if it still has this structure, without walking through it."""
        modules = [module for module in [reference() for reference in self._modules] if module is not None]
        if len(modules) != len(self._modules):
            return None
        tree = ModuleTree(modules)
        return tree if self._fits(tree) else None

    def take(self, tree: ModuleTree) -> bool:
        """Make this the structure of a tree of the model if it fits, and return True."""
        same = [*map(is_, tree.modules, [reference() for reference in self._modules])]
        return len(tree.modules) == len(self._modules) and all(same) and self._fits(tree)

    def _fits(self, tree: ModuleTree) -> bool:
        """Return True, and set it in the tree, if the same modules are of the same classes and nested as before.

        If each module has the children that it had, no other module is part of the model.
        """
        with_none = [*tree.modules, None]
        fits = (
            tree.counts == self._counts
            and tree.names == self._names
            and [*map(type, tree.modules)] == self._classes
            and all(map(is_, tree.children, map(with_none.__getitem__, self._places)))
        )
        if fits:
            tree.structure = self
        return fits


class _HeldTrees(threading.local):
    """The trees of the models that this thread holds, by id; ``None`` if a tree must be read again.

    Each block of :func:`camtool.hooks.state.guard.guard` holds its model, and keeps it alive. A forward pass sets all
    to ``None``, as its code may have replaced modules.
    """

    def __init__(self) -> None:
        self.by_model: dict[int, ModuleTree | None] = {}


HELD_TREES = _HeldTrees()

_STRUCTURES: dict[int, Structure] = {}
"""The structures by the id of the model, for as long as the model lives. Each step is a single dictionary operation, so
threads need no lock, and a forked process inherits no locked one."""


def read_tree(model: nn.Module) -> ModuleTree:
    """Return the modules of a model as they are now."""
    held = HELD_TREES.by_model
    tree = held.get(id(model))
    if tree is None:
        tree = _read(model)
        if id(model) in held:
            held[id(model)] = tree
    return tree


def _read(model: nn.Module) -> ModuleTree:
    known = _STRUCTURES.get(id(model))
    if known is None or known.model() is not model:
        return _read_anew(model, None)
    return known.read() or _read_anew(model, known)


def _read_anew(model: nn.Module, known: Structure | None) -> ModuleTree:
    """Walk through the model. TorchScript wraps children anew each time, so this may find what was known before."""
    tree = ModuleTree(_list_modules(model))
    if known is None or not known.take(tree):
        _STRUCTURES[id(model)] = Structure(tree, partial(_drop_structure, _STRUCTURES, id(model)))
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


def _drop_structure(structures: dict[int, Structure], key: int, _: object) -> None:
    """Drop the structure of a model that is gone. When Python ends, this module may have no names any more."""
    structures.pop(key, None)
