"""The registry: a dictionary and the decorator that fills it.

The command line, the documentation and the parametrised tests read :data:`METHODS`; a new method is one decorated
function. So is a new wrapper, which makes a method of a method: ``"tta:gradcam"`` is Grad-CAM wrapped in ``tta``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from torch import Tensor, nn

from camtool.arguments import describe_foreign
from camtool.errors import MethodError, near
from camtool.evidence import Evidence
from camtool.lazy import cached_property
from camtool.sealed import is_quantised, sealed_as

__all__ = [
    "COSTS",
    "METHODS",
    "WRAPPERS",
    "Cost",
    "Method",
    "MethodFunction",
    "Wrapper",
    "WrapperFunction",
    "check_model",
    "check_options",
    "find",
    "method",
    "options_of",
    "weighted",
    "weighting",
    "wrapped",
    "wrapper",
]

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
        at_input: It looks at no layer that a person could choose; its map is on the picture's own grid, or on that of a
            transformer's tokens.
        weights: For methods that weigh activations, and take the sum or the strongest pattern of what comes out, the
            function to the weights alone, see :func:`weighting`.
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
        return options_of(self.function)


COSTS: tuple[Cost, ...] = get_args(Cost)
"""What methods cost, from the least to the most."""

METHODS: dict[str, Method] = {}
"""Name → method, in the order of registration."""


def method(
    name: str,
    *,
    paper: str = "",
    needs: str = "",
    cost: Cost = "a pass",
    at_input: bool = False,
    weights: MethodFunction | None = None,
) -> Callable[[MethodFunction], MethodFunction]:
    """Register a function from evidence to maps as a method.

    Args:
        name: How users ask for it; must be new, also without case and punctuation.
        paper: Its source, an arXiv number or a DOI.
        needs: What it needs of the model beyond a forward: ``"gradients"``, ``"a linear head"``, ...
        cost: What it costs beyond that forward.
        at_input: It looks at no layer.
        weights: The function to the weights ``(R, C, *grid)`` alone, where the method weighs activations.

    Raises:
        MethodError: The name is taken.
    """

    def register(function: MethodFunction) -> MethodFunction:
        _add(Method(name, function, paper, needs, cost, at_input, weights))
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


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.default is not parameter.empty}


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the names and defaults of a function's options: its arguments that have a default."""
    return {name: parameter.default for name, parameter in _options(function).items()}


def _add(new: Method) -> None:
    _check_free("method", new.name)
    METHODS[new.name] = new


def check_options(methods: Sequence[Method], options: Iterable[str]) -> None:
    """See that each option is one that at least one of the methods has.

    Raises:
        MethodError: One is not; the message names those that are.
    """
    known = {option for method in methods for option in method.options}
    for option in options:
        if option not in known:
            if foreign := describe_foreign(option):
                raise MethodError(foreign)
            names = ", ".join(repr(method.name) for method in methods)
            listed = ", ".join(sorted(known)) or "none"
            raise MethodError(f"method {names} has no option {option!r}; known options: {listed}.{near(option, known)}")


def check_model(methods: Sequence[Method], model: nn.Module) -> None:
    """See that a model is asked only for what it can answer, where it hides its inside or has no gradients.

    Raises:
        MethodError: A method needs more; the message names those that do not.
    """
    piece = sealed_as(model)
    for method in methods:
        if piece and not _asks_outside(method):
            able = ", ".join(name for name, each in METHODS.items() if _asks_outside(each))
            raise MethodError(
                f"the model is {piece}, which runs in one piece, so method {method.name!r} cannot look into it; use "
                f"one of {able}, or the model that it was made of."
            )
        if _needs_slopes(method) and is_quantised(model):
            able = ", ".join(name for name, each in METHODS.items() if not _needs_slopes(each))
            raise MethodError(
                f"the model is quantised, so no gradient passes through it, which method {method.name!r} needs; use "
                f"one of {able}, or the model before it was quantised."
            )


def _asks_outside(method: Method) -> bool:
    """Whether a method asks only what goes into a model and comes out of it."""
    return method.at_input and method.needs in ("forwards", "gradients at the input")


def _needs_slopes(method: Method) -> bool:
    return "gradients" in method.needs or "ReLUs" in method.needs


# ------------------------------------------------------------------------------------------------------- wrappers

WrapperFunction: TypeAlias = Callable[..., Tensor]
"""``function(evidence, method, **options) -> (R, *grid)``: raw maps, made with those of a method whose own options are
set."""


@dataclass(frozen=True)
class Wrapper:
    """What makes a method of a method.

    Attributes:
        name: What stands before the colon: ``"tta:gradcam"``.
        function: From evidence and a method to raw maps.
        paper: Its source; empty where there is none.
        of_weights: It takes only methods that weigh activations, see :func:`weighting`.
    """

    name: str
    function: WrapperFunction
    paper: str = ""
    of_weights: bool = False


WRAPPERS: dict[str, Wrapper] = {}
"""Name → wrapper, in the order of registration."""


def wrapper(name: str, *, paper: str = "", of_weights: bool = False) -> Callable[[WrapperFunction], WrapperFunction]:
    """Register a function from evidence and a method to maps as a wrapper.

    The arguments are those of :class:`Wrapper`. Its options are given side by side with the method's, so they should go
    by names that no method has; where a name is shared, what is given reaches both.

    Raises:
        MethodError: The name is taken.
    """

    def register(function: WrapperFunction) -> WrapperFunction:
        _check_free("wrapper", name)
        WRAPPERS[name] = Wrapper(name, function, paper, of_weights)
        return function

    return register


def wrapped(by: str, inner: str | MethodFunction) -> Method:
    """A method wrapped in a wrapper, with the options of both.

    Raises:
        MethodError: The wrapper or the method is unknown, or they do not go together.
    """
    outer = _named(by, WRAPPERS)
    if outer is None:
        raise MethodError(f"wrapper {by!r} is unknown; known are {', '.join(WRAPPERS)}.{near(by, WRAPPERS)}")
    method = find(inner)
    if outer.of_weights and method.weights is None:
        raise MethodError(
            f"wrapper {outer.name!r} needs a method that weighs activations, which {method.name!r} is "
            f"not{_what_weighs(outer.name, method.name)}."
        )
    return Method(
        name=f"{outer.name}:{method.name}",
        function=_composed(outer.function, method),
        paper=", ".join(filter(None, [outer.paper, method.paper])),
        needs=method.needs,
        cost="some passes" if method.cost == "a pass" and not outer.of_weights else method.cost,
        at_input=method.at_input,
        weights=method.weights if outer.of_weights else None,
    )


def _what_weighs(by: str, name: str) -> str:
    """Return the end of a message: the wrapper beside the method where that weighs, or else the methods that do."""
    outside, _, innermost = name.rpartition(":")
    if outside and innermost in METHODS and METHODS[innermost].weights is not None:
        return f"; ask for '{outside}:{by}:{innermost}'"
    return f": {', '.join(name for name, each in METHODS.items() if each.weights)}"


def _composed(outer: WrapperFunction, method: Method) -> MethodFunction:
    own, their = _options(outer), _options(method.function)

    @wraps(outer)
    def function(evidence: Evidence, **options: Any) -> Tensor:
        bound = _bound(method, {name: value for name, value in options.items() if name in their})
        return outer(evidence, bound, **{name: value for name, value in options.items() if name in own})

    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (their | own).values()]
    evidence = inspect.Parameter("evidence", inspect.Parameter.POSITIONAL_ONLY)
    function.__signature__ = inspect.Signature([evidence, *named])  # type: ignore[attr-defined]
    return function


def _bound(method: Method, options: dict[str, Any]) -> Method:
    """The method with its options set."""
    weights = None if method.weights is None else partial(method.weights, **options)
    return replace(method, function=partial(method.function, **options), weights=weights)


# --------------------------------------------------------------------------------------------------------- by name

_Entry = TypeVar("_Entry", Method, Wrapper)


def _normal_form(name: str) -> str:
    """Return a name without case and punctuation but for ``+``; ``"PlusPlus"``, and ``"pp"`` behind cam, are ``++``."""
    letters = "".join(char for char in name.casefold() if char.isalnum() or char == "+")
    return re.sub("plusplus|(?<=cam)pp$", "++", letters)


def _named(name: str, entries: Mapping[str, _Entry]) -> _Entry | None:
    """Return the entry of that name, or of one that differs in case and punctuation alone."""
    if name in entries:
        return entries[name]
    wanted = _normal_form(name)
    return next((entry for known, entry in entries.items() if _normal_form(known) == wanted), None)


def _check_free(kind: str, name: str) -> None:
    """Check that no method and no wrapper has a name, or one that differs in case and punctuation alone.

    Raises:
        MethodError: One has, or the name has no letter and no digit.
    """
    if not any(char.isalnum() for char in name):
        raise MethodError(f"{kind} {name!r} needs a letter or a digit in its name.")
    known = _named(name, METHODS) or _named(name, WRAPPERS)
    if known is not None:
        same = "" if known.name == name else f" as {known.name!r},"
        raise MethodError(f"{kind} {name!r} is registered already,{same} by {known.function.__module__}.")


def find(name: str | MethodFunction) -> Method:
    """Return the method of that name, wrapped where the name says so; the user's own function becomes one.

    Names are matched without case and punctuation: ``"Grad-CAM++"`` is ``"gradcam++"``. ``"noise:tta:gradcam"`` is
    ``"tta:gradcam"`` wrapped in ``noise``.

    Raises:
        MethodError: The name is unknown, or no name; the message suggests near ones.
    """
    if isinstance(name, Method):
        return name
    if callable(name):
        return Method(getattr(name, "__name__", type(name).__name__), name)
    if not isinstance(name, str):
        raise MethodError(f"method={name!r} is neither a name nor a function; known are {', '.join(METHODS)}.")
    outer, colon, inner = name.partition(":")
    if colon:
        return wrapped(outer, inner)
    method = _named(name, METHODS)
    if method is not None:
        return method
    wrapper = _named(name, WRAPPERS)
    if wrapper is not None:
        raise MethodError(f"method {name!r} wraps another: ask for '{wrapper.name}:gradcam', or another method.")
    raise MethodError(f"method {name!r} is unknown; known are {', '.join(METHODS)}.{near(name, METHODS)}")
