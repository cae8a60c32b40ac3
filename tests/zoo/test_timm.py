"""Timm's models are explained as they are: no layer is named, nothing is reshaped."""

from __future__ import annotations

import pytest

from tests.zoo.catalogue import BY_MODULE, FURTHER, SMALLEST, UNFIT, Entry
from tests.zoo.check import hold

timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'camtool[test]'")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("entry", SMALLEST, ids=str)
def test_the_smallest_model_of_a_module_is_explained_as_it_is(entry: Entry) -> None:
    hold(entry, UNFIT)


@pytest.mark.parametrize("entry", FURTHER, ids=lambda entry: f"{entry}-{entry.size}")
def test_a_further_model_is_explained_as_it_is(entry: Entry) -> None:
    hold(entry, UNFIT)


def test_no_module_is_left_out() -> None:
    assert {*BY_MODULE} == {*timm.list_modules()}
    assert [m for m, entry in BY_MODULE.items() if entry.name not in timm.list_models(module=m)] == []
