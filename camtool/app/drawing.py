"""Pictures of a cached explanation, drawn at the size of the screen: no change of them needs a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool import rendering
from camtool.errors import CamtoolError
from camtool.explaining.explanation import Explanation
from camtool.inputs.image_files import fit_size
from camtool.rendering.colormaps import get_default_alpha

Map: TypeAlias = NDArray[np.float32]
Pixels: TypeAlias = NDArray[np.uint8]

# Longest side of a picture on the page, in pixels: what fits a screen. Saved files have the full size.
DISPLAY_SIDE = 900

# Colors of a difference: blue where the second class has more heat, orange where the first has. Both are far apart for
# readers who confuse red and green.
_ENDS = ((38, 122, 255), (255, 122, 20))


@dataclass(frozen=True)
class Look:
    """View, opacity and colors of a map.

    Attributes:
        view: A name in :data:`VIEWS`.
        alpha: Opacity of the colors, 0 to 1; None for the default of the color map.
        colormap: A name in :data:`camtool.rendering.COLORMAPS`.
    """

    view: str = "overlay"
    alpha: float | None = None
    colormap: str = rendering.DEFAULT_COLORMAP

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise CamtoolError(f"view {self.view!r} is unknown; give one of {', '.join(VIEWS)}.")
        if self.colormap not in rendering.COLORMAPS:
            raise CamtoolError(f"color map {self.colormap!r} is unknown; give one of {', '.join(rendering.COLORMAPS)}.")

    @property
    def opacity(self) -> float:
        """The opacity, or the default of the color map."""
        return get_default_alpha(self.colormap) if self.alpha is None else self.alpha


@dataclass(frozen=True, eq=False)
class Screen:
    """An explanation at the size of the screen.

    Attributes:
        photo: ``(h, w, 3)`` uint8.
        heatmap: ``(h, w)`` float32 in [0, 1].
        seen: ``(h, w)`` bool, the part that reached the model.
        box: The box of an explained detection, in these pixels; None for other targets.
        caption: The label and the probability.
    """

    photo: Pixels
    heatmap: Map
    seen: NDArray[np.bool_]
    box: tuple[float, float, float, float] | None
    caption: str

    def draw(self, look: Look) -> Pixels:
        """Draw the picture, ``(h, w, 3)`` uint8."""
        pixels = VIEWS[look.view](self, look)
        return pixels if self.box is None else rendering.draw_boxes(pixels, [self.box], labels=[self.caption])


def make_screen(explanation: Explanation, side: int = DISPLAY_SIDE) -> Screen:
    """Return an explanation reduced to a longest side, ready to be drawn. Smaller ones keep their size.

    Raises:
        CamtoolError: The explanation is not of a photo.
    """
    photo = Image.fromarray(explanation.photo)
    size, scale = fit_size(photo.size, side), min(1.0, side / max(explanation.photo.shape[:2]))
    box = explanation.box and tuple(scale * edge for edge in explanation.box)
    return Screen(
        np.asarray(photo.resize(size, Image.Resampling.LANCZOS)),
        np.clip(np.asarray(Image.fromarray(explanation.heatmap).resize(size, Image.Resampling.BILINEAR)), 0, 1),
        np.asarray(Image.fromarray(explanation.seen).resize(size, Image.Resampling.NEAREST)),
        box or None,
        explanation.label if explanation.probability is None else f"{explanation.label} {explanation.probability:.0%}",
    )


def draw_difference(first: Screen, second: Screen, alpha: float = 0.85) -> Pixels:
    """Draw where one map has more heat than another: orange for the first, blue for the second, over the gray photo.

    Raises:
        CamtoolError: The maps are of images of different sizes.
    """
    if first.heatmap.shape != second.heatmap.shape:
        raise CamtoolError("the two maps are of images of different sizes; explain one image for both.")
    difference = first.heatmap - second.heatmap
    gray = first.photo @ np.array([0.299, 0.587, 0.114], np.float32)
    opacity = (alpha * np.abs(difference))[..., None]
    second_color, first_color = (np.array(color, np.float32) for color in _ENDS)
    colors = np.where(difference[..., None] > 0, first_color, second_color)
    mixed = (1 - opacity) * gray[..., None] + opacity * colors
    return np.asarray(np.rint(mixed), np.uint8)


def list_colors(look: Look, count: int = 16) -> list[tuple[int, int, int]]:
    """Return the colors of a view from the least heat to the most, on gray; none if it has no scale of colors."""
    if look.view not in ("overlay", "heatmap", "masked"):
        return []
    gray = np.full((1, count, 3), 128 if look.view == "overlay" else 255, np.uint8)
    heat = np.linspace(0, 1, count, dtype=np.float32)[None]
    pixels = VIEWS[look.view](Screen(gray, heat, np.ones((1, count), bool), None, ""), look)
    return [(int(red), int(green), int(blue)) for red, green, blue in pixels[0]]


def _draw_overlay(screen: Screen, look: Look) -> Pixels:
    return rendering.blend(screen.photo, screen.heatmap, alpha=look.opacity, colormap=look.colormap, seen=screen.seen)


def _draw_masked(screen: Screen, look: Look) -> Pixels:
    """Draw the photo times the heatmap. The opacity says how dark the rest becomes."""
    kept = 1 - look.opacity * (1 - screen.heatmap)
    return rendering.multiply(screen.photo, kept.astype(np.float32))


# Name of a view → what its colors mean, at the low and at the high end of the heat.
VIEW_MEANINGS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("overlay", "heatmap", "masked"), ("little heat", "most heat")),
    "contours": ("", "a line: around a hottest region"),
    "boxes": ("", "a box: around a hottest region"),
}


# Name → function that draws it.
VIEWS: Mapping[str, Callable[[Screen, Look], Pixels]] = {
    "overlay": _draw_overlay,
    "heatmap": lambda screen, look: rendering.colorize(screen.heatmap, look.colormap),
    "masked": _draw_masked,
    "contours": lambda screen, _: rendering.draw_contours(screen.photo, rendering.find_contours(screen.heatmap)),
    "boxes": lambda screen, _: rendering.draw_boxes(screen.photo, rendering.find_boxes(screen.heatmap)),
}
