"""The methods: how evidence becomes a map. One file a family; all of them are in :data:`METHODS`."""

from __future__ import annotations

from camtool.methods import (
    ablation,
    activation,
    attention,
    fullgrad,
    gradient,
    linear,
    masking,
    optimised,
    paths,
    pixels,
    rival,
    wrappers,
)
from camtool.methods.registry import (
    COSTS,
    METHODS,
    WRAPPERS,
    Method,
    MethodFunction,
    check_model,
    check_options,
    find,
    method,
    weighting,
    wrapped,
    wrapper,
)

__all__ = [
    "COSTS",
    "METHODS",
    "WRAPPERS",
    "Method",
    "MethodFunction",
    "ablation",
    "activation",
    "attention",
    "check_model",
    "check_options",
    "find",
    "fullgrad",
    "gradient",
    "linear",
    "masking",
    "method",
    "optimised",
    "paths",
    "pixels",
    "rival",
    "weighting",
    "wrapped",
    "wrapper",
    "wrappers",
]
