"""Class vectors: the weights of the linear layer that gives the scores of the classes, one vector per class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from camtool.errors import CamtoolError
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.maps import upcast


def find_class_vectors(model: nn.Module, inputs: ModelInputs, logits: Tensor) -> Tensor | None:
    """Return the weights of the linear layer, or 1 x 1 convolution, whose output is the model's: ``(K, C)``.

    A convolution's output may be averaged over the grid, with or without a ReLU before.

    Args:
        model: Any module; it is left unchanged.
        inputs: The model's inputs for one image.
        logits: The model's output for it, ``(1, K)``.

    Returns:
        A vector for each class, or ``None`` if there is no such layer.
    """
    for name, (weight, _) in find_linear_layers(model, classes=logits.shape[1]).items():
        try:
            output = run_with_hooks(model, [name], inputs, grad=False).calls[name][-1].detach()
        except CamtoolError:  # the layer did not run, or cannot be hooked
            continue
        if any(_gives_logits(candidate, logits) for candidate in (output, output.relu())):
            return weight
    return None


def _gives_logits(output: Tensor, logits: Tensor) -> bool:
    """Return True if a layer's output, averaged over its grid if it has one, is the logits ``(1, K)``."""
    if output.shape[:2] != logits.shape:
        return False
    pooled = output.flatten(2).mean(2) if output.ndim > 2 else output
    return is_same_up_to_rounding(pooled.to(logits.dtype), logits)


def find_linear_layers(
    model: nn.Module, *, classes: int, channels: int | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weight and bias of the linear layers and 1 x 1 convolutions of this size, by name, in float32 or wider.

    Args:
        model: Any module.
        classes: The number of output channels.
        channels: The number of input channels; any by default.
    """
    layers = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and _is_linear(weight, classes, channels):
            wide = upcast(weight.detach().flatten(1))
            bias = getattr(module, "bias", None)
            layers[name] = wide, wide.new_zeros(classes) if bias is None else bias.detach().to(wide)
    return layers


def _is_linear(weight: Tensor, classes: int, channels: int | None) -> bool:
    """Return True for the weight ``(classes, channels)`` of a linear layer, or that of a 1 x 1 convolution."""
    if weight.ndim < 2 or len(weight) != classes or weight[0, 0].numel() != 1:
        return False
    # An offloaded weight has no values between forward passes, and a shard (DTensor) does not mix with other tensors.
    if weight.is_meta or hasattr(weight, "__tensor_flatten__"):
        return False
    return channels is None or weight.shape[1] == channels


def is_same_up_to_rounding(first: Tensor, second: Tensor) -> bool:
    """Return True if two outputs differ by no more than rounding in the second one's type."""
    # Half precision keeps 2 or 3 digits, so 64 steps there would also accept another kind of pooling.
    steps = 4 if second.dtype in (torch.float16, torch.bfloat16) else 64
    tolerance = steps * torch.finfo(second.dtype).eps * float(second.abs().amax())
    return bool((first - second).abs().amax() <= tolerance)
