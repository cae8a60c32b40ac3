"""The modules of a model by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from camtool.arguments.messages import suggest_names
from camtool.errors import LayerError
from camtool.hooks.structures.module_tree import read_tree


def get_modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Return each module once, by the first of its dotted names. The model itself is ``""``."""
    return dict(model.named_modules())


def list_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of ``model.modules()``, several times faster. Every explanation needs them."""
    return read_tree(model).modules


def list_weights(model: nn.Module, *, buffers: bool = True) -> list[Tensor]:
    """Return the parameters and buffers of a model, faster than ``model.parameters()``; shared ones come repeatedly."""
    parameters, own_buffers = read_tree(model).weights
    return parameters + own_buffers if buffers else parameters


def iterate_hookable_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the names and modules that accept hooks: all except those of TorchScript."""
    return ((name, each) for name, each in model.named_modules() if not isinstance(each, torch.jit.ScriptModule))


def find_module(model: nn.Module, layer: str) -> nn.Module:
    """Return the module with this dotted name. If a module has several names, each of them finds it.

    Raises:
        LayerError: There is none. The message suggests similar names.
    """
    module: Any = model
    # The same steps as in get_submodule, which TorchScript modules do not have.
    for name in layer.split(".") if layer else ():
        module = getattr(module, name, None)
        if not isinstance(module, nn.Module):
            raise LayerError(describe_unknown_layer(model, layer))
    found: nn.Module = module
    return found


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
    raise LayerError(
        f"layer: this {type(layer).__name__} is not a module of the model; pass a module of the model itself."
    )


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
