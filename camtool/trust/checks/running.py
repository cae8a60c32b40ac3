"""Run all checks of an explanation. To add one, write a function and list it in ``CHECKS``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from camtool.errors import CamtoolError
from camtool.trust.checks import gradient_checks, input_checks, map_checks, model_checks, place_checks
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import CheckReport, Finding, sort_findings
from camtool.warning_codes import MapWarning

Check: TypeAlias = Callable[[CheckContext], Iterator[Finding]]
"""A function that yields what it finds."""

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "mode": model_checks.check_mode,
        "last layer": model_checks.check_last_layer,
        "depth": model_checks.check_depth,
        "repeatability": model_checks.check_repeatability,
        "gradient": gradient_checks.check_gradient,
        "finite difference": gradient_checks.check_finite_difference,
        "other paths": model_checks.check_other_paths,
        "grid": map_checks.check_grid,
        "place": place_checks.check_place,
        "other classes": map_checks.check_classes,
        "blank image": map_checks.check_blank_image,
        "border": map_checks.check_border,
        "transform": input_checks.check_transform,
        "channels": input_checks.check_channels,
        "scale": input_checks.check_scale,
    }
)
"""All checks, in the order in which they run: name and function."""


def run_checks(
    context: CheckContext, title: str, warnings: tuple[MapWarning, ...], only: Collection[str] | None = None
) -> CheckReport:
    """Return the findings of all checks and the warnings of the explanation.

    Args:
        context: The explanation and its evidence.
        title: What is checked.
        warnings: The warnings that the explanation has already. A check's finding of the same code replaces them, as
            it says more.
        only: The names of the checks that run; by default all.
    """
    skipped: dict[str, str] = {}
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        if only is not None and name not in only:
            continue
        try:
            reason = _find_skip_reason(name, context)
            if reason is None:
                findings.extend(check(context))  # one by one, so that those before an error are kept
        except CamtoolError as error:  # e.g. a model that differentiates in its forward pass
            reason = f"it failed: {error}"
        if reason:
            skipped[name] = reason
    codes = {finding.code for finding in findings}
    known = [
        Finding(warning.code, str(warning), places=warning.places) for warning in warnings if warning.code not in codes
    ]
    return CheckReport(title, sort_findings([*known, *findings]), MappingProxyType(skipped))


def _find_skip_reason(name: str, context: CheckContext) -> str | None:
    """Return why a check does not apply; ``None`` if it does."""
    if name == "last layer":
        return model_checks.find_last_layer_skip_reason(context)
    if name == "depth":
        return model_checks.find_depth_skip_reason(context)
    if name in ("channels", "scale"):
        return input_checks.find_skip_reason(context)
    if name == "place":
        return place_checks.find_place_skip_reason(context)
    if name == "other classes":
        return map_checks.find_classes_skip_reason(context)
    if name == "other paths" and not context.evidence[0].layer:
        return "the method looks at no layer"
    if name in ("gradient", "finite difference") and not any(of_layer.uses_gradients for of_layer in context.evidence):
        return "the method reads no gradients"
    if name == "border" and context.raw.ndim != 2:
        return "it takes an image"
    return None
