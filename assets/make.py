"""Make the pictures in this folder: ``python assets/make.py --model mobilenet_v2 --weights FILE``.

``first-look.jpg``: four photos that come with scikit-image make one; the model is asked for three things in it.
``methods.png``, ``layers.png``, ``classes.png``, ``features.png``, ``kernels.png``: a figure of each kind, drawn with
the bundled model and its scenes; they need ``camtool[figures]``.
``scenes/``: a dozen scenes of the demo's generator, for looking. Anybody can make them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import skimage.data
import typer
from PIL import Image, ImageDraw, ImageFont

import camtool
from camtool.demo.tour import showcase
from camtool.images import write

_HERE = Path(__file__).parent
_QUESTIONS = ("tiger cat", "espresso", "missile")
_SIDE, _GAP, _CAPTION = 240, 10, 34
_DPI = 105


def main(model: str = "mobilenet_v2", weights: Annotated[Path | None, typer.Option()] = None) -> None:
    """Explain the mosaic once a class and set the overlays in a row; draw the scenes."""
    for number, picture in enumerate(showcase(12), 1):
        labels = "-".join(thing.label for thing in picture.objects)
        write(_HERE / "scenes" / f"{number:02}-{labels}.png", picture.image)
    for name, figure in _figures().items():
        camtool.figures.save(figure, _HERE / f"{name}.png", dpi=_DPI)
    photo = _mosaic(["chelsea", "coffee", "rocket", "astronaut"])
    loaded = camtool.load(model, weights)
    answers = camtool.explain(loaded, photo, list(_QUESTIONS))
    pictures = [photo] + [answer.overlay() for answer in answers]
    captions = ["the photo"] + [f"“{answer.label}”?" for answer in answers]
    _row(pictures, captions).save(_HERE / "first-look.jpg", quality=90, optimize=True)


def _figures() -> dict[str, Any]:
    """What :mod:`camtool.figures` draws, by name."""
    demo, scenes = camtool.load("demo"), [picture.image for picture in showcase(12)]
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


def _mosaic(names: list[str], side: int = 240) -> np.ndarray:
    tiles = []
    for name in names:
        photo = Image.fromarray(getattr(skimage.data, name)())
        edge = min(photo.size)
        left, top = (photo.width - edge) // 2, (photo.height - edge) // 2
        tiles.append(np.asarray(photo.crop((left, top, left + edge, top + edge)).resize((side, side))))
    return np.vstack([np.hstack(tiles[:2]), np.hstack(tiles[2:])])


def _row(pictures: list[np.ndarray], captions: list[str]) -> Image.Image:
    row = Image.new("RGB", (len(pictures) * (_SIDE + _GAP) - _GAP, _SIDE + _CAPTION), "white")
    draw = ImageDraw.Draw(row)
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left = i * (_SIDE + _GAP)
        row.paste(Image.fromarray(picture).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS), (left, 0))
        font = ImageFont.load_default(16)
        draw.text((left + _SIDE / 2, _SIDE + _CAPTION / 2), caption, fill="#333333", font=font, anchor="mm")
    return row


if __name__ == "__main__":
    typer.run(main)
