"""What a person gave, on both sides of its preparation: the photo, and the tensor that the model gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from camtool import images, maps, overlay
from camtool.errors import CamtoolError, ImageError
from camtool.geometry import Geometry, geometry_of, unwrapped
from camtool.models import Transform, usual_transform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Picture", "Preparer", "Source", "batches", "heatmap", "is_batch"]

Source: TypeAlias = "images.ImageSource | Tensor"

_ASSUMED = (
    "No transform was given, so torchvision's usual preparation for ImageNet was assumed. If the model was trained on "
    "pictures prepared otherwise, pass transform=."
)


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture.

    Attributes:
        tensor: ``(C, h, w)``, the model's input, where the model is.
        photo: ``(H, W, 3)`` uint8, what a person sees.
        geometry: How the one became the other.
        notes: What a person should know about the preparation.
        black: ``(C,)``, what a black pixel is in ``tensor``; ``None`` where that is not known.
    """

    tensor: Tensor
    photo: NDArray[np.uint8]
    geometry: Geometry
    notes: tuple[str, ...] = ()
    black: Tensor | None = None


class Preparer:
    """Turns whatever was given into :class:`Picture`.

    Args:
        model: Decides where the tensors go and, for photos, of which floating type they are.
        transform: From PIL image to tensor; ``None`` where it is not known.
        device: Where the tensors go; by default where the model is.

    Raises:
        CamtoolError: ``device`` is not where the model is.
    """

    def __init__(self, model: nn.Module, transform: Transform | None, device: torch.device | str | None) -> None:
        self._model, self._transform = model, transform
        self._device = _device_of(model, device)
        # Probing a transform takes a while, so it is done once a size; few are kept, as photos of all sizes may come.
        self._geometry = lru_cache(maxsize=8)(lambda size: geometry_of(transform or usual_transform(), size))

    def __call__(self, source: Source, *, is_prepared: bool = False) -> Picture:
        """One picture.

        Args:
            source: A photo in any form; or a tensor.
            is_prepared: The tensor is the model's input already. A floating one ``(C, h, w)`` is taken so in any case
                where there is no transform.

        Raises:
            ImageError: The source is no picture, or the transform made no input of it.
            GeometryError: The transform is more than a crop and a scale.
        """
        if isinstance(source, Tensor):
            floating_3d = source.ndim == 3 and source.is_floating_point()
            if is_prepared or (floating_3d and self._transform is None):
                return self._prepared(source)
            source = _array(source)
        return self._from_photo(images.read(source))

    def _prepared(self, tensor: Tensor) -> Picture:
        if tensor.ndim != 3 or not tensor.is_floating_point():
            raise ImageError(
                f"img: a prepared picture is floating (C, H, W), got {tensor.dtype} {tuple(tensor.shape)}."
            )
        geometry = Geometry.whole(*tensor.shape[1:])
        given = tensor.to(self._device)
        return Picture(given, _view(tensor, self._transform), geometry, black=_black(given, self._transform))

    def _from_photo(self, photo: Any) -> Picture:
        transform = self._transform or usual_transform()
        geometry = self._geometry((photo.height, photo.width))
        tensor = _as_input(transform(photo), transform).to(self._device, _dtype_of(self._model))
        notes = () if self._transform else (_ASSUMED,)
        return Picture(tensor, np.asarray(photo), geometry, notes, _black(tensor, transform))


def is_batch(img: Any) -> bool:
    """Whether what was given is several pictures: a list, a tensor ``(N, C, H, W)``, an array ``(N, H, W, C)``."""
    return isinstance(img, (list, tuple)) or (isinstance(img, (Tensor, np.ndarray)) and img.ndim == 4)


def batches(pictures: Iterable[Picture], size: int) -> Iterator[list[Picture]]:
    """In order, the runs of pictures that fit into one batch: of one kind, and not more than ``size``."""
    for _, run in groupby(pictures, key=_kind):
        while batch := list(islice(run, size)):
            yield batch


def _kind(picture: Picture) -> tuple[object, ...]:
    """What pictures of one batch share: the tensor's shape and type, and whether it is known what black is."""
    return picture.tensor.shape, picture.tensor.dtype, picture.black is None


def heatmap(geometry: Geometry, raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """A raw map ``(h, w)`` as a heatmap ``(H, W)`` in [0, 1] on the photo; 0 where the model did not look."""
    placed = geometry.place(torch.from_numpy(raw)).numpy()
    return maps.normalise(placed, None if geometry.sees_all else geometry.seen)


def _device_of(model: nn.Module, asked: torch.device | str | None) -> torch.device:
    first = next(model.parameters(), None)
    own = torch.device("cpu") if first is None else first.device
    if asked is not None and first is not None and torch.device(asked).type != own.type:
        raise CamtoolError(
            f"device={str(asked)!r}, but the model is on {own}; move it first: model.to({str(asked)!r})."
        )
    return own if first is not None or asked is None else torch.device(asked)


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _array(tensor: Tensor) -> NDArray[Any]:
    """A photo in a tensor, ``(H, W)`` or ``(C, H, W)``, as an array with the channels last."""
    array: NDArray[Any] = (tensor.movedim(0, -1) if tensor.ndim == 3 else tensor).detach().cpu().numpy()
    return array


def _as_input(made: Any, transform: Transform) -> Tensor:
    tensor = unwrapped(made)
    tensor = torch.from_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor
    if isinstance(tensor, Tensor) and tensor.ndim == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if not isinstance(tensor, Tensor) or tensor.ndim != 3:
        came = f"a tensor of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(made).__name__
        raise ImageError(f"transform {type(transform).__name__} made {came}; it must make a tensor (C, h, w).")
    return tensor


def _view(tensor: Tensor, transform: Transform | None) -> NDArray[np.uint8]:
    """A prepared tensor ``(C, h, w)`` as a picture: un-normalised where the preparation is known, else min to max."""
    values: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    mean, std = _statistics(transform) or _stretch(values)
    if len(mean) != len(values):
        mean, std = _stretch(values)
    if len(values) in (1, 3):
        return overlay.quantize(values, scale=std, shift=mean)
    planes = [plane * s + m for plane, m, s in zip(values, mean, std, strict=True)]
    return overlay.quantize(np.mean(planes, axis=0, keepdims=True), scale=[1.0], shift=[0.0])


def _statistics(transform: Any) -> tuple[Sequence[float], Sequence[float]] | None:
    """The mean and the deviation by which a transform, or the last of its parts that does, normalises."""
    for part in (transform, *reversed(getattr(transform, "transforms", ()))):
        if hasattr(part, "mean") and hasattr(part, "std"):
            return list(part.mean), list(part.std)
    return None


def _black(tensor: Tensor, transform: Transform | None) -> Tensor | None:
    """What a black pixel is in the model's input ``(C, h, w)``, where the transform tells how it normalises."""
    mean, std = _statistics(transform) or ((), ())
    if len(mean) != len(tensor):
        return None
    return -tensor.new_tensor(mean) / tensor.new_tensor(std)


def _stretch(values: NDArray[np.float32]) -> tuple[Sequence[float], Sequence[float]]:
    """The mean and the deviation that bring the lowest value to 0 and the highest to 1."""
    lowest, highest = float(values.min()), float(values.max())
    varied = np.isfinite(highest - lowest) and highest > lowest
    shift, scale = (-lowest / (highest - lowest), 1 / (highest - lowest)) if varied else (0.0, 0.0)
    return [shift] * len(values), [scale] * len(values)
