"""Batches that a survey of a model's layers needs: the first image alone, and variants with a changed corner."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.errors import LayerError
from camtool.structures.nested_tensors import ModelInputs, find_main_tensor, map_batch

__all__ = ["VARIANTS", "find_image_size", "get_image_input", "select_first_image", "vary_corner"]

VARIANTS = 3
"""Number of images that :func:`vary_corner` returns: the first image and two variants of it."""


def get_image_input(inputs: ModelInputs) -> Tensor:
    """Return the batch of images ``(N, C, *size)`` among the inputs of a model.

    Raises:
        LayerError: There is no such tensor.
    """
    images = find_main_tensor(inputs)
    if images is None or images.ndim < 3:
        came = "no tensor" if images is None else f"shape {tuple(images.shape)}"
        raise LayerError(f"inputs must hold a batch of images (N, C, H, W), got {came}; pass a 4-D tensor.")
    return images


def find_image_size(inputs: ModelInputs) -> tuple[int, ...]:
    """Return the size ``(H, W)`` of the images among the inputs of a model."""
    return tuple(get_image_input(inputs).shape[2:])


def select_first_image(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with the first row of each batch only."""
    return map_batch(inputs, lambda tensor: tensor[:1])


def vary_corner(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with three images: the first one and two variants with a changed upper left quadrant.

    In one variant the quadrant is negated and mirrored. In the other a ramp from dark to bright is added.
    """
    images = get_image_input(inputs)

    def vary(tensor: Tensor) -> Tensor:
        several = torch.cat([tensor[:1].detach()] * VARIANTS)
        if tensor is images:
            halves = [slice(max(1, pixels // 2)) for pixels in images.shape[2:]]
            upper_left = (slice(None), slice(None), *halves)
            corner = several[upper_left]
            corner[1].copy_(-corner[0].flip(-1))
            # The ramp exceeds the image's own range, because a ReLU may respond to bright, or to dark, patches only.
            reach = 2 + 2 * float(several[0].abs().amax())
            corner[2].add_(torch.linspace(-reach, reach, corner.shape[-1]).to(corner))
        return several

    return map_batch(inputs, vary)
