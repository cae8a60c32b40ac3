"""What a model is called with where that is not one batch of pictures: several arguments, signals, volumes, clips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from PIL import Image
from torch import nn
from torch.nn.modules.conv import _ConvNd

from camtool import hooks, images, structures
from camtool.errors import CamtoolError, ImageError, LayerError, near
from camtool.layers import depends_on_picture, resolve
from camtool.model_cache import remembered
from camtool.modules import all_modules

__all__ = [
    "AXES",
    "SHAPES",
    "Inputs",
    "Key",
    "Kind",
    "channels_over",
    "example_shape",
    "is_photo",
    "kind_of",
    "looked_at",
]

Key: TypeAlias = int | str
"""The position or the name of an argument."""

Kind: TypeAlias = Literal["signal", "picture", "volume", "clip"]
"""What an input is: ``(C, L)``, ``(C, H, W)``, ``(C, D, H, W)`` or ``(C, T, H, W)``."""

AXES: dict[Kind, int] = {"signal": 1, "picture": 2, "volume": 3, "clip": 3}
"""How many axes each kind has beside that of the channels."""

SHAPES: dict[int, str] = {1: "(C, L)", 2: "(C, H, W)", 3: "(C, D, H, W)"}
"""The shape of a single one, for messages, by how many axes it has beside that of the channels."""


class Inputs:
    """Several arguments for a model, and which of them is the picture that is explained.

        camtool.explain(model, camtool.Inputs(left, right, picture=1))
        camtool.explain(model, {"pixel_values": images, "mask": masks})

    A dictionary stands for keyword arguments alone. Where the picture is a batch, ``(N, C, H, W)``, every tensor whose
    first axis is N long goes with the images, and what is not so, a number, a text, a table of constants, is handed on
    as it is. Where the picture is a single one, ``(C, H, W)``, every tensor but a scalar gets a first axis as well.
    What would be mistaken, two texts beside two images say, is named in ``shared``. A PIL image, an array of uint8 and
    the path of a picture are prepared like any photo, and so is whatever ``picture`` names.

    Attributes:
        entries: The arguments by position and by name.
        picture: The position or the name of the picture. ``None`` for the only one there is; of several, for the first
            that the layer, at the call that is looked at, depends on. Where it is given and ``call`` is not, a layer
            that ran several times is looked at where it depends on this picture.
        shared: The positions and names of what is for all images alike, and handed on as it is.

    Raises:
        CamtoolError: There is no argument, or ``picture`` or ``shared`` names one that is not there.
    """

    def __init__(self, *args: Any, picture: Key | None = None, shared: Sequence[Key] = (), **keywords: Any) -> None:
        entries: dict[Key, Any] = dict(enumerate(args))
        entries.update(keywords)
        self._hold(entries, picture, shared)

    @classmethod
    def of(cls, img: Inputs | Mapping[str, Any], picture: Key | None = None) -> Inputs:
        """What was given as one of these; where ``picture`` is given it decides.

        Raises:
            CamtoolError: A dictionary has a key that is no name, or ``picture`` is none of the entries.
        """
        its_own = img.picture if isinstance(img, Inputs) else None
        entries: Mapping[Any, Any] = img.entries if isinstance(img, Inputs) else img
        unnamed = [key for key in img if not isinstance(key, str)] if isinstance(img, Mapping) else []
        if unnamed:
            raise CamtoolError(f"img has the key {unnamed[0]!r}; give names of arguments, or camtool.Inputs(...).")
        made = cls.__new__(cls)  # the constructor would take a model's own argument "picture" for the choice
        shared = img.shared if isinstance(img, Inputs) else ()
        made._hold(dict(entries), its_own if picture is None else picture, shared)
        return made

    def _hold(self, entries: dict[Key, Any], picture: Key | None, shared: Sequence[Key]) -> None:
        self.entries, self.picture = entries, picture
        self.shared: tuple[Key, ...] = (shared,) if isinstance(shared, str) else tuple(shared)
        if not entries:
            raise CamtoolError("img holds no arguments; give the model's inputs, by position or by name.")
        named = [("picture", key) for key in (picture,) if key is not None] + [("shared", key) for key in self.shared]
        for what, key in named:
            if key not in entries:
                hint = near(str(key), map(str, entries))
                raise CamtoolError(f"{what}={key!r} is none of the inputs, which are {_listed(entries)}.{hint}")

    @property
    def pictures(self) -> list[Key]:
        """The entries that may be the picture: the one that was named, else photos, else those with the most axes.

        Of those, where there are some with three channels it is one of them: a mask is no picture.

        Raises:
            ImageError: None may.
        """
        if self.picture is not None:
            return [self.picture]
        own = {key: value for key, value in self.entries.items() if key not in self.shared}
        photos = [key for key, value in own.items() if is_photo(value)]
        tensors = {key: structures.main_tensor(value) for key, value in own.items()}
        shapes = {key: tensor.shape for key, tensor in tensors.items() if tensor is not None}
        most = max(map(len, shapes.values()), default=0)
        if not photos and most < 2:
            raise ImageError(
                f"img: none of {_listed(self.entries)} is a picture, which is a floating tensor "
                "(N, C, H, W) or a photo: a PIL image, a uint8 array or a path; name another with picture=."
            )
        largest = [key for key, shape in shapes.items() if len(shape) == most]
        coloured = [key for key in largest if shapes[key][1 if most > 3 else 0] == 3]
        return photos or coloured or largest


def _listed(keys: Iterable[object]) -> str:
    return ", ".join(map(repr, keys))


def is_photo(value: object) -> bool:
    """Whether one of several inputs is a photo that is not prepared yet; a text is one where it ends as a file does."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim in (2, 3)
    is_file = isinstance(value, (str, PathLike)) and PurePath(value).suffix.lower() in images.SUFFIXES
    return is_file or isinstance(value, Image.Image)


def looked_at(
    model: nn.Module, candidates: Mapping[Key, structures.Inputs], layers: Sequence[str] | None, nth: int | None
) -> tuple[Key, int]:
    """Return which of several pictures a layer shows, and at which of its calls: the first that it depends on.

    The answer is remembered, as :mod:`camtool.model_cache` tells.

    Args:
        model: Any module.
        candidates: For each picture's place what the model is called with, that picture first.
        layers: Dotted names, or ``None`` for the best layer for each.
        nth: Which call of the layers is looked at; ``None`` for the last that depends on a picture at all.

    Raises:
        LayerError: The layers depend on none of the pictures, at that call or at any; or they do not fit.
    """
    shapes = tuple((key, _shape(inputs)) for key, inputs in candidates.items())
    question = "picture", shapes, None if layers is None else tuple(layers), nth
    return remembered(model, question, lambda: _look_for_picture(model, candidates, layers, nth))


def _look_for_picture(
    model: nn.Module, candidates: Mapping[Key, structures.Inputs], layers: Sequence[str] | None, nth: int | None
) -> tuple[Key, int]:
    """Return what :func:`looked_at` remembers; it takes several forward passes."""
    first, inputs = next(iter(candidates.items()))
    for call in _calls(model, inputs, layers) if nth is None else (nth,):
        for key, each in candidates.items():
            if depends_on_picture(model, each, layers, nth=call):
                return key, call
    # Where the layers do not fit at all, this says why.
    names = [layer.name for layer in resolve(model, inputs, layers, nth=-1 if nth is None else nth)]
    when = "" if nth is None else f" at call={nth}"
    raise LayerError(
        f"layer {' + '.join(names)} does not depend on input {first!r}{when}; name the layer that sees it with "
        "layer=, another of its calls with call=, or another input with picture=."
    )


def _calls(model: nn.Module, inputs: structures.Inputs, layers: Sequence[str] | None) -> range:
    """The calls of some layers, or of any, from the last (-1) back to the first."""
    names = Counter(call.name for call in hooks.trace(model, inputs) if layers is None or call.name in layers)
    return range(-1, -max(names.values(), default=1) - 1, -1)


def _shape(inputs: structures.Inputs) -> tuple[int, ...] | None:
    tensor = structures.main_tensor(inputs)
    return None if tensor is None else tuple(tensor.shape[1:])


# ------------------------------------------------------------------------------------------------------- kinds


def kind_of(model: nn.Module, shape: Sequence[int], asked: Kind | None = None) -> Kind:
    """What a tensor is, a batch of them or a single one: told by the model's convolutions, else by the shape.

    A convolution tells it where it takes as many channels as there are. Of several that do, or where none does, it is a
    picture if there is one over two axes, as some networks of pictures weigh their channels by one over a single axis.
    With three axes beside that of the channels it is a clip where there are three channels, else a volume.

    Args:
        model: It is asked over how many axes its convolutions move, and how many channels they take.
        shape: The tensor's, with or without the batch axis.
        asked: What it is said to be.

    Raises:
        ImageError: ``asked`` is unknown, or the shape is not that of such a thing; or a clip's frames come before its
            channels.
    """
    kind = _told(model, shape) if asked is None else _checked(asked, shape)
    if AXES[kind] == 3:
        _check_order(model, shape)
    return kind


def _told(model: nn.Module, shape: Sequence[int]) -> Kind:
    if len(shape) in (3, 4) and any(_takes_pictures(module, shape[-3]) for module in model.modules()):
        return "picture"  # mostly the first convolution tells it, and the others need not be asked
    convolutions = _convolutions(model)
    fitting = {axes: channels for axes, channels in convolutions.items() if len(shape) in (axes + 1, axes + 2)}
    takers = [axes for axes, channels in fitting.items() if shape[-axes - 1] in channels]
    options = takers or ([2] if 2 in convolutions and len(shape) < 5 else list(fitting))
    axes = 2 if 2 in options else next(iter(options), max(len(shape) - 2, 2))
    if axes == 3:
        return "clip" if len(shape) > 3 and shape[-4] == 3 else "volume"
    return "signal" if axes == 1 else "picture"


def _takes_pictures(module: nn.Module, channels: int) -> bool:
    return isinstance(module, _ConvNd) and len(module.kernel_size) == 2 and module.in_channels == channels


def _check_order(model: nn.Module, shape: Sequence[int]) -> None:
    """See that the channels come before the frames, as maps are drawn over what comes behind them.

    Raises:
        ImageError: They come behind, as Hugging Face's video models want it.
    """
    config = getattr(model, "config", None)
    channels = channels_over(model, 3) + channels_over(model, 2)
    is_behind = shape[-3] in channels and shape[-4] not in channels
    if is_behind or (hasattr(config, "num_frames") and shape[-3] == getattr(config, "num_channels", None)):
        raise ImageError(
            f"img: {tuple(shape)} has its frames before its channels, (N, T, C, H, W); camtool reads clips as "
            "(N, C, T, H, W). Wrap a model that wants frames first in a module whose forward calls it with "
            "clip.transpose(1, 2), and give that the transposed clip."
        )


def _checked(kind: Kind, shape: Sequence[int]) -> Kind:
    if kind not in AXES:
        raise ImageError(f"kind={kind!r} is unknown; it is one of {_listed(get_args(Kind))}.")
    if len(shape) - AXES[kind] not in (1, 2):
        wanted = SHAPES[AXES[kind]].replace("(", "(N, ")
        raise ImageError(f"img: kind={kind!r} is {wanted}, with or without the N, but the shape is {tuple(shape)}.")
    return kind


def channels_over(model: nn.Module, axes: int) -> tuple[int, ...]:
    """How many channels the model's convolutions over so many axes take, the first one's first; empty without any."""
    return tuple(_convolutions(model).get(axes, ()))


def example_shape(model: nn.Module, height: int, width: int) -> tuple[int, ...]:
    """The shape of one input that a model takes, ``(C, h, w)``; a clip of 16 frames where it has no pictures."""
    pictures, clips = channels_over(model, 2), channels_over(model, 3)
    if clips and not pictures:
        return clips[0], 16, height, width
    return 1 if pictures[:1] == (1,) else 3, height, width


def _convolutions(model: nn.Module) -> dict[int, dict[int, None]]:
    """Return over how many axes the model's convolutions move, and how many channels they take: in the order they come.

    It is not remembered: to check that an answer still holds takes as long as to find it.
    """
    found: dict[int, dict[int, None]] = {}
    for module in all_modules(model):
        if isinstance(module, _ConvNd):
            found.setdefault(len(module.kernel_size), {})[module.in_channels] = None
    return found
