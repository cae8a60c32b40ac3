"""Leave no trace: code in these blocks finds a model in evaluation mode, and leaves model and thread as they were."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from camtool.cleanup import Cleanup
from camtool.errors import CamtoolError
from camtool.modules import all_modules
from camtool.rng import keep_generators
from camtool.structures import Inputs, map_tensors

__all__ = [
    "held",
    "keep_function_modes",
    "left_as_found",
    "outside_inference_mode",
    "thread_left_as_found",
    "version",
    "with_gradients",
]


_inference_mode: Callable[[bool], AbstractContextManager[Any]] = torch._C._InferenceMode
"""Torch's own guard for inference mode, which begins as it is made. Around it, ``torch.inference_mode`` is written in
Python: if an interrupt arrives as a block ends, the mode is left only when the traceback is freed, and the modes that
others have set since are overwritten then."""


def left_as_found(model: nn.Module) -> Cleanup:
    """Run the block with ``model`` in evaluation mode, and put back whatever a forward may change.

    That is every module's own ``training`` flag (not only the root's: a frozen batch norm stays frozen), the buffers,
    and the global random states of torch, numpy and Python. Flags are set as attributes, because ``train()`` may be
    overridden to do more; a model that is in evaluation mode already is not written to at all, so threads may share it.
    Of several blocks about one model that overlap, in one thread or in many, the last to end puts the flags back.

    What a model sets up for good at its first forward, whoever runs it, stays: Hugging Face's put hooks of their own on
    their blocks, and note that these are there. Other threads' forwards may be relying on them by then.
    """
    return Cleanup(partial(_leave_as_found, model))


def held(model: nn.Module) -> Cleanup:
    """Do as :func:`left_as_found` for a block of several forward passes, but leave the random states alone.

    The blocks inside then have less to do.
    """
    return Cleanup(partial(_hold, model))


def thread_left_as_found() -> Cleanup:
    """Put back, at the end of the block, the thread's modes of torch and the global random generators.

    The modes are grad mode, inference mode, autocast and function modes. In the block, inference mode is off.
    """
    return Cleanup(_leave_thread_as_found)


def with_gradients() -> AbstractContextManager[Any]:
    """Record graphs in the block, in whichever mode the caller works."""
    if not torch.is_inference_mode_enabled():  # in most calls it is off already, and to enter it takes time
        return torch.enable_grad()
    return _inference_mode(False)  # grad mode comes with it


@contextmanager
def outside_inference_mode(model: nn.Module, inputs: Inputs, *, grad: bool) -> Iterator[Inputs]:
    """Make gradients possible where the caller works in ``torch.inference_mode``; yields inputs that allow them."""
    with Cleanup(_leave_inference_mode):
        try:
            yield map_tensors(inputs, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
        except RuntimeError as error:
            if grad and any(parameter.is_inference() for parameter in model.parameters()):
                raise CamtoolError(
                    "the model's parameters were made in torch.inference_mode, so no gradient can pass through it; "
                    "build or load the model outside of inference_mode."
                ) from error
            raise


def version(tensor: Tensor) -> int:
    """Return how often the tensor was written to; 0 for tensors made in inference mode, which do not count it."""
    return 0 if tensor.is_inference() else tensor._version


# --------------------------------------------------------------------------------------------------- the thread


def _leave_thread_as_found(cleanup: Cleanup) -> None:
    keep_generators(cleanup)
    cleanup.push(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
    kinds = {"cpu", *(["cuda"] if torch.cuda.is_initialized() else [])}
    autocast = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
    cleanup.push(partial(_restore_autocast, autocast))
    keep_function_modes(cleanup)
    _leave_inference_mode(cleanup)


def _leave_inference_mode(cleanup: Cleanup) -> None:
    if torch.is_inference_mode_enabled():
        guards: list[Any] = []
        cleanup.push(partial(_end, guards))
        guards.append(_inference_mode(False))


def keep_function_modes(cleanup: Cleanup) -> None:
    """Put back torch's function modes at the end of the cleanup's block."""
    cleanup.push(partial(_restore_function_modes, _get_current_function_mode_stack()))


def _end(guards: list[Any]) -> None:
    for guard in guards:
        guard.__exit__(None, None, None)  # it may be called twice


def _restore_autocast(states: dict[str, tuple[bool, torch.dtype]]) -> None:
    for kind, (enabled, dtype) in states.items():
        if torch.is_autocast_enabled(kind) != enabled:
            torch.set_autocast_enabled(kind, enabled)
        if torch.get_autocast_dtype(kind) != dtype:
            torch.set_autocast_dtype(kind, dtype)


def _restore_function_modes(modes: list[Any]) -> None:
    current = _get_current_function_mode_stack()
    if len(current) == len(modes) and all(map(_is, current, modes)):
        return
    for _ in current:
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


def _is(one: object, other: object) -> bool:
    return one is other


# ---------------------------------------------------------------------------------------------------- the model


def _leave_as_found(model: nn.Module, cleanup: Cleanup) -> None:
    keep_generators(cleanup)
    _hold(model, cleanup)
    _USES.by_model[id(model)].has_run = True


def _hold(model: nn.Module, cleanup: Cleanup) -> None:
    holder = _Holder()
    cleanup.push(partial(_release, model, holder))
    with _USES.lock:
        use = _USES.by_model.get(id(model))
        if use is None:
            use = _USES.by_model[id(model)] = _Use(model)
        elif use.has_run:
            use.buffers.restore()  # to what they were before an earlier forward of an outer block
        use.holders.add(holder)
        use.evaluate()
    if use.is_compiled:
        _EAGERLY.hold(cleanup)


def _release(model: nn.Module, holder: _Holder) -> None:
    """Let go of the model; the last block of a thread puts back the buffers, the last of all the flags.

    An inner block leaves the buffers to the outer one, because a backward pass that follows may need what was written.
    It may be called twice.
    """
    with _USES.lock:
        use = _USES.by_model.get(id(model))
        if use is None:
            return
        others = use.holders - {holder}
        if not any(each.thread == holder.thread for each in others):
            use.buffers.restore()
        use.holders = others
        if not others:
            use.restore_flags()
            del _USES.by_model[id(model)]


class _Holder:
    """One block that uses a model."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class _Use:
    """A model in use: what it was like before, and the blocks that use it.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model  # its id is a key as long as this lives
        modules = all_modules(model)
        self.is_compiled = any(
            module._compiled_call_impl is not None or "_orig_mod" in module._modules for module in modules
        )
        self.holders: set[_Holder] = set()
        self.has_run = False  # a forward may have written to buffers
        self.buffers = _Buffers(modules)
        # A frozen script has no flag.
        self._training = [(module, getattr(module, "training", False)) for module in modules]

    def evaluate(self) -> None:
        """Put all modules in evaluation mode."""
        for module, _ in self._training:
            if getattr(module, "training", False):
                module.training = False

    def restore_flags(self) -> None:
        """Put back the training flags, those that the model itself has set included."""
        for module, was_training in self._training:
            if getattr(module, "training", False) is not was_training:
                module.training = was_training


class _Uses:
    """The models in use in this process, and how often."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_model: dict[int, _Use] = {}

    def forget_other_threads(self) -> None:
        """In a forked child: the other threads are gone, which may have held the lock and used models."""
        self.lock = threading.Lock()
        here = threading.get_ident()
        for key, use in list(self.by_model.items()):
            use.holders = {holder for holder in use.holders if holder.thread == here}
            if not use.holders:
                use.buffers.restore()
                use.restore_flags()
                del self.by_model[key]


_USES = _Uses()


class _Buffers:
    """The buffers of some modules: which tensors they are, and the values in them.

    Of small floating ones the values are compared, because batch norm writes its statistics without counting a version.
    To copy many small tensors into one takes a fourth of the time of copying each.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._without = [module for module in modules if not module._buffers]
        self._with = [(module, dict(module._buffers.items())) for module in modules if module._buffers]
        # Of TorchScript it is no dictionary, but made anew each time.
        are_dictionaries = all(isinstance(module._buffers, dict) for module, _ in self._with)
        self._slots = [(module._buffers, name) for module, own in self._with for name in own]
        self._slots = self._slots if are_dictionaries else []
        self._tensors = [each for _, own in self._with for each in own.values()]
        groups: dict[Any, list[Tensor]] = {}
        for each in {id(each): each for each in self._tensors if each is not None}.values():
            groups.setdefault((each.dtype, each.device) if _is_small(each) else id(each), []).append(each)
        self._groups = list(map(_Group, groups.values()))

    def restore(self) -> None:
        """Put back tensors and values; what is as it was is not touched, as other threads may be reading it."""
        for group in self._groups:
            group.restore()
        if not self._has_the_same_tensors():
            for module, before in [*self._with, *((module, {}) for module in self._without)]:
                _restore_tensors(module, before)

    def _has_the_same_tensors(self) -> bool:
        now = [buffers.get(name) for buffers, name in self._slots]
        if len(now) != len(self._tensors) or not all(map(_is, now, self._tensors)):
            return False
        count = sum(len(module._buffers) for module, _ in self._with)
        return count == len(now) and not any(module._buffers for module in self._without)


class _Group:
    """Buffers of one type on one device, or a single one, and a copy of their values."""

    @torch.no_grad()
    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers, self._are_small = buffers, _is_small(buffers[0])
        self._rows = [each if each.ndim == 1 else each.reshape(-1) for each in buffers] if self._are_small else []
        self._values = torch.cat(self._rows) if self._are_small else buffers[0].clone()
        self._are_compared = self._are_small and buffers[0].is_floating_point()
        self._versions = _versions(buffers)

    def restore(self) -> None:
        """Copy back the values of those that were written to."""
        if self._is_written():
            parts = [self._values]
            if self._are_small:
                parts = list(self._values.split([each.numel() for each in self._buffers]))
            for buffer, part, written in zip(self._buffers, parts, self._versions, strict=True):
                before = part.reshape(buffer.shape) if self._are_small else part
                _restore_values(buffer, before, counts=version(buffer) != written)
            self._versions = _versions(self._buffers)

    @torch.no_grad()
    def _is_written(self) -> bool:
        if self._are_compared:
            return not torch.equal(torch.cat(self._rows), self._values)
        return any(map(Tensor.is_inference, self._buffers)) or _versions(self._buffers) != self._versions


def _versions(tensors: list[Tensor]) -> list[int]:
    try:
        return [each._version for each in tensors]
    except RuntimeError:  # some were made in inference mode
        return [version(each) for each in tensors]


_SMALL = 4096
"""Buffers of up to so many elements are copied together, e.g. those of a batch norm, and compared by their values if
they are floating. For larger ones, e.g. masks, that takes too long; their version tells that they were written to."""


def _is_small(buffer: Tensor) -> bool:
    is_plain = buffer.layout == torch.strided and not (buffer.is_quantized or buffer.is_nested or buffer.is_meta)
    return is_plain and buffer.numel() <= _SMALL


def _restore_values(buffer: Tensor, before: Tensor, *, counts: bool) -> None:
    """Copy back values; what was written without counting a version, by batch norm, is so restored too.

    A graph that was recorded in between refuses to run backward if the version of what it holds has changed.
    """
    if not _is_small(buffer) or not torch.equal(buffer, before):
        with _inference_mode(True):  # there, tensors of either kind may be written to
            target = buffer if counts or buffer.is_inference() else buffer.data
            target.copy_(before)


def _restore_tensors(module: nn.Module, before: dict[str, Tensor | None]) -> None:
    present = dict(module._buffers.items())
    for name in present.keys() - before.keys():
        delattr(module, name)
    for name, buffer in before.items():
        if present.get(name) is not buffer:
            module._buffers[name] = buffer


class _Eagerly:
    """Run compiled modules as they were written, as their compiled form does not know of hooks that came after it.

    It holds for all threads, so the last to leave ends it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._holders: set[object] = set()
        self._stance: Any = None

    def hold(self, cleanup: Cleanup) -> None:
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


_EAGERLY = _Eagerly()


def _after_fork() -> None:
    _EAGERLY.lock = threading.Lock()
    _USES.forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
