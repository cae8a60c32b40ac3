"""The demo's network: small enough to read in a minute and to train on a laptop, fine enough for a sharp map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from camtool.demo.shapes import LABELS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from camtool.models import Transform

__all__ = ["LABELS", "SIZE", "CamNet", "camnet", "prepared", "transform"]

SIZE = 128
"""Side of the network's input, in pixels."""


class CamNet(nn.Module):
    """Convolutions down to a 16 x 16 grid, global average pooling, one linear layer.

    A position of the grid sees 79 x 79 pixels around it.

    Args:
        classes: How many classes.
    """

    def __init__(self, classes: int = len(LABELS)) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 24, stride=2), _convolution(24, 48, stride=2))
        self.features = nn.Sequential(_convolution(48, 96, stride=2), Residual(96), Residual(96))
        self.head = nn.Linear(96, classes)

    def forward(self, x: Tensor) -> Tensor:
        """From pictures (N, 3, 128, 128) to one logit a class, (N, classes)."""
        logits: Tensor = self.head(self.features(self.stem(x)).mean((2, 3)))
        return logits


class Residual(nn.Module):
    """Two convolutions and a way around them.

    Args:
        channels: Channels that come in and go out.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, not negative."""
        out: Tensor = self.relu(x + self.second(self.first(x)))
        return out


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def camnet(classes: int = len(LABELS)) -> CamNet:
    """The network with fresh weights."""
    return CamNet(classes)


def transform() -> Transform:
    """From a PIL picture to the network's input: the middle square at 128 x 128, each channel in [-1, 1]."""
    from torchvision.transforms._presets import ImageClassification

    half = (0.5, 0.5, 0.5)
    preset: Transform = ImageClassification(crop_size=SIZE, resize_size=SIZE, mean=half, std=half)
    return preset


def prepared(images: NDArray[np.uint8]) -> Tensor:
    """Pictures (N, 128, 128, 3) as the input (N, 3, 128, 128): what :func:`transform` does, less the resizing."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
