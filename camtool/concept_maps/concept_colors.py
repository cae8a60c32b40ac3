"""Colors of concepts in figures: of the first ones a list, of others hues far from all earlier ones."""

from __future__ import annotations

from colorsys import hsv_to_rgb

from camtool.rendering.pixel_checks import Color

# Colors of the first concepts. Color-blind readers can distinguish at least the first five.
_COLORS: tuple[Color, ...] = (
    *((230, 85, 13), (49, 130, 220), (245, 205, 30), (20, 160, 110), (205, 90, 175)),
    *((120, 80, 200), (110, 200, 235), (150, 95, 40), (165, 205, 60), (215, 30, 75)),
)

# Steps of the golden ratio around the circle of hues: each new hue is far from all earlier ones.
_HUE_STEP = 0.618034
_SATURATION, _VALUE = 0.7, 0.85


def get_color(concept: int) -> Color:
    """Return the color of a concept; beyond the listed colors, one of evenly spread hues."""
    if concept < len(_COLORS):
        return _COLORS[concept]
    red, green, blue = hsv_to_rgb(concept * _HUE_STEP % 1, _SATURATION, _VALUE)
    return round(255 * red), round(255 * green), round(255 * blue)
