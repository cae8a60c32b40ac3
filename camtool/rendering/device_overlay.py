"""Overlays of a whole batch as one tensor, on the device of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.arguments.checks import check_number
from camtool.errors import OverlayError
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap, compute_opacity, get_default_alpha, get_palette


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
