"""Solid objects under one light: material, bevel, highlight, soft shadow.

An object is a shape at a position in the image. Its bevel and its highlight are computed from the gradient of the
shape's signed distance, its shadow from the distance at a shifted position. Nothing is blurred, so objects can be drawn
at any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.demo.backgrounds import Color, blend, compute_pixel_centers, smoothstep
from camtool.demo.random_numbers import Floats, RandomNumbers
from camtool.demo.shapes import Shape

# Function ``(u, v, distance, pixel) -> colors`` of an object's own coordinates and the size of a pixel in these.
Paint: TypeAlias = Callable[[Floats, Floats, Floats, float], Floats]

WHITE: Color = (0.97, 0.96, 0.94)
INK: Color = (0.17, 0.17, 0.21)
_PALETTE: tuple[Color, ...] = (
    (0.92, 0.38, 0.36),  # coral
    (0.95, 0.58, 0.24),  # tangerine
    (0.96, 0.78, 0.30),  # sunflower
    (0.47, 0.70, 0.33),  # leaf
    (0.13, 0.58, 0.52),  # teal
    (0.31, 0.67, 0.87),  # sky
    (0.22, 0.38, 0.70),  # royal
    (0.49, 0.36, 0.66),  # violet
    (0.76, 0.30, 0.52),  # raspberry
    (0.95, 0.66, 0.71),  # rose
    (0.94, 0.89, 0.80),  # cream
    (0.70, 0.25, 0.20),  # brick
    (0.60, 0.83, 0.76),  # mint
    (0.26, 0.27, 0.33),  # slate
)


@dataclass(frozen=True)
class Light:
    """Direction and softness of the light in a scene.

    Attributes:
        x: Direction in the image, to the right.
        y: Direction in the image, downwards.
        slant: Slant: 0 is from straight above.
        softness: Width of a shadow's edge, for an object of radius 1.
        strength: Darkness of a shadow, 0 to 1.
    """

    x: float
    y: float
    slant: float
    softness: float
    strength: float

    @classmethod
    def from_random(cls, random: RandomNumbers) -> Light:
        """Return a random light from above."""
        # With light from below, a raised object looks like a dent.
        x, y = random.draw_direction()
        slant, softness = random.draw_between(0.35, 0.75), random.draw_between(0.12, 0.4)
        return cls(x, -abs(y), slant, softness, random.draw_between(0.35, 0.65))


@dataclass(frozen=True)
class Material:
    """Surface of an object.

    Attributes:
        paint: Its paint.
        bevel: Width of the rounded edge, for an object of radius 1.
        relief: Steepness of the edge, 0 to 1.
        gloss: Strength of the highlight, 0 to 1.
    """

    paint: Paint
    bevel: float
    relief: float
    gloss: float


@dataclass(frozen=True)
class SolidObject:
    """A shape with a position, a size, a rotation and a material.

    Attributes:
        shape: Its outline, of radius 1.
        x: Its center, from the left, in units of the image's side.
        y: Its center, from the top.
        radius: Radius of the circle that it fills.
        turn: Cosine and sine of its rotation.
        squash: Ratio of its width to its height, at most 1.
        material: Its surface.
    """

    shape: Shape
    x: float
    y: float
    radius: float
    turn: tuple[float, float]
    squash: float
    material: Material

    def to_own_coordinates(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return a position in the image in the object's own coordinates."""
        cosine, sine = self.turn
        x, y = (x - self.x) * (1 / self.radius), (y - self.y) * (1 / self.radius)
        return (x * cosine + y * sine) * (1 / self.squash), y * cosine - x * sine


# ---------------------------------------------------------------------------------------------------------- drawing


def draw_object(canvas: Floats, solid: SolidObject, light: Light) -> NDArray[np.bool_]:
    """Paint an object and its shadow.

    Args:
        canvas: (size, size, 3); it is changed in place.
        solid: The object.
        light: The light of the scene.

    Returns:
        (size, size), True at pixels that the object covers at least by half.
    """
    size = len(canvas)
    window = _find_window(solid, size)
    centers = compute_pixel_centers(size)
    x, y = centers[None, window[1]], centers[window[0], None]
    u, v = solid.to_own_coordinates(x, y)
    distance = solid.shape(u, v)
    pixel = 1 / (size * solid.radius)
    coverage = np.minimum(np.maximum(0.5 - distance * (solid.squash / pixel), 0), 1)
    ground = canvas[window] * _compute_shadow(solid, light, x, y, distance)[..., None]
    surface = _shade_surface(solid, light, u, v, distance, pixel)
    canvas[window] = ground + (surface - ground) * coverage[..., None]
    covered = np.zeros((size, size), bool)
    covered[window] = coverage >= 0.5
    return covered


def _find_window(solid: SolidObject, size: int) -> tuple[slice, slice]:
    """Return the rows and columns that an object and its shadow may touch."""
    reach = solid.radius * 1.75
    rows, columns = (
        slice(max(int((middle - reach) * size), 0), min(int((middle + reach) * size) + 2, size))
        for middle in (solid.y, solid.x)
    )
    return rows, columns


def _compute_shadow(solid: SolidObject, light: Light, x: Floats, y: Floats, distance: Floats) -> Floats:
    """Return the share of the light that reaches the ground: a cast shadow, and a dark line around the object."""
    reach = solid.radius * light.slant * 0.45
    u, v = solid.to_own_coordinates(x + light.x * reach, y + light.y * reach)
    cast = 1 - smoothstep(-light.softness, light.softness, solid.shape(u, v))
    contact = 1 - smoothstep(-0.05, 0.12, distance)
    return (1 - cast * light.strength) * (1 - contact * (0.5 * light.strength))


def _shade_surface(solid: SolidObject, light: Light, u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
    """Return the object's colors under the light, (h, w, 3)."""
    finish = solid.material
    edge = np.minimum(np.maximum(1 + distance * (1 / finish.bevel), 0), 1)
    steep = edge * edge * finish.relief
    rise_x, rise_y = _compute_slope(distance, 1, pixel) * steep, _compute_slope(distance, 0, pixel) * steep
    upright = np.sqrt(np.maximum(1 - rise_x * rise_x - rise_y * rise_y, 0.05))
    height = math.sqrt(1 - light.slant * light.slant * 0.6)
    across, down = light.x * light.slant * 0.775, light.y * light.slant * 0.775
    lit = np.maximum(rise_x * across + rise_y * down + upright * height, 0) * (1 / height)
    # A real surface is never lit evenly: a gentle ramp avoids a flat look.
    cosine, sine = solid.turn
    ramp = (u * cosine - v * sine) * light.x + (u * sine + v * cosine) * light.y
    shade = 0.3 + 0.62 * lit + 0.09 * ramp
    painted: Floats = finish.paint(u, v, distance, pixel) * shade[..., None]
    return painted + _compute_highlight(rise_x, rise_y, upright, (across, down, height), finish.gloss)


def _compute_slope(distance: Floats, axis: int, pixel: float) -> Floats:
    """Return the slope of the distance along an axis of the image, clipped to [-1, 1]."""
    slope = np.empty_like(distance)
    along, run = np.moveaxis(slope, axis, 0), np.moveaxis(distance, axis, 0)
    along[1:-1] = (run[2:] - run[:-2]) * (0.5 / pixel)
    along[0], along[-1] = along[1], along[-2]
    return np.minimum(np.maximum(slope, -1), 1)


def _compute_highlight(
    x: Floats, y: Floats, upright: Floats, toward: tuple[float, float, float], gloss: float
) -> Floats:
    """Return the highlight, (h, w, 1): a small bright spot and a wide faint one."""
    across, down, up = toward[0], toward[1], toward[2] + 1
    length = math.sqrt(across * across + down * down + up * up)
    across, down, up = across / length, down / length, up / length
    facing = np.maximum(x * across + y * down + upright * up, 0)
    wide = facing
    for _ in range(4):
        wide = wide * wide
    narrow = wide * wide * wide * wide
    light: Floats = ((narrow * 0.75 + wide * 0.16) * gloss)[..., None]
    return light


# ------------------------------------------------------------------------------------------------------------ paint


def choose_colors(random: RandomNumbers, ground: Color) -> tuple[Color, Color]:
    """Return a color that contrasts with the ground, and an accent that contrasts with it."""
    far = [ink for ink in _PALETTE if _compute_color_distance(ink, ground) > 0.34]
    main = random.choose(far)
    accent = random.choose((WHITE, _mix(main, WHITE, 0.62), _mix(main, INK, 0.55), random.choose(_PALETTE)))
    return main, next((ink for ink in (accent, WHITE) if _compute_color_distance(main, ink) > 0.25), INK)


def _compute_color_distance(first: Color, second: Color) -> float:
    """Return the distance of two colors, weighted by the sensitivity of the eye."""
    red, green, blue = (a - b for a, b in zip(first, second, strict=True))
    return math.sqrt(red * red + 1.5 * green * green + 0.7 * blue * blue)


def _mix(first: Color, second: Color, part: float) -> Color:
    """Return the color between two colors at a fraction of the way."""
    red, green, blue = (a + (b - a) * part for a, b in zip(first, second, strict=True))
    return red, green, blue


def choose_material(random: RandomNumbers, main: Color, accent: Color, *, is_plain: bool = False) -> Material:
    """Return a random material in two colors; a plain one has no pattern."""
    plain, inlays = (_build_flat_paint, _build_gradient), [_build_inlay] * 2
    patterned = (_build_flat_paint, *plain, _build_stripes, _build_dots, *inlays, _build_sticker, _build_marble)
    paint = random.choose(plain if is_plain else patterned)(random, main, accent)
    bevel, relief = random.choose(((0.09, 0.8), (0.2, 0.85), (0.32, 0.9), (0.05, 0.5)))
    return Material(paint, bevel, relief, random.choose((0.06, 0.3, 0.7, 0.9)))


def _build_flat_paint(random: RandomNumbers, main: Color, accent: Color) -> Paint:
    """Return a paint of one color."""
    color = np.asarray(main, np.float32)
    return lambda u, v, distance, pixel: color


def _build_gradient(random: RandomNumbers, main: Color, accent: Color) -> Paint:
    """Return a paint with a gradient from one color toward the other."""
    x, y = random.draw_direction()
    end = _mix(main, accent, 0.75)
    return lambda u, v, distance, pixel: blend(main, end, smoothstep(-0.9, 0.9, u * x + v * y))


def _build_stripes(random: RandomNumbers, main: Color, accent: Color) -> Paint:
    """Return a paint with stripes."""
    x, y = random.draw_direction()
    count, share = random.draw_between(1.6, 3.6), random.draw_between(0.12, 0.3)

    def paint(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        along = (u * x + v * y) * count
        wave = np.abs(along - np.floor(along) - 0.5)
        return blend(main, accent, 1 - smoothstep(share - count * pixel, share + count * pixel, wave))

    return paint


def _build_dots(random: RandomNumbers, main: Color, accent: Color) -> Paint:
    """Return a paint with dots."""
    x, y = random.draw_direction()
    count, radius = random.draw_between(2.0, 3.6), random.draw_between(0.2, 0.34)

    def paint(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        across, down = (u * x + v * y) * count, (v * x - u * y) * count
        across = across + np.floor(down) * 0.5
        across, down = across - np.floor(across) - 0.5, down - np.floor(down) - 0.5
        away = np.sqrt(across * across + down * down)
        return blend(main, accent, 1 - smoothstep(radius - count * pixel, radius + count * pixel, away))

    return paint


def _build_inlay(random: RandomNumbers, main: Color, accent: Color) -> Paint:
    """Return a paint with a border in the accent color."""
    depth = random.draw_between(0.12, 0.24)
    return lambda u, v, distance, pixel: blend(main, accent, smoothstep(-depth - pixel, -depth + pixel, distance))


def _build_sticker(random: RandomNumbers, main: Color, accent: Color) -> Paint:
    """Return a paint with a white border, like a die-cut sticker."""
    end = _mix(main, accent, 0.5)

    def paint(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        face = blend(main, end, smoothstep(-1, 1, v))
        return blend(face, WHITE, smoothstep(-0.12 - pixel, -0.12 + pixel, distance))

    return paint


def _build_marble(random: RandomNumbers, main: Color, accent: Color) -> Paint:
    """Return a paint with veins: a wave bent by two others."""
    x, y = random.draw_direction()
    other_x, other_y = random.draw_direction()
    count = random.draw_between(0.35, 0.7)

    def paint(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        along, across = u * x + v * y, u * other_x + v * other_y
        bent = along * count + _compute_wave(across * 0.45) * 0.3 + _compute_wave((along - across) * 1.1) * 0.07
        vein = np.abs(_compute_wave(bent))
        return blend(accent, main, smoothstep(0.05, 0.5, vein))

    return paint


def _compute_wave(x: Floats) -> Floats:
    """Return a wave of parabolas, like a sine of period 1."""
    # A sine of the system's library differs between machines in its last bits.
    t = x - np.floor(x) - 0.5
    steep: Floats = 8 - 16 * np.abs(t)
    return t * steep
