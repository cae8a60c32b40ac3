"""YOLO, vision-language, open-vocabulary models and networks on frames: the map equals a Grad-CAM by hand."""

from __future__ import annotations

import pytest

from tests.zoo.families import FAMILIES, find_faults

ALIKE = {
    *(f"{version}-{task}" for version in ("yolov8n", "yolo12n") for task in ("seg", "pose", "obb", "cls")),
    *("yolov8n-p2", "yolov9c", "yolov9c-seg", "yolo26n-cls", "rtdetr-resnet50"),
}
"""Models with the heads of others in the list; ``python -m benchmarks coverage`` explains them."""

MODELS = [(group, name) for group, models in FAMILIES.items() for name in models if name not in ALIKE]


@pytest.mark.parametrize(("group", "name"), MODELS)
def test_the_map_equals_a_gradcam_by_hand(group: str, name: str) -> None:
    family = FAMILIES[group][name]
    assert find_faults(family, family.build(), family.make_inputs()) == []
