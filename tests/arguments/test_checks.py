"""Checks of argument values, and lists of lists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch

from camtool.arguments import checks
from camtool.arguments.checks import iterate_leaves
from camtool.arguments.explain_arguments import to_list
from camtool.errors import CamtoolError, TargetError


@pytest.mark.parametrize(
    ("check", "accepted"),
    [
        (checks.check_integer, [0, -3, np.int64(2), torch.tensor(2)]),
        (checks.check_count, [1, 7, np.int64(2)]),
        (checks.check_number, [0, -1.5, np.float32(2)]),
        (checks.check_numbers, [[1], (1, 2.5)]),
        (checks.check_real_tensor, [torch.ones(2), [1, 2], np.ones(3)]),
        (lambda name, value: checks.check_number_tuple(name, value, 2), [(1, 2.5), [torch.tensor(1), 2]]),
        (lambda name, value: checks.check_choice(name, value, ("mean", "max")), ["mean", "max"]),
        (lambda name, value: checks.check_not_url(name, value, CamtoolError), ["folder/a.png", 3]),
    ],
)
def test_a_check_accepts_what_fits(check: Callable[..., None], accepted: list[Any]) -> None:
    for value in accepted:
        check("n", value)


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (checks.check_integer, "a", "n must be a whole number, got 'a'."),
        (checks.check_integer, 1.5, "n must be a whole number, got 1.5."),
        (checks.check_integer, True, "n must be a whole number, got True."),
        (checks.check_integer, torch.tensor(True), "n must be a whole number, got tensor(True)."),
        (checks.check_integer, np.False_, f"n must be a whole number, got {np.False_!r}."),
        (checks.check_count, 0, "n must be a whole number of 1 or more, got 0."),
        (checks.check_count, True, "n must be a whole number of 1 or more, got True."),
        (checks.check_number, math.nan, "n must be a finite number, got nan."),
        (checks.check_number, "1", "n must be a finite number, got '1'."),
        (checks.check_numbers, [], "n must be a list of numbers, at least of one, such as [1, 2]; got []."),
        (checks.check_real_tensor, "a", "n must be a tensor or an array of numbers, got str."),
        (checks.check_real_tensor, torch.ones(1) * 1j, "n must hold real numbers, got torch.complex64 on cpu."),
        (lambda *given, error: checks.check_number_tuple(*given, 2, error=error), 1, "n must be 2 numbers, got 1."),
        (
            lambda *given, error: checks.check_choice(*given, ["mean", "max"], error=error),
            "meen",
            "n must be one of 'mean', 'max', got 'meen'. Did you mean 'mean'?",
        ),
        (
            lambda *given, error: checks.check_not_url(*given, error),
            "https://a.b/c",
            "n 'https://a.b/c': URLs are not read; download the file first and give its path.",
        ),
    ],
)
def test_a_check_names_the_argument_and_the_value(check: Callable[..., None], value: Any, message: str) -> None:
    with pytest.raises(TargetError, match=f"^{re.escape(message)}$"):
        check("n", value, error=TargetError)


@pytest.mark.parametrize("check", [checks.check_integer, checks.check_count, checks.check_number])
def test_none_is_accepted_only_where_it_is_optional(check: Callable[..., None]) -> None:
    check("n", None, optional=True)
    with pytest.raises(CamtoolError, match="got None"):
        check("n", None)
    with pytest.raises(CamtoolError, match="or None, got 'a'"):
        check("n", "a", optional=True)


def test_inclusive_and_exclusive_bounds():
    checks.check_number("n", 1, least=1, most=1)
    for bounds in ({"above": 1}, {"below": 1}, {"least": 2}, {"most": 0}):
        with pytest.raises(CamtoolError, match=r"n must be a finite number .*, got 1"):
            checks.check_number("n", 1, **bounds)


def test_a_device_is_parsed_or_refused():
    assert checks.parse_device("cpu") == checks.parse_device(torch.device("cpu")) == torch.device("cpu")
    for unknown in ("gpu", [1]):
        with pytest.raises(CamtoolError, match=f"device={re.escape(repr(unknown))} is not a device of torch"):
            checks.parse_device(unknown)  # type: ignore[arg-type]


def test_leaves_of_nested_lists():
    assert list(iterate_leaves([1, [2, (3, ["ab"])], []])) == [1, 2, 3, "ab"]
    assert list(iterate_leaves("ab")) == ["ab"]


def test_one_value_becomes_a_list():
    assert (to_list("ab"), to_list(("a", "b")), to_list([])) == (["ab"], ["a", "b"], [])


def count_and_choose(
    values: object,
    *,
    samples: checks.Count = 3,
    kind: Literal["mean", "max"] = "mean",
    chunk: checks.OptionalCount = None,
    plain: int = 1,
) -> object:
    return values, samples, kind, chunk, plain


def test_options_are_checked_by_their_annotations():
    checked = checks.check_options_of(count_and_choose, TargetError)
    assert checked(0, samples=2, kind="max", chunk=None, plain=-1) == (0, 2, "max", None, -1)
    assert checked("any") == ("any", 3, "mean", None, 1)
    assert checked.__name__ == "count_and_choose"
    for options in ({"samples": 0}, {"kind": "median"}, {"chunk": 1.5}):
        with pytest.raises(TargetError, match=f"^{next(iter(options))} must be "):
            checked(0, **options)


def test_a_function_without_such_options_is_returned_as_it_is():
    def plain(values: object, *, seed: int = 0) -> object:
        return values

    def annotated_with_what_is_unknown(values: Unknown, *, seed: checks.Count = 0) -> object:  # noqa: F821
        return values

    for function in (plain, annotated_with_what_is_unknown, max):
        assert checks.check_options_of(function, TargetError) is function
