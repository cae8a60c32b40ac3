"""Write pages that need no server: the bundled model with drawn scenes, and with weights MobileNetV2 with photos.

Usage: ``python tools/make_demo_page.py build/pages --weights mobilenet_v2.safetensors``; the pages must not exist.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import skimage

import camtool
from camtool.demo.camnet import load_bundled_model
from camtool.demo.scenes import draw_scene

_SEEDS = (3, 5, 8, 12)
_PHOTOS = ("chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")
"""Photos in scikit-image's wheel."""


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", type=Path, help="weights of MobileNetV2 of ImageNet")
    parser.add_argument("--runtime", type=Path, help="folder dist of onnxruntime-web; by default npm gets it")
    given = parser.parse_args()
    scenes = [draw_scene(seed, objects=2, size=512).image for seed in _SEEDS]
    camtool.export_page(load_bundled_model("demo"), given.folder / "demo", sample=scenes, runtime=given.runtime)
    if given.weights:
        photos = [Path(skimage.__file__).parent / "data" / name for name in _PHOTOS]
        loaded = camtool.load("mobilenet_v2", given.weights)
        camtool.export_page(loaded, given.folder / "mobilenet_v2", sample=photos, runtime=given.runtime)


if __name__ == "__main__":
    main()
