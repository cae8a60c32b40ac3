"""The user's own code by its name, ``"package.module:function"``: factories of models, and transforms."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from camtool.arguments.message_parts import suggest_names
from camtool.errors import ModelError
from camtool.geometry.transform_output import Transform


def load_transform(name: str) -> Transform:
    """Return the transform with this name: ``"package.module:function"``.

    The name stands for a function from a PIL image to a tensor, an object that can be called so, or a function or class
    without required arguments that makes one.

    Raises:
        ModelError: There is no such name, or it is no transform.
    """
    with find_user_function("transform", name) as function:
        is_factory = (inspect.isfunction(function) or inspect.isclass(function)) and _accepts(function, 0)
        made = function() if is_factory else function
    if inspect.isclass(made) or not callable(made):
        given = f"the class {made.__name__}, which needs arguments" if inspect.isclass(made) else type(made).__name__
        raise ModelError(f"transform {name!r} gives {given}; it must be a function from a PIL image to a tensor.")
    if not _accepts(made, 1):
        arguments = inspect.signature(made)
        raise ModelError(f"transform {name!r} cannot be called with one PIL image; its arguments are {arguments}.")
    return made


@contextmanager
def find_user_function(argument: str, name: str) -> Iterator[Callable[..., Any]]:
    """Import what a name stands for. A module that is not installed is searched for in the working directory.

    The working directory can be imported from until the block ends.

    Args:
        argument: What the name is given as, for messages: ``"model"`` or ``"transform"``.
        name: ``"package.module:function"``.

    Raises:
        ModelError: There is no such module or function.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise ModelError(f"{argument} {name!r}: give the full name of the module, as in 'package.module:function'.")
    with _make_importable(module_name):
        yield _import_function(argument, module_name, attribute)


def _import_function(argument: str, module_name: str, attribute: str) -> Callable[..., Any]:
    name = f"{module_name}:{attribute}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(f"{argument} {name!r}: there is no module {error.name!r} to import.") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        origin = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        hint = suggest_names(attribute, functions)
        raise ModelError(f"{argument} {name!r}: {module_name}{origin} has no function {attribute!r}.{hint}")
    return function  # type: ignore[no-any-return]


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
        # The user's code may have changed sys.path, so the last entry is searched for.
        if here in sys.path:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def _accepts(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function can be called with this number of positional arguments, or does not say."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return count == 1
    return True
