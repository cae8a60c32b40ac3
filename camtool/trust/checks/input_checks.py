"""Checks of the input: would the model predict much better with other channels or another range of values?"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding

# The thresholds were chosen on 45 photos with three crops of each and 27 other photos, MobileNetV2 and SqueezeNet.
# ``python -m benchmarks checks`` counts false alarms.
_LESS_ENTROPY = 0.15
"""Least decrease of the entropy of the prediction, relative to that of equal probabilities, for a finding."""

_MORE_CONTRAST = 2.0
"""Least increase of the highest score's distance from the mean score, in standard deviations of the scores. A network
without norms is more certain of any larger input, but its scores only grow together, which leaves this unchanged."""

_CROPPED = 1 / 14
"""What the third view lacks on each side, as a share of the image: 16 of 224 pixels."""

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Certainty(NamedTuple):
    """How certain predictions are, each ``(M,)``: relative entropy, contrast of the highest score."""

    entropy: Tensor
    contrast: Tensor


def find_skip_reason(context: CheckContext) -> str | None:
    """Return why channels and scale cannot be checked; ``None`` if they can."""
    scores = context.class_scores
    if scores is None or len(scores) < 3 or context.forward_pass.find_link().link != "softmax":
        return "it takes a classifier with a softmax over three classes or more"
    if context.inputs.ndim != 4 or context.inputs.shape[1] != 3:
        return "it takes an image of three channels"
    return None


def check_channels(context: CheckContext) -> Iterator[Finding]:
    """Find an image whose prediction is much more certain with red and blue exchanged."""
    black, white = _find_black_and_white(context)
    # The channels are normalized each in its own way, so the colors are exchanged before normalization.
    exchanged = black + _to_unit_range(context).flip(1) * (white - black)
    better = _find_better(context, exchanged)
    if better is not None:
        yield Finding(
            "channels-swapped",
            f"With red and blue exchanged, the model is much more certain (entropy {better[2]:.0%} of its maximum, not "
            f"{better[1]:.0%}), so the image may be BGR where the model expects RGB, or the reverse.",
            {"entropy": better[1], "entropy if exchanged": better[2]},
        )


def check_scale(context: CheckContext) -> Iterator[Finding]:
    """Find an image whose prediction is much more certain in another usual range of values."""
    values = _to_unit_range(context)
    mean, std = (values.new_tensor(statistic).reshape(1, -1, 1, 1) for statistic in (_IMAGENET_MEAN, _IMAGENET_STD))
    ranges = {
        "[0, 1]": values,
        "[-1, 1]": 2 * values - 1,
        "ImageNet's mean and standard deviation": (values - mean) / std,
    }
    # A model that expects normalized values predicts one of a few classes for those up to 255, often with certainty,
    # whatever the image shows. So that range is tried only if the image has not been normalized.
    if float(context.inputs.min()) >= 0 and float(context.inputs.max()) <= 1:
        ranges["[0, 255]"] = 255 * values
    better = _find_better(context, torch.cat(list(ranges.values())))
    if better is not None:
        yield Finding(
            "scale-misfit",
            f"With values normalized to {list(ranges)[better[0]]}, the model is much more certain (entropy "
            f"{better[2]:.0%} of its maximum, not {better[1]:.0%}), so the image may not be normalized as in training.",
            {"entropy": better[1], "entropy if normalized": better[2]},
        )


def _find_better(context: CheckContext, variants: Tensor) -> tuple[int, float, float] | None:
    """Return the variant with a much more certain prediction, the entropy for the image, and for the variant."""
    certainty = _measure_certainty(context, torch.cat([context.inputs, variants.to(context.inputs)]))
    less = certainty.entropy[0] - certainty.entropy[1:]
    more = certainty.contrast[1:] - certainty.contrast[0]
    better = (less > _LESS_ENTROPY) & (more > _MORE_CONTRAST)
    if not better.any():
        return None
    best = int(torch.where(better, more, -torch.inf).argmax())
    return best, float(certainty.entropy[0]), float(certainty.entropy[1 + best])


def _measure_certainty(context: CheckContext, images: Tensor) -> _Certainty:
    """Return how certain the predictions of images ``(M, C, H, W)`` are, as the mean over three views of each.

    What the model does not know, it may take for something with certainty by chance, but seldom in each view.
    """
    certainties = [_measure_certainty_of_scores(context.score_variants(view)) for view in _list_views(images)]
    return _Certainty(*(torch.stack(measure).mean(0) for measure in zip(*certainties, strict=True)))


def _list_views(images: Tensor) -> list[Tensor]:
    """Return the images, their mirror images, and their middles enlarged, each ``(M, C, H, W)``."""
    height, width = images.shape[2:]
    top, left = round(height * _CROPPED), round(width * _CROPPED)
    middle = images[:, :, top : height - top, left : width - left]
    enlarged = interpolate(middle, size=(height, width), mode="bilinear", antialias=True)
    return [images, images.flip(3), enlarged]


def _measure_certainty_of_scores(scores: Tensor) -> _Certainty:
    """Return how certain predictions are, from scores ``(M, K)``."""
    scores = scores.cpu().double()  # not all devices have float64
    entropy = torch.special.entr(scores.softmax(1)).sum(1) / log(scores.shape[1])
    spread = scores.std(1)
    contrast = torch.where(spread > 0, (scores.amax(1) - scores.mean(1)) / spread, 0)
    return _Certainty(entropy, contrast)


def _find_black_and_white(context: CheckContext) -> tuple[Tensor, Tensor]:
    """Return the values of black and white in the input, each ``(1, C, 1, 1)``: known, or guessed from its range."""
    inputs, item = context.inputs, context.item
    low, high = float(inputs.min()), float(inputs.max())
    is_raw_tensor = not item.is_photo and low >= 0
    if item.black is not None and item.white is not None and not is_raw_tensor:
        return item.black.to(inputs).reshape(1, -1, 1, 1), item.white.to(inputs).reshape(1, -1, 1, 1)
    mean, std = (inputs.new_tensor(statistic).reshape(1, -1, 1, 1) for statistic in (_IMAGENET_MEAN, _IMAGENET_STD))
    if low < 0 and (low < -1 or high > 1):
        return -mean / std, (1 - mean) / std
    black = -1.0 if low < 0 else 0.0
    return torch.full_like(mean, black), torch.full_like(mean, 1.0 if high <= 1 else 255.0)


def _to_unit_range(context: CheckContext) -> Tensor:
    """Return the image with values in [0, 1]."""
    black, white = _find_black_and_white(context)
    return (context.inputs - black) / (white - black)
