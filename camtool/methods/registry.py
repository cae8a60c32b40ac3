"""Methods and wrappers as objects, and their registries: decorators, look-up by name, and checks of what fits.

:meth:`WeightingMethod.compute_raw_maps` is the sum of weighted activations that all methods of weights share.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from numbers import Integral
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, get_args

from torch import Tensor, nn

from camtool.arguments.checks import check_options_of
from camtool.arguments.explain_arguments import describe_foreign_argument
from camtool.arguments.foreign_names import describe_foreign_name
from camtool.arguments.message_parts import suggest_names
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.hooks.structures.caches import cached_property
from camtool.hooks.structures.modules import describe_unhookable, read_tree, runs_outside_torch
from camtool.layers.depths import Depths
from camtool.methods.options import check_depths
from camtool.methods.stored_maps import find_stored_maps
from camtool.models.preprocessing import STATED, suggest_preprocessing

# ``function(evidence, **options) -> (R, *grid)``: one raw map per row, not scaled.
MethodFunction: TypeAlias = Callable[..., Tensor]

# ``function(evidence, method, **options) -> (R, *grid)``: raw maps, computed from the maps of ``method``.
#
# The options of ``method`` are set before it is passed.
WrapperFunction: TypeAlias = Callable[..., Tensor]

# The cost of a method in addition to the forward pass that all methods need. ``"a pass"``: at most one backward pass.
# ``"some passes"``: about 2 to 50 passes. ``"many tails"``: one pass through the tail for each channel or position.
# ``"many passes"``: tens to thousands of passes through the whole model.
Cost: TypeAlias = Literal["a pass", "some passes", "many tails", "many passes"]

# All costs, in ascending order.
COSTS: tuple[Cost, ...] = get_args(Cost)


# A requirement of a method in addition to a forward pass, as it is shown to users.
Need: TypeAlias = Literal[
    "text",
    "one head on all tokens",
    "attention",
    "activations",
    "gradients",
    "gradients of several classes",
    "gradients at the input",
    "ReLUs",
    "attention weights, norms or gates",
    "biases",
    "second derivatives",
    "captum for nonlinear tails",
    "forwards",
    "a pooled linear head",
    "a detector",
]

# The needs of a method.
Needs: TypeAlias = Need | Collection[Need]

# All needs, in the order in which they are shown.
NEEDS: tuple[Need, ...] = get_args(Need)

# Most wrappers in a name. Each may run the method 6 to 14 times; three of them cost as much as the dearest methods.
_MAX_WRAPPERS = 3

# Needs that an engine can provide.
_COMPILED_NEEDS = frozenset({"activations", "gradients", "gradients of several classes", "a pooled linear head"})

# Needs of methods that look at no score.
_NO_SCORE = frozenset({"activations", "attention"})


@dataclass(frozen=True)
class Method:
    """A method with its metadata. Its function computes the raw maps; that of a :class:`WeightingMethod`, the weights.

    Attributes:
        name: The name that users pass as ``method=``.
        function: The function from evidence to raw maps. It stands in :mod:`camtool.methods.families`.
        paper: The source: an arXiv number or a DOI. Empty for a user's own function.
        needs: What the method needs in addition to a forward pass; empty if unknown, as for a user's own function.
        cost: The cost in addition to that forward pass.
        ignores_layer: Whether the ``layer`` argument has no effect: the map is on the input's own grid, or on the grid
            of a transformer's tokens.
        weight_function: The function that computes only the weights ``(R, C, *grid)`` or ``(R, C, 1, ...)``, for
            methods that weigh activations; None for other methods.
        at_input_size: Whether the maps are at the input's size although they are made from a layer.
    """

    name: str
    function: MethodFunction
    paper: str = ""
    needs: frozenset[Need] = frozenset()
    cost: Cost = "a pass"
    ignores_layer: bool = False
    weight_function: MethodFunction | None = None
    at_input_size: bool = False

    def __call__(self, evidence: Evidence, **options: Any) -> Tensor:
        """Compute the raw maps, ``(R, *grid)``."""
        return self.compute_raw_maps(evidence, **options)

    def compute_raw_maps(self, evidence: Evidence, **options: Any) -> Tensor:
        """Compute the raw maps, ``(R, *grid)``; :class:`WeightingMethod` does so from weights."""
        return self.function(evidence, **options)

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

    @property
    def is_class_agnostic(self) -> bool:
        """True if the method looks at activations or attention alone, and at no score."""
        return frozenset() < self.needs <= _NO_SCORE

    @cached_property
    def reads_depths(self) -> bool:
        """True if the method reads other layers on the way to the layer, and may return maps on their grids."""
        return "depths" in self.options

    def read_depths(self, options: Mapping[str, Any]) -> Depths:
        """Return the option ``depths`` of a method that has it, or its default.

        Raises:
            MethodError: The option is neither a number of depths nor the names of layers.
        """
        depths: Depths = options.get("depths", self.options["depths"])
        check_depths(depths)
        return int(depths) if isinstance(depths, Integral) else depths


@dataclass(frozen=True)
class WeightingMethod(Method):
    """A method such as Grad-CAM, whose function computes weights of the activations, see :func:`weighting`.

    Attributes:
        weight_function: The function from evidence to the weights ``(R, C, *grid)`` or ``(R, C, 1, ...)``.
        function: The same function, whose docstring and options are those of the method.
    """

    weight_function: MethodFunction  # type: ignore[misc]  # always given, unlike that of the base class

    def compute_raw_maps(self, evidence: Evidence, **options: Any) -> Tensor:
        """Compute the raw maps ``relu(Σ_k w_k A_k)``, ``(R, *grid)``: the ReLU of the weighted sum."""
        weights = self.weight_function(evidence, **options)  # e.g. gradcam in camtool/methods/families/gradient.py
        weighted_sum = (weights * evidence.activations).sum(1)
        return weighted_sum.relu()


@dataclass(frozen=True)
class Wrapper:
    """A wrapper with its metadata.

    Attributes:
        name: The name before the colon: ``"tta"`` in ``"tta:gradcam"``.
        function: The function from evidence and a method to raw maps.
        paper: The source; empty if there is none.
        needs_weights: Whether the wrapper accepts only methods that weigh activations, see :func:`weighting`.
        at_input_size: Whether the maps are at the input's size.
        needs: What the wrapper needs in addition to the method. With a need, it accepts only methods of gradients.
    """

    name: str
    function: WrapperFunction
    paper: str = ""
    needs_weights: bool = False
    at_input_size: bool = False
    needs: frozenset[Need] = frozenset()


# Name → method, in the order of registration.
METHODS: dict[str, Method] = {}

# Name → wrapper, in the order of registration.
WRAPPERS: dict[str, Wrapper] = {}


def method(
    name: str,
    *,
    paper: str = "",
    needs: Needs = (),
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
        A decorator that returns the function. If annotations say which values its options take, they are checked
        before it runs, see :func:`camtool.arguments.checks.check_options_of`.

    Raises:
        MethodError: The name is taken, or a need is unknown.
    """

    def register(function: MethodFunction) -> MethodFunction:
        _check_name_is_free("method", name)
        several, function = _check_needs(name, needs), check_options_of(function, MethodError)
        METHODS[name] = Method(name, function, paper, several, cost, ignores_layer, weights, at_input_size)
        return function

    return register


def weighting(
    name: str, *, paper: str = "", needs: Needs = (), cost: Cost = "a pass"
) -> Callable[[MethodFunction], MethodFunction]:
    """Register a method by its weights: a function from evidence to ``(R, C, *grid)`` or ``(R, C, 1, ...)``.

    The map is the positive part of the weighted sum of the activations, ``relu(Σ_k w_k A_k)``, which
    :meth:`WeightingMethod.compute_raw_maps` computes. The arguments are those of :func:`method`.
    """

    def register(function: MethodFunction) -> MethodFunction:
        _check_name_is_free("method", name)
        several, function = _check_needs(name, needs), check_options_of(function, MethodError)
        METHODS[name] = WeightingMethod(name, function, paper, several, cost, weight_function=function)
        return function

    return register


def wrapper(
    name: str, *, paper: str = "", needs_weights: bool = False, at_input_size: bool = False, needs: Needs = ()
) -> Callable[[WrapperFunction], WrapperFunction]:
    """Register a function from evidence and a method to maps as a wrapper.

    The arguments are those of :class:`Wrapper`. Users pass the wrapper's options beside the method's options, so the
    wrapper's should have names that no method uses. If both have an option of the same name, both receive the value.

    Raises:
        MethodError: The name is taken.
    """

    def register(function: WrapperFunction) -> WrapperFunction:
        _check_name_is_free("wrapper", name)
        function = check_options_of(function, MethodError)
        WRAPPERS[name] = Wrapper(name, function, paper, needs_weights, at_input_size, _check_needs(name, needs))
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


def _check_needs(name: str, needs: Needs) -> frozenset[Need]:
    """Return the needs of a method as a set.

    Raises:
        MethodError: A need is not one of :data:`NEEDS`.
    """
    several: Collection[Need] = (needs,) if isinstance(needs, str) else needs
    for need in several:
        if need not in NEEDS:
            names = ", ".join(map(repr, NEEDS))
            raise MethodError(f"method {name!r} has needs={needs!r}; give one of {names}, or a tuple of several.")
    return frozenset(several)


def _check_name_is_free(kind: str, name: str) -> None:
    """Check that no method and no wrapper has this name, or a name that differs only in case and punctuation.

    Raises:
        MethodError: The name is taken, or it has no letter and no digit.
    """
    # Matching ignores punctuation, so a name without letters would match any other such name.
    if not any(char.isalnum() for char in name):
        raise MethodError(f"{kind} {name!r} needs a letter or a digit in its name.")
    holder = find_by_name(name, METHODS) or find_by_name(name, WRAPPERS)
    if holder is not None:
        same = "" if holder.name == name else f" as {holder.name!r},"
        raise MethodError(f"{kind} {name!r} is registered already,{same} by {holder.function.__module__}.")


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
    return next((entry for entry_name, entry in entries.items() if _normalize_name(entry_name) == wanted), None)


# --------------------------------------------------------------- look-up and checks by name

# Needs of methods that read only the model's inputs and outputs.
_MODEL_CALLS = frozenset({"forwards", "a detector", "gradients at the input"})

# Needs that no model without gradients can serve. Guided backprop ("ReLUs") changes gradients, so it needs them as
# well.
_GRADIENTS = frozenset({"gradients", "gradients of several classes", "gradients at the input", "ReLUs"})


def find_method(name: str | MethodFunction) -> Method:
    """Return the method with this name, wrapped if the name says so; a user's own function becomes a method.

    Names are matched without case and punctuation: ``"Grad-CAM++"`` is ``"gradcam++"``. ``"noise:tta:gradcam"`` is
    ``"tta:gradcam"`` wrapped in ``noise``.

    Raises:
        MethodError: The name is unknown, or ``name`` is neither a string nor a function.
    """
    if isinstance(name, Method):
        return name
    if callable(name):
        return Method(getattr(name, "__name__", type(name).__name__), name)
    if not isinstance(name, str):
        raise MethodError(f"method={name!r} is neither a name nor a function; known names: {', '.join(METHODS)}.")
    outer, colon, inner = name.partition(":")
    if colon:
        return wrap_method(outer, inner)
    registered = METHODS.get(name) or find_by_name(name, METHODS)
    if registered is not None:
        return registered
    wrapper = find_by_name(name, WRAPPERS)
    if wrapper is not None:
        raise MethodError(
            f"method {name!r} is a wrapper; put the method that it wraps behind a colon: '{wrapper.name}:gradcam'."
        )
    foreign = describe_foreign_name(name)
    hint = suggest_names(name, METHODS) if foreign is None else f" Use {foreign}."
    raise MethodError(f"method {name!r} is unknown.{hint} Known methods: {', '.join(METHODS)}.")


def wrap_method(wrapper: str, inner: str | MethodFunction) -> Method:
    """Return a method wrapped in a wrapper, with the options of both.

    Args:
        wrapper: The name of the wrapper.
        inner: The method to wrap: a name, which may have wrappers itself, or a function.

    Raises:
        MethodError: The wrapper or the method is unknown, the wrapper does not accept the method, or there are too
            many wrappers.
    """
    if isinstance(inner, str) and inner.count(":") >= _MAX_WRAPPERS:
        raise MethodError(f"method: {inner.count(':') + 1} wrappers came; give {_MAX_WRAPPERS} at most.")
    outer = find_by_name(wrapper, WRAPPERS)
    if outer is None:
        near = suggest_names(wrapper, WRAPPERS)
        raise MethodError(f"wrapper {wrapper!r} is unknown.{near} Known wrappers: {', '.join(WRAPPERS)}.")
    wrapped = find_method(inner)
    _check_wrapping(outer, wrapped)
    return Method(
        name=f"{outer.name}:{wrapped.name}",
        function=_compose(outer.function, wrapped),
        paper=", ".join(filter(None, [outer.paper, wrapped.paper])),
        needs=wrapped.needs | outer.needs if wrapped.needs else wrapped.needs,
        # A wrapper that needs weights runs the method once; others run it several times.
        cost="some passes" if wrapped.cost == "a pass" and not outer.needs_weights else wrapped.cost,
        ignores_layer=wrapped.ignores_layer,
        weight_function=wrapped.weight_function if outer.needs_weights else None,
        at_input_size=outer.at_input_size or wrapped.at_input_size,
    )


def _check_wrapping(outer: Wrapper, method: Method) -> None:
    if outer.needs_weights and method.weight_function is None:
        raise MethodError(
            f"wrapper {outer.name!r} needs a method that weighs activations, but {method.name!r} does not; "
            f"use {_suggest_weighting(outer.name, method.name)}."
        )
    if outer.needs and outer.name in method.name.split(":"):
        raise MethodError(f"wrapper {outer.name!r} is applied twice in '{outer.name}:{method.name}'; leave one out.")
    if outer.needs and method.needs and not method.needs & _GRADIENTS:
        raise MethodError(
            f"wrapper {outer.name!r} changes gradients, which {method.name!r} does not read; use a method of "
            "gradients, e.g. gradcam, layercam, faithcam, chefer or integrated-gradients."
        )


def check_options(methods: Sequence[Method], options: Mapping[str, Any], model: nn.Module | None = None) -> None:
    """Check that each option belongs to at least one of the methods.

    Args:
        methods: The methods.
        options: Their options.
        model: The model, if it is known, for the advice.

    Raises:
        MethodError: No method has the option; the message lists those that exist.
    """
    accepted = {option for method in methods for option in method.options}
    for option in options:
        if option in accepted:
            continue
        if foreign := describe_foreign_argument(option):
            raise MethodError(foreign)
        if option in STATED:
            raise MethodError(f"{option}= is no option of a method; pass {suggest_preprocessing(options, model)}.")
        names = ", ".join(repr(method.name) for method in methods)
        listed = ", ".join(sorted(accepted)) or "none"
        raise MethodError(
            f"method {names} has no option {option!r}; known options: {listed}.{suggest_names(option, accepted)}"
        )


def read_depths(methods: Sequence[Method], options: Mapping[str, Any]) -> Depths:
    """Return the option ``depths`` of the first method that has it, or its default; 0 if none has it."""
    return next((method.read_depths(options) for method in methods if method.reads_depths), 0)


def adapt_method(method: Method, model: nn.Module) -> Method:
    """Return the method; if the model lacks what it needs, but its file holds the maps, one that reads the file.

    Raises:
        MethodError: The method needs more than the model offers; the message lists the methods that work.
    """
    unhookable, lacks_gradients = describe_unhookable(model), read_tree(model).structure.lacks_gradients
    if not (unhookable and not _needs_only_model_calls(method)) and not (method.needs & _GRADIENTS and lacks_gradients):
        return method
    name, read = find_stored_maps(method.name, model) or _refuse(method, model, unhookable)
    return Method(name, read, needs=frozenset({"forwards"}), ignores_layer=True)


def _refuse(method: Method, model: nn.Module, unhookable: str | None) -> NoReturn:
    if unhookable and not _needs_only_model_calls(method):
        raise MethodError(
            f"the model is {unhookable}, which exposes no submodules to hook, so method {method.name!r} cannot "
            f"read a layer; use one of {_list_working(model)}, or pass the original nn.Module."
        )
    runs_elsewhere = runs_outside_torch(model)
    raise MethodError(
        f"the model {'runs outside of torch' if runs_elsewhere else 'is quantized'} and has no gradients, "
        f"which method {method.name!r} needs; use one of {_list_working(model)}, or pass the "
        f"{'original nn.Module' if runs_elsewhere else 'model from before quantization'}."
    )


def _list_working(model: nn.Module) -> str:
    """Return the names of the methods that work on a model without hooks, without gradients, or without both."""
    if not describe_unhookable(model):
        return ", ".join(name for name, method in METHODS.items() if _works_without_gradients(method))
    missing = _GRADIENTS if read_tree(model).structure.lacks_gradients else frozenset()
    return ", ".join(
        name for name, method in METHODS.items() if _needs_only_model_calls(method) and not method.needs & missing
    )


def _suggest_weighting(wrapper: str, name: str) -> str:
    """Return the end of a message: another order of the wrappers if that helps, else the methods that fit."""
    outside, _, innermost = name.rpartition(":")
    if outside and innermost in METHODS and METHODS[innermost].weight_function is not None:
        return f"'{outside}:{wrapper}:{innermost}'"
    return f"one of {', '.join(name for name, other in METHODS.items() if other.weight_function)}"


def _compose(outer: WrapperFunction, method: Method) -> MethodFunction:
    """Return the function of a wrapped method, whose signature lists the options of both."""
    outer_options, inner_options = get_option_parameters(outer), get_option_parameters(method.function)

    @wraps(outer)
    def run_wrapper(evidence: Evidence, **options: Any) -> Tensor:
        inner = _bind_options(method, {name: value for name, value in options.items() if name in inner_options})
        maps = outer(evidence, inner, **{name: value for name, value in options.items() if name in outer_options})
        evidence.refined.clear()  # that of a part of the maps
        return maps

    keywords = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (inner_options | outer_options).values()
    ]
    evidence = inspect.Parameter("evidence", inspect.Parameter.POSITIONAL_ONLY)
    # The options of a method are read from its signature; `wraps` alone would show those of the wrapper only.
    run_wrapper.__signature__ = inspect.Signature([evidence, *keywords])  # type: ignore[attr-defined]
    return run_wrapper


def _bind_options(method: Method, options: dict[str, Any]) -> Method:
    """Return the method with its options set."""
    weigh = None if method.weight_function is None else partial(method.weight_function, **options)
    return replace(method, function=partial(method.function, **options), weight_function=weigh)


def _needs_only_model_calls(method: Method) -> bool:
    """Return True if the method reads only the model's inputs and outputs, and no layer."""
    return method.ignores_layer and frozenset() < method.needs <= _MODEL_CALLS


def _works_without_gradients(method: Method) -> bool:
    """Return True if the method works on any model without gradients: it needs activations and scores alone."""
    return frozenset() < method.needs <= {"activations", "forwards"}
