"""timm models are explained without a named layer or reshaping."""

from __future__ import annotations

import pytest

from tests.zoo.catalogue import BY_MODULE, FURTHER, SMALLEST, UNFIT, Entry
from tests.zoo.check import hold

timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'camtool[test]'")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("entry", SMALLEST, ids=str)
def test_smallest_model_of_each_module_is_explained_without_configuration(entry: Entry) -> None:
    hold(entry, UNFIT)


@pytest.mark.parametrize("entry", FURTHER, ids=lambda entry: f"{entry}-{entry.size}")
def test_further_model_is_explained_without_configuration(entry: Entry) -> None:
    hold(entry, UNFIT)


def test_every_module_is_covered() -> None:
    assert {*BY_MODULE} == {*timm.list_modules()}
    assert [m for m, entry in BY_MODULE.items() if entry.name not in timm.list_models(module=m)] == []
