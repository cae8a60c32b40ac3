"""The registries of methods and wrappers, and the decorators that fill them.

The command line, the documentation and the tests read :data:`METHODS` and :data:`WRAPPERS`, so a new method is one
decorated function::

    @weighting("mine", paper="arXiv 2401.00001", needs="gradients")
    def mine(evidence: Evidence) -> Tensor:
        return evidence.gradients.amax((2, 3), keepdim=True)

A wrapper makes a new method from another one: ``"tta:gradcam"`` is Grad-CAM wrapped in ``tta``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from torch import Tensor

from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.hooks.structures.caches import cached_property

MethodFunction: TypeAlias = Callable[..., Tensor]
"""``function(evidence, **options) -> (R, *grid)``: one raw map per row, not scaled."""

WrapperFunction: TypeAlias = Callable[..., Tensor]
"""``function(evidence, method, **options) -> (R, *grid)``: raw maps, computed from the maps of ``method``.

The options of ``method`` are set before it is passed.
"""

Cost: TypeAlias = Literal["a pass", "some passes", "many tails", "many passes"]
"""The cost of a method in addition to the forward pass that all methods need.

``"a pass"``: at most one backward pass. ``"some passes"``: about 2 to 50 passes. ``"many tails"``: one pass through the
tail for each channel or position. ``"many passes"``: tens to thousands of passes through the whole model.
"""

COSTS: tuple[Cost, ...] = get_args(Cost)
"""All costs, in ascending order."""


Need: TypeAlias = Literal[
    "text",
    "one head on all tokens",
    "attention",
    "activations",
    "gradients",
    "gradients of several classes",
    "gradients at the input",
    "ReLUs",
    "biases",
    "second derivatives",
    "captum for nonlinear tails",
    "forwards",
    "a pooled linear head",
    "a detector",
]
"""A requirement of a method in addition to a forward pass, as it is shown to users."""

NEEDS: tuple[Need, ...] = get_args(Need)
"""All needs, in the order in which they are shown."""

_COMPILED_NEEDS = frozenset({"activations", "gradients", "gradients of several classes", "a pooled linear head"})
"""Needs that an engine can provide."""


@dataclass(frozen=True)
class Method:
    """A method with its metadata.

    Attributes:
        name: The name that users pass as ``method=``.
        function: The function from evidence to raw maps, or to weights if ``is_weighting``.
        paper: The source: an arXiv number or a DOI. Empty for a user's own function.
        needs: What the method needs in addition to a forward pass; empty if unknown, as for a user's own function.
        cost: The cost in addition to that forward pass.
        ignores_layer: Whether the ``layer`` argument has no effect: the map is on the input's own grid, or on the grid
            of a transformer's tokens.
        weights: The function that computes only the weights ``(R, C, *grid)`` or ``(R, C, 1, ...)``, for methods that
            weigh activations; None for other methods.
        at_input_size: Whether the maps are at the input's size although they are made from a layer.
        is_weighting: Whether ``function`` returns weights, from which the map is made, see :func:`weighting`.
    """

    name: str
    function: MethodFunction
    paper: str = ""
    needs: frozenset[Need] = frozenset()
    cost: Cost = "a pass"
    ignores_layer: bool = False
    weights: MethodFunction | None = None
    at_input_size: bool = False
    is_weighting: bool = False

    def __call__(self, evidence: Evidence, **options: Any) -> Tensor:
        """Compute the raw maps, ``(R, *grid)``; from weights ``w`` they are ``relu(Σ_k w_k A_k)``."""
        computed = self.function(evidence, **options)
        return (computed * evidence.activations).sum(1).relu() if self.is_weighting else computed

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @cached_property
    def options(self) -> dict[str, Any]:
        """The names and defaults of the options."""
        return get_default_options(self.function)

    def select_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of several methods' options that this method has."""
        return {name: value for name, value in options.items() if name in self.options}

    @cached_property
    def can_be_compiled(self) -> bool:
        """True if the method reads activations and gradients alone, so that an engine may compute these."""
        return not self.ignores_layer and frozenset() < self.needs <= _COMPILED_NEEDS

    @cached_property
    def reads_depths(self) -> bool:
        """True if the method reads other layers on the way to the layer, and may return maps on their grids."""
        return "depths" in self.options


@dataclass(frozen=True)
class Wrapper:
    """A wrapper with its metadata.

    Attributes:
        name: The name before the colon: ``"tta"`` in ``"tta:gradcam"``.
        function: The function from evidence and a method to raw maps.
        paper: The source; empty if there is none.
        needs_weights: Whether the wrapper accepts only methods that weigh activations, see :func:`weighting`.
        at_input_size: Whether the maps are at the input's size.
    """

    name: str
    function: WrapperFunction
    paper: str = ""
    needs_weights: bool = False
    at_input_size: bool = False


METHODS: dict[str, Method] = {}
"""Name → method, in the order of registration."""

WRAPPERS: dict[str, Wrapper] = {}
"""Name → wrapper, in the order of registration."""


def method(
    name: str,
    *,
    paper: str = "",
    needs: Need | Collection[Need] = (),
    cost: Cost = "a pass",
    ignores_layer: bool = False,
    weights: MethodFunction | None = None,
    at_input_size: bool = False,
) -> Callable[[MethodFunction], MethodFunction]:
    """Register a function from evidence to maps as a method.

    The options of the method are the function's keyword arguments that have a default. For an option named ``depths``,
    layers on the way to the explained one are observed as well, see :attr:`camtool.Evidence.depths`.

    Args:
        name: The name that users pass as ``method=``. It must be new, also without case and punctuation.
        paper: The source, an arXiv number or a DOI.
        needs: What the method needs in addition to a forward pass, one or several of :data:`NEEDS`: ``"gradients"``,
            ``("attention", "gradients")``, ...
        cost: The cost in addition to that forward pass.
        ignores_layer: Whether the ``layer`` argument has no effect.
        weights: The function that computes only the weights ``(R, C, *grid)``, if the method weighs activations.
        at_input_size: Whether the maps are at the input's size although they are made from a layer.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        MethodError: The name is taken, or a need is unknown.
    """

    def register(function: MethodFunction) -> MethodFunction:
        _check_name_is_free("method", name)
        several = _check_needs(name, needs)
        METHODS[name] = Method(name, function, paper, several, cost, ignores_layer, weights, at_input_size)
        return function

    return register


def weighting(
    name: str, *, paper: str = "", needs: Need | Collection[Need] = (), cost: Cost = "a pass"
) -> Callable[[MethodFunction], MethodFunction]:
    """Register a method by its weights: a function from evidence to ``(R, C, *grid)`` or ``(R, C, 1, ...)``.

    The map is the positive part of the weighted sum of the activations, ``relu(Σ_k w_k A_k)``, which
    :meth:`Method.__call__` computes. The arguments are those of :func:`method`.
    """

    def register(function: MethodFunction) -> MethodFunction:
        _check_name_is_free("method", name)
        several = _check_needs(name, needs)
        METHODS[name] = Method(name, function, paper, several, cost, weights=function, is_weighting=True)
        return function

    return register


def wrapper(
    name: str, *, paper: str = "", needs_weights: bool = False, at_input_size: bool = False
) -> Callable[[WrapperFunction], WrapperFunction]:
    """Register a function from evidence and a method to maps as a wrapper.

    The arguments are those of :class:`Wrapper`. Users pass the wrapper's options beside the method's options, so the
    wrapper's should have names that no method uses. If both have an option of the same name, both receive the value.

    Raises:
        MethodError: The name is taken.
    """

    def register(function: WrapperFunction) -> WrapperFunction:
        _check_name_is_free("wrapper", name)
        WRAPPERS[name] = Wrapper(name, function, paper, needs_weights, at_input_size)
        return function

    return register


def get_option_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that have a default, by name."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # built into Python, without a signature
        return {}
    return {name: parameter for name, parameter in parameters.items() if parameter.default is not parameter.empty}


def get_default_options(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the names and defaults of a function's options: its parameters that have a default."""
    return {name: parameter.default for name, parameter in get_option_parameters(function).items()}


def _check_needs(name: str, needs: Need | Collection[Need]) -> frozenset[Need]:
    """Return the needs of a method as a set.

    Raises:
        MethodError: A need is not one of :data:`NEEDS`.
    """
    several: Collection[Need] = (needs,) if isinstance(needs, str) else needs
    for need in several:
        if need not in NEEDS:
            known = ", ".join(map(repr, NEEDS))
            raise MethodError(f"method {name!r} has needs={needs!r}; give one of {known}, or a tuple of several.")
    return frozenset(several)


def _check_name_is_free(kind: str, name: str) -> None:
    """Check that no method and no wrapper has this name, or a name that differs only in case and punctuation.

    Raises:
        MethodError: The name is taken, or it has no letter and no digit.
    """
    # Matching ignores punctuation, so a name without letters would match any other such name.
    if not any(char.isalnum() for char in name):
        raise MethodError(f"{kind} {name!r} needs a letter or a digit in its name.")
    known = find_by_name(name, METHODS) or find_by_name(name, WRAPPERS)
    if known is not None:
        same = "" if known.name == name else f" as {known.name!r},"
        raise MethodError(f"{kind} {name!r} is registered already,{same} by {known.function.__module__}.")


Entry = TypeVar("Entry")


def _normalize_name(name: str) -> str:
    """Return a name in lower case without punctuation, except for ``+``.

    ``"PlusPlus"`` becomes ``"++"``, and so does ``"pp"`` after "cam": other libraries write ``GradCAMPlusPlus`` and
    ``GradCAMpp``.
    """
    letters = "".join(char for char in name.casefold() if char.isalnum() or char == "+")
    return re.sub("plusplus|(?<=cam)pp$", "++", letters)


def find_by_name(name: str, entries: Mapping[str, Entry]) -> Entry | None:
    """Return the entry with this name, or with a name that differs only in case and punctuation."""
    wanted = _normalize_name(name)
    return next((entry for known, entry in entries.items() if _normalize_name(known) == wanted), None)
