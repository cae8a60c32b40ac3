"""The modes of torch in the current thread: grad mode, inference mode, autocast and function modes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from camtool.errors import CamtoolError
from camtool.private_torch import (
    end_interrupted_calls,
    restore_function_modes,
    save_function_modes,
    start_inference_mode,
)
from camtool.state.cleanup import Cleanup
from camtool.state.random_state import preserve_generators
from camtool.structures.nested_tensors import ModelInputs, map_tensors

__all__ = ["enable_gradients", "leave_inference_mode", "preserve_function_modes", "preserve_thread_state"]


def preserve_thread_state() -> Cleanup:
    """Restore, at the end of the block, torch's modes of this thread and the global random generators.

    The modes are grad mode, inference mode, autocast and function modes. Inside the block, inference mode is off.
    """
    return Cleanup(_preserve_thread_state)


def enable_gradients() -> AbstractContextManager[Any]:
    """Record graphs in the block, even if the caller works in ``torch.no_grad`` or ``torch.inference_mode``."""
    # To leave inference mode takes time, and in most calls it is off already.
    if not torch.is_inference_mode_enabled():
        return torch.enable_grad()
    return start_inference_mode(False)  # grad mode comes with it


@contextmanager
def leave_inference_mode(model: nn.Module, inputs: ModelInputs, *, grad: bool) -> Iterator[ModelInputs]:
    """Leave ``torch.inference_mode`` for the block, and yield inputs that gradients can be taken with.

    Raises:
        CamtoolError: ``grad`` is set, and the model was built in inference mode, so no graph can pass through it.
    """
    with Cleanup(_switch_inference_mode_off):
        try:
            yield map_tensors(inputs, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
        except RuntimeError as error:
            if grad and any(parameter.is_inference() for parameter in model.parameters()):
                raise CamtoolError(
                    "the model's parameters were made in torch.inference_mode, so no gradient can pass through it; "
                    "build or load the model outside of inference_mode."
                ) from error
            raise


def preserve_function_modes(cleanup: Cleanup) -> None:
    """Restore torch's function modes at the end of the cleanup's block."""
    cleanup.push(partial(_restore_function_modes, save_function_modes()))


def _restore_function_modes(modes: list[TorchFunctionMode]) -> None:
    end_interrupted_calls(sys.exc_info()[1])
    restore_function_modes(modes)


def _preserve_thread_state(cleanup: Cleanup) -> None:
    preserve_generators(cleanup)
    cleanup.push(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
    # To ask for the state of CUDA's autocast would initialize CUDA.
    kinds = {"cpu", *(["cuda"] if torch.cuda.is_initialized() else [])}
    autocast = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
    cleanup.push(partial(_restore_autocast, autocast))
    preserve_function_modes(cleanup)
    _switch_inference_mode_off(cleanup)


def _switch_inference_mode_off(cleanup: Cleanup) -> None:
    if torch.is_inference_mode_enabled():
        guards: list[Any] = []
        # The step comes before the change, see Cleanup. Until the guard is in the list, there is nothing to undo.
        cleanup.push(partial(_exit_guards, guards))
        guards.append(start_inference_mode(False))


def _exit_guards(guards: list[Any]) -> None:
    """Exit the guards. A second call does no harm."""
    for guard in guards:
        guard.__exit__(None, None, None)


def _restore_autocast(states: dict[str, tuple[bool, torch.dtype]]) -> None:
    for kind, (enabled, dtype) in states.items():
        if torch.is_autocast_enabled(kind) != enabled:
            torch.set_autocast_enabled(kind, enabled)
        if torch.get_autocast_dtype(kind) != dtype:
            torch.set_autocast_dtype(kind, dtype)
