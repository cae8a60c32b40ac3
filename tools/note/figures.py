"""The figures of the note, all by :mod:`camtool.figures`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import camtool
from benchmarks.networks import FIRST_SCENE
from benchmarks.package_photos import read_package_photos
from camtool.demo.scenes import draw_scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = Path(__file__).parents[2] / "assets" / "note"

PHOTOS = ("skimage/chelsea.png", "skimage/coffee.png", "skimage/rocket.jpg")
"""Photos of packages that show one object, which MobileNetV2 recognizes."""

METHODS = {"Grad-CAM": "gradcam", "LayerCAM": "layercam", "Rival-CAM": "rivalcam", "Faith-CAM": "faithcam"}

CHOICES: dict[str, dict[str, Any]] = {
    "1 depth": {"depths": 1},
    "no competition": {"rivals": 0},
    "power 3": {"power": 3.0},
    "no focus": {"focus": 0.0},
    "stretched": {"placement": "stretch"},
    "Faith-CAM": {},
}

_SPOT, _SIDE = (104, 120), 224
_DPI = 180


class SpotNet(nn.Module):
    """Five strided averages of 3 x 3 pixels: the score is the brightness, so a bright spot is all that it sees."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, 1, 3, stride=2, padding=1, bias=False) for channels in (3, 1, 1, 1, 1)]
        self.features, self.head = nn.Sequential(*layers), nn.Linear(1, 1, bias=False)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the score ``(N, 1)``."""
        score: Tensor = self.head(self.features(x).mean((2, 3)))
        return score


def draw_figures(folder: Path, weights: Path | None = None) -> None:
    """Draw the figures into a folder; those of photos only with the ImageNet weights of MobileNetV2."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"spot": _draw_spot(), "scenes": _draw_scenes()}
    if weights is not None:
        drawn |= _draw_photos(camtool.load("mobilenet_v2", weights))
    for name, figure in drawn.items():
        camtool.figures.save(figure, folder / f"{name}.png", dpi=_DPI)


def _draw_spot() -> Figure:
    """Draw a bright spot and its Grad-CAM, stretched and placed by centers."""
    y, x = _SPOT
    image = np.zeros((_SIDE, _SIDE, 3), np.uint8)
    image[y - 10 : y + 11, x - 10 : x + 11] = 230
    explained = [
        camtool.explain(
            SpotNet().eval(), image, camtool.targets.Value(0), layer="features", transform=_scale, placement=placement
        )
        for placement in ("stretch", "centers")
    ]
    return camtool.figures.comparison(explained, titles=["stretched", "by centers"], columns=3, width=2.7)


def _scale(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image, np.float32) / 255).permute(2, 0, 1)


def _draw_scenes() -> Figure:
    """Draw the first scenes of two objects of the benchmarks, each explained for one object."""
    scenes = [draw_scene(FIRST_SCENE + number, objects=2) for number in range(2)]
    return camtool.figures.methods_grid(
        camtool.load("demo"),
        [scene.image for scene in scenes],
        METHODS,
        [scene.objects[0].label for scene in scenes],
        width=4.7,
    )


def _draw_photos(model: camtool.Loaded) -> dict[str, Figure]:
    """Return the figures of MobileNetV2: photos by several methods, and one photo by variants of Faith-CAM."""
    photos = [photo for name, photo in read_package_photos() if name in PHOTOS]
    explained, titles = [], []
    for photo in photos:
        stretched = camtool.explain(model, photo, placement="stretch")
        explained += [stretched, *camtool.explain(model, photo, method=["gradcam", "rivalcam", "faithcam"])]
        titles += [f"{stretched.label}, stretched", "Grad-CAM", "Rival-CAM", "Faith-CAM"]
    variants = [camtool.explain(model, photos[0], method="faithcam", **options) for options in CHOICES.values()]
    return {
        "photos": camtool.figures.gallery(explained, titles=titles, columns=4, width=5.0),
        "choices": camtool.figures.comparison(variants, titles=[*CHOICES], columns=7, width="double"),
    }
