"""Leave no trace: restore what an explanation changes in a model and in torch.

:func:`guard` is the block around a call of the library. :func:`preserve_model` is the block around one forward pass,
alone or in a guard. In both, the model is in evaluation mode and inference mode is off; afterwards all is as before.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from camtool.hooks.private_torch import (
    end_interrupted_calls,
    have_compiled_calls,
    restore_function_modes,
    save_function_modes,
    start_inference_mode,
)
from camtool.hooks.state.buffers import BufferSnapshot
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.random_state import preserve_generators
from camtool.hooks.structures.module_tree import hold_tree, read_tree, release_tree


def guard(model: nn.Module, *, evaluate: bool = True) -> Cleanup:
    """Leave no trace of a block that runs ``model`` one or more times.

    At the end these are as before: torch's modes of this thread (grad mode, inference mode, autocast, function modes),
    the global random generators, and the state of the model, see :func:`preserve_model`. The modules of the model are
    read once. Each forward pass in the block has a :func:`preserve_model` of its own, which then has less to do.

    Args:
        model: Any module.
        evaluate: False leaves the state of the model to the forward passes, for a block in which it hardly ever runs,
            e.g. because an engine runs instead.
    """
    return Cleanup(partial(_guard, model, evaluate=evaluate))


def preserve_model(model: nn.Module) -> Cleanup:
    """Run the block with ``model`` in evaluation mode, and restore everything that a forward pass may change.

    These are the ``training`` flag of every module (not only of the root: a frozen batch norm stays frozen), the
    buffers, and the global random states of torch, numpy and Python. Flags are set as attributes, because a model may
    override ``train()`` to do more. A model that is in evaluation mode already is not written to, so threads may share
    it. If several blocks use one model at the same time, in one or more threads, the last one to end restores the
    flags. In the block, inference mode is off.

    One thing stays: what a model sets up permanently at its first forward pass. Hugging Face's models register hooks on
    their own blocks then, and note that they did. The forward passes of other threads may rely on these hooks.
    """
    return Cleanup(partial(_preserve_model, model))


def enable_gradients() -> AbstractContextManager[Any]:
    """Record graphs in the block, even if the caller works in ``torch.no_grad`` or ``torch.inference_mode``."""
    # To leave inference mode takes time, and in most calls it is off already.
    if not torch.is_inference_mode_enabled():
        return torch.enable_grad()
    return start_inference_mode(False)  # grad mode comes with it


def preserve_function_modes(cleanup: Cleanup) -> None:
    """Restore torch's function modes at the end of the cleanup's block."""
    cleanup.push(partial(_restore_function_modes, save_function_modes()))


def list_names_in_use(applies: Callable[[nn.Module], bool]) -> list[str]:
    """Return the dotted names of some modules of the models that are in use."""
    models = [use.model for use in list(_USES.by_model.values())]
    return [name for model in models for name, module in model.named_modules() if applies(module)]


def find_name_in_use(module: nn.Module) -> str:
    """Return what a message calls a module of a model that is in use."""
    kind = type(module).__name__
    name = next(filter(None, list_names_in_use(lambda each: each is module)), None)
    return f"a {kind}" if name is None else f"layer {name!r} ({kind})"


# ---------------------------------------------------------------------------------------------- state of the thread


def _guard(model: nn.Module, cleanup: Cleanup, *, evaluate: bool) -> None:
    preserve_generators(cleanup)
    cleanup.push(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
    # To ask for the state of CUDA's autocast would initialize CUDA.
    kinds = {"cpu", *(["cuda"] if torch.cuda.is_initialized() else [])}
    autocast = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
    cleanup.push(partial(_restore_autocast, autocast))
    preserve_function_modes(cleanup)
    if torch.is_inference_mode_enabled():
        _leave_inference_mode(cleanup)
    cleanup.push(partial(release_tree, model))
    hold_tree(model)
    if evaluate:
        _hold_model(model, cleanup)


def _restore_function_modes(modes: list[TorchFunctionMode]) -> None:
    end_interrupted_calls(sys.exc_info()[1])
    restore_function_modes(modes)


def _leave_inference_mode(cleanup: Cleanup) -> None:
    blocks: list[Any] = []
    # The step comes before the change, see Cleanup. Until the block is in the list, there is nothing to undo.
    cleanup.push(partial(_exit_blocks, blocks))
    blocks.append(start_inference_mode(False))


def _exit_blocks(blocks: list[Any]) -> None:
    """Exit the blocks. A second call does no harm."""
    for block in blocks:
        block.__exit__(None, None, None)


def _restore_autocast(states: dict[str, tuple[bool, torch.dtype]]) -> None:
    for kind, (enabled, dtype) in states.items():
        if torch.is_autocast_enabled(kind) != enabled:
            torch.set_autocast_enabled(kind, enabled)
        if torch.get_autocast_dtype(kind) != dtype:
            torch.set_autocast_dtype(kind, dtype)


# ------------------------------------------------------------------------------------------------ state of the model


def _preserve_model(model: nn.Module, cleanup: Cleanup) -> None:
    preserve_generators(cleanup)
    if torch.is_inference_mode_enabled():
        _leave_inference_mode(cleanup)
        torch.set_grad_enabled(False)  # as in inference mode; leaving it sets grad mode on
    _hold_model(model, cleanup)
    with _USES.lock:
        _USES.by_model[id(model)].protect_buffers()


def _hold_model(model: nn.Module, cleanup: Cleanup) -> None:
    holder = _Holder()
    cleanup.push(partial(_release_model, model, holder))
    with _USES.lock:
        use = _USES.by_model.get(id(model))
        if use is None:
            use = _USES.by_model[id(model)] = _ModelUse(model)
        # An earlier forward pass of an outer block may have written to the buffers.
        use.restore_buffers()
        use.holders.add(holder)
        use.evaluate()
    if use.is_compiled:
        _EAGER_MODE.hold(cleanup)


def _release_model(model: nn.Module, holder: _Holder) -> None:
    """Release the model. The last block of a thread restores the buffers, the last of all restores the flags.

    An inner block leaves the buffers to the outer one, because a backward pass that follows may need their present
    values. A second call does no harm.
    """
    with _USES.lock:
        use = _USES.by_model.get(id(model))
        if use is None:
            return
        others = use.holders - {holder}
        if not any(each.thread == holder.thread for each in others):
            use.restore_buffers()
        use.holders = others
        if not others:
            use.restore_flags()
            del _USES.by_model[id(model)]


class _Holder:
    """One block that uses a model."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class _ModelUse:
    """A model in use: its state before, and the blocks that use it.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        # The id of the model is a key while it is in use, so the model must stay alive.
        self.model = model
        tree = read_tree(model)
        self._modules = tree.modules
        self.is_compiled = have_compiled_calls(tree.modules, tree.names)
        self.holders: set[_Holder] = set()
        self._buffers: BufferSnapshot | None = None
        self._training = self._read_flags()

    def _read_flags(self) -> list[bool]:
        try:
            return [*map(_get_flag, self._modules)]
        except AttributeError:  # a frozen TorchScript module has no training flag
            return [getattr(module, "training", False) for module in self._modules]

    def evaluate(self) -> None:
        """Put all modules in evaluation mode."""
        for module in compress(self._modules, self._read_flags()):
            module.training = False

    def protect_buffers(self) -> None:
        """Copy the buffers before the first forward pass, which may write to them."""
        if self._buffers is None:
            self._buffers = BufferSnapshot(self._modules)

    def restore_buffers(self) -> None:
        """Restore the buffers as they were before the first forward pass, if there was one."""
        if self._buffers is not None:
            self._buffers.restore()

    def restore_flags(self) -> None:
        """Restore the training flags, including those that the model itself has set."""
        now = self._read_flags()
        if now != self._training:
            for module, is_training, was_training in zip(self._modules, now, self._training, strict=True):
                if is_training is not was_training:
                    module.training = was_training


_get_flag = attrgetter("training")


class _ModelUses:
    """The models in use in this process, by id."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_model: dict[int, _ModelUse] = {}

    def forget_other_threads(self) -> None:
        """Release, in a forked child process, what other threads held: they may own the lock, but do not exist here."""
        self.lock = threading.Lock()
        here = threading.get_ident()
        for key, use in list(self.by_model.items()):
            use.holders = {holder for holder in use.holders if holder.thread == here}
            if not use.holders:
                use.restore_buffers()
                use.restore_flags()
                del self.by_model[key]


class _EagerMode:
    """A switch that makes compiled modules run eagerly, because compiled code ignores hooks that were added later.

    Torch has one such switch for all threads, so the last block to end switches it off.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._holders: set[object] = set()
        self._stance: AbstractContextManager[Any] | None = None

    def hold(self, cleanup: Cleanup) -> None:
        """Switch it on until the end of the cleanup's block."""
        holder = object()
        cleanup.push(partial(self._release, holder))
        with self.lock:
            self._holders.add(holder)
            if self._stance is None:
                self._stance = torch.compiler.set_stance("force_eager")

    def _release(self, holder: object) -> None:
        with self.lock:
            self._holders.discard(holder)
            if not self._holders and self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None


_USES = _ModelUses()
_EAGER_MODE = _EagerMode()


def _forget_other_threads() -> None:
    _EAGER_MODE.lock = threading.Lock()
    _USES.forget_other_threads()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
