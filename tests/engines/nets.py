"""Small networks for the tests of engines, and what compares explanations."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool import Explanation
from tests.helpers.missing_extras import needs

RUNTIMES = ("onnxruntime", pytest.param("openvino", marks=needs("openvino")))
ENGINES = ("prepared", "torch.compile", *RUNTIMES)  # it calls a compiler


class Block(nn.Module):
    """A strided depthwise convolution with a norm beside a pooled shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, 2, 1, groups=width, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(2)

    def forward(self, a: Tensor) -> Tensor:
        return self.norm(self.conv(a)) + self.pool(a)


class Net(nn.Module):
    """Convolutions, norms, operations in place, a shortcut, uneven pooling and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block = Block(8)
        self.last = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU6(inplace=True))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.block(self.stem(x))).mean((2, 3)))


def build(kind: type[nn.Module] = Net) -> nn.Module:
    net = kind().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
    net.head.weight.data.abs_()  # so that no map is empty
    return net


def get_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("camtool")]


def assert_agree(ours: Explanation, expected: Explanation, tolerance: float = 1e-4) -> None:
    assert ours.score == pytest.approx(expected.score, abs=1e-4)
    assert ours.index == expected.index
    peak = np.abs(expected.raw).max()
    assert peak > 0
    np.testing.assert_allclose(ours.raw, expected.raw, rtol=0, atol=tolerance * peak)


class Lines(logging.Handler):
    """The lines of camtool's log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def explain_twice(net: nn.Module, x: Any, *args: Any, falls_back: bool = False, **options: Any) -> Any:
    """Explain by an engine; the first call compares it with the model, and returns the model's own result."""
    lines = Lines()
    logging.getLogger("camtool").addHandler(lines)
    try:
        camtool.explain(net, x, *args, **options)
        found = camtool.explain(net, x, *args, **options)
    finally:
        logging.getLogger("camtool").removeHandler(lines)
    assert falls_back or not lines.found
    return found


class Decides(Net):
    """Its code depends on the values of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if float(x.detach().mean()) > 0 else -x)


class Unknown(Net):
    """An operator that ONNX lacks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0 * torch.special.bessel_j0(x))


class Gated(Net):
    """Its result depends on a plain attribute, and on whether it gets one image."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.alone = 1.0, False

    def forward(self, x: Tensor) -> Tensor:
        if self.alone and len(x) == 1:
            x = 2 * x
        return super().forward(self.gate * x)
