"""Checks before anything runs: do the methods have these options, and does the model fit the methods?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import nn

from camtool.arguments.explain_arguments import describe_foreign_argument
from camtool.arguments.messages import suggest_names
from camtool.errors import MethodError
from camtool.hooks.unhookable_models import describe_unhookable, is_quantized
from camtool.layers.depths import Depths
from camtool.methods.options import check_depths
from camtool.methods.registry import METHODS, Method

_MODEL_CALLS = frozenset({"forwards", "a detector", "gradients at the input"})
"""Needs of methods that read only the model's inputs and outputs."""

# Guided backprop ("ReLUs") changes gradients, so it needs them as well.
_GRADIENTS = frozenset({"gradients", "gradients of several classes", "gradients at the input", "ReLUs"})
"""Needs that no quantized model can serve."""


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


def _needs_only_model_calls(method: Method) -> bool:
    """Return True if the method reads only the model's inputs and outputs, and no layer."""
    return method.ignores_layer and frozenset() < method.needs <= _MODEL_CALLS


def _works_if_quantized(method: Method) -> bool:
    """Return True if the method works on any quantized model: it needs activations and scores alone."""
    return frozenset() < method.needs <= {"activations", "forwards"}
