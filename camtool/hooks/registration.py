"""Hooks on modules, tensors and graph nodes; only :mod:`camtool.hooks.norm_gradients` registers others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

from camtool.hooks.private_torch import get_forward_hooks, remove_forward_hooks
from camtool.hooks.state.cleanup import Cleanup

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class _Hook:
    """A hook that acts only in the thread that registered it.

    The module may run in other threads while hooks are added and removed. Torch reads the hooks of a call first, and
    looks up only then which of them take keyword arguments. So a hook must accept both forms of arguments. A copy or a
    pickle of the module contains a function of the standard library that does nothing instead of the hook, because
    nobody would remove the hook from there. A copy that is made just as a hook is added fails as with hooks of others:
    ``OrderedDict mutated during iteration``.
    """

    def __init__(self, function: Callable[..., Any], description: str, *, gets_output: bool) -> None:
        self._function, self.description, self._gets_output = function, description, gets_output
        self.owner: int | None = threading.get_ident()

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        if threading.get_ident() != self.owner:
            return None
        return self._function(module, *(args[-1:] if self._gets_output else args))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def add_forward_hook(
    cleanup: Cleanup,
    module: nn.Module,
    function: Callable[[nn.Module, Any], Any],
    *,
    prepend: bool = False,
    always_call: bool = False,
    description: str = "",
) -> None:
    """Call ``function(module, output)`` after each call of the module in this thread.

    If the function returns something other than ``None``, it replaces the output.

    Args:
        cleanup: Removes the hook when its block ends.
        module: Any module that accepts hooks.
        function: The function.
        prepend: Run before the hooks that are there already. A replaced output must be what the rest of the model works
            on, and some models collect the outputs of their blocks with hooks (Hugging Face's, for heads on several
            depths).
        always_call: Call the function with ``None`` if the module fails.
        description: Name of a function of the user, for the error of a model that fails in it.
    """
    hook = _Hook(function, description, gets_output=True)
    cleanup.push(partial(_remove_hook, module, hook))
    module.register_forward_hook(hook, prepend=prepend, always_call=always_call)


def add_forward_pre_hook(
    cleanup: Cleanup,
    module: nn.Module,
    function: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[Any, dict[str, Any]] | None],
    *,
    prepend: bool = False,
    description: str = "",
) -> None:
    """Call ``function(module, args, kwargs)`` before each call of the module in this thread.

    If the function returns ``(args, kwargs)``, these replace the arguments.

    Args:
        cleanup: Removes the hook when its block ends.
        module: Any module that accepts hooks.
        function: The function.
        prepend: Run before the hooks that are there already.
        description: See :func:`add_forward_hook`.
    """
    hook = _Hook(function, description, gets_output=False)
    cleanup.push(partial(_remove_hook, module, hook))
    module.register_forward_pre_hook(hook, prepend=prepend, with_kwargs=True)


def activate_dropout(cleanup: Cleanup, model: nn.Module) -> int:
    """Let the dropout modules of a model in evaluation mode drop units in this thread, and return their number."""
    modules = [module for module in model.modules() if isinstance(module, DROPOUTS) and module.p > 0]
    for module in modules:
        add_forward_hook(cleanup, module, partial(_drop_units, type(module)(module.p).train()), prepend=True)
    return len(modules)


def _drop_units(active: Callable[[Tensor], Tensor], _: nn.Module, output: Tensor) -> Tensor:
    """Return the output of a dropout module, which in evaluation mode is its input, with units dropped."""
    return active(output)


def list_foreign_hooks(module: nn.Module) -> list[Callable[..., Any]]:
    """Return the forward hooks of a module that are not from this library."""
    return [hook for hook in get_forward_hooks(module) if not isinstance(hook, _Hook)]


def describe_hook(hook: object) -> str:
    """Return the description that a hook of this library was added with; an empty string for other objects."""
    return hook.description if isinstance(hook, _Hook) else ""


def _remove_hook(module: nn.Module, hook: _Hook) -> None:
    """Remove a hook, if torch has registered it: an interrupt may have come before."""
    hook.owner = None
    remove_forward_hooks(module, hook)


def add_gradient_hook(tensor: Tensor, function: Callable[[Tensor], Tensor | None]) -> None:
    """Call ``function(gradient)`` when a backward pass has summed up the gradient of the tensor.

    If the function returns a tensor, it replaces the gradient. The hook belongs to the graph and disappears with it. A
    leaf keeps the hook until :func:`camtool.hooks.private_torch.remove_gradient_hook` is called with the same function.
    """
    tensor.register_hook(function)


def add_node_hook(node: Node, function: Callable[[tuple[Tensor | None, ...]], None]) -> None:
    """Call ``function(gradients)`` with the gradients that a node of the graph sends to each of its inputs.

    The hook disappears with the graph.
    """
    node.register_hook(lambda gradients, _: function(gradients))
