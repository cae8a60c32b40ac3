"""Small modules that several tests build their nets of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Attend(nn.Module):
    """``(N, C, h, w)`` to the same, in which the positions have looked at each other."""

    def __init__(self, channels: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.back = nn.Linear(channels, 3 * 2 * heads), nn.Linear(2 * heads, channels)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.heads, 2)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.back(mixed).transpose(1, 2).reshape(x.shape)
