"""The device and the floating type of a model's inputs."""

from __future__ import annotations

import torch
from torch import nn

from camtool.arguments.checks import parse_device
from camtool.errors import CamtoolError

__all__ = [
    "choose_device",
    "get_dtype",
]


def choose_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device for the inputs of a model: the model's own, with which ``device`` must agree.

    A model without parameters takes any device.

    Raises:
        CamtoolError: ``device`` is unknown or is not the model's, or the model has no weights.
    """
    first = next(model.parameters(), None)
    own = torch.device("cpu") if first is None else first.device
    # accelerate leaves parameters on the meta device and loads them when a module runs.
    if own.type == "meta" and not hasattr(model, "hf_device_map"):
        raise CamtoolError(
            "model is on the meta device and has no weights; build it on the CPU, or load its weights with "
            "model.to_empty(device='cpu') and model.load_state_dict(state)."
        )
    wanted = own if device is None else parse_device(device)
    if first is not None and wanted.type != own.type:
        raise CamtoolError(
            f"device={str(device)!r}, but the model is on {own}; move it first: model.to({str(device)!r})."
        )
    return wanted if first is None else own


def get_dtype(model: nn.Module) -> torch.dtype:
    """Return the type of the model's first floating parameter; float32 for a model without any."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.float32
