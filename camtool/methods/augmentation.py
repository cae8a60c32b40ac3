"""Test-time augmentation: wrappers that run a method on changed images, e.g. ``"tta:gradcam"`` on mirrored ones.

A wrapper is a function from evidence and a method to raw maps. Users pass the options of both side by side, so the
names of a wrapper's options begin with its own name. The other two,
``eigen`` and ``conservative``, change no image and are in :mod:`camtool.methods.families`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from camtool.arguments.checks import Count, CountOrZero, NotNegative, Number, Share
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import iterate_noisy_copies
from camtool.geometry.resampling import resample
from camtool.hooks.chunks import iterate_chunks
from camtool.maps import resize_to_grid, scale_min_max, upcast
from camtool.methods import options
from camtool.methods.registry import Method, wrapper

# --------------------------------------------------------------------------------------------- changes of the image


@wrapper("tta")
def tta(evidence: Evidence, method: Method) -> Tensor:
    """Average over mirrored and brighter images.

    TTA stands for test-time augmentation. Six passes: the image and its mirror image, each at 0.9, 1 and 1.1 times the
    brightness; the maps of mirrored images are mirrored back. The brightness is that of the image, not of the model's
    normalized input, whose values are around 0: ``x' = black + f (x - black)``. If black is not known, as for a tensor
    without a transform, the image is only mirrored: two passes.

    The idea is pytorch-grad-cam's ``aug_smooth``, which has no paper. It multiplies the normalized values, and scales
    maps to [0, 1] before it averages them. Here, as in SmoothGrad, raw maps are averaged, so a pass that finds little
    counts little.

    If the target is a region of the image, the image is not mirrored, because the region would not move with it. The
    map is then the mean over three brightnesses.

    Returns:
        The mean maps ``(R, *grid)``.

    Raises:
        MethodError: A target is a region of the image, and black is not known, so no change of the image is possible.
    """
    factors = (1.0,) if evidence.black is None else (0.9, 1.0, 1.1)
    if len(factors) == 1:
        options.check_no_local_targets(evidence, "without a transform tta can only mirror the image")

    def iterate_maps(*, mirrored: bool) -> Iterator[Tensor]:
        for factor in factors:
            maps = method(_change_image(evidence, factor, mirrored=mirrored))
            yield _mirror_back(evidence, method, maps) if mirrored else maps

    upright = _average(iterate_maps(mirrored=False), len(factors))
    is_local = [target.traits.has_place for target in evidence.targets]
    if all(is_local):
        return upright
    both = (upright + _average(iterate_maps(mirrored=True), len(factors))) / 2
    keep_upright = torch.tensor(is_local, device=both.device).reshape(-1, *[1] * (both.ndim - 1))
    return torch.where(keep_upright, upright, both)


def _change_image(evidence: Evidence, factor: float, *, mirrored: bool) -> Evidence:
    """Return evidence about images of another brightness, mirrored or not; without a change the same evidence."""
    inputs = evidence.inputs
    if factor != 1 and evidence.black is not None:
        black = evidence.black.to(inputs).reshape(-1, *[1] * (inputs.ndim - 2))
        inputs = black + factor * (inputs - black)
    inputs = inputs.flip(-1) if mirrored else inputs
    return evidence.for_inputs(inputs) if mirrored or factor != 1 else evidence


def _mirror_back(evidence: Evidence, method: Method, maps: Tensor) -> Tensor:
    """Return maps ``(R, *grid)`` of mirrored images on the grid of the image that is not mirrored."""
    mirrored = maps.flip(-1)
    centers = None if method.at_input_size else evidence.find_centers(maps, at_depths=method.reads_depths)
    if centers is None:
        return mirrored
    # A layer may look to the left of its cells, and then to the right in the image that is mirrored back.
    # The mean is drawn, and fades then.
    return resample(mirrored, centers.mirror(maps.shape[1:]), maps.shape[1:], centers, holds=True)


@wrapper("noise", paper="arXiv 1706.03825")
def noise(
    evidence: Evidence,
    method: Method,
    *,
    noise_samples: Count = 10,
    noise_level: NotNegative = 0.15,
    noise_seed: CountOrZero = 0,
) -> Tensor:
    """Average over noisy copies of the image.

    ``M = 1/n Σ M(x + ε)``, where ``ε`` is Gaussian noise whose standard deviation is a fraction of the range
    ``max x - min x`` of the image: SmoothGrad (Smilkov et al. 2017), applied to maps instead of gradients. The paper
    recommends 10 to 20 % of noise, and finds little change beyond 50 samples.

    Args:
        evidence: The evidence about the image.
        method: The method that computes the maps.
        noise_samples: The number of noisy copies.
        noise_level: The standard deviation of the noise, relative to the range of the image's values.
        noise_seed: The seed of the noise, which is the same for every image.

    Returns:
        The mean maps ``(R, *grid)``.

    Raises:
        MethodError: An option is out of range.
    """
    copies = iterate_noisy_copies(evidence.inputs, noise_samples, noise_level, noise_seed)
    maps = (method(evidence.for_inputs(next(copies))) for _ in iterate_chunks(noise_samples, 1))
    return _average(maps, noise_samples)


def _average(maps: Iterable[Tensor], count: int) -> Tensor:
    """Return the mean of maps that arrive one by one; only the sum is kept in memory."""
    return reduce(torch.add, (raw / count for raw in maps))


# -------------------------------------------------------------------------------------------- windows of the image


@wrapper("sess", paper="arXiv 2207.01769", at_input_size=True)
def sess(
    evidence: Evidence,
    method: Method,
    *,
    sess_scales: Sequence[float] = (1.0, 1.5, 2.0),
    sess_step: Share = 1.0,
    sess_threshold: Number = 0.0,
) -> Tensor:
    """Combine enlarged parts of the image.

    It is made for small objects, and for several objects of one class.

    The image is enlarged to each of the scales, and a window of the image's own size slides over it. The map of a
    window, scaled to [0, 1], is weighted by the model's confidence there: ``w_i = p_i / max_i p_i``, where ``p`` is the
    probability of the class. If the target has no probability, ``p`` is the positive part of its own score. The
    weighted maps are placed back at their position, with zeros elsewhere: ``M = Σ_i w_i M_i [w_i M_i > θ] / Σ_i [w_i
    M_i > θ]``. Each position is averaged over the windows that show something there (SESS: Tursun et al. 2022).

    Windows have the shape of the image, so any model accepts them. A last window that would exceed the image is moved
    back into it. The paper's selection of promising windows beforehand, which saves time, is left out. By default there
    are three scales with 9 windows in all and no blur. The authors' code uses twelve scales, from 1 in steps of 2/7,
    with 122 windows in all, and blurs the result.

    Args:
        evidence: The evidence about the image.
        method: The method that computes the maps.
        sess_scales: The sizes of the image, relative to its own size, each 1 or more.
        sess_step: The step of the window, as a fraction of its size.
        sess_threshold: ``θ``: only larger values count.

    Returns:
        The maps at the image's size, ``(R, H, W)``.

    Raises:
        MethodError: The inputs are not images, an option is out of range, or a target is a region of the image.
    """
    options.check_no_local_targets(evidence, "sess cuts the image into windows")
    options.check_numbers("sess_scales", sess_scales, least=1)
    windows = _make_windows(evidence.inputs.shape[2:], sess_scales, sess_step)
    results = [windows[part.start].explain(evidence, method) for part in iterate_chunks(len(windows), 1)]
    confidences = torch.stack([confidence for _, confidence in results])
    highest = confidences.amax(0)
    # If the confidence is 0 in all windows, they all count alike.
    weights = torch.where(highest > 0, confidences / torch.where(highest > 0, highest, 1), 1)
    total = count = weights.new_zeros(weights.shape[1], *windows[0].size)
    for window, (maps, _), weight in zip(windows, results, weights, strict=True):
        placed = window.place(weight[:, None, None] * maps)
        is_counted = placed > sess_threshold
        total, count = total + placed * is_counted, count + is_counted
    return total / count.clamp(min=1)


@dataclass(frozen=True)
class _Window:
    """A window of the image's own size on the enlarged image.

    Attributes:
        size: The height and width of the image and of the window.
        large: The height and width of the enlarged image.
        corner: The top left corner (y, x) of the window on the enlarged image.
    """

    size: tuple[int, int]
    large: tuple[int, int]
    corner: tuple[int, int]

    def explain(self, evidence: Evidence, method: Method) -> tuple[Tensor, Tensor]:
        """Return the maps ``(R, *size)`` of the window in [0, 1], and each row's confidence there, ``(R,)``."""
        inside = evidence if self.large == self.size else evidence.for_inputs(self.cut(evidence.inputs))
        maps = scale_min_max(method(inside))
        if not method.at_input_size:
            # Nothing fades toward the edge of a window, where the image goes on.
            maps = inside.resize_to_input(maps, at_depths=method.reads_depths, holds=True)
        return maps, compute_class_confidence(inside).to(maps)

    def cut(self, inputs: Tensor) -> Tensor:
        """Return the window of the enlarged images, ``(N, C, *size)``."""
        (h, w), (y, x) = self.size, self.corner
        large = interpolate(inputs, self.large, mode="bilinear", align_corners=False)
        return large[..., y : y + h, x : x + w].contiguous()

    def place(self, maps: Tensor) -> Tensor:
        """Return maps ``(R, *size)`` of the window at their position on the image, ``(R, *size)``."""
        (h, w), (H, W), (y, x) = self.size, self.large, self.corner
        return resize_to_grid(pad(maps, (x, W - w - x, y, H - h - y)), self.size)


def _make_windows(size: Sequence[int], scales: Sequence[float], step: float) -> list[_Window]:
    if len(size) != 2:
        raise MethodError(f"wrapper 'sess' needs images (N, C, H, W), but the inputs are of size {tuple(size)}.")
    windows = []
    for scale in scales:
        large = [round(scale * length) for length in size]
        starts = [_find_window_starts(*lengths, step) for lengths in zip(large, size, strict=True)]
        windows += [_Window((size[0], size[1]), (large[0], large[1]), (y, x)) for y, x in product(*starts)]
    return windows


def _find_window_starts(length: int, window: int, step: float) -> list[int]:
    """Return the starts of windows that together cover a length."""
    return [*range(0, length - window, max(1, round(step * window))), length - window]


def compute_class_confidence(evidence: Evidence) -> Tensor:
    """Return each row's class probability, ``(R,)``; for targets without one, the positive part of the score."""
    return torch.stack([_compute_row_confidence(evidence, row) for row in range(len(evidence.targets))])


def _compute_row_confidence(evidence: Evidence, row: int) -> Tensor:
    image, probability = evidence.images[row], options.convert_to_probability(evidence.targets[row])
    if probability is None:
        return upcast(evidence.scores[row]).relu()
    return probability(evidence.logits[image : image + 1])[0]
