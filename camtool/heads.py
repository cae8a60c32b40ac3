"""Linear heads: the layer whose weights, one vector for each class, give a model's scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from camtool.errors import CamtoolError
from camtool.hooks import observe
from camtool.maps import widened
from camtool.structures import Inputs

__all__ = ["LinearHead", "class_vectors", "linear_head"]


@dataclass(frozen=True)
class LinearHead:
    """A head that averages maps over the positions and weighs them linearly: ``output = weight @ mean(maps) + bias``.

    Attributes:
        weight: ``(K, C)``, for K classes.
        bias: ``(K,)``.
        maps: ``(R, C, *grid)``, what is averaged: the layer's activations, or their positive part.
    """

    weight: Tensor
    bias: Tensor
    maps: Tensor


def linear_head(model: nn.Module, activations: Tensor, logits: Tensor) -> LinearHead | None:
    """Return the head that gives the logits ``(R, K)`` from the average of activations ``(R, C, *grid)``, if linear."""
    for maps in (activations, activations.relu()):
        pooled = maps.flatten(2).mean(2)
        for weight, bias in _linear_layers(model, channels=pooled.shape[1], classes=logits.shape[1]).values():
            expected = (pooled @ weight.T + bias).to(logits.dtype)
            if _same_up_to_rounding(expected, logits):
                return LinearHead(weight, bias, maps)
    return None


def class_vectors(model: nn.Module, inputs: Inputs, logits: Tensor) -> Tensor | None:
    """Return the weights of the linear layer, or 1 x 1 convolution, whose output is the model's: ``(K, C)``.

    A convolution's output may be averaged over the grid, behind a ReLU or not.

    Args:
        model: Any module; it is left as it was found.
        inputs: What the model is called with, for one image.
        logits: What the model returns for it, ``(1, K)``.

    Returns:
        A vector for each class, or ``None`` where no such layer is found.
    """
    for name, (weight, _) in _linear_layers(model, classes=logits.shape[1]).items():
        try:
            output = observe(model, [name], inputs, grad=False).calls[name][-1].detach()
        except CamtoolError:  # it did not run, or cannot be seen
            continue
        if any(_gives(each, logits) for each in (output, output.relu())):
            return weight
    return None


def _gives(output: Tensor, logits: Tensor) -> bool:
    """Return True if a layer's output, averaged over its grid ``(1, K, *grid)`` if it has one, is the logits."""
    if output.shape[:2] != logits.shape:
        return False
    pooled = output.flatten(2).mean(2) if output.ndim > 2 else output
    return _same_up_to_rounding(pooled.to(logits.dtype), logits)


def _linear_layers(model: nn.Module, *, classes: int, channels: int | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weight and bias of the linear layers and 1 x 1 convolutions of this size, by name, in float32 or wider."""
    found = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and _is_linear(weight, classes, channels):
            wide = widened(weight.detach().flatten(1))
            bias = getattr(module, "bias", None)
            found[name] = wide, wide.new_zeros(classes) if bias is None else bias.detach().to(wide)
    return found


def _is_linear(weight: Tensor, classes: int, channels: int | None) -> bool:
    """Return True for the weight ``(classes, channels)`` of a linear layer, or that of a 1 x 1 convolution."""
    if weight.ndim < 2 or len(weight) != classes or weight[0, 0].numel() != 1:
        return False
    return channels is None or weight.shape[1] == channels


def _same_up_to_rounding(one: Tensor, other: Tensor) -> bool:
    # A half-precision value is rounded to 2 or 3 digits, and more leeway would let another kind of pooling pass.
    steps = 4 if other.dtype in (torch.float16, torch.bfloat16) else 64
    tolerance = steps * torch.finfo(other.dtype).eps * float(other.abs().amax())
    return bool((one - other).abs().amax() <= tolerance)
