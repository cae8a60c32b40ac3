"""What lies behind the objects: photos from scikit-image's wheel, and backgrounds made from nothing.

A backdrop is drawn in two steps: :func:`backdrop` throws the dice and gives a painter, the painter paints the same
backdrop at any size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.demo.dice import Dice, Floats

__all__ = ["Colour", "Painter", "backdrop", "blend", "pixel_centres", "smoothstep"]

Colour: TypeAlias = tuple[float, float, float]
Painter: TypeAlias = Callable[[int], Floats]
"""From a size to the backdrop, (size, size, 3) in [0, 1]."""

_COLOURED = ("astronaut", "chelsea", "coffee", "ihc", "motorcycle_left")
_GREY = ("brick", "grass", "gravel", "moon", "camera")
_TONES: tuple[tuple[Colour, Colour], ...] = (
    ((0.10, 0.13, 0.24), (0.80, 0.85, 0.90)),  # night to mist
    ((0.09, 0.20, 0.17), (0.76, 0.86, 0.74)),  # forest to mint
    ((0.25, 0.12, 0.22), (0.95, 0.83, 0.76)),  # plum to peach
    ((0.16, 0.15, 0.16), (0.90, 0.89, 0.87)),  # charcoal to paper
    ((0.27, 0.17, 0.11), (0.90, 0.80, 0.65)),  # earth to sand
    ((0.05, 0.22, 0.27), (0.72, 0.88, 0.88)),  # deep water to foam
    ((0.20, 0.17, 0.32), (0.85, 0.82, 0.93)),  # dusk to lilac
    ((0.33, 0.14, 0.10), (0.95, 0.78, 0.62)),  # brick to apricot
)
"""Pairs of a dark and a light colour that go together."""


def backdrop(dice: Dice) -> Painter:
    """Throw the dice for a backdrop."""
    kind = dice.pick((_photo, _photo, _photo, _tinted_photo, _tinted_photo, _sweep, _clouds, _wood, _bokeh, _paper))
    return kind(dice)


def pixel_centres(size: int) -> Floats:
    """(size,) where the centres of the pixels lie, the picture's side being 1."""
    indices = np.arange(size, dtype=np.float32)
    centres: Floats = (indices + np.float32(0.5)) / np.float32(size)
    return centres


def smoothstep(low: float, high: float, x: Floats) -> Floats:
    """0 below ``low``, 1 above ``high``, and smooth between."""
    t: Floats = np.minimum(np.maximum((x - low) * (1 / (high - low)), 0), 1)
    return t * t * (3 - 2 * t)


def blend(low: Floats | Colour, high: Floats | Colour, t: Floats) -> Floats:
    """(..., 3) between two colours; ``t`` is (...)."""
    start = np.asarray(low, np.float32)
    return start + (np.asarray(high, np.float32) - start) * t[..., None]


# --------------------------------------------------------------------------------------------------------- photos


def _photo(dice: Dice) -> Painter:
    """A part of a photo in colour, often out of focus."""
    view = _view(dice, dice.pick(_COLOURED))
    brightness = dice.between(0.85, 1.12)
    greyness = dice.between(0.0, 0.45)

    def paint(size: int) -> Floats:
        pixels = view(size)
        grey: Floats = pixels[..., 0] * 0.3 + pixels[..., 1] * 0.59 + pixels[..., 2] * 0.11
        faded: Floats = pixels + (grey[..., None] - pixels) * greyness
        return faded * brightness

    return paint


def _tinted_photo(dice: Dice) -> Painter:
    """A part of a grey photo, printed in two tones."""
    view = _view(dice, dice.pick(_GREY))
    dark, light = dice.pick(_TONES)
    return lambda size: blend(dark, light, view(size)[..., 0])


def _view(dice: Dice, name: str) -> Painter:
    """A square part of a photo, mirrored and blurred at random."""
    height, width = _pyramid(name)[0].shape[:2]
    side = min(height, width) * dice.between(0.4, 1.0)
    top, left = dice.unit() * (height - side), dice.unit() * (width - side)
    is_mirrored = dice.chance(0.5)
    blur = side * dice.pick((0.0, 0.0, 0.008, 0.016, 0.03))

    def paint(size: int) -> Floats:
        levels = _pyramid(name)
        level, footprint = 0, max(side / size, blur)
        while footprint >= 1.5 and level + 1 < len(levels):
            level, footprint = level + 1, footprint / 2
        scale = 0.5**level
        pixels = _resample(levels[level], (top * scale, left * scale), (side * scale, side * scale), size)
        return pixels[:, ::-1] if is_mirrored else pixels

    return paint


@cache
def _pyramid(name: str) -> tuple[Floats, ...]:
    """A photo, (h, w, channels) in [0, 1], and its halvings; read only."""
    import skimage
    from PIL import Image

    with Image.open(Path(skimage.__file__).parent / "data" / f"{name}.png") as photo:
        level = np.atleast_3d(np.asarray(photo))
    levels = []
    while min(level.shape[:2]) >= 8:
        levels.append(level.astype(np.float32) / np.float32(255))
        levels[-1].flags.writeable = False
        level = _halved(level)
    return tuple(levels)


def _halved(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The mean of every two by two pixels, in integers: a sum of floats may depend on its order."""
    height, width = pixels.shape[0] // 2 * 2, pixels.shape[1] // 2 * 2
    wide = pixels[:height, :width].astype(np.uint16)
    total = wide[::2, ::2] + wide[1::2, ::2] + wide[::2, 1::2] + wide[1::2, 1::2]
    return ((total + 2) // 4).astype(np.uint8)


def _resample(pixels: Floats, corner: tuple[float, float], sides: tuple[float, float], size: int) -> Floats:
    """A part of an array (h, w, channels), smoothly enlarged by a cubic B-spline.

    Args:
        pixels: What is looked at; outside of it the edge goes on.
        corner: Top and left of the part, in pixels.
        sides: Height and width of the part, in pixels.
        size: Side of the square that comes out.
    """
    for axis in (0, 1):
        places = corner[axis] + (np.arange(size) + 0.5) / size * sides[axis] - 0.5
        first = np.floor(places)
        f = (places - first).astype(np.float32)
        g = 1 - f
        weights = (
            g * g * g / 6,
            (4 - 6 * f * f + 3 * f * f * f) / 6,
            (4 - 6 * g * g + 3 * g * g * g) / 6,
            f * f * f / 6,
        )
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        rows = [np.clip(first.astype(np.intp) - 1 + tap, 0, pixels.shape[axis] - 1) for tap in range(4)]
        if axis == 0:  # columns that are not looked at need not be enlarged
            low, high = max(int(corner[1]) - 3, 0), int(corner[1] + sides[1]) + 4
            pixels, corner = pixels[:, low:high], (corner[0], corner[1] - low)
        taps = [pixels.take(row, axis) * weight.reshape(shape) for row, weight in zip(rows, weights, strict=True)]
        pixels = taps[0] + taps[1] + taps[2] + taps[3]
    return pixels


# ------------------------------------------------------------------------------------------------- from nothing


def _noise(dice: Dice, rows: int, columns: int) -> Painter:
    """Smooth noise, (size, size), about 0.5, of so many bumps down and across."""
    bumps = dice.grid(rows + 4, columns + 4, 1)
    return lambda size: _resample(bumps, (2.0, 2.0), (float(rows), float(columns)), size)[..., 0]


def _fractal(dice: Dice, bumps: int) -> Painter:
    """Noise with finer noise on it, (size, size), about 0.5."""
    octaves = [_noise(dice, bumps * 2**k, bumps * 2**k) for k in range(4)]

    def paint(size: int) -> Floats:
        total = octaves[0](size)
        for k, octave in enumerate(octaves[1:], 1):
            total = total + (octave(size) - 0.5) * 0.5**k
        return total

    return paint


def _sweep(dice: Dice) -> Painter:
    """A photographer's paper sweep: one colour with light falling on it."""
    dark, light = dice.pick(_TONES)
    across, down = dice.direction()
    base, contrast = dice.between(0.25, 0.75), dice.between(0.2, 0.5)
    grain = _noise(dice, 3, 3)

    def paint(size: int) -> Floats:
        at = pixel_centres(size) - 0.5
        ramp = at[None, :] * across + at[:, None] * down
        return blend(dark, light, ramp * contrast + base + (grain(size) - 0.5) * 0.25)

    return paint


def _clouds(dice: Dice) -> Painter:
    """Plaster, felt or clouds."""
    dark, light = dice.pick(_TONES)
    noise = _fractal(dice, dice.pick((2, 3, 5, 12)))
    contrast, base = dice.between(0.5, 1.3), dice.between(0.3, 0.7)
    return lambda size: blend(dark, light, (noise(size) - 0.5) * contrast + base)


def _wood(dice: Dice) -> Painter:
    """Planks with grain."""
    dark, light = dice.pick(_TONES)
    planks = dice.pick((3, 4, 5, 6))
    grain, ripple = _noise(dice, 3, 56), _noise(dice, 2, 14)
    shades = dice.grid(planks)
    is_lying = dice.chance(0.5)

    def paint(size: int) -> Floats:
        across = pixel_centres(size) * planks
        plank = np.floor(across)
        edge = np.minimum(across - plank, plank + 1 - across) / np.float32(planks)
        tone = (grain(size) - 0.5) * 0.5 + (ripple(size) - 0.5) * 0.35 + 0.36 + 0.22 * shades[plank.astype(np.intp)]
        pixels = blend(dark, light, tone * (0.45 + 0.55 * smoothstep(0.001, 0.009, edge)))
        return pixels.transpose(1, 0, 2) if is_lying else pixels

    return paint


def _bokeh(dice: Dice) -> Painter:
    """Lights out of focus in the dark."""
    dark, light = dice.pick(_TONES)
    sweep = _noise(dice, 2, 2)
    lights = [(dice.unit(), dice.unit(), dice.between(0.03, 0.11), dice.between(0.08, 0.3)) for _ in range(18)]

    def paint(size: int) -> Floats:
        glow = sweep(size) * 0.45 + 0.02
        for row, column, radius, strength in lights:
            rows, columns = _span(row, radius, size), _span(column, radius, size)
            y, x = pixel_centres(size)[rows, None] - row, pixel_centres(size)[None, columns] - column
            distance = np.sqrt(x * x + y * y) * (1 / radius)
            glow[rows, columns] += (1 - smoothstep(0.88, 1.0, distance)) * (0.75 + 0.25 * distance) * strength
        return blend(dark, light, glow)

    return paint


def _span(middle: float, reach: float, size: int) -> slice:
    return slice(max(int((middle - reach) * size) - 1, 0), max(int((middle + reach) * size) + 2, 0))


def _paper(dice: Dice) -> Painter:
    """Printed paper or cloth: stripes or a check."""
    dark, light = dice.pick(_TONES)
    count, contrast = dice.pick((7, 11, 16)), dice.between(0.08, 0.22)
    is_check = dice.chance(0.5)
    base, noise = dice.between(0.45, 0.8), _fractal(dice, 3)

    def paint(size: int) -> Floats:
        at = pixel_centres(size) * count
        wave = np.abs(at - np.floor(at) - 0.5) - 0.25
        width = count / size
        band = smoothstep(-width, width, wave) - 0.5
        pattern = (band[:, None] + band[None, :]) * 0.6 if is_check else np.broadcast_to(band, (size, size))
        return blend(dark, light, pattern * contrast + base + (noise(size) - 0.5) * 0.25)

    return paint
