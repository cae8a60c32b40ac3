"""Options of methods: each method rejects invalid values and names the option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from camtool.errors import MethodError
from camtool.methods import METHODS, find_method
from camtool.methods.options import check_choice, check_count, check_number, check_numbers
from camtool.targets import ClassScore
from tests.methods.test_all_methods import FEWER, IMAGES, look, pooled_net

NAN, INF = float("nan"), float("inf")
NAMES = [*METHODS, "noise:gradcam", "sess:gradcam"]
WRONG: dict[type, list[Any]] = {
    int: [1.5, "1", True, -1, NAN],
    float: ["1", True, NAN, INF],
    str: ["nonsense", 1, None],
    tuple: [2, "12", (), [NAN], ["1"], [0]],
    type(None): [1.5j, "1", True, 0, NAN],
}
"""The type of an option's default → what it cannot be."""

OPTIONS = [(name, *option) for name in NAMES for option in find_method(name).options.items()]

# All options are checked by the same four functions, so each option meets one wrong value, and each value one method.
CASES = [(name, option, WRONG[type(default)][0]) for name, option, default in OPTIONS if type(default) in WRONG] + [
    (name, option, value)
    for kind, values in WRONG.items()
    for name, option, default in [next(each for each in OPTIONS if type(each[2]) is kind)]
    for value in values[1:]
]


@pytest.mark.parametrize(("name", "option", "value"), CASES)
def test_option_of_a_wrong_type_is_rejected_by_its_name(name: str, option: str, value: Any) -> None:
    net, layer = pooled_net()
    evidence = look(net, layer, torch.randn(1, *IMAGES), ClassScore(0))
    options = {each: of for each, of in FEWER.get(name, {}).items() if each != option}
    with pytest.raises(MethodError, match=rf"^(each of )?{option} must be .* got"):
        find_method(name)(evidence, **options, **{option: value})


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_a_count_is_a_whole_number(value: Any) -> None:
    check_count("n", value)
    check_count("n", None, optional=True)
    check_count("n", 0, least=0)
    with pytest.raises(MethodError, match=r"^n must be a whole number of 9 or more, got"):
        check_count("n", value, least=9)
    with pytest.raises(MethodError, match=r"^n must be a whole number of 1 or more, got None\.$"):
        check_count("n", None)


def test_bounds_may_belong_to_what_they_bound_or_not() -> None:
    for value in (0, 0.5, 1, np.float32(0.25)):
        check_number("x", value, least=0, most=1)
    check_number("x", None, optional=True)
    for value, bounds in ((0, {"above": 0}), (-1, {"least": 0}), (1, {"below": 1}), (2, {"most": 1})):
        with pytest.raises(MethodError, match=rf"^x must be a finite number \D+ [01], got {value}\.$"):
            check_number("x", value, **bounds)  # type: ignore[arg-type]
    with pytest.raises(MethodError, match=r"^x must be a finite number above 0 and at most 1, or None, got 3\.$"):
        check_number("x", 3, above=0, most=1, optional=True)


def test_each_of_several_numbers_is_checked() -> None:
    for values in ([1], (1, 2.5)):
        check_numbers("scales", values, least=1)
    with pytest.raises(MethodError, match=r"^each of scales must be a finite number at least 1, got 0\.5\.$"):
        check_numbers("scales", [1, 0.5], least=1)


def test_a_choice_that_is_unknown_is_told_what_is_near() -> None:
    check_choice("on", "input", ("input", "activations"))
    with pytest.raises(MethodError, match=r"^on must be one of 'input', 'activations', got 'imput'\. Did you mean 'in"):
        check_choice("on", "imput", ("input", "activations"))
