"""The boxes of a detector."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import camtool
from camtool.app.panels.detections import BoxOnPhoto, describe_miss, draw_all_boxes, find_box_at, list_boxes
from camtool.errors import ModelError, NothingFoundError, TargetError
from camtool.models import Loaded
from camtool.targets import Detection
from tests.app.panels.models import box_model, draw_demo_scene, draw_noise, to_tensor
from tests.helpers.nets import small_detector

BOXES = [(2.0, 2.0, 9.0, 9.0, 1, 0.4), (1.0, 1.0, 16.0, 14.0, 2, 0.9), (10.0, 10.0, 15.0, 15.0, 1, 0.05)]


def test_boxes_come_with_label_and_confidence_the_surest_first() -> None:
    found = list_boxes(box_model(BOXES), draw_noise(20, 20))
    assert [(each.number, each.label, each.xyxy) for each in found] == [
        (0, "dog", (1, 1, 16, 14)),
        (1, "cat", (2, 2, 9, 9)),
        (2, "cat", (10, 10, 15, 15)),
    ]
    assert [each.confidence for each in found] == pytest.approx([0.9, 0.4, 0.05])
    assert found[1].caption == "cat 40%"
    assert [each.number for each in list_boxes(box_model(BOXES), draw_noise(20, 20), least=0.3)] == [0, 1]


def test_a_click_hits_the_smallest_box_around_it() -> None:
    found = list_boxes(box_model(BOXES), draw_noise(20, 20))
    hits = {point: find_box_at(found, *point) for point in [(5, 5), (12, 4), (12, 12), (19, 19), (9, 9)]}
    numbers = {point: None if hit is None else hit.number for point, hit in hits.items()}
    assert numbers == {(5, 5): 1, (12, 4): 0, (12, 12): 2, (19, 19): None, (9, 9): 0}
    twins = [BoxOnPhoto(n, "x", 0.5, (0, 0, 4, 4)) for n in (3, 1, 2)]
    assert find_box_at(twins, 1, 1) == twins[1]


def test_a_click_on_no_box_is_answered_in_words() -> None:
    photo = draw_noise(20, 20)
    found = list_boxes(box_model(BOXES), photo)
    assert "No box is here" in describe_miss(photo, found, 19, 19)
    assert "finds nothing" in describe_miss(photo, (), 5, 5)
    with pytest.raises(TargetError, match="outside"):
        describe_miss(photo, found, 25, 5)


def test_each_box_has_its_own_map() -> None:
    loaded, photo = box_model(BOXES), draw_noise(20, 20)
    for each in list_boxes(loaded, photo):
        result = camtool.explain(loaded, photo, Detection(each.number), method="hirescam")
        assert (result.box, result.label) == (each.xyxy, each.label)
        x0, y0, x1, y1 = map(int, each.xyxy)
        inside = np.zeros((20, 20), bool)
        inside[y0:y1, x0:x1] = True
        assert np.abs(result.raw[~inside]).max() == 0
        assert np.abs(result.raw[inside]).max() > 0
    with pytest.raises(NothingFoundError):
        camtool.explain(loaded, photo, Detection(3), method="odam")


def test_a_photo_without_detections_has_no_boxes() -> None:
    assert list_boxes(box_model([]), draw_noise(20, 20)) == ()


def test_a_classifier_is_refused(demo: Loaded) -> None:
    with pytest.raises(ModelError, match="no detector"):
        list_boxes(demo, draw_demo_scene()[1])


def test_the_chosen_box_is_drawn_in_another_color() -> None:
    photo = Image.new("RGB", (80, 80), (90, 90, 90))
    found = [BoxOnPhoto(0, "a", 0.9, (5, 5, 40, 40)), BoxOnPhoto(1, "b", 0.8, (30, 30, 75, 75))]
    plain, chosen = (np.asarray(draw_all_boxes(photo, found, number)) for number in (None, 1))
    changed = (plain != chosen).any(2)
    assert changed[60:75, 70:].any(1).all(), "an edge of the chosen box"
    assert not changed[8:25, 5].any(), "an edge of the other one"
    assert (chosen[60:70, 60:][..., 0].max(1).astype(int) - chosen[60:70, 60:][..., 2].min(1) > 100).all(), "orange"


def test_a_real_detector_with_random_weights() -> None:
    loaded, photo = Loaded(small_detector(), to_tensor), draw_noise(96, 64)
    found = list_boxes(loaded, photo)
    assert len(found) > 1
    assert [each.confidence for each in found] == sorted((each.confidence for each in found), reverse=True)
    result = camtool.explain(loaded, photo, Detection(1), method="odam")
    assert result.box == pytest.approx(found[1].xyxy)
    assert result.heatmap.shape == (64, 96)
