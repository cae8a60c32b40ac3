"""Color maps: from a heat in [0, 1] to a color, and to how much of a photo this color covers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.errors import ColormapError, near

__all__ = ["COLORMAPS", "Colormap", "default_alpha", "palette", "rise"]

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Colormap: TypeAlias = str | Callable[[Any], Any]
"""A name, or a color map of matplotlib: an object that maps floats in [0, 1] to RGBA in [0, 1]."""

# OpenCV's maps that run in a circle (hsv, twilight) or backwards (rainbow) are left out: they do not tell much heat
# from little.
_OPENCV = (
    *("turbo", "viridis", "inferno", "magma", "plasma", "cividis", "jet", "hot", "bone", "parula", "deepgreen"),
    *("ocean", "pink", "cool"),
)

# Heat → color. The order of hues is that of turbo and jet, so it can be read without a legend. Unlike these it is about
# equally light from green to red, and it ends in the most vivid color: turbo ends in a dark red, which looks cooler
# than the yellow around it on dark and blue photos.
_HEAT = (
    (0.00, (48, 58, 180)),
    (0.14, (40, 105, 235)),
    (0.27, (0, 155, 215)),
    (0.39, (20, 175, 115)),
    (0.51, (130, 180, 30)),
    (0.64, (225, 165, 0)),
    (0.79, (250, 100, 0)),
    (1.00, (255, 16, 16)),
)
_HEAT_ALPHA, _ALPHA = 0.7, 0.5
_FULL_HEAT = 0.5  # from this heat on, the other color maps are as opaque as alpha says

COLORMAPS: tuple[str, ...] = ("heat", *_OPENCV, "gray")
"""The names that are always known. With matplotlib installed, its names are known too."""


def palette(colormap: Colormap) -> Pixels:
    """Return the 256 colors of a color map, (256, 3) uint8 RGB.

    Args:
        colormap: A name in ``COLORMAPS``; a name that matplotlib knows, if it is installed; or a color map of
            matplotlib.

    Raises:
        ColormapError: ``colormap`` is none of these.
    """
    if isinstance(colormap, str):
        return _named(colormap)
    if not callable(colormap) or isinstance(colormap, type):
        raise _not_a_colormap(colormap)
    return _sampled(colormap)


def default_alpha(colormap: Colormap) -> float:
    """Return how opaque a color map is at full heat where nothing else is asked for."""
    return _HEAT_ALPHA if colormap == "heat" else _ALPHA


def rise(heat: Floats, colormap: Colormap) -> Floats:
    """Return the part of alpha that each heat gets, from 0 at heat 0 to 1 at heat 1.

    With "heat" it rises up to the peak, so that more heat always covers more: together with the colors this makes the
    hottest place the most striking one on nearly all photos. With the others it is a smooth step that is done at a heat
    of one half, so that from there on the tint depends on the color alone.
    """
    if colormap == "heat":
        return heat * np.sqrt(heat)
    t: Floats = np.minimum(1, heat / _FULL_HEAT)
    return t * t * (3 - 2 * t)


def _named(name: str) -> Pixels:
    if name == "heat":
        places, colors = zip(*_HEAT, strict=True)
        heats = np.linspace(0, 1, 256)
        channels = [np.interp(heats, places, channel) for channel in np.transpose(colors)]
        return np.asarray(np.rint(np.stack(channels, axis=1)), np.uint8)
    if name == "gray":
        return np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    if name in _OPENCV:
        return _of_opencv(name)
    registry = _of_matplotlib()
    if name in registry:
        return _sampled(registry[name])
    hint = near(name, [*COLORMAPS, *(known for known in registry if known not in COLORMAPS)])
    more = "a color map of matplotlib, or a name that it knows"
    raise ColormapError(f"colormap {name!r} is unknown.{hint} Choose one of: {', '.join(COLORMAPS)}; or {more}.")


def _of_opencv(name: str) -> Pixels:
    import cv2  # only the first call that needs it loads it

    steps = np.arange(256, dtype=np.uint8)[:, None]
    bgr = cv2.applyColorMap(steps, getattr(cv2, f"COLORMAP_{name.upper()}"))
    return np.asarray(bgr[:, 0, ::-1], dtype=np.uint8)


def _of_matplotlib() -> Any:
    """Return matplotlib's color maps by name; none if it is not installed."""
    try:
        from matplotlib import colormaps
    except ImportError:
        return {}
    return colormaps


def _sampled(colormap: Callable[[Any], Any]) -> Pixels:
    try:
        colors = np.asarray(colormap(np.linspace(0, 1, 256)), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _not_a_colormap(colormap) from error
    if colors.shape not in ((256, 3), (256, 4)) or not (colors.min() >= 0 and colors.max() <= 1):
        raise _not_a_colormap(colormap)
    return np.rint(255 * colors[:, :3]).astype(np.uint8)


def _not_a_colormap(came: object) -> ColormapError:
    return ColormapError(f"colormap must be one of {', '.join(COLORMAPS)}, or a color map of matplotlib; got {came!r}.")
