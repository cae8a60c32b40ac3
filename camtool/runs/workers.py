"""Threads that read, prepare, draw and write photos while the model runs."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_WORKERS = 8
"""With more threads, Python's interpreter lock lets them wait for each other: on 16 cores, 16 were slower than 8."""


def count_workers() -> int:
    """Return how many threads work beside the model: as many as there are cores for this process."""
    # sched_getaffinity knows the cores of a container or of taskset; only Linux has it.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_WORKERS)


class Workers:
    """A ``with`` block with threads. Functions of torch that run in them use one thread each.

    Args:
        count: The number of threads; with 0 everything runs in the thread of the caller.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None
        self._torch_threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        if self._count:
            # Torch would start as many threads for each of these, and the cores would be busy with waiting threads.
            self._pool = ThreadPoolExecutor(self._count, "camtool", torch.set_num_threads, (1,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            # In a thread of its own the call changes nothing but the number that new threads start with.
            thread = threading.Thread(target=torch.set_num_threads, args=(self._torch_threads,))
            thread.start()
            thread.join()

    def map_ahead(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int
    ) -> Generator[_Result, None, None]:
        """Yield ``function(item)`` for each item, in order. Up to ``ahead`` items are begun before they are asked for.

        Raises:
            BaseException: What the function raises for an item is raised when the item's turn comes.
        """
        if self._pool is None:
            yield from map(function, items)
            return
        pending: deque[Future[_Result]] = deque()
        try:
            for item in items:
                pending.append(self._pool.submit(function, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
