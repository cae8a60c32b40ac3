"""Display: prepared tensors as pixels for the user."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.transform_output import find_statistics
from camtool.inputs.data_kinds import DataKind
from camtool.inputs.input_warnings import ValueRange, is_byte_range, is_unit_range
from camtool.models import Transform
from camtool.rendering import overlay
from camtool.rendering.views import Clip, Photo, Signal, View, Volume

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_image_array(tensor: Tensor) -> NDArray[Any]:
    """Return an image in a tensor, ``(H, W)`` or ``(C, H, W)``, as an array with its channels last."""
    array: NDArray[Any] = (tensor.movedim(0, -1) if tensor.ndim == 3 else tensor).detach().cpu().numpy()
    return array


def build_view(tensor: Tensor, value_range: ValueRange, kind: DataKind, transform: Transform | None) -> View:
    """Return the view of a prepared tensor ``(C, *size)``, with the range of its values, for the user."""
    # A copy, as the pixels are computed when somebody looks, and the user may have written to the tensor by then. Numpy
    # makes it, as torch would use all cores, which an engine needs.
    values: NDArray[np.float32] = tensor.detach().float().cpu().numpy().copy()
    if kind == "signal":
        return Signal(values)
    if kind == "image":
        return Photo(partial(_to_pixels, values, value_range, transform), Geometry.whole(*values.shape[1:]))
    # Depth or time is folded into the height, so that one scale holds for all slices or frames.
    flat = _to_pixels(values.reshape(len(values), -1, values.shape[-1]), value_range, transform)
    return (Clip if kind == "clip" else Volume)(flat.reshape(*values.shape[1:], 3))


def find_black_and_white(tensor: Tensor, transform: Transform | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the values ``(C,)`` of black and of white in a model's input ``(C, h, w)``; ``None`` if unknown."""
    mean, std = find_statistics(transform) or ((), ())
    if len(mean) != len(tensor):
        return None, None
    shift, scale = tensor.new_tensor(mean), tensor.new_tensor(std)
    return -shift / scale, (1 - shift) / scale


def _to_pixels(values: NDArray[np.float32], value_range: ValueRange, transform: Transform | None) -> NDArray[np.uint8]:
    """Return planes ``(C, h, w)`` as pixels ``(h, w, 3)``: the mean of the planes, unless they are gray or RGB."""
    mean, std = _choose_scale(value_range, transform)
    if len(values) in (1, 3):
        return overlay.to_pixels(values, scale=std, shift=mean)
    planes = [plane * s + m for plane, m, s in zip(values, mean, std, strict=True)]
    return overlay.to_pixels(np.mean(planes, axis=0, keepdims=True), scale=[1.0], shift=[0.0])


def _choose_scale(value_range: ValueRange, transform: Transform | None) -> tuple[Sequence[float], Sequence[float]]:
    """Return the shifts and the scales that bring planes ``(C, h, w)`` to [0, 1].

    An image's own values, in [0, 1] or from 0 to 255, are only divided. Others are denormalized if the transform's
    statistics are known, and stretched from the lowest to the highest value if not.
    """
    channels, lowest, highest = value_range.channels, value_range.lowest, value_range.highest
    if channels in (1, 3) and is_unit_range(lowest, highest):
        return [0.0] * channels, [1.0] * channels
    if channels in (1, 3) and is_byte_range(lowest, highest):
        return [0.0] * channels, [1 / 255] * channels
    mean, std = find_statistics(transform) or ((), ())
    if len(mean) == channels:
        return mean, std
    has_range = np.isfinite(highest - lowest) and highest > lowest
    shift, scale = (-lowest / (highest - lowest), 1 / (highest - lowest)) if has_range else (0.0, 0.0)
    return [shift] * channels, [scale] * channels
