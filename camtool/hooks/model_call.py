"""Call a model with inputs of any structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from camtool.errors import CamtoolError, ForwardError
from camtool.state.model_state import preserve_model
from camtool.structures.module_names import find_detector_transform
from camtool.structures.module_tree import forget_held_trees
from camtool.structures.nested_tensors import ModelInputs, SharedInput, find_main_tensor, map_tensors

__all__ = ["apply_detector_transform", "run_model", "run_user_inputs"]


def run_model(model: nn.Module, inputs: ModelInputs) -> Any:
    """Return ``model(inputs)``. A sequence becomes positional arguments, a mapping becomes keyword arguments.

    In a mapping, integer keys stand for positional arguments. The model gets copies of the tensors, as it may write to
    them, e.g. with an in-place ReLU.
    """
    try:
        return _call(model, map_tensors(inputs, Tensor.clone))
    finally:
        forget_held_trees()


def _call(model: nn.Module, inputs: ModelInputs) -> Any:
    if isinstance(inputs, Tensor):
        return model(inputs if find_detector_transform(model) is None else list(inputs))
    if not isinstance(inputs, Mapping):
        return model(*inputs)
    positions = sorted(key for key in inputs if isinstance(key, int))
    given = {key: value.copy() if isinstance(value, SharedInput) else value for key, value in inputs.items()}
    named = {key: value for key, value in given.items() if not isinstance(key, int)}
    return model(*(given[position] for position in positions), **named)


def run_user_inputs(model: nn.Module, inputs: ModelInputs) -> Any:
    """Run :func:`run_model` on inputs that the model may not accept, e.g. because their shape is wrong.

    Raises:
        ForwardError: The model fails on them. An out-of-memory error is raised unchanged: the inputs are not wrong.
    """
    try:
        return run_model(model, inputs)
    except (CamtoolError, torch.OutOfMemoryError):
        raise
    except _INPUT_ERRORS as error:
        image, reason = find_main_tensor(inputs), str(error).partition("\n")[0]
        shape = "" if image is None else f" of shape {tuple(image.shape)}"
        hint = ". For a model with several inputs, pass camtool.Inputs(...)" if isinstance(error, TypeError) else ""
        raise ForwardError(
            f"the model cannot run on an input{shape}: {type(error).__name__}: {reason}{hint}"
        ) from error


_INPUT_ERRORS = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""The exceptions that models raise for inputs that they do not accept."""


def apply_detector_transform(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return inputs ``(N, C, H, W)`` as the layers of the model get them: resized, if the model is a detector."""
    transform = find_detector_transform(model)
    if transform is None:
        return inputs
    with preserve_model(model), torch.no_grad():
        batch: Tensor = transform(list(inputs))[0].tensors
    return batch
