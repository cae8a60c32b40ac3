"""Models that accept no hooks on their submodules, and models that have no gradients."""

from __future__ import annotations

import torch
from torch import fx, nn

from camtool.hooks.structures.module_names import list_modules

_GUARDS = "_guards_fn"
"""The name of the module that torch.export adds to an exported graph to check the shapes of its inputs."""

_FLOAT_KINDS = ("FloatFunctional", "FXFloatFunctional")
"""Classes in torch.ao.nn.quantized that compute with floats: they are in models that are prepared for quantization."""


def describe_unhookable(model: nn.Module) -> str | None:
    """Return "TorchScript" or "an exported graph" if the submodules cannot be hooked, else None."""
    if isinstance(model, torch.jit.ScriptModule):
        return "TorchScript"
    if isinstance(model, fx.GraphModule):
        called = {node.target for node in model.graph.nodes if node.op == "call_module"}
        # A graph that was traced with torch.fx still calls submodules; an exported one calls operators only.
        return None if called - {_GUARDS} else "an exported graph"
    return None


def is_exported_for_one_image(model: nn.Module) -> bool:
    """Return True for a model that was exported with a batch of one image, so it accepts no larger batch."""
    if not isinstance(model, fx.GraphModule):
        return False
    examples = (node.meta.get("val") for node in model.graph.nodes if node.op == "placeholder")
    image = next((each for each in examples if isinstance(each, torch.Tensor) and each.is_floating_point()), None)
    # A dimension that may vary is a torch.SymInt.
    return image is not None and image.ndim > 0 and isinstance(image.shape[0], int) and image.shape[0] == 1


def is_quantized(model: nn.Module) -> bool:
    """Return True if the model has quantized modules of torch, through which no gradient passes."""
    kinds = set(map(type, list_modules(model)))
    return any(".quantized" in kind.__module__ and kind.__name__ not in _FLOAT_KINDS for kind in kinds)
