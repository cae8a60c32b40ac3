"""What a person gave, on both sides of its preparation: what they see, and the tensor that the model gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from camtool import images, input_warnings, modules, overlay, structures
from camtool.errors import CamtoolError, ImageError
from camtool.geometry import Geometry, geometry_of, unwrapped
from camtool.input_checks import check_channels, check_sizes, check_tensor
from camtool.inputs import AXES, SHAPES, Inputs, Key, Kind, channels_over, is_photo, kind_of, looked_at
from camtool.lazy import cached_property
from camtool.models import Transform, own_transform, usual_size, usual_transform
from camtool.views import Clip, Photo, Signal, View, Volume

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Batch", "Picture", "Preparer", "Source", "batches"]

Source: TypeAlias = "images.ImageSource | Tensor"

_ASSUMED = (
    "No transform was given, so torchvision's usual preparation for ImageNet was assumed. If the model was trained on "
    "pictures prepared otherwise, pass transform=."
)
_GREY = "The model takes one channel, so the photo was made grey."


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture, or a signal, a volume or a clip.

    Attributes:
        tensor: ``(C, *size)``, the model's input, where the model is.
        view: What a person sees of it, and how a map lies on it.
        notes: What a person should know about the preparation.
        black: ``(C,)``, what a black pixel is in ``tensor``; ``None`` where that is not known.
    """

    tensor: Tensor
    view: View
    notes: tuple[str, ...] = ()
    black: Tensor | None = None

    @property
    def photo(self) -> NDArray[np.uint8]:
        """``(H, W, 3)`` uint8, what a person sees of a photo."""
        return self.view.photo

    @property
    def geometry(self) -> Geometry:
        """How the photo became the tensor.

        Raises:
            ImageError: It is no photo.
        """
        if self.view.geometry is None:
            raise ImageError(f"img: this takes photos, and no {self.view.kind}.")
        return self.view.geometry


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures that the model is given together.

    Attributes:
        pictures: One or more, of one kind.
        inputs: What the model is called with: a tensor ``(N, C, *size)``, or a mapping that begins with it.
    """

    pictures: Sequence[Picture]
    inputs: structures.Inputs

    @classmethod
    def of(cls, pictures: Sequence[Picture]) -> Batch:
        """Pictures which are all that the model is given."""
        tensors = [picture.tensor for picture in pictures]
        return cls(pictures, tensors[0][None] if len(tensors) == 1 else torch.stack(tensors))

    def parts(self, size: int) -> Iterator[Batch]:
        """In order, batches of at most so many of the pictures."""
        for start in range(0, len(self.pictures), size):
            yield self._part(slice(start, start + size))

    def _part(self, part: slice) -> Batch:
        return Batch(self.pictures[part], structures.map_batch(self.inputs, lambda tensor: tensor[part]))


class Preparer:
    """Turns whatever was given into :class:`Picture`.

    Args:
        model: Decides where the tensors go and, for photos, of which floating type they are.
        transform: From PIL image to tensor; ``None`` where it is not known.
        device: Where the tensors go; by default where the model is.
        kind: What the inputs are, where neither the model's convolutions nor their shapes tell it.

    Raises:
        CamtoolError: ``device`` is unknown, or not where the model is.
    """

    def __init__(
        self,
        model: nn.Module,
        transform: Transform | None,
        device: torch.device | str | None,
        *,
        kind: Kind | None = None,
    ) -> None:
        self._model, self._transform, self._kind = model, transform, kind
        self._device = _device_of(model, device)
        # Probing a transform takes a while, so it is done once a size; few are kept, as photos of all sizes may come.
        self._usual_transform = lru_cache(maxsize=2)(usual_transform)
        self._geometry = lru_cache(maxsize=8)(lambda size: geometry_of(self._of_photos[0], size))

    def __call__(self, source: Source, *, is_prepared: bool = False) -> Picture:
        """One picture.

        Args:
            source: A photo in any form; or a tensor. A signal, a volume or a clip may be an array as well.
            is_prepared: The tensor is the model's input already. A floating one ``(C, h, w)`` is taken so in any case
                where there is no transform, and so is what is no picture.

        Raises:
            ImageError: The source is no picture, or the transform made no input of it.
            GeometryError: The transform is more than a crop and a scale.
        """
        return self._of(source, self.kind(source), is_prepared=is_prepared)

    def each(self, img: Any) -> Iterator[Picture]:
        """One after the other, the pictures of a list or of a batch; or the only one that was given.

        Raises:
            ImageError: As above; or an entry of a list is a batch.
        """
        if isinstance(img, (list, tuple)):
            yield from map(self._entry_of_list, img)
            return
        kind = self.kind(img)  # one of a batch alone might be taken for something else
        if not _is_several(img, kind):
            yield self._of(img, kind, is_prepared=False)
            return
        for source in img:
            yield self._of(source, kind, is_prepared=isinstance(img, Tensor))

    def _entry_of_list(self, source: Any) -> Picture:
        kind = self.kind(source)
        if _is_several(source, kind):
            came = f"a batch {tuple(source.shape)}" if hasattr(source, "shape") else "a list"
            raise ImageError(
                f"img: an entry of the list is {came}; each is one picture. What a model takes together is given as "
                "camtool.Inputs(first, second)."
            )
        return self._of(source, kind, is_prepared=False)

    def _of(self, source: Source, kind: Kind, *, is_prepared: bool) -> Picture:
        if kind != "picture":
            return self._prepared(self._tensor(source), kind)
        if isinstance(source, Tensor):
            floating_3d = source.ndim == 3 and source.is_floating_point()
            if is_prepared or (floating_3d and self._transform is None):
                return self._prepared(source, kind)
            source = _array(source)
        return self._from_photo(images.read(source))

    def kind(self, source: Any) -> Kind:
        """What something is, a batch of them or a single one; only tensors and arrays may be no pictures."""
        if not isinstance(source, (Tensor, np.ndarray)):
            return "picture"
        if isinstance(source, Tensor):
            check_tensor(source)
        kind = kind_of(self._model, source.shape, self._kind)
        check_sizes(source.shape, kind)
        if isinstance(source, Tensor):
            check_channels(self._model, source.shape, kind)
        return kind

    def is_batch(self, img: Any) -> bool:
        """Whether what was given is several: a list, or a tensor or an array with an axis for them."""
        return _is_several(img, self.kind(img))

    def several(self, inputs: Inputs, at: Key) -> tuple[Batch, bool]:
        """Several inputs, one of which is the picture, and whether it is a batch of pictures.

        Args:
            inputs: What was given.
            at: The place of the picture.

        Raises:
            ImageError: What is there is no picture, or the others are more or fewer.
        """
        made = {key: self._entry(value, is_picture=key == at) for key, value in inputs.entries.items()}
        entries = {key: value.tensor if isinstance(value, Picture) else value for key, value in made.items()}
        main = structures.main_tensor(entries[at])
        if main is None:
            raise ImageError(f"img: {at!r} holds no floating tensor, so it is no picture; name another with picture=.")
        kind = self.kind(main)
        if main.ndim < AXES[kind] + 1:
            wanted = SHAPES[AXES[kind]]
            raise ImageError(
                f"img: {at!r} has shape {tuple(main.shape)}, and a {kind} is {wanted}, with or without an axis for the "
                "batch before it; name another input with picture=."
            )
        is_batch = main.ndim == AXES[kind] + 2
        others = {key: value for key, value in entries.items() if key != at and key not in inputs.shared}
        _check_together(at, main, others, AXES[kind])
        if not is_batch:
            entries = structures.map_tensors(entries, lambda tensor: tensor[None] if tensor.ndim else tensor)
        alike = {key: made[key] for key in inputs.shared}
        entries |= {
            key: structures.Shared(one.tensor[None] if isinstance(one, Picture) else one) for key, one in alike.items()
        }
        photo, batch = made[at], main if is_batch else main[None]
        pictures = [photo] if isinstance(photo, Picture) else [self._prepared(one, kind) for one in batch]
        return Batch(pictures, {at: entries[at], **entries}), is_batch  # the picture comes first

    def looked_at(self, inputs: Inputs, layers: Sequence[str] | None, nth: int | None) -> tuple[Key, int | None]:
        """Which of several inputs is the picture that the layers show, and at which of their calls.

        Args:
            inputs: What was given.
            layers: Dotted names, or ``None`` for the best one.
            nth: The call that was asked for. ``None`` stays so where it is the last.

        Raises:
            LayerError: The layers do not show the picture that was named, at that call.
        """
        places = inputs.pictures
        others = [value for key, value in inputs.entries.items() if key != places[0]]
        if len(places) == 1 and not any(is_photo(each) or structures.main_tensor(each) is not None for each in others):
            return places[0], nth  # a layer can show nothing else
        first = {place: next(self.several(inputs, place)[0].parts(1)).inputs for place in places}
        at, call = looked_at(self._model, first, layers, nth)
        return at, None if nth is None and call == -1 else call

    def _entry(self, value: Any, *, is_picture: bool) -> Any:
        """One of several inputs, where the model is; a photo as a picture."""
        if is_photo(value) or (is_picture and not isinstance(value, (Tensor, list, tuple, Mapping))):
            return self(value)
        is_array = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
        return structures.map_tensors(self._tensor(value) if is_array else value, self._fitted)

    def _fitted(self, tensor: Tensor) -> Tensor:
        """A tensor where the model is and, if it is floating, of a type that the model computes in."""
        given = tensor.to(self._device)
        if not given.is_floating_point() or given.dtype == _dtype_of(self._model):
            return given
        own = {parameter.dtype for parameter in self._model.parameters() if parameter.is_floating_point()}
        return given if not own or given.dtype in own else given.to(_dtype_of(self._model))

    def _tensor(self, source: Any) -> Tensor:
        """An array, of any numbers, as a tensor of the model's own."""
        if isinstance(source, Tensor):
            return source
        return torch.from_numpy(np.ascontiguousarray(source)).to(_dtype_of(self._model))

    def _prepared(self, tensor: Tensor, kind: Kind) -> Picture:
        if tensor.ndim != AXES[kind] + 1 or not tensor.is_floating_point():
            wanted = SHAPES[AXES[kind]]
            hint = "" if tensor.is_floating_point() else " Give photos one by one, or tensor.float() as in training."
            raise ImageError(
                f"img: a prepared {kind} is floating {wanted}, got {tensor.dtype} {tuple(tensor.shape)}.{hint}"
            )
        given, transform = self._fitted(tensor), self._transform
        if transform is None and modules.preparation_of(self._model) is not None:
            transform = own_transform(self._model)  # a detector normalises, so what it is given is a photo's own values
        black, white = _ends(given, transform)
        notes = input_warnings.about_tensor(tensor, black, white)
        return Picture(given, _view(tensor, kind, transform), tuple(notes), black)

    def _from_photo(self, photo: Any) -> Picture:
        transform, notes = self._of_photos
        geometry = self._geometry((photo.height, photo.width))
        tensor = _as_input(transform(photo), transform).to(self._device, _dtype_of(self._model))
        notes = (*images.notes_of(photo), *input_warnings.about_photo(photo, geometry), *notes)
        return Picture(tensor, Photo(np.asarray(photo), geometry), notes, _ends(tensor, transform)[0])

    @property
    def _of_photos(self) -> tuple[Transform, tuple[str, ...]]:
        """The transform for photos, and notes on it for the user; it is the model's own unless one was given."""
        told = self._transform or self._own_transform
        return (told, ()) if told else self._assumed()

    @cached_property
    def _own_transform(self) -> Transform | None:
        return own_transform(self._model)

    def _assumed(self) -> tuple[Transform, tuple[str, ...]]:
        """Return the usual transform for the channels that the model takes now: its first layer may be a new one."""
        channels, side = channels_over(self._model, 2), usual_size(self._model)[0]
        others = () if channels else (kind for kind, axes in AXES.items() if channels_over(self._model, axes))
        other = next(iter(others), None)
        if other is not None:
            raise ImageError(
                f"img: a photo, but the model takes a {other} {SHAPES[AXES[other]]}, as its convolutions tell; give a "
                "tensor, or pass transform=."
            )
        is_grey = channels[:1] == (1,)
        return self._usual_transform(side, is_grey=is_grey), (_ASSUMED, _GREY) if is_grey else (_ASSUMED,)


def _is_several(img: Any, kind: Kind) -> bool:
    """Check whether what was given is a list, or a tensor or an array with an axis for several of that kind."""
    if isinstance(img, (list, tuple)):
        return True
    return isinstance(img, (Tensor, np.ndarray)) and img.ndim == AXES[kind] + 2


def _check_together(at: Key, picture: Tensor, others: Mapping[Key, Any], axes: int) -> None:
    """See that what is like the picture, with as many channels over as many axes, comes as it does, one or as many.

    Raises:
        ImageError: It does not.
    """
    for key, other in others.items():
        is_like = isinstance(other, Tensor) and other.is_floating_point() and other.ndim in (axes + 1, axes + 2)
        if not is_like or other.shape[-axes - 1] != picture.shape[-axes - 1]:
            continue
        if len(other) != len(picture) if picture.ndim == axes + 2 else other.ndim != picture.ndim:
            raise ImageError(
                f"img: {key!r} {tuple(other.shape)} does not go with the picture {at!r} {tuple(picture.shape)}; give "
                f"one for each picture, or name what is for all alike: camtool.Inputs(..., shared=[{key!r}])."
            )


def batches(pictures: Iterable[Picture], size: int) -> Iterator[list[Picture]]:
    """In order, the runs of pictures that fit into one batch: of one kind, and not more than ``size``."""
    for _, run in groupby(pictures, key=_kind):
        while batch := list(islice(run, size)):
            yield batch


def _kind(picture: Picture) -> tuple[object, ...]:
    """What pictures of one batch share: the tensor's shape and type, and whether it is known what black is."""
    return picture.tensor.shape, picture.tensor.dtype, picture.black is None


def _device_of(model: nn.Module, asked: torch.device | str | None) -> torch.device:
    first = next(model.parameters(), None)
    own = torch.device("cpu") if first is None else first.device
    if own.type == "meta" and not hasattr(model, "hf_device_map"):
        raise CamtoolError(
            "model is on the meta device and has no weights; build it on the CPU, or load its weights with "
            "model.to_empty(device='cpu') and model.load_state_dict(state)."
        )
    wanted = own if asked is None else _device(asked)
    if first is not None and wanted.type != own.type:
        raise CamtoolError(
            f"device={str(asked)!r}, but the model is on {own}; move it first: model.to({str(asked)!r})."
        )
    return wanted if first is None else own


def _device(asked: torch.device | str) -> torch.device:
    try:
        return torch.device(asked)
    except (RuntimeError, TypeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise CamtoolError(f"device={asked!r} is none that torch knows: {reason}") from error


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


def _view(tensor: Tensor, kind: Kind, transform: Transform | None) -> View:
    """What a person sees of a prepared tensor ``(C, *size)``."""
    values: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    if kind == "signal":
        return Signal(values)
    if kind == "picture":
        return Photo(_pixels(values, transform), Geometry.whole(*values.shape[1:]))
    flat = _pixels(values.reshape(len(values), -1, values.shape[-1]), transform)
    return (Clip if kind == "clip" else Volume)(flat.reshape(*values.shape[1:], 3))


def _pixels(values: NDArray[np.float32], transform: Transform | None) -> NDArray[np.uint8]:
    """Planes ``(C, h, w)`` as a picture."""
    mean, std = _display_scale(values, transform)
    if len(values) in (1, 3):
        return overlay.quantize(values, scale=std, shift=mean)
    planes = [plane * s + m for plane, m, s in zip(values, mean, std, strict=True)]
    return overlay.quantize(np.mean(planes, axis=0, keepdims=True), scale=[1.0], shift=[0.0])


def _display_scale(values: NDArray[np.float32], transform: Transform | None) -> tuple[Sequence[float], Sequence[float]]:
    """The shift and the scale with which planes ``(C, h, w)`` are shown.

    A photo's own values, in [0, 1] or from 0 to 255, are shown as they are; others are un-normalized where the
    preparation is known, or else stretched from the lowest to the highest.
    """
    channels, ends = len(values), (float(values.min()), float(values.max()))
    if channels in (1, 3) and input_warnings.is_unit_range(*ends):
        return [0.0] * channels, [1.0] * channels
    if channels in (1, 3) and input_warnings.is_byte_range(*ends):
        return [0.0] * channels, [1 / 255] * channels
    mean, std = _statistics(transform) or ((), ())
    return (mean, std) if len(mean) == channels else _stretch(values)


def _statistics(transform: Any) -> tuple[Sequence[float], Sequence[float]] | None:
    """The mean and the deviation by which a transform, or the last of its parts that does, normalises."""
    for part in (transform, *reversed(getattr(transform, "transforms", ()))):
        if hasattr(part, "mean") and hasattr(part, "std"):
            return list(part.mean), list(part.std)
        if type(part).__name__ == "ObjectDetection":  # torchvision's, which only converts: detectors do the rest
            return [0.0] * 3, [1.0] * 3
    return None


def _ends(tensor: Tensor, transform: Transform | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Black and white, ``(C,)`` each, in the model's input ``(C, h, w)``, where the transform tells how it scales."""
    mean, std = _statistics(transform) or ((), ())
    if len(mean) != len(tensor):
        return None, None
    shift, scale = tensor.new_tensor(mean), tensor.new_tensor(std)
    return -shift / scale, (1 - shift) / scale


def _stretch(values: NDArray[np.float32]) -> tuple[Sequence[float], Sequence[float]]:
    """The mean and the deviation that bring the lowest value to 0 and the highest to 1."""
    lowest, highest = float(values.min()), float(values.max())
    varied = np.isfinite(highest - lowest) and highest > lowest
    shift, scale = (-lowest / (highest - lowest), 1 / (highest - lowest)) if varied else (0.0, 0.0)
    return [shift] * len(values), [scale] * len(values)
