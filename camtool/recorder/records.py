"""What is kept of what a layer was seen to do: each call, the latest forward, all in one tensor, or a reduction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from camtool.errors import CamtoolError, LayerError, near
from camtool.recorder.reducers import Fold, Histogram, Max, Mean, Reducer
from camtool.structures import map_tensors

__all__ = ["Call", "Entry", "Keep", "Keeping", "Record"]

Keep: TypeAlias = Literal["all", "last", "concat", "mean", "max", "histogram"] | Reducer | Callable[[Any, Tensor], Any]
"""What is kept of many forwards, see :class:`camtool.Recorder`."""

_REDUCERS: dict[str, Callable[[], Reducer]] = {"mean": Mean, "max": Max, "histogram": Histogram}


class Keeping:
    """What is kept of many forwards, and how: on which device, of which type, with a graph or without.

    Args:
        keep: ``"all"``, ``"last"``, ``"concat"``, a reducer by name, a reducer, or a function that folds.
        device: Where it is kept; ``None`` is where it arises.
        dtype: The type that floating tensors are kept in; ``None`` is their own.
        graph: Keep tensors on their graph.

    Raises:
        CamtoolError: ``keep`` is none of these, a reducer is to keep a graph, or torch has no such device or type.
    """

    def __init__(
        self, keep: Keep, device: torch.device | str | None, dtype: torch.dtype | None, *, graph: bool
    ) -> None:
        self.how = keep if keep in ("all", "last", "concat") else "reduce"
        self.graph = graph
        self._device, self._dtype = _device(device), dtype
        self._reducer = None if self.how != "reduce" else _reducer(keep)
        # What is reduced is converted when it is shown: until then it is exact, and small.
        self._converts = self._reducer is None and not (device is None and dtype is None)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise CamtoolError(f"dtype must be one of torch's, torch.float16 say, not {dtype!r}.")
        if graph and self._reducer is not None:
            raise CamtoolError("graph=True keeps every forward's graph, so it cannot go with a reducer; leave one out.")

    @property
    def can_wait(self) -> bool:
        """Whether what was taken may be put in its place later on: it is not reduced, and the model goes on with it."""
        return self._reducer is None and not self.graph

    def entry(self, structure: Any, tensors: int) -> Entry:
        """Where that structure of so many tensors is kept; nothing has come yet."""
        if self._reducer is None:
            return Entry(structure, [None] * tensors)
        return Entry(structure, [copy.deepcopy(self._reducer) for _ in range(tensors)])

    def taken(self, tensor: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
        """The tensor to keep: ``copied``, unless it is another already as it had to be converted."""
        tensor = tensor.detach() if tensor.requires_grad and not self.graph else tensor
        taken = self._converted(tensor) if self._converts else tensor
        return copied(tensor) if taken is tensor else taken

    def put(self, entry: Entry, place: int, tensor: Tensor) -> None:
        """Keep a tensor that was :meth:`taken` at that place."""
        if self._reducer is None:
            entry.held[place] = tensor
        else:
            entry.held[place].update(tensor)

    def shown(self, held: Any) -> Any:
        """What is held at a place; ``None`` where nothing has come to it."""
        result = held if self._reducer is None else held.result()
        if self._reducer is None or result is None:
            return result
        if isinstance(result, Tensor):
            return self._converted(result)
        return map_tensors(result, lambda tensor: tensor.to(device=self._device))

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype if tensor.is_floating_point() else None)


def _device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except RuntimeError as error:
        raise CamtoolError(
            f"device: torch knows no {device!r}; give 'cpu', 'cuda' or another of its devices."
        ) from error


def _reducer(keep: Any) -> Reducer:
    if isinstance(keep, str):
        if keep not in _REDUCERS:
            known = ["all", "last", "concat", *_REDUCERS]
            raise CamtoolError(f"keep: there is no {keep!r}; choose one of {', '.join(known)}.{near(keep, known)}")
        return _REDUCERS[keep]()
    if isinstance(keep, type):
        return _reducer(keep())
    if isinstance(keep, Reducer):
        return keep
    if callable(keep):
        return Fold(keep)
    raise CamtoolError(f"keep must be a name, a reducer or a function, not {keep!r}.")


_HERE = torch.empty(0)
"""Stands, in a structure whose tensors are kept elsewhere, where they stood."""


class Entry:
    """What a layer got or gave in one call: a structure and, for each tensor in it, what is held in its place.

    Args:
        structure: A structure of tensors, which are not kept.
        held: For each of them a tensor or, where calls are reduced, a reducer; ``None`` is nothing yet.
    """

    def __init__(self, structure: Any, held: list[Any]) -> None:
        self.held = held
        self._structure = map_tensors(structure, lambda _: _HERE)

    def filled(self, values: Sequence[Any]) -> Any:
        """The structure with these values in its tensors' places."""
        left = iter(values)
        return map_tensors(self._structure, lambda _: next(left))


@dataclass(eq=False, slots=True)
class Call:
    """A call of a layer, the ``nth`` of it in its forward; where calls are reduced, all that were the ``nth``."""

    nth: int
    entries: dict[str, Entry] = field(default_factory=dict)


class Record:
    """What one layer was seen to do.

    Each list has an entry for each call of the layer, in order. With ``keep="last"`` these are the calls in the latest
    forward; with ``"concat"`` or a reducer there is one entry for all that were the first call in their forward, one
    for all that were the second, and so on: a single entry for a layer that runs once.

    It is complete when a forward has ended; to see a running one, take it from the recorder anew: ``recorder[name]``.

    In an entry, tensors stand in the structure in which the layer got or gave them: what was one tensor is one, and an
    LSTM's ``(output, (h, c))`` stays that. What is no tensor is kept as it is.

    Attributes:
        name: The layer's dotted name.
        calls: How often the layer was called.
        most_calls: How often in one forward, at the most.
        shape: The shape of its latest output, that of the first floating tensor in it; ``None`` before the first.
    """

    def __init__(self, name: str, keeping: Keeping, kinds: Sequence[str]) -> None:
        self.name = name
        self.calls = self.most_calls = 0
        self.shape: tuple[int, ...] | None = None
        self._keeping, self._kinds = keeping, kinds
        self._seen: list[Call] = []
        self._forward, self._nth = -1, 0
        self._joined: dict[tuple[str, int, int], tuple[tuple[Any, ...], Tensor]] = {}

    @property
    def inputs(self) -> list[Any]:
        """What the layer was given, as it was when the call began, unpacked from the tuple that hooks receive.

        That is a tensor where it was given one thing, a tuple of several, and where some came by keyword a mapping by
        position and keyword: ``{0: x, "mask": mask}``.
        """
        return self._entries("inputs")

    @property
    def outputs(self) -> list[Any]:
        """What the layer returned, as it was then; ``None`` where it failed before it did."""
        return self._entries("outputs")

    @property
    def grad_inputs(self) -> list[Any]:
        """The gradients that the layer sent back, in the structure of :attr:`inputs`.

        They are this layer's part of its inputs' gradients, which is what a module's full backward hook gets as
        ``grad_input``. ``None`` stands where none was sent: nobody asked for it, or no backward pass has come by.
        """
        return self._entries("grad_inputs")

    @property
    def grad_outputs(self) -> list[Any]:
        """The gradients that reached the layer, in the structure of :attr:`outputs`; ``None`` where none did.

        They are what ``tensor.register_hook`` gets at the tensors that the layer returned, and what a module's full
        backward hook gets as ``grad_output``. These two differ only where a layer returns a tensor that others hold
        already, as ``nn.Identity`` does: then the tensor's whole gradient stands here. Where a layer returns a view,
        ``nn.Flatten`` say, into which another writes in place, autograd leaves both out: their gradients are ``None``.
        """
        return self._entries("grad_outputs")

    def __repr__(self) -> str:
        entries = self.most_calls if self._keeping.how == "concat" else len(self._seen)
        kinds = "".join(f", {kind}={entries}" for kind in self._kinds)
        return f"Record({self.name!r}, calls={self.calls}, shape={self.shape}{kinds})"

    def see(self, output: Sequence[Tensor]) -> None:
        """Note the shape of the layer's output, which has these tensors in it."""
        for tensor in output:
            if tensor.is_floating_point() and not tensor.is_nested:
                self.shape = tuple(tensor.shape)
                break

    def begin(self, forward: int) -> Call:
        """The call that begins now, in the forward of that number."""
        again = forward == self._forward
        self._nth = self._nth + 1 if again else 0
        self._forward = forward
        self.calls += 1
        if self._nth >= self.most_calls:
            self.most_calls = self._nth + 1
        if not again:
            self.forget_the_forward_before()
        if self._keeping.how == "reduce" and self._nth < len(self._seen):
            return self._seen[self._nth]
        self._seen.append(Call(self._nth))
        return self._seen[-1]

    def forget_the_forward_before(self) -> None:
        """Make room as a forward begins, where only the latest is kept."""
        if self._keeping.how == "last":
            self._seen = []

    def entry(self, call: Call, kind: str, structure: Any, tensors: int) -> Entry:
        """Where that which is seen of a kind in a call is kept.

        Raises:
            LayerError: Calls are reduced, and this one has another number of tensors than those before.
        """
        entry = call.entries.get(kind)
        if entry is None:
            entry = call.entries[kind] = self._keeping.entry(structure, tensors)
        if len(entry.held) != tensors:
            raise LayerError(
                f"layer {self.name!r}: its {kind} were {len(entry.held)} tensors in one forward and {tensors} in "
                f"another, which cannot be reduced; use keep='all' or keep='last'."
            )
        return entry

    def _entries(self, kind: str) -> list[Any]:
        if kind not in self._kinds:
            return []
        if self._keeping.how == "concat":
            return [self._concatenated(kind, nth) for nth in range(self.most_calls)]
        entries = [call.entries.get(kind) for call in self._seen]
        return [each and each.filled([self._keeping.shown(held) for held in each.held]) for each in entries]

    def _concatenated(self, kind: str, nth: int) -> Any:
        entries = [call.entries[kind] for call in self._seen if call.nth == nth and kind in call.entries]
        if not entries:
            return None
        rows = [entry.held for entry in entries]
        if len({*map(len, rows)}) > 1:
            raise self._unequal(kind)
        return entries[0].filled([self._join((kind, nth, i), parts) for i, parts in enumerate(zip(*rows, strict=True))])

    def _join(self, key: tuple[str, int, int], parts: tuple[Any, ...]) -> Tensor | None:
        """The tensors as one; made anew only where there are others than when it was last asked for."""
        if any(part is None for part in parts):
            return None
        before, joined = self._joined.get(key, ((), _HERE))
        if len(before) == len(parts) and all(one is other for one, other in zip(before, parts, strict=True)):
            return joined
        if len({(part.ndim, part.shape[1:]) for part in parts}) > 1:
            raise self._unequal(key[0])
        joined = torch.cat(parts) if parts[0].ndim else torch.stack(parts)
        self._joined[key] = parts, joined
        return joined

    def _unequal(self, kind: str) -> LayerError:
        return LayerError(
            f"layer {self.name!r}: its {kind} do not have the same shape in each forward, so they cannot be "
            f"concatenated; use keep='all'."
        )
