"""Tiny classifiers for images of any number of bands, and for volumes."""

from __future__ import annotations

from torch import Tensor, nn


class BandNet(nn.Module):
    """A classifier of three classes for images of ``count`` bands, or for volumes."""

    def __init__(self, count: int = 3, *, axes: int = 2) -> None:
        super().__init__()
        convolution = {2: nn.Conv2d, 3: nn.Conv3d}[axes]
        self.body, self.head = convolution(count, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu().flatten(2).mean(2))
