"""Pictures whose right answer is known: photo-like scenes of simple things, drawn from a seed.

    picture = scene(7, objects=2)
    picture.image                   # (128, 128, 3) uint8
    picture.objects[0].label        # "heart"
    picture.objects[0].mask         # (128, 128) True where one sees it

The same seed gives the same scene, bit for bit, on any machine and in any order of calls, and the same scene at any
size. ``classes`` and ``mark`` change what they name and nothing else: the same seed with another class is the same
picture with another shape in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from camtool.demo.backdrops import Colour, backdrop, pixel_centres
from camtool.demo.bodies import Body, Light, draw, inks, material
from camtool.demo.dice import Dice, Floats
from camtool.demo.shapes import LABELS, SHAPES, Shape, capsule, disc
from camtool.errors import CamtoolError, near

__all__ = ["LABELS", "Box", "Scene", "Thing", "scene"]

Box = tuple[int, int, int, int]
"""(x0, y0, x1, y1) in pixels, half-open."""

_RADII = {1: (0.17, 0.33), 2: (0.14, 0.21), 4: (0.1, 0.145)}
"""Number of objects → from which to which radius, the picture's side being 1."""

_THUMBNAIL = 8
"""Side of the small backdrop by which colours are chosen, whatever the picture's own size."""

_BRIGHTEST = 1.25
"""What is as bright as this becomes white."""

_SCENE, _MARK, _GRAIN = range(3)  # streams of a seed: what one of them uses up, the others do not miss


@dataclass(frozen=True, eq=False)
class Thing:
    """An object in a scene.

    Attributes:
        index: Its class.
        label: Its class' name.
        mask: (size, size) the pixels in which it is seen.
        box: The smallest box (x0, y0, x1, y1) around them, half-open.
    """

    index: int
    label: str
    mask: NDArray[np.bool_]
    box: Box


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture and all that is to be known about it.

    Attributes:
        image: (size, size, 3) uint8.
        objects: What is in it; all of different classes.
        mark: The watermark's box, ``None`` where there is none.
    """

    image: NDArray[np.uint8]
    objects: tuple[Thing, ...]
    mark: Box | None = None


def scene(
    seed: int,
    *,
    classes: Sequence[str | int] | None = None,
    objects: int = 1,
    size: int = 128,
    mark: bool = False,
) -> Scene:
    """Draw a scene.

    Args:
        seed: Which one; 0 or more.
        classes: The objects' classes, by name or index, as many as ``objects`` and all different; ``None`` draws lots.
        objects: How many objects: 1, 2 or 4.
        size: The picture's side in pixels, 32 or more.
        mark: Whether a watermark is put into the lower right corner.

    Raises:
        CamtoolError: An argument is none of those allowed.
    """
    _check(seed, objects, size)
    dice = Dice(seed, _SCENE)
    painter = backdrop(dice)
    light = Light.thrown(dice)
    lots = dice.shuffled(range(len(LABELS)))[:objects]
    indices = lots if classes is None else _indices(classes, objects)
    places = _places(dice, objects)
    thumbnail = painter(_THUMBNAIL)
    canvas = painter(size)
    masks = []
    for index, place in zip(indices, places, strict=True):
        body = _body(dice, SHAPES[LABELS[index]], place, thumbnail)
        masks.append(draw(canvas, body, light))
        for cover in [draw(canvas, body, light) for body in _occluders(dice, body, objects, thumbnail)]:
            masks = [mask & ~cover for mask in masks]
    _relight(canvas, dice, light)
    box = _stamp(canvas, Dice(seed, _MARK)) if mark else None
    things = tuple(_thing(index, mask) for index, mask in zip(indices, _uncovered(masks), strict=True))
    return Scene(_developed(canvas, Dice(seed, _GRAIN)), things, box)


def _check(seed: int, objects: int, size: int) -> None:
    if seed < 0:
        raise CamtoolError(f"seed: {seed} came; give 0 or more.")
    if objects not in _RADII:
        raise CamtoolError(f"objects: {objects} came; a scene has {', '.join(map(str, _RADII))} of them.")
    if size < 32:
        raise CamtoolError(f"size: {size} came; a scene needs 32 pixels a side at least.")


def _indices(classes: Sequence[str | int], objects: int) -> list[int]:
    """The classes asked for, as indices."""
    indices = []
    for each in classes:
        if each not in LABELS and each not in range(len(LABELS)):
            suggestion = near(str(each), LABELS)
            raise CamtoolError(f"classes: {each!r} came; known are {', '.join(LABELS)}, or 0 to 9.{suggestion}")
        indices.append(LABELS.index(each) if isinstance(each, str) else int(each))
    if len(indices) != objects or len(set(indices)) != objects:
        raise CamtoolError(f"classes: {list(classes)!r} came; give one each for objects={objects}, all different.")
    return indices


# ---------------------------------------------------------------------------------------------------- composition


def _places(dice: Dice, objects: int) -> list[tuple[float, float, float]]:
    """(x, y, radius) of each object, so that no two touch by much."""
    while True:
        radii = [dice.between(*_RADII[objects]) for _ in range(objects)]
        places = [(_inside(dice, radius), _inside(dice, radius), radius) for radius in radii]
        if all(_are_apart(one, other) for i, one in enumerate(places) for other in places[:i]):
            return places


def _inside(dice: Dice, radius: float) -> float:
    """A coordinate at which an object of this radius is all in the picture, or all but a tip."""
    margin = 0.92 * radius + 0.02
    return dice.between(margin, 1 - margin)


def _are_apart(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    across, down, reach = one[0] - other[0], one[1] - other[1], one[2] + other[2]
    return across * across + down * down > reach * reach


def _body(
    dice: Dice, shape: Shape, place: tuple[float, float, float], thumbnail: Floats, *, is_plain: bool = False
) -> Body:
    """A shape at a place, in colours that stand out there."""
    x, y, radius = place
    main, accent = inks(dice, _mean_colour(thumbnail, x, y))
    surface = material(dice, main, accent, is_plain=is_plain)
    return Body(shape, x, y, radius, dice.direction(), dice.between(0.84, 1.0), surface)


def _mean_colour(thumbnail: Floats, x: float, y: float) -> Colour:
    """About a place; summed as integers, as a sum of floats may depend on its order."""
    row, column = int(y * _THUMBNAIL), int(x * _THUMBNAIL)
    near_by = thumbnail[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2].reshape(-1, 3)
    red, green, blue = (int(total) / len(near_by) / 1024 for total in (near_by * 1024).astype(np.int64).sum(0))
    return red, green, blue


def _occluders(dice: Dice, body: Body, objects: int, thumbnail: Floats) -> list[Body]:
    """A stick or a pebble over a part of a body, or nothing."""
    if not dice.chance(0.3 if objects == 1 else 0.2):
        return []
    across, down = dice.direction()
    is_stick = dice.chance(0.6)
    away = body.radius * (dice.between(0.45, 0.8) if is_stick else dice.between(0.85, 1.05))
    radius = body.radius * (dice.between(1.1, 1.5) if is_stick else dice.between(0.3, 0.45))
    place = (body.x + across * away, body.y + down * away, radius)
    if not is_stick:
        return [_body(dice, disc, place, thumbnail, is_plain=True)]
    thick = dice.between(0.07, 0.12)
    shape = partial(capsule, start=(0.0, thick - 1), end=(0.0, 1 - thick), radius=thick)
    stick = _body(dice, shape, place, thumbnail, is_plain=True)
    return [replace(stick, turn=(across, down), squash=1.0)]  # it lies across the way from the middle to it


def _uncovered(masks: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """What of each object the later ones leave to be seen."""
    above = np.zeros_like(masks[0])
    seen = []
    for mask in reversed(masks):
        seen.append(mask & ~above)
        above = above | mask
    return seen[::-1]


def _thing(index: int, mask: NDArray[np.bool_]) -> Thing:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return Thing(index, LABELS[index], mask, box)


# ------------------------------------------------------------------------------------------- light, mark, and grain


def _relight(canvas: Floats, dice: Dice, light: Light) -> None:
    """Light that falls off over the picture, darker corners, a warm or a cold cast."""
    fall, corners, warmth = dice.between(0.05, 0.35), dice.between(0.0, 0.45), dice.between(-0.05, 0.05)
    at = pixel_centres(len(canvas)) - np.float32(0.5)
    x, y = at[None, :], at[:, None]
    canvas *= (1.02 + (x * light.x + y * light.y) * fall - (x * x + y * y) * corners)[..., None]
    canvas *= np.asarray((1 + warmth, 1, 1 - warmth), np.float32)


def _stamp(canvas: Floats, dice: Dice) -> Box:
    """Put the watermark, a copyright sign on a dim disc, into the lower right corner."""
    size = len(canvas)
    radius = 0.075
    middle_x, middle_y = (1 - radius - dice.between(0.02, 0.05) for _ in range(2))
    at = pixel_centres(size)
    x, y = (at[None, :] - middle_x) * (1 / radius), (at[:, None] - middle_y) * (1 / radius)
    away, pixel = disc(x, y, 0.0), 1 / (size * radius)
    letter = np.where((x > 0) & (np.abs(y) < x), np.float32(1), np.abs(away - 0.42) - 0.11)
    lines = np.minimum(np.abs(away - 0.82) - 0.1, letter)
    for shade, distance, opacity in ((0.05, away - 1, 0.45), (1.0, lines, 0.92)):
        cover = np.minimum(np.maximum(0.5 - distance / pixel, 0), 1) * opacity
        canvas += (shade - canvas) * cover[..., None]
    left, top, right, bottom = (
        int(edge * size + 0.5) for edge in (middle_x - radius, middle_y - radius, middle_x + radius, middle_y + radius)
    )
    return left, top, right, bottom


def _developed(canvas: Floats, dice: Dice) -> NDArray[np.uint8]:
    """The picture in eight bits, with a little grain; bright light fades into white as on film."""
    size = len(canvas)
    strength = dice.between(0.5, 5.0) / 255
    canvas = canvas + (dice.bytes(size, size)[..., None] * np.float32(1 / 127.5) - 1) * np.float32(strength)
    canvas = np.minimum(np.maximum(canvas, 0), _BRIGHTEST)
    over = np.maximum(canvas - (_BRIGHTEST - 0.5), 0)
    eight_bits: NDArray[np.uint8] = ((canvas - over * over) * 255 + np.float32(0.5)).astype(np.uint8)
    return eight_bits
