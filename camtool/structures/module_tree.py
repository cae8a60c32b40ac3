"""The modules of a model and how they are nested, which every explanation reads several times.

Within :func:`hold_tree` a model is read once, and again after each forward pass: the code of a model may replace its
modules, and nothing else does in such a block.
"""

from __future__ import annotations

import threading

from torch import nn

from camtool.private_torch import get_children

__all__ = ["ModuleTree", "forget_held_trees", "hold_tree", "read_tree", "release_tree"]


class ModuleTree:
    """The modules of a model at one moment. It keeps them alive, so nobody keeps it for long.

    Args:
        model: Any module.

    Attributes:
        entries: All modules, a module before its children. A module with several parents is listed once for each; its
            children are listed once. ``None`` stands for children that were set to it.
        names: The names of the children of each entry; ``None`` ends the names of an entry.
        modules: Each module once, in the order of ``model.modules()``.
    """

    __slots__ = ("entries", "modules", "names")

    def __init__(self, model: nn.Module) -> None:
        self.entries: list[nn.Module | None] = []
        self.names: list[str | None] = []
        entered: dict[int, nn.Module] = {}
        stack: list[nn.Module | None] = [model]
        while stack:
            module = stack.pop()
            self.entries.append(module)
            if module is None or id(module) in entered:
                continue
            entered[id(module)] = module
            children = get_children(module)
            if children:
                self.names += [*children.keys(), None]  # for TorchScript this is no mapping, but has these methods
                stack += reversed([*children.values()])
        self.modules = [*entered.values()]


class _Hold:
    """One block of a thread, and the tree that was read in it; ``None`` if it must be read again."""

    def __init__(self) -> None:
        self.tree: ModuleTree | None = None


class _Thread(threading.local):
    """The models that this thread holds, by id."""

    def __init__(self) -> None:
        self.holds: dict[int, _Hold] = {}


_THREAD = _Thread()


def read_tree(model: nn.Module) -> ModuleTree:
    """Return the modules of a model as they are now."""
    hold = _THREAD.holds.get(id(model))
    if hold is None:
        return ModuleTree(model)
    if hold.tree is None:
        hold.tree = ModuleTree(model)
    return hold.tree


def hold_tree(model: nn.Module) -> None:
    """Read a model once in this thread until :func:`release_tree`. The caller keeps the model alive until then."""
    _THREAD.holds.setdefault(id(model), _Hold())


def release_tree(model: nn.Module) -> None:
    """End what :func:`hold_tree` began. A second call does no harm; an inner block may end an outer one's hold."""
    _THREAD.holds.pop(id(model), None)


def forget_held_trees() -> None:
    """Read all models of this thread again: a forward pass ran, and its code may have replaced modules."""
    for hold in _THREAD.holds.values():
        hold.tree = None
