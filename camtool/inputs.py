"""What a model is called with where that is not one batch of pictures: several arguments, signals, volumes, clips."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from PIL import Image
from torch import nn
from torch.nn.modules.conv import _ConvNd

from camtool import hooks
from camtool.errors import CamtoolError, ImageError, near
from camtool.layers import depends_on_picture

__all__ = ["AXES", "Inputs", "Key", "Kind", "belonging", "kind_of"]

Key: TypeAlias = int | str
"""The position or the name of an argument."""

Kind: TypeAlias = Literal["signal", "picture", "volume", "clip"]
"""What an input is: ``(C, L)``, ``(C, H, W)``, ``(C, D, H, W)`` or ``(C, T, H, W)``."""

AXES: dict[Kind, int] = {"signal": 1, "picture": 2, "volume": 3, "clip": 3}
"""How many axes each kind has beside that of the channels."""


class Inputs:
    """Several arguments for a model, and which of them is the picture that is explained.

        camtool.explain(model, camtool.Inputs(left, right, picture=1))
        camtool.explain(model, {"pixel_values": images, "mask": masks})

    A dictionary stands for keyword arguments alone. Where the picture is a batch, ``(N, C, H, W)``, every tensor whose
    first axis is N long goes with the images, and what is not so, a number, a text, a table of constants, is handed on
    as it is. Where the picture is a single one, ``(C, H, W)``, every tensor but a scalar gets a first axis as well.
    What would be mistaken, two texts beside two images say, is named in ``shared``. A PIL image is prepared like any
    photo, and so is what the picture is given as: a path, say.

    Attributes:
        entries: The arguments by position and by name.
        picture: The position or the name of the picture. ``None`` for the only one there is; of several, for the first
            that the layer, at the call that is looked at, depends on.
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
        photos = [key for key, value in own.items() if isinstance(value, Image.Image)]
        tensors = {key: hooks.main_tensor(value) for key, value in own.items()}
        shapes = {key: tensor.shape for key, tensor in tensors.items() if tensor is not None}
        most = max(map(len, shapes.values()), default=0)
        if not photos and most < 2:
            raise ImageError(
                f"img: none of {_listed(self.entries)} is a picture, which is a floating tensor "
                "(N, C, H, W) or a PIL image; name another with picture=."
            )
        largest = [key for key, shape in shapes.items() if len(shape) == most]
        coloured = [key for key in largest if shapes[key][1 if most > 3 else 0] == 3]
        return photos or coloured or largest


def _listed(keys: Iterable[object]) -> str:
    return ", ".join(map(repr, keys))


def belonging(model: nn.Module, candidates: Mapping[Key, hooks.Inputs], layers: Sequence[str] | None, nth: int) -> Key:
    """Which of several pictures a layer shows: the first that it depends on, at the call that is looked at.

    The answer is remembered as long as the model lives.

    Args:
        model: Any module.
        candidates: For each picture's place what the model is called with, that picture first.
        layers: Dotted names, or ``None`` for the best layer for each.
        nth: Which call of the layers is looked at.
    """
    known = _BELONGING.setdefault(model, {})
    shapes = tuple((key, _shape(inputs)) for key, inputs in candidates.items())
    asked = shapes, None if layers is None else tuple(layers), nth
    if asked not in known:
        shown = (key for key, inputs in candidates.items() if depends_on_picture(model, inputs, layers, nth=nth))
        known[asked] = next(shown, next(iter(candidates)))
    return known[asked]


def _shape(inputs: hooks.Inputs) -> tuple[int, ...] | None:
    tensor = hooks.main_tensor(inputs)
    return None if tensor is None else tuple(tensor.shape[1:])


_BELONGING: weakref.WeakKeyDictionary[nn.Module, dict[object, Key]] = weakref.WeakKeyDictionary()


# ------------------------------------------------------------------------------------------------------- kinds


def kind_of(model: nn.Module, shape: Sequence[int], asked: Kind | None = None) -> Kind:
    """What a tensor is, a batch of them or a single one: told by the model's convolutions, else by the shape.

    With three axes beside that of the channels it is a clip where there are three channels, else a volume.

    Args:
        model: It is asked over how many axes its convolutions move; that of the first one which fits decides.
        shape: The tensor's, with or without the batch axis.
        asked: What it is said to be.

    Raises:
        ImageError: ``asked`` is unknown, or the shape is not that of such a thing.
    """
    if asked is not None:
        return _checked(asked, shape)
    fitting = [axes for axes in _axes_of_convolutions(model) if len(shape) in (axes + 1, axes + 2)]
    axes = fitting[0] if fitting else max(len(shape) - 2, 2)
    if axes == 3:
        return "clip" if len(shape) > 3 and shape[-4] == 3 else "volume"
    return "signal" if axes == 1 else "picture"


def _checked(kind: Kind, shape: Sequence[int]) -> Kind:
    if kind not in AXES:
        raise ImageError(f"kind={kind!r} is unknown; it is one of {_listed(get_args(Kind))}.")
    if len(shape) - AXES[kind] not in (1, 2):
        wanted = {1: "(N, C, L)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}[AXES[kind]]
        raise ImageError(f"img: kind={kind!r} is {wanted}, with or without the N, but the shape is {tuple(shape)}.")
    return kind


def _axes_of_convolutions(model: nn.Module) -> tuple[int, ...]:
    """Over how many axes the model's convolutions move, in the order in which they first come."""
    if model not in _CONVOLUTIONS:
        sizes = (len(module.kernel_size) for module in model.modules() if isinstance(module, _ConvNd))
        _CONVOLUTIONS[model] = tuple(dict.fromkeys(sizes))
    return _CONVOLUTIONS[model]


_CONVOLUTIONS: weakref.WeakKeyDictionary[nn.Module, tuple[int, ...]] = weakref.WeakKeyDictionary()
