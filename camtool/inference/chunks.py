"""Chunks: how many variants of an input run at once within a memory budget, and the progress over the chunks.

Perturbation methods such as Score-CAM run a model thousands of times. Their variants are made chunk by chunk, so that
memory does not grow with the number of variants.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, Protocol

from torch import Tensor

from camtool.errors import MethodError
from camtool.hooks.tracing import TracedCall

__all__ = [
    "PassCounter",
    "ProgressListener",
    "Stage",
    "compute_chunk_size",
    "count_largest_output",
    "hide_progress",
    "iterate_chunks",
    "send_progress",
]

# Bytes that one chunk may take, by the estimate of compute_chunk_size. A few images keep the cores of a CPU busy. An
# accelerator needs many images at once, and 1 GiB is a small part of its memory.
_BUDGETS = {"cpu": 96 * 2**20}
_DEFAULT_BUDGET = 2**30

# Tensors as large as the largest one that are alive at once, as an estimate: the input and the output of an operation,
# and two more, e.g. a skip connection and a workspace.
_LIVE_COPIES = 4

# A bar for a shorter wait would only flicker.
_SECONDS_BEFORE_PROGRESS = 2.0

_TQDM_LOCK = Lock()


@dataclass(frozen=True)
class Stage:
    """A long part of the work on one file, such as explaining the tiles of a slide.

    Attributes:
        activity: What is done, with a capital: ``"Explaining"``.
        unit: What is counted, in the singular: ``"tile"``.
        batch_size: How many are done at once.
    """

    activity: str
    unit: str
    batch_size: int = 1


class PassCounter(Protocol):
    """Receiver of the progress of one loop over passes."""

    def update(self, passes: int, /) -> object:
        """Note that further passes are done."""

    def close(self) -> object:
        """Note that the loop has ended, also before its last pass."""


class ProgressListener(Protocol):
    """Function that is called at the start of each loop over passes, with their number. Loops may be nested.

    A loop that is a stage of the work on a file comes with a second argument.
    """

    def __call__(self, count: int, stage: Stage = ..., /) -> PassCounter:
        """Return what follows the loop."""


_listener: ContextVar[ProgressListener | None] = ContextVar("progress_listener", default=None)


def compute_chunk_size(elements: int, like: Tensor) -> int:
    """Return how many variants fit into the memory budget at once; at least 1.

    Args:
        elements: The number of elements of the largest tensor of one variant.
        like: A tensor of the same type on the same device.
    """
    budget = _BUDGETS.get(like.device.type, _DEFAULT_BUDGET)
    return max(1, budget // max(1, _LIVE_COPIES * elements * like.element_size()))


def count_largest_output(calls: Sequence[TracedCall]) -> int:
    """Return the number of elements of the largest output among traced calls; 0 for an output without a tensor."""
    return max(0 if call.shape is None else math.prod(call.shape) for call in calls)


def iterate_chunks(count: int, size: int, stage: Stage | None = None) -> Iterator[slice]:
    """Yield the slices of ``range(count)``, each at most ``size`` long.

    In a terminal or a notebook a progress bar appears if this takes more than two seconds.

    Args:
        count: The number of passes.
        size: The largest number in a chunk.
        stage: What the loop does, if it is no loop of a method over passes.

    Raises:
        MethodError: ``size`` is below 1.
    """
    if size < 1:
        raise MethodError(f"chunk must be 1 or more, got {size}; leave it out to run as many at once as fit.")
    counter = _start_counter(count, stage)
    try:
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            yield part
            counter.update(part.stop - part.start)
    finally:
        counter.close()


def _start_counter(count: int, stage: Stage | None) -> PassCounter:
    listener = _listener.get()
    if listener is None:
        return _LateBar(count, stage or Stage("", "pass"))
    return listener(count) if stage is None else listener(count, stage)


class _LateBar:
    """A progress bar of tqdm that appears after two seconds."""

    def __init__(self, count: int, stage: Stage) -> None:
        self._count, self._done, self._stage = count, 0, stage
        self._bar: Any = None
        self._started = time.monotonic()

    def update(self, passes: int) -> None:
        self._done += passes
        if self._bar is not None:
            self._bar.update(passes)
        elif time.monotonic() - self._started > _SECONDS_BEFORE_PROGRESS:
            # Import tqdm as late as possible: it holds locks, and a process that another thread forks meanwhile would
            # wait for them forever.
            self._bar = _import_tqdm()(
                desc=self._stage.activity or None,
                unit=self._stage.unit,
                total=self._count,
                initial=self._done,
                disable=None,
                leave=False,
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Ignored:
    """A loop that nobody follows."""

    def update(self, passes: int, /) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def send_progress(listener: ProgressListener) -> Iterator[None]:
    """Send the progress of all loops in the block to a listener, which is called in the thread of the loop."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def hide_progress() -> Iterator[None]:
    """Show no progress bar within the block, for callers that show their own. A listener still gets the loops."""
    with send_progress(_listener.get() or (lambda *_: _Ignored())):
        yield


@cache
def _import_tqdm() -> Any:
    """Return the progress bar class for a terminal or a notebook."""
    # Only one thread at a time, and only once: catch_warnings changes the filters of all threads.
    with _TQDM_LOCK, warnings.catch_warnings():
        # In a notebook where tqdm cannot draw it warns. There is no bar then, which does no harm.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm
