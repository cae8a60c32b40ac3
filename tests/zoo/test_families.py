"""YOLO, vision-language, open-vocabulary models and networks on frames: the map equals a Grad-CAM by hand."""

from __future__ import annotations

import pytest

from tests.zoo.families import FAMILIES, find_faults


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, models in FAMILIES.items() for name in models])
def test_the_map_equals_a_gradcam_by_hand(group: str, name: str) -> None:
    family = FAMILIES[group][name]
    assert find_faults(family, family.build(), family.make_inputs()) == []
