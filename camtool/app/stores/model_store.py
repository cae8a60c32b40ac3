"""The models that the page offers, each loaded once, when it is first asked for."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from camtool.app.sentences import to_sentence
from camtool.arguments.messages import suggest_names
from camtool.errors import CamtoolError, ModelError
from camtool.models import Loaded

DEMO = "demo"
"""Name of the bundled model, with which the page starts if no other is given."""

State: TypeAlias = Literal["not loaded", "loading", "loaded", "failed"]

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
        self._states: dict[str, State] = {}
        self._reasons: dict[str, str] = {}
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
                self._states[name] = "loading"
            return self._load_now(name)

    def get_state(self, name: str) -> State:
        """Return whether a model is loaded.

        Raises:
            ModelError: The name is not on the list.
        """
        self._check(name)
        with self._lock:
            return self._states.get(name, "not loaded")

    def describe(self, name: str) -> str:
        """Return the state of a model in one sentence.

        Raises:
            ModelError: The name is not on the list.
        """
        state = self.get_state(name)
        return {
            "not loaded": f"{name} is not loaded yet.",
            "loading": f"Loading {name} ...",
            "loaded": f"{name} is loaded.",
            "failed": f"{name} cannot be loaded: {self._reasons.get(name, '')}",
        }[state]

    def _check(self, name: str) -> None:
        if name not in self._name_locks:
            raise ModelError(f"model {name!r} is not on the list of this page.{suggest_names(name, self.names)}")

    def _load_now(self, name: str) -> Loaded:
        try:
            loaded = self._load(name)
        except BaseException as error:
            with self._lock:
                self._states[name], self._reasons[name] = "failed", to_sentence(error)
            if isinstance(error, CamtoolError) or not isinstance(error, Exception):
                raise
            _log.exception("model %s cannot be loaded", name)
            raise ModelError(f"model {name!r} cannot be loaded: {to_sentence(error)}") from error
        dropped = []
        with self._lock:
            self._states[name] = "loaded"
            self._loaded[name] = loaded
            while len(self._loaded) > self._max_loaded:
                dropped.append(self._loaded.popitem(last=False)[0])
                self._states[dropped[-1]] = "not loaded"
        for other in dropped:
            self.on_drop(other)
        return loaded
