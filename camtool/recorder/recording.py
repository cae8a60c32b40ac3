"""The recorder itself.

A :class:`Recorder` is a ``with`` block, in which the model runs as it would without: layers are given the very tensors
and hand on the very tensors, and the training mode is the model's own. What is kept is a copy, so what is written to a
tensor later on, by a ReLU in place say, does not change the record; on a CPU the copy is made only when that happens.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, MutableSet
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from camtool.arguments import HasModel, as_module
from camtool.cleanup import Cleanup
from camtool.errors import CamtoolError, LayerError, format_count, near
from camtool.hooks import add_forward_hook, add_forward_pre_hook, call, gradient_hook, remove_gradient_hook
from camtool.modules import module_named, name_of
from camtool.recorder.backward import SentBack
from camtool.recorder.editing import Edits, edit_inputs, edit_output, edited_gradient, edits_by_name, main_tensor_of
from camtool.recorder.edits import Edit
from camtool.recorder.records import Call, Entry, Keep, Keeping, Record
from camtool.recorder.selecting import Which, select
from camtool.structures import Inputs, map_tensors, tensors_in, with_main_tensor

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Recorder", "SeveralCallsWarning"]


class SeveralCallsWarning(UserWarning):
    """A recorded layer ran more than once in a forward, so the first entry of its record is not all there is of it."""


class _Exit:
    """An ``__exit__`` that is made up for if an interrupt arrives before its first line.

    Python looks for interrupts when it begins a function, so one that arrives while the block's last tensors are freed
    skips ``__exit__``. But a ``with`` statement looks ``__exit__`` up as it begins, and drops what it found as it ends.
    If the recorder's block is open when that is dropped, it is left then.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, recorder: Recorder | None, owner: type) -> Callable[..., None]:
        if recorder is None:
            return self._function
        bound, entered = partial(self._function, recorder), recorder._entered
        leave = partial(_leave_dropped_block, weakref.ref(recorder), entered)
        recorder._statements[entered] = weakref.ref(bound, leave)
        return bound


def _leave_dropped_block(reference: weakref.ref[Recorder], entered: int, _: object) -> None:
    recorder = reference()
    if recorder is not None and recorder._entered > entered:
        recorder._leave(entered)


class Recorder:
    """Record what layers receive, return, and get as gradients, for as long as the ``with`` block lasts.

        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> with Recorder(net, ["0"], inputs=True, gradients=True) as recorder:
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> recorder["0"].inputs[0].tolist(), recorder["0"].shape
        ([[1.0, 1.0]], (1, 2))

    As many forwards as run inside are recorded. Of a whole loader's, ``keep`` says what remains:

        >>> loader = [torch.ones(4, 2), 3 * torch.ones(4, 2)]
        >>> with Recorder(net, nn.Linear, inputs=True, keep="mean") as recorder, torch.inference_mode():
        ...     for batch in loader:
        ...         _ = net(batch)
        >>> recorder["0"].inputs[0].tolist()
        [2.0, 2.0]

    Edits change things on the way. Each is a function of one tensor, the first floating one of what a layer gets or
    gives, which returns another tensor, or writes to that one and returns nothing. A record shows what the edits made:

        >>> from camtool.recorder import scale, zero
        >>> with Recorder(net, edit={"0": zero()}, edit_gradients={"1": scale(2)}, gradients=True) as recorder:
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> recorder["0"].outputs[0].tolist(), recorder["1"].grad_outputs[0].tolist()
        ([[0.0, 0.0]], [[2.0, 2.0]])

    Only the thread that entered the block is recorded, and only what happens in the block: forwards, and backward
    passes. A part that torch runs again in the backward pass, a checkpointed one, is recorded again. Modules of
    TorchScript take no hooks, and are left out.

    Args:
        model: Any module, or what :func:`camtool.load` returned.
        layers: Which of its modules, see :func:`camtool.recorder.select`: a dotted name, a wildcard
            (``"layer*.conv1"``), a type (``nn.Conv2d``), a function of name and module, or a list of these. Where it is
            left out: the layers that are edited or, if there are none, all modules.
        inputs: Record what the layers receive.
        outputs: Record what the layers return.
        gradients: Record the gradients at the layers' inputs and outputs when a backward pass runs in the block.
        keep: What is kept of several forwards: ``"all"``; the ``"last"``; all in one tensor, joined along the first
            dimension, ``"concat"``; or what a reducer makes of them one by one, so that memory does not grow:
            ``"mean"``, ``"max"`` and ``"histogram"``, :class:`Mean`, :class:`Max` and :class:`Histogram` with options
            of their own, any object with their two methods, or a function of what there is so far, ``None`` at first,
            and one more tensor.
        edit: By layer, what is done to its output. Layers are named as above, and need not be recorded.
        edit_inputs: By layer, what is done to its input.
        edit_gradients: By layer, what is done to the gradient at its output.
        stop_after_last: Let :meth:`run` end each forward as soon as every recorded layer has run.
        device: Where records are kept, ``"cpu"`` say; by default where they arise.
        dtype: The type in which floating tensors are kept, ``torch.float16`` say; by default their own.
        graph: Keep tensors on their graph, so that gradients can be taken at them. The model then goes on with copies:
            where it relies on a layer's writing to its input, its output may be another. What is brought to another
            ``device`` or ``dtype`` branches off: gradients lead back from it, but the output is not made of it.

    Raises:
        LayerError: A layer is unknown, or none matches.
        CamtoolError: The model is none, ``keep``, ``device`` or ``dtype`` is unknown, ``keep`` does not go with
            ``graph``, or an edit is no function.
    """

    def __init__(
        self,
        model: nn.Module | HasModel,
        layers: Which | None = None,
        *,
        inputs: bool = False,
        outputs: bool = True,
        gradients: bool = False,
        keep: Keep = "all",
        edit: Edits | None = None,
        edit_inputs: Edits | None = None,
        edit_gradients: Edits | None = None,
        stop_after_last: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        graph: bool = False,
    ) -> None:
        self._model = model = as_module(model)
        self._inputs, self._outputs, self._gradients = inputs, outputs, gradients
        kinds = inputs * ["inputs"] + outputs * ["outputs"] + gradients * ["grad_inputs", "grad_outputs"]
        self._keeping = Keeping(keep, device, dtype, graph=graph)
        self._edits = edits_by_name(model, edit, "edit")
        self._edits_of_inputs = edits_by_name(model, edit_inputs, "edit_inputs")
        self._edits_of_gradients = edits_by_name(model, edit_gradients, "edit_gradients")
        edited = [name for name, _ in [*self._edits, *self._edits_of_inputs, *self._edits_of_gradients]]
        names = list(dict.fromkeys(edited)) if layers is None and edited else select(model, layers)
        self._records = {name: Record(name, self._keeping, kinds) for name in names}
        self._stop_after_last = stop_after_last
        self._awaited: set[str] | None = None
        self._entered, self._owner, self._has_warned = 0, 0, False
        self._forward, self._running = 0, False
        self._switch = _Switch()
        self._cleanup = Cleanup(steps=[])
        self._statements: dict[int, weakref.ref[partial[None]]] = {}
        self._taps: list[_Tap] = []
        self._waiting: list[tuple[Record, Any]] = []
        self._leaf_hooks: MutableSet[_LeafHook] = set()
        self._not_arising: frozenset[int | None] = frozenset()
        self._given: frozenset[int | None] = frozenset()

    # ------------------------------------------------------------------------------------------- for those who use it

    def run(self, inputs: Inputs) -> Any:
        """Run the model once, in the block or without one, and end early if the recorder shall stop after the last.

        The forward is then left by an exception that the model does not get to see, from within the layer that was
        missing last. Of layers that run several times in a forward, only what came until then is recorded.

            >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
            >>> recorder = Recorder(net, "1", stop_after_last=True)
            >>> recorder.run(torch.ones(1, 2)) is None, recorder["1"].shape
            (True, (1, 2))

        Args:
            inputs: What the model is called with: a tensor, a sequence of positional arguments, or a mapping.

        Returns:
            The model's output, ``None`` where the forward ended early.
        """
        self._check_thread()
        entered = self._entered
        try:
            try:
                output = self._run(inputs)
            finally:
                self._leave(entered)
        finally:
            self._leave(entered)  # again, as an interrupt may have cut it short
        self._warn_of_several_calls()
        return output

    def _run(self, inputs: Inputs) -> Any:
        self._enter()
        self._awaited = set(self._records) if self._stop_after_last else None
        try:
            return call(self._model, inputs)
        except _EndedEarly as end:
            if end.recorder is not self:
                raise
            return None

    def __enter__(self) -> Self:
        self._check_thread()
        entered = self._entered
        try:
            self._enter()
            return self
        except BaseException:  # without an __enter__ that returned there will be no __exit__
            self._leave(entered)
            raise

    def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        entered = self._entered - 1
        try:
            self._leave(entered)
        finally:
            self._leave(entered)  # again, as an interrupt may have cut it short
        if error is None:
            self._warn_of_several_calls()

    __exit__ = _Exit(_exit)

    def __getitem__(self, layer: str | nn.Module) -> Record:
        self._settle()
        name = name_of(self._model, layer) if isinstance(layer, nn.Module) else layer
        if name not in self._records:
            raise LayerError(f"layer {name!r} is not recorded.{near(name, self._records)}")
        return self._records[name]

    def __contains__(self, layer: object) -> bool:
        return layer in self._records or any(layer is self._at(name) for name in self._records)

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        self._settle()
        return iter(self._records.items())

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        rows = [("layer", "module", "calls", "shape")]
        for name, record in self:
            shape = "-" if record.shape is None else str(record.shape)
            rows.append((name or "(model)", type(self._at(name)).__name__, str(record.calls), shape))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n  ".join([f"Recorder of {type(self._model).__name__}, {format_count(len(self), 'layer')}", *lines])

    # ----------------------------------------------------------------------------------------------- hooks come and go

    def _check_thread(self) -> None:
        if self._entered and self._owner != threading.get_ident():
            raise CamtoolError("another thread is in this recorder's block; give each thread a Recorder of its own.")

    def _enter(self) -> None:
        if not self._entered:
            self._owner = threading.get_ident()
            self._cleanup.__enter__()
            self._register(self._cleanup)
        self._entered += 1

    def _leave(self, entered: int) -> None:
        """Go back to a block that was entered so often; it may be called twice."""
        self._entered, self._awaited, self._running = entered, None, False
        self._statements.pop(entered, None)
        if not entered:
            try:
                self._switch.on = self._running = False
                self._settle()
            finally:
                self._cleanup.close()

    def _register(self, cleanup: Cleanup) -> None:
        self._taps.clear()
        self._leaf_hooks = weakref.WeakSet()
        cleanup.push(self._forget)
        can_wait = self._outputs and not self._inputs and not self._gradients and self._keeping.can_wait
        after = self._after_in_short if can_wait else self._after
        add_forward_pre_hook(cleanup, self._model, self._begin_forward)
        # Edits go ahead of all other hooks, other recorders' too; the last one to say so comes first.
        for name, edit in reversed(self._edits_of_inputs):
            add_forward_pre_hook(cleanup, self._at(name), partial(edit_inputs, name, edit), first=True)
        for name, edit in reversed(self._edits_of_gradients):
            add_forward_hook(cleanup, self._at(name), partial(self._edit_gradient, name, edit), first=True)
        for name, edit in reversed(self._edits):
            add_forward_hook(cleanup, self._at(name), partial(edit_output, name, edit), first=True)
        for name, record in self:
            tap = _Tap(record)
            self._taps.append(tap)
            if self._inputs or self._gradients:
                add_forward_pre_hook(cleanup, self._at(name), partial(self._before, tap))
            add_forward_hook(cleanup, self._at(name), partial(after, tap))
        add_forward_hook(cleanup, self._model, self._end_forward, always=True)
        self._not_arising = frozenset([None, *map(_storage, [*self._model.parameters(), *self._model.buffers()])])
        self._switch.on = True

    def _forget(self) -> None:
        """Let go of what only an open block needs, hooks on leaves included."""
        self._switch.on = self._running = False
        self._taps.clear()
        for hook in list(self._leaf_hooks):
            hook.remove()
        self._leaf_hooks = set()

    def _at(self, name: str) -> nn.Module:
        return module_named(self._model, name)

    def _warn_of_several_calls(self) -> None:
        several = [name for name, record in self if record.most_calls > 1]
        if several and not self._entered and not self._has_warned:
            self._has_warned = True
            others = f", and {len(several) - 1} more ran several times" if several[1:] else ""
            warnings.warn(
                f"layer {several[0]!r} ran {self[several[0]].most_calls} times in one forward{others}; "
                f"the record has an entry for each call, in order.",
                SeveralCallsWarning,
                stacklevel=3,
            )

    # ----------------------------------------------------------------------------------------------- during a forward

    def _begin_forward(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._settle()
        self._forward += 1
        self._running = True
        for tap in self._taps:
            tap.running.clear()  # calls that never ended, as the forward did not
            tap.record.forget_the_forward_before()
        self._given = frozenset(map(_storage, tensors_in((args, kwargs))))

    def _end_forward(self, *_: object) -> None:
        self._running = False
        self._settle()

    def _begin(self, tap: _Tap) -> Call:
        if not self._running:  # somebody calls a part of the model by itself
            self._forward += 1
        return tap.record.begin(self._forward)

    def _before(
        self, tap: _Tap, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        call = self._begin(tap)
        given = _unpacked(args, kwargs)
        tensors = tensors_in(given)
        if self._inputs:
            self._keep(tap.record, call, "inputs", given, tensors)
        sent = None
        if self._gradients:
            entry = tap.record.entry(call, "grad_inputs", given, len(tensors))
            sent = SentBack(tensors, self._keeper(entry), self._on_gradient)
        tap.running.append((call, sent))
        return map_tensors((args, kwargs), Tensor.clone) if self._keeping.graph and self._inputs else None

    def _after(self, tap: _Tap, module: nn.Module, output: Any) -> Any:
        call, sent = tap.running.pop() if tap.running else (self._begin(tap), None)
        tensors = tensors_in(output)
        tap.record.see(tensors)
        if self._outputs:
            self._keep(tap.record, call, "outputs", output, tensors)
        if self._gradients:
            self._await_gradients(tap.record.entry(call, "grad_outputs", output, len(tensors)), tensors)
        if sent is not None:
            sent.returned(tensors, self._on_gradient_of_output)
        if self._awaited is not None:
            self._end_early(self._awaited, tap.record.name, module)
        return map_tensors(output, Tensor.clone) if self._keeping.graph and self._outputs else None

    def _after_in_short(self, tap: _Tap, module: nn.Module, output: Any) -> Any:
        """:meth:`_after` where nothing but outputs is kept: only the copy is made at once, and the rest can wait.

        Between a model's layers, when a processor's caches are full of numbers, Python takes several times as long as
        at the end of the forward, when all records are dealt with one after the other.
        """
        if not self._running:
            return self._after(tap, module, output)
        self._waiting.append((tap.record, map_tensors(output, self._taken)))
        if self._awaited is not None:
            self._end_early(self._awaited, tap.record.name, module)
        return None

    def _settle(self) -> None:
        """Record what waits."""
        if threading.get_ident() != self._owner:  # it looks on, in the middle of a forward perhaps
            return
        waiting, self._waiting = self._waiting, []
        for record, output in waiting:
            call, tensors = record.begin(self._forward), tensors_in(output)
            record.see(tensors)
            record.entry(call, "outputs", output, len(tensors)).held[:] = tensors

    def _end_early(self, awaited: set[str], name: str, module: nn.Module) -> None:
        awaited.discard(name)
        if not awaited and module is not self._model:
            raise _EndedEarly(self)

    def _keep(self, record: Record, call: Call, kind: str, structure: Any, tensors: list[Tensor]) -> None:
        entry = record.entry(call, kind, structure, len(tensors))
        try:
            for place, tensor in enumerate(tensors):
                self._keeping.put(entry, place, self._taken(tensor))
        except CamtoolError as error:  # a reducer's, which does not know whose tensors it gets
            raise LayerError(f"layer {record.name!r}, {kind}: {error}") from error

    def _taken(self, tensor: Tensor) -> Tensor:
        return self._keeping.taken(tensor, self._as_it_is_now)

    def _as_it_is_now(self, tensor: Tensor) -> Tensor:
        """The tensor as it is: what is written to it later is not seen."""
        if self._keeping.graph:
            return tensor  # the model goes on with a copy of it
        storage = _storage(tensor)
        arose_here = self._running and storage not in self._given and storage not in self._not_arising
        return _copied_on_write(tensor) if arose_here else tensor.clone()

    # ------------------------------------------------------------------------------------------------------- gradients

    def _await_gradients(self, entry: Entry, tensors: list[Tensor]) -> None:
        keep = self._keeper(entry)
        for place, tensor in enumerate(tensors):
            if tensor.requires_grad:
                self._on_gradient_of_output(tensor, partial(keep, place))

    def _keeper(self, entry: Entry) -> Callable[[int, Tensor], None]:
        # What is on a graph holds neither the record nor the recorder, which may themselves hold the graph.
        switch, keeping, reference = self._switch, self._keeping, weakref.ref(entry)

        def keep(place: int, gradient: Tensor) -> None:
            entry = reference()
            if switch.on and entry is not None:
                keeping.put(entry, place, keeping.taken(gradient, torch.clone))

        return keep

    def _edit_gradient(self, name: str, edit: Edit, _: nn.Module, output: Any) -> Any:
        switch = self._switch

        def change(gradient: Tensor) -> Tensor | None:
            return edited_gradient(gradient, edit, f"edit_gradients of layer {name!r}") if switch.on else None

        tensor = main_tensor_of(name, output)
        if not tensor.requires_grad or torch.is_inference_mode_enabled():
            return None
        with torch.enable_grad():
            own = tensor.clone()  # of what the layer returned, others may hold the very tensor: its input, a parameter
        gradient_hook(own, change)
        return with_main_tensor(output, own)

    def _on_gradient_of_output(self, tensor: Tensor, see: Callable[[Tensor], None]) -> None:
        self._on_gradient(tensor, self._until_the_next_forward(see) if tensor.is_leaf else see)

    def _until_the_next_forward(self, see: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """For leaves that a layer hands on, a parameter say: they get later forwards' gradients too."""
        heard: int | None = None

        def see_at_first(gradient: Tensor) -> None:
            nonlocal heard
            heard = self._forward if heard is None else heard
            if heard == self._forward:
                see(gradient)

        return see_at_first

    def _on_gradient(self, tensor: Tensor, see: Callable[[Tensor], None]) -> None:
        if tensor.is_leaf:
            hook = _LeafHook(tensor, see)
            self._leaf_hooks.add(hook)
            hook.register()
        else:
            gradient_hook(tensor, see)


# -------------------------------------------------------------------------------------------------------- particulars


@dataclass
class _Switch:
    """Whether hooks that lie on graphs, from where nobody removes them, still act."""

    on: bool = False


@dataclass(eq=False)
class _Tap:
    """A layer's record, and those of its calls that have begun and not ended."""

    record: Record
    running: list[tuple[Call, SentBack | None]] = field(default_factory=list)


class _LeafHook:
    """A hook on a leaf. Only the leaf holds it, so it goes with the leaf if nobody removes it before."""

    def __init__(self, tensor: Tensor, see: Callable[[Tensor], None]) -> None:
        self._see = see
        self._leaf = TensorWeakRef(tensor)

    def __call__(self, gradient: Tensor) -> None:
        self._see(gradient)

    def register(self) -> None:
        """Start to listen."""
        leaf = self._leaf()
        if leaf is not None:
            gradient_hook(leaf, self)

    def remove(self) -> None:
        """Stop; it may be called before :meth:`register`, and twice."""
        leaf = self._leaf()
        if leaf is not None:
            remove_gradient_hook(leaf, self)


class _EndedEarly(BaseException):
    """Ends a forward; no ``except Exception`` of a model's catches it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder


def _unpacked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a layer is given: a single thing, a tuple of several, or a mapping by position and keyword."""
    if kwargs:
        return {**dict(enumerate(args)), **kwargs}
    return args[0] if len(args) == 1 else args


def _storage(tensor: Tensor) -> int | None:
    """What tensors have in common that share their memory; ``None`` for those that do not show it, as vmap's."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, ValueError):  # the latter where a lazy module's parameter has no memory yet
        return None


def _copied_on_write(tensor: Tensor) -> Tensor:
    """A copy that takes neither time nor memory until one of the two is written to.

    Not on a GPU, where what is copied on write does not tell on which streams it is in use; and not of a small part of
    a tensor, a transformer's class token say, as all of that would stay in memory.
    """
    if not tensor.is_cpu or type(tensor) is not Tensor or tensor.is_nested:
        return tensor.clone()
    return _lazy_clone(tensor) if tensor.untyped_storage().nbytes() <= 2 * tensor.nbytes else tensor.clone()


_lazy_clone: Callable[[Tensor], Tensor] = getattr(torch, "_lazy_clone", torch.clone)
