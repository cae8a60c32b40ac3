"""Edits of the inputs, the outputs and the gradients of layers: common ones, and the hooks that apply them.

An edit is any function of a tensor that returns another tensor, or that writes to its argument and returns nothing::

    with Recorder(model, "layer4", edit={"layer3": scale(2)}, edit_gradients={"layer4": clip(-1, 1)}): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from camtool.errors import CamtoolError, LayerError
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.structures.modules import find_module
from camtool.hooks.structures.nested_tensors import find_main_tensor, replace_main_tensor
from camtool.recorder.layer_patterns import LayerSelector, select

# A function of one tensor that returns another tensor, or writes to its argument and returns nothing.
Edit: TypeAlias = Callable[[Tensor], Tensor | None]


def scale(factor: float) -> Edit:
    """Return an edit that multiplies by a number.

    >>> scale(2)(torch.tensor([1.0, -3.0])).tolist()
    [2.0, -6.0]
    """
    return lambda tensor: tensor * factor


def clip(low: float | None = None, high: float | None = None) -> Edit:
    """Return an edit that limits values to ``[low, high]``; ``None`` means no bound.

    >>> clip(-1, 2)(torch.tensor([-5.0, 0.5, 7.0])).tolist()
    [-1.0, 0.5, 2.0]

    Raises:
        CamtoolError: Neither bound is given, or ``low`` is greater than ``high``.
    """
    if low is None and high is None:
        raise CamtoolError("clip needs a bound: give low, high, or both.")
    if low is not None and high is not None and low > high:
        raise CamtoolError(f"clip: low is {low} and high is {high}; low must not be greater than high.")
    return lambda tensor: tensor.clamp(low, high)


def zero() -> Edit:
    """Return an edit that replaces all values by zero. The layers before get the gradient zero.

    >>> zero()(torch.tensor([1.0, -3.0])).tolist()
    [0.0, 0.0]
    """
    return replace(0.0)


def replace(value: float | Tensor) -> Edit:
    """Return an edit that replaces all values by a number or a tensor. The layers before get the gradient zero.

    >>> replace(4)(torch.tensor([1.0, -3.0])).tolist()
    [4.0, 4.0]
    >>> replace(torch.tensor([5.0, 6.0]))(torch.tensor([[1.0, -3.0], [0.0, 0.0]])).tolist()
    [[5.0, 6.0], [5.0, 6.0]]

    Args:
        value: A number, or a tensor that can be broadcast to the shape. Its dtype and device may differ.

    Raises:
        CamtoolError: From the edit, if the shape of ``value`` does not fit.
    """

    def replace_values(tensor: Tensor) -> Tensor:
        other = torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
        try:
            other = other.expand_as(tensor)
        except RuntimeError:
            raise CamtoolError(
                f"replace: a value of shape {tuple(other.shape)} does not fit a tensor of shape {tuple(tensor.shape)}."
            ) from None
        # Unlike a plain copy of the value, this stays on the graph.
        return torch.where(torch.ones_like(tensor, dtype=torch.bool), other, tensor)

    return replace_values


def add_noise(std: float, seed: int) -> Edit:
    """Return an edit that adds normal noise, different in each call. No global generator is used.

    >>> generator = torch.Generator().manual_seed(7)
    >>> expected = 1 + 0.5 * torch.randn(3, generator=generator)
    >>> torch.equal(add_noise(0.5, seed=7)(torch.ones(3)), expected)
    True

    Args:
        std: The standard deviation of the noise, in the unit of the tensor.
        seed: The seed of the noise. The noise is the same on every device and for every dtype.

    Raises:
        CamtoolError: ``std`` is negative.
    """
    if std < 0:
        raise CamtoolError(f"add_noise: std is {std}; a standard deviation is 0 or more.")
    generator = torch.Generator().manual_seed(seed)
    return lambda tensor: tensor + std * torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor)


# Edits by the layers that they belong to.
Edits: TypeAlias = Mapping[LayerSelector, Edit]


class EditHooks:
    """The edits of a recorder: of outputs, of inputs, and of gradients at outputs.

    Attributes:
        names: The names of all edited layers.

    Raises:
        LayerError: A layer is unknown.
        CamtoolError: An argument is not a mapping from layers to functions.
    """

    def __init__(
        self, model: nn.Module, edit: Edits | None, edit_inputs: Edits | None, edit_gradients: Edits | None
    ) -> None:
        self._model = model
        self._output_edits = _find_edited_layers(model, edit, "edit")
        self._input_edits = _find_edited_layers(model, edit_inputs, "edit_inputs")
        self._gradient_edits = _find_edited_layers(model, edit_gradients, "edit_gradients")
        edits = [*self._output_edits, *self._input_edits, *self._gradient_edits]
        self.names = list(dict.fromkeys(name for name, _ in edits))

    def register(self, cleanup: Cleanup, add_gradient_edit: Callable[[str, Edit, nn.Module, Any], Any]) -> None:
        """Register the hooks before all others, also before those of other recorders. The cleanup removes them.

        Each hook goes before the earlier ones, so the last edit of the user is registered first.
        """
        for name, edit in reversed(self._input_edits):
            module = find_module(self._model, name)
            apply: Callable[..., Any] = partial(_apply_input_edit, name, edit)
            add_forward_pre_hook(cleanup, module, apply, prepend=True, description=f"edit_inputs of layer {name!r}")
        for name, edit in reversed(self._gradient_edits):
            module = find_module(self._model, name)
            add_forward_hook(cleanup, module, partial(add_gradient_edit, name, edit), prepend=True)
        for name, edit in reversed(self._output_edits):
            module = find_module(self._model, name)
            apply = partial(_apply_output_edit, name, edit)
            add_forward_hook(cleanup, module, apply, prepend=True, description=f"edit of layer {name!r}")


def get_editable_tensor(name: str, structure: Any) -> Tensor:
    """Return the first floating tensor among the inputs or outputs of a layer; of a quantized one its real values.

    Raises:
        LayerError: There is none.
    """
    tensor = find_main_tensor(structure)
    if tensor is None:
        raise LayerError(f"layer {name!r} has no floating tensor there that could be edited; choose another layer.")
    return tensor.dequantize() if tensor.is_quantized else tensor


def apply_gradient_edit(gradient: Tensor, edit: Edit, description: str) -> Tensor:
    """Return the edited gradient.

    Raises:
        CamtoolError: The edit returns no tensor, or one of another shape. The message begins with ``description``.
    """
    edited = _apply_edit(gradient, edit, description)
    if edited.shape != gradient.shape:
        raise CamtoolError(
            f"{description}: it returned a tensor of shape {tuple(edited.shape)} for a gradient of shape "
            f"{tuple(gradient.shape)}; the shape must stay."
        )
    return edited


def _apply_input_edit(
    name: str, edit: Edit, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    edited = _apply_edit(get_editable_tensor(name, (args, kwargs)), edit, f"edit_inputs of layer {name!r}")
    changed: tuple[Any, dict[str, Any]] = replace_main_tensor((args, kwargs), edited)
    return changed


def _apply_output_edit(name: str, edit: Edit, _: nn.Module, output: Any) -> Any:
    edited = _apply_edit(get_editable_tensor(name, output), edit, f"edit of layer {name!r}")
    return replace_main_tensor(output, edited)


def _apply_edit(tensor: Tensor, edit: Edit, description: str) -> Tensor:
    given = tensor.clone()  # the edit may write to it
    edited = edit(given)
    if edited is None:
        return given
    if not isinstance(edited, Tensor):
        raise CamtoolError(f"{description}: it returned {type(edited).__name__}; return a tensor, or nothing.")
    return edited


def _find_edited_layers(model: nn.Module, edits: Edits | None, argument: str) -> list[tuple[str, Edit]]:
    """Return the names of layers with the edit of each, in the order in which the user gave them."""
    if edits is not None and not isinstance(edits, Mapping):
        raise CamtoolError(f"{argument} must map layers to functions, e.g. {{'layer4': scale(2)}}, not {edits!r}.")
    for edit in (edits or {}).values():
        if not callable(edit):
            raise CamtoolError(f"{argument}: {edit!r} is no function of a tensor; use replace(value) to put a value.")
    return [(name, edit) for which, edit in (edits or {}).items() for name in select(model, which)]
