"""torchvision classifiers are explained without a named layer or reshaping."""

from __future__ import annotations

import pytest

from tests.zoo.catalogue import TORCHVISION, UNFIT, Entry
from tests.zoo.check import hold

pytestmark = pytest.mark.slow

_MOST_PARAMETERS = 120_000_000


@pytest.mark.parametrize("entry", TORCHVISION, ids=str)
def test_classifier_is_explained_without_configuration(entry: Entry) -> None:
    hold(entry, UNFIT)


def test_every_classifier_is_covered() -> None:
    import torchvision.models as zoo

    parameters = {
        name: max(weights.meta["num_params"] for weights in zoo.get_model_weights(name))
        for name in zoo.list_models(module=zoo)
    }
    assert {entry.name for entry in TORCHVISION} == {name for name, n in parameters.items() if n <= _MOST_PARAMETERS}
