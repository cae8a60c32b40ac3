"""Leaving no trace: what runs in these blocks finds a model fit to be asked, and leaves it exactly as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor, nn

from camtool.errors import CamtoolError
from camtool.modules import all_modules
from camtool.rng import generators_kept
from camtool.structures import Inputs, map_tensors

__all__ = ["left_as_found", "outside_inference_mode", "version"]


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Run the block with ``model`` in evaluation mode, and put back whatever a forward may change.

    That is every module's own ``training`` flag (not only the root's: a frozen batch norm stays frozen), the buffers,
    and the global random states of torch, numpy and Python. Flags are set as attributes, because ``train()`` may be
    overridden to do more; a model that is in evaluation mode already is not written to at all, so threads may share it.

    What a model sets up for good at its first forward, whoever runs it, stays: Hugging Face's put hooks of their own on
    their blocks, and note that these are there. Other threads' forwards may be relying on them by then.
    """
    modules = all_modules(model)
    training = [(module, getattr(module, "training", False)) for module in modules]  # a frozen script has no flag
    at_risk = [module for module in modules if type(module).__module__ not in _NEVER_WRITE_BUFFERS]
    buffers = [_buffers(module) if module._buffers else {} for module in at_risk]
    with generators_kept(), _as_written(modules):
        try:
            for module, was_training in training:
                if was_training:
                    module.training = False
            yield
        finally:
            for module, was_training in training:
                if getattr(module, "training", False) is not was_training:
                    module.training = was_training
            for module, before in zip(at_risk, buffers, strict=True):
                if module._buffers or before:
                    _put_back(module, before)


@contextmanager
def outside_inference_mode(model: nn.Module, inputs: Inputs, *, grad: bool) -> Iterator[Inputs]:
    """Make gradients possible where the caller works in ``torch.inference_mode``; yields inputs that allow them."""
    with torch.inference_mode(False):
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
    """How often the tensor was written to; tensors made in inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


_Buffers: TypeAlias = dict[str, tuple[Tensor, Tensor, int] | None]
"""A module's buffers by name: the tensor itself, a copy of its values, and its version; ``None`` for an empty one."""

_NEVER_WRITE_BUFFERS = ("torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
"""Where the classes live that leave their buffers alone in evaluation mode. Other code may write to any module's, a
plain ``nn.Sequential``'s included."""


def _buffers(module: nn.Module) -> _Buffers:
    return {
        name: None if buffer is None else (buffer, buffer.clone(), version(buffer))
        for name, buffer in module._buffers.items()
    }


@torch.inference_mode()  # there, tensors of either kind may be written to
def _put_back(module: nn.Module, before: _Buffers) -> None:
    """Give the module the buffers it had; what is as it was is not touched, because other threads may be reading it."""
    present = dict(module._buffers.items())  # a scripted module has less than a dictionary there
    for name in present.keys() - before.keys():
        delattr(module, name)
    for name, known in before.items():
        buffer, value, written = known or (None, None, 0)
        if buffer is not None and value is not None and (buffer.is_inference() or buffer._version != written):
            buffer.copy_(value)
        if present.get(name) is not buffer:
            module._buffers[name] = buffer


@contextmanager
def _as_written(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Run compiled modules as they were written: their compiled form does not know of hooks that came after it."""
    is_compiled = any(module._compiled_call_impl is not None or "_orig_mod" in module._modules for module in modules)
    with _EAGERLY if is_compiled else nullcontext():
        yield


class _Eagerly:
    """A ``with`` block in which nothing compiled runs. It holds for all threads, so the last to leave ends it."""

    def __init__(self) -> None:
        self._lock, self._inside, self._stance = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._stance.close()


_EAGERLY = _Eagerly()
