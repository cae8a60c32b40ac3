"""What is done at a layer: edits of its input, its output, and the gradient at its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from camtool.errors import CamtoolError, LayerError
from camtool.recorder.edits import Edit
from camtool.recorder.selecting import Selector, select
from camtool.structures import main_tensor, with_main_tensor

__all__ = ["Edits", "edit_inputs", "edit_output", "edited_gradient", "edits_by_name", "main_tensor_of"]

Edits: TypeAlias = Mapping[Selector, Edit]
"""What is done at which layers."""


def main_tensor_of(name: str, structure: Any) -> Tensor:
    """What is edited of what a layer got or gave.

    Raises:
        LayerError: It holds no floating tensor.
    """
    tensor = main_tensor(structure)
    if tensor is None:
        raise LayerError(f"layer {name!r} has no floating tensor there that could be edited; choose another layer.")
    return tensor


def edit_inputs(
    name: str, edit: Edit, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """What a layer shall get in the place of its arguments.

    Raises:
        CamtoolError: There is nothing to edit, or the edit returns no tensor.
    """
    edited = _edited(main_tensor_of(name, (args, kwargs)), edit, f"edit_inputs of layer {name!r}")
    changed: tuple[Any, dict[str, Any]] = with_main_tensor((args, kwargs), edited)
    return changed


def edit_output(name: str, edit: Edit, _: nn.Module, output: Any) -> Any:
    """What a layer shall return in the place of its output.

    Raises:
        CamtoolError: There is nothing to edit, or the edit returns no tensor.
    """
    return with_main_tensor(output, _edited(main_tensor_of(name, output), edit, f"edit of layer {name!r}"))


def _edited(tensor: Tensor, edit: Edit, what: str) -> Tensor:
    given = tensor.clone()  # it may be written to
    edited = edit(given)
    if edited is None:
        return given
    if not isinstance(edited, Tensor):
        raise CamtoolError(f"{what}: it returned {type(edited).__name__}; return a tensor, or nothing.")
    return edited


def edited_gradient(gradient: Tensor, edit: Edit, what: str) -> Tensor:
    """The gradient that shall take the place of this one.

    Raises:
        CamtoolError: The edit returns no tensor, or one of another shape; ``what`` tells whose it is.
    """
    edited = _edited(gradient, edit, what)
    if edited.shape != gradient.shape:
        raise CamtoolError(
            f"{what}: it returned a tensor of shape {tuple(edited.shape)} for a gradient of shape "
            f"{tuple(gradient.shape)}; the shape must stay."
        )
    return edited


def edits_by_name(model: nn.Module, edits: Edits | None, argument: str) -> list[tuple[str, Edit]]:
    """The names of layers, each with what is done there, in the order in which a person said it.

    Raises:
        LayerError: A layer is unknown.
        CamtoolError: ``argument`` is no mapping from layers to functions.
    """
    if edits is not None and not isinstance(edits, Mapping):
        raise CamtoolError(f"{argument} must map layers to functions, {{'layer4': scale(2)}} say, not {edits!r}.")
    for edit in (edits or {}).values():
        if not callable(edit):
            raise CamtoolError(f"{argument}: {edit!r} is no function of a tensor; use replace(value) to put a value.")
    return [(name, edit) for which, edit in (edits or {}).items() for name in select(model, which)]
