"""torchvision segmenters and detectors are explained without wrapper or layer."""

from __future__ import annotations

import pytest

from tests.zoo.check import check
from tests.zoo.dense import DETECTORS, SEGMENTERS, Dense

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dense", SEGMENTERS.values(), ids=SEGMENTERS)
def test_segmenter_is_explained_without_configuration(dense: Dense) -> None:
    assert not check(dense.build(), dense.size).faults


@pytest.mark.parametrize("dense", DETECTORS.values(), ids=DETECTORS)
def test_detector_is_explained_without_configuration(dense: Dense) -> None:
    assert not check(dense.build(), dense.size).faults
