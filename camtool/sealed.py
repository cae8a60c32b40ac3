"""Models that do not show all of themselves: some run in one piece, and some compute what has no gradient."""

from __future__ import annotations

import torch
from torch import fx, nn

from camtool.modules import all_modules

__all__ = ["is_for_one_picture", "is_quantised", "sealed_as"]

_GUARDS = "_guards_fn"
"""What torch.export puts into an exported graph to check the shapes of its inputs."""


def sealed_as(model: nn.Module) -> str | None:
    """What a model has become that runs in one piece, so that none of its modules is seen; ``None`` for any other."""
    if isinstance(model, torch.jit.ScriptModule):
        return "TorchScript"
    if isinstance(model, fx.GraphModule):
        called = {node.target for node in model.graph.nodes if node.op == "call_module"}
        return None if called - {_GUARDS} else "an exported graph"
    return None


def is_for_one_picture(model: nn.Module) -> bool:
    """Whether a model was exported with a single picture for an example, so that it takes no more at once."""
    if not isinstance(model, fx.GraphModule):
        return False
    given = (node.meta.get("val") for node in model.graph.nodes if node.op == "placeholder")
    first = next((each for each in given if isinstance(each, torch.Tensor) and each.is_floating_point()), None)
    return first is not None and first.ndim > 0 and isinstance(first.shape[0], int) and first.shape[0] == 1


def is_quantised(model: nn.Module) -> bool:
    """Check whether torch has quantized modules of the model: from what these return no gradient leads back."""
    return any(".quantized" in kind.__module__ for kind in set(map(type, all_modules(model))))
