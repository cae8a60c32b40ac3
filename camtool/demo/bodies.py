"""Solid things under one light: material, bevel, highlight, soft shadow.

A body is a shape somewhere in the picture. Its bevel and its highlight come from the slope of the shape's distance, its
shadow from the distance a little further on: nothing is blurred, so all of it can be drawn at any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.demo.backdrops import Colour, blend, pixel_centres, smoothstep
from camtool.demo.dice import Dice, Floats
from camtool.demo.shapes import Shape

__all__ = ["Body", "Light", "Material", "Skin", "draw", "inks", "material"]

Skin: TypeAlias = Callable[[Floats, Floats, Floats, float], Floats]
"""``(u, v, distance, pixel) -> colours``: the paint at a body's own coordinates; ``pixel`` is a pixel's size there."""

WHITE: Colour = (0.97, 0.96, 0.94)
INK: Colour = (0.17, 0.17, 0.21)
_PALETTE: tuple[Colour, ...] = (
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
    """Where the light of a scene comes from.

    Attributes:
        x: Its direction in the picture, to the right.
        y: Its direction in the picture, downwards.
        slant: How far it leans: 0 is straight above.
        softness: Width of a shadow's edge, for a body of radius 1.
        strength: How dark a shadow is, 0 to 1.
    """

    x: float
    y: float
    slant: float
    softness: float
    strength: float

    @classmethod
    def thrown(cls, dice: Dice) -> Light:
        """A light at random, always from above: people read light from below as a dent."""
        x, y = dice.direction()
        return cls(x, -abs(y), dice.between(0.35, 0.75), dice.between(0.12, 0.4), dice.between(0.35, 0.65))


@dataclass(frozen=True)
class Material:
    """How a body's surface looks.

    Attributes:
        skin: Its paint.
        bevel: Width of the rounded edge, for a body of radius 1.
        relief: How steep the edge gets, 0 to 1.
        gloss: Strength of the highlight, 0 to 1.
    """

    skin: Skin
    bevel: float
    relief: float
    gloss: float


@dataclass(frozen=True)
class Body:
    """A shape with a place, a size, a turn and a material.

    Attributes:
        shape: Its outline, of radius 1.
        x: Its middle, from the left, the picture's side being 1.
        y: Its middle, from the top.
        radius: Of the circle that it fills.
        turn: Cosine and sine of its rotation.
        squash: Its width as a part of its height, at most 1.
        material: Its surface.
    """

    shape: Shape
    x: float
    y: float
    radius: float
    turn: tuple[float, float]
    squash: float
    material: Material

    def coordinates(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """A place in the picture in the body's own coordinates."""
        cosine, sine = self.turn
        x, y = (x - self.x) * (1 / self.radius), (y - self.y) * (1 / self.radius)
        return (x * cosine + y * sine) * (1 / self.squash), y * cosine - x * sine


# ---------------------------------------------------------------------------------------------------------- drawing


def draw(canvas: Floats, body: Body, light: Light) -> NDArray[np.bool_]:
    """Paint a body and its shadow.

    Args:
        canvas: (size, size, 3), painted on.
        body: What.
        light: Under which light.

    Returns:
        (size, size) the pixels of which the body covers at least half.
    """
    size = len(canvas)
    window = _window(body, size)
    centres = pixel_centres(size)
    x, y = centres[None, window[1]], centres[window[0], None]
    u, v = body.coordinates(x, y)
    distance = body.shape(u, v)
    pixel = 1 / (size * body.radius)
    coverage = np.minimum(np.maximum(0.5 - distance * (body.squash / pixel), 0), 1)
    ground = canvas[window] * _shadow(body, light, x, y, distance)[..., None]
    surface = _surface(body, light, u, v, distance, pixel)
    canvas[window] = ground + (surface - ground) * coverage[..., None]
    covered = np.zeros((size, size), bool)
    covered[window] = coverage >= 0.5
    return covered


def _window(body: Body, size: int) -> tuple[slice, slice]:
    """The rows and columns that a body and its shadow may touch."""
    reach = body.radius * 1.75
    rows, columns = (
        slice(max(int((middle - reach) * size), 0), min(int((middle + reach) * size) + 2, size))
        for middle in (body.y, body.x)
    )
    return rows, columns


def _shadow(body: Body, light: Light, x: Floats, y: Floats, distance: Floats) -> Floats:
    """What part of the light reaches the ground: a cast shadow, and a dark line where the body stands."""
    reach = body.radius * light.slant * 0.45
    u, v = body.coordinates(x + light.x * reach, y + light.y * reach)
    cast = 1 - smoothstep(-light.softness, light.softness, body.shape(u, v))
    contact = 1 - smoothstep(-0.05, 0.12, distance)
    return (1 - cast * light.strength) * (1 - contact * (0.5 * light.strength))


def _surface(body: Body, light: Light, u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
    """The body's colours under the light, (h, w, 3)."""
    finish = body.material
    edge = np.minimum(np.maximum(1 + distance * (1 / finish.bevel), 0), 1)
    steep = edge * edge * finish.relief
    rise_x, rise_y = _slope(distance, 1, pixel) * steep, _slope(distance, 0, pixel) * steep
    upright = np.sqrt(np.maximum(1 - rise_x * rise_x - rise_y * rise_y, 0.05))
    height = math.sqrt(1 - light.slant * light.slant * 0.6)
    across, down = light.x * light.slant * 0.775, light.y * light.slant * 0.775
    lit = np.maximum(rise_x * across + rise_y * down + upright * height, 0) * (1 / height)
    # A face is never quite evenly lit: a gentle ramp keeps flat paint alive.
    cosine, sine = body.turn
    ramp = (u * cosine - v * sine) * light.x + (u * sine + v * cosine) * light.y
    shade = 0.3 + 0.62 * lit + 0.09 * ramp
    painted: Floats = finish.skin(u, v, distance, pixel) * shade[..., None]
    return painted + _highlight(rise_x, rise_y, upright, (across, down, height), finish.gloss)


def _slope(distance: Floats, axis: int, pixel: float) -> Floats:
    """How fast the distance grows along an axis of the picture, at most 1."""
    slope = np.empty_like(distance)
    along, run = np.moveaxis(slope, axis, 0), np.moveaxis(distance, axis, 0)
    along[1:-1] = (run[2:] - run[:-2]) * (0.5 / pixel)
    along[0], along[-1] = along[1], along[-2]
    bounded: Floats = np.minimum(np.maximum(slope, -1), 1)
    return bounded


def _highlight(x: Floats, y: Floats, upright: Floats, towards: tuple[float, float, float], gloss: float) -> Floats:
    """A small bright spot and a wide faint one where the surface mirrors the light to the eye, (h, w, 1)."""
    across, down, up = towards[0], towards[1], towards[2] + 1
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


def inks(dice: Dice, ground: Colour) -> tuple[Colour, Colour]:
    """A colour that stands out from the ground, and one that goes with it."""
    far = [ink for ink in _PALETTE if _apart(ink, ground) > 0.34]
    main = dice.pick(far)
    accent = dice.pick((WHITE, _mixed(main, WHITE, 0.62), _mixed(main, INK, 0.55), dice.pick(_PALETTE)))
    return main, accent if _apart(main, accent) > 0.25 else WHITE if _apart(main, WHITE) > 0.25 else INK


def _apart(one: Colour, other: Colour) -> float:
    red, green, blue = (a - b for a, b in zip(one, other, strict=True))
    return math.sqrt(red * red + 1.5 * green * green + 0.7 * blue * blue)


def _mixed(one: Colour, other: Colour, part: float) -> Colour:
    red, green, blue = (a + (b - a) * part for a, b in zip(one, other, strict=True))
    return red, green, blue


def material(dice: Dice, main: Colour, accent: Colour, *, is_plain: bool = False) -> Material:
    """A surface at random, in these colours; a plain one has no pattern."""
    patterned = (_flat, _flat, _gradient, _stripes, _dots, _inlay, _inlay, _sticker, _marble)
    skin = dice.pick((_flat, _gradient) if is_plain else patterned)(dice, main, accent)
    bevel, relief = dice.pick(((0.09, 0.8), (0.2, 0.85), (0.32, 0.9), (0.05, 0.5)))
    return Material(skin, bevel, relief, dice.pick((0.06, 0.3, 0.7, 0.9)))


def _flat(dice: Dice, main: Colour, accent: Colour) -> Skin:
    colour = np.asarray(main, np.float32)
    return lambda u, v, distance, pixel: colour


def _gradient(dice: Dice, main: Colour, accent: Colour) -> Skin:
    x, y = dice.direction()
    end = _mixed(main, accent, 0.75)
    return lambda u, v, distance, pixel: blend(main, end, smoothstep(-0.9, 0.9, u * x + v * y))


def _stripes(dice: Dice, main: Colour, accent: Colour) -> Skin:
    x, y = dice.direction()
    count, share = dice.between(1.6, 3.6), dice.between(0.12, 0.3)

    def skin(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        along = (u * x + v * y) * count
        wave = np.abs(along - np.floor(along) - 0.5)
        return blend(main, accent, 1 - smoothstep(share - count * pixel, share + count * pixel, wave))

    return skin


def _dots(dice: Dice, main: Colour, accent: Colour) -> Skin:
    x, y = dice.direction()
    count, radius = dice.between(2.0, 3.6), dice.between(0.2, 0.34)

    def skin(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        across, down = (u * x + v * y) * count, (v * x - u * y) * count
        across = across + np.floor(down) * 0.5
        across, down = across - np.floor(across) - 0.5, down - np.floor(down) - 0.5
        away = np.sqrt(across * across + down * down)
        return blend(main, accent, 1 - smoothstep(radius - count * pixel, radius + count * pixel, away))

    return skin


def _inlay(dice: Dice, main: Colour, accent: Colour) -> Skin:
    """A border in the other colour."""
    depth = dice.between(0.12, 0.24)
    return lambda u, v, distance, pixel: blend(main, accent, smoothstep(-depth - pixel, -depth + pixel, distance))


def _sticker(dice: Dice, main: Colour, accent: Colour) -> Skin:
    """A white border, as a die-cut sticker has."""
    end = _mixed(main, accent, 0.5)

    def skin(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        face = blend(main, end, smoothstep(-1, 1, v))
        return blend(face, WHITE, smoothstep(-0.12 - pixel, -0.12 + pixel, distance))

    return skin


def _marble(dice: Dice, main: Colour, accent: Colour) -> Skin:
    """Veins: a wave bent by two others."""
    x, y = dice.direction()
    other_x, other_y = dice.direction()
    count = dice.between(0.35, 0.7)

    def skin(u: Floats, v: Floats, distance: Floats, pixel: float) -> Floats:
        along, across = u * x + v * y, u * other_x + v * other_y
        bent = along * count + _wave(across * 0.45) * 0.3 + _wave((along - across) * 1.1) * 0.07
        vein = np.abs(_wave(bent))
        return blend(accent, main, smoothstep(0.05, 0.5, vein))

    return skin


def _wave(x: Floats) -> Floats:
    """A parabola wave of period 1 between -1 and 1: a sine that needs no library."""
    t = x - np.floor(x) - 0.5
    steep: Floats = 8 - 16 * np.abs(t)
    return t * steep
