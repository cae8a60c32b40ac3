"""The registry: a dictionary and the decorator that fills it.

The command line, the documentation and the parametrised tests read :data:`METHODS`; a new method is one decorated
function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Literal, TypeAlias

from torch import Tensor

from camtool.errors import MethodError, near
from camtool.evidence import Evidence

__all__ = ["METHODS", "Cost", "Method", "MethodFunction", "check_options", "find", "method", "weighted", "weighting"]

MethodFunction: TypeAlias = Callable[..., Tensor]
"""``function(evidence, **options) -> (R, *grid)``: the raw maps, one a row, in the method's own values."""

Cost: TypeAlias = Literal["a pass", "some passes", "many tails", "many passes"]
"""What a method costs beyond the one forward that all need: next to nothing or a backward pass; a handful of passes;
one run of what follows the layer for each channel or position; hundreds of passes through the whole model."""


@dataclass(frozen=True)
class Method:
    """A method and what is known of it.

    Attributes:
        name: How people ask for it.
        function: From evidence to raw maps.
        paper: Its source: an arXiv number or a DOI; empty for a person's own function.
        needs: What it needs of the model beyond a forward, in a few words.
        cost: What it costs beyond that forward.
        at_input: It looks at the model from outside, at the picture and the score, and not at a layer.
        weights: For methods that weigh activations, the function to the weights alone, see :func:`weighting`.
    """

    name: str
    function: MethodFunction
    paper: str = ""
    needs: str = ""
    cost: Cost = "a pass"
    at_input: bool = False
    weights: MethodFunction | None = None

    def __call__(self, evidence: Evidence, **options: Any) -> Tensor:
        """The raw maps, ``(R, *grid)``."""
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


def method(
    name: str, *, paper: str = "", needs: str = "", cost: Cost = "a pass", at_input: bool = False
) -> Callable[[MethodFunction], MethodFunction]:
    """Register a function from evidence to maps as a method.

    Args:
        name: How people ask for it; must be new.
        paper: Its source, an arXiv number or a DOI.
        needs: What it needs of the model beyond a forward: ``"gradients"``, ``"a linear head"``, ...
        cost: What it costs beyond that forward.
        at_input: It looks at no layer.

    Raises:
        MethodError: The name is taken.
    """

    def register(function: MethodFunction) -> MethodFunction:
        _add(Method(name, function, paper, needs, cost, at_input))
        return function

    return register


def weighting(
    name: str, *, paper: str = "", needs: str = "", cost: Cost = "a pass"
) -> Callable[[MethodFunction], MethodFunction]:
    """Register a method by its weights: a function from evidence to ``(R, C, *grid)``, or ``(R, C, 1, ...)``.

    The map is the positive part of the weighted sum of the activations, ``relu(Σ_k w_k A_k)``. The arguments are those
    of :func:`method`.
    """

    def register(function: MethodFunction) -> MethodFunction:
        @wraps(function)
        def mapped(evidence: Evidence, **options: Any) -> Tensor:
            return weighted(function(evidence, **options), evidence.activations).relu()

        _add(Method(name, mapped, paper, needs, cost, weights=function))
        return function

    return register


def weighted(weights: Tensor, activations: Tensor) -> Tensor:
    """The sum of activations ``(R, C, *grid)`` over the channels, each by its weight: ``(R, *grid)``."""
    return (weights * activations).sum(1)


def _add(new: Method) -> None:
    if new.name in METHODS:
        raise MethodError(f"method {new.name!r} is registered already, by {METHODS[new.name].function.__module__}.")
    METHODS[new.name] = new


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
