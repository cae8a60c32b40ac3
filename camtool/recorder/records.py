"""The records of a recorder: what each layer received and returned in each of its calls, and how it is stored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from camtool.arguments.checks import parse_device
from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError, LayerError
from camtool.hooks.private_torch import copy_on_write, get_storage_id
from camtool.hooks.structures.nested_tensors import map_tensors
from camtool.recorder.reducers import Fold, Histogram, Max, Mean, Reducer

# The ``keep`` argument of :class:`camtool.Recorder`.
Keep: TypeAlias = Literal["all", "last", "concat", "mean", "max", "histogram"] | Reducer | Callable[[Any, Tensor], Any]

_REDUCERS: dict[str, Callable[[], Reducer]] = {"mean": Mean, "max": Max, "histogram": Histogram}

# A placeholder for tensors that are stored elsewhere.
EMPTY = torch.empty(0, device="cpu")


class Storage:
    """The rule by which tensors of many forward passes are stored: all or some, device, dtype, graph.

    Args:
        keep: ``"all"``, ``"last"``, ``"concat"``, the name of a reducer, a reducer, or a function for :class:`Fold`.
        device: The device of the stored tensors; ``None`` keeps theirs.
        dtype: The dtype of stored floating tensors; ``None`` keeps theirs.
        graph: Keep tensors on their graph.

    Attributes:
        mode: ``"all"``, ``"last"``, ``"concat"`` or ``"reduce"``.
        graph: As above.

    Raises:
        CamtoolError: ``keep`` is none of these, ``graph`` goes with a reducer, or torch has no such device or dtype.
    """

    def __init__(
        self, keep: Keep, device: torch.device | str | None, dtype: torch.dtype | None, *, graph: bool
    ) -> None:
        self.mode = keep if keep in ("all", "last", "concat") else "reduce"
        self.graph = graph
        self._device, self._dtype = None if device is None else parse_device(device), dtype
        self._reducer = None if self.mode != "reduce" else _build_reducer(keep)
        # Results of reducers are converted when they are shown: until then they are exact, and they are small.
        self._converts = self._reducer is None and not (device is None and dtype is None)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise CamtoolError(f"dtype must be a dtype of torch, e.g. torch.float16, not {dtype!r}.")
        if graph and self._reducer is not None:
            raise CamtoolError(
                "graph=True keeps the graph of each pass, so it cannot go with a reducer; leave one out."
            )

    @property
    def can_be_deferred(self) -> bool:
        """True if tensors may be stored later than they are copied: no reducer, and the model needs no copy."""
        return self._reducer is None and not self.graph

    def allocate(self, structure: Any, count: int) -> RecordedTensors:
        """Return empty slots for a structure with ``count`` tensors."""
        if self._reducer is None:
            return RecordedTensors(structure, [None] * count)
        return RecordedTensors(structure, [copy.deepcopy(self._reducer) for _ in range(count)])

    def take(self, tensor: Tensor, copy_tensor: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a tensor to store: converted, or else copied by ``copy_tensor``."""
        tensor = tensor.detach() if tensor.requires_grad and not self.graph else tensor
        taken = self._convert(tensor) if self._converts else tensor
        # A conversion that changes nothing returns the very tensor.
        return copy_tensor(tensor) if taken is tensor else taken

    def store(self, slots: RecordedTensors, index: int, tensor: Tensor) -> None:
        """Store a tensor that :meth:`take` returned in a slot, or pass it to the reducer of the slot."""
        if self._reducer is None:
            slots.values[index] = tensor
        else:
            slots.values[index].update(tensor)

    def show(self, value: Any) -> Any:
        """Return the content of a slot for the user; ``None`` if it is empty."""
        result = value if self._reducer is None else value.result()
        if self._reducer is None or result is None:
            return result
        if isinstance(result, Tensor):
            return self._convert(result)
        return map_tensors(result, lambda tensor: tensor.to(device=self._device))

    def _convert(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype if tensor.is_floating_point() else None)


def _build_reducer(keep: Any) -> Reducer:
    if isinstance(keep, str):
        if keep not in _REDUCERS:
            names = ["all", "last", "concat", *_REDUCERS]
            raise CamtoolError(f"keep knows no {keep!r}; choose one of {', '.join(names)}.{suggest_names(keep, names)}")
        return _REDUCERS[keep]()
    if isinstance(keep, type):
        return _build_reducer(keep())
    if isinstance(keep, Reducer):
        return keep
    if callable(keep):
        return Fold(keep)
    raise CamtoolError(f"keep must be a name, a reducer or a function, not {keep!r}.")


class RecordedTensors:
    """The inputs or outputs of one call of a layer: a structure, and a slot for each tensor in it.

    Args:
        structure: A structure of tensors. The tensors in it are not kept.
        values: For each of them a tensor, or a reducer if calls are reduced; ``None`` is an empty slot.
    """

    def __init__(self, structure: Any, values: list[Any]) -> None:
        self.values = values
        self._structure = map_tensors(structure, lambda _: EMPTY)

    def fill(self, values: Sequence[Any]) -> Any:
        """Return the structure with these values in place of its tensors."""
        left = iter(values)
        return map_tensors(self._structure, lambda _: next(left))


class TensorCopier:
    """Copies tensors so that later writes to them do not change the copy.

    On a CPU a copy on write takes neither time nor memory, but it must not be made of memory that others may read while
    it is written to: that of parameters, buffers and of the inputs of the model. These are copied at once.

    Args:
        graph: Return the tensors themselves. The model then continues with copies of them.
    """

    def __init__(self, *, graph: bool) -> None:
        self._graph = graph
        self._model_memory: frozenset[int | None] = frozenset()
        self._input_memory: frozenset[int | None] = frozenset()

    def exclude_model(self, tensors: Iterable[Tensor]) -> None:
        """Copy these parameters and buffers of the model at once, and tensors that do not show their memory."""
        self._model_memory = frozenset([None, *map(get_storage_id, tensors)])

    def exclude_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Copy these inputs of a forward pass at once."""
        self._input_memory = frozenset(map(get_storage_id, tensors))

    def copy(self, tensor: Tensor, *, is_running: bool) -> Tensor:
        """Return a copy. ``is_running`` means that a forward pass of the whole model runs, so its inputs are known."""
        if self._graph:
            return tensor
        memory = get_storage_id(tensor)
        is_new = is_running and memory not in self._input_memory and memory not in self._model_memory
        return _copy_on_write(tensor) if is_new else tensor.clone()


def _copy_on_write(tensor: Tensor) -> Tensor:
    """Return a copy on write of a tensor on a CPU, and a plain copy of others.

    On a GPU, a copy on write does not record on which streams its memory is used. A small part of a large tensor, e.g.
    the class token of a transformer, is copied at once, as otherwise all of the tensor would stay in memory.
    """
    if not tensor.is_cpu or type(tensor) is not Tensor or tensor.is_nested:
        return tensor.clone()
    return copy_on_write(tensor) if tensor.untyped_storage().nbytes() <= 2 * tensor.nbytes else tensor.clone()


@dataclass(eq=False, slots=True)
class RecordedCall:
    """A call of a layer. If calls are reduced, all calls with the same index in their forward passes.

    Attributes:
        index: The index of the call in its forward pass.
        entries: The recorded tensors by kind: ``"inputs"``, ``"outputs"``, ``"grad_inputs"``, ``"grad_outputs"``.
    """

    index: int
    entries: dict[str, RecordedTensors] = field(default_factory=dict)


class Record:
    """The recorded inputs, outputs and gradients of one layer.

    Each list has one entry per call of the layer, in order. With ``keep="last"`` these are the calls in the latest
    forward pass. With ``"concat"`` or a reducer there is one entry for all calls that were the first in their forward
    pass, one for all that were the second, and so on: a single entry for a layer that runs once.

    A record is complete when the forward pass has ended. To see a running one, ask the recorder again:
    ``recorder[name]``.

    In an entry, tensors keep the structure that the layer received or returned: a single tensor stays one, and the
    output ``(output, (h, c))`` of an LSTM stays a nested tuple. Other objects in it are kept as they are.

    Attributes:
        name: The dotted name of the layer.
        calls: The number of calls of the layer.
        most_calls: The largest number of calls in one forward pass.
        shape: The shape of the first floating tensor in its latest output; ``None`` before the first call.
    """

    def __init__(self, name: str, storage: Storage, kinds: Sequence[str]) -> None:
        self.name = name
        self.calls = self.most_calls = 0
        self.shape: tuple[int, ...] | None = None
        self._storage, self._kinds = storage, kinds
        self._recorded_calls: list[RecordedCall] = []
        self._forward, self._call_index = -1, 0
        self._joined: dict[tuple[str, int, int], tuple[tuple[Any, ...], Tensor]] = {}

    @property
    def inputs(self) -> list[Any]:
        """The inputs of the layer, with their values at the beginning of the call.

        One positional argument is stored as it is, several as a tuple. If there are keyword arguments, all are stored
        in a mapping by position and name: ``{0: x, "mask": mask}``.
        """
        return self._list_entries("inputs")

    @property
    def outputs(self) -> list[Any]:
        """The outputs of the layer, with their values at the end of the call; ``None`` for a call that failed."""
        return self._list_entries("outputs")

    @property
    def grad_inputs(self) -> list[Any]:
        """The gradients that the layer sends back, in the structure of :attr:`inputs`.

        They are this layer's part of the gradients of its inputs, the same as ``grad_input`` in a full backward hook of
        a module. ``None`` means that there is none: it was not requested, or no backward pass has reached the layer.
        """
        return self._list_entries("grad_inputs")

    @property
    def grad_outputs(self) -> list[Any]:
        """The gradients that reach the layer, in the structure of :attr:`outputs`; ``None`` if there is none.

        They are the gradients that ``tensor.register_hook`` passes on for the outputs of the layer, the same as
        ``grad_output`` in a full backward hook of a module. The two differ only for a layer that returns a tensor that
        others use already, as ``nn.Identity`` does: here, it is the whole gradient of that tensor. If a layer returns a
        view, as ``nn.Flatten`` does, and another module writes to it in place, autograd calls no hook: the gradients
        are ``None``.
        """
        return self._list_entries("grad_outputs")

    def __repr__(self) -> str:
        entries = self.most_calls if self._storage.mode == "concat" else len(self._recorded_calls)
        kinds = "".join(f", {kind}={entries}" for kind in self._kinds)
        return f"Record({self.name!r}, calls={self.calls}, shape={self.shape}{kinds})"

    def update_shape(self, tensors: Sequence[Tensor]) -> None:
        """Store the shape of the output of the layer, which consists of these tensors."""
        shapes = (tuple(tensor.shape) for tensor in tensors if tensor.is_floating_point() and not tensor.is_nested)
        self.shape = next(shapes, self.shape)

    def begin_call(self, forward: int) -> RecordedCall:
        """Add a call in the forward pass with this number, and return it."""
        is_same_forward = forward == self._forward
        self._call_index = self._call_index + 1 if is_same_forward else 0
        self._forward = forward
        self.calls += 1
        self.most_calls = max(self.most_calls, self._call_index + 1)
        if not is_same_forward:
            self.drop_previous_forward()
        if self._storage.mode == "reduce" and self._call_index < len(self._recorded_calls):
            return self._recorded_calls[self._call_index]
        self._recorded_calls.append(RecordedCall(self._call_index))
        return self._recorded_calls[-1]

    def drop_previous_forward(self) -> None:
        """Free the memory of the previous forward pass when the next begins, if only the latest is kept."""
        if self._storage.mode == "last":
            self._recorded_calls = []

    def get_slots(self, call: RecordedCall, kind: str, structure: Any, count: int) -> RecordedTensors:
        """Return the slots for one kind of tensors in a call.

        Raises:
            LayerError: Calls are reduced, and this one has another number of tensors than those before.
        """
        slots = call.entries.get(kind)
        if slots is None:
            slots = call.entries[kind] = self._storage.allocate(structure, count)
        if len(slots.values) != count:
            raise LayerError(
                f"layer {self.name!r}: its {kind} were {len(slots.values)} tensors in one forward pass and {count} in "
                f"another, so they cannot be reduced; use keep='all' or keep='last'."
            )
        return slots

    def _list_entries(self, kind: str) -> list[Any]:
        if kind not in self._kinds:
            option = "gradients" if kind.startswith("grad") else kind
            raise LayerError(f"layer {self.name!r}: its {kind} were not recorded; use Recorder(..., {option}=True).")
        if self._storage.mode == "concat":
            return [self._concatenate_calls(kind, call_index) for call_index in range(self.most_calls)]
        entries = [call.entries.get(kind) for call in self._recorded_calls]
        return [entry and entry.fill([self._storage.show(value) for value in entry.values]) for entry in entries]

    def _concatenate_calls(self, kind: str, call_index: int) -> Any:
        calls = [call for call in self._recorded_calls if call.index == call_index]
        entries = [call.entries[kind] for call in calls if kind in call.entries]
        if not entries:
            return None
        rows = [entry.values for entry in entries]
        if len({*map(len, rows)}) > 1:
            raise self._build_shape_error(kind)
        columns = enumerate(zip(*rows, strict=True))
        return entries[0].fill([self._concatenate((kind, call_index, slot), parts) for slot, parts in columns])

    def _concatenate(self, key: tuple[str, int, int], parts: tuple[Any, ...]) -> Tensor | None:
        """Return the tensors as one. The result is cached until there are other tensors."""
        if any(part is None for part in parts):
            return None
        before, joined = self._joined.get(key, ((), EMPTY))
        if len(before) == len(parts) and all(map(is_, before, parts)):
            return joined
        if len({(part.ndim, part.shape[1:]) for part in parts}) > 1:
            raise self._build_shape_error(key[0])
        joined = torch.cat(parts) if parts[0].ndim else torch.stack(parts)
        self._joined[key] = parts, joined
        return joined

    def _build_shape_error(self, kind: str) -> LayerError:
        return LayerError(
            f"layer {self.name!r}: its {kind} do not have the same shape in each forward pass, so they cannot be "
            f"concatenated; use keep='all'."
        )
