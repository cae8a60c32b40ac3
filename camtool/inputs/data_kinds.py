"""Data kinds: whether an input is an image, a signal, a volume or a clip, and the channels that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from torch import nn

from camtool.errors import ImageError
from camtool.hooks.private_torch import is_convolution
from camtool.hooks.structures.module_names import list_modules

DataKind: TypeAlias = Literal["signal", "image", "volume", "clip"]
"""Kind of an input: ``(C, L)``, ``(C, H, W)``, ``(C, D, H, W)`` or ``(C, T, H, W)``."""

SPATIAL_AXES: dict[DataKind, int] = {"signal": 1, "image": 2, "volume": 3, "clip": 3}
"""Data kind → number of axes besides that of the channels."""

SHAPE_TEXTS: dict[int, str] = {1: "(C, L)", 2: "(C, H, W)", 3: "(C, D, H, W)"}
"""Number of axes besides that of the channels → the shape of one input, for messages."""

_COLORS = 3
_EXAMPLE_FRAMES = 16
"""Frames of an example clip, as torchvision's r3d_18 takes them."""


def infer_kind(model: nn.Module, shape: Sequence[int], kind: DataKind | None = None) -> DataKind:
    """Return the data kind of a tensor, one input or a batch.

    The model's convolutions decide, then the shape. A convolution decides if it takes as many channels as there are. If
    several do, or none, a two-dimensional one makes the input an image: some networks for images weight their channels
    by a one-dimensional convolution (ECA-Net). An input with three axes besides the channels is a clip if it has three
    channels, and a volume otherwise.

    Args:
        model: Its convolutions say how many axes and channels they take.
        shape: The tensor's shape, with or without a batch axis.
        kind: The data kind that the user named, which is checked.

    Raises:
        ImageError: ``kind`` is unknown or does not fit the shape, or a clip has its frames before its channels.
    """
    if kind is None:
        kind = _infer_from_model(model, shape)
    elif not isinstance(kind, str) or kind not in SPATIAL_AXES:
        raise ImageError(f"kind={kind!r} is unknown; it is one of {', '.join(map(repr, get_args(DataKind)))}.")
    elif len(shape) - SPATIAL_AXES[kind] not in (1, 2):
        wanted = SHAPE_TEXTS[SPATIAL_AXES[kind]].replace("(", "(N, ")
        raise ImageError(f"img: kind={kind!r} is {wanted}, with or without the N, but the shape is {tuple(shape)}.")
    if SPATIAL_AXES[kind] == 3:
        _check_frames_follow_channels(model, shape)
    return kind


def list_channels(model: nn.Module, axes: int) -> tuple[int, ...]:
    """Return the numbers of channels that the model's convolutions over ``axes`` axes take, the first one's first."""
    return tuple(_find_convolutions(model).get(axes, ()))


def choose_example_shape(model: nn.Module, height: int, width: int) -> tuple[int, ...]:
    """Return the shape of an input that a model takes, ``(C, H, W)``; of a clip if the model takes no images."""
    images, clips = list_channels(model, 2), list_channels(model, 3)
    if clips and not images:
        return clips[0], _EXAMPLE_FRAMES, height, width
    return 1 if images[:1] == (1,) else _COLORS, height, width


def _infer_from_model(model: nn.Module, shape: Sequence[int]) -> DataKind:
    if len(shape) in (3, 4):
        # In most models the first convolution decides, and the others need not be read.
        for module in model.modules():
            is_flat = is_convolution(module) and len(module.kernel_size) == 2
            if is_flat and module.in_channels == shape[-3]:
                return "image"
    convolutions = _find_convolutions(model)
    fitting = {axes: channels for axes, channels in convolutions.items() if len(shape) in (axes + 1, axes + 2)}
    takers = [axes for axes, channels in fitting.items() if shape[-axes - 1] in channels]
    options = takers or ([2] if 2 in convolutions and len(shape) < 5 else list(fitting))
    axes = 2 if 2 in options else next(iter(options), max(len(shape) - 2, 2))
    if axes == 3:
        return "clip" if len(shape) > 3 and shape[-4] == _COLORS else "volume"
    return "signal" if axes == 1 else "image"


def _check_frames_follow_channels(model: nn.Module, shape: Sequence[int]) -> None:
    """Check that the channels come before the frames, as maps are drawn over the axes behind the channels.

    Raises:
        ImageError: They come behind, as in Hugging Face's video models.
    """
    config = getattr(model, "config", None)
    channels = list_channels(model, 3) + list_channels(model, 2)
    is_behind = shape[-3] in channels and shape[-4] not in channels
    if is_behind or (hasattr(config, "num_frames") and shape[-3] == getattr(config, "num_channels", None)):
        raise ImageError(
            f"img: {tuple(shape)} has its frames before its channels, (N, T, C, H, W); camtool reads clips as "
            "(N, C, T, H, W). Wrap a model that takes frames first in a module whose forward calls it with "
            "clip.transpose(1, 2), and pass the transposed clip."
        )


def _find_convolutions(model: nn.Module) -> dict[int, dict[int, None]]:
    """Return for each number of axes the numbers of channels that convolutions take, in the modules' order.

    The answer is not cached: to check that a cached one is still valid takes as long.
    """
    found: dict[int, dict[int, None]] = {}
    for module in list_modules(model):
        if is_convolution(module):
            found.setdefault(len(module.kernel_size), {})[module.in_channels] = None
    return found
