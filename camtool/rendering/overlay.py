"""Overlays: a heatmap in color over a photo, or multiplied with it.

Every photo is ``(H, W, 3)`` uint8 RGB, every heatmap ``(H, W)`` float in [0, 1]. ``seen`` is ``(H, W)`` bool: the part
of the photo that reached the model. Functions return new ``(H, W, 3)`` uint8 RGB arrays. They calculate in floats and
round once, so no value wraps around. Nothing is stretched to its own maximum, so two overlays can be compared.

:func:`blend_batch` draws the overlays of a whole batch as one tensor, on the device of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.arguments.checks import check_number
from camtool.errors import OverlayError
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap, compute_opacity, get_default_alpha, get_palette
from camtool.rendering.pixel_checks import (
    Bools,
    Floats,
    Pixels,
    check_heatmap,
    check_layers,
    clip_heatmap,
    is_constant_heat,
)
from camtool.rendering.regions import choose_line_width

# Unseen pixels are mixed with a middle gray: darker or lighter pixels would not show on dark or bright photos. At 0.55
# the photo behind it is just recognizable.
_UNSEEN_GRAYS = np.rint(0.45 * np.arange(256) + 0.55 * 112).astype(np.uint8)

# Gray level, 0 to 255, that a middle gray of the photo gets where the model did not see it.
UNSEEN_GRAY = int(_UNSEEN_GRAYS[128])

# Pixels computed at a time. Their floats fit into the processor's cache, and large photos need little memory.
_PIXELS_AT_A_TIME = 2**16

# Colors of positive and of negative values.
_POSITIVE, _NEGATIVE = (255, 16, 16), (16, 80, 255)

# Gray of the line around the seen part: lighter than any unseen pixel, and quieter than the heat.
_BORDER_GRAY = 184

# Shorter side of a photo in widths of this line.
_BORDERS_PER_SIDE = 180


def colorize(heatmap: NDArray[Any], colormap: Colormap = DEFAULT_COLORMAP) -> Pixels:
    """Return the colors of a heatmap.

    Args:
        heatmap: (H, W) float in [0, 1].
        colormap: Name in :data:`COLORMAPS`, name known to matplotlib, or matplotlib color map.

    Returns:
        (H, W, 3) uint8 RGB: entry ``round(255 * heat)`` of the colormap, at every pixel.

    Raises:
        ColormapError: ``colormap`` is unknown.
        OverlayError: ``heatmap`` is not (H, W) float in [0, 1].
    """
    heat, palette = check_heatmap(heatmap), get_palette(colormap)
    return _draw_in_bands(heat.shape, lambda rows: _look_up_colors(_to_levels(heat[rows]), palette))


def to_pixels(values: NDArray[Any], *, scale: Sequence[float], shift: Sequence[float]) -> Pixels:
    """Return normalized channels as pixels: ``round(255 * (scale * values + shift))``, clipped to 0 to 255.

    Args:
        values: (3, H, W) or, for gray, (1, H, W) float32.
        scale: Factor of each channel.
        shift: Summand of each channel.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    import cv2

    planes = [
        cv2.addWeighted(plane, 255 * factor, plane, 0, 255 * summand, dtype=cv2.CV_8U)
        for plane, factor, summand in zip(values, scale, shift, strict=True)
    ]
    pixels: Pixels = cv2.merge(planes if len(planes) == 3 else planes * 3)
    return pixels


def blend(
    photo: NDArray[Any],
    heatmap: NDArray[Any],
    *,
    alpha: float | None = None,
    colormap: Colormap = DEFAULT_COLORMAP,
    seen: NDArray[Any] | None = None,
    is_part: bool = False,
) -> Pixels:
    """Draw the heatmap in color over the photo: the overlay.

    Each pixel is ``round((1 - a) * photo + a * color)``. With the default color map the opacity is
    ``a = alpha * heat**1.5``: the hottest place is covered most and stands out most. With other color maps the opacity
    is full from a heat of one half on, and from there only the color changes::

        t = min(1, 2 * heat)
        a = alpha * t**2 * (3 - 2 * t)

    Cold parts show the photo, and not the first color of the color map.

    A heatmap that is constant over the seen part adds no color. The unseen part is gray, with little contrast, behind a
    thin light line.

    Args:
        photo: (H, W, 3) uint8 RGB.
        heatmap: (H, W) float in [0, 1], at the photo's size.
        alpha: Opacity of the color at full heat: 0 gives the photo, 1 the color alone. The default is 0.7, or 0.5 with
            another color map than "heat".
        colormap: Name in :data:`COLORMAPS`, name known to matplotlib, or matplotlib color map.
        seen: (H, W) bool, True for pixels that reached the model; None means all.
        is_part: The heatmap is a part of a larger one, of a video or a slide, so it has its color if it is constant.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        ColormapError: ``colormap`` is unknown.
        OverlayError: ``photo``, ``heatmap``, ``alpha`` or ``seen`` is not as described, or the sizes differ.
    """
    photo, heat, seen = check_layers(photo, heatmap, seen)
    palette = get_palette(colormap)
    check_number("alpha", alpha, least=0, most=1, optional=True, error=OverlayError)
    most = get_default_alpha(colormap) if alpha is None else float(alpha)
    if not is_part and is_constant_heat(heat, seen):
        most = 0.0
    unseen = None if seen is None else _UnseenArea(photo, seen)

    def blend_rows(rows: slice) -> Pixels:
        band = clip_heatmap(heat[rows])
        colors = _look_up_colors(_to_levels(band), palette)
        overlay = _mix(photo[rows], colors, most * compute_opacity(band, colormap))
        return overlay if unseen is None else unseen.draw(overlay, rows)

    return _draw_in_bands(heat.shape, blend_rows)


def blend_scale(length: int, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP) -> Pixels:
    """Return the colors of an overlay on gray from no heat to the most, ``(1, length, 3)``, for legends."""
    heat = np.linspace(0, 1, length, dtype=np.float32)[None]
    return blend(np.full((1, length, 3), 128, np.uint8), heat, alpha=alpha, colormap=colormap)


def blend_signs(
    photo: NDArray[Any], values: NDArray[Any], *, alpha: float | None = None, seen: NDArray[Any] | None = None
) -> Pixels:
    """Draw values of both signs over the photo: positive ones red, negative ones blue, and 0 has no color.

    Args:
        photo: (H, W, 3) uint8 RGB.
        values: (H, W) float in [-1, 1], at the photo's size.
        alpha: Opacity of the color at -1 and at 1, from where it falls linearly to 0; by default 0.7.
        seen: (H, W) bool, True for pixels that reached the model; None means all.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        OverlayError: An argument is not as described.
    """
    photo, strength, seen = check_layers(photo, np.abs(values), seen)
    check_number("alpha", alpha, least=0, most=1, optional=True, error=OverlayError)
    most = get_default_alpha(DEFAULT_COLORMAP) if alpha is None else float(alpha)
    unseen = None if seen is None else _UnseenArea(photo, seen)

    def blend_rows(rows: slice) -> Pixels:
        colors = np.where(values[rows, :, None] > 0, _POSITIVE, _NEGATIVE).astype(np.uint8)
        overlay = _mix(photo[rows], colors, most * clip_heatmap(strength[rows]))
        return overlay if unseen is None else unseen.draw(overlay, rows)

    return _draw_in_bands(strength.shape, blend_rows)


def multiply(photo: NDArray[Any], heatmap: NDArray[Any], *, seen: NDArray[Any] | None = None) -> Pixels:
    """Return the product of photo and heatmap, ``round(photo * heat)``.

    This holds for constant heatmaps too: zeros give black, ones give the photo.

    Args:
        photo: (H, W, 3) uint8 RGB.
        heatmap: (H, W) float in [0, 1], at the photo's size.
        seen: (H, W) bool, True for pixels that reached the model; the others become black. None means all.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        OverlayError: ``photo``, ``heatmap`` or ``seen`` is not as described, or the sizes differ.
    """
    photo, heat, seen = check_layers(photo, heatmap, seen)

    def multiply_rows(rows: slice) -> Pixels:
        kept = clip_heatmap(heat[rows]) if seen is None else clip_heatmap(heat[rows]) * seen[rows]
        return np.rint(photo[rows] * kept[..., None]).astype(np.uint8)

    return _draw_in_bands(heat.shape, multiply_rows)


def _draw_in_bands(size: tuple[int, ...], draw: Callable[[slice], Pixels]) -> Pixels:
    """Return pixels of this size (H, W), drawn some rows at a time."""
    height, width = size
    pixels = np.empty((height, width, 3), np.uint8)
    step = max(1, _PIXELS_AT_A_TIME // width)
    for top in range(0, height, step):
        rows = slice(top, min(top + step, height))
        pixels[rows] = draw(rows)
    return pixels


def _to_levels(heat: NDArray[Any]) -> Pixels:
    """Return each heat as an index of a palette, 0 to 255."""
    return np.rint(255 * clip_heatmap(heat)).astype(np.uint8)


def _look_up_colors(levels: Pixels, palette: Pixels) -> Pixels:
    """Return ``palette[levels]``, which OpenCV computes several times faster."""
    import cv2

    return np.asarray(cv2.applyColorMap(levels, palette[:, None]), np.uint8)


def _mix(photo: Pixels, colors: Pixels, opacity: Floats) -> Pixels:
    """Return ``round((1 - a) * photo + a * color)``."""
    import cv2

    difference = cv2.subtract(colors, photo, dtype=cv2.CV_32F)
    change = cv2.multiply(difference, cv2.merge([opacity.astype(np.float32, copy=False)] * 3), dst=difference)
    mixed = cv2.add(photo, change, dst=change, dtype=cv2.CV_32F)
    # OpenCV's own conversion rounds halves differently in its vector code.
    return np.asarray(np.rint(mixed), np.uint8)


class _UnseenArea:
    """Part of a photo that did not reach the model: drawn gray, with a light line along the seen part."""

    def __init__(self, photo: Pixels, seen: Bools) -> None:
        self._photo, self._seen = photo, seen
        self._reach = max(1, choose_line_width(photo, _BORDERS_PER_SIDE) // 2)

    def draw(self, overlay: Pixels, rows: slice) -> Pixels:
        """Return some rows of an overlay, with unseen pixels in gray."""
        import cv2

        if self._seen[rows].all():
            return overlay
        seen = np.ascontiguousarray(self._seen[rows], np.uint8)
        return np.asarray(cv2.copyTo(overlay, seen, cv2.merge([self._to_gray(rows)] * 3)), np.uint8)

    def _to_gray(self, rows: slice) -> Pixels:
        """Return some rows in gray, (h, W), as if all of them were unseen, with the line."""
        import cv2

        luminance = cv2.cvtColor(np.ascontiguousarray(self._photo[rows]), cv2.COLOR_RGB2GRAY)
        gray = np.asarray(cv2.LUT(luminance, _UNSEEN_GRAYS), np.uint8)
        gray[self._find_border(rows)] = _BORDER_GRAY
        return gray

    def _find_border(self, rows: slice) -> Bools:
        """Return the pixels of the line: all within reach of the seen part."""
        import cv2

        first = max(0, rows.start - self._reach)
        around = np.ascontiguousarray(self._seen[first : rows.stop + self._reach], np.uint8)
        side = 1 + 2 * self._reach
        near = cv2.dilate(around, np.ones((side, side), np.uint8)) > 0
        return near[rows.start - first :][: rows.stop - rows.start]


def blend_batch(
    photos: Tensor, heatmaps: Tensor, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
) -> Tensor:
    """Draw heatmaps in color over photos, with the formula of :func:`camtool.rendering.blend`.

    Args:
        photos: ``(N, 3, H, W)`` uint8, or floating from 0 to 255.
        heatmaps: ``(N, H, W)`` floating, in [0, 1].
        alpha: Opacity of the color at full heat; by default as in :func:`camtool.rendering.blend`.
        colormap: Name in :data:`COLORMAPS`, name known to matplotlib, or matplotlib color map.

    Returns:
        ``(N, 3, H, W)`` uint8, on the same device. Nothing is copied to the host meanwhile.

    Raises:
        ColormapError: ``colormap`` is unknown.
        OverlayError: The shapes or ``alpha`` are not as described.
    """
    if photos.ndim != 4 or photos.shape[1] != 3 or (len(photos), *photos.shape[2:]) != heatmaps.shape:
        raise OverlayError(
            "photos must be (N, 3, H, W) and heatmaps (N, H, W) of the same size, got "
            f"{tuple(photos.shape)} and {tuple(heatmaps.shape)}."
        )
    check_number("alpha", alpha, least=0, most=1, optional=True, error=OverlayError)
    most = get_default_alpha(colormap) if alpha is None else float(alpha)
    heat = heatmaps.to(photos.device).float().nan_to_num().clamp(0, 1)
    palette = torch.from_numpy(get_palette(colormap).copy()).to(heat.device, torch.float32, non_blocking=True)
    colors = palette[(255 * heat).round().long()].movedim(-1, 1)
    opacity = (most * compute_opacity(heat, colormap))[:, None]
    return ((1 - opacity) * photos.float() + opacity * colors).round().to(torch.uint8)
