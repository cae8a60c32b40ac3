"""torchvision segmenters and detectors are explained without wrapper or layer."""

from __future__ import annotations

import pytest

from tests.zoo.check import check
from tests.zoo.dense import DETECTORS, SEGMENTERS, Dense

_ONE_OF_EACH_HEAD = {
    *("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"),
    *("fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn"),
    *("maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large"),
}
"""The others have the same heads on other trunks; ``python -m benchmarks coverage`` explains them all."""


def one_of_each_head(models: dict[str, Dense]) -> pytest.MarkDecorator:
    chosen = [name for name in models if name in _ONE_OF_EACH_HEAD]
    return pytest.mark.parametrize("dense", [models[name] for name in chosen], ids=chosen)


@one_of_each_head(SEGMENTERS)
def test_segmenter_is_explained_without_configuration(dense: Dense) -> None:
    assert not check(dense.build(), dense.size).faults


@one_of_each_head(DETECTORS)
def test_detector_is_explained_without_configuration(dense: Dense) -> None:
    assert not check(dense.build(), dense.size).faults
