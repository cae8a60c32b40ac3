"""CAM methods: functions from evidence to a map, registered in :data:`METHODS`; one file per family."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from camtool.arguments.foreign_names import raise_missing_name

# Importing a family registers its methods; importing method_wrappers registers the wrappers.
from camtool.methods.families import (
    ablation,
    activation,
    attention,
    averaged_gradient,
    competition,
    fullgrad,
    gradient,
    input_gradient,
    opticam,
    rise,
    scorecam,
    text_tokens,
)
from camtool.methods.method_wrappers import conservative, eigen, noise, sess, tta
from camtool.methods.registry import (
    COSTS,
    METHODS,
    WRAPPERS,
    Method,
    MethodFunction,
    check_model_support,
    check_options,
    find_method,
    method,
    weighting,
    wrap_method,
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
    "averaged_gradient",
    "check_model_support",
    "check_options",
    "competition",
    "conservative",
    "eigen",
    "find_method",
    "fullgrad",
    "gradient",
    "input_gradient",
    "method",
    "noise",
    "opticam",
    "rise",
    "scorecam",
    "sess",
    "text_tokens",
    "tta",
    "weighting",
    "wrap_method",
    "wrapper",
]

if not TYPE_CHECKING:
    __getattr__ = partial(raise_missing_name, __name__)
