"""Small modules for the networks of several tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Attend(nn.Module):
    """Self-attention over the positions of ``(N, C, h, w)``, which returns the same shape."""

    def __init__(self, channels: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.back = nn.Linear(channels, 3 * 2 * heads), nn.Linear(2 * heads, channels)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.heads, 2)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.back(mixed).transpose(1, 2).reshape(x.shape)


class Staged(nn.Module):
    """A stem, a body and a pooled linear head, as a common network has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def staged() -> Staged:
    torch.manual_seed(3)
    return Staged().eval()


def small_detector() -> nn.Module:
    """Return a detector with random weights, which finds something everywhere."""
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    return fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, box_score_thresh=0.0).eval()
