"""The models that the page offers, each loaded once, and results by their key, each computed once.

That holds also if several users ask for one at the same time.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from camtool.app.sentences import to_sentence
from camtool.arguments.messages import suggest_names
from camtool.errors import CamtoolError, ModelError
from camtool.models import Loaded

DEMO = "demo"
"""Name of the bundled model, with which the page starts if no other is given."""

_log = logging.getLogger(__name__)


class ModelStore:
    """A fixed list of models, by name. Names that are not on it are refused.

    Args:
        names: The names, in the order in which the page shows them.
        load: From a name to the model.
        max_loaded: The most models that stay in memory. The one that was not used for longest makes room.

    Attributes:
        on_drop: Called with the name of each model that made room.
    """

    def __init__(self, names: Sequence[str], load: Callable[[str], Loaded], *, max_loaded: int = 4) -> None:
        if not names:
            raise ModelError("names: the page needs at least one model.")
        self.names = tuple(dict.fromkeys(names))
        self._load, self._max_loaded = load, max_loaded
        self.on_drop: Callable[[str], None] = lambda name: None
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        self._lock = threading.Lock()
        self._name_locks: Mapping[str, threading.Lock] = {name: threading.Lock() for name in self.names}

    def get(self, name: str) -> Loaded:
        """Return a model; load it if it is not in memory. Others who ask for it meanwhile wait.

        Raises:
            ModelError: The name is not on the list, or the model cannot be loaded.
        """
        self._check(name)
        with self._name_locks[name]:
            with self._lock:
                if name in self._loaded:
                    self._loaded.move_to_end(name)
                    return self._loaded[name]
            return self._load_now(name)

    def is_loaded(self, name: str) -> bool:
        """Return True if a model is in memory.

        Raises:
            ModelError: The name is not on the list.
        """
        self._check(name)
        with self._lock:
            return name in self._loaded

    def _check(self, name: str) -> None:
        if name not in self._name_locks:
            raise ModelError(f"model {name!r} is not on the list of this page.{suggest_names(name, self.names)}")

    def _load_now(self, name: str) -> Loaded:
        try:
            loaded = self._load(name)
        except CamtoolError:
            raise
        except Exception as error:
            _log.exception("model %s cannot be loaded", name)
            raise ModelError(f"model {name!r} cannot be loaded: {to_sentence(error)}") from error
        dropped = []
        with self._lock:
            self._loaded[name] = loaded
            while len(self._loaded) > self._max_loaded:
                dropped.append(self._loaded.popitem(last=False)[0])
        for other in dropped:
            self.on_drop(other)
        return loaded


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
