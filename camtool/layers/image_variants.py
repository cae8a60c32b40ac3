"""Batches that a survey of a model's layers needs: the first image alone, and variants with a changed corner."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from camtool.errors import LayerError
from camtool.structures.nested_tensors import ModelInputs, find_main_tensor, map_batch

__all__ = [
    "ALL_VARIANTS",
    "VARIANTS",
    "find_image_size",
    "get_image_input",
    "select_first_image",
    "vary_corner",
    "vary_corner_and_halves",
    "vary_halves",
]

VARIANTS = 3
"""Number of images that :func:`vary_corner` and :func:`vary_halves` return: the first image and two variants of it."""

ALL_VARIANTS = 5
"""Number of images that :func:`vary_corner_and_halves` returns."""


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
    return _repeat_first_image(inputs, _change_corner)


def _change_corner(several: Tensor) -> None:
    halves = [slice(max(1, pixels // 2)) for pixels in several.shape[2:]]
    upper_left = (slice(None), slice(None), *halves)
    corner = several[upper_left]
    corner[1].copy_(-corner[0].flip(-1))
    # The ramp exceeds the image's own range, because a ReLU may respond to bright, or to dark, patches only.
    reach = 2 + 2 * float(several[0].abs().amax())
    corner[2].add_(torch.linspace(-reach, reach, corner.shape[-1]).to(corner))


def vary_halves(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with three images: the first one, one with another upper half, one with another left half."""
    return _repeat_first_image(inputs, _change_halves)


def vary_corner_and_halves(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with the images of :func:`vary_corner`, then the last two of :func:`vary_halves`."""

    def vary(several: Tensor) -> None:
        _change_corner(several)
        _change_halves(several[VARIANTS - 1 :])

    return _repeat_first_image(inputs, vary, ALL_VARIANTS)


def _change_halves(several: Tensor) -> None:
    upper, left = several[1][..., : several.shape[-2] // 2, :], several[2][..., : several.shape[-1] // 2]
    # Noise changes all patches alike. To negate them would change none of a gray area.
    noise = torch.rand(several.shape[1:], generator=torch.Generator().manual_seed(0)) * 2 - 1
    noise *= float(several[0].abs().amax()) or 1
    upper.add_(noise[..., : several.shape[-2] // 2, :].to(upper))
    left.add_(noise[..., : several.shape[-1] // 2].to(left))


def _repeat_first_image(inputs: ModelInputs, vary: Callable[[Tensor], None], count: int = VARIANTS) -> ModelInputs:
    """Return the inputs with copies of the first image, of which ``vary`` changes the last ones in place."""
    images = get_image_input(inputs)

    def repeat(tensor: Tensor) -> Tensor:
        several = torch.cat([tensor[:1].detach()] * count)
        if tensor is images:
            vary(several)
        return several

    return map_batch(inputs, repeat)
