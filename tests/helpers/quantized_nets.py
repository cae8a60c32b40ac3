"""Statically quantized models with random weights: quantized in eager mode, and through an FX graph."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.ao.nn.quantized import FloatFunctional

ENGINES = [each for each in ("fbgemm", "qnnpack") if each in torch.backends.quantized.supported_engines]
"""Engines whose kernels do not depend on the size of the batch."""


@contextmanager
def use_engine(engine: str) -> Iterator[None]:
    """Use an engine for quantized operators within the block, without torch's warnings that these are deprecated."""
    former = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.")
            warnings.filterwarnings("ignore", message=".*quantiz")
            yield
    finally:
        torch.backends.quantized.engine = former


class SmallNet(nn.Module):
    """Two convolutions, a skip connection, ``body``, and a head: 6 channels on half of the image's grid."""

    def __init__(self, classes: int = 7) -> None:
        super().__init__()
        self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU())
        self.body = SmallBlock()
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(self.stem(self.quant(x)))
        scores: Tensor = self.dequant(self.head(self.pool(features).flatten(1)))
        return scores

    def fuse_model(self, is_qat: bool = False) -> None:
        """Join convolutions with their ReLU, as the models of torchvision do."""
        assert not is_qat
        torch.ao.quantization.fuse_modules(self, ["stem.0", "stem.1"], inplace=True)


class SmallBlock(nn.Module):
    """A convolution with a skip connection around it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.sum = nn.Conv2d(6, 6, 3, padding=1), FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.sum.add_relu(self.convolution(x), x)
        return total


def quantize_eager(build: Callable[[], nn.Module], examples: Tensor, engine: str) -> nn.Module:
    """Return a model with modules of torch.ao.nn.quantized; it has a method ``fuse_model``, as torchvision's do."""
    model = _settle(build(), examples)
    model.fuse_model(is_qat=False)
    model.qconfig = torch.ao.quantization.get_default_qconfig(engine)
    torch.ao.quantization.prepare(model, inplace=True)
    model(examples)
    converted: nn.Module = torch.ao.quantization.convert(model)
    return converted


def quantize_fx(build: Callable[[], nn.Module], examples: Tensor, engine: str) -> nn.Module:
    """Return a graph that calls quantized modules and operators."""
    from torch.ao.quantization import quantize_fx as torch_fx

    mapping = torch.ao.quantization.get_default_qconfig_mapping(engine)
    prepared = torch_fx.prepare_fx(_settle(build(), examples), mapping, (examples,))
    prepared(examples)
    converted: nn.Module = torch_fx.convert_fx(prepared)
    return converted


def _settle(model: nn.Module, examples: Tensor) -> nn.Module:
    """Return a copy whose batch norms know the statistics of the examples: else random weights quantize to nothing."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        model.train()(examples)
    return model.eval()
