"""Finding methods by name, and wrapping them: ``"tta:gradcam"`` is the method ``gradcam`` in the wrapper ``tta``."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from torch import Tensor

from camtool.arguments.foreign_names import describe_foreign_name
from camtool.arguments.messages import suggest_names
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.methods.registry import (
    METHODS,
    WRAPPERS,
    Method,
    MethodFunction,
    WrapperFunction,
    find_by_name,
    get_option_parameters,
)


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
    method = find_by_name(name, METHODS)
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
    def compute_maps(evidence: Evidence, **options: Any) -> Tensor:
        inner = _bind_options(method, {name: value for name, value in options.items() if name in inner_options})
        return outer(evidence, inner, **{name: value for name, value in options.items() if name in outer_options})

    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (inner_options | outer_options).values()]
    evidence = inspect.Parameter("evidence", inspect.Parameter.POSITIONAL_ONLY)
    # The options of a method are read from its signature; `wraps` alone would show those of the wrapper only.
    compute_maps.__signature__ = inspect.Signature([evidence, *keywords])  # type: ignore[attr-defined]
    return compute_maps


def _bind_options(method: Method, options: dict[str, Any]) -> Method:
    """Return the method with its options set."""
    weights = None if method.weights is None else partial(method.weights, **options)
    return replace(method, function=partial(method.function, **options), weights=weights)
