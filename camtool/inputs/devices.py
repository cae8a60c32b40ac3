"""The device and the floating type of a model's inputs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from camtool.arguments.checks import parse_device
from camtool.errors import CamtoolError
from camtool.hooks.registration import has_foreign_hooks
from camtool.structures.module_names import list_modules, list_weights

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
    return "forward" in vars(module) or has_foreign_hooks(module)


def get_dtype(model: nn.Module) -> torch.dtype:
    """Return the type of the model's first floating parameter; float32 for a model without any."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.float32
