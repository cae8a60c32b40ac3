"""Scenes with known objects: photo-like images of simple shapes, drawn from a seed.

    scene = draw_scene(7, objects=2)
    scene.image                   # (128, 128, 3) uint8
    scene.objects[0].label        # "heart"
    scene.objects[0].mask         # (128, 128), True where it is visible

A seed gives the same scene, bit for bit, on any machine and in any order of calls, and the same scene at any size.
``classes`` and ``mark`` change nothing else: the same seed with another class gives the same image with another shape
at the same position. With another ``position``, the object's color follows the background there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.message_parts import suggest_names
from camtool.demo.backgrounds import Color, choose_background, compute_pixel_centers
from camtool.demo.objects import Light, SolidObject, choose_colors, choose_material, draw_object
from camtool.demo.random_numbers import Floats, RandomNumbers
from camtool.demo.shapes import LABELS, SHAPES, Shape, compute_capsule_distance, compute_disc_distance
from camtool.errors import CamtoolError

# Box (x0, y0, x1, y1) in pixels, half-open.
Box = tuple[int, int, int, int]

# The first seed that the bundled models were not trained on.
UNSEEN = 1_000_000_000

# Number of objects → smallest and largest radius, in units of the image's side.
_RADII = {1: (0.17, 0.33), 2: (0.14, 0.21), 4: (0.1, 0.145)}

# Side of the small background from which colors are chosen, so that they do not depend on the image's size.
_THUMBNAIL = 8

# Brightness that becomes white.
_BRIGHTEST = 1.25

_SCENE, _MARK, _GRAIN = range(3)  # streams of a seed, which are independent of each other


@dataclass(frozen=True, eq=False)
class SceneObject:
    """An object in a scene.

    Attributes:
        index: Index of its class.
        label: Name of its class.
        mask: (size, size), True where it is visible.
        box: The smallest box (x0, y0, x1, y1) around the mask, half-open.
    """

    index: int
    label: str
    mask: NDArray[np.bool_] = field(repr=False)
    box: Box


@dataclass(frozen=True, eq=False)
class Scene:
    """An image and the objects in it.

    Attributes:
        image: (size, size, 3) uint8.
        objects: Its objects, all of different classes.
        mark: Box of the watermark; ``None`` without one.
    """

    image: NDArray[np.uint8] = field(repr=False)
    objects: tuple[SceneObject, ...]
    mark: Box | None = None


def draw_scene(
    seed: int,
    *,
    classes: Sequence[str | int] | None = None,
    objects: int = 1,
    size: int = 128,
    mark: bool = False,
    position: tuple[float, float] | None = None,
) -> Scene:
    """Draw a scene.

    Args:
        seed: Seed of the scene, 0 or more.
        classes: Classes of the objects, by name or index, one for each object, all different; ``None`` for random ones.
        objects: Number of objects: 1, 2 or 4.
        size: Side of the image in pixels, 32 or more.
        mark: Draw a watermark in the lower right corner.
        position: Center (x, y) of the only object, in units of the image's side; ``None`` for a random one.

    Raises:
        CamtoolError: An argument has a value that is not allowed.
    """
    _check_arguments(seed, objects, size, position)
    random = RandomNumbers(seed, _SCENE)
    painter = choose_background(random)
    light = Light.from_random(random)
    shuffled = random.shuffle(range(len(LABELS)))[:objects]
    indices = shuffled if classes is None else _find_indices(classes, objects)
    circles = _choose_places(random, objects)
    circles = circles if position is None else [(*position, circles[0][2])]
    thumbnail = painter(_THUMBNAIL)
    canvas = painter(size)
    masks = []
    for index, circle in zip(indices, circles, strict=True):
        solid = _build_object(random, SHAPES[LABELS[index]], circle, thumbnail)
        masks.append(draw_object(canvas, solid, light))
        for occluder in _choose_occluders(random, solid, objects, thumbnail):
            cover = draw_object(canvas, occluder, light)
            masks = [mask & ~cover for mask in masks]
    _apply_light(canvas, random, light)
    box = _draw_watermark(canvas, RandomNumbers(seed, _MARK)) if mark else None
    items = tuple(map(_describe_object, indices, _remove_covered_parts(masks)))
    return Scene(_convert_to_uint8(canvas, RandomNumbers(seed, _GRAIN)), items, box)


def _check_arguments(seed: int, objects: int, size: int, position: tuple[float, float] | None) -> None:
    """Raise an error if an argument is out of range."""
    if seed < 0:
        raise CamtoolError(f"seed must be 0 or more, got {seed}.")
    if objects not in _RADII:
        raise CamtoolError(f"objects must be one of {', '.join(map(str, _RADII))}, got {objects}.")
    if size < 32:
        raise CamtoolError(f"size must be 32 or more, got {size}.")
    if position is not None and (objects != 1 or not all(0 <= at < 1 for at in position)):
        raise CamtoolError(f"position must be two numbers in [0, 1), of one object, got {position}, objects={objects}.")


def _find_indices(classes: Sequence[str | int], objects: int) -> list[int]:
    """Return the indices of classes that are given by name or index."""
    indices = []
    for choice in classes:
        if choice not in LABELS and choice not in range(len(LABELS)):
            suggestion = suggest_names(str(choice), LABELS)
            raise CamtoolError(f"classes must be among {', '.join(LABELS)}, or 0 to 9, got {choice!r}.{suggestion}")
        indices.append(LABELS.index(choice) if isinstance(choice, str) else int(choice))
    if len(indices) != objects or len(set(indices)) != objects:
        raise CamtoolError(f"classes must be {objects} different ones for objects={objects}, got {list(classes)!r}.")
    return indices


# ---------------------------------------------------------------------------------------------------- composition


def _choose_places(random: RandomNumbers, objects: int) -> list[tuple[float, float, float]]:
    """Return (x, y, radius) of each object, so that they hardly overlap."""
    while True:
        radii = [random.draw_between(*_RADII[objects]) for _ in range(objects)]
        circles = [(_choose_coordinate(random, radius), _choose_coordinate(random, radius), radius) for radius in radii]
        if all(_are_apart(circle, earlier) for i, circle in enumerate(circles) for earlier in circles[:i]):
            return circles


def _choose_coordinate(random: RandomNumbers, radius: float) -> float:
    """Return a coordinate at which an object of this radius is in the image, except perhaps a tip."""
    margin = 0.92 * radius + 0.02
    return random.draw_between(margin, 1 - margin)


def _are_apart(first: tuple[float, float, float], second: tuple[float, float, float]) -> bool:
    """Check that two circles (x, y, radius) do not overlap."""
    across, down, reach = first[0] - second[0], first[1] - second[1], first[2] + second[2]
    return across * across + down * down > reach * reach


def _build_object(
    random: RandomNumbers, shape: Shape, disc: tuple[float, float, float], thumbnail: Floats, *, is_plain: bool = False
) -> SolidObject:
    """Return a shape at a position, in colors that contrast with the background there."""
    x, y, radius = disc
    main, accent = choose_colors(random, _compute_mean_color(thumbnail, x, y))
    surface = choose_material(random, main, accent, is_plain=is_plain)
    return SolidObject(shape, x, y, radius, random.draw_direction(), random.draw_between(0.84, 1.0), surface)


def _compute_mean_color(thumbnail: Floats, x: float, y: float) -> Color:
    """Return the mean color around a position."""
    # Integers, because a sum of floats depends on its order, which differs between machines.
    row, column = int(y * _THUMBNAIL), int(x * _THUMBNAIL)
    nearby = thumbnail[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2].reshape(-1, 3)
    red, green, blue = (int(total) / len(nearby) / 1024 for total in (nearby * 1024).astype(np.int64).sum(0))
    return red, green, blue


def _choose_occluders(random: RandomNumbers, solid: SolidObject, objects: int, thumbnail: Floats) -> list[SolidObject]:
    """Return a stick or a pebble that covers a part of an object, or nothing."""
    if not random.draw_bool(0.3 if objects == 1 else 0.2):
        return []
    across, down = random.draw_direction()
    is_stick = random.draw_bool(0.6)
    away = solid.radius * (random.draw_between(0.45, 0.8) if is_stick else random.draw_between(0.85, 1.05))
    radius = solid.radius * (random.draw_between(1.1, 1.5) if is_stick else random.draw_between(0.3, 0.45))
    circle = (solid.x + across * away, solid.y + down * away, radius)
    if not is_stick:
        return [_build_object(random, compute_disc_distance, circle, thumbnail, is_plain=True)]
    thick = random.draw_between(0.07, 0.12)
    shape = partial(compute_capsule_distance, start=(0.0, thick - 1), end=(0.0, 1 - thick), radius=thick)
    stick = _build_object(random, shape, circle, thumbnail, is_plain=True)
    return [replace(stick, turn=(across, down), squash=1.0)]  # perpendicular to the line to the center


def _remove_covered_parts(masks: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """Return the mask of each object without the parts that later objects cover."""
    above = np.zeros_like(masks[0])
    seen = []
    for mask in reversed(masks):
        seen.append(mask & ~above)
        above = above | mask
    return seen[::-1]


def _describe_object(index: int, mask: NDArray[np.bool_]) -> SceneObject:
    """Return the object with a class and a mask, and its box."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return SceneObject(index, LABELS[index], mask, box)


# ------------------------------------------------------------------------------------------- light, mark, and grain


def _apply_light(canvas: Floats, random: RandomNumbers, light: Light) -> None:
    """Add light that falls off over the image, darker corners, and a warm or cold cast; in place."""
    fall, corners = random.draw_between(0.05, 0.35), random.draw_between(0.0, 0.45)
    warmth = random.draw_between(-0.05, 0.05)
    at = compute_pixel_centers(len(canvas)) - np.float32(0.5)
    x, y = at[None, :], at[:, None]
    canvas *= (1.02 + (x * light.x + y * light.y) * fall - (x * x + y * y) * corners)[..., None]
    canvas *= np.asarray((1 + warmth, 1, 1 - warmth), np.float32)


def _draw_watermark(canvas: Floats, random: RandomNumbers) -> Box:
    """Draw the watermark, a copyright sign on a dim disc, in the lower right corner, and return its box."""
    size = len(canvas)
    radius = 0.075
    middle_x, middle_y = (1 - radius - random.draw_between(0.02, 0.05) for _ in range(2))
    at = compute_pixel_centers(size)
    x, y = (at[None, :] - middle_x) * (1 / radius), (at[:, None] - middle_y) * (1 / radius)
    away, pixel = compute_disc_distance(x, y, 0.0), 1 / (size * radius)
    letter = np.where((x > 0) & (np.abs(y) < x), np.float32(1), np.abs(away - 0.42) - 0.11)
    lines = np.minimum(np.abs(away - 0.82) - 0.1, letter)
    for shade, distance, opacity in ((0.05, away - 1, 0.45), (1.0, lines, 0.92)):
        cover = np.minimum(np.maximum(0.5 - distance / pixel, 0), 1) * opacity
        canvas += (shade - canvas) * cover[..., None]
    left, top, right, bottom = (
        int(edge * size + 0.5) for edge in (middle_x - radius, middle_y - radius, middle_x + radius, middle_y + radius)
    )
    return left, top, right, bottom


def _convert_to_uint8(canvas: Floats, random: RandomNumbers) -> NDArray[np.uint8]:
    """Return the image as uint8, with a little grain; bright light fades into white as on film."""
    size = len(canvas)
    strength = random.draw_between(0.5, 5.0) / 255
    canvas = canvas + (random.draw_bytes(size, size)[..., None] * np.float32(1 / 127.5) - 1) * np.float32(strength)
    canvas = np.minimum(np.maximum(canvas, 0), _BRIGHTEST)
    over = np.maximum(canvas - (_BRIGHTEST - 0.5), 0)
    eight_bits: NDArray[np.uint8] = ((canvas - over * over) * 255 + np.float32(0.5)).astype(np.uint8)
    return eight_bits
