"""Checks of the arguments of targets. They raise :class:`camtool.TargetError`, before anything runs."""

from __future__ import annotations

from functools import partial

from camtool.arguments import checks
from camtool.errors import TargetError
from camtool.outputs.class_scores import LINKS

check_choice = partial(checks.check_choice, error=TargetError)
check_confidence = partial(checks.check_number, least=0, most=1, optional=True, error=TargetError)
check_integer = partial(checks.check_integer, error=TargetError)
check_number_tuple = partial(checks.check_number_tuple, error=TargetError)
check_real_tensor = partial(checks.check_real_tensor, error=TargetError)


def check_link(name: str, link: str) -> None:
    """Check that a way from scores to probabilities is one of :data:`camtool.outputs.class_scores.Link`."""
    check_choice(name, link, LINKS)
