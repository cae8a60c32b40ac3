"""Models that do not show all of themselves: some run in one piece, and some compute what has no gradient."""

from __future__ import annotations

import weakref

import torch
from torch import fx, nn

__all__ = ["is_quantised", "sealed_as"]

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


def is_quantised(model: nn.Module) -> bool:
    """Whether torch has quantised modules of the model: from what these return no gradient leads back.

    It is remembered as long as the model lives.
    """
    if model not in _QUANTISED:
        _QUANTISED[model] = any(".quantized" in type(module).__module__ for module in model.modules())
    return _QUANTISED[model]


_QUANTISED: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
