"""Photos that come with Python packages: real photos on which no threshold of camtool was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

_PHOTOS = {
    "skimage/data": (
        *("astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png"),
        *("coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png", "microaneurysms.png"),
        *("moon.png", "motorcycle_left.png", "motorcycle_right.png", "page.png", "retina.jpg", "rocket.jpg"),
        "text.png",
    ),
    "matplotlib/mpl-data/sample_data": ("grace_hopper.jpg",),
    "sklearn/datasets/images": ("china.jpg", "flower.jpg"),
    "ultralytics/assets": ("bus.jpg", "zidane.jpg"),
    "gradio/media_assets/images": ("cheetah.jpg", "cheetah1.jpg", "groot.jpeg", "lion.jpg", "tower.jpg"),
    "gradio/test_data": ("cheetah2.jpg",),
    "imgaug": ("quokka.jpg",),
    "foolbox/data": tuple(
        f"imagenet_{number:02}_{label}.jpg"
        for number, label in enumerate(
            (243, 559, 438, 990, 949, 853, 609, 609, 915, 455, 541, 630, 741, 471, 129, 99, 251, 22, 317, 305)
        )
    ),
    "dianna/data": ("bee.jpg",),
}
"""Folders in packages, and the photos in them; drawings and test patterns are left out."""


def read_package_photos() -> Iterator[tuple[str, Image.Image]]:
    """Yield the photos of the packages that are installed, with their names. The packages are not imported."""
    for folder, names in _PHOTOS.items():
        package, *inner = folder.split("/")
        found = find_spec(package)
        for place in (found.submodule_search_locations or ()) if found is not None else ():
            for path in (Path(place, *inner, name) for name in names):
                if path.exists():
                    with Image.open(path) as image:
                        yield f"{package}/{path.name}", image.convert("RGB")
