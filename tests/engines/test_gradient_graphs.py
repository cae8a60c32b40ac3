"""The rules for gradients give what autograd gives, in forms that every runtime computes correctly."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import camtool
from camtool.engines.gradient_graphs import _differentiate_convolution
from camtool.engines.runtimes import open_session
from tests.engines.nets import RUNTIMES

CONVOLUTIONS = [
    {"kernel_size": 1},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 4},
    {"kernel_size": (2, 5), "padding": (0, 2), "groups": 2},
    {"kernel_size": 3, "padding": 2, "dilation": 2, "groups": 4},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (5, 2), "stride": (3, 1), "dilation": (1, 3), "groups": 2},
]


@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_gradient_of_a_convolution(options: dict[str, Any], is_transposed: bool) -> None:
    torch.manual_seed(0)
    layer = (nn.ConvTranspose2d if is_transposed else nn.Conv2d)(4, 8, **options).double()
    images = torch.randn(2, 4, 11, 14, dtype=torch.float64, requires_grad=True)
    output = layer(images)
    gradient = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, images, gradient)
    settings = (*(list(each) for each in (layer.stride, layer.padding, layer.dilation)), is_transposed, [0, 0])
    back, *_ = _differentiate_convolution(
        gradient, images, layer.weight, [8], *settings, layer.groups, [True, False, False]
    )
    torch.testing.assert_close(back, expected)


def test_a_gradient_that_nobody_asks_for_is_not_computed() -> None:
    gradient, images, weight = torch.randn(1, 8, 5, 5), torch.randn(1, 4, 5, 5), torch.randn(8, 4, 1, 1)
    settings = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert _differentiate_convolution(gradient, images, weight, [8], *settings, [False, True, True]) == (None,) * 3


class Windows(nn.Module):
    """A transformer whose attention runs in windows of pixels, with five axes."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.query, self.key, self.value, self.mix = (nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 5)
        self.register_buffer("mask", mask)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images)  # (N, 8, 4, 4)
        windows = maps.unflatten(2, (2, 2)).unflatten(4, (2, 2)).permute(0, 2, 4, 3, 5, 1).flatten(3, 4)
        heads = [layer(windows) for layer in (self.query, self.key, self.value)]
        seen = F.scaled_dot_product_attention(*heads, attn_mask=self.mask)
        mixed: Tensor = self.head(torch.softmax(self.mix(seen), dim=-1) + seen)
        return mixed.flatten(1, 3).mean(1)


MASKS = {
    "none": None,
    "boolean": torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]]).bool(),
    "numbers": torch.linspace(-2, 2, 16).reshape(4, 4),
}


WINDOWS = {name: partial(Windows, mask) for name, mask in MASKS.items()}

Exported = tuple[nn.Module, Path]
"""A model, and its file."""

EACH_RUNTIME = pytest.mark.parametrize("runtime", RUNTIMES)


@pytest.fixture(scope="module")
def export_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[], nn.Module]], Exported]:
    """Return what makes a model and its file, once for all runtimes that read it."""

    @cache
    def export(make: Callable[[], nn.Module]) -> Exported:
        torch.manual_seed(1)
        model, path = make().eval(), tmp_path_factory.mktemp("exported") / "model.onnx"
        return model, camtool.export(model, path, "layercam", "stem", size=(16, 16))

    return export


@EACH_RUNTIME
@pytest.mark.parametrize("mask", MASKS)
def test_attention_in_windows(runtime: str, mask: str, export_once: Callable[..., Exported]) -> None:
    assert_same_maps(*export_once(WINDOWS[mask]), runtime)


class Square(nn.Module):
    """Products with square weights, whose gradients are products with the same weights, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 192, 4, 4), nn.Linear(192, 5)
        self.first, self.second = nn.Linear(192, 192), nn.Linear(192, 192)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stem(images).flatten(2).mT
        scores: Tensor = self.head(self.second(torch.tanh(self.first(tokens)))).mean(1)
        return scores


@EACH_RUNTIME
def test_a_square_weight_that_is_read_both_ways(runtime: str, export_once: Callable[..., Exported]) -> None:
    assert_same_maps(*export_once(Square), runtime)


def assert_same_maps(model: nn.Module, path: Path, runtime: str) -> None:
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    _, maps = open_session(runtime, path).run([images.numpy(), np.array([1, 4])])
    results = camtool.explain(model, images, [1, 4], method="layercam", layer="stem")
    for ours, result in zip(maps, results, strict=True):
        np.testing.assert_allclose(ours, result.raw, rtol=0, atol=1e-4 * np.abs(result.raw).max())


class PooledHead(nn.Module):
    """A network whose classes are the channels of a 1 x 1 convolution of pooled features, as in timm's DLA."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 256, 4, 4), nn.Conv2d(256, 1000, 1)

    def forward(self, images: Tensor) -> Tensor:
        pooled = torch.relu(self.stem(images)).mean((2, 3), keepdim=True)
        return self.head(pooled).flatten(1)


@EACH_RUNTIME
def test_a_convolution_of_one_pixel(runtime: str, export_once: Callable[..., Exported]) -> None:
    assert_same_maps(*export_once(PooledHead), runtime)
