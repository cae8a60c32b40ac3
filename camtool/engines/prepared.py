"""Copies of a model that give the same output faster: norms folded into convolutions, channels-last memory format."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from camtool.errors import LayerError, NotCompilableError, RaiseAs
from camtool.hooks.fast_repeated_passes import choose_copy, to_memory_format
from camtool.hooks.observation import Observation, run_with_hooks
from camtool.hooks.structures.nested_tensors import ModelInputs, map_tensors
from camtool.hooks.tracing import trace
from camtool.layers.survey_batches import select_first_image


class PreparedModel:
    """A prepared copy of a model.

    Args:
        model: Any module.
        inputs: Its inputs.
        layers: The layers that will be observed.

    Raises:
        NotCompilableError: The model cannot be copied, or no copy gives the same output.
    """

    def __init__(self, model: nn.Module, inputs: ModelInputs, layers: Sequence[str]) -> None:
        example = select_first_image(inputs)
        prepared, self._memory_format = choose_copy(model, example, trace(model, example), kept=layers)
        if prepared is model:
            raise NotCompilableError("no prepared copy of the model gives the same output")
        self._model = prepared
        for parameter in prepared.parameters():
            parameter.requires_grad_(False)
        # The copy calls layers of the model itself.
        with RaiseAs(lambda error: NotCompilableError(f"a copy of the model has other layers: {error}"), LayerError):
            self.run(layers, example, grad=False)

    def run(self, layers: Sequence[str], inputs: ModelInputs, *, grad: bool) -> Observation:
        """Run the copy; see :func:`camtool.hooks.observation.run_with_hooks`."""
        inputs = map_tensors(inputs, lambda tensor: to_memory_format(tensor, self._memory_format))
        return run_with_hooks(self._model, layers, inputs, grad=grad)


def copy_for_capture(model: nn.Module, inputs: ModelInputs, layers: Sequence[str]) -> nn.Module:
    """Return a copy of a model with norms folded where possible, nothing in place, and parameters without gradients.

    Raises:
        NotCompilableError: The model cannot be copied.
    """
    example = select_first_image(inputs)
    folded, _ = choose_copy(model, example, trace(model, example), kept=layers, formats=(torch.contiguous_format,))
    with RaiseAs(lambda error: NotCompilableError(f"the model cannot be copied: {type(error).__name__}"), Exception):
        copied = copy.deepcopy(model) if folded is model else folded
    for module in copied.modules():
        module.training = False
        if getattr(module, "inplace", False) is True:
            setattr(module, "inplace", False)  # noqa: B010  torch types attributes of modules as tensors
    return copied.requires_grad_(False)
