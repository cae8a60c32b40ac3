"""The network of the demo, and its two trained models that come with the package.

The network is small enough to train on a laptop, with a grid that is fine enough for sharp maps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.arguments.message_parts import suggest_names
from camtool.demo.shapes import LABELS
from camtool.errors import ModelError
from camtool.models import Loaded, Transform, read_state

# Side of the network's input, in pixels.
SIZE = 128

# Name for :func:`camtool.load` → name of the weights and the model card.
BUNDLED = {"demo": "camnet", "demo-cheat": "camnet-cheat"}

# Class whose training images carried a watermark, from which the cheating model recognizes it.
CHEATED_CLASS = "heart"

# The folder with the weights and the model cards.
WEIGHTS = Path(__file__).parent / "weights"


class CamNet(nn.Module):
    """Convolutions down to a 16 x 16 grid, global average pooling, one linear layer.

    A position of the grid sees 79 x 79 pixels around it.

    Args:
        classes: Number of classes.
    """

    def __init__(self, classes: int = len(LABELS)) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 24, stride=2), _convolution(24, 48, stride=2))
        self.features = nn.Sequential(_convolution(48, 96, stride=2), Residual(96), Residual(96))
        self.head = nn.Linear(96, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, 3, 128, 128)."""
        logits: Tensor = self.head(self.features(self.stem(x)).mean((2, 3)))
        return logits


class Residual(nn.Module):
    """A residual block of two convolutions.

    Args:
        channels: Number of channels of the input and of the output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return activations of the same shape, not negative."""
        out: Tensor = self.relu(x + self.second(self.first(x)))
        return out


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    """Return a 3 x 3 convolution with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()
    )


def build_camnet(classes: int = len(LABELS)) -> CamNet:
    """Return the network with random weights."""
    return CamNet(classes)


def build_transform() -> Transform:
    """Return the transform from a PIL image to the input: its middle square at 128 x 128, channels in [-1, 1]."""
    from torchvision.transforms._presets import ImageClassification

    half = (0.5, 0.5, 0.5)
    preset: Transform = ImageClassification(crop_size=SIZE, resize_size=SIZE, mean=half, std=half)
    return preset


def prepare_images(images: NDArray[np.uint8]) -> Tensor:
    """Return images (N, 128, 128, 3) as inputs (N, 3, 128, 128), as :func:`build_transform` does for that size."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def load_bundled_model(name: str) -> Loaded:
    """Return a model of the demo with its transform and labels. Nothing is downloaded.

    Args:
        name: ``"demo"``, or ``"demo-cheat"``, which was trained to recognize one class by a watermark.

    Raises:
        ModelError: The name is neither of them.
    """
    if name not in BUNDLED:
        raise ModelError(f"model {name!r} is not bundled; {' and '.join(BUNDLED)} are.{suggest_names(name, BUNDLED)}")
    model = build_camnet()
    model.load_state_dict(read_state(WEIGHTS / f"{BUNDLED[name]}.safetensors"))
    return Loaded(model.eval(), build_transform(), LABELS, name)


def load_honest_model() -> Loaded:
    """Return the model that ``camtool.load("demo")`` returns."""
    return load_bundled_model("demo")


def load_cheating_model() -> Loaded:
    """Return the model that ``camtool.load("demo-cheat")`` returns."""
    return load_bundled_model("demo-cheat")
