"""Backgrounds of scenes: photos from scikit-image's wheel, and computed ones.

A background is drawn in two steps. :func:`choose_background` draws random numbers and returns a painter. The painter
paints the same background at any size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.demo.random_numbers import Floats, RandomNumbers

Color: TypeAlias = tuple[float, float, float]
# Function from a size to the background, (size, size, 3) in [0, 1].
Painter: TypeAlias = Callable[[int], Floats]

_COLOR_PHOTOS = ("astronaut", "chelsea", "coffee", "ihc", "motorcycle_left")
_GRAY_PHOTOS = ("brick", "grass", "gravel", "moon", "camera")
# Pairs of a dark and a light color that go together.
_TONES: tuple[tuple[Color, Color], ...] = (
    ((0.10, 0.13, 0.24), (0.80, 0.85, 0.90)),  # night to mist
    ((0.09, 0.20, 0.17), (0.76, 0.86, 0.74)),  # forest to mint
    ((0.25, 0.12, 0.22), (0.95, 0.83, 0.76)),  # plum to peach
    ((0.16, 0.15, 0.16), (0.90, 0.89, 0.87)),  # charcoal to paper
    ((0.27, 0.17, 0.11), (0.90, 0.80, 0.65)),  # earth to sand
    ((0.05, 0.22, 0.27), (0.72, 0.88, 0.88)),  # deep water to foam
    ((0.20, 0.17, 0.32), (0.85, 0.82, 0.93)),  # dusk to lilac
    ((0.33, 0.14, 0.10), (0.95, 0.78, 0.62)),  # brick to apricot
)


def choose_background(random: RandomNumbers) -> Painter:
    """Return the painter of a random background."""
    photos = (*[_build_photo] * 3, *[_build_tinted_photo] * 2)
    kind = random.choose((*photos, _build_sweep, _build_clouds, _build_wood, _build_bokeh, _build_paper))
    return kind(random)


def compute_pixel_centers(size: int) -> Floats:
    """Return the centers of the pixels, (size,), in units of the image's side."""
    indices = np.arange(size, dtype=np.float32)
    centers: Floats = (indices + np.float32(0.5)) / np.float32(size)
    return centers


def smoothstep(low: float, high: float, x: Floats) -> Floats:
    """Return 0 below ``low``, 1 above ``high``, and a smooth transition between them."""
    t: Floats = np.minimum(np.maximum((x - low) * (1 / (high - low)), 0), 1)
    return t * t * (3 - 2 * t)


def blend(low: Floats | Color, high: Floats | Color, t: Floats) -> Floats:
    """Return colors (..., 3) between two colors; ``t`` is (...), in [0, 1]."""
    start = np.asarray(low, np.float32)
    return start + (np.asarray(high, np.float32) - start) * t[..., None]


# --------------------------------------------------------------------------------------------------------- photos


def _build_photo(random: RandomNumbers) -> Painter:
    """Return the painter of a part of a color photo, often out of focus."""
    view = _build_view(random, random.choose(_COLOR_PHOTOS))
    brightness = random.draw_between(0.85, 1.12)
    grayness = random.draw_between(0.0, 0.45)

    def paint(size: int) -> Floats:
        pixels = view(size)
        gray: Floats = pixels[..., 0] * 0.3 + pixels[..., 1] * 0.59 + pixels[..., 2] * 0.11
        faded: Floats = pixels + (gray[..., None] - pixels) * grayness
        return faded * brightness

    return paint


def _build_tinted_photo(random: RandomNumbers) -> Painter:
    """Return the painter of a part of a gray photo, printed in two tones."""
    view = _build_view(random, random.choose(_GRAY_PHOTOS))
    dark, light = random.choose(_TONES)
    return lambda size: blend(dark, light, view(size)[..., 0])


def _build_view(random: RandomNumbers, name: str) -> Painter:
    """Return the painter of a square part of a photo, mirrored and blurred at random."""
    height, width = _load_pyramid(name)[0].shape[:2]
    side = min(height, width) * random.draw_between(0.4, 1.0)
    top, left = random.draw_unit() * (height - side), random.draw_unit() * (width - side)
    is_mirrored = random.draw_bool(0.5)
    blur = side * random.choose((0.0, 0.0, 0.008, 0.016, 0.03))

    def paint(size: int) -> Floats:
        levels = _load_pyramid(name)
        level, footprint = 0, max(side / size, blur)
        while footprint >= 1.5 and level + 1 < len(levels):
            level, footprint = level + 1, footprint / 2
        scale = 0.5**level
        pixels = _resample(levels[level], (top * scale, left * scale), (side * scale, side * scale), size)
        return pixels[:, ::-1] if is_mirrored else pixels

    return paint


@cache
def _load_pyramid(name: str) -> tuple[Floats, ...]:
    """Return a photo, (h, w, channels) in [0, 1], and smaller copies of half the size each; read-only."""
    import skimage
    from PIL import Image

    with Image.open(Path(skimage.__file__).parent / "data" / f"{name}.png") as photo:
        level = np.atleast_3d(np.asarray(photo))
    levels = []
    while min(level.shape[:2]) >= 8:
        levels.append(level.astype(np.float32) / np.float32(255))
        levels[-1].flags.writeable = False
        level = _halve(level)
    return tuple(levels)


def _halve(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the mean of each 2 x 2 pixels."""
    # Integers, because a sum of floats depends on its order, which differs between machines.
    height, width = pixels.shape[0] // 2 * 2, pixels.shape[1] // 2 * 2
    wide = pixels[:height, :width].astype(np.uint16)
    total = wide[::2, ::2] + wide[1::2, ::2] + wide[::2, 1::2] + wide[1::2, 1::2]
    return ((total + 2) // 4).astype(np.uint8)


def _resample(pixels: Floats, corner: tuple[float, float], sides: tuple[float, float], size: int) -> Floats:
    """Return a part of an array (h, w, channels), enlarged by a cubic B-spline.

    Args:
        pixels: The array; its edge values continue outside of it.
        corner: Top and left of the part, in pixels.
        sides: Height and width of the part, in pixels.
        size: Side of the square that is returned.
    """
    for axis in (0, 1):
        positions = corner[axis] + (np.arange(size) + 0.5) / size * sides[axis] - 0.5
        first = np.floor(positions)
        f = (positions - first).astype(np.float32)
        g = 1 - f
        weights = g * g * g / 6, (4 - 6 * f * f + 3 * f * f * f) / 6, (4 - 6 * g * g + 3 * g * g * g) / 6, f * f * f / 6
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        rows = [np.clip(first.astype(np.intp) - 1 + tap, 0, pixels.shape[axis] - 1) for tap in range(4)]
        if axis == 0:  # columns outside of the part need not be enlarged
            low, high = max(int(corner[1]) - 3, 0), int(corner[1] + sides[1]) + 4
            pixels, corner = pixels[:, low:high], (corner[0], corner[1] - low)
        taps = [pixels.take(row, axis) * weight.reshape(shape) for row, weight in zip(rows, weights, strict=True)]
        pixels = taps[0] + taps[1] + taps[2] + taps[3]
    return pixels


# ------------------------------------------------------------------------------------------------- computed


def _build_noise(random: RandomNumbers, rows: int, columns: int) -> Painter:
    """Return the painter of smooth noise, (size, size), around 0.5, with bumps in the given rows and columns."""
    bumps = random.draw_grid(rows + 4, columns + 4, 1)
    return lambda size: _resample(bumps, (2.0, 2.0), (float(rows), float(columns)), size)[..., 0]


def _build_fractal(random: RandomNumbers, bumps: int) -> Painter:
    """Return the painter of noise with finer noise on it, (size, size), around 0.5."""
    octaves = [_build_noise(random, bumps * 2**k, bumps * 2**k) for k in range(4)]

    def paint(size: int) -> Floats:
        total = octaves[0](size)
        for k, octave in enumerate(octaves[1:], 1):
            total = total + (octave(size) - 0.5) * 0.5**k
        return total

    return paint


def _build_sweep(random: RandomNumbers) -> Painter:
    """Return the painter of a photographer's paper sweep: one color under directed light."""
    dark, light = random.choose(_TONES)
    across, down = random.draw_direction()
    base, contrast = random.draw_between(0.25, 0.75), random.draw_between(0.2, 0.5)
    grain = _build_noise(random, 3, 3)

    def paint(size: int) -> Floats:
        at = compute_pixel_centers(size) - 0.5
        ramp = at[None, :] * across + at[:, None] * down
        return blend(dark, light, ramp * contrast + base + (grain(size) - 0.5) * 0.25)

    return paint


def _build_clouds(random: RandomNumbers) -> Painter:
    """Return the painter of plaster, felt or clouds."""
    dark, light = random.choose(_TONES)
    noise = _build_fractal(random, random.choose((2, 3, 5, 12)))
    contrast, base = random.draw_between(0.5, 1.3), random.draw_between(0.3, 0.7)
    return lambda size: blend(dark, light, (noise(size) - 0.5) * contrast + base)


def _build_wood(random: RandomNumbers) -> Painter:
    """Return the painter of wooden planks."""
    dark, light = random.choose(_TONES)
    planks = random.choose((3, 4, 5, 6))
    grain, ripple = _build_noise(random, 3, 56), _build_noise(random, 2, 14)
    shades = random.draw_grid(planks)
    is_lying = random.draw_bool(0.5)

    def paint(size: int) -> Floats:
        across = compute_pixel_centers(size) * planks
        plank = np.floor(across)
        edge = np.minimum(across - plank, plank + 1 - across) / np.float32(planks)
        tone = (grain(size) - 0.5) * 0.5 + (ripple(size) - 0.5) * 0.35 + 0.36 + 0.22 * shades[plank.astype(np.intp)]
        pixels = blend(dark, light, tone * (0.45 + 0.55 * smoothstep(0.001, 0.009, edge)))
        return pixels.transpose(1, 0, 2) if is_lying else pixels

    return paint


def _build_bokeh(random: RandomNumbers) -> Painter:
    """Return the painter of lights out of focus in the dark."""
    dark, light = random.choose(_TONES)
    sweep = _build_noise(random, 2, 2)
    lights = [
        (random.draw_unit(), random.draw_unit(), random.draw_between(0.03, 0.11), random.draw_between(0.08, 0.3))
        for _ in range(18)
    ]

    def paint(size: int) -> Floats:
        glow = sweep(size) * 0.45 + 0.02
        for row, column, radius, strength in lights:
            rows, columns = _find_span(row, radius, size), _find_span(column, radius, size)
            y, x = compute_pixel_centers(size)[rows, None] - row, compute_pixel_centers(size)[None, columns] - column
            distance = np.sqrt(x * x + y * y) * (1 / radius)
            glow[rows, columns] += (1 - smoothstep(0.88, 1.0, distance)) * (0.75 + 0.25 * distance) * strength
        return blend(dark, light, glow)

    return paint


def _find_span(middle: float, reach: float, size: int) -> slice:
    """Return the pixels within a distance of a position, along one axis."""
    return slice(max(int((middle - reach) * size) - 1, 0), max(int((middle + reach) * size) + 2, 0))


def _build_paper(random: RandomNumbers) -> Painter:
    """Return the painter of printed paper or cloth with stripes or checks."""
    dark, light = random.choose(_TONES)
    count, contrast = random.choose((7, 11, 16)), random.draw_between(0.08, 0.22)
    is_check = random.draw_bool(0.5)
    base, noise = random.draw_between(0.45, 0.8), _build_fractal(random, 3)

    def paint(size: int) -> Floats:
        at = compute_pixel_centers(size) * count
        wave = np.abs(at - np.floor(at) - 0.5) - 0.25
        width = count / size
        band = smoothstep(-width, width, wave) - 0.5
        pattern = (band[:, None] + band[None, :]) * 0.6 if is_check else np.broadcast_to(band, (size, size))
        return blend(dark, light, pattern * contrast + base + (noise(size) - 0.5) * 0.25)

    return paint
