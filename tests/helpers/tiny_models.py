"""Models that commands load by name, in a file that imports little: a run reads all files that its model imports."""

from __future__ import annotations

import time

import numpy as np
import torch
from PIL import Image
from torch import nn

import camtool

LABELS = ["ant", "bee", "cat", "dog"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Tanh())
        self.second = nn.Conv2d(6, 6, 3, 1, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.mean((1, 2, 3)) > 0.9).any():
            raise RuntimeError("too bright")
        return self.head(self.second(self.first(x)).mean((2, 3)))


class Slow(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        return super().forward(x)


def prepare(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)).copy()).movedim(2, 0) / 255


def tiny() -> camtool.Loaded:
    return camtool.Loaded(Net(), prepare, LABELS)


def slow() -> camtool.Loaded:
    return camtool.Loaded(Slow(), prepare, LABELS)


def sleeping() -> None:
    print("loading", flush=True)  # noqa: T201
    time.sleep(60)


TINY, SLOW, SLEEPING = (f"{__name__}:{factory.__name__}" for factory in (tiny, slow, sleeping))
