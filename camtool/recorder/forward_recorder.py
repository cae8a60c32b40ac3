"""The recording hooks of layers and of their gradients, and what has to be remembered while a forward pass runs.

The gradient of a tensor is the sum over all uses of the tensor. The part of one call of one module is found on the
graph: the nodes that the module added send it along the edges that lead to its inputs. So the inputs of the module are
not changed in any way, and modules that write to their inputs work, too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, MutableSet, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.weak import TensorWeakRef

from camtool.errors import CamtoolError, LayerError, RaiseAs
from camtool.hooks.private_torch import get_backward_pass_id, get_node_number, remove_gradient_hook
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook, add_gradient_hook, add_node_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.structures.modules import find_module
from camtool.hooks.structures.nested_tensors import find_tensors, map_tensors, replace_main_tensor
from camtool.recorder.edits import Edit, apply_gradient_edit, get_editable_tensor
from camtool.recorder.records import Record, RecordedCall, RecordedTensors, Storage, TensorCopier

# A node of the graph and the index of one of its outputs: the place where the gradient of a tensor is summed up.
_Edge: TypeAlias = tuple[Node, int]

_Indices: TypeAlias = tuple[int, ...]

# A function that registers a hook on the gradient of a tensor.
_AddHook: TypeAlias = Callable[[Tensor, Callable[[Tensor], None]], None]


class SentBack:
    """The gradients that one call of a module sends back to its inputs.

    It is created before the call; :meth:`find_nodes` is called after it. If the module gets a tensor several times,
    each of these inputs gets the whole part. If the module returns one of its inputs itself, the part is the whole
    gradient of that tensor, because its uses inside and outside of the module cannot be distinguished.

    Args:
        inputs: The tensors among the inputs of the call.
        keep: A function that gets the index of an input and its gradient, once per backward pass that reaches it.
        add_hook: A function that registers a hook on the gradient of a tensor, and that removes it from leaves in the
            end.
    """

    # Hooks on the graph hold this object. So it must not hold the graph after the call, or the owner of the hooks.

    def __init__(self, inputs: Sequence[Tensor], keep: Callable[[int, Tensor], None], add_hook: _AddHook) -> None:
        self._keep = keep
        self._pass = -1
        self._sums: dict[_Indices, Tensor] = {}
        self._passed_through: set[_Indices] = set()
        self._inputs: dict[_Edge, _Indices] = {}
        for index, tensor in enumerate(inputs):
            if tensor.requires_grad and not torch.is_inference_mode_enabled():
                self._inputs[_get_edge(tensor)] = (*self._inputs.get(_get_edge(tensor), ()), index)
        for indices in self._inputs.values():
            add_hook(inputs[indices[0]], partial(self._finish, indices))
        self._first_number = _read_next_number() if self._inputs else 0

    def find_nodes(self, outputs: Sequence[Tensor], add_hook: _AddHook) -> None:
        """Find the nodes that the call added to the graph, starting at its outputs, and register hooks on them."""
        inputs, self._inputs = self._inputs, {}
        pending = []
        for output in outputs if inputs else ():
            if output.requires_grad and (end := _get_edge(output)) not in inputs:
                pending.append(end[0])
            elif output.requires_grad:
                self._passed_through.add(inputs[end])
                add_hook(output, partial(self._pass_on, inputs[end]))
        seen: set[Node] = set()
        while pending:
            node = pending.pop()
            if node in seen or get_node_number(node) < self._first_number:
                continue
            seen.add(node)
            for slot, edge in enumerate(node.next_functions):
                if edge in inputs:
                    add_node_hook(node, partial(self._add, inputs[edge], slot))
                elif edge[0] is not None:
                    pending.append(edge[0])

    def _add(self, indices: _Indices, slot: int, gradients: tuple[Tensor | None, ...]) -> None:
        part, now = gradients[slot], get_backward_pass_id()
        if now != self._pass:  # an earlier backward pass may have stopped before it reached the inputs
            self._pass, self._sums = now, {}
        if part is not None:
            self._sums[indices] = self._sums[indices] + part if indices in self._sums else part

    def _finish(self, indices: _Indices, _: Tensor) -> None:
        """Pass on the part of an input. Its gradient is complete, so all terms of the part have arrived."""
        part = self._sums.pop(indices, None)
        if part is not None and indices not in self._passed_through:
            self._pass_on(indices, part)

    def _pass_on(self, indices: _Indices, gradient: Tensor) -> None:
        for index in indices:
            self._keep(index, gradient)


def _get_edge(tensor: Tensor) -> _Edge:
    node, slot = get_gradient_edge(tensor)[:2]
    return node, slot


def _read_next_number() -> int:
    """Return the number of a node that is created now. Later nodes have larger numbers."""
    with torch.enable_grad():
        node = torch.ones((), requires_grad=True, device="cpu").view(()).grad_fn
    return get_node_number(cast(Node, node))


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


class ForwardRecorder:
    """Hooks that record what layers receive and return.

    Args:
        model: The model.
        records: The records by the names of layers.
        storage: How tensors are stored.
        gradients: Records the gradients.
        kinds: The kinds to record: ``"inputs"``, ``"outputs"``, ``"grad_inputs"``, ``"grad_outputs"``.

    Attributes:
        awaited: The names of the layers that have not run yet, if the forward pass ends after the last, else None.
    """

    def __init__(
        self,
        model: nn.Module,
        records: Mapping[str, Record],
        storage: Storage,
        gradients: GradientRecorder,
        kinds: list[str],
    ) -> None:
        self._model, self._storage, self._gradients = model, storage, gradients
        self._has_inputs, self._has_outputs = "inputs" in kinds, "outputs" in kinds
        self._has_gradients = "grad_inputs" in kinds
        self.awaited: set[str] | None = None
        self._layers = [_RecordedLayer(record) for record in records.values()]
        self._copier = TensorCopier(graph=storage.graph)
        self._forward, self._is_running = 0, False
        self._deferred: list[tuple[Record, Any]] = []
        self._owner = 0

    def start(self, cleanup: Cleanup) -> None:
        """Register the hooks. The cleanup removes them."""
        self._owner = threading.get_ident()
        cleanup.push(self._forget_running_calls)
        has_outputs_alone = self._has_outputs and not self._has_inputs and not self._has_gradients
        can_be_deferred = has_outputs_alone and self._storage.can_be_deferred
        after = self._defer_output if can_be_deferred else self._record_output
        for layer in self._layers:
            module = find_module(self._model, layer.record.name)
            if self._has_inputs or self._has_gradients:
                add_forward_pre_hook(cleanup, module, partial(self._record_inputs, layer))
            add_forward_hook(cleanup, module, partial(after, layer))
        add_forward_hook(cleanup, self._model, self._end_forward, always_call=True)
        self._copier.exclude_model([*self._model.parameters(), *self._model.buffers()])

    def add_begin_hook(self, cleanup: Cleanup) -> None:
        """Register the hook for the beginning of a forward pass. It must run before all others."""
        add_forward_pre_hook(cleanup, self._model, self._begin_forward)

    def drop_running_forward(self) -> None:
        """Forget the running forward pass: its block has ended."""
        self.awaited, self._is_running = None, False

    def settle(self) -> None:
        """Complete the records with what was deferred.

        Only the thread of the block does this. Another thread may read the recorder in the middle of a forward pass.
        """
        if threading.get_ident() != self._owner:
            return
        deferred, self._deferred = self._deferred, []
        for record, output in deferred:
            call, tensors = record.begin_call(self._forward), find_tensors(output)
            record.update_shape(tensors)
            record.get_slots(call, "outputs", output, len(tensors)).values[:] = tensors

    def _forget_running_calls(self) -> None:
        self._is_running = False
        for layer in self._layers:
            layer.running.clear()

    # ---------------------------------------------------------------------------------------- the forward pass

    def _begin_forward(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.settle()
        self._forward += 1
        self._is_running = True
        for layer in self._layers:
            layer.running.clear()  # calls of a forward pass that failed have not ended
            layer.record.drop_previous_forward()
        self._copier.exclude_inputs(find_tensors((args, kwargs)))

    def _end_forward(self, *_: object) -> None:
        self._is_running = False
        self.settle()

    def _end_early(self, awaited: set[str], name: str, module: nn.Module) -> None:
        awaited.discard(name)
        if not awaited and module is not self._model:
            raise EndForward(self)

    # ------------------------------------------------------------------------------------------ calls of layers

    def _begin_call(self, layer: _RecordedLayer) -> RecordedCall:
        if not self._is_running:  # a part of the model is called by itself
            self._forward += 1
        return layer.record.begin_call(self._forward)

    def _record_inputs(
        self, layer: _RecordedLayer, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        call = self._begin_call(layer)
        given = _join_arguments(args, kwargs)
        tensors = find_tensors(given)
        if self._has_inputs:
            self._store(layer.record, call, "inputs", given, tensors)
        sent_back = None
        if self._has_gradients:
            slots = layer.record.get_slots(call, "grad_inputs", given, len(tensors))
            sent_back = SentBack(tensors, self._gradients.build_writer(slots), self._gradients.add_hook)
        layer.running.append((call, sent_back))
        return map_tensors((args, kwargs), Tensor.clone) if self._storage.graph and self._has_inputs else None

    def _record_output(self, layer: _RecordedLayer, module: nn.Module, output: Any) -> Any:
        call, sent_back = layer.running.pop() if layer.running else (self._begin_call(layer), None)
        tensors = find_tensors(output)
        layer.record.update_shape(tensors)
        if self._has_outputs:
            self._store(layer.record, call, "outputs", output, tensors)
        if self._has_gradients:
            self._await_gradients(layer.record.get_slots(call, "grad_outputs", output, len(tensors)), tensors)
        if sent_back is not None:
            sent_back.find_nodes(tensors, self._add_output_hook)
        if self.awaited is not None:
            self._end_early(self.awaited, layer.record.name, module)
        return map_tensors(output, Tensor.clone) if self._storage.graph and self._has_outputs else None

    def _defer_output(self, layer: _RecordedLayer, module: nn.Module, output: Any) -> Any:
        """Copy an output now and store it later, if nothing but outputs is recorded.

        Between the layers of a model the caches of the processor are full of numbers, so Python code takes several
        times as long as at the end of the forward pass.
        """
        if not self._is_running:
            return self._record_output(layer, module, output)
        self._deferred.append((layer.record, map_tensors(output, self._take)))
        if self.awaited is not None:
            self._end_early(self.awaited, layer.record.name, module)
        return None

    def _store(self, record: Record, call: RecordedCall, kind: str, structure: Any, tensors: list[Tensor]) -> None:
        slots = record.get_slots(call, kind, structure, len(tensors))
        # From a reducer, which does not know the layer.
        with RaiseAs(lambda error: LayerError(f"layer {record.name!r}, {kind}: {error}"), CamtoolError):
            for index, tensor in enumerate(tensors):
                self._storage.store(slots, index, self._take(tensor))

    def _take(self, tensor: Tensor) -> Tensor:
        return self._storage.take(tensor, partial(self._copier.copy, is_running=self._is_running))

    # ------------------------------------------------------------------------------------- gradients at outputs

    def _await_gradients(self, slots: RecordedTensors, tensors: list[Tensor]) -> None:
        store_gradient = self._gradients.build_writer(slots)
        for index, tensor in enumerate(tensors):
            if tensor.requires_grad:
                self._add_output_hook(tensor, partial(store_gradient, index))

    def _add_output_hook(self, tensor: Tensor, function: Callable[[Tensor], None]) -> None:
        # A layer may return a leaf, e.g. a parameter, which gets gradients from later forward passes, too.
        self._gradients.add_hook(tensor, self._limit_to_one_forward(function) if tensor.is_leaf else function)

    def _limit_to_one_forward(self, function: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Return a function that ignores the gradients of all forward passes but the first that it gets one from."""
        first: int | None = None

        def call_in_first_forward(gradient: Tensor) -> None:
            nonlocal first
            first = self._forward if first is None else first
            if first == self._forward:
                function(gradient)

        return call_in_first_forward


@dataclass(eq=False)
class _RecordedLayer:
    """The record of a layer, and those of its calls that have not ended yet."""

    record: Record
    running: list[tuple[RecordedCall, SentBack | None]] = field(default_factory=list)


class EndForward(BaseException):
    """The end of a forward pass after the last recorded layer. No ``except Exception`` of a model catches it.

    Attributes:
        source: The object that raised it.
    """

    def __init__(self, source: ForwardRecorder) -> None:
        super().__init__()
        self.source = source


def _join_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a layer: a single one, a tuple of several, or a mapping by position and name."""
    if kwargs:
        return {**dict(enumerate(args)), **kwargs}
    return args[0] if len(args) == 1 else args
