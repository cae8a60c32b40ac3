"""The user's own models, by the name of the function that makes them; and the bundled ones, which are made so too."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from camtool.arguments.messages import suggest_names
from camtool.errors import ModelError
from camtool.models.loaded import Loaded
from camtool.models.sources.source import Source
from camtool.models.weights import load_state, read_state

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["BundledSource", "FactorySource"]


class FactorySource(Source):
    """Models that a function returns: ``"package.module:factory"``.

    The function takes no arguments and returns a model, a pair of a model and its transform, or a :class:`Loaded`. A
    module that is not installed is searched for in the working directory.
    """

    usage = "your own as 'package.module:factory'"
    has_own_weights = True

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Return what the function returns, with the weights of a file if there is one.

        Raises:
            ModelError: There is no such function, it returns something else, or the weights do not fit.
        """
        module_name, _, attribute = name.partition(":")
        if not module_name or module_name.startswith("."):
            raise ModelError(f"model {name!r}: give the full name of the module, as in 'package.module:factory'.")
        with _make_importable(module_name):
            loaded = _to_loaded(_find_factory(module_name, attribute)(), name)
        if weights is not None:
            load_state(loaded.model, read_state(weights), weights)
        return loaded

    def build_untrained(self, name: str) -> nn.Module:
        """Return the model that the function returns, with its own weights."""
        return self.load(name, None).model


class BundledSource(FactorySource):
    """Models that camtool contains: ``"demo"``, and ``"demo-cheat"``, which looks at a logo instead of the object."""

    usage = "'demo'"

    _FACTORIES: ClassVar = {
        "demo": "camtool.demo.bundled:load_honest_model",
        "demo-cheat": "camtool.demo.bundled:load_cheating_model",
    }

    def list_names(self) -> Sequence[str]:
        """List the names of all models."""
        return [*self._FACTORIES]

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model by name."""
        return super().load(self._FACTORIES[name], weights)


def _find_factory(module_name: str, attribute: str) -> Callable[[], Any]:
    name = f"{module_name}:{attribute}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(f"model {name!r}: there is no module {error.name!r} to import.") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        place = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        hint = suggest_names(attribute, functions)
        raise ModelError(f"model {name!r}: {module_name}{place} has no function {attribute!r}.{hint}")
    return factory  # type: ignore[no-any-return]


@contextmanager
def _make_importable(module_name: str) -> Iterator[None]:
    """Put the working directory last on sys.path during the block, if the module is found nowhere else.

    Last and for a short time only: a file there may have the name of a library, or of one that is not installed.
    """
    package = module_name.partition(".")[0]
    if package in sys.modules or find_spec(package) is not None:
        yield
        return
    here = os.getcwd()  # noqa: PTH109  sys.path holds strings
    sys.path.append(here)
    try:
        yield
    finally:
        # The factory may have changed sys.path, so the last entry is searched for.
        if here in sys.path:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def _to_loaded(made: Any, name: str) -> Loaded:
    if isinstance(made, Loaded):
        return made
    if isinstance(made, nn.Module):
        return Loaded(made)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module) and callable(made[1]):
        return Loaded(made[0], made[1])
    raise ModelError(
        f"model {name!r}: the factory returned {type(made).__name__}; it must return a model, a pair "
        "(model, transform), or a camtool.Loaded(model, transform, labels)."
    )
