"""Colors of concepts: that of each concept, and the photo in the colors of its strongest ones."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hsv_to_rgb

import numpy as np
from numpy.typing import NDArray

from camtool.rendering.pixel_checks import Color, Pixels

# Colors of the first concepts. Color-blind readers can distinguish at least the first five.
_COLORS: tuple[Color, ...] = (
    *((230, 85, 13), (49, 130, 220), (245, 205, 30), (20, 160, 110), (205, 90, 175)),
    *((120, 80, 200), (110, 200, 235), (150, 95, 40), (165, 205, 60), (215, 30, 75)),
)

# Steps of the golden ratio around the circle of hues: each new hue is far from all earlier ones.
_HUE_STEP = 0.618034
_SATURATION, _VALUE = 0.7, 0.85

# From this strength on, a concept's color has full opacity, as in overlays.
_FULL_OPACITY_STRENGTH = 0.5

# Power of the strengths in the mix of colors. With 8, colors mix only where two concepts are almost equally strong.
_SHARPNESS = 8


def get_color(concept: int) -> Color:
    """Return the color of a concept; beyond the listed colors, one of evenly spread hues."""
    if concept < len(_COLORS):
        return _COLORS[concept]
    red, green, blue = hsv_to_rgb(concept * _HUE_STEP % 1, _SATURATION, _VALUE)
    return round(255 * red), round(255 * green), round(255 * blue)


def tint_photo(photo: Pixels, strengths: NDArray[np.float32], colors: Sequence[Color], alpha: float) -> Pixels:
    """Return the photo with each pixel in the color of its strongest concept.

    Where two concepts are almost equally strong, their colors mix, so that the border is smooth. The opacity rises with
    the strength as in :func:`camtool.rendering.blend`.

    Args:
        photo: ``(H, W, 3)`` uint8.
        strengths: ``(n, H, W)`` in [0, 1], one map for each concept.
        colors: ``n`` colors.
        alpha: Opacity of the color of a strong concept, 0 to 1.
    """
    strongest = strengths.max(0)
    weights = (strengths / np.where(strongest > 0, strongest, 1)) ** _SHARPNESS
    color = np.tensordot(weights / weights.sum(0).clip(1), np.asarray(colors, np.float32), axes=(0, 0))
    t = np.minimum(1, strongest / _FULL_OPACITY_STRENGTH)
    opacity = (alpha * t * t * (3 - 2 * t))[..., None]
    tinted: Pixels = np.rint((1 - opacity) * photo + opacity * color).astype(np.uint8)
    return tinted
