"""The registry: a dictionary and the decorator that fills it.

The command line, the documentation and the parametrised tests read :data:`METHODS`; a new method is one decorated
function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from torch import Tensor

from camtool.errors import MethodError, near
from camtool.evidence import Evidence

__all__ = ["METHODS", "Method", "MethodFunction", "check_options", "find", "method"]

MethodFunction: TypeAlias = Callable[..., Tensor]
"""``function(evidence, **options) -> (N, *grid)``: the raw maps, in the method's own values."""


@dataclass(frozen=True)
class Method:
    """A method and what is known of it.

    Attributes:
        name: How people ask for it.
        function: From evidence to raw maps.
        paper: Its source: an arXiv number or a DOI; empty for a person's own function.
        needs: What it needs of the model beyond a forward, in a few words.
    """

    name: str
    function: MethodFunction
    paper: str = ""
    needs: str = ""

    def __call__(self, evidence: Evidence, **options: Any) -> Tensor:
        """The raw maps, ``(N, *grid)``."""
        return self.function(evidence, **options)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @cached_property
    def options(self) -> dict[str, Any]:
        """The names and defaults of the options: the function's arguments that have a default."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}


METHODS: dict[str, Method] = {}
"""Name → method, in the order of registration."""


def method(name: str, *, paper: str = "", needs: str = "") -> Callable[[MethodFunction], MethodFunction]:
    """Register a function as a method.

    Args:
        name: How people ask for it; must be new.
        paper: Its source, an arXiv number or a DOI.
        needs: What it needs of the model beyond a forward: ``"gradients"``, ``"a linear head"``, ...

    Raises:
        MethodError: The name is taken.
    """

    def register(function: MethodFunction) -> MethodFunction:
        if name in METHODS:
            raise MethodError(f"method {name!r} is registered already, by {METHODS[name].function.__module__}.")
        METHODS[name] = Method(name, function, paper, needs)
        return function

    return register


def check_options(methods: Sequence[Method], options: Iterable[str]) -> None:
    """See that each option is one that at least one of the methods has.

    Raises:
        MethodError: One is not; the message names those that are.
    """
    known = {option for method in methods for option in method.options}
    for option in options:
        if option not in known:
            names = ", ".join(repr(method.name) for method in methods)
            listed = ", ".join(sorted(known)) or "none"
            raise MethodError(f"method {names} has no option {option!r}; known options: {listed}.{near(option, known)}")


def find(name: str | MethodFunction) -> Method:
    """The method of that name; a person's own function becomes one.

    Raises:
        MethodError: The name is unknown; the message suggests near ones.
    """
    if isinstance(name, Method):
        return name
    if callable(name):
        return Method(getattr(name, "__name__", type(name).__name__), name)
    if name not in METHODS:
        raise MethodError(f"method {name!r} is unknown; known are {', '.join(METHODS)}.{near(name, METHODS)}")
    return METHODS[name]
