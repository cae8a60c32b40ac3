"""The ten shapes, as signed distance functions.

A shape is a function ``(x, y) -> distance``: negative inside, positive outside. It fills a circle of radius 1 around
the origin; y points down. Distances give smooth edges at any size, bevels and soft shadows. Only additions, products,
quotients and square roots are used, because IEEE 754 defines their results to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from camtool.demo.random_numbers import Floats

Shape: TypeAlias = Callable[[Floats, Floats], Floats]
Corner: TypeAlias = tuple[float, float]


def compute_disc_distance(x: Floats, y: Floats, radius: float = 1.0) -> Floats:
    """Return the distance to a disc around the origin."""
    return np.sqrt(x * x + y * y) - radius


def compute_capsule_distance(x: Floats, y: Floats, start: Corner, end: Corner, radius: float) -> Floats:
    """Return the distance to a thick line with round ends."""
    return np.sqrt(_compute_squared_line_distance(x, y, start, end)) - radius


def _compute_squared_line_distance(x: Floats, y: Floats, start: Corner, end: Corner) -> Floats:
    """Return the squared distance to the line from ``start`` to ``end``."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    x, y = x - start[0], y - start[1]
    t = (x * along_x + y * along_y) * (1 / (along_x * along_x + along_y * along_y))
    t = np.minimum(np.maximum(t, 0), 1)
    x, y = x - along_x * t, y - along_y * t
    return x * x + y * y


def _build_polygon(corners: Sequence[Corner], rounding: float) -> Shape:
    """Return a polygon that is enlarged by ``rounding``, which rounds its outer corners."""
    edges = list(zip(corners, [*corners[1:], corners[0]], strict=True))

    def distance(x: Floats, y: Floats) -> Floats:
        nearest = _compute_squared_line_distance(x, y, *edges[0])
        inside = np.zeros(np.broadcast(x, y).shape, bool)
        for start, end in edges:
            nearest = np.minimum(nearest, _compute_squared_line_distance(x, y, start, end))
            if start[1] != end[1]:
                slope = (end[0] - start[0]) / (end[1] - start[1])
                inside ^= ((y < start[1]) != (y < end[1])) & (x < (y - start[1]) * slope + start[0])
        nearest = np.sqrt(nearest)
        grown: Floats = np.where(inside, -nearest, nearest) - np.float32(rounding)
        return grown

    return distance


def _place_around(count: int, radii: Sequence[float]) -> list[Corner]:
    """Return corners at equal angles around the origin, the first on top, at the given radii in turn."""
    angles = [2 * math.pi * i / count for i in range(count)]
    return [
        (round(math.sin(angle) * radii[i % len(radii)], 6), round(-math.cos(angle) * radii[i % len(radii)], 6))
        for i, angle in enumerate(angles)
    ]


def _compute_drop(x: Floats, y: Floats) -> Floats:
    """Return the distance to a disc with two tangents from a tip above it."""
    radius, tip, middle = 0.62, -0.84, 0.24
    sine = radius / (middle - tip)
    cosine = math.sqrt(1 - sine * sine)
    x = np.abs(x)
    up = middle - y
    side = x * cosine + up * sine - radius
    from_tip = y - tip
    beyond_the_tip = x * sine + from_tip * cosine < 0
    round_part = x * sine > up * cosine
    apex = np.sqrt(x * x + from_tip * from_tip)
    flat = np.where(beyond_the_tip, apex, side)
    distance: Floats = np.where(round_part, compute_disc_distance(x, up, radius), flat) - np.float32(0.12)
    return distance


def _compute_fish(x: Floats, y: Floats) -> Floats:
    """Return the distance to the overlap of two discs, with a tail."""
    radius, apart, middle = 0.8, 0.33, -0.22
    y = np.abs(y)
    body = compute_disc_distance(x - middle, y + apart, radius)
    distance: Floats = np.minimum(body, _TAIL(x, y)) - np.float32(0.04)
    return distance


def _compute_flower(x: Floats, y: Floats) -> Floats:
    """Return the distance to a disc with five petals."""
    petals = [compute_disc_distance(x - px, y - py, 0.37) for px, py in _place_around(5, [0.62])]
    distance = compute_disc_distance(x, y, 0.42)
    for petal in petals:
        distance = np.minimum(distance, petal)
    return distance


def _compute_heart(x: Floats, y: Floats) -> Floats:
    """Return the distance to a heart: Inigo Quilez' exact formula, scaled and turned upright."""
    scale = 1.42
    x, y = np.abs(x) / np.float32(scale), 0.55 - y / np.float32(scale)
    lobe = np.sqrt((x - 0.25) * (x - 0.25) + (y - 0.75) * (y - 0.75)) - np.float32(math.sqrt(2) / 4)
    half = np.maximum(x + y, 0) * 0.5
    nearest = np.minimum(x * x + (y - 1) * (y - 1), (x - half) * (x - half) + (y - half) * (y - half))
    wedge = np.sqrt(nearest)
    wedge = np.where(x > y, wedge, -wedge)
    distance: Floats = np.where(x + y > 1, lobe, wedge) * scale - np.float32(0.04)
    return distance


_ARROW = [(0.0, -0.92), (0.72, -0.12), (0.27, -0.12), (0.27, 0.85), (-0.27, 0.85), (-0.27, -0.12), (-0.72, -0.12)]
_CROSS = [
    (-0.27, -0.88), (0.27, -0.88), (0.27, -0.27), (0.88, -0.27), (0.88, 0.27), (0.27, 0.27),
    (0.27, 0.88), (-0.27, 0.88), (-0.27, 0.27), (-0.88, 0.27), (-0.88, -0.27), (-0.27, -0.27),
]  # fmt: skip
_LIGHTNING = [(0.42, -0.86), (-0.2, -0.86), (-0.6, 0.2), (-0.08, 0.2), (-0.3, 0.9), (0.62, -0.24), (0.12, -0.24)]
_TAIL = _build_polygon([(0.02, 0.0), (0.82, -0.48), (0.75, 0.0), (0.82, 0.48)], 0.0)
_SQUARE = [(-0.66, -0.66), (0.66, -0.66), (0.66, 0.66), (-0.66, 0.66)]

# Name → shape, in the order of the classes.
SHAPES: dict[str, Shape] = {
    "arrow": _build_polygon(_ARROW, 0.08),
    "cross": _build_polygon(_CROSS, 0.08),
    "drop": _compute_drop,
    "fish": _compute_fish,
    "flower": _compute_flower,
    "heart": _compute_heart,
    "lightning": _build_polygon(_LIGHTNING, 0.07),
    "square": _build_polygon(_SQUARE, 0.08),
    "star": _build_polygon(_place_around(10, [0.93, 0.43]), 0.07),
    "triangle": _build_polygon(_place_around(3, [0.82]), 0.17),
}

# Names of the classes, by index.
LABELS: tuple[str, ...] = tuple(SHAPES)
