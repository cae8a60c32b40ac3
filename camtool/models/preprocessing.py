"""Preprocessing that the user states, or that lies beside a file of weights.

Stated is a function, or size, order of channels, and normalization of the input. Beside weights lies
``preprocessor_config.json`` of Hugging Face, or ``config.json`` of timm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any, cast, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from camtool.arguments.checks import check_choice, check_number
from camtool.arguments.message_parts import format_count
from camtool.arguments.regular_files import read_regular
from camtool.errors import CamtoolError, ModelError, RaiseAs, raise_interrupt
from camtool.geometry.plain_transforms import IMAGENET, Channels, Fit, Preprocessing, Renormalized, count_channels
from camtool.geometry.transform_output import Statistics, Transform, find_statistics, unwrap_image
from camtool.hooks.private_torch import is_convolution
from camtool.models.declared_properties import count_input_channels, find_input_size, find_transform
from camtool.models.loaded import Loaded
from camtool.models.sources.hugging_face import read_processor
from camtool.models.sources.source import describe_errors, get_first_line
from camtool.models.sources.timm import build_configured_transform
from camtool.models.sources.torchvision import build_default_transform
from camtool.models.user_code import load_transform
from camtool.models.vision_language import takes_image_and_text
from camtool.warning_codes import MapWarning

# Size (W, H) of the gray photo with which a transform is tried: neither square nor of a usual input size.
_TRIAL_PHOTO = (320, 256)

_HUGGING_FACE, _TIMM = "preprocessor_config.json", "config.json"
# Bytes of a file of settings; they have a few thousand.
_MAX_BYTES = 2**24

# The arguments of :func:`preprocessing`.
STATED = ("size", "fit", "channels", "mean", "std")

# Sizes (W, H) of the photos with which two transforms are compared.
_COMPARED_PHOTOS = (320, 256), (200, 300)


@dataclass(frozen=True)
class StatedPreprocessing:
    """The preprocessing that the user stated; None where the model's own counts. It is picklable.

    Attributes:
        transform: ``"package.module:function"``, the whole preprocessing.
        size: Height and width of the input.
        mean: Mean of each channel, or one for all. On the scale from 0 to 255 if a number is greater than 1.
        std: Standard deviation, on the scale of ``mean``. Both are given, or neither.
        channels: The order of the channels, RGB by default.
        fit: As :attr:`Preprocessing.fit`; None for that of the model's own transform, or the crop.
    """

    transform: str | None = None
    size: tuple[int, int] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    channels: Channels | None = None
    fit: Fit | None = None

    @property
    def is_empty(self) -> bool:
        """True if the user stated nothing."""
        return self == StatedPreprocessing()

    def build_alone(self) -> Transform | None:
        """Return the transform if the user stated all of it; None if the model's own is needed, too.

        Raises:
            ModelError: There is no such function, or the values contradict each other.
        """
        if self.transform is not None:
            return load_transform(self.transform)
        return None if self.size is None or self.mean is None else self.build(None)

    def build(self, base: Transform | None, default_size: tuple[int, int] = (224, 224)) -> Transform:
        """Build a transform from what the user stated; the model's own transform decides the rest.

        Args:
            base: The transform that belongs to the model; None if it has none.
            default_size: The size if neither the user nor ``base`` says it.

        Raises:
            ModelError: The values contradict each other or the model's transform.
        """
        statistics, size = None if base is None else find_statistics(base), self.size
        order = self.channels or _choose_channels(statistics)
        if base is not None and size is None:
            if self.fit is None:
                return self._renormalize(base, statistics, order)
            size = _find_made_size(base)
        stated = _state_statistics(self.mean, self.std, order)
        notes = _describe_assumed(size, default_size, has_statistics=bool(stated or statistics))
        mean, std = stated or _convert_statistics(statistics or IMAGENET, order)
        return Preprocessing(size or default_size, tuple(mean), tuple(std), order, notes, self.fit or "crop")

    def _renormalize(self, base: Transform, statistics: Statistics | None, order: Channels) -> Transform:
        if statistics is None:
            raise ModelError(
                "the model has a preprocessing of its own, whose normalization is unknown, so mean, std and channels "
                "cannot change it; give the size too (--size), or a whole transform (--transform)."
            )
        if len(statistics[0]) == 1 and order != "gray":
            raise ModelError(f"channels {order!r}: the model's own preprocessing makes gray inputs; give the size too.")
        mean, std = _state_statistics(self.mean, self.std, order) or _convert_statistics(statistics, order)
        if len(statistics[0]) == 1:
            order = "rgb"  # nothing is left to convert
        return Renormalized(base, tuple(mean), tuple(std), order)

    def complete(self, loaded: Loaded) -> Loaded:
        """Return a model with its own preprocessing completed or changed by what the user stated.

        Raises:
            ModelError: The model cannot take what the transform makes.
        """
        if self.is_empty:
            return loaded
        if self.transform is not None:  # it is not tried: it may fail on anything but a real photo
            return replace(loaded, transform=load_transform(self.transform))
        is_gray = self.channels is None and count_input_channels(loaded.model) == 1
        base = loaded.transform or find_transform(loaded.model)
        stated = replace(self, channels="gray") if is_gray else self
        transform = stated.build(base, self.size or find_input_size(loaded.model))
        check_fits_model(loaded.model, transform, "the preprocessing of --size, --fit, --mean, --std, --channels")
        return replace(loaded, transform=transform)


def preprocessing(
    size: int | Sequence[int],
    *,
    channels: Channels = "rgb",
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    fit: Fit = "crop",
) -> Preprocessing:
    """Return the transform for a model of one's own, which says what the model was trained with.

        prepare = camtool.preprocessing(size=28, channels="gray", mean=0.1307, std=0.3081)
        camtool.explain(lenet, "digit.png", transform=prepare)

    The photo is scaled until it covers the size, and its center is cropped; ``fit`` keeps what lies at the edge. For
    any other preparation, pass the function of the training as ``transform``.

    Args:
        size: Side of the model's input in pixels, or its height and width.
        channels: ``"rgb"``, ``"bgr"`` as in OpenCV, or ``"gray"``, which is one channel.
        mean: Mean of the training images, of each channel or one for all, of values in [0, 1]; on the scale from 0 to
            255 if a number is greater than 1. Without mean and std, those of ImageNet are assumed, and each explanation
            has a warning that says so. For plain values in [0, 1] give ``mean=0, std=1``.
        std: Standard deviation, on the scale of ``mean``.
        fit: ``"crop"``; ``"stretch"`` distorts the whole photo to the size; ``"pad"`` keeps its proportions and adds
            black bars. Take what the model was trained with.

    Raises:
        ModelError: A value is of another kind, or the values contradict each other.
    """
    check_choice("channels", channels, get_args(Channels), error=ModelError)
    sides = tuple(size) if isinstance(size, Iterable) else (size, size)
    if len(sides) != 2:
        raise ModelError(f"size must be a side or (height, width), got {size!r}.")
    means, stds = (None if statistic is None else np.ravel(statistic).tolist() for statistic in (mean, std))
    built = StatedPreprocessing(None, sides, means, stds, channels, fit).build(None)
    return cast("Preprocessing", built)


def _find_made_size(base: Transform) -> tuple[int, int]:
    """Return the size (h, w) of what a transform makes of any photo.

    Raises:
        ModelError: It makes several sizes.
    """
    photos = (Image.new("RGB", size, "gray") for size in _COMPARED_PHOTOS)
    sizes = {tuple(torch.as_tensor(unwrap_image(base(photo))).shape[-2:]) for photo in photos}
    if len(sizes) > 1:
        raise ModelError("fit: the model's preprocessing makes inputs of several sizes; give the size too (--size).")
    return cast("tuple[int, int]", sizes.pop())


def _state_statistics(mean: Sequence[float] | None, std: Sequence[float] | None, order: Channels) -> Statistics | None:
    """Return the user's mean and std for each channel, of values in [0, 1]; None if there are none."""
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise ModelError("mean and std belong together; give both (--mean and --std).")
    mean, std = scale_statistics(mean, std)
    count = count_channels(order)
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, count):
            raise ModelError(
                f"{name} has {format_count(len(numbers), 'number')}, but channels {order!r} need {count}, or 1 for all."
            )
    return [*mean] * (count if len(mean) == 1 else 1), [*std] * (count if len(std) == 1 else 1)


def scale_statistics(mean: Sequence[float], std: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return mean and std of values in [0, 1]. They are on the scale from 0 to 255 if a number is greater than 1.

    Raises:
        ModelError: A number is not finite, std is not positive, or the two are on different scales.
    """
    for name, numbers in (("mean", mean), ("std", std)):
        for number in numbers:
            check_number(f"each of {name}", number, above=0 if name == "std" else None, error=ModelError)
    if max(*mean, *std) <= 1:
        return [*mean], [*std]
    has_byte_mean = max(mean) > 1 or not any(mean)
    if not has_byte_mean or min(std) < 1:
        raise ModelError(
            f"mean {_join(mean)} and std {_join(std)} are on different scales; give both for values in [0, 1], e.g. "
            "0.485 and 0.229, or both for values from 0 to 255, e.g. 123.675 and 58.395."
        )
    return [number / 255 for number in mean], [number / 255 for number in std]


def _choose_channels(statistics: Statistics | None) -> Channels:
    return "gray" if statistics and len(statistics[0]) == 1 else "rgb"


def _convert_statistics(statistics: Statistics, order: Channels) -> Statistics:
    """Return RGB statistics for another order of channels; for gray their means, as for the default transform."""
    if len(statistics[0]) == count_channels(order):
        return statistics if order != "bgr" else (statistics[0][::-1], statistics[1][::-1])
    mean, std = (sum(numbers) / len(numbers) for numbers in statistics)
    count = count_channels(order)
    return [mean] * count, [std] * count


def _describe_assumed(
    size: tuple[int, int] | None, default: tuple[int, int], *, has_statistics: bool
) -> tuple[MapWarning, ...]:
    """Return a sentence about what neither the user nor the model said, and was assumed: the size or the statistics."""
    if not has_statistics:
        text = "No mean and std of the model's input were given, so those of ImageNet were assumed; give mean and std."
    elif size is None:
        text = f"No size of the model's input was given, so {default[0]} x {default[1]} was assumed; give the size."
    else:
        return ()
    return (MapWarning(text, "assumed-transform"),)


def suggest_preprocessing(options: Mapping[str, Any], model: nn.Module | None) -> str:
    """Return how to state what is given of a size, channels and the like, which are no options of a method."""
    stated = {"size": "..."} | {name: repr(value) for name, value in options.items() if name in STATED}
    if model is not None and count_input_channels(model) == 1:
        stated.setdefault("channels", '"gray"')
    return f"transform=camtool.preprocessing({', '.join(f'{name}={value}' for name, value in stated.items())})"


def check_fits_model(model: nn.Module, transform: Transform, origin: str) -> None:
    """Check that a model runs on what a transform makes of a photo, by one forward pass.

    Args:
        model: The model, in evaluation mode.
        transform: The transform.
        origin: Where it comes from, for the message, e.g. the path of a file.

    Raises:
        ModelError: The transform fails, it makes another number of channels than the model takes, or the model fails on
            its input.
    """
    made = _try_transform(transform, origin)
    first = next((module for module in model.modules() if is_convolution(module)), None)
    if first is not None and len(first.kernel_size) == 2 and first.in_channels != len(made):
        raise ModelError(
            f"{origin} makes inputs of {format_count(len(made), 'channel')}, but the model's first convolution takes "
            f"{first.in_channels}; give another preprocessing with --channels and --mean, or --transform."
        )
    if takes_image_and_text(model):
        return  # a photo alone is no input of it
    _try_model(model, made, origin)


def _try_transform(transform: Transform, origin: str) -> Tensor:
    with RaiseAs(lambda error: ModelError(f"{origin} fails on a photo: {get_first_line(error)}."), Exception):
        return torch.as_tensor(unwrap_image(transform(Image.new("RGB", _TRIAL_PHOTO, "gray"))))


def _try_model(model: nn.Module, made: Tensor, origin: str) -> None:
    weight = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), made)
    try:
        with torch.no_grad():
            model(made[None].to(weight.device, weight.dtype))
    except Exception as error:
        raise_interrupt(error)
        shape = " x ".join(map(str, made.shape))
        raise ModelError(
            f"{origin} makes inputs of {shape} (channels x height x width), on which the model fails: "
            f"{get_first_line(error)}. Give another size with --size."
        ) from error


def _join(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def build_assumed_transform(size: tuple[int, int] | None, *, is_gray: bool) -> Transform:
    """Return the preprocessing of a bare model that declares none.

    Args:
        size: The size (H, W) on which the model runs. ``None`` for the preprocessing of torchvision's classifiers.
        is_gray: Make one channel.
    """
    if size is None:
        return build_default_transform(is_gray=is_gray)
    return preprocessing(size, channels="gray" if is_gray else "rgb")


def read_transform_beside(weights: str | PathLike[str]) -> tuple[Transform, Path] | None:
    """Return the transform that a file in the folder of a weights file describes, and the file; None without one.

    No code in the folder is run, and nothing is downloaded.

    Raises:
        ModelError: The file is damaged, the library that reads it is missing, or two files disagree.
    """
    folder = Path(weights).parent
    timm = _read_timm(folder)
    pairs = [pair for pair in (_read_hugging_face(folder, is_alone=timm is not None), timm) if pair is not None]
    if len(pairs) == 2 and not _agree(pairs[0][0], pairs[1][0]):
        raise ModelError(
            f"{pairs[0][1]} and {pairs[1][1]} describe different preprocessing; remove the one that does not belong to "
            "the weights, or state the preprocessing: --size, --mean and --std, or --transform."
        )
    return pairs[0] if pairs else None


def _read_hugging_face(folder: Path, *, is_alone: bool) -> tuple[Transform, Path] | None:
    """Return the transform of Hugging Face's file; ``is_alone`` if the folder's ``config.json`` is not its."""
    path = folder / _HUGGING_FACE
    if not path.is_file():
        return None
    _read_json(path)
    if not is_alone:
        return read_processor(path), path
    # transformers would prefer timm's settings in config.json.
    with TemporaryDirectory(prefix="camtool-") as copies:
        return read_processor(Path(copy(path, copies))), path


def _read_timm(folder: Path) -> tuple[Transform, Path] | None:
    path = folder / _TIMM
    # Hugging Face's own config.json has no such entry.
    settings = _read_json(path).get("pretrained_cfg") if path.is_file() else None
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise ModelError(f"{path}: 'pretrained_cfg' is a {type(settings).__name__}; it must be an object of JSON.")
    return build_configured_transform(settings, path), path


def _read_json(path: Path) -> dict[str, Any]:
    is_damaged = describe_errors(f"{path} cannot be read", OSError, ValueError, RecursionError)
    with is_damaged, RaiseAs(lambda error: ModelError(str(error)), CamtoolError):
        content = json.loads(read_regular(path, _MAX_BYTES).decode("utf-8-sig"))
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a JSON {type(content).__name__}, not an object with settings.")
    return content


def _agree(first: Transform, second: Transform) -> bool:
    """Return True if two transforms make inputs of one size and one normalization of the same photos."""
    for size in _COMPARED_PHOTOS:
        photo = Image.linear_gradient("L").resize(size).convert("RGB")
        mine, theirs = (torch.as_tensor(unwrap_image(transform(photo))) for transform in (first, second))
        # Their resampling may differ by a few levels.
        if mine.shape != theirs.shape or (mine - theirs).abs().max() > 0.1:
            return False
    return True
