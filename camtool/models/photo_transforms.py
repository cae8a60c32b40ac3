"""Transforms from a photo to the input of a model, as a size, an order of channels and a normalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from camtool.arguments.checks import check_choice, check_count, check_number
from camtool.arguments.messages import format_count
from camtool.errors import ModelError
from camtool.geometry.transform_output import Transform, find_statistics, unwrap_image
from camtool.warning_codes import MapWarning

# Order of the channels that a model takes; ``"gray"`` is one channel.
Channels: TypeAlias = Literal["rgb", "bgr", "gray"]

# How a photo with another aspect ratio is resized: cropped at the longer side, distorted, or padded with black.
Fit: TypeAlias = Literal["crop", "stretch", "pad"]

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Share of red, green and blue in a gray value, as in PIL's mode L (ITU-R 601-2).
_GRAY_WEIGHTS = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Preprocessing:
    """A transform from a PIL image to a tensor ``(C, h, w)``, made of a size, an order of channels and a normalization.

    The photo is scaled (bilinear, antialiased) until it covers the size, and its center is cropped; or as ``fit`` says.
    A photo of the size itself stays as it is.

    Attributes:
        size: Height and width of the input in pixels.
        mean: What is subtracted from values in [0, 1], for each channel of the input in its order.
        std: What the values are then divided by.
        channels: The order of the channels.
        notes: What the user should know about the preprocessing, one sentence each.
        fit: How a photo with another aspect ratio is resized, see :data:`Fit`.
    """

    size: tuple[int, int]
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]
    channels: Channels = "rgb"
    notes: tuple[MapWarning, ...] = ()
    fit: Fit = "crop"

    def __post_init__(self) -> None:
        """Check the values."""
        for side in self.size:
            check_count("each side of size", side, error=ModelError)
        object.__setattr__(self, "size", tuple(map(int, self.size)))
        check_choice("channels", self.channels, get_args(Channels), error=ModelError)
        check_choice("fit", self.fit, get_args(Fit), error=ModelError)
        for number in self.mean:
            check_number("each of mean", number, error=ModelError)
        for number in self.std:
            check_number("each of std", number, above=0, error=ModelError)
        count = count_channels(self.channels)
        if (len(self.mean), len(self.std)) != (count, count):
            raise ModelError(
                f"mean has {format_count(len(self.mean), 'number')} and std {len(self.std)}; channels "
                f"{self.channels!r} need {count} each."
            )

    def __call__(self, photo: Image.Image) -> Tensor:
        """Return the input ``(C, h, w)``."""
        mode = "L" if self.channels == "gray" else "RGB"
        image = photo if photo.mode == mode else photo.convert(mode)
        scaled = self.compute_scaled_size(image.height, image.width)
        if scaled != (image.height, image.width):
            image = image.resize(scaled[::-1], Image.Resampling.BILINEAR)
        # As torchvision's CenterCrop: half pixels of a crop are rounded to even, and the first bar is the narrower one.
        top, left = (
            round((have - want) / 2) if have > want else -((want - have) // 2)
            for have, want in zip(scaled, self.size, strict=True)
        )
        pixels = np.array(image.crop((left, top, left + self.size[1], top + self.size[0])))
        values = torch.from_numpy(pixels.reshape(*self.size, -1)).permute(2, 0, 1).float() / 255
        return _normalize(values, self)

    def compute_scaled_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size (h, w) that a photo is scaled to before the center is cropped, or bars are added."""
        if self.fit == "stretch":
            return self.size
        rows, columns = self.size
        if self.fit == "pad":
            scale = min(rows / height, columns / width)
            return max(1, min(rows, round(height * scale))), max(1, min(columns, round(width * scale)))
        # As torchvision's Resize, which cuts off the fraction of the longer side.
        if rows * width >= columns * height:
            return rows, rows * width // height
        return columns * height // width, columns


@dataclass(frozen=True)
class Renormalized:
    """Another transform with the user's own normalization or order of channels.

    Attributes:
        base: A transform to RGB; it decides size and crop.
        mean: What is subtracted from values in [0, 1], for each channel of the input in its order.
        std: What the values are then divided by.
        channels: The order of the channels.
    """

    base: Transform
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: Channels = "rgb"

    def __call__(self, photo: Image.Image) -> Tensor:
        """Return the input ``(C, h, w)``."""
        mean, std = find_statistics(self.base) or ((), ())
        output = torch.as_tensor(unwrap_image(self.base(photo)))
        values = output * _to_column(std, output) + _to_column(mean, output)
        if self.channels == "gray":
            values = (values * _to_column(_GRAY_WEIGHTS, values)).sum(0, keepdim=True)
        return _normalize(values, self)


def count_channels(order: Channels) -> int:
    """Return the number of channels in an order."""
    return 1 if order == "gray" else 3


def _normalize(values: Tensor, stated: Preprocessing | Renormalized) -> Tensor:
    values = values.flip(0) if stated.channels == "bgr" else values
    return (values - _to_column(stated.mean, values)) / _to_column(stated.std, values)


def _to_column(numbers: Sequence[float], like: Tensor) -> Tensor:
    return like.new_tensor(numbers)[:, None, None]
