"""Detections are those that the model's own post-processing reports: objects are planted in the heads' outputs.

Ultralytics' and Hugging Face's own code says what is reported. Torchvision's detectors report by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import camtool
from camtool.errors import NothingFoundError, TargetError
from camtool.evidence.evidence import Evidence
from camtool.methods import Method
from camtool.outputs.detections import Detections
from camtool.outputs.predictions import get_predictions
from camtool.targets import AllDetections, Box, Detection, Top
from tests.targets.test_detection_targets import TWO as SQUARES
from tests.targets.test_detection_targets import SquareDetector
from tests.zoo import test_grounding as grounding
from tests.zoo import test_open_vocabulary as open_vocabulary
from tests.zoo.catalogue import picture
from tests.zoo.families import build_yolo
from tests.zoo.hugging_face import DETECTORS

SIZE = (96, 128)

PLANTED = [
    # center, width and height in pixels of the input, class, confidence
    (30, 40, 40, 40, 1, 0.90),
    (32, 40, 40, 40, 1, 0.85),  # the same object
    (30, 42, 40, 40, 1, 0.80),  # again
    (38, 40, 40, 40, 1, 0.70),  # an overlap of 0.67: suppressed by YOLOv5, reported by Ultralytics
    (30, 40, 40, 40, 2, 0.60),  # another class in the same place
    (90, 50, 30, 60, 1, 0.55),  # another object
    (60, 80, 20, 20, 0, 0.30),
    (20, 80, 20, 20, 0, 0.20),
    (100, 20, 20, 20, 3, 0.05),
]
"""Enough for each threshold to keep some and to remove some."""

Reported = list[tuple[int, float, list[float]]]
"""Class, confidence and corners in pixels of the input."""


def explain_nothing(evidence: Evidence) -> Tensor:
    return evidence.inputs.new_zeros(len(evidence.images), *evidence.inputs.shape[2:])


NO_MAP = Method("none", explain_nothing, ignores_layer=True)


def assert_same(output: Any, model: nn.Module, reported: Reported, scale: Sequence[int] = (1, 1)) -> None:
    """Check what camtool reads in an output against what is reported; boxes are multiplied by a width and a height."""
    assert 1 < len(reported) < len(PLANTED)
    found = get_predictions(output, model)[0]
    assert isinstance(found, Detections)
    found = found.select_reported()
    assert found.classes is not None
    ranked = sorted(reported, key=lambda each: -each[1])
    assert found.classes.tolist() == [index for index, _, _ in ranked]
    assert found.confidences.tolist() == pytest.approx([confidence for _, confidence, _ in ranked], abs=1e-3)
    expected = torch.tensor([box for _, _, box in ranked])
    torch.testing.assert_close(found.boxes * torch.tensor([*scale, *scale]), expected, atol=0.05, rtol=0)


def assert_explained(model: Any, inputs: Any, reported: Reported) -> None:
    """Check all detections, the top 3 and detections by number, without maps, against what is reported."""
    last = len(reported) - 1
    requests = [AllDetections(), Top(3), Detection(last), None]
    (results,) = camtool.explain(model, inputs, [requests], method=NO_MAP)
    ranked = sorted(reported, key=lambda each: -each[1])
    for result, (index, confidence, box) in zip(results, [*ranked, *ranked[:3], ranked[last], ranked[0]], strict=True):
        assert (result.index, result.probability) == (index, pytest.approx(confidence, abs=1e-3))
        assert result.box == pytest.approx(box, abs=0.05)
        assert result.score == pytest.approx(math.log(confidence / (1 - confidence)), abs=0.02)
        assert "not-reported" not in [each.code for each in result.warnings]
    with pytest.raises(NothingFoundError, match=f"the model found {len(reported)} in"):
        camtool.explain(model, inputs, [[Detection(last + 1)]], method=NO_MAP)


# ---------------------------------------------------------------------------------------------------------------- YOLO


def plant_anchors(output: Any, angles: Sequence[float] | None = None) -> Any:
    """Write the objects into every 20th anchor of a head of Ultralytics, in the table and in the logits."""
    whole, heads = output
    table = whole[0] if isinstance(whole, (tuple, list)) else whole
    table = table.clone()
    source = heads.get("one2many", heads)
    width = source["scores"].shape[1]
    table[:, 4 : 4 + width] = 1e-4
    scores = torch.full_like(source["scores"], -9.2)
    for number, (*box, index, confidence) in enumerate(PLANTED):
        anchor = number * 20 + 3
        table[:, :4, anchor] = table.new_tensor(box)
        table[:, 4 + index % width, anchor] = confidence
        scores[:, index % width, anchor] = torch.tensor(confidence).logit()
        if angles is not None:
            table[:, -1, anchor] = angles[number]
    head = {**source, "scores": scores + 0 * source["scores"]}
    heads = {**heads, "one2many": head} if "one2many" in heads else head
    return ((table, *whole[1:]) if isinstance(whole, (tuple, list)) else table), heads


def plant_rows(output: Any) -> Any:
    """Write the objects into the rows that a head selected, as corners."""
    whole, heads = output
    table = (whole[0] if isinstance(whole, (tuple, list)) else whole).clone()
    table[:, :, 4] = 1e-4
    for number, (x, y, w, h, index, confidence) in enumerate(PLANTED):
        is_rotated = "angle" in heads["one2one"]
        corners = [x, y, w, h] if is_rotated else [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
        table[:, number, :6] = table.new_tensor([*corners, confidence, index])
        if is_rotated:
            table[:, number, -1] = 0.0
    return ((table, *whole[1:]) if isinstance(whole, (tuple, list)) else table), heads


def run_ultralytics(
    model: Any, images: Tensor, *, rotated: bool = False, end2end: bool = False
) -> tuple[Any, Reported]:
    """Return the model's output and what ``predict()`` of Ultralytics makes of it, with its default thresholds."""
    from ultralytics.cfg import get_cfg
    from ultralytics.utils.nms import non_max_suppression

    with torch.no_grad():
        output = model(images)
    table = (output[0][0] if isinstance(output[0], (tuple, list)) else output[0]).clone()
    iou = get_cfg().iou
    count = len(model.names)
    (rows,) = non_max_suppression(table, 0.25, iou, nc=count, rotated=rotated, end2end=end2end)
    boxes = rows[:, :4]
    if rotated:
        boxes = to_upright(torch.cat([boxes, rows[:, -1:]], 1))
    return output, [(int(row[5]), float(row[4]), box.tolist()) for row, box in zip(rows, boxes, strict=True)]


def to_upright(boxes: Tensor) -> Tensor:
    """Return the corners of the upright boxes around rotated ones."""
    from ultralytics.utils.ops import xywhr2xyxyxyxy

    corners = xywhr2xyxyxyxy(boxes)
    return torch.cat([corners.amin(1), corners.amax(1)], 1)


ANGLES = [0.0, 0.0, 1.5, 0.0, 0.0, 0.4, 0.8, 0.0, 0.0]
"""The third object is turned: it is a square, so it remains the same one."""


@pytest.mark.parametrize(
    "name",
    ["yolov5n", "yolov8n", "yolo11n-seg", "yolov8n-pose", "yolov8n-world", "yolo11n-obb", "yolov10n", "yolo26n"],
)
def test_anchors_of_ultralytics(name: str) -> None:
    model, images = build_yolo(name), torch.rand(1, 3, *SIZE)
    model.model[-1].end2end = False
    is_rotated = "obb" in name
    handle = model.model[-1].register_forward_hook(
        lambda _module, _inputs, output: plant_anchors(output, ANGLES if is_rotated else None)
    )
    try:
        output, reported = run_ultralytics(model, images, rotated=is_rotated)
        assert_same(output, model, reported)
        if name == "yolov8n":
            assert_explained(model, images, reported)
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ["yolov10n", "yolo26n-seg", "yolo26n-obb"])
def test_heads_that_select_their_rows(name: str) -> None:
    model, images = build_yolo(name), torch.rand(1, 3, *SIZE)
    model.model[-1].end2end = True
    handle = model.model[-1].register_forward_hook(lambda _module, _inputs, output: plant_rows(output))
    try:
        output, reported = run_ultralytics(model, images, rotated="obb" in name, end2end=True)
        assert len(reported) == 7, "no suppression"
        assert_same(output, model, reported)
    finally:
        handle.remove()


def test_rotated_boxes_that_cross_are_two_detections_with_scores_of_their_own() -> None:
    model, images = build_yolo("yolo11n-obb"), torch.rand(1, 3, *SIZE)

    def plant(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        table, heads = plant_anchors(output)
        for anchor, confidence, angle in ((200, 0.95, 0.785), (210, 0.93, -0.785)):
            table[:, :4, anchor] = table.new_tensor([64, 48, 60, 8])
            table[:, 4 + 5, anchor], table[:, -1, anchor] = confidence, angle
            heads["scores"][:, 5, anchor] = torch.tensor(confidence).logit()
        return table, heads

    handle = model.model[-1].register_forward_hook(plant)
    try:
        (results,) = camtool.explain(model, images, Top(2), method=NO_MAP)
    finally:
        handle.remove()
    assert [each.index for each in results] == [5, 5]
    assert [each.probability for each in results] == pytest.approx([0.95, 0.93], abs=1e-3)
    assert [each.score for each in results] == pytest.approx([2.944, 2.587], abs=1e-2)


def test_tables_of_yolov5_have_thresholds_of_their_own() -> None:
    """Rows with an objectness: the overlap of 0.67 is more than the 0.45 of ``detect.py``."""
    kept = [PLANTED[number] for number in (0, 4, 5, 6)]
    reported = [(index, p, [x - w / 2, y - h / 2, x + w / 2, y + h / 2]) for x, y, w, h, index, p in kept]
    model = Rows()
    assert_same(model(torch.rand(1, 3, *SIZE)), model, reported)


class Rows(nn.Module):
    """A detector with the output of YOLOv5: three anchors at each position, and maps beside the table."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 3 * 9, 16, 16)
        self.names, self.planted = ["a", "b", "c", "d"], PLANTED

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        maps = self.body(x).unflatten(1, (3, 9)).permute(0, 1, 3, 4, 2)
        table = 0 * maps.flatten(1, 3) + torch.tensor([8.0, 8, 4, 4, 1e-3, 0, 0, 0, 0])
        for number, (*box, index, confidence) in enumerate(self.planted):
            table[:, 7 * number, :4] = table.new_tensor(box)
            table[:, 7 * number, 4], table[:, 7 * number, 5 + index] = 1, confidence
        return table, [maps]


def plant_in_decoder(output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Write the objects into the first queries of the last layer of a decoder, and a second class of the first box."""
    boxes, logits = output[0].clone(), 0 * output[1] - 9
    for number, (x, y, w, h, index, confidence) in enumerate(PLANTED):
        boxes[-1, :, number] = boxes.new_tensor([x / SIZE[1], y / SIZE[0], w / SIZE[1], h / SIZE[0]])
        logits[-1, :, number, index] += 9 + torch.tensor(confidence).logit()
    logits[-1, :, 0, 4] += 9
    return boxes, logits


def test_queries_of_ultralytics_rtdetr() -> None:
    """The best pairs of query and class are reported: a box may have two classes."""
    from ultralytics.cfg import get_cfg
    from ultralytics.models.rtdetr.predict import RTDETRPredictor

    model, images = build_yolo("rtdetr-l"), torch.rand(1, 3, *SIZE)
    handle = model.model[-1].decoder.register_forward_hook(lambda _module, _inputs, output: plant_in_decoder(output))
    try:
        with torch.no_grad():
            output = model(images)
        predictor = RTDETRPredictor.__new__(RTDETRPredictor)  # its constructor looks for a device and makes folders
        predictor.args, predictor.model, predictor.batch = get_cfg(overrides={"conf": 0.25}), model, (["a.png"],)
        (found,) = predictor.postprocess(output, images, images)
        reported = [(int(row[5]), float(row[4]), row[:4].tolist()) for row in found.boxes.data]
        assert len(reported) == 8
        assert_same(output, model, reported, scale=SIZE[::-1])
        assert_explained(model, images, reported)
    finally:
        handle.remove()


# -------------------------------------------------------------------------------------------------------- Hugging Face


PROCESSORS = {
    "conditional_detr": "ConditionalDetr",
    "d_fine": "RTDetr",
    "dab_detr": "ConditionalDetr",
    "deformable_detr": "DeformableDetr",
    "deformable_detr-two-stage": "DeformableDetr",
    "detr": "Detr",
    "lw_detr": "DeformableDetr",
    "lw_detr-two-levels": "DeformableDetr",
    "rf_detr": "RfDetr",
    "rt_detr": "RTDetr",
    "rt_detr_v2": "RTDetr",
    "table_transformer": "Detr",
    "yolos": "Yolos",
}
"""The image processor of each kind of model, as the configurations on the Hub name them."""


def plant_queries(output: Any, *, has_no_object: bool = False) -> Any:
    """Write the objects into the first queries; the others have none."""
    logits, boxes = 0 * output.logits - 9, output.pred_boxes.clone()
    if has_no_object:
        logits[..., -1] = 9
    for number, (x, y, w, h, index, confidence) in enumerate(PLANTED):
        boxes[:, number] = boxes.new_tensor([x / SIZE[1], y / SIZE[0], w / SIZE[1], h / SIZE[0]])
        value = torch.tensor(confidence).logit()
        if has_no_object:  # of a softmax over two logits; the others are far below
            logits[:, number, -1] = 0
        logits[:, number, index % logits.shape[2]] = value
    # A second class of the first box, and no object is below it.
    logits[:, 0, 0] = torch.tensor(0.52).logit() if not has_no_object else -9
    output.logits, output.pred_boxes = logits, boxes
    return output


def read_processed(found: Any) -> Reported:
    (found,) = found
    return [
        (int(index), float(score), box.tolist())
        for index, score, box in zip(found["labels"], found["scores"], found["boxes"], strict=True)
    ]


@pytest.mark.parametrize("name", PROCESSORS)
def test_queries_of_hugging_face(name: str) -> None:
    import transformers

    small = DETECTORS[name]
    model, size = small.build(), (small.size, small.size)
    kind = PROCESSORS[name]
    images, has_no_object = picture(2, *size), kind in ("Detr", "Yolos")
    handle = model.register_forward_hook(
        lambda _module, _inputs, output: plant_queries(output, has_no_object=has_no_object)
    )
    try:
        processor = getattr(transformers, f"{kind}ImageProcessor")()
        with torch.no_grad():
            output = model(images)
        reported = read_processed(processor.post_process_object_detection(output, target_sizes=[size]))
        assert len(reported) == (6 if has_no_object else 7), "a box is reported for each of two classes"
        assert_same(output, model, reported, scale=size)
        if name == "rt_detr":
            assert_explained(model, images, reported)
    finally:
        handle.remove()


@pytest.mark.parametrize("family", ["OwlViT", "Owlv2"])
def test_texts_of_open_vocabulary_detectors(family: str) -> None:
    import transformers

    model = open_vocabulary.build(family)
    with torch.no_grad():
        output = plant_queries(model(**open_vocabulary.make_inputs(4)))
    processor = getattr(transformers, f"{family}ImageProcessor")()
    reported = read_processed(processor.post_process_object_detection(output))
    assert len(reported) == 8
    assert_same(output, model, reported)


@pytest.mark.parametrize("kind", ["GroundingDino", "MMGroundingDino"])
def test_phrases_of_grounding_dino(kind: str) -> None:
    import transformers

    model, inputs = grounding.build(kind), grounding.make_inputs((256, 256), grounding.PROMPT)
    with torch.no_grad():
        output = model(**inputs)
    is_token = ~output.logits.isneginf()
    output.logits = torch.where(is_token, -9, output.logits)
    for number, (*_, index, confidence) in enumerate(PLANTED):
        place = grounding.PLACES["a cat" if index == 1 else "a remote control"][0]
        output.logits[:, number, place] = torch.tensor(confidence).logit()
    processor = transformers.GroundingDinoProcessor.__new__(transformers.GroundingDinoProcessor)
    processor.batch_decode = lambda ids: [0 if grounding.CAT[0] in [*map(int, each)] else 1 for each in ids]
    (found,) = processor.post_process_grounded_object_detection(output, inputs["input_ids"])
    assert len(found["scores"]) == 7
    predicted = get_predictions(output, model)[0].select_reported()  # type: ignore[union-attr]
    assert predicted.confidences.tolist() == pytest.approx(sorted(found["scores"].tolist(), reverse=True))


# --------------------------------------------------------------------------------------------------------- thresholds


def test_a_class_that_is_not_reported_is_explained_with_a_warning() -> None:
    model, images = Rows(), torch.rand(1, 3, *SIZE)
    (results,) = camtool.explain(model, images, [[1, None, 3, Box((90, 10, 110, 30))]], method=NO_MAP)
    warnings = [[str(each) for each in result.warnings if each.code == "not-reported"] for result in results]
    assert warnings[:2] == [[], []]
    for (sentence,) in warnings[2:]:
        assert "does not report this detection: its confidence is 0.05, and the threshold is 0.25" in sentence


def test_another_threshold_and_none_above_it() -> None:
    model, images = Rows(), torch.rand(1, 3, *SIZE)
    (results,) = camtool.explain(model, images, AllDetections(confidence=0.04), method=NO_MAP)
    assert [each.probability for each in results] == pytest.approx([0.9, 0.6, 0.55, 0.3, 0.2, 0.05])
    with pytest.raises(NothingFoundError, match=r"above 0\.95, and the highest confidence is 0\.9\. .*detections:0"):
        camtool.explain(model, images, AllDetections(confidence=0.95), method=NO_MAP)
    model.planted = PLANTED[-2:]
    with pytest.raises(NothingFoundError, match=r"above 0\.25, and the highest confidence is 0\.2"):
        camtool.explain(model, images, Top(3), method=NO_MAP)
    with pytest.raises(NothingFoundError, match=r"above 0\.25, and the highest confidence is 0\.2"):
        camtool.explain(model, images, method=NO_MAP)
    with pytest.raises(TargetError, match="at least 0 and at most 1"):
        AllDetections(confidence=30)
    with pytest.raises(TargetError, match="not a detector"):
        camtool.explain(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), images, AllDetections(), method=NO_MAP)


def test_detections_of_torchvision_are_as_the_model_returns_them() -> None:
    model, photo = SquareDetector(), SQUARES
    with torch.no_grad():
        (found,) = model([photo])
    results = camtool.explain(model, photo, AllDetections(), method=NO_MAP)
    assert [each.probability for each in results] == found["scores"].sort(descending=True).values.tolist()
    results = camtool.explain(model, photo, AllDetections(0.25), method=NO_MAP)
    assert [each.probability for each in results] == pytest.approx([0.5, 0.3])


def test_a_detector_of_torchvision_with_planted_objects_is_explained_as_it_reports() -> None:
    """Its own post-processing removes the second of two boxes of a class in the same place."""
    torch.manual_seed(0)
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5).eval()
    photo = torch.rand(3, *SIZE)
    # Anchors of the grid of 20 x 20, six in each cell: two neighbors, the same one for two classes, and another one.
    planted = [(1260, 1, 0.9), (1266, 1, 0.8), (1260, 2, 0.6), (600, 3, 0.4)]

    def plant(_module: nn.Module, _inputs: Any, output: dict[str, Tensor]) -> dict[str, Tensor]:
        logits = 0 * output["cls_logits"] - 20
        logits[:, :, 0] += 20  # "no object"
        for anchor in {anchor for anchor, _, _ in planted}:
            rest = 1 - sum(confidence for other, _, confidence in planted if other == anchor) / 2
            logits[:, anchor, 0] += math.log(rest)
        for anchor, index, confidence in planted:
            logits[:, anchor, index] += 20 + math.log(confidence / 2)
        return {"cls_logits": logits, "bbox_regression": 0 * output["bbox_regression"]}

    handle = model.head.register_forward_hook(plant)
    try:
        with torch.no_grad():
            (found,) = model([photo])
        assert found["labels"].tolist() == [1, 2, 3]
        assert found["scores"].tolist() == pytest.approx([0.45, 0.3, 0.2], abs=1e-3)
        results = camtool.explain(model, photo, AllDetections(), method=NO_MAP)
    finally:
        handle.remove()
    assert [each.index for each in results] == found["labels"].tolist()
    assert [each.probability for each in results] == found["scores"].tolist()
    assert [each.box for each in results] == [pytest.approx(box, abs=1e-3) for box in found["boxes"].tolist()]
