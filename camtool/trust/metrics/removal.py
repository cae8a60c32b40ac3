"""Ways to remove pixels from an image: blur, the mean color, zero, and inpainting from the pixels around.

None of them is neutral: what a model answers for an image with removed pixels depends on what they were replaced by.
Inpainting leaks least about the shape of what was removed, see arXiv 2202.00449.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, pad

from camtool.arguments.checks import check_choice
from camtool.errors import MetricError

__all__ = ["BASELINES", "REMOVALS", "Fill", "Removal", "blur_images", "impute_linear", "make_baseline", "start_removal"]

Removal: TypeAlias = str | Callable[[Tensor], Tensor]
"""A name of :data:`REMOVALS`, or a function from images ``(N, C, H, W)`` to what replaces their pixels."""

Fill: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""``fill(rows, removed) -> (M, C, H, W)``: the images of these rows ``(M,)`` without the pixels ``(M, H, W)``."""

# The standard deviation of the blur, as a fraction of the shorter side: 10 pixels of 224. With less, e.g. RISE's 5
# pixels cut off after 5, objects can still be recognized.
_BLUR = 10 / 224

# Conjugate gradients stop at this residual, relative to the largest value of the image. The error is larger than the
# residual, by up to the square of the side of the removed region.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-7}

# Steps of conjugate gradients per pixel of the image's longer side: the number of steps grows with the side of the
# removed region. In practice 1 to 3 are enough.
_MOST_STEPS_PER_PIXEL = 20

# Steps between two looks at the residual, each of which makes the program wait for an accelerator.
_STEPS_BETWEEN_LOOKS = 8


def blur_images(images: Tensor) -> Tensor:
    """Return images ``(N, C, H, W)`` under a Gaussian blur of 10 pixels per 224 of the shorter side."""
    sigma = _BLUR * min(images.shape[2:])
    reach = math.ceil(3 * sigma)
    steps = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = torch.exp(-(steps**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).reshape(1, 1, -1, 1)
    planes = images.flatten(0, 1)[:, None]
    planes = conv2d(pad(planes, (0, 0, reach, reach), mode="replicate"), kernel)
    planes = conv2d(pad(planes, (reach, reach, 0, 0), mode="replicate"), kernel.transpose(2, 3))
    return planes.reshape(images.shape)


def _average_color(images: Tensor) -> Tensor:
    return images.mean((2, 3), keepdim=True).expand_as(images)


BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "blur": blur_images,
    "mean": _average_color,
    "zero": torch.zeros_like,
}
"""Name → function from images to what replaces their pixels, whichever of them are removed.

``"blur"`` is the blurred image. ``"mean"`` is the mean color of the image. ``"zero"`` is the zero of the model's input:
the mean color of the training images if the preprocessing subtracts it, else black.
"""

REMOVALS: tuple[str, ...] = (*BASELINES, "inpaint")
"""The names of all ways to remove pixels. ``"inpaint"`` is :func:`impute_linear`."""


def make_baseline(images: Tensor, removal: Removal) -> Tensor:
    """Return what replaces the pixels of images ``(N, C, H, W)``, of the same shape.

    Raises:
        MetricError: The name is unknown, the removal depends on which pixels are removed, or the function's result has
            another shape.
    """
    if not callable(removal):
        check_choice("removal", removal, BASELINES, error=MetricError)
        return BASELINES[removal](images)
    baseline = removal(images)
    if not isinstance(baseline, Tensor) or baseline.shape != images.shape:
        got = tuple(baseline.shape) if isinstance(baseline, Tensor) else type(baseline).__name__
        raise MetricError(f"removal(images) must have the shape of the images, {tuple(images.shape)}; got {got}.")
    return baseline.to(images)


def start_removal(images: Tensor, removal: Removal) -> Fill:
    """Return a function that removes pixels from images ``(N, C, H, W)``.

    Raises:
        MetricError: The name is unknown.
    """
    if removal == "inpaint":
        return lambda rows, removed: impute_linear(images[rows], removed)
    if not callable(removal):
        check_choice("removal", removal, REMOVALS, error=MetricError)
    baseline = make_baseline(images, removal)
    return lambda rows, removed: torch.where(removed[:, None], baseline[rows], images[rows])


def impute_linear(images: Tensor, removed: Tensor) -> Tensor:
    """Replace removed pixels by the weighted mean of their eight neighbors, which may be removed pixels, too.

    Each removed pixel is ``Σ_j w_j x_j / Σ_j w_j`` over its neighbors j inside the image, with a weight of 1/6 beside,
    above and below, and of 1/12 at the corners. The system of equations is symmetric and positive definite. It is
    solved for all images at once by conjugate gradients, on the images' device.

    Source: noisy linear imputation without the noise, arXiv 2202.00449.

    Args:
        images: ``(M, C, H, W)``.
        removed: ``(M, H, W)``, true where a pixel is removed. An image without any other pixel gets its mean color.

    Returns:
        The images with imputed pixels, of the same shape.
    """
    # Metal has no double precision.
    precision = torch.float32 if images.device.type == "mps" else torch.float64
    x, hole = images.to(precision), removed[:, None]
    degree = _add_neighbors(torch.ones_like(x[:1, :1]))

    def apply(values: Tensor) -> Tensor:
        return torch.where(hole, degree * values - _add_neighbors(values), 0)

    start = torch.where(hole, _fill_coarse_to_fine(x, ~hole), 0)
    right = torch.where(hole, _add_neighbors(torch.where(hole, 0, x)), 0)
    is_whole = removed.flatten(1).all(1)
    # Without a known pixel any constant solves the system.
    right[is_whole], start[is_whole] = 0, 0
    limit = _TOLERANCE[precision] * float(x.abs().max().clamp_min(1e-30))
    solution = _solve(apply, right, start, limit, _MOST_STEPS_PER_PIXEL * max(images.shape[2:]))
    filled = torch.where(is_whole[:, None, None, None], _average_color(x), solution)
    return torch.where(hole, filled.to(images), images)


def _add_neighbors(values: Tensor) -> Tensor:
    """Return the weighted sum of the eight neighbors of each pixel; outside of the image is 0."""
    # The weights are those of [1, 2, 1] in both directions, without the center.
    around = pad(values, (1, 1, 1, 1))
    rows = around[:, :, :-2] + 2 * around[:, :, 1:-1] + around[:, :, 2:]
    return (rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:] - 4 * values) / 12


def _fill_coarse_to_fine(x: Tensor, known: Tensor) -> Tensor:
    """Return a first guess of the unknown pixels: means of known pixels over squares, as small as possible."""
    if min(x.shape[2:]) < 2 or bool(known.all()):
        total = torch.where(known, x, 0).sum((2, 3), keepdim=True)
        return torch.where(known, x, total / known.sum((2, 3), keepdim=True).clamp_min(1))
    share = avg_pool2d(known.to(x), 2, ceil_mode=True)
    means = avg_pool2d(torch.where(known, x, 0), 2, ceil_mode=True) / share.clamp_min(1e-9)
    coarse = _fill_coarse_to_fine(means, share > 0)
    finer = interpolate(coarse, size=x.shape[2:], mode="bilinear", align_corners=False)
    return torch.where(known, x, finer)


def _solve(apply: Callable[[Tensor], Tensor], right: Tensor, start: Tensor, limit: float, most: int) -> Tensor:
    """Solve ``apply(x) = right`` for each plane ``(M, C, H, W)`` by conjugate gradients."""
    x = start
    residual = right - apply(x)
    direction, norm = residual, _dot(residual, residual)
    for step in range(most):
        # Planes whose residual is 0 stay as they are.
        if step % _STEPS_BETWEEN_LOOKS == 0 and float(residual.abs().max()) <= limit:
            break
        image = apply(direction)
        length = norm / _dot(direction, image).clamp_min(1e-300 if x.dtype == torch.float64 else 1e-30)
        x, residual = x + length * direction, residual - length * image
        new_norm = _dot(residual, residual)
        direction = residual + new_norm / norm.clamp_min(1e-300 if x.dtype == torch.float64 else 1e-30) * direction
        norm = new_norm
    return x


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum((2, 3), keepdim=True)
