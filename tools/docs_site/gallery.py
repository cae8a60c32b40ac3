"""The gallery: every method that fits the bundled classifier, on the same generated scenes, for the same classes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image

import camtool
from camtool.demo.scenes import UNSEEN, Scene, draw_scene
from camtool.methods import METHODS
from tools.docs_site.pages import Site
from tools.docs_site.reference import name_page

_SCENES, _OBJECTS, _SIDE = 2, 2, 168
_OTHER_MODELS = frozenset({"attention", "text", "a detector"})


_INTRO = """# Gallery

Every method on the same two scenes of two objects, by the model that comes with camtool. The question is, from left to
right: {asked}. The command that builds this site draws the pictures; nothing was chosen. Two scenes show what
a method's maps look like, not which method is better: for that see
[what was measured](trust.md#which-method-by-which-measure).

![The scenes themselves: {asked}](_gallery/scenes.jpg)
"""
_REST = """## Not drawn

These need attention, a text or a detector, which the bundled classifier does not have: {links}.
"""


def add_gallery(site: Site, folder: Path) -> None:
    """Draw the pictures in a folder, and add the page of the gallery and a picture to the page of each method."""
    folder.mkdir(parents=True, exist_ok=True)
    model, scenes = camtool.load("demo"), [draw_scene(UNSEEN + number, objects=_OBJECTS) for number in range(_SCENES)]
    asked = ", ".join(f"a {item.label}" for scene in scenes for item in scene.objects)
    _save_strip([scene.image for scene in scenes for _ in scene.objects], folder / "scenes.jpg")
    parts, rest = [_INTRO.format(asked=asked)], []
    for method in METHODS.values():
        page = f"reference/methods/{name_page(method.name)}"
        link = f"[{method.name}]({page}.md)"
        if method.needs & _OTHER_MODELS:
            rest.append(link)
            continue
        picture = f"{name_page(method.name)}.jpg"
        _save_strip(_draw_overlays(model, scenes, method.name), folder / picture)
        image = f"![{method.name}: heatmaps for {asked}](%s_gallery/{picture})\n"
        parts.append(f"## {method.name}\n\n{image % ''}\n{link}: {method.summary.replace('``', '`')}\n")
        shown = f"{image % '../../'}\n*[All methods on these scenes](../../gallery.md).*\n\n```python\n"
        site.texts[page] = site.texts[page].replace("```python\n", shown, 1)
    site.pictures |= {f"_gallery/{path.name}": path for path in folder.glob("*.jpg")}
    site.texts["gallery"] = "\n".join([*parts, _REST.format(links=", ".join(rest))])
    site.texts["reference"] += f"* [Gallery](gallery.md): {len(parts) - 1} methods on the same scenes\n"


def _draw_overlays(model: camtool.Loaded, scenes: list[Scene], method: str) -> list[np.ndarray]:
    images = [Image.fromarray(scene.image) for scene in scenes]
    labels = [[item.label for item in scene.objects] for scene in scenes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page shows the maps as they are
        results = camtool.explain(model, images, labels, method=method)
    return [np.asarray(result.overlay()) for row in results for result in row]


def _save_strip(images: list[np.ndarray], path: Path) -> None:
    """Save images beside each other, at one size."""
    tiles = [np.asarray(Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)) for image in images]
    gap = np.full((_SIDE, 6, 3), 255, np.uint8)
    row = [part for tile in tiles for part in (tile, gap)][:-1]
    Image.fromarray(np.concatenate(row, 1)).save(path, quality=88)
