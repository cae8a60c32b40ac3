"""D-RISE against its oracle, on detectors with one class per box and on detectors with a score for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.methods import METHODS
from camtool.outputs.detections import Detections
from camtool.targets import Box, ClassScore, Detection, MatchedDetection
from camtool.targets.detection_targets import DetectionSimilarity
from tests.helpers.nets import small_detector
from tests.helpers.vision_transformers import close_to_peak
from tests.methods.test_all_methods import IMAGES, look, pooled_net
from tests.oracles import ORACLES
from tests.oracles.rise import DetectorCase, Found
from tests.targets.test_detection_targets import TWO, SquareDetector

FEW = {"samples": 60, "cells": 4}
CLASSES = 3


class Queries(nn.Module):
    """Four queries with boxes and logits that follow from the image, as in DETR; the last logit is "no object"."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Tanh())
        self.boxes, self.logits = nn.Linear(4 * 12, 16), nn.Linear(4 * 12, 4 * (CLASSES + 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.trunk(x).flatten(1)
        logits = 3 * self.logits(features).unflatten(1, (4, -1))
        return {"logits": logits, "pred_boxes": self.boxes(features).unflatten(1, (4, 4)).sigmoid()}


def detect_queries(net: nn.Module, x: Tensor) -> list[Found]:
    """Read the detections of one image ``(3, H, W)`` without the package."""
    output = net(x[None])
    found = []
    for (cx, cy, w, h), logits in zip(output["pred_boxes"][0].tolist(), output["logits"][0], strict=True):
        probabilities = logits.softmax(0)[:-1].tolist()
        found.append(Found([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], probabilities, max(probabilities)))
    return found


def detect_squares(net: nn.Module, x: Tensor) -> list[Found]:
    (output,) = net([x])
    rows = zip(output["boxes"].tolist(), output["labels"].tolist(), output["scores"].tolist(), strict=True)
    return [Found(box, [float(label == index) for index in range(4)], score) for box, label, score in rows]


def compute_expected(net: nn.Module, x: Tensor, which: int, detect: Any, options: Mapping[str, int]) -> Tensor:
    """Return the oracle's map of the ``which``-th most confident detection of one image."""
    ranked = sorted(detect(net, x), key=lambda each: -each.objectness)
    case = DetectorCase(x.tolist(), ranked[which], lambda other: detect(net, torch.tensor(other, dtype=x.dtype)))
    return torch.tensor(ORACLES["drise"](case, **options), dtype=x.dtype)


@pytest.mark.parametrize("which", [0, 1, 3])
def test_map_of_a_query_equals_the_oracle(which: int) -> None:
    net, x = Queries().double().eval(), torch.randn(2, *IMAGES, dtype=torch.float64)
    results = camtool.explain(net, x, Detection(which, confidence=0), method="drise", **FEW)
    for image, result in zip(x, results, strict=True):
        close_to_peak(torch.from_numpy(result.raw), compute_expected(net, image, which, detect_queries, FEW), 1e-9)


@pytest.mark.parametrize("which", [0, 2])
def test_map_of_a_box_with_one_class_equals_the_oracle(which: int) -> None:
    net, x, options = SquareDetector().double().eval(), TWO.double(), {"samples": 15, "cells": 4}
    result = camtool.explain(net, x, Detection(which), method="drise", **options)
    close_to_peak(torch.from_numpy(result.raw), compute_expected(net, x, which, detect_squares, options), 1e-9)


def test_peak_is_on_the_detection() -> None:
    net = SquareDetector().eval()
    for box in ((16, 32, 32, 48), (64, 48, 80, 64)):
        result = camtool.explain(net, TWO, Box(box), method="drise", samples=300, cells=6)
        heat = torch.from_numpy(result.heatmap)
        x0, y0, x1, y1 = box
        assert heat[y0:y1, x0:x1].mean() > 2 * heat.mean()


def test_similarity_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [0.0, 0.0, 2.0, 2.0]])
    output = [{"boxes": boxes, "labels": torch.tensor([2, 1, 1]), "scores": torch.tensor([0.9, 0.6, 0.1])}]
    # The first box is of another class; the second overlaps by 2 of 6 and the third wholly, at less confidence.
    assert_close(DetectionSimilarity(1, (0.0, 0.0, 2.0, 2.0))(output), torch.tensor([0.2]))
    none = [{"boxes": boxes[:0], "labels": torch.zeros(0, dtype=torch.long), "scores": torch.zeros(0)}]
    assert_close(DetectionSimilarity(1, (0.0, 0.0, 2.0, 2.0))(none), torch.tensor([0.0]))


def test_similarity_compares_the_probabilities_of_the_explained_box() -> None:
    boxes, confidences = (
        torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 1.0, 1.0]]),
        torch.tensor([[0.6, 0.8], [0.0, 0.5]]),
    )
    found = Detections(boxes, confidences, confidences, None, is_relative=True, class_count=2)
    target = MatchedDetection(0, (0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0), 0.6, class_count=2)
    similarity = target.to_similarity(found)
    assert similarity is not None
    assert_close(similarity.probabilities, confidences[0])
    logits = torch.cat([confidences.log(), torch.tensor([[-torch.inf], [0.5]]).log()], 1)
    alone = {"logits": logits[None, 1:], "pred_boxes": torch.tensor([[[0.75, 0.75, 0.5, 0.5]]])}
    assert_close(similarity(alone), torch.tensor([0.25 * 0.8 * 0.5]))


def test_batch_equals_its_images_and_chunks_do_not_matter() -> None:
    net, x = Queries().double().eval(), torch.randn(3, *IMAGES, dtype=torch.float64)
    together = camtool.explain(net, x, Detection(0, confidence=0), method="drise", **FEW)
    for image, result in zip(x, together, strict=True):
        for chunk in (1, 7):
            alone = camtool.explain(net, image[None], Detection(0, confidence=0), method="drise", chunk=chunk, **FEW)[0]
            assert_close(alone.raw, result.raw, rtol=0, atol=1e-12)


def test_a_detector_of_torchvision_can_be_explained() -> None:
    result = camtool.explain(small_detector(), torch.rand(3, 64, 64), Detection(0), method="drise", samples=4, cells=3)
    assert result.raw.shape == (64, 64)
    assert torch.from_numpy(result.raw).isfinite().all()


def test_a_class_of_a_classifier_is_refused() -> None:
    net, layer = pooled_net()
    with pytest.raises(MethodError, match=r"'drise' explains one detection of a detector, .* use method='rise'"):
        METHODS["drise"](look(net, layer, torch.randn(1, *IMAGES), ClassScore(0)))
