"""The gradients of recorded layers: keep them, or edit them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableSet
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from camtool.hooks.private_torch import remove_gradient_hook
from camtool.hooks.registration import add_gradient_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.structures.nested_tensors import replace_main_tensor
from camtool.recorder.edits import Edit, apply_gradient_edit, get_editable_tensor
from camtool.recorder.storage import RecordedTensors, Storage


class GradientRecorder:
    """Hooks on the gradients of tensors, which act while the recorder's block is open.

    Hooks on a graph disappear with the graph, and nobody can remove them before. So they check a switch. They hold
    neither the record nor the recorder, which may themselves hold the graph.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._switch = _Switch()
        self._leaf_hooks: MutableSet[_LeafHook] = set()

    def start(self, cleanup: Cleanup) -> None:
        """Prepare for a block; the cleanup removes the hooks on leaves."""
        self._leaf_hooks = weakref.WeakSet()
        cleanup.push(self._remove_leaf_hooks)

    def set_active(self, *, on: bool) -> None:
        """Let the hooks act, or not."""
        self._switch.is_on = on

    def add_hook(self, tensor: Tensor, function: Callable[[Tensor], None]) -> None:
        """Call a function with the gradient of a tensor."""
        if tensor.is_leaf:
            hook = _LeafHook(tensor, function)
            self._leaf_hooks.add(hook)
            hook.register()
        else:
            add_gradient_hook(tensor, function)

    def build_writer(self, slots: RecordedTensors) -> Callable[[int, Tensor], None]:
        """Return a function that stores a gradient in the slot with this index."""
        switch, storage, reference = self._switch, self._storage, weakref.ref(slots)

        def store_gradient(index: int, gradient: Tensor) -> None:
            slots = reference()
            if switch.is_on and slots is not None:
                storage.store(slots, index, storage.take(gradient, torch.clone))

        return store_gradient

    def add_edit(self, name: str, edit: Edit, _: nn.Module, output: Any) -> Any:
        """Edit the gradient at the output of a layer, and return the output that the model continues with."""
        switch = self._switch

        def change(gradient: Tensor) -> Tensor | None:
            return apply_gradient_edit(gradient, edit, f"edit_gradients of layer {name!r}") if switch.is_on else None

        tensor = get_editable_tensor(name, output)
        if not tensor.requires_grad or torch.is_inference_mode_enabled():
            return None
        # The layer may have returned a tensor that others use, too: its input or a parameter. The edit is for the layer
        # alone, so it goes to a clone.
        with torch.enable_grad():
            own = tensor.clone()
        add_gradient_hook(own, change)
        return replace_main_tensor(output, own)

    def _remove_leaf_hooks(self) -> None:
        self.set_active(on=False)
        for hook in list(self._leaf_hooks):
            hook.remove()
        self._leaf_hooks = set()


@dataclass
class _Switch:
    """A switch for hooks on graphs."""

    is_on: bool = False


class _LeafHook:
    """A hook on a leaf. Only the leaf holds it, so it disappears with the leaf if nobody removes it before."""

    def __init__(self, tensor: Tensor, function: Callable[[Tensor], None]) -> None:
        self._function = function
        self._leaf = TensorWeakRef(tensor)

    def __call__(self, gradient: Tensor) -> None:
        self._function(gradient)

    def register(self) -> None:
        """Add the hook to the leaf."""
        leaf = self._leaf()
        if leaf is not None:
            add_gradient_hook(leaf, self)

    def remove(self) -> None:
        """Remove the hook from the leaf. This may be called before :meth:`register`, and twice."""
        leaf = self._leaf()
        if leaf is not None:
            remove_gradient_hook(leaf, self)
