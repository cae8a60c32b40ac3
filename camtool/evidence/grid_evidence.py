"""The evidence that a method can read where there is nothing but tensors: in an exported file, or on a device."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from camtool.errors import NotCompilableError

__all__ = ["GridEvidence"]


class GridEvidence:
    """Activations and gradients of one layer, for one class of each image.

    Attributes:
        activations: ``(N, C, *grid)``.
        gradients: The gradient of each image's score with respect to them.
        logits: The scores of the classes, ``(N, K)``.
    """

    def __init__(self, activations: Tensor, gradients: Tensor, logits: Tensor) -> None:
        self.activations, self.gradients, self.logits = activations, gradients, logits

    def __getattr__(self, name: str) -> Any:
        raise NotCompilableError(
            f"the method reads {name!r} of the evidence, and here it has activations and gradients"
        )
