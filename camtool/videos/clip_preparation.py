"""Windows of frames as the input of a model that takes clips, and its map back on each frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from camtool.errors import ImageError
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import build_interpolation_matrix
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import unwrap_image
from camtool.inputs.accepted_inputs import choose_example_shape, list_channels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.geometry.transform_output import Transform
    from camtool.videos.reading import Pixels


def choose_window(model: nn.Module, window: int | None) -> int | None:
    """Return the number of frames that a model takes at once; ``None`` for a model that takes images.

    Args:
        model: The module.
        window: What the user asked for.
    """
    if window is not None:
        return window
    is_for_clips = bool(list_channels(model, 3)) and not list_channels(model, 2)
    return choose_example_shape(model, 32, 32)[1] if is_for_clips else None


def prepare_clip(transform: Transform | None, frames: Sequence[Pixels]) -> Tensor:
    """Return frames ``(H, W, 3)`` as a clip ``(C, T, h, w)``.

    Args:
        transform: The preparation of one frame, from a PIL image to ``(C, h, w)``, or torchvision's of a whole clip.
        frames: The frames.

    Raises:
        ImageError: There is no transform, or it returned something else.
    """
    if transform is None:
        raise ImageError(
            "transform: the model takes clips, and how their frames are prepared is unknown; give a function from a "
            "frame, a PIL image, to a tensor (C, h, w), as in training."
        )
    if _is_clip_preset(transform):
        stacked: Any = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
        clip: Tensor = transform(stacked)
        return clip
    prepared = [_check_frame(unwrap_image(transform(Image.fromarray(frame)))) for frame in frames]
    return torch.stack(prepared, dim=1)


def _check_frame(output: object) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim != 3 or not output.is_floating_point():
        came = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ImageError(f"transform returned {came} for a frame; it must return a floating tensor (C, h, w).")
    return output


def read_clip_geometry(transform: Transform, frame: Pixels) -> Geometry:
    """Return the crop and resize of each frame.

    Raises:
        GeometryError: The transform is more than that.
    """
    height, width = frame.shape[:2]
    if _is_clip_preset(transform):
        preset: Any = transform
        return Geometry.whole(height, width).resize(preset.resize_size).center_crop(preset.crop_size)
    return read_geometry(transform, (height, width))


def _is_clip_preset(transform: object) -> bool:
    """Return True for the preparation that torchvision publishes with its video models."""
    kind = type(transform)
    return kind.__name__ == "VideoClassification" and kind.__module__.startswith("torchvision.")


def split_clip_map(
    raw: NDArray[np.float32], centers: CellCenters | None, size: tuple[int, int, int]
) -> tuple[list[NDArray[np.float32]], CellCenters | None]:
    """Return the map of each frame, ``(h, w)``, linear in time, and the centers of its cells.

    Args:
        raw: ``(t, h, w)``, the map of a clip.
        centers: Where its cells lie in the clip.
        size: Size of the clip ``(T, H, W)``.
    """
    in_time = None if centers is None else centers.axes[0]
    weights = build_interpolation_matrix(len(raw), 0.0, float(size[0]), size[0], in_time, size[0]).numpy()
    frames = np.tensordot(weights, raw, axes=(1, 0)).astype(np.float32)
    return list(frames), None if centers is None else CellCenters(centers.size[1:], centers.axes[1:])
