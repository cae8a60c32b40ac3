"""The storage of recorded tensors: device, dtype, reducers of many forward passes, and copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from camtool.arguments.checks import parse_device
from camtool.arguments.messages import suggest_names
from camtool.errors import CamtoolError
from camtool.hooks.private_torch import copy_on_write, get_storage_id
from camtool.hooks.structures.nested_tensors import map_tensors
from camtool.recorder.reducers import Fold, Histogram, Max, Mean, Reducer

Keep: TypeAlias = Literal["all", "last", "concat", "mean", "max", "histogram"] | Reducer | Callable[[Any, Tensor], Any]
"""The ``keep`` argument of :class:`camtool.Recorder`."""

_REDUCERS: dict[str, Callable[[], Reducer]] = {"mean": Mean, "max": Max, "histogram": Histogram}

EMPTY = torch.empty(0, device="cpu")
"""A placeholder for tensors that are stored elsewhere."""


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
            known = ["all", "last", "concat", *_REDUCERS]
            raise CamtoolError(f"keep knows no {keep!r}; choose one of {', '.join(known)}.{suggest_names(keep, known)}")
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
