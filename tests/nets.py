"""Small modules that several tests build their nets of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
