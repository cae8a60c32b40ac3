"""Which of a model's layers are meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import nn

from camtool.arguments import HasModel, as_module
from camtool.errors import LayerError, near
from camtool.modules import describe_unknown_layer, module_named, modules_by_name, name_of

__all__ = ["Selector", "Which", "select"]

Selector: TypeAlias = str | type[nn.Module] | nn.Module | Callable[[str, nn.Module], bool]
"""One way to say which layers are meant."""

Which: TypeAlias = Selector | Sequence[Selector]
"""Layers: by dotted name, wildcard, type, function of name and module, the module itself, or a list of these."""


def select(model: nn.Module | HasModel, which: Which | None) -> list[str]:
    """The dotted names of the layers that are meant, each once.

        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
        >>> select(net, nn.Conv2d), select(net, "[01]"), select(net, lambda name, module: name > "1")
        (['0', '2'], ['0', '1'], ['2'])

    Args:
        model: Any module, or what :func:`camtool.load` returned.
        which: A dotted name; a wildcard such as ``"layer*.conv1"``, in which ``*`` stands for any characters, dots
            included; a type; a module of the model; a function of name and module that tells whether it is meant; or a
            list of these. ``None`` means all modules, the model itself included, whose name is ``""``.

    Raises:
        LayerError: A name is unknown, or nothing matches; the message suggests near names. Or all that is meant is
            TorchScript.
    """
    model = as_module(model)
    if which is None:
        return _taking_hooks(model, list(modules_by_name(model)))
    if isinstance(which, Sequence) and not isinstance(which, (str, nn.Module)):
        return list(dict.fromkeys(name for each in which for name in _matching(model, each)))
    return _matching(model, which)


def _matching(model: nn.Module, which: Any) -> list[str]:
    if isinstance(which, nn.Module) or (isinstance(which, str) and not set(which) & set("*?[")):
        return _taking_hooks(model, [name_of(model, which)])
    found, nothing = _searched(model, which)
    if not found:
        raise LayerError(nothing)
    return _taking_hooks(model, found)


def _taking_hooks(model: nn.Module, names: list[str]) -> list[str]:
    """Those of the names whose modules take hooks."""
    found = [name for name in names if not isinstance(module_named(model, name), torch.jit.ScriptModule)]
    if not found:
        raise LayerError(
            f"layer {names[0]!r} is TorchScript, whose modules take no hooks; record the layers around it, or the "
            f"model that it was made of."
        )
    return found


def _searched(model: nn.Module, which: Any) -> tuple[list[str], str]:
    """The names that match, and what to say should there be none."""
    if isinstance(which, str):
        names = _first_names(model, lambda name, _: fnmatchcase(name, which))
        return names, describe_unknown_layer(model, which)
    if isinstance(which, type):
        kinds = {type(module).__name__ for module in model.modules()}
        names = _first_names(model, lambda _, module: isinstance(module, which))
        return names, f"the model has no layer of type {which.__name__}.{near(which.__name__, kinds)}"
    if callable(which):
        return _first_names(model, which), "layers: the function is true of no layer of the model."
    raise LayerError(f"layers: {which!r} is no name, wildcard, type, module, or function of name and module.")


def _first_names(model: nn.Module, is_meant: Callable[[str, nn.Module], bool]) -> list[str]:
    """Of each module that is meant by any of its names, the first such name."""
    found: dict[nn.Module, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if module not in found and is_meant(name, module):
            found[module] = name
    return list(found.values())
