"""Wrappers: what makes a method of a method. ``"tta:gradcam"`` is Grad-CAM, steadied by looking at the picture anew.

A wrapper is a function from evidence and a method to raw maps. The options of both are given side by side, so those of
a wrapper begin with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from camtool.errors import MethodError
from camtool.evidence import Evidence
from camtool.maps import min_max, resize, widened
from camtool.methods.activation import first_component
from camtool.methods.masking import probability_of
from camtool.methods.options import check_count, check_number, check_numbers, refuse_places
from camtool.methods.registry import Method, wrapper
from camtool.rng import noisy
from camtool.streaming import in_chunks
from camtool.targets import has_a_place

__all__ = ["eigen", "noise", "sess", "tta"]


# ---------------------------------------------------------------------------------------- the same picture, changed


@wrapper("tta")
def tta(evidence: Evidence, method: Method) -> Tensor:
    """Average over mirrored and brighter images.

    Six passes: the picture as it is and flipped left to right, each at 0.9, 1 and 1.1 times its brightness; the maps of
    flipped pictures are flipped back. Brightness is that of the picture and not of the numbers that the model gets of
    it, which lie around 0: ``x' = black + f (x - black)``. Where black is not known, as for a tensor without a
    transform, the picture is only flipped: two passes.

    The idea is pytorch-grad-cam's ``aug_smooth``, which has no paper; there, the normalised numbers are multiplied, and
    maps are scaled to [0, 1] before they are averaged. Here, as in SmoothGrad, the maps are averaged as they come, so
    that a pass which finds little counts little.

    A target about a place in the picture does not move along with it, so for such a target nothing is flipped: its
    map is the mean over the picture in three lights.

    Returns:
        The mean maps ``(R, *grid)``.

    Raises:
        MethodError: A target is about a part of the picture, and black is not known, so that nothing can be changed.
    """
    lights = (1.0,) if evidence.black is None else (0.9, 1.0, 1.1)
    if len(lights) == 1:
        refuse_places(evidence, "tta can only flip the picture, as black is not known without a transform")

    def looks(*, flipped: bool) -> Iterator[Tensor]:
        for factor in lights:
            maps = method(_changed(evidence, factor, flipped=flipped))
            yield maps.flip(-1) if flipped else maps

    upright = _mean(looks(flipped=False), len(lights))
    stays = [has_a_place(target) for target in evidence.targets]
    if all(stays):
        return upright
    both = (upright + _mean(looks(flipped=True), len(lights))) / 2
    return torch.where(torch.tensor(stays, device=both.device).reshape(-1, *[1] * (both.ndim - 1)), upright, both)


def _changed(evidence: Evidence, factor: float, *, flipped: bool) -> Evidence:
    """Evidence of the pictures in another light, and flipped; as they are it is the evidence itself."""
    pictures = evidence.inputs
    if factor != 1 and evidence.black is not None:
        black = evidence.black.to(pictures).reshape(-1, *[1] * (pictures.ndim - 2))
        pictures = black + factor * (pictures - black)
    pictures = pictures.flip(-1) if flipped else pictures
    return evidence.again(pictures) if flipped or factor != 1 else evidence


@wrapper("noise", paper="arXiv 1706.03825")
def noise(
    evidence: Evidence,
    method: Method,
    *,
    noise_samples: int = 10,
    noise_level: float = 0.15,
    noise_seed: int = 0,
) -> Tensor:
    """Average over noisy copies of the image.

    ``M = 1/n Σ M(x + ε)`` with ``ε`` normal and its deviation a part of the range ``max x - min x`` of the picture:
    what SmoothGrad does for gradients (Smilkov et al. 2017), done for maps. There, 10 to 20 % of noise are found to do
    best, and more than 50 samples to change little.

    Args:
        evidence: What the method may look at.
        method: What makes the maps.
        noise_samples: How many noisy pictures.
        noise_level: The deviation of the noise, as a part of the picture's range.
        noise_seed: Of the noise, which is the same for every picture.

    Returns:
        The mean maps ``(R, *grid)``.

    Raises:
        MethodError: There are no samples, or the level is negative.
    """
    check_count("noise_samples", noise_samples)
    check_number("noise_level", noise_level, least=0)
    check_count("noise_seed", noise_seed, least=0)
    looks = (evidence.again(each) for each in noisy(evidence.inputs, noise_samples, noise_level, noise_seed))
    return _mean((method(next(looks)) for _ in in_chunks(noise_samples, 1)), noise_samples)


def _mean(maps: Iterable[Tensor], count: int) -> Tensor:
    """The mean of maps that come one by one and are not kept."""
    return reduce(torch.add, (each / count for each in maps))


# ----------------------------------------------------------------------------------------------- parts of the picture


@wrapper("sess", paper="arXiv 2207.01769")
def sess(
    evidence: Evidence,
    method: Method,
    *,
    sess_scales: Sequence[float] = (1.0, 1.5, 2.0),
    sess_step: float = 1.0,
    sess_threshold: float = 0.0,
) -> Tensor:
    """Combine enlarged parts of the image.

    It is made for small objects, and for several of a kind.

    The picture is enlarged to each of the scales, and a window of the picture's own size slides over it. A window's
    map, scaled to [0, 1], counts as much as the model believes in the class there: ``w_i = p_i / max_i p_i``, with the
    class' probability ``p``, or, where the target is neither a class' score nor its probability, the positive part of
    the target's own score. Put back where they belong and zero elsewhere, the weighted maps make
    ``M = Σ_i w_i M_i [w_i M_i > θ] / Σ_i [w_i M_i > θ]``: each position is averaged over the windows that see something
    there (SESS: Tursun et al. 2022).

    Windows have the shape of the picture, so that any model can look at them; where the last would stand out, it is
    moved back in. The paper's sorting out of unpromising windows beforehand, which saves time where there are many, is
    left out. The defaults are three scales, of 9 windows in all, and nothing is blurred. The authors' program takes
    twelve scales, from 1 in steps of 2/7, with 122 windows in all, and blurs the result.

    Args:
        evidence: What the method may look at.
        method: What makes the maps.
        sess_scales: How large the picture is made, each 1 or more.
        sess_step: How far the window moves each time, as a part of its size.
        sess_threshold: ``θ``, from which on a value counts.

    Returns:
        The maps at the picture's size, ``(R, H, W)``.

    Raises:
        MethodError: The inputs are not pictures, an option makes no sense, or a target is about a part of the picture.
    """
    refuse_places(evidence, "sess cuts the picture")
    check_numbers("sess_scales", sess_scales, least=1)
    check_number("sess_step", sess_step, above=0, most=1)
    check_number("sess_threshold", sess_threshold)
    windows = _windows(evidence.inputs.shape[2:], sess_scales, sess_step)
    looks = [windows[part.start].look(evidence, method) for part in in_chunks(len(windows), 1)]
    chances = torch.stack([chance for _, chance in looks])
    most = chances.amax(0)
    weights = torch.where(most > 0, chances / torch.where(most > 0, most, 1), 1)
    total = counted = weights.new_zeros(weights.shape[1], *windows[0].size)
    for window, (maps, _), weight in zip(windows, looks, weights, strict=True):
        placed = window.placed(weight[:, None, None] * maps)
        counts = placed > sess_threshold
        total, counted = total + placed * counts, counted + counts
    return total / counted.clamp(min=1)


@dataclass(frozen=True)
class _Window:
    """A window of the picture's own size, with its corner somewhere on the enlarged picture."""

    size: tuple[int, int]
    large: tuple[int, int]
    corner: tuple[int, int]

    def look(self, evidence: Evidence, method: Method) -> tuple[Tensor, Tensor]:
        """The maps ``(R, *grid)`` in [0, 1] of what is in the window, and how much each row's target is there."""
        seen = evidence if self.large == self.size else evidence.again(self.cut(evidence.inputs))
        maps = min_max(method(seen))
        return maps, _chances(seen).to(maps)

    def cut(self, pictures: Tensor) -> Tensor:
        """What is in the window, ``(N, C, *size)``."""
        (h, w), (y, x) = self.size, self.corner
        large = interpolate(pictures, self.large, mode="bilinear", align_corners=False)
        return large[..., y : y + h, x : x + w].contiguous()

    def placed(self, maps: Tensor) -> Tensor:
        """Maps ``(R, *grid)`` of what is in the window, where it is in the picture: ``(R, *size)``."""
        (h, w), (H, W), (y, x) = self.size, self.large, self.corner
        return resize(pad(resize(maps, self.size), (x, W - w - x, y, H - h - y)), self.size)


def _windows(size: Sequence[int], scales: Sequence[float], step: float) -> list[_Window]:
    if len(size) != 2:
        raise MethodError(f"sess looks at parts of pictures (N, C, H, W), and the inputs are of size {tuple(size)}.")
    found = []
    for scale in scales:
        large = [round(scale * length) for length in size]
        starts = [_starts(*lengths, step) for lengths in zip(large, size, strict=True)]
        found += [_Window((size[0], size[1]), (large[0], large[1]), (y, x)) for y, x in product(*starts)]
    return found


def _starts(length: int, window: int, step: float) -> list[int]:
    """Where windows begin that together cover a length."""
    return [*range(0, length - window, max(1, round(step * window))), length - window]


def _chances(seen: Evidence) -> Tensor:
    """For each row its class' probability; the positive part of the score of a target that has none."""
    return torch.stack([_chance(seen, row) for row in range(len(seen.targets))])


def _chance(seen: Evidence, row: int) -> Tensor:
    image, probability = seen.images[row], probability_of(seen.targets[row])
    return widened(seen.scores[row]).relu() if probability is None else probability(seen.logits[image : image + 1])[0]


# -------------------------------------------------------------------------------------------------- the activations


@wrapper("eigen", of_weights=True)
def eigen(evidence: Evidence, method: Method) -> Tensor:
    """Take the weighted activations' main pattern.

    ``M = relu(X v)``, with ``X = w A`` as a matrix of positions by channels, ``w`` the method's weights, and ``v`` the
    first right singular vector of ``X``, with the sign that :func:`~camtool.methods.activation.first_component` gives
    it. It is pytorch-grad-cam's ``eigen_smooth``, which centres ``X`` and leaves the sign to chance, and has no paper.
    A pattern has no sign: what speaks against the target in all of its channels shows like what speaks for it.

    Returns:
        Maps ``(R, *grid)``.
    """
    assert method.weights is not None  # the registry sees to it
    return first_component(method.weights(evidence) * evidence.activations).relu()
