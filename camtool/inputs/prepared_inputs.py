"""Prepared inputs, the warnings about their values, their pixels for the user, and batches for one forward pass.

Models of many bands or of volumes get the values of a file as a tensor, instead of a photo of 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from camtool.arguments.message_parts import format_count
from camtool.errors import GeometryError, ImageError, raise_interrupt
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import Statistics, Transform, find_statistics, unwrap_image
from camtool.hooks.private_torch import get_storage_id
from camtool.hooks.structures import nested_tensors
from camtool.inputs.accepted_inputs import DataKind, infer_kind, list_channels
from camtool.inputs.formats.contrast import find_range
from camtool.inputs.formats.file_image import FileImage
from camtool.outputs.class_scores import UserScore
from camtool.rendering import overlay
from camtool.rendering.views import Clip, Photo, Signal, View, Volume
from camtool.warning_codes import MapWarning


@dataclass(frozen=True, eq=False, repr=False)
class PreparedInput:
    """One image, signal, volume or clip as the model receives it.

    Attributes:
        tensor: ``(C, *size)``, the model's input, on the model's device.
        view: The input as pixels, and the placement of maps on it.
        notes: What the user should know about the preparation, one sentence each.
        black: ``(C,)``, the value of a black pixel in ``tensor``; ``None`` if the normalization is unknown.
        white: ``(C,)``, the value of a white pixel.
        is_photo: True if the transform made ``tensor`` from ``photo``, and would make it again.
    """

    tensor: Tensor
    view: View
    notes: tuple[MapWarning, ...] = ()
    black: Tensor | None = None
    white: Tensor | None = None
    is_photo: bool = False

    def __repr__(self) -> str:
        noted = f", {format_count(len(self.notes), 'note')}" if self.notes else ""
        return f"<PreparedInput {tuple(self.tensor.shape)}{noted}>"

    @property
    def photo(self) -> NDArray[np.uint8]:
        """``(H, W, 3)`` uint8, the pixels of an image."""
        return self.view.photo

    @property
    def geometry(self) -> Geometry:
        """The crop and resize that made the tensor from the image.

        Raises:
            ImageError: The input is no image.
        """
        if self.view.geometry is None:
            raise ImageError(f"img: this function takes images; a {self.view.kind} came.")
        return self.view.geometry


@dataclass(frozen=True, eq=False)
class InputBatch:
    """Inputs for one forward pass.

    Attributes:
        items: One or more, of one data kind and one shape.
        inputs: What the model is called with: a tensor ``(N, C, *size)``, or a mapping whose first entry it is.
        call_index: The call of the layers that is explained; ``None`` if the user left it open.
        score: The score that the layers must influence; ``None`` for the model's top score.
    """

    items: Sequence[PreparedInput]
    inputs: nested_tensors.ModelInputs
    call_index: int | None = None
    score: UserScore | None = None

    @classmethod
    def from_prepared(
        cls, items: Sequence[PreparedInput], call_index: int | None = None, score: UserScore | None = None
    ) -> InputBatch:
        """Return a batch of inputs for a model that takes one tensor."""
        if len(items) == 1:
            return cls(items, items[0].tensor[None], call_index, score)  # a view: a single input is not copied
        return cls(items, _stack([item.tensor for item in items]), call_index, score)

    def split(self, size: int) -> Iterator[InputBatch]:
        """Yield batches of at most ``size`` items, in order."""
        for start in range(0, len(self.items), size):
            yield self.select(slice(start, start + size))

    def select(self, part: slice) -> InputBatch:
        """Return a part of the batch."""
        inputs = nested_tensors.map_batch(self.inputs, lambda tensor: tensor[part])
        return InputBatch(self.items[part], inputs, self.call_index, self.score)


def group_into_batches(items: Iterable[PreparedInput], size: int) -> Iterator[list[PreparedInput]]:
    """Yield runs of at most ``size`` inputs that one tensor can hold, in order."""
    # All items of a batch share one value of black in a forward pass, so all have it or none.
    for _, alike in groupby(items, key=lambda item: (item.tensor.shape, item.tensor.dtype, item.black is None)):
        while batch := [*islice(alike, size)]:
            yield batch


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return two prepared inputs or more as a batch."""
    whole = _find_whole(tensors)
    if whole is not None:
        return whole
    if any(tensor.device.type != "cpu" or tensor.dtype == torch.bfloat16 or tensor.requires_grad for tensor in tensors):
        return torch.stack(list(tensors))
    # Numpy copies, as torch would use all cores: its threads go on to wait for work for some milliseconds, and would
    # take the cores from an engine. Torch makes the memory, which is aligned as its kernels like it.
    batch = torch.empty(len(tensors), *tensors[0].shape, dtype=tensors[0].dtype, device="cpu")
    np.stack([tensor.numpy() for tensor in tensors], out=batch.numpy())
    return batch


def _find_whole(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the batch that tensors of one shape are the entries of, in order, so that it need not be copied."""
    first, second = tensors[0], tensors[1]
    step = second.storage_offset() - first.storage_offset()
    memory = get_storage_id(first)
    if memory is None or step < first.numel() or any(tensor.requires_grad for tensor in tensors):
        return None
    for index, tensor in enumerate(tensors):
        offset = first.storage_offset() + index * step
        if (get_storage_id(tensor), tensor.storage_offset(), tensor.stride()) != (memory, offset, first.stride()):
            return None
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))


# ---------------------------------------------------------- the values of an input

# A smaller share of the image than this is worth a warning. Center crops keep 57 % of an image of 4:3, 43 % of 16:9,
# 27 % of 14:5 and 10 % of 15:2: common photos pass, panoramas do not.
_SMALL_SHARE = 1 / 4

# The highest level that values of 12 bits or fewer reach in a file of 16 bits: 2 ** 12 / 2 ** 16 of 256 levels.
_DARK = 16

# Normalized colors stay far below the first; the brightest byte of an image hardly ever does. One channel may hold
# something else, e.g. a depth, so it takes more.
_BRIGHT, _BRIGHT_GRAY = 20, 64

# Largest magnitude of normalized values. The usual normalizations reach 3, and one for each image 8 if few of its
# pixels are bright; ImageNet's, applied twice, reaches from -11 to 10.
_NORMALIZED_LIMIT = 8

# An image that is normalized twice has lower values (56 photos of 56). A small standard deviation makes bright pixels
# as large, but black only minus the mean in standard deviations.
_DARK_LIMIT = -3

# Largest magnitude of bytes, also of those from which a mean was subtracted.
_BYTE_LIMIT = 255

# The precision of float16 near 1.
_FLOAT16_ROUNDING = 1e-3

_CONSTANT = "The input is the same everywhere, so there is nothing that the model could have looked at; check the file."


@dataclass(frozen=True)
class ValueRange:
    """The range of the values of an input.

    Attributes:
        channels: The number of planes.
        lowest: The lowest value; NaN if a value is NaN.
        highest: The highest value; NaN if a value is NaN.
        is_constant: True if each plane has a single value.
        is_unit: True if the values are in [0, 1], up to rounding.
        is_byte: True if the values are the bytes of an image rather than normalized values.
        is_large: True if a value is larger than the usual normalizations make it.
    """

    channels: int
    lowest: float
    highest: float
    is_constant: bool
    is_unit: bool
    is_byte: bool
    is_large: bool

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> ValueRange:
        """Find the range of a floating tensor ``(C, *size)``."""
        planes = tensor.detach().flatten(1)
        if planes.device.type == "cpu" and planes.dtype in (torch.float32, torch.float64):
            # Torch would divide this among threads, which then wait for more work and keep the cores from an engine for
            # longer than a small model runs.
            arrays = planes.numpy()
            low, high = arrays.min(1), arrays.max(1)
        else:
            # Reducing each plane by itself takes a sixth of the time of torch.aminmax over all of them.
            low, high = np.array(planes.amin(1).tolist()), np.array(planes.amax(1).tolist())
        lowest, highest, is_constant = float(low.min()), float(high.max()), bool((low == high).all())
        is_unit = lowest >= -_FLOAT16_ROUNDING and highest <= 1 + _FLOAT16_ROUNDING
        bright = _BRIGHT if len(planes) == 3 else _BRIGHT_GRAY
        is_byte = lowest >= -_FLOAT16_ROUNDING and bright < highest <= 255 + _FLOAT16_ROUNDING
        is_large = max(-lowest, highest) > _NORMALIZED_LIMIT
        return cls(len(planes), lowest, highest, is_constant, is_unit, is_byte, is_large)


def find_image_warnings(image: Image.Image, geometry: Geometry) -> Iterator[MapWarning]:
    """Yield warnings about an image, or about the part of it that the model sees, one sentence each."""
    lowest, highest = np.transpose(image.getextrema())
    brightest = highest.max()
    if (lowest == highest).all():
        yield MapWarning(_CONSTANT, "constant-image")
    elif brightest <= _DARK:
        yield MapWarning(
            f"The photo is nearly black (its brightest value is {brightest} of 255); if its file holds fewer bits than "
            "it has space for, read it with camtool.open_image(path, percentiles=(2, 98)), on the command line with "
            "--percentiles 2,98, or give an array of floats in [0, 1].",
            "dark-image",
        )
    share = _compute_seen_share(geometry)
    if share < _SMALL_SHARE:
        yield MapWarning(
            f"The model saw only {share:.0%} of the photo, as its preparation cuts the rest off; to show it all, pass "
            "transform= (--transform) with a resize to the input's size, e.g. Resize((224, 224)), instead of the crop.",
            "small-part-seen",
        )


def find_tensor_warnings(
    value_range: ValueRange, black: Tensor | None, white: Tensor | None, kind: DataKind
) -> Iterator[MapWarning]:
    """Yield warnings about a prepared input, one sentence each.

    Args:
        value_range: The range of its values.
        black: ``(C,)``, the value of a black pixel; ``None`` if the normalization is unknown.
        white: ``(C,)``, the value of a white one.
        kind: What the input is. Only images and clips are expected in a range of photos.
    """
    if value_range.is_constant:
        yield MapWarning(_CONSTANT, "constant-image")
    elif value_range.is_unit and black is not None and float(black.max()) < 0:
        yield MapWarning(
            "The input's values are in [0, 1], but the model's preparation normalizes them; do that too, or give the "
            "photo instead of a tensor.",
            "not-normalized",
        )
    elif value_range.is_large and kind in ("image", "clip"):
        yield from find_range_warnings(value_range, black, white)


def find_range_warnings(value_range: ValueRange, black: Tensor | None, white: Tensor | None) -> Iterator[MapWarning]:
    """Yield a warning about gray or RGB values that no usual normalization makes; see :func:`find_tensor_warnings`."""
    lowest, highest = value_range.lowest, value_range.highest
    size, text = max(-lowest, highest), f"The input's values range from {lowest:g} to {highest:g}"
    if value_range.channels not in (1, 3) or _fits_normalization(value_range, black, white):
        return
    if value_range.is_byte:
        yield MapWarning(
            f"{text}, like the bytes of a photo; unless the model scales them itself, divide by 255 and normalize as "
            "in training, or give the photo as uint8.",
            "byte-range",
        )
    # Bytes minus a mean, as Caffe's models take them, lie between the two limits.
    elif value_range.channels == 3 and (
        size > _BYTE_LIMIT + _FLOAT16_ROUNDING or (lowest < _DARK_LIMIT and _NORMALIZED_LIMIT < size <= _BRIGHT)
    ):
        question = "Were they normalized twice, or normalized without a division by 255 before?"
        yield MapWarning(f"{text}. {question}", "unusual-range")


def _fits_normalization(value_range: ValueRange, black: Tensor | None, white: Tensor | None) -> bool:
    """Return True if all values are near those between black and white."""
    if black is None or white is None:
        return False
    margin = float(white.max() - black.min()) / 2
    return value_range.lowest >= float(black.min()) - margin and value_range.highest <= float(white.max()) + margin


def to_image_array(tensor: Tensor) -> NDArray[Any]:
    """Return an image in a tensor, ``(H, W)`` or ``(C, H, W)``, as an array with its channels last."""
    return (tensor.movedim(0, -1) if tensor.ndim == 3 else tensor).detach().cpu().numpy()


def build_view(tensor: Tensor, value_range: ValueRange, kind: DataKind, transform: Transform | None) -> View:
    """Return the view of a prepared tensor ``(C, *size)``, with the range of its values, for the user."""
    # A copy, as the pixels are computed when somebody looks, and the user may have written to the tensor by then. Numpy
    # makes it, as torch would use all cores, which an engine needs.
    values: NDArray[np.float32] = tensor.detach().float().cpu().numpy().copy()
    if kind == "signal":
        return Signal(values)
    if kind == "image":
        return Photo(partial(_to_pixels, values, value_range, transform), Geometry.whole(*values.shape[1:]))
    # Depth or time is folded into the height, so that one scale holds for all slices or frames.
    flat = _to_pixels(values.reshape(len(values), -1, values.shape[-1]), value_range, transform)
    return (Clip if kind == "clip" else Volume)(flat.reshape(*values.shape[1:], 3))


def find_black_and_white(tensor: Tensor, transform: Transform | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the values ``(C,)`` of black and of white in a model's input ``(C, h, w)``; ``None`` if unknown."""
    mean, std = find_statistics(transform) or ((), ())
    if len(mean) != len(tensor):
        return None, None
    shift, scale = tensor.new_tensor(mean), tensor.new_tensor(std)
    return -shift / scale, (1 - shift) / scale


def _to_pixels(values: NDArray[np.float32], value_range: ValueRange, transform: Transform | None) -> NDArray[np.uint8]:
    """Return planes ``(C, h, w)`` as pixels ``(h, w, 3)``: the mean of the planes, unless they are gray or RGB."""
    mean, std = _choose_scale(value_range, transform)
    if len(values) in (1, 3):
        return overlay.to_pixels(values, scale=std, shift=mean)
    planes = [plane * s + m for plane, m, s in zip(values, mean, std, strict=True)]
    return overlay.to_pixels(np.mean(planes, axis=0, keepdims=True), scale=[1.0], shift=[0.0])


def _choose_scale(value_range: ValueRange, transform: Transform | None) -> Statistics:
    """Return the shifts and the scales that bring planes ``(C, h, w)`` to [0, 1].

    An image's own values, in [0, 1] or from 0 to 255, are only divided. Others are denormalized if the transform's
    statistics are known, and stretched from the lowest to the highest value if not.
    """
    channels, lowest, highest = value_range.channels, value_range.lowest, value_range.highest
    if channels in (1, 3) and value_range.is_unit:
        return [0.0] * channels, [1.0] * channels
    if channels in (1, 3) and value_range.is_byte:
        return [0.0] * channels, [1 / 255] * channels
    mean, std = find_statistics(transform) or ((), ())
    if len(mean) == channels:
        return mean, std
    has_range = np.isfinite(highest - lowest) and highest > lowest
    shift, scale = (-lowest / (highest - lowest), 1 / (highest - lowest)) if has_range else (0.0, 0.0)
    return [shift] * channels, [scale] * channels


def _compute_seen_share(geometry: Geometry) -> float:
    """Return the share of the image's area that is in the input, 0 to 1."""
    top, left, bottom, right = geometry.box
    height, width = geometry.photo
    rows = min(max(top, bottom), height) - max(min(top, bottom), 0)
    columns = min(max(left, right), width) - max(min(left, right), 0)
    return max(rows, 0) * max(columns, 0) / (height * width)


# ----------------------------------------------------------------------------- the values of a file, instead of a photo

# Channels of models that get photos of 8 bits.
_PHOTO_CHANNELS = (1, 3)

_ASSUMED_SCALE = MapWarning(
    "No transform was given, so the model got the file's values scaled to [0, 1]. If it was trained on values "
    "normalized otherwise, pass transform=; it gets a float tensor (C, H, W) of the file's own numbers.",
    "assumed-scale",
)


def choose_kind(model: nn.Module, file_image: FileImage, kind: DataKind | None) -> DataKind | None:
    """Return the data kind as which a model takes the values of a file; ``None`` if it takes a photo.

    Args:
        model: Its convolutions say how many channels and axes it takes.
        file_image: The image or the volume.
        kind: The data kind that the user named.
    """
    if file_image.is_volume:
        depth, height, width, channels = file_image.values.shape
        inferred = infer_kind(model, (channels, depth, height, width), kind)
        return inferred if inferred in ("volume", "clip") else None
    first = next(iter(list_channels(model, 2)), None)
    return "image" if file_image.channels == first and first not in _PHOTO_CHANNELS else None


def transform_values(
    file_image: FileImage, transform: Transform | None
) -> tuple[Tensor, Geometry | None, tuple[MapWarning, ...]]:
    """Return a file's values as the model's input ``(C, *size)``, the geometry of an image, and notes for the user.

    Without a transform, the values are scaled to [0, 1] by the file's contrast.

    Raises:
        ImageError: The transform fails, or nothing says what is black and white.
        GeometryError: The transform is more than a crop and a resize, or changes the size of a volume.
    """
    if transform is None:
        unit = np.ascontiguousarray(np.moveaxis(file_image.to_unit(), -1, 0))
        geometry = None if file_image.is_volume else Geometry.whole(*unit.shape[1:])
        return torch.from_numpy(unit), geometry, (_ASSUMED_SCALE,)
    given = torch.from_numpy(file_image.to_model_values())
    tensor = _apply(transform, given, file_image)
    if not file_image.is_volume:
        return tensor, _measure(file_image, transform), ()
    if tensor.shape[1:] != given.shape[1:]:
        raise GeometryError(
            f"transform made {tuple(tensor.shape)} of the volume {tuple(given.shape)}; for volumes it may change "
            "values, but not the size. Resize the volume before, and give it as a tensor."
        )
    return tensor, None, ()


def build_file_view(file_image: FileImage, kind: DataKind, geometry: Geometry | None) -> View:
    """Return the view of a file's values for the user."""
    pixels = file_image.draw()
    if geometry is not None:
        return Photo(pixels, geometry, file_image.origin)
    return (Clip if kind == "clip" else Volume)(pixels, file_image.origin)


def _apply(transform: Transform, given: Tensor, file_image: FileImage) -> Tensor:
    """Return what a transform makes of the values ``(C, *size)``.

    Raises:
        ImageError: It fails, or returns something else.
    """
    shape = tuple(given.shape)
    try:
        output: Any = unwrap_image(transform(given))  # type: ignore[arg-type]  # transforms of photos take PIL images
    except Exception as error:
        raise_interrupt(error)
        raise ImageError(
            f"transform failed on the values of {file_image.name}, a float tensor {shape}: {error}. For a model that "
            "takes all bands or a volume, pass transform= with a function of such a tensor."
        ) from error
    tensor = torch.from_numpy(output) if isinstance(output, np.ndarray) else output
    if not isinstance(tensor, Tensor) or tensor.ndim != given.ndim or not tensor.is_floating_point():
        returned = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(output).__name__
        raise ImageError(f"transform made {returned} of the float tensor {shape}; it must return floats (C, *size).")
    return tensor


def _measure(file_image: FileImage, transform: Transform) -> Geometry:
    """Return the geometry of a transform of bands ``(C, H, W)``.

    It is read from the transform's attributes, or measured with images that have the same value in all bands.
    """
    low, high = find_range(file_image.values)

    def run(photo: Image.Image) -> Any:
        gray = torch.from_numpy(np.array(photo.convert("L"), np.float32)) / 255 * (high - low) + low
        return transform(gray.expand(file_image.channels, *gray.shape).clone())  # type: ignore[arg-type]

    return read_geometry(transform, (file_image.values.shape[0], file_image.values.shape[1]), run=run)
