"""Run all checks of an explanation. To add one, write a function and list it in ``CHECKS``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from camtool.errors import CamtoolError
from camtool.trust.checks import gradient_checks, input_checks, map_checks, model_checks
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import CheckReport, Finding, sort_findings
from camtool.warning_codes import MapWarning


class Check(NamedTuple):
    """A check.

    Attributes:
        find: Yields what it finds.
        find_skip_reason: Returns why the check does not apply, ``None`` if it does.
    """

    find: Callable[[CheckContext], Iterator[Finding]]
    find_skip_reason: Callable[[CheckContext], str | None] = lambda _: None


# All checks, in the order in which they run, by name.
CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "mode": Check(model_checks.check_mode),
        "last layer": Check(model_checks.check_last_layer, model_checks.find_last_layer_skip_reason),
        "depth": Check(model_checks.check_depth, model_checks.find_depth_skip_reason),
        "repeatability": Check(model_checks.check_repeatability),
        "gradient": Check(gradient_checks.check_gradient, gradient_checks.find_skip_reason),
        "finite difference": Check(gradient_checks.check_finite_difference, gradient_checks.find_skip_reason),
        "other paths": Check(model_checks.check_other_paths, model_checks.find_other_paths_skip_reason),
        "grid": Check(map_checks.check_grid),
        "place": Check(map_checks.check_place, map_checks.find_place_skip_reason),
        "other classes": Check(map_checks.check_classes, map_checks.find_classes_skip_reason),
        "blank image": Check(map_checks.check_blank_image),
        "border": Check(map_checks.check_border, map_checks.find_border_skip_reason),
        "transform": Check(input_checks.check_transform),
        "channels": Check(input_checks.check_channels, input_checks.find_skip_reason),
        "color": Check(input_checks.check_color),
        "scale": Check(input_checks.check_scale, input_checks.find_skip_reason),
    }
)


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
            reason = check.find_skip_reason(context)
            if reason is None:
                findings.extend(check.find(context))  # one by one, so that those before an error are kept
        except CamtoolError as error:  # e.g. a model that differentiates in its forward pass
            reason = f"it failed: {error}"
        if reason:
            skipped[name] = reason
    codes = {finding.code for finding in findings}
    from_warnings = [
        Finding(warning.code, str(warning), places=warning.places) for warning in warnings if warning.code not in codes
    ]
    return CheckReport(title, sort_findings([*from_warnings, *findings]), MappingProxyType(skipped))
