"""The function that computed the final values of a model without an autograd graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from camtool.errors import ForwardError
from camtool.hooks.final_operation import find_final_operation
from tests.helpers.nets import Apply
from tests.helpers.quantized_nets import ENGINES, SmallNet, quantize_eager, quantize_fx, use_engine


def find(model: nn.Module, image: Tensor, count: int = 7) -> str | None:
    return find_final_operation(model.eval(), image, lambda output: output, count)


class QuantizedEnd(SmallNet):
    """A net whose last function runs on quantized numbers."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(self.stem(self.quant(x)))
        scores: Tensor = self.dequant(self.end(self.head(self.pool(features).flatten(1))))
        return scores


QUANTIZED = [(nn.Identity(), "linear"), (nn.Sigmoid(), "sigmoid"), (Apply(torch.sigmoid), "sigmoid")]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("quantize", [quantize_eager, quantize_fx])
@pytest.mark.parametrize(("end", "expected"), QUANTIZED)
def test_quantized_models(quantize: Callable[..., nn.Module], end: nn.Module, expected: str, engine: str) -> None:
    images = torch.rand(8, 3, 10, 10)
    with use_engine(engine):
        model = quantize(lambda: QuantizedEnd(end), images, engine)
        assert find(model, images[:1]) == expected


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "a function": (torch.sigmoid, "sigmoid"),
    "a method": (Tensor.sigmoid, "sigmoid"),
    "written into its input": (Tensor.sigmoid_, "sigmoid"),
    "another type": (lambda x: x.double().sigmoid().float(), "sigmoid"),
    "then reshaped": (lambda x: x.sigmoid().reshape(7, 1).T.contiguous(), "sigmoid"),
    "then multiplied": (lambda x: x.sigmoid() * 2, "mul"),
    "a sigmoid before": (lambda x: x.sigmoid().log(), "log"),
    "not a function of torch": (lambda x: torch.from_numpy(1 - x.numpy()), None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, expected = FUNCTIONS[name]
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), Apply(function))
    assert find(model, torch.rand(1, 3, 2, 2)) == expected


def test_values_of_unknown_origin() -> None:
    kept = torch.rand(1, 7)
    assert find(Apply(lambda _: kept), torch.rand(1, 3, 2, 2)) is None


def test_no_trace_is_left_after_an_error() -> None:
    entered: list[object] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            entered.append(func)
            return func(*args, **(kwargs or {}))

    def fail(_: Tensor) -> Tensor:
        raise ValueError("broken")

    model = nn.Sequential(nn.Dropout(), Apply(fail)).train()
    with Mode():
        with pytest.raises(ForwardError, match="broken"):
            find_final_operation(model, torch.rand(1, 3, 2, 2), lambda output: output, 7)
        entered.clear()
        torch.zeros(1).relu()
        assert entered
    assert model.training
    assert torch.is_grad_enabled()
