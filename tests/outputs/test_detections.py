"""Detections in outputs: torchvision's lists, the queries of DETR, the anchors of Ultralytics."""

from __future__ import annotations

import math
from math import log
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from camtool.errors import TargetError
from camtool.outputs.anchors import find_level_scores
from camtool.outputs.class_scores import (
    find_logits,
)
from camtool.outputs.detections import Detections, count_queries, find_detections
from camtool.outputs.predictions import count_images, get_image_output
from tests.outputs.example_outputs import LOGITS, QUERIES, TWO, make_anchors


def test_find_detections_reads_torchvision_lists() -> None:
    for output in (TWO, tuple(TWO), ({}, TWO)):  # the last as TorchScript models return it, after the losses
        assert count_images(output) == 2
        first, second = find_detections(output)  # type: ignore[misc]
        assert len(first) == 3
        assert len(second) == 0
        assert first.select_class(3).boxes.tolist() == [[0, 0, 4, 4], [8, 0, 9, 2]]
        assert_close(first.select_class(3).scores, torch.tensor([0.5, 0.6]))
        assert len(first.select_class(2)) == 0
        assert first.sort_by_confidence().classes.tolist() == [1, 3, 3]  # type: ignore[union-attr]
        assert_close(first.sort_by_confidence().confidences, torch.tensor([0.9, 0.6, 0.5]))
        assert not first.is_relative
        assert len(second.sort_by_confidence()) == 0
        assert get_image_output(output, 0) is TWO[0]
        assert get_image_output(output, 1, keep_batch=True) == [TWO[1]]


def test_find_detections_reads_detr_queries() -> None:
    (found,) = find_detections(QUERIES, class_count=2)  # type: ignore[misc]
    assert_close(found.boxes, torch.tensor([[0.4, 0.3, 0.6, 0.7], [0.0, 0.0, 0.5, 1.0]]))
    assert_close(found.confidences, torch.tensor([[1 / 8, 2 / 8], [3 / 5, 1 / 5]]))
    assert_close(found.scores, torch.tensor([[0.0, log(2)], [log(3), 0.0]]))  # logits
    assert found.is_relative
    best = found.sort_by_confidence()
    assert best.classes.tolist() == [0, 1]  # type: ignore[union-attr]
    assert_close(best.scores, torch.tensor([log(3), log(2)]))
    assert_close(found.select_class(1).scores, torch.tensor([log(2), 0.0]))
    assert count_queries(QUERIES) == 2
    with pytest.raises(TargetError, match="2 does not exist: the model has 2 classes, 0 to 1"):
        found.select_class(2)


def test_queries_without_no_object_have_a_sigmoid_each() -> None:
    (found,) = find_detections(QUERIES, class_count=3)  # type: ignore[misc]
    assert_close(found.confidences, torch.tensor([[1 / 2, 2 / 3, 5 / 6], [3 / 4, 1 / 2, 1 / 2]]))
    assert found.sort_by_confidence().classes.tolist() == [2, 0]  # type: ignore[union-attr]


def test_last_logit_is_no_object_if_the_class_count_is_unknown() -> None:
    original = {"pred_logits": QUERIES["logits"], "pred_boxes": QUERIES["pred_boxes"]}
    (unknown,), (known,) = find_detections(original), find_detections(QUERIES, class_count=2)  # type: ignore[misc]
    assert_close(unknown.confidences, known.confidences)


def test_find_detections_reads_ultralytics_anchors() -> None:
    read, maps = make_anchors()
    head = {"feats": maps, "scores": read[:, 4:].logit()}
    for output in ((read, maps), (read, head), (read, {"one2many": {}, "one2one": head})):
        assert count_images(output) == 2
        found = find_detections(output)[0]  # type: ignore[index]
        assert found.boxes[3].tolist() == [8, 16, 12, 24]
        of_one = found.select_class(1)
        assert of_one.confidences[3] == pytest.approx(0.97)
        assert of_one.scores[3] == pytest.approx(0.97 if output[1] is maps else math.log(0.97 / 0.03), rel=1e-4)
        best = found.sort_by_confidence()
        assert best.classes[:2].tolist() == [0, 1]  # type: ignore[index]
        assert not best.is_relative


def test_mask_coefficients_after_the_classes_are_not_classes() -> None:
    read, maps = make_anchors()
    found = find_detections((torch.cat([read, torch.full((2, 32, 6), 9.0)], 1), maps), class_count=2)[0]  # type: ignore[index]
    assert found.confidences.shape == (6, 2)
    assert found.confidences.amax() == pytest.approx(0.98)


@pytest.mark.parametrize(
    "output",
    [
        make_anchors()[0],  # without the maps it could be anything
        (make_anchors()[0], make_anchors()[1][:1]),  # four positions are not six anchors
        (make_anchors()[0][:, :4], make_anchors()[1]),  # no room for classes
        {"logits": torch.zeros(1, 2, 3), "pred_boxes": torch.zeros(1, 3, 4)},  # other queries
        {"logits": torch.zeros(1, 2, 3), "pred_boxes": None},
        [{"boxes": torch.zeros(1, 4), "scores": torch.zeros(1)}],  # no labels
        [],
    ],
    ids=["alone", "fewer positions", "no classes", "other queries", "no boxes", "no labels", "nothing"],
)
def test_outputs_similar_to_detections_are_not_detections(output: Any) -> None:
    assert find_detections(output) is None


def test_find_logits_refuses_detections() -> None:
    for output in (TWO, QUERIES, make_anchors()):
        with pytest.raises(TargetError, match=r"the model returned detections, .* Detection\(n\) or Box\(xyxy\)"):
            find_logits(output)


def test_compute_iou_equals_intersection_over_union() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [2, 2, 6, 6], [4, 0, 8, 4], [1, 1, 1, 1], [1, 1, 3, 2]])
    found = Detections(boxes, boxes[:, 0], boxes[:, 0], boxes[:, 0].long())
    assert_close(found.compute_iou((0, 0, 4, 4)), torch.tensor([1, 4 / 28, 0, 0, 2 / 16]))
    assert found.compute_iou((1, 1, 1, 1)).tolist() == [0, 0, 0, 1, 0]  # an empty box overlaps nothing but itself


@pytest.mark.parametrize("classes", [2, 3])
def test_lowest_score_is_on_the_graph(classes: int) -> None:
    boxes = TWO[0]["boxes"].clone().requires_grad_()
    confidences = boxes.sum(1) / 100
    (listed,) = find_detections([TWO[0] | {"boxes": boxes, "scores": confidences}])  # type: ignore[misc]
    none = listed.select_class(7).compute_lowest_score()
    assert none.item() == 0
    torch.autograd.grad(none, boxes)  # raises where there is no graph
    anchored = find_detections(make_anchors())[0]  # type: ignore[index]
    assert (
        anchored.select_class(1).compute_lowest_score().item()
        == anchored.sort_by_confidence().compute_lowest_score().item()
        == 0
    )
    (queries,) = find_detections(QUERIES, classes)  # type: ignore[misc]
    assert queries.select_class(1).compute_lowest_score().item() == 0  # the lower logit of log(2) and 0


def test_find_level_scores_returns_the_maps_of_the_anchors() -> None:
    read, maps = make_anchors()
    assert all(one is other for one, other in zip(find_level_scores((read, maps)), maps, strict=True))
    for other in (LOGITS, TWO, QUERIES, (LOGITS, maps)):
        assert not find_level_scores(other)
