"""The inputs that a model accepts: their data kind, and the checks, the device and the type of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from camtool.arguments.checks import parse_device
from camtool.errors import CamtoolError, ImageError
from camtool.hooks.private_torch import is_convolution
from camtool.hooks.registration import list_foreign_hooks
from camtool.hooks.structures.modules import list_weights, read_tree

# Kind of an input: ``(C, L)``, ``(C, H, W)``, ``(C, D, H, W)`` or ``(C, T, H, W)``.
DataKind: TypeAlias = Literal["signal", "image", "volume", "clip"]

# Data kind → number of axes besides that of the channels.
SPATIAL_AXES: dict[DataKind, int] = {"signal": 1, "image": 2, "volume": 3, "clip": 3}

# Number of axes besides that of the channels → the shape of one input, for messages.
SHAPE_TEXTS: dict[int, str] = {1: "(C, L)", 2: "(C, H, W)", 3: "(C, D, H, W)"}

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COLORS = 3
# Frames of an example clip, as torchvision's r3d_18 takes them.
_EXAMPLE_FRAMES = 16


def check_kind(model: nn.Module, source: Any, kind: DataKind | None = None) -> DataKind:
    """Return the data kind of one input or of a batch, with its values checked; only tensors and arrays are no images.

    A batch may hold no inputs. Arrays of images have their channels last.

    Args:
        model: Its convolutions say how many axes and channels they take.
        source: One input or a batch, in any form.
        kind: The data kind that the user named, if any.

    Raises:
        ImageError: A tensor is nested, sparse, quantized, without data, or of a type that has no arithmetic; a size is
            0, or the channels of images in a tensor come last; or as :func:`infer_kind`.
    """
    if not isinstance(source, (Tensor, np.ndarray)):
        return "image"
    if isinstance(source, Tensor):
        _check_tensor(source)
    kind = infer_kind(model, source.shape, kind)
    shape = tuple(source.shape)
    single = shape[1:] if len(shape) == SPATIAL_AXES[kind] + 2 else shape
    if 0 in single:
        raise ImageError(f"img has shape {shape}, which holds no values; every size of an image is at least 1.")
    # Most shapes show alone that the channels come first, and the model's modules need not be read.
    is_image = isinstance(source, Tensor) and kind == "image" and len(single) == SPATIAL_AXES[kind] + 1
    if is_image and single[-1] in (1, _COLORS) and single[0] not in (1, _COLORS):
        _check_channels_first(model, shape, single)
    return kind


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
        # In most models the first convolution decides, and the others need not be read.
        for module in model.modules() if len(shape) in (3, 4) else ():
            if is_convolution(module) and len(module.kernel_size) == 2 and module.in_channels == shape[-3]:
                return "image"
        kind = _infer_from_convolutions(model, shape)
    else:
        _check_named_kind(kind, shape)
    if SPATIAL_AXES[kind] == 3:
        _check_frames_follow_channels(model, shape)
    return kind


def _check_named_kind(kind: DataKind, shape: Sequence[int]) -> None:
    if not isinstance(kind, str) or kind not in SPATIAL_AXES:
        raise ImageError(f"kind={kind!r} is unknown; it is one of {', '.join(map(repr, get_args(DataKind)))}.")
    if len(shape) - SPATIAL_AXES[kind] not in (1, 2):
        wanted = SHAPE_TEXTS[SPATIAL_AXES[kind]].replace("(", "(N, ")
        raise ImageError(f"img: kind={kind!r} is {wanted}, with or without the N, but the shape is {tuple(shape)}.")


def list_channels(model: nn.Module, axes: int) -> tuple[int, ...]:
    """Return the numbers of channels that the model's convolutions over ``axes`` axes take, the first one's first."""
    return tuple(_find_convolutions(model).get(axes, ()))


def choose_example_shape(model: nn.Module, height: int, width: int) -> tuple[int, ...]:
    """Return the shape of an input that a model takes, ``(C, H, W)``; of a clip if the model takes no images."""
    images, clips = list_channels(model, 2), list_channels(model, 3)
    if clips and not images:
        return clips[0], _EXAMPLE_FRAMES, height, width
    return 1 if images[:1] == (1,) else _COLORS, height, width


def choose_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device for the inputs of a model: the model's own, with which ``device`` must agree.

    A model without parameters takes any device.

    Raises:
        CamtoolError: ``device`` is unknown or is not the model's, or the model has no weights.
    """
    first = next(model.parameters(), None)
    if any(map(is_lazy, list_weights(model))):
        raise CamtoolError(
            "model has lazy layers that have no weights yet; run it once, model(x), and train it or load its weights "
            "before it is explained."
        )
    own = torch.device("cpu") if first is None else first.device
    if own.type == "meta":
        return _choose_device_of_offloaded(model, device)
    if device is None:
        return own
    wanted = parse_device(device)
    if first is None:
        return wanted
    if wanted.type != own.type:
        raise CamtoolError(f"device={str(device)!r}, but the model is on {own}; call model.to({str(device)!r}) first.")
    return own


def _choose_device_of_offloaded(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device of a model whose weights accelerate or a similar library loads when a module runs."""
    modules = read_tree(model).modules
    if not any(map(_loads_weights, modules)):
        raise CamtoolError(
            "model is on the meta device and has no weights; build it on the CPU, or load its weights with "
            "model.to_empty(device='cpu') and model.load_state_dict(state)."
        )
    devices = (getattr(getattr(module, "_hf_hook", None), "execution_device", None) for module in modules)
    chosen = device if device is not None else next((each for each in devices if each is not None), "cpu")
    # accelerate writes the number of a GPU.
    return torch.device("cuda", chosen) if isinstance(chosen, int) else parse_device(chosen)


def _loads_weights(module: nn.Module) -> bool:
    """Return True if something is wrapped around a module's forward, or hooked before it."""
    return "forward" in vars(module) or bool(list_foreign_hooks(module))


def get_dtype(model: nn.Module) -> torch.dtype:
    """Return the type of the model's first floating parameter; float32 for a model without any."""
    return next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32)


def _check_tensor(tensor: Tensor) -> None:
    """Check that a tensor holds plain values."""
    if tensor.is_nested:
        raise ImageError("img is a nested tensor; give a list of tensors (C, H, W).")
    if tensor.layout != torch.strided:
        raise ImageError(f"img is a sparse tensor {tuple(tensor.shape)}; give tensor.to_dense().")
    if tensor.is_quantized:
        raise ImageError(f"img is a quantized tensor {tuple(tensor.shape)}; give tensor.dequantize().")
    if tensor.is_meta:
        raise ImageError(f"img is a tensor {tuple(tensor.shape)} on the meta device; give one with data.")
    # The float8 types can be stored and converted, but not added or multiplied.
    if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        raise ImageError(f"img is a tensor of {tensor.dtype}, which has no arithmetic; give tensor.float().")


def _check_channels_first(model: nn.Module, shape: tuple[int, ...], single: tuple[int, ...]) -> None:
    channels = list_channels(model, 2)
    if single[-1] == (channels[0] if channels else _COLORS) and single[0] not in channels:
        order = "0, 3, 1, 2" if len(shape) > len(single) else "2, 0, 1"
        raise ImageError(
            f"img has shape {shape} with its channels last, and PyTorch's models take them first; give a tensor "
            f"img.permute({order}), or an image as an array (H, W, 3)."
        )


def _infer_from_convolutions(model: nn.Module, shape: Sequence[int]) -> DataKind:
    axes = _infer_axes(model, shape)
    if axes == 3:
        return "clip" if len(shape) > 3 and shape[-4] == _COLORS else "volume"
    return "signal" if axes == 1 else "image"


def _infer_axes(model: nn.Module, shape: Sequence[int]) -> int:
    convolutions = _find_convolutions(model)
    fitting = {axes: channels for axes, channels in convolutions.items() if len(shape) in (axes + 1, axes + 2)}
    takers = [axes for axes, channels in fitting.items() if shape[-axes - 1] in channels]
    options = takers or ([2] if 2 in convolutions and len(shape) < 5 else list(fitting))
    return 2 if 2 in options else next(iter(options), max(len(shape) - 2, 2))


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
    by_axes: dict[int, dict[int, None]] = {}
    for module in read_tree(model).modules:
        if is_convolution(module):
            by_axes.setdefault(len(module.kernel_size), {})[module.in_channels] = None
    return by_axes
