"""The methods: how evidence becomes a map. One file a family; all of them are in :data:`METHODS`."""

from __future__ import annotations

from camtool.methods import gradient, linear
from camtool.methods.registry import METHODS, Method, MethodFunction, check_options, find, method, weighting

__all__ = ["METHODS", "Method", "MethodFunction", "check_options", "find", "gradient", "linear", "method", "weighting"]
