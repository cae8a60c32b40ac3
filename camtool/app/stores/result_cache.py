"""Results by their key, each computed once, also if several users ask for it at the same time."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class ResultCache(Generic[Value]):
    """The most recently used results, up to a number of them and a size of all together.

    Args:
        max_items: The largest number of results that are kept.
        measure: Returns the size of a result, in any unit; by default none has a size.
        max_size: The largest size of all results together. The newest result stays in any case.
    """

    def __init__(
        self, max_items: int, measure: Callable[[Value], float] = lambda _: 0.0, max_size: float = math.inf
    ) -> None:
        self._max_items, self._measure, self._max_size = max_items, measure, max_size
        self._futures: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._sizes: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._futures)

    def __contains__(self, key: Hashable) -> bool:
        """Return True if the result is there; one that is still being computed is not."""
        with self._lock:
            future = self._futures.get(key)
            return future is not None and future.done()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the result of a key. The first caller computes it; others of the same key wait for it.

        An error reaches all who wait, and is not kept: the next caller computes again.
        """
        with self._lock:
            future = self._futures.get(key)
            mine: Future[Value] | None = None
            if future is None:
                future = mine = self._futures[key] = Future()
            self._futures.move_to_end(key)
            self._drop_oldest()
        if mine is not None:
            self._compute(key, mine, compute)
        return future.result()

    def _compute(self, key: Hashable, future: Future[Value], compute: Callable[[], Value]) -> None:
        try:
            value = compute()
            size = self._measure(value)
            with self._lock:
                if self._futures.get(key) is future:
                    self._sizes[key] = size
                    self._drop_oldest()
            future.set_result(value)
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]
            future.set_exception(error)
            # The waiting threads get the error from the future, this one directly, so that Ctrl-C is not delayed.
            raise

    def _drop_oldest(self) -> None:
        """Remove the results that were not used for longest. One in the making stays with those who wait for it."""
        while len(self._futures) > self._max_items or (len(self._futures) > 1 and self._is_too_large()):
            key, _ = self._futures.popitem(last=False)
            self._sizes.pop(key, None)

    def _is_too_large(self) -> bool:
        return sum(self._sizes.values()) > self._max_size

    def drop_where(self, is_dropped: Callable[[Any], bool]) -> None:
        """Remove the results whose keys fulfill a condition."""
        with self._lock:
            for key in [key for key in self._futures if is_dropped(key)]:
                del self._futures[key]
                self._sizes.pop(key, None)
