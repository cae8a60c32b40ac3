"""The ten shapes, as signed distances.

A shape is a function ``(x, y) -> distance``: negative inside, positive outside, in units in which the shape fills a
circle of radius 1 around the origin; y points down. Distances make edges smooth at any size, and give bevels and soft
shadows for nothing. Only additions, products, quotients and square roots are used: IEEE 754 fixes them to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from camtool.demo.dice import Floats

__all__ = ["LABELS", "SHAPES", "Shape", "capsule", "disc"]

Shape: TypeAlias = Callable[[Floats, Floats], Floats]
Corner: TypeAlias = tuple[float, float]


def disc(x: Floats, y: Floats, radius: float = 1.0) -> Floats:
    """Distance to a disc around the origin."""
    distance: Floats = np.sqrt(x * x + y * y) - radius
    return distance


def capsule(x: Floats, y: Floats, start: Corner, end: Corner, radius: float) -> Floats:
    """Distance to a thick line with round ends."""
    distance: Floats = np.sqrt(_to_line(x, y, start, end)) - radius
    return distance


def _to_line(x: Floats, y: Floats, start: Corner, end: Corner) -> Floats:
    """Squared distance to the line from ``start`` to ``end``."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    x, y = x - start[0], y - start[1]
    t = (x * along_x + y * along_y) * (1 / (along_x * along_x + along_y * along_y))
    t = np.minimum(np.maximum(t, 0), 1)
    x, y = x - along_x * t, y - along_y * t
    return x * x + y * y


def _polygon(corners: Sequence[Corner], rounding: float) -> Shape:
    """A polygon grown by ``rounding``, which rounds its outer corners by as much."""
    edges = list(zip(corners, [*corners[1:], corners[0]], strict=True))

    def distance(x: Floats, y: Floats) -> Floats:
        nearest = _to_line(x, y, *edges[0])
        inside = np.zeros(np.broadcast(x, y).shape, bool)
        for start, end in edges:
            nearest = np.minimum(nearest, _to_line(x, y, start, end))
            if start[1] != end[1]:
                slope = (end[0] - start[0]) / (end[1] - start[1])
                inside ^= ((y < start[1]) != (y < end[1])) & (x < (y - start[1]) * slope + start[0])
        nearest = np.sqrt(nearest)
        grown: Floats = np.where(inside, -nearest, nearest) - np.float32(rounding)
        return grown

    return distance


def _around(count: int, radii: Sequence[float]) -> list[Corner]:
    """Corners at equal angles around the origin, the first on top, at these radii in turn."""
    angles = [2 * math.pi * i / count for i in range(count)]
    return [
        (round(math.sin(angle) * radii[i % len(radii)], 6), round(-math.cos(angle) * radii[i % len(radii)], 6))
        for i, angle in enumerate(angles)
    ]


def _drop(x: Floats, y: Floats) -> Floats:
    """A disc and the two lines from a tip above that touch it."""
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
    distance: Floats = np.where(round_part, disc(x, up, radius), flat) - np.float32(0.12)
    return distance


def _fish(x: Floats, y: Floats) -> Floats:
    """Where two discs overlap, and a tail."""
    radius, apart, middle = 0.8, 0.33, -0.22
    y = np.abs(y)
    body = disc(x - middle, y + apart, radius)
    distance: Floats = np.minimum(body, _TAIL(x, y)) - np.float32(0.04)
    return distance


def _flower(x: Floats, y: Floats) -> Floats:
    petals = [disc(x - px, y - py, 0.37) for px, py in _around(5, [0.62])]
    distance = disc(x, y, 0.42)
    for petal in petals:
        distance = np.minimum(distance, petal)
    return distance


def _heart(x: Floats, y: Floats) -> Floats:
    """Inigo Quilez' exact distance to a heart of height 1, scaled and turned upright."""
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
_TAIL = _polygon([(0.02, 0.0), (0.82, -0.48), (0.75, 0.0), (0.82, 0.48)], 0.0)
_SQUARE = [(-0.66, -0.66), (0.66, -0.66), (0.66, 0.66), (-0.66, 0.66)]

SHAPES: dict[str, Shape] = {
    "arrow": _polygon(_ARROW, 0.08),
    "cross": _polygon(_CROSS, 0.08),
    "drop": _drop,
    "fish": _fish,
    "flower": _flower,
    "heart": _heart,
    "lightning": _polygon(_LIGHTNING, 0.07),
    "square": _polygon(_SQUARE, 0.08),
    "star": _polygon(_around(10, [0.93, 0.43]), 0.07),
    "triangle": _polygon(_around(3, [0.82]), 0.17),
}
"""Name → shape; the order is that of the classes."""

LABELS: tuple[str, ...] = tuple(SHAPES)
"""The names of the classes, by index."""
