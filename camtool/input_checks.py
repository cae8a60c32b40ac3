"""Checks of tensors and arrays that the user gives as images: what cannot be read is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from camtool.errors import ImageError
from camtool.inputs import AXES, Kind, channels_over

__all__ = ["check_channels", "check_sizes", "check_tensor"]

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
    if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        raise ImageError(f"img is a tensor of {tensor.dtype}, which has no arithmetic; give tensor.float().")


def check_sizes(shape: Sequence[int], kind: Kind) -> None:
    """Check that an input holds values; a batch may hold no inputs.

    Raises:
        ImageError: A size is 0.
    """
    if 0 in _without_batch(shape, kind):
        raise ImageError(f"img has shape {tuple(shape)}, which holds no values; every size of an image is at least 1.")


def check_channels(model: nn.Module, shape: Sequence[int], kind: Kind) -> None:
    """Check that the channels of a tensor of pictures come first.

    Args:
        model: Its convolutions tell how many channels it takes.
        shape: The shape of the tensor, with or without a batch.
        kind: What the input is.

    Raises:
        ImageError: They come last.
    """
    single = _without_batch(shape, kind)
    if kind == "picture" and len(single) == AXES[kind] + 1 and _is_channels_last(model, single):
        order = "0, 3, 1, 2" if len(shape) > len(single) else "2, 0, 1"
        raise ImageError(
            f"img has shape {tuple(shape)} with its channels last, and PyTorch's models take them first; give a tensor "
            f"img.permute({order}), or a photo as an array (H, W, 3)."
        )


def _without_batch(shape: Sequence[int], kind: Kind) -> tuple[int, ...]:
    return tuple(shape[1:] if len(shape) == AXES[kind] + 2 else shape)


def _is_channels_last(model: nn.Module, single: tuple[int, ...]) -> bool:
    if single[-1] not in (1, _COLORS) or single[0] in (1, _COLORS):  # most are told so, and no module has to be asked
        return False
    channels = channels_over(model, 2)
    taken = channels[0] if channels else _COLORS
    return single[-1] == taken and single[0] not in channels
