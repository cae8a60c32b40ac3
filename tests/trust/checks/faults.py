"""Explanations with one planted fault each, and the code that names it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import dropout2d
from torchvision.transforms import v2

import camtool
from camtool.targets import Probability
from tests.helpers import photos
from tests.helpers.vision_transformers import make_tiny_vit


class Net(nn.Module):
    """Two convolutions, average pooling and a linear layer, with a place for a fault behind each."""

    def __init__(
        self,
        *,
        between: nn.Module | None = None,
        behind: nn.Module | None = None,
        stride: int = 2,
        padding: int = 1,
        classes: int = 6,
        channels: int = 3,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(channels, 8, 3, stride, padding), nn.ReLU())
        self.layer = nn.Sequential(nn.Conv2d(8, 8, 3, stride, padding), nn.ReLU())
        self.between = between or nn.Identity()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, classes)
        self.behind = behind or nn.Identity()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``(N, K)``."""
        scores: Tensor = self.behind(self.head(self.pool(self.between(self.layer(self.stem(images))))))
        return scores


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, values: Tensor) -> Tensor:
        """Return the value of the function."""
        return self.function(values)


class Twice(Net):
    """A model whose layer runs twice."""

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``(N, K)``."""
        values = self.layer(self.layer(self.stem(images)))
        scores: Tensor = self.head(self.pool(values))
        return scores


class TwoOutputs(Net):
    """A model that returns two tensors with names that tell nothing."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Return two tensors ``(N, K)``."""
        scores = super().forward(images)
        return {"first": scores, "second": -scores}


class Ensemble(nn.Module):
    """The sum of three networks."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(Net(behind=Function(partial(torch.mul, other=factor))) for factor in (1, 2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``(N, K)``."""
        return torch.stack([net(images) for net in self.nets]).sum(0)


class Reversal(torch.autograd.Function):
    """The identity, whose gradient has the other sign."""

    @staticmethod
    def forward(_: object, values: Tensor) -> Tensor:
        """Return the values."""
        return values.clone()

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        """Return the negative of the gradient."""
        return -gradient


class Net3d(nn.Sequential):
    """A convolution of volumes with a stride of 4, average pooling and a linear layer."""

    def __init__(self) -> None:
        pool = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten())
        super().__init__(nn.Conv3d(1, 4, 4, 4), nn.ReLU(), pool, nn.Linear(4, 3))
        self.eval()


class Net1d(nn.Sequential):
    """A convolution of signals with a stride of 16, average pooling and a linear layer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        pool = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten())
        super().__init__(nn.Conv1d(1, 4, 16, 16), nn.ReLU(), pool, nn.Linear(4, 3))
        self.eval()


_FIRST = torch.tensor([1.0, 0, 0, 0, 0, 0])


def _noise(seed: int = 0, size: int = 32) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))


def _explain(model: nn.Module | camtool.Loaded, image: Tensor | None = None, target: object = None, **options: object):
    given = {"layer": "layer", **options}
    return camtool.explain(model, _noise() if image is None else image, target, **given)[0]


def _photo(number: int = 0) -> Image.Image:
    return Image.fromarray(photos.unseen(number).image)


def _demo(image: object, **options: object):
    return camtool.explain(camtool.load("demo"), image, **options)


def _swapped():
    """A model that is certain of a class if red exceeds blue, on a blue image."""
    net = Net(classes=40)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.stem[0].weight[0, 0, 1, 1], net.stem[0].weight[0, 2, 1, 1] = 1.0, -1.0
        net.layer[0].weight[0, 0, 1, 1] = 1.0
        net.head.weight[0, 0] = 40.0
        net.head.bias.copy_(torch.linspace(-0.5, 0.5, 40))
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 0.5
    image[:, 2] += 0.5
    return _explain(net, image)


def _unscaled():
    """A model that is certain of a class if values exceed 10, on an image in [0, 1]."""
    net = Net(classes=40)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.stem[0].weight[0, :, 1, 1], net.stem[0].bias[0] = 1.0, -10.0
        net.layer[0].weight[0, 0, 1, 1] = 1.0
        net.head.weight[0, 0] = 1.0
        net.head.bias.copy_(torch.linspace(-0.5, 0.5, 40))
    return _explain(net, torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)))


def _train_mode():
    net = Net(between=nn.Dropout(0.5))
    net.train()
    return _explain(net)


def _changed_model():
    net = Net()
    explanation = _explain(net)
    with torch.no_grad():
        net.stem[0].weight.mul_(-1)  # as a model whose weights go on changing
    return explanation


def _emptied_model():
    net = Net()
    explanation = _explain(net)
    with torch.no_grad():
        net.layer[0].weight.zero_()
    return explanation


def _not_finite():
    net = Net()
    with torch.no_grad():
        net.layer[0].bias[0] = torch.nan
    return _explain(net, target=0)


def _tied_classes():
    net = Net()
    with torch.no_grad():
        net.head.weight.copy_(net.head.weight[:1].expand_as(net.head.weight))
    return _explain(net, method="hirescam")


def _ignored_image():
    """A model whose activations are a pattern of their own, as that of a position embedding."""
    pattern = torch.rand(1, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    return _explain(Net(between=Function(lambda values: values * 1e-9 + pattern)), layer="between", target=0)


def _padding():
    """A layer that fires where it sees the zeros around the image, for images that are never zero themselves."""
    net = Net(stride=1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.stem[0].weight[0, :, 1, 1] = 1.0
        net.layer[0].weight[0, 0], net.layer[0].bias[0] = -1.0, 9.0
        net.head.weight[0, 0], net.head.weight[1, 0] = 1.0, -1.0
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.3
    return _explain(net, image, target=0)


def _panorama():
    wide = np.tile(np.asarray(_photo()), (1, 8, 1))
    crop = v2.Compose(
        [
            v2.Resize(128),
            v2.CenterCrop(128),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    return _demo(Image.fromarray(wide), transform=crop)


def _raw_tensor(scale: float):
    pixels = np.asarray(_photo().resize((128, 128)), dtype=np.float32)
    return _demo(torch.from_numpy(pixels / 255 * scale).permute(2, 0, 1)[None])[0]


PIXELS = v2.Compose([v2.Resize(128), v2.CenterCrop(128), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
"""The demo's own transform without its normalization."""

HALF = v2.Normalize([0.5] * 3, [0.5] * 3)
_IMAGENET = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def _prepared(transform: Callable[[Image.Image], Tensor]):
    """An explanation of the demo on a photo of 4:3, with a transform that the user gave."""
    return _demo(_photo().resize((160, 120)), transform=transform)


def make_kinds(*, is_sorted: bool = True, sign: int = 1) -> camtool.Loaded:
    """200 classes of 20 kinds: each has the weight 1 for the two channels of its kind, and nearly 0 else."""
    net = Net(classes=200)
    kinds = torch.arange(200) % 20
    pairs = torch.tensor([*combinations(range(8), 2)])
    order = kinds if is_sorted else kinds[torch.randperm(200, generator=torch.Generator().manual_seed(1))]
    noise = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        net.head.weight.copy_(sign * (torch.eye(8)[pairs[order]].sum(1) + 0.1 * noise))
        net.head.bias.zero_()
    return camtool.Loaded(
        net, labels=[f"some{index} kind{'abcdefghijklmnopqrst'[kind]}" for index, kind in enumerate(kinds)]
    )


class Deep(nn.Sequential):
    """Five convolutions and a linear layer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        body = [module for _ in range(5) for module in (nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())]
        super().__init__(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
        self.eval()


FAULTS: dict[str, tuple[str, Callable[[], camtool.Explanation]]] = {
    "an image of one color": ("constant-image", lambda: _demo(Image.new("RGB", (128, 128), (90, 90, 90)))),
    "an image that is almost black": ("dark-image", lambda: _demo(_photo().point(lambda value: value // 20))),
    "a panorama of which the center is cropped": ("small-part-seen", _panorama),
    "floats from 0 to 255": ("byte-range", lambda: _raw_tensor(255)),
    "a tensor that is not normalized": ("not-normalized", lambda: _raw_tensor(1)),
    "a transform to bytes": ("byte-range", lambda: _prepared(lambda photo: 255 * PIXELS(photo))),
    "a transform that normalizes twice": (
        "unusual-range",
        lambda: _prepared(v2.Compose([PIXELS, _IMAGENET, _IMAGENET])),
    ),
    "a transform without normalization": ("other-normalization", lambda: _prepared(PIXELS)),
    "a transform with the normalization of another model": (
        "other-normalization",
        lambda: _prepared(v2.Compose([PIXELS, _IMAGENET])),
    ),
    "a transform to [0, 1] for a model that declares nothing": (
        "unit-range",
        lambda: camtool.explain(Net(), _photo(), transform=PIXELS, layer="layer"),
    ),
    "a transform to BGR": ("channels-swapped", lambda: _prepared(lambda photo: HALF(PIXELS(photo)).flip(0))),
    "a transform that turns photos": ("upside-down", lambda: _prepared(lambda photo: HALF(PIXELS(photo)).flip(1, 2))),
    "a transform that squeezes photos": (
        "aspect-changed",
        lambda: _prepared(v2.Compose([v2.Resize((128, 128)), PIXELS, HALF])),
    ),
    "a last layer with the wrong sign": (
        "negated-layer",
        lambda: _explain(make_kinds(sign=-1), target=0),
    ),
    "labels of other classes": ("labels-mixed-up", lambda: _explain(make_kinds(is_sorted=False), target=0)),
    "an early layer": ("early-layer", lambda: _explain(Deep(), layer="1", target=0)),
    "red and blue exchanged": ("channels-swapped", _swapped),
    "a gray photo": ("gray-image", lambda: _demo(_photo().convert("L"))),
    "values in another range": ("scale-misfit", _unscaled),
    "an output of two tensors": ("several-outputs", lambda: _explain(TwoOutputs())),
    "a model in training mode": ("train-mode", _train_mode),
    "a model that has changed": ("not-repeatable", _changed_model),
    "a softmax at the end": ("probability-score", lambda: _explain(Net(behind=nn.Softmax(1)))),
    "a saturated probability": (
        "saturated-probability",
        lambda: _explain(Net(behind=Function(lambda scores: scores + 12 * _FIRST)), target=Probability(0)),
    ),
    "a saturated value": (
        "vanishing-gradient",
        lambda: _explain(Net(), target=lambda scores: (6 + scores.max()).tanh()),
    ),
    "a dead ReLU": (
        "zero-gradient",
        lambda: _explain(Net(between=Function(lambda values: (values - 1e6).relu())), target=0),
    ),
    "a norm behind the last attention": (
        "cells-not-read",
        lambda: camtool.explain(make_tiny_vit(), torch.randn(1, 3, 6, 8), 1, layer="blocks.2.norm2")[0],
    ),
    "a constant layer": (
        "constant-map",
        lambda: _explain(
            Net(between=Function(lambda values: values.mean((2, 3), keepdim=True).expand_as(values))),
            layer="between",
            target=0,
        ),
    ),
    "a layer that has become constant": ("constant-map", _emptied_model),
    "values that are not finite": ("not-finite", _not_finite),
    "a layer of 2 x 2 cells": ("coarse-layer", lambda: _explain(Net(stride=4, padding=1), target=0)),
    "a volume of 3 slices of cells": (
        "coarse-layer",
        lambda: camtool.explain(Net3d(), torch.rand(1, 1, 12, 32, 32), 0, kind="volume")[0],
    ),
    "a clip of 3 frames of cells": (
        "coarse-layer",
        lambda: camtool.explain(Net3d(), torch.rand(1, 1, 12, 32, 32), 0, kind="clip")[0],
    ),
    "a signal of 3 cells": (
        "coarse-layer",
        lambda: camtool.explain(Net1d(), torch.rand(1, 1, 48), 0)[0],
    ),
    "one network of an ensemble": ("other-paths", lambda: _explain(Ensemble(), layer="nets.2.layer")),
    "an image that is turned in the model": (
        "cells-elsewhere",
        lambda: _explain(nn.Sequential(Function(partial(torch.rot90, dims=(2, 3))), Net()), layer="1.layer", target=0),
    ),
    "dropout that stays on": (
        "not-repeatable",
        lambda: _explain(Net(between=Function(partial(dropout2d, training=True))), target=0),
    ),
    "a reversed gradient": ("wrong-gradient", lambda: _explain(Net(between=Function(Reversal.apply)))),
    "a part of the gradient that is cut off": (
        "wrong-gradient",
        lambda: _explain(Net(between=Function(lambda values: values * values.detach())), target=0),
    ),
    "classes that share their weights": ("same-map", _tied_classes),
    "activations without the image": ("image-ignored", _ignored_image),
    "heat from the padding": ("border-heat", _padding),
    "a class of low rank": ("low-rank", lambda: _demo(_photo(), target_class=int(_rank_last()))),
    "a layer that runs twice": ("several-calls", lambda: _explain(Twice(), target=0)),
    "a layer for a method at the input": (
        "layer-ignored",
        lambda: _explain(Net(), method="rise", samples=8, target=0),
    ),
}
"""What is wrong → the code that names it, and a function that returns the explanation."""


def _rank_last() -> int:
    demo = camtool.load("demo")
    with torch.no_grad():
        return int(demo.model(camtool.Explainer(demo).prepare(_photo()).tensor.reshape(1, 3, 128, 128)).argmin())
