"""Random parameters for a model, for as long as a block lasts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from camtool.errors import MetricError
from camtool.state.cleanup import Cleanup
from camtool.state.random_state import preserve_generators

__all__ = ["list_parameter_modules", "randomize_parameters"]


def list_parameter_modules(model: nn.Module) -> list[str]:
    """Return the names of the modules that hold parameters themselves, the last registered one first.

    Modules are registered in the order in which they run in nearly all models, so the first name is the output layer.

    Raises:
        MetricError: The model has no parameter.
    """
    names = [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]
    if not names:
        raise MetricError(f"model {type(model).__name__} has no parameters that can be randomized.")
    return names[::-1]


def randomize_parameters(model: nn.Module, names: Sequence[str], *, seed: int) -> Cleanup:
    """Run the block with random parameters in some modules, and restore them afterwards, also after Ctrl-C.

    A module with a method ``reset_parameters`` gets the values with which a training would start. Otherwise, e.g. for
    position embeddings, the values of each parameter are shuffled. Buffers stay: with reset statistics of the batch
    norms the activations of deep networks would vanish, and all maps would be constant.

    The values are drawn on the CPU from the seed and the module's name alone, so they do not depend on the device or on
    ``names``. The user's tensors are not written to: their parameters point to other memory meanwhile. So no other
    thread may use the model.

    Args:
        model: Any module.
        names: Names of its modules.
        seed: The seed.

    Raises:
        MetricError: The model has no such module.
    """

    def replace(cleanup: Cleanup) -> None:
        preserve_generators(cleanup)
        for name in names:
            module = _get_module(model, name)
            for parameter, value in _draw_parameters(module, seed + _hash_name(name)):
                original = parameter.data
                cleanup.push(partial(setattr, parameter, "data", original))
                parameter.data = value.to(original)

    return Cleanup(replace)


def _get_module(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise MetricError(f"layers: the model has no module {name!r}; see model.named_modules().") from error


def _hash_name(name: str) -> int:
    """Return a number for a name that is the same in every process, unlike hash()."""
    return int.from_bytes(name.encode(), "big") % (2**31 - 1)


def _draw_parameters(module: nn.Module, seed: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each of the module's own parameters with a random value, on the CPU."""
    # Not torch.manual_seed, which would seed CUDA once it is initialized.
    generator = torch.default_generator.manual_seed(seed)
    fresh = _reset_copy(module)
    for name, parameter in module.named_parameters(recurse=False):
        if fresh is not None:
            yield parameter, fresh[name]
        else:
            values = parameter.detach().cpu().flatten()
            yield parameter, values[torch.randperm(len(values), generator=generator)].reshape(parameter.shape)


def _reset_copy(module: nn.Module) -> dict[str, Tensor] | None:
    """Return the parameters of a copy of a module after ``reset_parameters()``; None if that is not possible."""
    if not callable(getattr(module, "reset_parameters", None)):
        return None
    try:
        copied: Any = copy.deepcopy(module).cpu()
        copied.reset_parameters()
    except (RuntimeError, TypeError, ValueError, AttributeError, copy.Error):
        return None
    return {name: parameter.detach() for name, parameter in copied.named_parameters(recurse=False)}
