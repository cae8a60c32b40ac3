"""Ways to remove pixels from an image: blur, the mean color, zero, and inpainting from the pixels around.

None of them is neutral: what a model answers for an image with removed pixels depends on what they were replaced by.
Inpainting leaks least about the shape of what was removed, see arXiv 2202.00449.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d, pad

from camtool.arguments.checks import check_choice
from camtool.errors import MetricError

# A name of :data:`REMOVALS`, or a function from images ``(N, C, H, W)`` to what replaces their pixels.
Removal: TypeAlias = str | Callable[[Tensor], Tensor]
Removals: TypeAlias = Removal | Sequence[Removal]

# ``fill(rows, removed) -> (M, C, H, W)``: the images of these rows ``(M,)`` without the pixels ``(M, H, W)``.
Fill: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# The standard deviation of the blur, as a fraction of the shorter side: 10 pixels of 224. With less, e.g. RISE's 5
# pixels cut off after 5, objects can still be recognized.
_BLUR = 10 / 224

# Conjugate gradients stop at this residual, relative to the largest value of the known pixels. The error is larger than
# the residual: measured on regions of 64 to 224 pixels, 5e-5 for 1e-6 and 1e-6 for 1e-8.
_LARGEST_RESIDUALS = {torch.float64: 1e-8, torch.float32: 1e-6}

# Values of a step on a CPU: those of three images of 224 pixels, whose tensors stay in the processor's cache. A step of
# twenty takes 1.6 times as long for each image, and 200 MB.
_VALUES_AT_ONCE = 2**19

# Steps of conjugate gradients per pixel of the image's longer side: the number of steps grows with the side of the
# removed region if nothing helps. With the coarser grids 20 to 50 steps are enough for 64 to 224 pixels.
_MOST_STEPS_PER_PIXEL = 20

# Steps between two looks at the residual, each of which makes the program wait for an accelerator.
_STEPS_BETWEEN_LOOKS = 4

# Linear interpolation to a grid of half the step: the weights of the nearer and of the farther value.
_NEAR, _FAR = 0.75, 0.25


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


# Name → function from images to what replaces their pixels, whichever of them are removed. ``"blur"`` is the blurred
# image. ``"mean"`` is the mean color of the image. ``"zero"`` is the zero of the model's input: the mean color of the
# training images if the preprocessing subtracts it, else black.
BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "blur": blur_images,
    "mean": _average_color,
    "zero": torch.zeros_like,
}

# The names of all ways to remove pixels. ``"inpaint"`` is :func:`impute_linear`.
REMOVALS: tuple[str, ...] = (*BASELINES, "inpaint")


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
    solved for all images at once by conjugate gradients on grids of several sizes, on the images' device.

    Source: noisy linear imputation without the noise, arXiv 2202.00449.

    Args:
        images: ``(M, C, H, W)``.
        removed: ``(M, H, W)``, true where a pixel is removed. An image without any other pixel gets its mean color.

    Returns:
        The images with imputed pixels, of the same shape.
    """
    precision = torch.float64 if images.dtype == torch.float64 else torch.float32
    x = images.to(precision)
    limit = _LARGEST_RESIDUALS[precision] * float(torch.where(removed[:, None], 0, x).abs().max().clamp_min(1e-30))
    filled = images.clone()
    for size, corners in _group_windows(removed).items():
        windows = [(row, slice(top, top + size[0]), slice(left, left + size[1])) for row, top, left in corners]
        values = images.shape[1] * size[0] * size[1]
        count = max(1, _VALUES_AT_ONCE // values) if images.device.type == "cpu" else len(windows)
        for start in range(0, len(windows), count):
            _impute_windows(x, removed, windows[start : start + count], limit, filled)
    return torch.where(removed[:, None], filled, images)


def _impute_windows(
    x: Tensor, removed: Tensor, windows: Sequence[tuple[int, slice, slice]], limit: float, filled: Tensor
) -> None:
    """Write the imputed pixels of windows of one size ``(row, down, across)`` into images."""
    parts = torch.stack([x[row, :, down, across] for row, down, across in windows])
    holes = torch.stack([removed[window] for window in windows])
    for (row, down, across), part in zip(windows, _impute(parts, holes, limit).to(filled), strict=True):
        filled[row, :, down, across] = part


def _group_windows(removed: Tensor) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """Return size → row, top and left of the windows around removed pixels ``(M, H, W)`` and their neighbors.

    No equation reaches further, and most regions are much smaller than the image.
    """
    windows: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    ends = [_find_ends(removed.any(axis)) for axis in (2, 1)]
    for row, ((top, bottom), (left, right)) in enumerate(zip(*ends, strict=True)):
        if top < bottom:
            height, width = map(min, (bottom - top + 2, right - left + 2), removed.shape[1:])
            corner = max(0, min(top - 1, removed.shape[1] - height)), max(0, min(left - 1, removed.shape[2] - width))
            windows.setdefault((height, width), []).append((row, *corner))
    return windows


def _find_ends(used: Tensor) -> list[tuple[int, int]]:
    """Return the first true entry of each row ``(M, L)`` and the one behind the last; (L, 0) if there is none."""
    steps = torch.arange(used.shape[1], device=used.device)
    starts = torch.where(used, steps, used.shape[1]).amin(1)
    return list(zip(starts.tolist(), torch.where(used, steps + 1, 0).amax(1).tolist(), strict=True))


def _impute(x: Tensor, removed: Tensor, limit: float) -> Tensor:
    """Return images ``(M, C, H, W)`` with imputed pixels, solved up to a residual."""
    hole = removed[:, None]
    is_whole = removed.flatten(1).all(1)[:, None, None, None]
    # Without a known pixel any constant solves the system.
    start = torch.where(hole & ~is_whole, _fill_coarse_to_fine(x, ~hole), 0)
    solution = _solve(_Imputation(x, hole), start, limit, _MOST_STEPS_PER_PIXEL * max(x.shape[2:]))
    return torch.where(is_whole, _average_color(x), solution)


class _Imputation:
    """The system of equations for the removed pixels ``hole`` ``(M, 1, H, W)`` of images ``(M, C, H, W)``.

    Attributes:
        right: The right side of the system, ``(M, C, H, W)``.
    """

    def __init__(self, images: Tensor, hole: Tensor) -> None:
        self._degree = _add_neighbors(torch.ones_like(images[:1, :1]))
        self._holes = _list_coarser_holes(hole.to(images))
        self.right = _add_neighbors(torch.where(hole, 0, images)) * self._holes[0]

    def apply(self, values: Tensor) -> Tensor:
        """Return the left side of the system for values of the removed pixels, ``(M, C, H, W)``."""
        return (self._degree * values).sub_(_add_neighbors(values)).mul_(self._holes[0])

    def precondition(self, residual: Tensor) -> Tensor:
        """Return an estimate of the error that leaves this residual: the sum of the residual on all coarser grids.

        Conjugate gradients alone carry a value by one pixel per step. A coarse grid carries it across the whole region.

        Source: the parallel multilevel preconditioner of Bramble, Pasciak and Xu, Mathematics of Computation 55, 1990.
        """
        residuals = [residual]
        for hole in self._holes[1:]:
            residuals.append(_to_coarser(_to_coarser(residuals[-1]).mT).mT.mul_(hole))
        error = residuals[-1]
        for hole, finer in zip(self._holes[-2::-1], residuals[-2::-1], strict=True):
            error = _to_finer(_to_finer(error, finer.shape[-1]).mT, finer.shape[-2]).mT.add_(finer).mul_(hole)
        return error


def _add_neighbors(values: Tensor) -> Tensor:
    """Return the weighted sum of the eight neighbors of each pixel ``(..., H, W)``; outside of the image is 0."""
    # The weights are (1, 2, 1) down times (1, 2, 1) across, without the pixel itself, over 12. On a CPU, sums of
    # shifted images are fifty times as fast as conv2d with one channel.
    down = 2 * values
    down[..., 1:, :] += values[..., :-1, :]
    down[..., :-1, :] += values[..., 1:, :]
    total = 2 * down
    total[..., 1:] += down[..., :-1]
    total[..., :-1] += down[..., 1:]
    return total.sub_(values, alpha=4).div_(12)


def _to_coarser(values: Tensor) -> Tensor:
    """Return weighted sums of the residuals along the last axis, half as many: the transpose of :func:`_to_finer`."""
    half = values.shape[-1] // 2
    odd, next_even = values[..., 1 : 2 * half : 2], values[..., 2 : 2 * half + 1 : 2]
    sums = (values[..., : 2 * half : 2] + odd).mul_(_NEAR)
    sums[..., 1:].add_(odd[..., :-1], alpha=_FAR)
    sums[..., : next_even.shape[-1]].add_(next_even, alpha=_FAR)
    return sums


def _to_finer(values: Tensor, count: int) -> Tensor:
    """Interpolate linearly along the last axis, from half as many values to ``count``; outside of them is 0."""
    half = values.shape[-1]
    finer = values.new_zeros(*values.shape[:-1], count)
    finer[..., : 2 * half : 2].add_(values, alpha=_NEAR)
    finer[..., 1 : 2 * half : 2].add_(values, alpha=_NEAR)
    finer[..., 1 : 2 * half - 1 : 2].add_(values[..., 1:], alpha=_FAR)
    next_even = finer[..., 2 : 2 * half + 1 : 2]
    next_even.add_(values[..., : next_even.shape[-1]], alpha=_FAR)
    return finer


def _list_coarser_holes(hole: Tensor) -> list[Tensor]:
    """Return the removed pixels as 0 or 1 on grids of 1, 2, 4, ... pixels; coarse ones are removed as a whole."""
    holes = [hole]
    while min(holes[-1].shape[2:]) >= 4:
        holes.append(-max_pool2d(-holes[-1], 2))
    return holes


def _fill_coarse_to_fine(x: Tensor, is_known: Tensor) -> Tensor:
    """Return a first guess of the unknown pixels: means of known pixels over squares, as small as possible."""
    if min(x.shape[2:]) < 2 or bool(is_known.all()):
        total = torch.where(is_known, x, 0).sum((2, 3), keepdim=True)
        return torch.where(is_known, x, total / is_known.sum((2, 3), keepdim=True).clamp_min(1))
    share = avg_pool2d(is_known.to(x), 2, ceil_mode=True)
    means = avg_pool2d(torch.where(is_known, x, 0), 2, ceil_mode=True) / share.clamp_min(1e-9)
    coarse = _fill_coarse_to_fine(means, share > 0)
    finer = interpolate(coarse, size=x.shape[2:], mode="bilinear", align_corners=False)
    return torch.where(is_known, x, finer)


def _solve(system: _Imputation, start: Tensor, limit: float, most: int) -> Tensor:
    """Solve the system for each plane ``(M, C, H, W)`` by preconditioned conjugate gradients."""
    x = start.clone()
    residual = system.right - system.apply(x)
    direction = system.precondition(residual).clone()
    norm, tiny = _dot(residual, direction), 1e-300 if x.dtype == torch.float64 else 1e-30
    for step in range(most):
        # Planes whose residual is 0 stay as they are.
        if step % _STEPS_BETWEEN_LOOKS == 0 and float(residual.abs().max()) <= limit:
            break
        image = system.apply(direction)
        length = norm / _dot(direction, image).clamp_min(tiny)
        x.addcmul_(length, direction)
        residual.addcmul_(length, image, value=-1)
        error = system.precondition(residual)
        new_norm = _dot(residual, error)
        direction.mul_(new_norm / norm.clamp_min(tiny)).add_(error)
        norm = new_norm
    return x


def _dot(first: Tensor, second: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(first.flatten(2), second.flatten(2))
    return products[..., None, None]
