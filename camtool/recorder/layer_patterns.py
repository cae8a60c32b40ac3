"""Select layers of a model by name, wildcard, type or function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import nn

from camtool.arguments.explain_arguments import HasModel, get_module
from camtool.arguments.message_parts import suggest_names
from camtool.errors import LayerError
from camtool.hooks.structures.modules import describe_unknown_layer, find_module, find_module_name, get_modules_by_name

# A dotted name, wildcard, type, module, or function of name and module.
LayerSelector: TypeAlias = str | type[nn.Module] | nn.Module | Callable[[str, nn.Module], bool]

# A :data:`LayerSelector`, or a list of them.
LayerSelection: TypeAlias = LayerSelector | Sequence[LayerSelector]


def select(model: nn.Module | HasModel, which: LayerSelection | None) -> list[str]:
    """Return the dotted names of the selected layers, each once.

        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
        >>> select(net, nn.Conv2d), select(net, "[01]"), select(net, lambda name, module: name > "1")
        (['0', '2'], ['0', '1'], ['2'])

    Args:
        model: Any module, or what :func:`camtool.load` returned.
        which: A dotted name; a wildcard such as ``"layer*.conv1"``, in which ``*`` stands for any characters,
            including dots; a type; a module of the model; a function of name and module that returns True for the
            layers to select; or a list of these. ``None`` selects all modules, and the model itself, with the name
            ``""``.

    Raises:
        LayerError: A name is unknown, or nothing matches; the message suggests similar names. Or all selected layers
            are TorchScript.
    """
    model = get_module(model)
    if which is None:
        return _keep_hookable(model, list(get_modules_by_name(model)))
    if isinstance(which, Sequence) and not isinstance(which, (str, nn.Module)):
        return list(dict.fromkeys(name for choice in which for name in _find_matches(model, choice)))
    return _find_matches(model, which)


def _find_matches(model: nn.Module, which: Any) -> list[str]:
    if isinstance(which, nn.Module) or (isinstance(which, str) and not set(which) & set("*?[")):
        return _keep_hookable(model, [find_module_name(model, which)])
    names, message = _search(model, which)
    if not names:
        raise LayerError(message)
    return _keep_hookable(model, names)


def _keep_hookable(model: nn.Module, names: list[str]) -> list[str]:
    """Return the names whose modules accept hooks. Those of TorchScript do not."""
    hookable = [name for name in names if not isinstance(find_module(model, name), torch.jit.ScriptModule)]
    if not hookable:
        raise LayerError(
            f"layer {names[0]!r} is TorchScript, whose modules accept no hooks; record the layers around it, or the "
            f"original model."
        )
    return hookable


def _search(model: nn.Module, which: Any) -> tuple[list[str], str]:
    """Return the names that match, and the error message if there are none."""
    if isinstance(which, str):
        names = _collect_names(model, lambda name, _: fnmatchcase(name, which))
        return names, describe_unknown_layer(model, which)
    if isinstance(which, type):
        kinds = {type(module).__name__ for module in model.modules()}
        names = _collect_names(model, lambda _, module: isinstance(module, which))
        return names, f"the model has no layer of type {which.__name__}.{suggest_names(which.__name__, kinds)}"
    if callable(which):
        return _collect_names(model, which), "layers: the function returns True for no layer of the model."
    raise LayerError(f"layers: {which!r} is no name, wildcard, type, module, or function of name and module.")


def _collect_names(model: nn.Module, is_selected: Callable[[str, nn.Module], bool]) -> list[str]:
    """Return the first matching name of each module that has one."""
    names: dict[nn.Module, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if module not in names and is_selected(name, module):
            names[module] = name
    return list(names.values())
