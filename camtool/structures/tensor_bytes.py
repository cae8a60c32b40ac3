"""The bytes of a tensor, for hashes."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["get_bytes"]


def get_bytes(tensor: Tensor) -> bytes:
    """Return the values of a tensor of any type and device, in the order of its axes."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
