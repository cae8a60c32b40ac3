"""torchvision segmenters and detectors are explained without wrapper or layer."""

from __future__ import annotations

import pytest

from tests.zoo.check import check
from tests.zoo.dense import DETECTORS, SEGMENTERS, SHALLOW, Dense

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dense", SEGMENTERS.values(), ids=SEGMENTERS)
def test_segmenter_is_explained_without_configuration(dense: Dense) -> None:
    assert not check(dense.build(), dense.size).faults


@pytest.mark.parametrize("dense", DETECTORS.values(), ids=DETECTORS)
def test_detector_is_explained_without_configuration(dense: Dense) -> None:
    faults = check(dense.build(), dense.size).faults
    if dense.name in SHALLOW:
        assert all("of the network before it" in fault for fault in faults)
    else:
        assert not faults
