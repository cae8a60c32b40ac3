"""Transforms that resize, crop and normalize and do nothing else, as numbers that other programs can repeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from camtool.arguments.checks import check_choice, check_count, check_number
from camtool.arguments.message_parts import format_count
from camtool.errors import CamtoolError, ModelError
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import Transform, find_statistics, unwrap_image
from camtool.warning_codes import MapWarning

# Order of the channels that a model takes; ``"gray"`` is one channel.
Channels: TypeAlias = Literal["rgb", "bgr", "gray"]

# How a photo with another aspect ratio is resized: cropped at the longer side, distorted, or padded with black.
Fit: TypeAlias = Literal["crop", "stretch", "pad"]

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Share of red, green and blue in a gray value, as in PIL's mode L (ITU-R 601-2).
_GRAY_WEIGHTS = (0.299, 0.587, 0.114)

_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Heights and widths of the photos that a transform is tried on: wide, high, and smaller than most inputs.
_PHOTOS = ((300, 400), (517, 263), (64, 90))

# Of an input, in pixels: more fills the memory of a browser, and 20,000 takes 1.6 GB.
_LARGEST_SIDE = 4096

# Of a standard deviation, as float32 takes smaller ones for 0; its inverse is the largest number.
_SMALLEST = 1e-30

# Largest difference in units of the input, where a gray level is 0.004 or more.
_INPUT_ROUNDING = 1e-4


@dataclass(frozen=True)
class PlainTransform:
    """A transform as numbers.

    Attributes:
        shorter_side: Length of the photo's shorter side after resizing; None for another rule.
        resized: Size ``(h, w)`` of all photos after resizing; None for another rule.
        crop: Size ``(h, w)`` of the part from the middle; where the photo is smaller, black is added.
        interpolation: Pillow's filter: ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
        mean: What is subtracted from the channels, which are in [0, 1].
        std: What they are divided by then.
    """

    shorter_side: int | None
    resized: tuple[int, int] | None
    crop: tuple[int, int]
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlainTransform:
        """Return the transform with the values that :meth:`to_dict` returned, also after they were JSON.

        Raises:
            ModelError: A value has another type or is out of its range; a file may come from anybody.
        """
        if not isinstance(values, Mapping) or (values.get("shorter_side") is values.get("resized") is None):
            raise ModelError(f"the preparation must have a shorter_side or a resized size, got {str(values)[:60]}.")
        # The page that explains a model in the browser has the same rules, in camtool.js.
        given: dict[str, Any] = {each.name: values.get(each.name) for each in fields(cls)}
        if given["shorter_side"] is not None:
            _check_values("shorter_side", [given["shorter_side"]], 1, _SIDES)
        if given["resized"] is not None:
            _check_values("resized", given["resized"], 2, _SIDES)
        _check_values("crop", given["crop"], 2, _SIDES)
        _check_values("mean", given["mean"], 3, "numbers")
        _check_values("std", given["std"], 3, "numbers above 0")
        check_choice("preparation.interpolation", given["interpolation"], _FILTERS, error=ModelError)
        given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, as JSON takes them."""
        return asdict(self)

    def resize(self, geometry: Geometry) -> Geometry:
        """Return the geometry of a photo after it is resized."""
        return geometry.resize(self.resized or self.shorter_side)

    def __call__(self, photo: Image.Image) -> Tensor:
        """Return the input ``(3, h, w)`` of a photo in RGB, float32."""
        whole = Geometry.whole(photo.height, photo.width)
        geometry = self.resize(whole)
        height, width = geometry.size
        resized = photo.resize((width, height), _FILTERS[self.interpolation])
        edges = zip(geometry.center_crop(self.crop).box[:2], whole.size, geometry.size, strict=True)
        top, left = (round(edge / length * pixels) for edge, length, pixels in edges)
        pixels = np.asarray(resized.crop((left, top, left + self.crop[1], top + self.crop[0])), np.float32) / 255
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1)))


_SIDES = f"sides in whole pixels from 1 to {_LARGEST_SIDE}"
# Kind of values → their types, the smallest and the largest one.
_RANGES: dict[str, tuple[tuple[type, ...], float, float]] = {
    _SIDES: ((int,), 1, _LARGEST_SIDE),
    "numbers": ((int, float), -1 / _SMALLEST, 1 / _SMALLEST),
    "numbers above 0": ((int, float), _SMALLEST, 1 / _SMALLEST),
}


def _check_values(name: str, values: Any, count: int, kind: str) -> None:
    types, least, most = _RANGES[kind]
    is_list = isinstance(values, (list, tuple)) and len(values) == count
    if not is_list or not all(type(value) in types and least <= value <= most for value in values):
        raise ModelError(f"preparation.{name} must be {count} {kind}, got {str(values)[:60]}.")


def find_plain_transform(transform: Transform) -> PlainTransform | None:
    """Return a transform as numbers; None if it does more, as photos show on which both are compared."""
    try:
        return next((plain for plain in _list_guesses(transform) if _equals(plain, transform)), None)
    except CamtoolError:  # e.g. a transform that crops at random
        return None


def _list_guesses(transform: Transform) -> Iterator[PlainTransform]:
    height, width = _PHOTOS[0]
    geometry = read_geometry(transform, (height, width))
    statistics = find_statistics(transform) or ([0.0] * 3, [1.0] * 3)
    mean, std = (tuple(float(value) for value in (values * 3)[:3]) for values in map(list, statistics))
    top, left, bottom, right = geometry.box
    sees_all = max(abs(top), abs(left), abs(bottom - height), abs(right - width)) < 1e-6
    side = None if sees_all else round(geometry.size[0] / (bottom - top) * min(height, width))
    resized = geometry.size if sees_all else None
    for name in _FILTERS:
        yield PlainTransform(side, resized, geometry.size, name, mean, std)


def _equals(plain: PlainTransform, transform: Transform) -> bool:
    """Return True if both make the same of several photos, up to rounding."""
    random = np.random.default_rng(0)
    for height, width in _PHOTOS:
        # Noise shows each weight of the interpolation.
        photo = Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))
        output: Any = unwrap_image(transform(photo))
        values, expected = np.asarray(output, np.float32), plain(photo).numpy()
        if values.shape != expected.shape or not np.abs(values - expected).max() <= _INPUT_ROUNDING:
            return False
    return True


# ------------------------------------------------------------------------------------- transforms that a user states


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
