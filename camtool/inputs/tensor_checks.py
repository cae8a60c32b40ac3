"""Checks of the tensors and arrays that the user gives as images, and of their device and floating type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from camtool.arguments.checks import parse_device
from camtool.errors import CamtoolError, ImageError
from camtool.hooks.registration import list_foreign_hooks
from camtool.hooks.structures.module_names import list_modules, list_weights
from camtool.inputs.data_kinds import SPATIAL_AXES, DataKind, list_channels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COLORS = 3


def check_tensor(tensor: Tensor) -> None:
    """Check that a tensor holds plain values.

    Raises:
        ImageError: It is nested, sparse, quantized, without data, or of a type that has no arithmetic.
    """
    if tensor.is_nested:
        raise ImageError("img is a nested tensor; give a list of tensors (C, H, W).")
    if tensor.layout != torch.strided:
        raise ImageError(f"img is a sparse tensor {tuple(tensor.shape)}; give tensor.to_dense().")
    if tensor.is_quantized:
        raise ImageError(f"img is a quantized tensor {tuple(tensor.shape)}; give tensor.dequantize().")
    if tensor.is_meta:
        raise ImageError(
            f"img is a tensor {tuple(tensor.shape)} on the meta device, without values; give one with data."
        )
    # The float8 types can be stored and converted, but not added or multiplied.
    if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        raise ImageError(f"img is a tensor of {tensor.dtype}, which has no arithmetic; give tensor.float().")


def check_shape(model: nn.Module, source: Tensor | NDArray[Any], kind: DataKind) -> None:
    """Check that each input of a tensor or an array holds values, and that a tensor of images has its channels first.

    A batch may hold no inputs. Arrays of images have their channels last.

    Args:
        model: Its convolutions say how many channels it takes.
        source: One input or a batch.
        kind: The data kind of the inputs.

    Raises:
        ImageError: A size is 0, or the channels of a tensor come last.
    """
    shape = tuple(source.shape)
    single = shape[1:] if len(shape) == SPATIAL_AXES[kind] + 2 else shape
    if 0 in single:
        raise ImageError(f"img has shape {shape}, which holds no values; every size of an image is at least 1.")
    if not isinstance(source, Tensor) or kind != "image" or len(single) != SPATIAL_AXES[kind] + 1:
        return
    # Most shapes decide this alone, and the model's modules need not be read.
    if single[-1] not in (1, _COLORS) or single[0] in (1, _COLORS):
        return
    channels = list_channels(model, 2)
    if single[-1] == (channels[0] if channels else _COLORS) and single[0] not in channels:
        order = "0, 3, 1, 2" if len(shape) > len(single) else "2, 0, 1"
        raise ImageError(
            f"img has shape {shape} with its channels last, and PyTorch's models take them first; give a tensor "
            f"img.permute({order}), or an image as an array (H, W, 3)."
        )


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
        # accelerate and similar libraries load the weights when a module runs.
        if not any(map(_loads_weights, list_modules(model))):
            raise CamtoolError(
                "model is on the meta device and has no weights; build it on the CPU, or load its weights with "
                "model.to_empty(device='cpu') and model.load_state_dict(state)."
            )
        places = (getattr(getattr(each, "_hf_hook", None), "execution_device", None) for each in list_modules(model))
        place = device if device is not None else next((each for each in places if each is not None), "cpu")
        # accelerate writes the number of a GPU.
        return torch.device("cuda", place) if isinstance(place, int) else parse_device(place)
    wanted = own if device is None else parse_device(device)
    if first is not None and wanted.type != own.type:
        raise CamtoolError(
            f"device={str(device)!r}, but the model is on {own}; move it first: model.to({str(device)!r})."
        )
    return wanted if first is None else own


def _loads_weights(module: nn.Module) -> bool:
    """Return True if something is wrapped around a module's forward, or hooked before it."""
    return "forward" in vars(module) or bool(list_foreign_hooks(module))


def get_dtype(model: nn.Module) -> torch.dtype:
    """Return the type of the model's first floating parameter; float32 for a model without any."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.float32
