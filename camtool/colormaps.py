"""Color maps: from a heat in [0, 1] to a color."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.errors import ColormapError, near

__all__ = ["COLORMAPS", "Colormap", "palette"]

Pixels = NDArray[np.uint8]
Colormap: TypeAlias = str | Callable[[Any], Any]
"""A name, or a color map of matplotlib: an object that maps floats in [0, 1] to RGBA in [0, 1]."""

# OpenCV's maps that run in a circle (hsv, twilight) or backwards (rainbow) are left out: they do not tell much heat
# from little.
_OPENCV = (
    *("turbo", "viridis", "inferno", "magma", "plasma", "cividis", "jet", "hot", "bone", "parula", "deepgreen"),
    *("ocean", "pink", "cool"),
)

COLORMAPS: tuple[str, ...] = (*_OPENCV, "gray")
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


def _named(name: str) -> Pixels:
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
