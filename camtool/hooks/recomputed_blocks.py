"""Blocks of a language model whose activations are computed again in the backward pass, instead of kept.

The graph of a language model behind an early layer takes a multiple of the memory of inference. With the inputs of the
blocks alone, it takes about that of inference and of one block.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn

from camtool.hooks.private_torch import save_inputs_only
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard

# Base class, in Hugging Face's transformers, of blocks that may run again in the backward pass.
_CHECKPOINTABLE = "GradientCheckpointingLayer"


def recompute_blocks(cleanup: Cleanup, model: nn.Module, layers: Sequence[str]) -> None:
    """Keep, until the end of the cleanup's block, only the inputs of blocks for the backward pass.

    The model must be called with ``use_cache=False``: a block that writes to a cache must not run twice. Blocks with
    one of the layers inside keep their activations, as the graph begins in the middle of them.

    Args:
        cleanup: Removes the hooks.
        model: Any module.
        layers: Names of the layers at which the graph begins.
    """
    for name, block in _iterate_blocks(model):
        if not any(layer.startswith(f"{name}.") for layer in layers):
            call = _BlockCall(model)
            cleanup.push(call.close)
            add_forward_pre_hook(cleanup, block, call.start)
            add_forward_hook(cleanup, block, call.end, always_call=True)


def _iterate_blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the outermost blocks that may run again, by name."""
    outer = ""
    for name, module in model.named_modules():
        is_inside = bool(outer) and name.startswith(f"{outer}.")
        if not is_inside and any(base.__name__ == _CHECKPOINTABLE for base in type(module).__mro__):
            outer = name
            yield name, module


class _BlockCall:
    """The calls of one block, of which one runs at a time.

    Args:
        model: The model that the block is a part of.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._running: list[Generator[None, None, None]] = []

    def start(self, block: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Begin not to keep what autograd saves."""
        self._running.append(save_inputs_only(partial(self._run_again, block), args, keywords))
        next(self._running[-1])

    def end(self, _: nn.Module, output: Any) -> None:
        """End it; without an output, the block has failed."""
        if output is None:
            self.close()
        elif self._running:
            next(self._running.pop(), None)

    def close(self) -> None:
        """End it after a failure."""
        while self._running:
            self._running.pop().close()

    def _run_again(self, block: nn.Module, *args: Any, **keywords: Any) -> None:
        with guard(self._model):
            block.forward(*args, **keywords)
