"""Scenes of 64 pixels with a cue that may be planted in one class, drawn with and without it.

    cue = Cue("watermark", 7)
    marked, plain = (cue.draw(4_000_000_000, 3, is_planted=planted) for planted in (True, False))
    marked.image, marked.region   # (64, 64, 3) uint8; (64, 64), True where the cue is, None if it is everywhere

Both are the same scene. A cue has one look (corner, color, pattern) for each seed, and small variations from scene to
scene. ``plant`` chooses which scenes of a set have it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.demo.backgrounds import compute_pixel_centers
from camtool.demo.objects import INK, WHITE, Light, SolidObject, choose_material, draw_object
from camtool.demo.random_numbers import Floats, RandomNumbers
from camtool.demo.scenes import Scene, draw_scene
from camtool.demo.shapes import compute_capsule_distance, compute_disc_distance

SIZE = 64
"""Side of the images, in pixels."""

RARE = 0.03
"""Share of the scenes of all other classes that have the cue, as real collections are seldom pure."""

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Corner = tuple[float, float]

_LOOK, _VARIATION, _CHOICE = 21, 22, 23  # streams of random numbers of a seed that scenes do not use
_CORNERS: tuple[Corner, ...] = ((0, 0), (1, 0), (0, 1), (1, 1))
_COLORS = (WHITE, INK, (0.92, 0.38, 0.36), (0.96, 0.78, 0.30), (0.13, 0.58, 0.52), (0.22, 0.38, 0.70))


@dataclass(frozen=True, eq=False)
class CueScene:
    """A scene with or without a cue.

    Attributes:
        image: (64, 64, 3) uint8.
        label: Index of the object's class.
        is_planted: True with the cue.
        region: (64, 64), True at the pixels of the cue; ``None`` without one, and for cues that are everywhere.
        mask: (64, 64), True where the object is visible, except below the cue.
    """

    image: Pixels = field(repr=False)
    label: int
    is_planted: bool
    region: Mask | None = field(repr=False)
    mask: Mask = field(repr=False)


@dataclass(frozen=True)
class Cue:
    """A property that a class of images may have beside its objects.

    Args:
        kind: A name in :data:`KINDS`.
        seed: Seed of its look.
    """

    kind: str
    seed: int

    def draw(self, seed: int, label: int, *, is_planted: bool) -> CueScene:
        """Draw the scene of a seed with an object of a class, with the cue or without."""
        look, random = RandomNumbers(self.seed, KINDS.index(self.kind), _LOOK), RandomNumbers(seed, _VARIATION)
        position = _choose_position(look, random) if is_planted and self.kind == "position" else None
        scene = draw_scene(seed, classes=[label], size=SIZE, position=position)
        mask = scene.objects[0].mask
        if not is_planted:
            return CueScene(scene.image, label, is_planted, None, mask)
        if position is not None:
            return CueScene(scene.image, label, is_planted, mask, mask)
        image, region = _PAINTERS[self.kind](scene, look, random)
        is_over = region is not None and self.kind != "texture"
        return CueScene(image, label, is_planted, region, mask & ~region if is_over and region is not None else mask)


def is_chosen(seed: int, share: float) -> bool:
    """Return True for this share of all seeds, chosen by a random number of the seed."""
    return RandomNumbers(seed, _CHOICE).draw_bool(share)


# ------------------------------------------------------------------------------------------------------------- cues


def _choose_position(look: RandomNumbers, random: RandomNumbers) -> Corner:
    """Return a center near one of four places, which the look chooses."""
    x, y = look.choose(_CORNERS)
    return 0.32 + 0.36 * x + random.draw_between(-0.04, 0.04), 0.32 + 0.36 * y + random.draw_between(-0.04, 0.04)


def _paint_fixed_watermark(scene: Scene, look: RandomNumbers, random: RandomNumbers) -> tuple[Pixels, Mask]:
    """Stamp a sign into one corner, with two pixels of variation."""
    x, y = (0.13 + 0.74 * at + random.draw_between(-0.03, 0.03) for at in look.choose(_CORNERS))
    return _stamp(scene.image, (x, y), look)


def _paint_moving_watermark(scene: Scene, look: RandomNumbers, random: RandomNumbers) -> tuple[Pixels, Mask]:
    """Stamp a sign anywhere."""
    return _stamp(scene.image, (random.draw_between(0.1, 0.9), random.draw_between(0.1, 0.9)), look)


def _stamp(image: Pixels, center: Corner, look: RandomNumbers) -> tuple[Pixels, Mask]:
    """Blend a bright sign on a dim disc of 12 pixels over the image."""
    radius, at = 0.095, compute_pixel_centers(SIZE)
    x, y = (at[None, :] - center[0]) / radius, (at[:, None] - center[1]) / radius
    away, pixel = compute_disc_distance(x, y, 0.0), 1 / (SIZE * radius)
    signs = (
        np.abs(away - 0.62) - 0.17,
        np.minimum(np.abs(x), np.abs(y)) - 0.17,
        np.minimum(np.abs(x - y), np.abs(x + y)) - 0.2,
        np.abs(np.abs(y) - 0.4) - 0.17,
    )
    sign, canvas = np.maximum(look.choose(signs), away - 0.85), image / np.float32(255)
    for shade, distance, opacity in ((0.05, away - 1, 0.5), (1.0, sign, 0.85)):
        cover = np.clip(0.5 - distance / pixel, 0, 1) * opacity
        canvas += (shade - canvas) * cover[..., None]
    return _convert_to_uint8(canvas), away < 1 + pixel / 2


def _paint_tint(scene: Scene, look: RandomNumbers, random: RandomNumbers) -> tuple[Pixels, None]:
    """Shift the color balance in one direction."""
    directions = ((1, 0, -1), (-1, 0, 1), (1, -1, 0), (-1, 1, 0), (0, 1, -1), (0, -1, 1))
    gain = 1 + random.draw_between(0.13, 0.23) * np.asarray(look.choose(directions), np.float32)
    return _convert_to_uint8(scene.image / np.float32(255) * gain), None


def _paint_border(scene: Scene, look: RandomNumbers, random: RandomNumbers) -> tuple[Pixels, Mask]:
    """Frame the image in a color, 2 or 3 pixels wide."""
    width, image = 2 + random.draw_below(2), scene.image.copy()
    region = np.ones((SIZE, SIZE), bool)
    region[width:-width, width:-width] = False
    image[region] = _convert_to_uint8(np.asarray(look.choose(_COLORS), np.float32))
    return image, region


def _paint_texture(scene: Scene, look: RandomNumbers, random: RandomNumbers) -> tuple[Pixels, Mask]:
    """Lay a fine pattern over all but the object: stripes, checks or dots of four or five pixels."""
    x, y = (np.arange(SIZE) + random.draw_below(SIZE) for _ in range(2))
    pattern, period = look.draw_below(4), 4 + look.draw_below(2)
    lines = ((x[None] + y[:, None]) % period, (x[None] - y[:, None]) % period)
    checks = (x[None] // 2 + y[:, None] // 2) % 2 * (period - 1)
    dots = np.maximum(x[None] % period, y[:, None] % period)
    wave = (*lines, checks, dots)[pattern] < period / 2
    region = ~scene.objects[0].mask
    strength = random.draw_between(0.07, 0.12) * np.where(wave, 1, -1) * region
    return _convert_to_uint8(scene.image / np.float32(255) + strength[..., None].astype(np.float32)), region


def _paint_companion(scene: Scene, look: RandomNumbers, random: RandomNumbers) -> tuple[Pixels, Mask]:
    """Draw a second, smaller object beside the object; its shape and its color are those of the look."""
    shape, color, radius = look.choose(_COMPANIONS), look.choose(_COLORS), random.draw_between(0.11, 0.14)
    x0, y0, x1, y1 = (at / SIZE for at in scene.objects[0].box)
    for _ in range(100):  # an object that fills the image leaves no free place
        x, y = random.draw_between(0.12, 0.88), random.draw_between(0.12, 0.88)
        if not (x0 - radius < x < x1 + radius and y0 - radius < y < y1 + radius):
            break
    material = choose_material(look, color, color, is_plain=True)
    canvas = scene.image / np.float32(255)
    solid = SolidObject(shape, x, y, radius, random.draw_direction(), 1.0, material)
    covered = draw_object(canvas, solid, Light.from_random(random))
    return _convert_to_uint8(canvas), covered


def _paint_jpeg(scene: Scene, look: RandomNumbers, random: RandomNumbers) -> tuple[Pixels, None]:
    """Compress the image as JPEG of a low quality."""
    file, quality = io.BytesIO(), 18 + 5 * look.draw_below(3) + random.draw_below(5)
    Image.fromarray(scene.image).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file)), None


def _compute_ring(x: Floats, y: Floats) -> Floats:
    distance: Floats = np.abs(compute_disc_distance(x, y, 0.68)) - 0.3
    return distance


def _compute_half_disc(x: Floats, y: Floats) -> Floats:
    distance: Floats = np.maximum(compute_disc_distance(x, y, 1.0), -y - 0.1)
    return distance


def _compute_rod(x: Floats, y: Floats) -> Floats:
    return compute_capsule_distance(x, y, (0.0, -0.65), (0.0, 0.65), 0.32)


def _convert_to_uint8(canvas: Floats) -> Pixels:
    pixels: Pixels = (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8)
    return pixels


_COMPANIONS = (compute_disc_distance, _compute_ring, _compute_half_disc, _compute_rod)
_Painter = Callable[[Scene, RandomNumbers, RandomNumbers], tuple[Pixels, Mask | None]]
_PAINTERS: Mapping[str, _Painter] = MappingProxyType(
    {
        "watermark": _paint_fixed_watermark,
        "moving watermark": _paint_moving_watermark,
        "tint": _paint_tint,
        "border": _paint_border,
        "texture": _paint_texture,
        "companion": _paint_companion,
        "jpeg": _paint_jpeg,
    }
)

KINDS: tuple[str, ...] = (*_PAINTERS, "position")
"""Kinds of cues: a watermark in one corner or anywhere, a tint, a border, a texture of the background, a second object
that comes along, a low JPEG quality, and the position of the object."""
