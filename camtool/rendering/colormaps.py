"""Color maps: the color and the opacity of each heat in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from camtool.arguments.libraries import import_optional
from camtool.arguments.message_parts import suggest_names
from camtool.errors import ColormapError, RaiseAs
from camtool.rendering.pixel_checks import Floats, Pixels

# Name, or matplotlib color map: a callable from floats in [0, 1] to RGBA in [0, 1].
Colormap: TypeAlias = str | Callable[[Any], Any]

# OpenCV's cyclic (hsv, twilight) and reversed (rainbow) color maps are left out: they do not order heat.
_OPENCV = (
    *("turbo", "viridis", "inferno", "magma", "plasma", "cividis", "jet", "hot", "bone", "parula", "deepgreen"),
    *("ocean", "pink", "cool"),
)

# Heat → color. The order of hues is that of turbo and jet, so readers know it. Unlike these, the lightness is about
# the same from green to red, and the last color is the most vivid: turbo ends in a dark red, which looks cooler than
# the yellow around it on dark and blue photos.
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

# Opacity at full heat. "heat" can be stronger than the other color maps, as it covers only the hottest places fully.
_HEAT_ALPHA, _ALPHA = 0.7, 0.5

# From this heat on, color maps other than "heat" have full opacity, so that their colors can be compared.
_FULL_OPACITY_HEAT = 0.5

# Names that are always known. If matplotlib is installed, its names are known too.
COLORMAPS: tuple[str, ...] = ("heat", *_OPENCV, "gray")


# Color map of overlays and heatmaps, unless the user chooses another.
DEFAULT_COLORMAP = "heat"


def get_palette(colormap: Colormap) -> Pixels:
    """Return the 256 colors of a color map, (256, 3) uint8 RGB.

    Args:
        colormap: Name in ``COLORMAPS``; name known to matplotlib, if that is installed; or matplotlib color map.

    Raises:
        ColormapError: ``colormap`` is none of these.
    """
    if isinstance(colormap, str):
        return _find_palette(colormap)
    if not callable(colormap) or isinstance(colormap, type):
        raise _build_type_error(colormap)
    return _sample_colormap(colormap)


def get_default_alpha(colormap: Colormap) -> float:
    """Return the default opacity of a color map at full heat."""
    return _HEAT_ALPHA if colormap == "heat" else _ALPHA


_Heat = TypeVar("_Heat", bound="Floats | Tensor")


def compute_opacity(heat: _Heat, colormap: Colormap) -> _Heat:
    """Return the opacity of each heat, in an array or a tensor, as a part of alpha: from 0 at heat 0 to 1 at heat 1.

    With "heat" it rises up to the peak: more heat always covers more of the photo. With other color maps it is a smooth
    step up to a heat of one half, and from there only the color changes.
    """
    values: Any = heat
    if colormap == "heat":
        # Power 1.5: with the colors above, the hottest place was the most visible one on nearly all photos tried.
        opacity: _Heat = values * values**0.5
        return opacity
    t = (values / _FULL_OPACITY_HEAT).clip(None, 1)
    step: _Heat = t * t * (3 - 2 * t)
    return step


def _find_palette(name: str) -> Pixels:
    if name == "heat":
        positions, colors = zip(*_HEAT, strict=True)
        heats = np.linspace(0, 1, 256)
        channels = [np.interp(heats, positions, channel) for channel in np.transpose(colors)]
        return np.asarray(np.rint(np.stack(channels, axis=1)), np.uint8)
    if name == "gray":
        return np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    if name in _OPENCV:
        return _read_opencv_palette(name)
    need = f"colormap {name!r} is not built in, and matplotlib's are read by it"
    matplotlib: Any = import_optional("matplotlib", need, "matplotlib", ColormapError)
    registry = {} if matplotlib is None else matplotlib.colormaps
    if name in registry:
        return _sample_colormap(registry[name])
    hint = suggest_names(name, [*COLORMAPS, *(other for other in registry if other not in COLORMAPS)])
    more = "a matplotlib color map or its name"
    raise ColormapError(f"colormap {name!r} is unknown.{hint} Choose one of: {', '.join(COLORMAPS)}; or {more}.")


def _read_opencv_palette(name: str) -> Pixels:
    import cv2

    steps = np.arange(256, dtype=np.uint8)[:, None]
    bgr = cv2.applyColorMap(steps, getattr(cv2, f"COLORMAP_{name.upper()}"))
    return np.asarray(bgr[:, 0, ::-1], dtype=np.uint8)


def _sample_colormap(colormap: Callable[[Any], Any]) -> Pixels:
    with RaiseAs(lambda _: _build_type_error(colormap), TypeError, ValueError):
        colors = np.asarray(colormap(np.linspace(0, 1, 256)), dtype=np.float64)
    if colors.shape not in ((256, 3), (256, 4)) or not (colors.min() >= 0 and colors.max() <= 1):
        raise _build_type_error(colormap)
    return np.rint(255 * colors[:, :3]).astype(np.uint8)


def _build_type_error(given: object) -> ColormapError:
    return ColormapError(f"colormap must be one of {', '.join(COLORMAPS)}, or a matplotlib color map; got {given!r}.")
