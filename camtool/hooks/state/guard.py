"""Leave no trace: restore what an explanation changes in a model and in torch.

:func:`guard` is the block around a call of the library, and around each forward pass in it. It takes a snapshot of what
may change, and :class:`camtool.hooks.state.cleanup.Cleanup` restores it.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, starmap
from operator import attrgetter, is_
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from camtool.hooks import private_torch
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.structures.modules import HELD_TREES, ModuleTree, list_queues, read_tree


def guard(model: nn.Module, *, evaluate: bool = True) -> Cleanup:
    """Leave no trace of a block that runs ``model``, which is in evaluation mode in it.

    At the end these are as before: torch's modes of this thread (grad mode, inference mode, autocast, function modes),
    the global random states of torch, numpy and Python, the ``training`` flag of every module (not only of the root: a
    frozen batch norm stays frozen), the buffers, and queues (``deque``) that are attributes of modules. Flags are set
    as attributes, because a model may override ``train()`` to do more. A model that is in evaluation mode already is
    not written to, so threads may share it. If several blocks use one model at the same time, in one or more threads,
    the last one to end restores the flags. In the block, inference mode is off, and grad mode is too if inference mode
    was on.

    Blocks may be nested: one around a call of the library, and one around each forward pass in it. The modules of the
    model are then read once for all, and the state of the model is copied once.

    One thing stays: what a model sets up permanently at its first forward pass. Hugging Face's models register hooks on
    their own blocks then, and note that they did. The forward passes of other threads may rely on these hooks.

    Args:
        model: Any module.
        evaluate: False leaves the state of the model to the blocks inside, for a block in which it hardly ever runs,
            e.g. because an engine runs instead.
    """
    return Cleanup(partial(_take_snapshot, model, evaluate=evaluate))


def _take_snapshot(model: nn.Module, cleanup: Cleanup, *, evaluate: bool) -> None:
    """Read what may change; the cleanup restores it, the last step first."""
    cleanup.push(partial(restore_generators, save_generators()))
    cleanup.push(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
    # To ask for the state of CUDA's autocast would initialize CUDA.
    for device in ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",):
        cleanup.push(partial(torch.set_autocast_enabled, device, torch.is_autocast_enabled(device)))
        cleanup.push(partial(torch.set_autocast_dtype, device, torch.get_autocast_dtype(device)))
    if torch.is_inference_mode_enabled():
        _leave_inference_mode(cleanup)
    if id(model) not in HELD_TREES.by_model:
        cleanup.push(partial(HELD_TREES.by_model.pop, id(model), None))
        HELD_TREES.by_model[id(model)] = None
    if evaluate:
        _hold_model(model, cleanup)
    # Restored first: a mode that an interrupt left would see the functions that restore the rest.
    cleanup.push(partial(private_torch.restore_function_modes, private_torch.save_function_modes()))


def _leave_inference_mode(cleanup: Cleanup) -> None:
    blocks: list[Any] = []
    # The step comes before the change, see Cleanup. Until the block is in the list, there is nothing to undo.
    cleanup.push(partial(_exit_blocks, blocks))
    blocks.append(private_torch.start_inference_mode(False))
    torch.set_grad_enabled(False)  # as in inference mode; leaving it sets grad mode on


def _exit_blocks(blocks: list[Any]) -> None:
    """Exit the blocks. A second call does no harm."""
    for block in blocks:
        block.__exit__(None, None, None)


def enable_gradients() -> AbstractContextManager[Any]:
    """Record graphs in the block, even if the caller works in ``torch.no_grad`` or ``torch.inference_mode``."""
    # To leave inference mode takes time, and in most calls it is off already.
    if not torch.is_inference_mode_enabled():
        return torch.enable_grad()
    return private_torch.start_inference_mode(False)  # grad mode comes with it


def list_names_in_use(applies: Callable[[nn.Module], bool]) -> list[str]:
    """Return the dotted names of some modules of the models that are in use."""
    models = [use.model for use in list(_USES.by_model.values())]
    return [name for model in models for name, module in model.named_modules() if applies(module)]


def is_library_running() -> bool:
    """Check that a block of this thread has a model in evaluation mode, so that what runs is the library's."""
    thread = threading.get_ident()
    return any(thread in use.holders.values() for use in list(_USES.by_model.values()))


def find_name_in_use(module: nn.Module) -> str:
    """Return what a message calls a module of a model that is in use."""
    kind = type(module).__name__
    name = next(filter(None, list_names_in_use(lambda candidate: candidate is module)), None)
    return f"a {kind}" if name is None else f"layer {name!r} ({kind})"


# ------------------------------------------------------------------------------------------------ state of the model


@dataclass(eq=False)
class _ModelUse:
    """A model in use: its state before, and the blocks that use it.

    Attributes:
        model: The model. Its id is a key while it is in use, so it must stay alive.
        modules: Its modules.
        training: Their training flags.
        is_compiled: True if ``compile()`` was called on one of them, or if ``torch.compile`` returned one.
        buffers: A snapshot of their buffers.
        holders: The blocks that use the model, and their threads.
        has_run: True if a forward pass may have written to the buffers: a block inside the first one has begun.
    """

    model: nn.Module
    modules: list[nn.Module]
    training: list[bool]
    is_compiled: bool
    buffers: BufferSnapshot
    holders: dict[Cleanup, int]
    has_run: bool = False


class _ModelUses:
    """The models in use in this process, by id.

    A signal handler may explain a model while its thread holds the lock. So the lock may be taken again, and between
    any two instructions the models have their holders: what the handler begins it ends before the thread goes on.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_model: dict[int, _ModelUse] = {}


_USES = _ModelUses()


def _hold_model(model: nn.Module, cleanup: Cleanup) -> None:
    thread = threading.get_ident()
    cleanup.push(partial(_release_model, model, cleanup, thread))
    with _USES.lock:
        use = _USES.by_model.get(id(model))
        if use is None:
            tree = read_tree(model)
            training = [getattr(module, "training", False) for module in tree.modules]
            is_compiled = "_orig_mod" in tree.names or any(map(private_torch.get_compiled_call, tree.modules))
            use = _ModelUse(model, tree.modules, training, is_compiled, BufferSnapshot(tree), {cleanup: thread})
            _USES.by_model[id(model)] = use
        else:
            # The first block inside a call comes before all forward passes; those of other threads may have run.
            if use.has_run or thread not in use.holders.values():
                use.buffers.restore()
            use.has_run = True
            use.holders[cleanup] = thread
        for module in [module for module in use.modules if getattr(module, "training", False)]:
            module.training = False
    if use.is_compiled:
        _EAGER_MODE.hold(cleanup)


def _release_model(model: nn.Module, cleanup: Cleanup, thread: int) -> None:
    """Release the model. The last block of a thread restores the buffers, the last of all restores the flags.

    An inner block leaves the buffers to the outer one, because a backward pass that follows may need their present
    values. A second call does no harm.
    """
    with _USES.lock:
        use = _USES.by_model.get(id(model))
        if use is None:
            return
        others = {holder: other for holder, other in [*use.holders.items()] if holder is not cleanup}
        if thread not in others.values():
            use.buffers.restore()
        use.holders = others
        if not others:
            # Also those that the model itself has set.
            for module, was_training in zip(use.modules, use.training, strict=True):
                # A frozen TorchScript module has no training flag.
                if getattr(module, "training", False) is not was_training:
                    module.training = was_training
            _USES.by_model.pop(id(model), None)


class _EagerMode:
    """A switch that makes compiled modules run eagerly, because compiled code ignores hooks that were added later.

    Torch has one such switch for all threads, so the last block to end switches it off.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._holders: set[object] = set()
        self._stance: AbstractContextManager[Any] | None = None
        self._is_changing = False

    def hold(self, cleanup: Cleanup) -> None:
        """Switch it on until the end of the cleanup's block."""
        holder, own = object(), list[Any]()
        cleanup.push(partial(_exit_blocks, own))
        cleanup.push(partial(self._release, holder))
        with self.lock:
            if self._is_changing:  # this is a signal handler, which ends before the change goes on
                own.append(torch.compiler.set_stance("force_eager"))
                return
            try:
                self._is_changing = True
                self._holders.add(holder)
                if self._stance is None:
                    self._stance = torch.compiler.set_stance("force_eager")
            finally:
                self._is_changing = False

    def _release(self, holder: object) -> None:
        with self.lock:
            if holder in self._holders:
                self._is_changing = True
                if len(self._holders) == 1 and self._stance is not None:
                    self._stance.__exit__(None, None, None)
                    self._stance = None
                self._holders.discard(holder)
                self._is_changing = False


_EAGER_MODE = _EagerMode()


def _forget_other_threads() -> None:
    """Release, in a forked child process, what other threads held: they may own the locks, but do not exist here."""
    _EAGER_MODE.lock, _USES.lock, _TORCH_GENERATOR.lock = (threading.RLock() for _ in range(3))
    here = threading.get_ident()
    for use in list(_USES.by_model.values()):
        gone = [(holder, thread) for holder, thread in use.holders.items() if thread != here]
        # Without holders, another thread was just about to begin or to end its block.
        for holder, thread in gone if use.holders else [(Cleanup(), -1)]:
            _release_model(use.model, holder, thread)


# ----------------------------------------------------------------------------------------------------------- buffers


class BufferSnapshot:
    """The buffers of some modules: which tensors they are, and the values in them. And what is in their queues.

    Small floating buffers are compared by value, because batch norm writes its statistics without increasing the
    version counter of the tensor. They are copied in groups: one copy of many small tensors takes a quarter of the time
    of many copies.
    """

    _parts: list[_BufferGroup | _QueueSnapshot]

    @torch.no_grad()
    def __init__(self, tree: ModuleTree) -> None:
        self._modules = tree.modules
        self._counts, self._names, self._tensors = self._read()
        tensors = [tensor for tensor in self._tensors if tensor is not None]
        # Groups follow from these alone: equal ids say that a buffer is shared, whichever tensor it is.
        properties = [*map(_get_kind, tensors)], [*map(Tensor.numel, tensors)], [*map(id, tensors)]
        grouping = tree.structure.buffers
        if grouping is None or grouping[0] != properties:
            grouping = tree.structure.buffers = properties, _group_buffers(tensors)
        groups = [_BufferGroup([tensors[index] for index in indices]) for indices in grouping[1]]
        self._parts = [*groups, *starmap(partial(_QueueSnapshot, self._modules), tree.structure.queues)]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore tensors and values. Unchanged ones are not written to, as other threads may be reading them."""
        for part in self._parts:
            part.restore()
        counts, names, tensors = self._read()
        if counts != self._counts or names != self._names or not all(map(is_, tensors, self._tensors)):
            before = iter(zip(self._names, self._tensors, strict=True))
            for module, count in zip(self._modules, self._counts, strict=True):
                _restore_tensors(module, dict(islice(before, count)))

    def _read(self) -> tuple[list[int], list[str], list[Tensor | None]]:
        """Return the number of buffers of each module, and the names and tensors of all."""
        # Copied in one step, because a forward pass of another thread may add buffers. TorchScript's are no mappings.
        copies = [dict(buffers) if len(buffers) else {} for buffers in map(private_torch.get_buffers, self._modules)]
        owners = [*filter(None, copies)]
        tensors = chain.from_iterable(buffers.values() for buffers in owners)
        return [*map(len, copies)], [*chain.from_iterable(owners)], [*tensors]


def _group_buffers(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the places of the tensors of each group: small ones of one kind together, large ones alone."""
    groups: dict[object, list[int]] = {}
    elements: Counter[object] = Counter()
    first_indices = {id(tensor): index for index, tensor in reversed([*enumerate(tensors)])}
    for index in sorted(first_indices.values()):
        tensor = tensors[index]
        kind = _get_kind(tensor)
        elements[kind] += tensor.numel()
        part = (kind, elements[kind] // (_JOINED - _SMALL)) if tensor.numel() <= _SMALL else index
        groups.setdefault(part, []).append(index)
    return [*groups.values()]


class _BufferGroup:
    """Small buffers of one kind, or a single large one, with a copy of their values."""

    def __init__(self, buffers: list[Tensor]) -> None:
        first = buffers[0]
        is_plain = first.layout == torch.strided and not (first.is_quantized or first.is_nested or first.is_meta)
        self._buffers, self._axes = buffers, first.ndim
        self._is_joined = is_plain and first.numel() <= _SMALL
        self._values = [self._join()] if self._is_joined else [buffer.clone() for buffer in buffers]
        self._write_counts = private_torch.get_write_counts(buffers)

    def _join(self) -> Tensor:
        """Return the values of small buffers as one tensor."""
        if not self._axes:
            return torch.stack(self._buffers)
        # Rows are made anew each time, as those of a transposed buffer are copies.
        return torch.cat(self._buffers if self._axes == 1 else [buffer.reshape(-1) for buffer in self._buffers])

    def restore(self) -> None:
        """Copy back the values of the buffers that were written to."""
        if not self._is_unchanged():
            self._copy_back()

    def _is_unchanged(self) -> bool:
        if self._is_joined and self._values[0].is_floating_point():
            return torch.equal(self._join(), self._values[0])
        is_counted = private_torch.get_write_counts(self._buffers) != self._write_counts
        return not (is_counted or any(map(Tensor.is_inference, self._buffers)))

    def _copy_back(self) -> None:
        """Write the values before to the buffers that have others now.

        A write that the version counter did not count is undone without counting, too: if the version of a saved tensor
        changes, a graph that was recorded in between refuses to run backward.
        """
        values = self._values
        if self._is_joined:
            parts = values[0].split([buffer.numel() for buffer in self._buffers])
            values = [part.reshape(buffer.shape) for part, buffer in zip(parts, self._buffers, strict=True)]
        for buffer, before, write_count in zip(self._buffers, values, self._write_counts, strict=True):
            may_count = private_torch.get_write_count(buffer) != write_count or buffer.is_inference()
            was_written = not torch.equal(buffer, before) if self._is_joined else may_count
            if was_written:
                # In inference mode, both inference tensors and ordinary tensors can be written to.
                with private_torch.start_inference_mode(True):
                    (buffer if may_count else buffer.data).copy_(before)
        self._write_counts = private_torch.get_write_counts(self._buffers)


class _QueueSnapshot:
    """The entries of the queues in an attribute of a module, e.g. actions that later forward passes return."""

    def __init__(self, modules: Sequence[nn.Module], index: int, name: str) -> None:
        self._attributes, self._name, self._value = vars(modules[index]), name, vars(modules[index]).get(name)
        self._entries = [(queue, [*queue]) for queue in list_queues(self._value)]

    def restore(self) -> None:
        """Put back what forward passes took out of the queues, and remove what they put in."""
        self._attributes[self._name] = self._value
        for queue, entries in self._entries:
            if len(queue) != len(entries) or not all(map(is_, queue, entries)):
                queue.clear()
                queue.extend(entries)


# Up to this number of elements, buffers are copied in groups and, if floating, compared by value. The batch norms of
# usual networks have at most a few thousand channels. For larger buffers, e.g. masks, a comparison takes too long, so
# their version counter alone decides whether they were written to.
_SMALL = 4096

# Fewer elements than this are joined in one thread. Torch divides the work for more of them, which takes longer.
_JOINED = 32768

# Properties that are the same for all buffers of a group. They may change when the data of a buffer are replaced.
_get_kind = attrgetter("dtype", "device", "layout", "ndim", "is_nested")


def _restore_tensors(module: nn.Module, before: dict[str, Tensor | None]) -> None:
    present = dict(private_torch.get_buffers(module).items())
    for name in present.keys() - before.keys():
        delattr(module, name)
    for name, buffer in before.items():
        if present.get(name) is not buffer:
            private_torch.get_buffers(module)[name] = buffer


# ------------------------------------------------------------------------------------------ global random generators


def save_generators() -> dict[str, Any]:
    """Return the states of the global random generators."""
    with _TORCH_GENERATOR.lock:
        states: dict[str, Any] = {"torch": torch.get_rng_state()}
    states["python"] = random.getstate()
    # To ask CUDA for its state would initialize it, and numpy is not imported only to be restored.
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Put the global random generators back into states that :func:`save_generators` returned."""
    with _TORCH_GENERATOR.lock:
        torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def were_generators_used(before: dict[str, Any]) -> bool:
    """Check that a global random generator has another state than :func:`save_generators` returned before."""
    return not _are_equal(save_generators(), before)


def seed_generators_anew() -> None:
    """Give the global random generators other states, which follow from that of torch's generator."""
    with _TORCH_GENERATOR.lock:
        seed = int(torch.randint(2**31, (), device="cpu"))
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    # As below, a generator that is not in use stays so.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


# Access to torch's global generator, by one thread at a time. torch.get_rng_state makes a Python object while it holds
# a lock of its own. If that starts a garbage collection which runs Python code, another thread may go on and wait for
# torch's lock without giving Python's back: neither of the two would ever go on. A lock of Python gives it back.
_TORCH_GENERATOR = SimpleNamespace(lock=threading.RLock())

# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_are_equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    return bool((first == second).all()) if hasattr(first, "all") else bool(first == second)
