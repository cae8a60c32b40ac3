"""Quantized tensors: their real values, and real values with the quantization of another tensor.

Statically quantized modules (``torch.ao.quantization``) return 8-bit integers with a scale and a zero point. Methods
compute with the real values that these stand for.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dequantize(tensor: Tensor) -> Tensor:
    """Return the real values of a quantized tensor, in its memory format; other tensors as they are."""
    # Tensor.dequantize would convert other tensors to float32.
    return tensor.dequantize() if tensor.is_quantized else tensor


def quantize_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return real values with the scale, the zero point, the type and the memory format of a quantized tensor.

    Values between two steps are rounded, and values out of range become the smallest or the largest one. The values of
    ``like`` itself come back exactly.

    Args:
        tensor: Real values.
        like: Quantized with one scale for all channels, as all activations of torch are.
    """
    # torch's kernels for the two memory formats round means differently, e.g. in adaptive average pooling, so values
    # in another format would change the score by themselves.
    values = tensor.detach().float().contiguous(memory_format=_find_memory_format(like))
    return torch.quantize_per_tensor(values, like.q_scale(), like.q_zero_point(), like.dtype)


def _find_memory_format(tensor: Tensor) -> torch.memory_format:
    for axes, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == axes and tensor.is_contiguous(memory_format=memory_format):
            return memory_format
    return torch.contiguous_format
