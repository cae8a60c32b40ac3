"""The recorder: a ``with`` block in which the inputs, outputs and gradients of layers are recorded.

The model runs in the block as it would without: layers receive and return the same tensors, and the training mode is
that of the model. Stored tensors are copies, so later writes, e.g. by an in-place ReLU, do not change the record. On a
CPU the data is copied only when such a write happens.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import nn
from typing_extensions import Self

from camtool.arguments.explain_arguments import HasModel, get_module
from camtool.arguments.message_parts import format_count, suggest_names
from camtool.errors import CamtoolError, LayerError
from camtool.hooks.model_passes import run_model
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.structures.modules import find_module, find_module_name
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.recorder.edits import EditHooks, Edits
from camtool.recorder.forward_recorder import EndForward, ForwardRecorder, GradientRecorder
from camtool.recorder.layer_patterns import LayerSelection, select
from camtool.recorder.records import Keep, Record, Storage
from camtool.rendering.text_tables import align_columns


class RecorderBlock:
    """The open blocks of a recorder. Only one thread at a time can have any, and blocks may be nested.

    Args:
        start: Registers the hooks when the outermost block opens; the cleanup undoes it.
        pause: Forgets the running forward pass when any block closes.
        stop: Completes the records when the outermost block closes.

    Attributes:
        depth: The number of open blocks.
        statements: For each depth, the exit method that a ``with`` statement holds, see :class:`SafeExit`.
    """

    def __init__(self, start: Callable[[Cleanup], None], pause: Callable[[], None], stop: Callable[[], None]) -> None:
        self.depth = 0
        self.statements: dict[int, weakref.ref[partial[None]]] = {}
        self._owner = 0
        self._start, self._pause, self._stop = start, pause, stop
        self._cleanup = Cleanup(steps=[])

    def check_thread(self) -> None:
        """Check that no other thread has an open block.

        Raises:
            CamtoolError: Another thread has.
        """
        if self.depth and self._owner != threading.get_ident():
            raise CamtoolError("another thread is in this recorder's block; give each thread a Recorder of its own.")

    def enter(self) -> None:
        """Open a block."""
        if not self.depth:
            self._owner = threading.get_ident()
            self._cleanup.__enter__()
            self._start(self._cleanup)
        self.depth += 1

    def open(self) -> None:
        """Open a block of this thread, or leave no trace of the attempt.

        Raises:
            CamtoolError: Another thread has an open block.
        """
        self.check_thread()
        depth = self.depth
        try:
            self.enter()
        except BaseException:
            # If __enter__ raises, Python does not call __exit__.
            self.leave(depth)
            raise

    def close(self) -> None:
        """Close the innermost block."""
        depth = self.depth - 1
        try:
            self.leave(depth)
        finally:
            self.leave(depth)  # again, as an interrupt may have cut it short

    def leave(self, depth: int) -> None:
        """Close all blocks but ``depth``. A second call does no harm."""
        self.depth = depth
        self._pause()
        self.statements.pop(depth, None)
        if not depth:
            try:
                self._stop()
            finally:
                self._cleanup.close()


class SafeExit:
    """An ``__exit__`` method that runs even if an interrupt arrives before its first line.

    Python checks for interrupts when a function begins. So an interrupt that arrives while the last tensors of a block
    are freed skips ``__exit__``. But a ``with`` statement looks ``__exit__`` up when it begins, and drops the method
    when it ends. If the block is still open when the method is dropped, the block is closed then.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, recorder: Any, owner: type) -> Callable[..., None]:
        if recorder is None:
            return self._function
        block: RecorderBlock = recorder._block
        bound, depth = partial(self._function, recorder), block.depth
        block.statements[depth] = weakref.ref(bound, partial(_leave_dropped_block, weakref.ref(block), depth))
        return bound


def _leave_dropped_block(reference: weakref.ref[RecorderBlock], depth: int, _: object) -> None:
    block = reference()
    if block is not None and block.depth > depth:
        block.leave(depth)


class SeveralCallsWarning(UserWarning):
    """A recorded layer ran more than once in a forward pass, so its record has several entries for it."""


class Recorder:
    """Record what layers receive, return, and get as gradients, inside a ``with`` block.

        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> with Recorder(net, ["0"], inputs=True, gradients=True) as recorder:
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> recorder["0"].inputs[0].tolist(), recorder["0"].shape
        ([[1.0, 1.0]], (1, 2))

    All forward passes in the block are recorded. ``keep`` says what is kept of many:

        >>> loader = [torch.ones(4, 2), 3 * torch.ones(4, 2)]
        >>> with Recorder(net, nn.Linear, inputs=True, keep="mean") as recorder, torch.inference_mode():
        ...     for batch in loader:
        ...         _ = net(batch)
        >>> recorder["0"].inputs[0].tolist()
        [2.0, 2.0]

    Edits change tensors on the way. An edit is a function of one tensor, the first floating one among the inputs or
    outputs of a layer. It returns another tensor, or writes to its argument and returns nothing. A record shows the
    edited tensors:

        >>> from camtool.recorder import scale, zero
        >>> with Recorder(net, edit={"0": zero()}, edit_gradients={"1": scale(2)}, gradients=True) as recorder:
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> recorder["0"].outputs[0].tolist(), recorder["1"].grad_outputs[0].tolist()
        ([[0.0, 0.0]], [[2.0, 2.0]])

    Only the thread that entered the block is recorded, and only the forward and backward passes in the block. If torch
    runs a part of the model again in the backward pass (checkpointing), it is recorded again. TorchScript modules
    accept no hooks, and are skipped.

    Args:
        model: Any module, or what :func:`camtool.load` returned.
        layers: The layers to record, see :func:`camtool.recorder.select`: a dotted name, a wildcard
            (``"layer*.conv1"``), a type (``nn.Conv2d``), a function of name and module, or a list of these. Default:
            the edited layers or, if there are none, all modules.
        inputs: Record the inputs of the layers.
        outputs: Record the outputs of the layers.
        gradients: Record the gradients at the inputs and outputs of the layers, if a backward pass runs in the block.
        keep: What is kept of several forward passes: ``"all"``; the ``"last"``; ``"concat"``, all of them in one
            tensor, concatenated along the first dimension; or a reducer, which needs memory for one result only:
            ``"mean"``, ``"max"`` or ``"histogram"``, a :class:`Mean`, :class:`Max` or :class:`Histogram` with options,
            any object with the same two methods, or a function of the result so far (``None`` at first) and the next
            tensor.
        edit: Edits of outputs by layer. Layers are selected as above, and need not be recorded.
        edit_inputs: Edits of inputs by layer.
        edit_gradients: Edits of the gradients at outputs by layer.
        stop_after_last: Let :meth:`run` end each forward pass as soon as every recorded layer has run.
        device: The device for the records, e.g. ``"cpu"``. Default: the device of each tensor.
        dtype: The dtype for recorded floating tensors, e.g. ``torch.float16``. Default: the dtype of each tensor.
        graph: Keep tensors on their graph, so that gradients can be taken with respect to them. The model then
            continues with copies: if it relies on a layer that writes to its input, its output may differ. Tensors that
            are moved to another ``device`` or ``dtype`` are a branch of the graph: gradients flow back from them, but
            the output does not depend on them.

    Raises:
        LayerError: A layer is unknown, or none matches.
        CamtoolError: ``model`` is not a model, ``keep``, ``device`` or ``dtype`` is unknown, ``keep`` cannot be
            combined with ``graph``, or an edit is not a function.
    """

    def __init__(
        self,
        model: nn.Module | HasModel,
        layers: LayerSelection | None = None,
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
        self._model = model = get_module(model)
        self._stop_after_last, self._has_warned = stop_after_last, False
        kinds = inputs * ["inputs"] + outputs * ["outputs"] + gradients * ["grad_inputs", "grad_outputs"]
        storage = Storage(keep, device, dtype, graph=graph)
        self._edits = EditHooks(model, edit, edit_inputs, edit_gradients)
        names = self._edits.names if layers is None and self._edits.names else select(model, layers)
        self._records = {name: Record(name, storage, kinds) for name in names}
        self._gradients = GradientRecorder(storage)
        self._forwards = ForwardRecorder(model, self._records, storage, self._gradients, kinds)
        hooks = _RecorderHooks(self._edits, self._forwards, self._gradients)
        self._block = RecorderBlock(hooks.start, self._forwards.drop_running_forward, hooks.stop)

    def run(self, inputs: ModelInputs) -> Any:
        """Run the model once, inside or outside of the block. With ``stop_after_last``, end the forward pass early.

        The forward pass then ends with an exception, which the model does not see, inside the last of the recorded
        layers to run. If a layer runs several times in a forward pass, only its calls before that are recorded.

            >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
            >>> recorder = Recorder(net, "1", stop_after_last=True)
            >>> recorder.run(torch.ones(1, 2)) is None, recorder["1"].shape
            (True, (1, 2))

        Args:
            inputs: The inputs of the model: a tensor, a sequence of positional arguments, or a mapping.

        Returns:
            The output of the model, or ``None`` if the forward pass ended early.
        """
        self._block.check_thread()
        depth = self._block.depth
        try:
            try:
                output = self._run(inputs)
            finally:
                self._block.leave(depth)
        finally:
            self._block.leave(depth)  # again, as an interrupt may have cut it short
        self._warn_of_several_calls()
        return output

    def _run(self, inputs: ModelInputs) -> Any:
        self._block.enter()
        self._forwards.awaited = set(self._records) if self._stop_after_last else None
        try:
            return run_model(self._model, inputs)
        except EndForward as end:
            if end.source is not self._forwards:
                raise
            return None

    def __enter__(self) -> Self:
        self._block.open()
        return self

    def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._block.close()
        if error is None:
            self._warn_of_several_calls()

    __exit__ = SafeExit(_exit)

    def __getitem__(self, layer: str | nn.Module) -> Record:
        self._forwards.settle()
        name = find_module_name(self._model, layer) if isinstance(layer, nn.Module) else layer
        if name not in self._records:
            raise LayerError(f"layer {name!r} is not recorded.{suggest_names(name, self._records)}")
        return self._records[name]

    def __contains__(self, layer: object) -> bool:
        return layer in self._records or any(layer is find_module(self._model, name) for name in self._records)

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        self._forwards.settle()
        return iter(self._records.items())

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        rows = [("layer", "module", "calls", "shape")]
        for name, record in self:
            shape = "-" if record.shape is None else str(record.shape)
            kind = type(find_module(self._model, name)).__name__
            rows.append((name or "(model)", kind, str(record.calls), shape))
        head = f"Recorder of {type(self._model).__name__}, {format_count(len(self), 'layer')}"
        return "\n  ".join([head, *align_columns(rows)])

    def _warn_of_several_calls(self) -> None:
        several = [name for name, record in self if record.most_calls > 1]
        if several and not self._block.depth and not self._has_warned:
            self._has_warned = True
            others = f", and {len(several) - 1} more ran several times" if several[1:] else ""
            warnings.warn(
                f"layer {several[0]!r} ran {self[several[0]].most_calls} times in one forward pass{others}; "
                f"the record has an entry for each call, in order.",
                SeveralCallsWarning,
                stacklevel=3,
            )


class _RecorderHooks:
    """All hooks of a recorder, in the order in which they must be registered.

    It does not hold the recorder, so a recorder is freed as soon as nobody uses it.
    """

    def __init__(self, edits: EditHooks, forwards: ForwardRecorder, gradients: GradientRecorder) -> None:
        self._edits, self._forwards, self._gradients = edits, forwards, gradients

    def start(self, cleanup: Cleanup) -> None:
        """Register the hooks when the outermost block opens. The cleanup removes them."""
        self._gradients.start(cleanup)
        self._forwards.add_begin_hook(cleanup)
        self._edits.register(cleanup, self._gradients.add_edit)
        self._forwards.start(cleanup)
        self._gradients.set_active(on=True)

    def stop(self) -> None:
        """Complete the records when the outermost block closes."""
        self._gradients.set_active(on=False)
        self._forwards.settle()
