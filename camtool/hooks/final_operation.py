"""The operation that computed the final values of a model, for models without an autograd graph to read it from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from camtool.hooks.model_passes import run_model
from camtool.hooks.private_torch import FunctionMode
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.nested_tensors import ModelInputs


def find_final_operation(
    model: nn.Module, inputs: ModelInputs, select: Callable[[Any], Tensor], count: int
) -> str | None:
    """Run a model once and return the name of the function that computed its final values.

    Functions that only copy or reshape values, e.g. ``dequantize``, do not count.

    Args:
        model: The model, which may be quantized.
        inputs: Its inputs.
        select: Returns the final values from the model's output.
        count: The number of these values.

    Returns:
        The name without underscores, e.g. ``"sigmoid"`` for ``torch.sigmoid``, ``Tensor.sigmoid_`` and ``nn.Sigmoid``;
        ``None`` if no function of torch returned these values.
    """
    with guard(model), torch.no_grad():
        mode = _OperationMode(count)
        with mode:
            output = run_model(model, inputs)
        values = select(output).flatten()
        return next((name for name, returned in mode.results if torch.equal(returned.to(values.dtype), values)), None)


class _OperationMode(FunctionMode):
    """A function mode that keeps the results of functions with a given number of values.

    Attributes:
        results: The names of functions and their flattened results, in order.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self.results: list[tuple[str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() == self._count:
            # A copy, as the next function may write to the result.
            values = result.dequantize() if result.is_quantized else result.clone()
            self.results.append((getattr(func, "__name__", "").strip("_"), values.flatten()))
        return result
