"""Models of many bands or of volumes: they get the values of a file as a tensor, instead of a photo of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from camtool.errors import GeometryError, ImageError, raise_interrupt
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import unwrap_image
from camtool.inputs.accepted_inputs import DataKind, infer_kind, list_channels
from camtool.inputs.formats.contrast import find_range
from camtool.inputs.formats.file_image import FileImage
from camtool.models import Transform
from camtool.rendering.views import Clip, Photo, View, Volume
from camtool.warning_codes import MapWarning

_PHOTO_CHANNELS = (1, 3)
"""Channels of models that get photos of 8 bits."""

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
        came = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(output).__name__
        raise ImageError(f"transform made {came} of the float tensor {shape}; it must make a float tensor (C, *size).")
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
