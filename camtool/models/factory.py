"""A person's own model, by the name of the function that makes it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import nn

from camtool.errors import ModelError, near
from camtool.models.base import Loaded
from camtool.models.weights import fill, read_state

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["from_factory"]


def from_factory(name: str, weights: str | PathLike[str] | None = None) -> Loaded:
    """Return what ``"package.module:factory"`` makes, with the weights of a file where one is given.

    A module that is not installed is looked for in the working directory.

    Raises:
        ModelError: There is no such function, it returns something else, or the weights do not fit.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise ModelError(f"model {name!r}: give the module's full name, as in 'package.module:factory'.")
    with _importable(module_name):
        loaded = _as_loaded(_factory(module_name, attribute)(), name)
    if weights is not None:
        fill(loaded.model, read_state(weights), weights)
    return loaded


def _factory(module_name: str, attribute: str) -> Callable[[], Any]:
    name = f"{module_name}:{attribute}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(f"model {name!r}: there is no module {error.name!r} to import.") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        place = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        raise ModelError(
            f"model {name!r}: {module_name}{place} has no function {attribute!r}.{near(attribute, functions)}"
        )
    return factory  # type: ignore[no-any-return]


@contextmanager
def _importable(module_name: str) -> Iterator[None]:
    """Put the working directory last on sys.path during the block, if the module is found nowhere else.

    Last and for a moment only, as what lies there may have the name of a library, or of one that is not installed.
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
        if here in sys.path:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def _as_loaded(made: Any, name: str) -> Loaded:
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
