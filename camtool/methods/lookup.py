"""Finding methods by name, wrapping them, and checking that they have the options and fit the model.

``"tta:gradcam"`` is the method ``gradcam`` in the wrapper ``tta``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from camtool.arguments.explain_arguments import describe_foreign_argument
from camtool.arguments.foreign_names import describe_foreign_name
from camtool.arguments.messages import suggest_names
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.hooks.structures.modules import describe_unhookable, is_quantized
from camtool.layers.depths import Depths
from camtool.methods.options import check_depths
from camtool.methods.registry import (
    METHODS,
    WRAPPERS,
    Method,
    MethodFunction,
    WrapperFunction,
    find_by_name,
    get_option_parameters,
)

_MODEL_CALLS = frozenset({"forwards", "a detector", "gradients at the input"})
"""Needs of methods that read only the model's inputs and outputs."""

# Guided backprop ("ReLUs") changes gradients, so it needs them as well.
_GRADIENTS = frozenset({"gradients", "gradients of several classes", "gradients at the input", "ReLUs"})
"""Needs that no quantized model can serve."""


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
    method = METHODS.get(name) or find_by_name(name, METHODS)
    if method is not None:
        return method
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
        MethodError: The wrapper or the method is unknown, or the wrapper does not accept the method.
    """
    outer = find_by_name(wrapper, WRAPPERS)
    if outer is None:
        near = suggest_names(wrapper, WRAPPERS)
        raise MethodError(f"wrapper {wrapper!r} is unknown.{near} Known wrappers: {', '.join(WRAPPERS)}.")
    method = find_method(inner)
    if outer.needs_weights and method.weights is None:
        raise MethodError(
            f"wrapper {outer.name!r} needs a method that weighs activations, but {method.name!r} does not; "
            f"use {_suggest_weighting(outer.name, method.name)}."
        )
    return Method(
        name=f"{outer.name}:{method.name}",
        function=_compose(outer.function, method),
        paper=", ".join(filter(None, [outer.paper, method.paper])),
        needs=method.needs,
        # A wrapper that needs weights runs the method once; others run it several times.
        cost="some passes" if method.cost == "a pass" and not outer.needs_weights else method.cost,
        ignores_layer=method.ignores_layer,
        weights=method.weights if outer.needs_weights else None,
        at_input_size=outer.at_input_size or method.at_input_size,
    )


def check_options(methods: Sequence[Method], options: Iterable[str]) -> None:
    """Check that each option belongs to at least one of the methods.

    Raises:
        MethodError: No method has the option; the message lists those that exist.
    """
    known = {option for method in methods for option in method.options}
    for option in options:
        if option in known:
            continue
        if foreign := describe_foreign_argument(option):
            raise MethodError(foreign)
        names = ", ".join(repr(method.name) for method in methods)
        listed = ", ".join(sorted(known)) or "none"
        raise MethodError(
            f"method {names} has no option {option!r}; known options: {listed}.{suggest_names(option, known)}"
        )


def find_asked_depths(methods: Iterable[Method], options: Mapping[str, Any]) -> Depths:
    """Return the option ``depths``, or its default, of the first method that has it; 0 if none has it.

    Raises:
        MethodError: The option is neither a number of depths nor the names of layers.
    """
    for method in methods:
        if not method.reads_depths:
            continue
        depths: Depths = options.get("depths", method.options["depths"])
        check_depths(depths)
        return int(depths) if isinstance(depths, Integral) else depths
    return 0


def check_model_support(methods: Sequence[Method], model: nn.Module) -> None:
    """Check that the methods need no submodules of an unhookable model and no gradients of a quantized model.

    Raises:
        MethodError: A method needs more than the model offers; the message lists the methods that work.
    """
    unhookable = describe_unhookable(model)
    for method in methods:
        if unhookable and not _needs_only_model_calls(method):
            working = ", ".join(name for name, each in METHODS.items() if _needs_only_model_calls(each))
            raise MethodError(
                f"the model is {unhookable}, which exposes no submodules to hook, so method {method.name!r} cannot "
                f"read a layer; use one of {working}, or pass the original nn.Module."
            )
        if method.needs & _GRADIENTS and is_quantized(model):
            working = ", ".join(name for name, each in METHODS.items() if _works_if_quantized(each))
            raise MethodError(
                f"the model is quantized and has no gradients, which method {method.name!r} needs; "
                f"use one of {working}, or pass the model from before quantization."
            )


def _suggest_weighting(wrapper: str, name: str) -> str:
    """Return the end of a message: another order of the wrappers if that helps, else the methods that fit."""
    outside, _, innermost = name.rpartition(":")
    if outside and innermost in METHODS and METHODS[innermost].weights is not None:
        return f"'{outside}:{wrapper}:{innermost}'"
    return f"one of {', '.join(name for name, each in METHODS.items() if each.weights)}"


def _compose(outer: WrapperFunction, method: Method) -> MethodFunction:
    """Return the function of a wrapped method, whose signature lists the options of both."""
    outer_options, inner_options = get_option_parameters(outer), get_option_parameters(method.function)

    @wraps(outer)
    def run_wrapper(evidence: Evidence, **options: Any) -> Tensor:
        inner = _bind_options(method, {name: value for name, value in options.items() if name in inner_options})
        return outer(evidence, inner, **{name: value for name, value in options.items() if name in outer_options})

    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (inner_options | outer_options).values()]
    evidence = inspect.Parameter("evidence", inspect.Parameter.POSITIONAL_ONLY)
    # The options of a method are read from its signature; `wraps` alone would show those of the wrapper only.
    run_wrapper.__signature__ = inspect.Signature([evidence, *keywords])  # type: ignore[attr-defined]
    return run_wrapper


def _bind_options(method: Method, options: dict[str, Any]) -> Method:
    """Return the method with its options set."""
    weights = None if method.weights is None else partial(method.weights, **options)
    return replace(method, function=partial(method.function, **options), weights=weights)


def _needs_only_model_calls(method: Method) -> bool:
    """Return True if the method reads only the model's inputs and outputs, and no layer."""
    return method.ignores_layer and frozenset() < method.needs <= _MODEL_CALLS


def _works_if_quantized(method: Method) -> bool:
    """Return True if the method works on any quantized model: it needs activations and scores alone."""
    return frozenset() < method.needs <= {"activations", "forwards"}
