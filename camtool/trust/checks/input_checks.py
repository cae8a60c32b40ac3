"""Checks of the input: what a transform does to colors and places, and whether other inputs are predicted better."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from camtool.errors import CamtoolError, GeometryError, RaiseAs
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.measured_transforms import ColorResponse, probe_colors
from camtool.geometry.plain_transforms import IMAGENET, Preprocessing, Renormalized
from camtool.geometry.resampling import Floats
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import Transform, describe_transform, find_statistics
from camtool.hooks.structures.modules import read_tree
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.models.declared_properties import find_transform
from camtool.models.sources.torchvision import build_default_transform
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding
from camtool.warning_codes import MapWarning

# The thresholds were chosen on 45 photos with three crops of each and 27 other photos, MobileNetV2 and SqueezeNet.
# ``python -m benchmarks checks`` counts false alarms.

# Least decrease of the entropy of the prediction, relative to that of equal probabilities, for a finding.
_LESS_ENTROPY = 0.15

# Least increase of the highest score's distance from the mean score, in standard deviations of the scores. A network
# without norms is more certain of any larger input, but its scores only grow together, which leaves this unchanged.
_MORE_CONTRAST = 2.0

# What the third view lacks on each side, as a share of the image: 16 of 224 pixels.
_CROPPED = 1 / 14

# Ratio of the scales of height and width from which on a change of the aspect counts.
_SQUASHED = 1.1

# Share of white minus black by which two normalizations may differ, e.g. by rounded constants.
_SAME_NORMALIZATION = 0.05

# White minus black of bytes from which a mean is subtracted, as models of Caffe take them, in BGR.
_CAFFE_SPAN = 200

# Largest distance between the channels of a gray image, from 0 for black to 1 for white: two steps of a byte, as files
# are compressed and resized channel by channel.
_GRAY = 2 / 255

# Images of a folder from which on inputs are compared, and up to which.
_FEWEST_IMAGES, _MOST_IMAGES = 8, 64

# Standard errors that the mean gain over a folder must exceed.
_STANDARD_ERRORS = 3.0

# Mean gain that counts: the first is more than rounding, as a range that the images have already changes nothing
# else. With fewer than ``_MANY_CLASSES`` the contrast of small networks rises by chance, so the second holds.
_LEAST_GAIN, _LEAST_GAIN_OF_FEW = 0.05, 0.2

# Classes from which on folders are compared, and from which on small gains count.
_FEWEST_CLASSES, _MANY_CLASSES = 10, 100

# Longer side of the photos that measure a transform, in shorter sides: resizing longer ones may take gigabytes.
_LONGEST = 8

_Measured = TypeVar("_Measured")


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


def check_transform(context: CheckContext) -> Iterator[Finding]:
    """Find what the user's transform does otherwise than the model's own, by photos of known colors and places."""
    user, geometry = context.transform, context.item.geometry
    if user is None or user is context.declared or not context.item.is_photo:
        return
    top, _, bottom, _ = geometry.box
    if top > bottom:
        yield Finding("upside-down", "The transform turns the photo upside down.")
    usual = _find_usual_transform(context)
    yield from _check_aspect(geometry, usual.transform)
    height, width = geometry.photo
    photo = min(height, _LONGEST * width), min(width, _LONGEST * height)
    response = _measure(probe_colors, user, photo)
    expected = None
    if usual.transform is not None and not (usual.is_guess and _is_of_caffe(response)):
        expected = _measure(probe_colors, usual.transform, photo)
    is_stated = isinstance(user, (Preprocessing, Renormalized)) and user.channels == "bgr"
    if not is_stated:
        yield from _check_order(response, expected, usual.owner)
    yield from _check_normalization(context, response, expected, usual.owner)


class _UsualTransform(NamedTuple):
    """The transform that a user's one is compared with.

    Attributes:
        transform: The transform; ``None`` if none is known.
        owner: Whose it is, in words.
        is_guess: True if the model does not tell.
    """

    transform: Transform | None
    owner: str
    is_guess: bool


def _find_usual_transform(context: CheckContext) -> _UsualTransform:
    declared = context.declared or find_transform(context.forward_pass.model)
    if declared is None and _is_imagenet_classifier(context):
        return _UsualTransform(build_default_transform(), "torchvision's usual one", is_guess=True)
    return _UsualTransform(declared, "that of the model", is_guess=False)


def _is_of_caffe(response: ColorResponse) -> bool:
    """Return True for bytes in the order BGR from which a mean is subtracted."""
    span = np.ptp([response.black, response.white])
    return response.is_reversed and bool(span > _CAFFE_SPAN and response.black.min() < 0)


def _check_order(response: ColorResponse, expected: ColorResponse | None, whose: str) -> Iterator[Finding]:
    """Find channels in the order BGR that nothing expects."""
    is_expected = _is_of_caffe(response) if expected is None else expected.is_reversed
    if response.is_reversed and not is_expected:
        yield Finding(
            "channels-swapped",
            "The transform returns blue as the first channel and red as the last (BGR), "
            f"{f'unlike {whose}' if expected else 'and nothing says that the model expects this'}.",
        )


def _measure(
    measure: Callable[[Transform, tuple[int, int]], _Measured], transform: Transform, photo: tuple[int, int]
) -> _Measured:
    """Return a measurement of a transform.

    Raises:
        GeometryError: The measurement or the transform, which is the user's code, failed.
    """

    def build(error: Exception) -> GeometryError:
        name, problem = describe_transform(transform), f"{type(error).__name__}: {error}"
        return GeometryError(f"transform {name} fails on a photo of {photo} that measures it: {problem}")

    with RaiseAs(build, Exception, unless=(CamtoolError,)):
        return measure(transform, photo)


def _check_aspect(geometry: Geometry, declared: Transform | None) -> Iterator[Finding]:
    """Find a transform that changes the aspect of a photo."""
    aspect = _compute_aspect(geometry)
    usual = 1.0 if declared is None else _compute_aspect(_measure(read_geometry, declared, geometry.photo))
    if not 1 / _SQUASHED < aspect / usual < _SQUASHED:
        yield Finding(
            "aspect-changed",
            f"The transform makes the photo {max(aspect, 1 / aspect):.2f} times as {'wide' if aspect > 1 else 'high'}, "
            "relative to its other side.",
            {"scale of the width / scale of the height": aspect},
        )


def _compute_aspect(geometry: Geometry) -> float:
    """Return the scale along the width relative to that along the height."""
    top, left, bottom, right = geometry.box
    return geometry.size[1] / abs(right - left) / (geometry.size[0] / abs(bottom - top))


def _check_normalization(
    context: CheckContext, response: ColorResponse, expected: ColorResponse | None, whose: str
) -> Iterator[Finding]:
    """Find a normalization other than the model's, or none although nothing shows that the model normalizes."""
    if _has_other_head(context.forward_pass.model):
        return
    black, white = response.black, response.white
    text = f"The transform turns black into {_join(black)} and white into {_join(white)}"
    if expected is not None and len(expected.black) == len(black):
        allowed = _SAME_NORMALIZATION * np.abs(expected.white - expected.black).max()
        order = slice(None, None, 1 if response.is_reversed == expected.is_reversed else -1)
        usual_black, usual_white = expected.black[order], expected.white[order]
        if max(np.abs(black - usual_black).max(), np.abs(white - usual_white).max()) > allowed:
            sentence = f"{text}; {whose} turns them into {_join(usual_black)} and {_join(usual_white)}."
            yield Finding("other-normalization", sentence)
    elif np.allclose([black, white], [[0.0], [1.0]], rtol=0, atol=_SAME_NORMALIZATION) and not _normalizes(context):
        yield Finding("unit-range", f"{text}, and nothing shows whether the model expects this.")


def _has_other_head(model: nn.Module) -> bool:
    """Return True for a model of timm with other classes than it was trained on, maybe with another normalization."""
    config = getattr(model, "pretrained_cfg", None)
    classes = config.get("num_classes") if isinstance(config, Mapping) else None
    return classes is not None and classes != getattr(model, "num_classes", classes)


def _join(values: Floats) -> str:
    """Return a number for each channel, or one for all."""
    return ", ".join(dict.fromkeys(f"{value:.3g}" for value in values))


def _is_imagenet_classifier(context: CheckContext) -> bool:
    """Return True for a classifier of torchvision with 1000 classes, whose published weights have one normalization."""
    scores, module = context.class_scores, type(context.forward_pass.model).__module__
    return scores is not None and len(scores) == 1000 and module.startswith("torchvision.models.")


def _normalizes(context: CheckContext) -> bool:
    """Return True if the model holds a mean and a standard deviation for each channel of its input."""
    model, channels = context.forward_pass.model, context.inputs.shape[1]
    names = [name for name, buffer in model.named_buffers() if buffer.numel() == channels]
    has_buffers = any("mean" in name for name in names) and any("std" in name or "var" in name for name in names)
    return has_buffers or any(find_statistics(module) is not None for module in read_tree(model).modules)


def check_channels(context: CheckContext) -> Iterator[Finding]:
    """Find an image whose prediction is much more certain with red and blue exchanged."""
    better = _find_better(context, _exchange_channels(context.inputs, context.item))
    if better is not None:
        yield Finding(
            "channels-swapped",
            f"With red and blue exchanged, the model is much more certain (entropy {better[2]:.0%} of its maximum, not "
            f"{better[1]:.0%}), so the image may be BGR where the model expects RGB, or the reverse.",
            {"entropy": better[1], "entropy if exchanged": better[2]},
        )


def check_color(context: CheckContext) -> Iterator[Finding]:
    """Find an image whose channels are equal; its prediction alone does not show that colors are missing."""
    if context.inputs.ndim != 4 or context.inputs.shape[1] != 3:
        return
    black, white = _find_black_and_white(context.inputs, context.item)
    values = (context.inputs - black) / (white - black)
    is_constant = values.amax() - values.amin() <= _GRAY
    if not is_constant and (values.amax(1) - values.amin(1)).max() <= _GRAY:
        yield Finding("gray-image", "The image is gray: its three channels show the same picture.")


def check_scale(context: CheckContext) -> Iterator[Finding]:
    """Find an image whose prediction is much more certain in another usual range of values."""
    ranges = _list_ranges(context.inputs, context.item)
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


def _exchange_channels(inputs: Tensor, item: PreparedInput) -> Tensor:
    """Return images ``(N, 3, H, W)`` with red and blue exchanged."""
    black, white = _find_black_and_white(inputs, item)
    # The channels are normalized each in its own way, so the colors are exchanged before normalization.
    return black + ((inputs - black) / (white - black)).flip(1) * (white - black)


def _list_ranges(inputs: Tensor, item: PreparedInput) -> dict[str, Tensor]:
    """Return images ``(N, 3, H, W)`` in the usual ranges of values, by name."""
    black, white = _find_black_and_white(inputs, item)
    values = (inputs - black) / (white - black)
    mean, std = (values.new_tensor(statistic).reshape(1, -1, 1, 1) for statistic in IMAGENET)
    ranges = {
        "[0, 1]": values,
        "[-1, 1]": 2 * values - 1,
        "ImageNet's mean and standard deviation": (values - mean) / std,
    }
    # A model that expects normalized values predicts one of a few classes for those up to 255, often with certainty,
    # whatever the image shows. So that range is tried only if the image has not been normalized.
    if float(inputs.min()) >= 0 and float(inputs.max()) <= 1:
        ranges["[0, 255]"] = 255 * values
    return ranges


def _find_black_and_white(inputs: Tensor, item: PreparedInput) -> tuple[Tensor, Tensor]:
    """Return the values of black and white in the input, each ``(1, C, 1, 1)``: known, or guessed from its range."""
    low, high = float(inputs.min()), float(inputs.max())
    is_raw_tensor = not item.is_photo and low >= 0
    if item.black is not None and item.white is not None and not is_raw_tensor:
        return item.black.to(inputs).reshape(1, -1, 1, 1), item.white.to(inputs).reshape(1, -1, 1, 1)
    mean, std = (inputs.new_tensor(statistic).reshape(1, -1, 1, 1) for statistic in IMAGENET)
    if low < 0 and max(-low, high) > 1:
        return -mean / std, (1 - mean) / std
    black = -1.0 if low < 0 else 0.0
    return torch.full_like(mean, black), torch.full_like(mean, 1.0 if high <= 1 else 255.0)


# ------------------------------------------------------------------------------------------------------ a folder


@dataclass
class FolderTrials:
    """Gains in certainty by other channels, orientation or values, over the images of a folder.

    One image seldom tells, as many photos are recognized with wrong colors, too. The mean over many does.

    Attributes:
        gains: What is changed → for each image how far the contrast of the highest score rises by it, see
            ``_MORE_CONTRAST``.
        refused: Changes with which the model cannot run.
        least_gain: Mean gain from which on a change is named.
    """

    gains: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: set[str] = field(default_factory=set)
    least_gain: float = _LEAST_GAIN

    def add(self, inputs: Tensor, item: PreparedInput, score: Callable[[Tensor], Tensor]) -> None:
        """Score images and their variants, until there are enough.

        Args:
            inputs: ``(N, 3, H, W)``, as the model gets them.
            item: One of them, whose normalization holds for all.
            score: Returns class scores ``(N, K)`` of such images. If it raises a ``CamtoolError``, the change is left
                out.
        """
        inputs = inputs[: max(0, _MOST_IMAGES - max(map(len, self.gains.values()), default=0))]
        if not len(inputs) or inputs.ndim != 4 or inputs.shape[1] != len(IMAGENET[0]):
            return
        variants = {"channels-swapped": _exchange_channels(inputs, item), "upside-down": inputs.flip(2, 3)}
        variants |= {f"scale-misfit {name}": values for name, values in _list_ranges(inputs, item).items()}
        try:
            scores = score(inputs)
        except CamtoolError:  # e.g. a model that takes one image at a time
            return
        if scores.shape[1] < _FEWEST_CLASSES:
            return
        self.least_gain = _LEAST_GAIN if scores.shape[1] >= _MANY_CLASSES else _LEAST_GAIN_OF_FEW
        before = _measure_certainty_of_scores(scores).contrast
        for name, images in variants.items():
            if name not in self.refused:
                self._add_gains(name, before, lambda images=images: score(images.to(inputs)))  # type: ignore[misc]

    def _add_gains(self, name: str, before: Tensor, score: Callable[[], Tensor]) -> None:
        """Add the gains of a change, from the contrast before it and the scores after it."""
        try:
            after = _measure_certainty_of_scores(score()).contrast
        except CamtoolError:
            self.refused.add(name)
            self.gains.pop(name, None)  # what is left would be a mean over some of the images
        else:
            self.gains[name] += (after - before).tolist()

    def find_warnings(self) -> Iterator[MapWarning]:
        """Yield a warning for the change after which the images are predicted better, if there is one."""
        errors = {name: _count_standard_errors(gains) for name, gains in self.gains.items()}
        name = max(errors, key=lambda name: errors[name], default="")
        if name and errors[name] > _STANDARD_ERRORS and np.mean(self.gains[name]) > self.least_gain:
            code, _, values = name.partition(" ")
            change = {"channels-swapped": "red and blue exchanged", "upside-down": "the images turned by 180 degrees"}
            yield MapWarning(
                f"Over {len(self.gains[name])} images, the model recognizes more with "
                f"{change.get(code, f'values normalized to {values}')}: the contrast of its highest score rises by "
                f"{np.mean(self.gains[name]):.2f}, {errors[name]:.1f} standard errors.",
                code,
            )


def _count_standard_errors(gains: list[float]) -> float:
    """Return the mean of gains in its standard errors; 0 for few images or equal gains."""
    error = np.std(gains, ddof=1) / len(gains) ** 0.5 if len(gains) >= _FEWEST_IMAGES else 0.0
    return float(np.mean(gains) / error) if error > 0 else 0.0
