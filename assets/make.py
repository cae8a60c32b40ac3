"""Draw the images in this folder: ``python assets/make.py --photo DOG-AND-CAT.png --weights FILE``.

``two-animals.jpg``: a photo of a dog and a cat, explained for each of the two by SqueezeNet 1.1 and ``rivalcam``.
``placement.jpg``: two photos, explained by MobileNetV2 with the heat stretched and by centers.
``methods.png``, ``layers.png``, ``classes.png``, ``features.png``, ``kernels.png``: a figure of each kind, drawn with
the bundled model and its scenes; they need ``camtool[figures]``.
``scenes/``: a dozen scenes of the demo's generator.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

import camtool
from camtool.demo.tour import draw_tour_scenes
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.image_writing import write_image

_HERE = Path(__file__).parent
_QUESTIONS = ("bull mastiff", "tabby")
_INPUT = 448
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_WIDTH = 300
_DPI = 105


def main(
    photo: Annotated[Path | None, typer.Option(help="a photo of a dog and a cat")] = None,
    weights: Annotated[Path | None, typer.Option(help="ImageNet weights of SqueezeNet 1.1")] = None,
    robin: Annotated[Path | None, typer.Option(help="a photo of a robin")] = None,
    sea_lion: Annotated[Path | None, typer.Option(help="a photo of a sea lion")] = None,
    mobilenet: Annotated[Path | None, typer.Option(help="ImageNet weights of MobileNetV2")] = None,
) -> None:
    """Draw the scenes and the figures; with photos and weights, also the images that show photos."""
    for number, scene in enumerate(draw_tour_scenes(12), 1):
        labels = "-".join(each.label for each in scene.objects)
        write_image(_HERE / "scenes" / f"{number:02}-{labels}.png", scene.image)
    for name, figure in _draw_figures().items():
        camtool.figures.save(figure, _HERE / f"{name}.png", dpi=_DPI)
    if photo and weights:
        write_image(_HERE / "two-animals.jpg", _draw_two_animals(photo, weights), quality=90)
    if robin and sea_lion and mobilenet:
        write_image(_HERE / "placement.jpg", _draw_placements([robin, sea_lion], mobilenet), quality=90)


def _draw_two_animals(photo: Path, weights: Path) -> np.ndarray:
    """Draw the photo and its explanations for both animals in a row.

    The model sees the whole photo at twice its usual size: a finer grid, and no crop.
    """
    loaded = camtool.load("squeezenet1_1", weights)
    transform = Compose([Resize((_INPUT, _INPUT)), ToTensor(), Normalize(_MEAN, _STD)])
    results = camtool.explain(
        loaded.model, photo, list(_QUESTIONS), method="rivalcam", transform=transform, labels=loaded.labels
    )
    images = [np.asarray(Image.open(photo).convert("RGB"))] + [result.overlay() for result in results]
    captions = ["photo"] + [f'explain(model, photo, "{result.label}")' for result in results]
    return draw_captioned_images(images, captions, columns=len(images), width=_WIDTH)


def _draw_placements(photos: list[Path], weights: Path) -> np.ndarray:
    """Draw each photo with its top class's heatmap, stretched and by centers."""
    loaded, images, captions = camtool.load("mobilenet_v2", weights), [], []
    for photo in photos:
        centered = camtool.explain(loaded, photo, placement="centers")
        images += [centered.photo, replace(centered, centers=None).overlay(), centered.overlay()]
        captions += [centered.label, 'placement="stretch"', 'placement="centers"']
    return draw_captioned_images(images, captions, columns=3, width=_WIDTH)


def _draw_figures() -> dict[str, Any]:
    """Return one figure of each kind in :mod:`camtool.figures`, by name."""
    demo, scenes = camtool.load("demo"), [scene.image for scene in draw_tour_scenes(12)]
    methods = {"Grad-CAM": "gradcam", "LayerCAM": "layercam", "HiResCAM": "hirescam", "EigenCAM": "eigencam"}
    return {
        "methods": camtool.figures.methods_grid(demo, [scenes[0], scenes[6]], methods),
        "layers": camtool.figures.layers_sweep(demo, scenes[1], ["stem.0", "stem.1", "features.0", "features"]),
        "classes": camtool.figures.classes_grid(demo, scenes[3], 4),
        "features": camtool.figures.feature_maps(
            demo, scenes[0], ["stem.0", "features.2"], 8, order="strongest", scale="each"
        ),
        "kernels": camtool.figures.kernels(demo, filters=24),
    }


if __name__ == "__main__":
    typer.run(main)
