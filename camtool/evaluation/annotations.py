"""What is known about photos: the object in each, as a mask or as boxes, and where it is in the model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.errors import MetricError
from camtool.geometry.crop_and_resize import Geometry
from camtool.inputs.prepared_inputs import PreparedInput


@dataclass(frozen=True, eq=False)
class InputTruth:
    """The objects in the inputs of the model.

    Attributes:
        masks: ``(N, H, W)``, boolean.
        boxes: For each input ``(B, 4)``: ``x0, y0, x1, y1`` in pixels of the input.
    """

    masks: Tensor
    boxes: list[Tensor]


def place_truth(truth: Sequence[Any], items: Sequence[PreparedInput], *, start: int = 0) -> InputTruth:
    """Return the objects in the inputs, from annotations of the photos.

    Args:
        truth: For each photo a boolean mask ``(H, W)`` of the photo's size, or boxes ``(B, 4)`` in its pixels.
        items: The prepared photos.
        start: The number of the first photo, for messages.

    Raises:
        MetricError: An annotation is none of these, or nothing of an object is in the model's input.
    """
    masks, boxes = [], []
    for index, (given, item) in enumerate(zip(truth, items, strict=True), start):
        mask, own = _place_one(np.asarray(given), item, index)
        if not mask.any():
            raise MetricError(
                f"truth[{index}] is outside of what the model sees of the photo; leave this photo out, or use a "
                "transform that does not crop it away."
            )
        masks.append(mask)
        boxes.append(own)
    return InputTruth(torch.stack(masks), boxes)


def _place_one(given: NDArray[Any], item: PreparedInput, index: int) -> tuple[Tensor, Tensor]:
    geometry, size = item.geometry, (item.tensor.shape[-2], item.tensor.shape[-1])
    if given.dtype == np.bool_ and given.shape == geometry.photo:
        mask = geometry.to_input_mask(torch.from_numpy(given).float(), size) > 0.5
        return mask, _find_box(mask)
    if given.dtype != np.bool_ and given.ndim == 2 and given.shape[1:] == (4,):
        boxes = torch.tensor(
            [_clip(geometry.to_input_box((x0, y0, x1, y1)), geometry) for x0, y0, x1, y1 in given], device="cpu"
        )
        return _fill_boxes(boxes, size), boxes
    raise MetricError(
        f"truth[{index}] must be a boolean mask {geometry.photo} of the photo's size, or boxes (B, 4) of x0, y0, x1, "
        f"y1 in its pixels; got {given.dtype} {given.shape}."
    )


def _clip(box: tuple[float, float, float, float], geometry: Geometry) -> tuple[float, ...]:
    height, width = geometry.size
    return tuple(min(max(edge, 0.0), limit) for edge, limit in zip(box, (width, height, width, height), strict=True))


def _fill_boxes(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the mask ``(H, W)`` of the pixels whose centers are in any of the boxes."""
    y, x = (torch.arange(length, device="cpu") + 0.5 for length in size)
    left, top, right, bottom = boxes.T[..., None, None]
    inside: Tensor = (x >= left) & (x < right) & (y[:, None] >= top) & (y[:, None] < bottom)
    return inside.any(0)


def _find_box(mask: Tensor) -> Tensor:
    """Return the box around a mask, ``(1, 4)``; no box for an empty one."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    if not len(rows):
        return torch.zeros(0, 4, device="cpu")
    return torch.tensor([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], device="cpu").float()
