"""Chunks: how many variants of an input run at once within a memory budget, and a progress bar over the chunks.

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
from functools import cache
from threading import Lock
from typing import Any

from torch import Tensor

from camtool.errors import MethodError
from camtool.hooks.tracing import TracedCall

__all__ = ["compute_chunk_size", "count_largest_output", "hide_progress", "iterate_chunks"]

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
_is_progress_hidden: ContextVar[bool] = ContextVar("is_progress_hidden", default=False)


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


def iterate_chunks(count: int, size: int) -> Iterator[slice]:
    """Yield the slices of ``range(count)``, each at most ``size`` long.

    In a terminal or a notebook a progress bar appears if this takes more than two seconds.

    Raises:
        MethodError: ``size`` is below 1.
    """
    if size < 1:
        raise MethodError(f"chunk must be 1 or more, got {size}; leave it out to run as many at once as fit.")
    bar, started = None, time.monotonic()
    try:
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            yield part
            if bar is not None:
                bar.update(part.stop - part.start)
            elif time.monotonic() - started > _SECONDS_BEFORE_PROGRESS and not _is_progress_hidden.get():
                # Import tqdm as late as possible: it holds locks, and a process that another thread forks meanwhile
                # would wait for them forever.
                bar = _import_tqdm()(total=count, initial=part.stop, unit="pass", disable=None, leave=False)
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def hide_progress() -> Iterator[None]:
    """Show no progress bar within the block, for callers that show their own."""
    token = _is_progress_hidden.set(True)
    try:
        yield
    finally:
        _is_progress_hidden.reset(token)


@cache
def _import_tqdm() -> Any:
    """Return the progress bar class for a terminal or a notebook."""
    # Only one thread at a time, and only once: catch_warnings changes the filters of all threads.
    with _TQDM_LOCK, warnings.catch_warnings():
        # In a notebook where tqdm cannot draw it warns. There is no bar then, which does no harm.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm
