"""torchvision classifiers are explained without a named layer or reshaping."""

from __future__ import annotations

import pytest

from tests.zoo.catalogue import TORCHVISION, UNFIT, Entry
from tests.zoo.check import hold

_MOST_PARAMETERS = 120_000_000

_ONE_OF_EACH_BLOCK = {
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18"),
    *("resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "squeezenet1_1", "swin_t", "swin_v2_t"),
    *("vit_b_16", "vit_b_32"),
}
"""The others have more or wider blocks of the same kinds; ``python -m benchmarks coverage`` explains them all."""


@pytest.mark.parametrize("entry", [each for each in TORCHVISION if each.name in _ONE_OF_EACH_BLOCK], ids=str)
def test_classifier_is_explained_without_configuration(entry: Entry) -> None:
    hold(entry, UNFIT)


def test_every_classifier_is_covered() -> None:
    import torchvision.models as zoo

    parameters = {
        name: max(weights.meta["num_params"] for weights in zoo.get_model_weights(name))
        for name in zoo.list_models(module=zoo)
    }
    assert {entry.name for entry in TORCHVISION} == {name for name, n in parameters.items() if n <= _MOST_PARAMETERS}
    assert {entry.name for entry in TORCHVISION} >= _ONE_OF_EACH_BLOCK
