"""Small models whose answers can be computed by hand, and photos for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import ToTensor

from camtool.demo.scenes import Scene, draw_scene
from camtool.models import Loaded

to_tensor = ToTensor()
"""From a photo to values in [0, 1], ``(3, H, W)``. Its geometry is read exactly, as it is one of torchvision."""


def draw_demo_scene(seed: int = 1_000_000_000) -> tuple[Scene, Image.Image]:
    """Return a scene with two objects, and its photo."""
    scene = draw_scene(seed, objects=2)
    return scene, Image.fromarray(scene.image)


def draw_noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a photo of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


class ColorSegmenter(nn.Module):
    """Classifies each pixel by its strongest channel: background (dark), red, green or blue."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)
        with torch.no_grad():
            for layer in (self.features, self.head):
                layer.weight.zero_()
                layer.bias.zero_()
            self.features.weight[1:4, :, 0, 0] = torch.eye(3)
            self.head.weight[:, :4, 0, 0] = torch.eye(4)
            self.head.bias[0] = 0.3

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.head(self.features(x).relu())}


def color_segmenter(transform: Any = to_tensor) -> Loaded:
    return Loaded(ColorSegmenter().eval(), transform, ["__background__", "red", "green", "blue"])


class BoxModel(nn.Module):
    """A detector in torchvision's form with boxes that are known, whose confidences depend on the image.

    Args:
        boxes: ``(x0, y0, x1, y1, class, confidence)`` of each.
    """

    def __init__(self, boxes: list[tuple[float, float, float, float, int, float]]) -> None:
        super().__init__()
        self.boxes = boxes
        self.features = nn.Conv2d(3, 4, 3, padding=1)
        with torch.no_grad():  # positive, so that no ReLU is dead
            self.features.weight.copy_(torch.rand(4, 3, 3, 3, generator=torch.Generator().manual_seed(0)) / 27)

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        features = self.features(images).relu()
        return [self._find(each) for each in features]

    def _find(self, features: Tensor) -> dict[str, Tensor]:
        table = torch.tensor(self.boxes).reshape(-1, 6)
        scores = []
        for x0, y0, x1, y1, _, confidence in self.boxes:
            heat = features[:, int(y0) : int(y1), int(x0) : int(x1)].mean()
            scores.append(confidence + heat - heat.detach())
        return {
            "boxes": table[:, :4],
            "labels": table[:, 4].long(),
            "scores": torch.stack(scores) if scores else table[:, 5],
        }


def box_model(boxes: list[tuple[float, float, float, float, int, float]]) -> Loaded:
    return Loaded(BoxModel(boxes).eval(), to_tensor, ["nothing", "cat", "dog"])


class FlatClassifier(nn.Module):
    """A classifier whose head reads every cell by itself, so that there is no pooled linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(5 * 8 * 8, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Counted(nn.Module):
    """A model that notes the batch size of each of its forward passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.batches = model, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        return self.model(x)  # type: ignore[no-any-return]
