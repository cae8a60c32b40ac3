"""What a model is made of: its modules by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from camtool.errors import LayerError, near

__all__ = [
    "all_modules",
    "describe_unknown_layer",
    "module_named",
    "modules_by_name",
    "name_of",
    "preparation_of",
    "watchable",
]


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Each module once, under the first of its dotted names; the model itself is ``""``."""
    return dict(model.named_modules())


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return what ``model.modules()`` gives, several times faster: every explanation asks for it."""
    found: dict[int, nn.Module] = {}
    stack: list[nn.Module | None] = [model]
    while stack:
        module = stack.pop()
        if module is not None and id(module) not in found:
            found[id(module)] = module
            children = module._modules
            if children:
                stack.extend(reversed([*children.values()]))
    return list(found.values())


def watchable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that take hooks: those of TorchScript do not."""
    return ((name, each) for name, each in model.named_modules() if not isinstance(each, torch.jit.ScriptModule))


def module_named(model: nn.Module, layer: str) -> nn.Module:
    """The module of that dotted name; a module with several names is found by each.

    Raises:
        LayerError: There is none; the message suggests near names.
    """
    module: Any = model
    for name in layer.split(".") if layer else ():  # as get_submodule goes, which TorchScript has not
        module = getattr(module, name, None)
        if not isinstance(module, nn.Module):
            raise LayerError(describe_unknown_layer(model, layer))
    found: nn.Module = module
    return found


def describe_unknown_layer(model: nn.Module, layer: str) -> str:
    """Return the message for a layer that the model does not have: near names, and where all of them are listed."""
    return (
        f"the model has no layer {layer!r}.{near(layer, modules_by_name(model))} Its layers are listed by "
        "camtool.candidate_layers(model, img), and on the command line by: python -m camtool layers MODEL"
    )


def name_of(model: nn.Module, layer: str | nn.Module) -> str:
    """The dotted name of a module of the model; a name stands for itself.

    Raises:
        LayerError: The module is not part of the model, or there is none of that name.
    """
    if isinstance(layer, str):
        module_named(model, layer)
        return layer
    for name, module in modules_by_name(model).items():
        if module is layer:
            return name
    raise LayerError(f"layer: this {type(layer).__name__} is not a module of the model; take it from the model itself.")


def preparation_of(model: nn.Module) -> nn.Module | None:
    """The module with which a detector prepares its pictures itself, as torchvision's do; ``None`` for other models.

    Such a model is called with a list of pictures ``(C, H, W)``, of any size and with values in [0, 1]. Its
    ``transform`` normalises and resizes them, and puts them into one batch, padded at the bottom and on the right.
    """
    transform = getattr(model, "transform", None)
    knows_how = all(hasattr(transform, name) for name in ("batch_images", "postprocess", "min_size", "max_size"))
    return transform if isinstance(transform, nn.Module) and knows_how else None
