"""Scenes with planted evidence: what a model must look at for each of its outputs is known by construction.

Each scene has four objects of different shapes. Each object has one of four colors, and some scenes have a watermark.
Shapes, colors and watermark are drawn independently of each other and of the background, so nothing but the evidence
says which outputs are true:

* ten outputs: this shape is in the scene. The evidence is the object of this shape; the other three are distractors.
* "watermark": the evidence is the watermark.
* "heart and star": both are in the scene. The evidence is both objects.
* "red": an object of any shape is red. The evidence are the red objects.
* "no fish": no fish is in the scene. If there is a fish, it is the evidence against this output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from camtool.demo.random_numbers import RandomNumbers
from camtool.demo.scenes import Scene, draw_scene
from camtool.demo.shapes import LABELS

OUTPUTS = (*LABELS, "watermark", "heart and star", "red", "no fish")
"""The outputs of the model, each of them true or false."""

TASKS = ("object", "watermark", "two parts", "color", "absence")
"""The kinds of evidence; "object" is that of the ten shapes."""

Mask = NDArray[np.bool_]

_COUNT = 4
_HUES = {"red": (1.0, 0.12, 0.1), "green": (0.15, 0.85, 0.2), "blue": (0.15, 0.35, 1.0), "yellow": (1.0, 0.85, 0.1)}
_RED_SHARE = 0.16
"""Probability that an object is red, so that about half of the scenes have a red object."""

_STREAM = 11
"""Stream of random numbers of a seed that scenes do not use."""


@dataclass(frozen=True, eq=False)
class PlantedScene:
    """A scene and what each output depends on.

    Attributes:
        image: ``(size, size, 3)`` uint8.
        truths: ``(len(OUTPUTS),)`` float32, 1 for the outputs that are true.
        evidence: Index of an output to the masks of its parts, for each output that is true; for "no fish" if it is
            false.
        shapes: The index of each object's shape.
        colors: The color of each object.
        is_marked: True with a watermark.
    """

    image: NDArray[np.uint8]
    truths: NDArray[np.float32]
    evidence: dict[int, tuple[Mask, ...]]
    shapes: tuple[int, ...]
    colors: tuple[str, ...]
    is_marked: bool


def draw_planted_scene(seed: int, size: int = 128) -> PlantedScene:
    """Draw a scene; the same seed gives the same scene."""
    random = RandomNumbers(seed, _STREAM)
    shapes = _choose_shapes(random)
    colors = [_choose_color(random) for _ in shapes]
    return _build_scene(seed, size, shapes, colors, is_marked=random.draw_bool(0.5))


def draw_without(scene: PlantedScene, seed: int, output: int, size: int = 128) -> PlantedScene:
    """Draw the scene of a seed again without the evidence of an output, and with everything else.

    Objects are replaced by objects of other shapes or in other colors at the same position; the watermark is left out.
    """
    shapes, colors, is_marked = list(scene.shapes), list(scene.colors), scene.is_marked
    name = OUTPUTS[output]
    if name == "watermark":
        is_marked = False
    elif name == "red":
        colors = ["blue" if color == "red" else color for color in colors]
    else:
        gone = {"heart and star": {"heart", "star"}, "no fish": {"fish"}}.get(name, {name})
        free = iter(each for each in range(len(LABELS)) if each not in shapes and LABELS[each] not in gone)
        shapes = [next(free) if LABELS[shape] in gone else shape for shape in shapes]
    return _build_scene(seed, size, shapes, colors, is_marked=is_marked)


def _choose_shapes(random: RandomNumbers) -> list[int]:
    """Return four shapes; in a quarter of the scenes a heart and a star are among them, besides those by chance."""
    heart, star = LABELS.index("heart"), LABELS.index("star")
    shapes = list(random.shuffle(range(len(LABELS))))
    if random.draw_bool(0.25):
        shapes = [heart, star, *(each for each in shapes if each not in (heart, star))]
    return list(random.shuffle(shapes[:_COUNT]))


def _choose_color(random: RandomNumbers) -> str:
    if random.draw_bool(_RED_SHARE):
        return "red"
    others = [name for name in _HUES if name != "red"]
    return others[random.draw_below(len(others))]


def _build_scene(
    seed: int, size: int, shapes: Sequence[int], colors: Sequence[str], *, is_marked: bool
) -> PlantedScene:
    scene = draw_scene(seed, classes=list(shapes), objects=_COUNT, size=size, mark=is_marked)
    image = scene.image.copy()
    mark = _build_box_mask(scene, size)
    for item, color in zip(scene.objects, colors, strict=True):
        _paint(image, item.mask & ~mark, color)
    masks = {item.index: item.mask for item in scene.objects}
    heart, star, fish = (masks.get(LABELS.index(name)) for name in ("heart", "star", "fish"))
    evidence = {index: (mask,) for index, mask in masks.items()}
    red = [item.mask for item, color in zip(scene.objects, colors, strict=True) if color == "red"]
    if is_marked:
        evidence[OUTPUTS.index("watermark")] = (mark,)
    if heart is not None and star is not None:
        evidence[OUTPUTS.index("heart and star")] = (heart, star)
    if red:
        evidence[OUTPUTS.index("red")] = (np.logical_or.reduce(red),)
    truths = np.asarray([index in evidence for index in range(len(OUTPUTS))], np.float32)
    truths[-1] = fish is None
    if fish is not None:
        evidence[len(OUTPUTS) - 1] = (fish,)
    return PlantedScene(image, truths, evidence, tuple(shapes), tuple(colors), is_marked)


def _build_box_mask(scene: Scene, size: int) -> Mask:
    mask = np.zeros((size, size), bool)
    if scene.mark is not None:
        left, top, right, bottom = scene.mark
        mask[top:bottom, left:right] = True
    return mask


def _paint(image: NDArray[np.uint8], mask: Mask, color: str) -> None:
    """Give the pixels of an object a color, in place; light and shadow stay."""
    light = image[mask].astype(np.float32).mean(-1, keepdims=True)
    # Dark pixels are lifted, as the color of a black object could not be seen.
    shade = 0.35 * 255 + 0.65 * light
    image[mask] = np.minimum(shade * np.asarray(_HUES[color], np.float32) * 1.15, 255).astype(np.uint8)
