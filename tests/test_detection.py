"""Detectors, called as they are: what is explained, where map and box lie on the photo, and what can go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparison import assert_same_explanation, assert_same_raw
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import detection as zoo
from torchvision.models.detection.transform import GeneralizedRCNNTransform

import camtool
from camtool import overlay
from camtool.errors import MethodError, NothingFoundError, TargetError
from camtool.evidence import Evidence
from camtool.folder import Failure, Output, Success, plan, run
from camtool.geometry import Geometry
from camtool.hooks import prepared
from camtool.layers import resolve
from camtool.modules import preparation_of
from camtool.targets import Box, ClassScore, Contrast, Detected, Detection, Negated, Probability, Region, Top, choose

CELL = 16
LABELS = ["background", "red thing", "green thing", "blue thing"]


class Spots(nn.Module):
    """A detector of torchvision's kind that finds coloured things: a cell of 16 x 16 pixels, as bright as it is sure.

    The class is the cell's strongest colour, and the confidence half of that colour's mean.
    """

    def __init__(self, *, threshold: float = 0.1, min_size: int = 96, max_size: int = 160) -> None:
        super().__init__()
        self.threshold = threshold
        self.transform = GeneralizedRCNNTransform(min_size, max_size, [0.0] * 3, [1.0] * 3)
        self.backbone = nn.Sequential(nn.Conv2d(3, 3, CELL, CELL, bias=False), nn.ReLU())
        self.head = nn.Conv2d(3, 3, 1, bias=False)
        with torch.no_grad():
            self.backbone[0].weight.copy_(torch.eye(3)[:, :, None, None] / CELL**2)
            self.head.weight.copy_(torch.eye(3)[:, :, None, None] / 2)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        assert isinstance(images, list), "as torchvision says that its detectors are called"
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        batch, _ = self.transform(images)
        found = list(map(self._read, self.head(self.backbone(batch.tensors))))
        return self.transform.postprocess(found, batch.image_sizes, sizes)

    def _read(self, maps: Tensor) -> dict[str, Tensor]:
        scores, colours = maps.amax(0).flatten(), maps.argmax(0).flatten()
        rows, columns = torch.meshgrid(*map(torch.arange, maps.shape[1:]), indexing="ij")
        corner = torch.stack([columns, rows], -1).reshape(-1, 2) * float(CELL)
        kept = scores > self.threshold
        boxes = torch.cat([corner, corner + CELL], 1)
        return {"boxes": boxes[kept], "labels": colours[kept] + 1, "scores": scores[kept]}


def photo_with(*squares: tuple[int, int, int, float], size: tuple[int, int] = (96, 96), side: int = CELL) -> Tensor:
    """A black photo ``(3, H, W)`` with squares, each given by its left, its top, its colour and its brightness."""
    photo = torch.zeros(3, *size)
    for left, top, colour, brightness in squares:
        photo[colour, top : top + side, left : left + side] = brightness
    return photo


TWO = photo_with((16, 32, 0, 1.0), (64, 48, 1, 0.6), (64, 0, 1, 0.4))
"""A red thing, the brightest; and two green ones."""


# ------------------------------------------------------------------------------------------------ what is explained


@pytest.mark.parametrize(
    ("want", "box", "index", "confidence"),
    [
        (None, (16, 32, 32, 48), 1, 0.5),
        (1, (16, 32, 32, 48), 1, 0.5),
        (2, (64, 48, 80, 64), 2, 0.3),
        ("green thing", (64, 48, 80, 64), 2, 0.3),
        (ClassScore(2), (64, 48, 80, 64), 2, 0.3),
        (Probability(2), (64, 48, 80, 64), 2, 0.3),
        (Detection(0), (16, 32, 32, 48), 1, 0.5),
        (Detection(2), (64, 0, 80, 16), 2, 0.2),
        (Box((62, 2, 80, 16)), (64, 0, 80, 16), 2, 0.2),
        (Box((62, 2, 80, 16), class_index=2), (64, 0, 80, 16), 2, 0.2),
        (Box((0, 0, 96, 96), 2, iou_threshold=0.01), (64, 48, 80, 64), 2, 0.3),  # of several the surest
    ],
    ids=str,
)
def test_one_detection_is_explained(want: Any, box: tuple[float, ...], index: int, confidence: float) -> None:
    result = camtool.explain(Spots(), TWO, want, method="odam", labels=LABELS, smoothing=0.3)
    assert result.box == pytest.approx(box)
    assert (result.index, result.label) == (index, LABELS[index])
    assert result.score == pytest.approx(confidence, abs=1e-5)
    assert result.probability == pytest.approx(confidence, abs=1e-5)
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    assert hottest(result) == pytest.approx((x, y), abs=4)  # at the border it is hot up to that
    assert result.heatmap[TWO.amax(0).numpy() == 0].max() < 1


def hottest(result: Any) -> tuple[float, float]:
    """The middle of the hottest pixels, as x and y."""
    rows, columns = np.nonzero(result.heatmap >= result.heatmap.max() - 1e-6)
    return float(columns.mean() + 0.5), float(rows.mean() + 0.5)


def test_grad_cam_shows_all_that_is_like_a_detection_and_odam_the_detection() -> None:
    """The mean of the gradients belongs to no place: it lights up the other green thing as well."""
    by_class, by_instance = (camtool.explain(Spots(), TWO, 2, method=name) for name in ("gradcam", "odam"))
    other, own = (8, 72), (56, 72)
    assert by_class.heatmap[other] > 0.6 * by_class.heatmap[own]
    assert by_instance.heatmap[other] < 0.02 * by_instance.heatmap[own]


def test_the_first_k_are_the_surest() -> None:
    results = camtool.explain(Spots(), TWO, Top(9))
    assert [result.probability for result in results] == pytest.approx([0.5, 0.3, 0.2], abs=1e-5)
    assert len(camtool.explain(Spots(), TWO, Top(2))) == 2


def test_what_speaks_against_a_detection_has_its_box_too() -> None:
    result = camtool.explain(Spots(), TWO, Negated(Detection(1)), labels=LABELS)
    assert result.label == "not green thing"
    assert (result.score, result.probability) == pytest.approx((-0.3, 0.3), abs=1e-5)
    assert result.box == pytest.approx((64, 48, 80, 64))


def test_a_persons_own_function_is_given_one_images_detections() -> None:
    result = camtool.explain(Spots(), TWO, lambda found: found["scores"][found["labels"] == 2].sum())
    assert result.score == pytest.approx(0.5, abs=1e-5)
    assert result.box is None
    assert result.probability is None


@pytest.mark.parametrize(
    ("want", "message"),
    [
        (3, "the model found no blue thing in this image.*lower the threshold"),
        ("blue thing", "the model found no blue thing"),
        (Detection(3), r"detection 3, counted from 0, but the model found 3 in this image"),
        (Box((0, 0, 8, 8)), r"no detection overlaps the box \(0, 0, 8, 8\) by 0.5 or more; the best overlaps it by 0"),
        (Box((66, 0, 78, 16), 1), r"no detection of class 1 overlaps"),
        (Box((20, 36, 28, 44)), r"the best overlaps it by 0\.25"),
    ],
    ids=str,
)
def test_what_was_not_found_is_told(want: Any, message: str) -> None:
    with pytest.raises(NothingFoundError, match=message):
        camtool.explain(Spots(), TWO, want, labels=LABELS)


def test_a_photo_without_a_detection_is_told() -> None:
    for want in (None, Top(3)):
        with pytest.raises(NothingFoundError, match=r"found nothing in this image.*lower the threshold .*score_thresh"):
            camtool.explain(Spots(threshold=0.9), TWO, want)
    with pytest.raises(NothingFoundError, match="there are none at all"):
        camtool.explain(Spots(threshold=0.9), TWO, Box((0, 0, 8, 8)))


@pytest.mark.parametrize("want", [Contrast(1, 2), Region(1, torch.ones(3, 3))], ids=str)
def test_targets_that_compare_classes_say_that_a_detector_has_none(want: Any) -> None:
    with pytest.raises(TargetError, match=r"the model returned detections, which have no one score a class"):
        camtool.explain(Spots(), TWO, want)


@pytest.mark.parametrize("method", ["cam", "rivalcam"])
def test_methods_that_compare_classes_say_that_a_detector_has_none(method: str) -> None:
    with pytest.raises((MethodError, TargetError), match=r"linear layer|the model returned detections"):
        camtool.explain(Spots(), TWO, method=method)


# ------------------------------------------------------------------------------------- a detection in other pictures


def test_in_other_pictures_a_detection_is_the_one_that_overlaps_it_best() -> None:
    target = Detected(2, (0.0, 0.0, 10.0, 10.0), (0, 0, 1, 1), 0.5)

    def score(*things: tuple[list[float], int, float]) -> float:
        boxes, labels, scores = zip(*things, strict=True) if things else ((), (), ())
        found = {
            "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor(labels, dtype=torch.long),
            "scores": torch.tensor(scores),
        }
        return float(target([found]))

    assert score(([0, 0, 10, 10], 2, 0.5)) == 0.5
    assert score(([0, 0, 10, 10], 1, 0.5)) == 0  # another class
    assert score(([0, 0, 10, 4], 2, 0.5)) == 0  # overlaps by 0.4
    assert score(([0, 0, 10, 6], 2, 0.25), ([0, 0, 10, 4], 2, 0.5)) == 0.25
    assert score(([0, 0, 10, 6], 2, 0.75), ([0, 0, 10, 8], 2, 0.25)) == 0.25  # the nearer one, not the surer
    assert score(([0, 0, 10, 8], 2, 0.75), ([0, 0, 10, 8], 2, 0.25)) == 0.75  # of two at one place the surer
    assert score() == 0


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("hirescam", {}),
        ("layercam", {}),
        ("odam", {}),
        ("ablationcam", {}),
        ("scorecam", {}),
        ("rise", {"samples": 150, "cells": 6}),
        ("inputxgradient", {}),
        ("noise:gradcam", {"noise_samples": 3, "noise_level": 0.01}),
        ("smoothgradcam++", {"noise": 0.01}),
        ("integratedgradcam", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_methods_of_all_kinds_find_what_was_detected(method: str, options: dict[str, Any]) -> None:
    result = camtool.explain(Spots(), TWO, 2, method=method, **options)
    left, top, right, bottom = map(int, result.box)
    inside = result.heatmap[top:bottom, left:right]
    assert inside.mean() > 3 * result.heatmap.mean()


def test_the_photo_is_not_mirrored_under_a_box_that_stays() -> None:
    with pytest.raises(MethodError, match="Detected is about a part of it that stays where it is"):
        camtool.explain(Spots(), TWO, method="sess:gradcam")
    lights = camtool.explain(Spots(), torch.stack([factor * TWO for factor in (0.9, 1.0, 1.1)]))
    by_hand = np.mean([result.raw for result in lights], axis=0)
    np.testing.assert_allclose(camtool.explain(Spots(), TWO, method="tta:gradcam").raw, by_hand, rtol=1e-4, atol=1e-6)


def test_a_batch_is_its_photos_one_by_one() -> None:
    photos = torch.stack([TWO, TWO.flip(2), photo_with((0, 80, 2, 0.9))])
    together = camtool.explain(Spots(), photos, method="odam")
    for one, photo in zip(together, photos, strict=True):
        alone = camtool.explain(Spots(), photo, method="odam")
        assert one.box == alone.box
        assert one.score == pytest.approx(alone.score)
        assert_same_explanation(one, alone)


def test_detections_of_one_photo_share_its_forward() -> None:
    model, photos = Spots(), torch.stack([TWO, TWO.flip(2)])
    several = camtool.explain(model, photos, [[1, 2], [2, Detection(0)]], method="hirescam")
    for own, photo, wants in zip(several, photos, [[1, 2], [2, 1]], strict=True):
        for one, want in zip(own, wants, strict=True):
            assert_same_raw(one.raw, camtool.explain(model, photo, want, method="hirescam").raw)


def test_a_detector_in_training_stays_so_and_is_asked_as_if_it_were_not() -> None:
    """In training, torchvision's transform picks a size at random; and a failure leaves no more than a success."""
    model, expected = Spots(), camtool.explain(Spots(), TWO)
    model.transform.min_size = (64, 80, 96)
    model.train()
    model.head.training = False
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    assert np.array_equal(camtool.explain(model, TWO).raw, expected.raw)
    for want in (3, Box((0, 0, 8, 8)), Contrast(1, 2)):
        with pytest.raises(TargetError):
            camtool.explain(model, TWO, want)
    assert torch.equal(torch.get_rng_state(), before)
    assert [name for name, module in model.named_modules() if not module.training] == ["head"]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# ------------------------------------------------------------------------------------------- where it lies on the photo


@pytest.mark.parametrize("size", [(96, 96), (100, 130), (110, 137), (40, 64), (61, 203), (500, 100)], ids=str)
@pytest.mark.parametrize(("across", "down"), [(0.1, 0.2), (0.5, 0.5), (0.9, 0.1), (0.8, 0.9)])
def test_the_map_and_the_box_lie_on_what_was_detected(size: tuple[int, int], across: float, down: float) -> None:
    """The detector resizes the photo and pads it to a multiple of 32, and none of that may show."""
    height, width = size
    scale = min(96 / min(size), 160 / max(size))  # of the photo, within the model
    side = round(2 * CELL / scale)
    left, top = round(across * (width - side)), round(down * (height - side))
    photo = photo_with((left, top, 0, 1.0), size=size, side=side)
    result = camtool.explain(Spots(), photo, method="hirescam")
    cell = CELL / scale
    x, y = hottest(result)
    x0, y0, x1, y1 = result.box
    assert x0 - 1 <= x <= x1 + 1, "the map is hottest in the box"
    assert y0 - 1 <= y <= y1 + 1
    # One of the cells that lie within the square is the hottest, and at the border it is hot up to that.
    assert abs(x - (left + side / 2)) <= 0.75 * cell + 1
    assert abs(y - (top + side / 2)) <= 0.75 * cell + 1
    assert result.heatmap.shape == size


def test_only_what_changes_in_the_photo_changes_the_map() -> None:
    """What is bright in a corner of the photo is hot in that corner, whatever the corner."""
    for left, top in ((0, 0), (184, 0), (0, 44), (184, 44)):
        result = camtool.explain(Spots(), photo_with((left, top, 1, 1.0), size=(60, 200)), method="hirescam")
        y, x = np.unravel_index(result.heatmap.argmax(), (60, 200))
        assert (x < 100) == (left < 100)
        assert (y < 30) == (top < 30)


@pytest.mark.parametrize("fixed", [None, (96, 64)], ids=["by the sides", "fixed"])
def test_the_geometry_is_that_of_torchvisions_own_transform(fixed: tuple[int, int] | None) -> None:
    for height in (31, 64, 97, 250, 333):
        for width in (33, 96, 128, 251, 640):
            preparation = GeneralizedRCNNTransform(80, 133, [0.0] * 3, [1.0] * 3, fixed_size=fixed).eval()
            batch, _ = preparation([torch.rand(3, height, width)])
            geometry = Geometry.whole(height, width).inside(preparation)
            assert geometry.size == tuple(batch.tensors.shape[2:])
            h, w = batch.image_sizes[0]
            rows, columns = batch.tensors.shape[2:]
            assert_close(torch.tensor(geometry.box), torch.tensor([0, 0, height * rows / h, width * columns / w]))


def test_a_photo_of_any_kind_goes_in_whole(tmp_path: Path) -> None:
    """A detector prepares its pictures itself, so nothing is assumed, cut or warned of."""
    photo = photo_with((160, 16, 0, 1.0), size=(60, 200))
    path = tmp_path / "photo.png"
    Image.fromarray((photo * 255).byte().movedim(0, -1).numpy()).save(path)
    expected = camtool.explain(Spots(), photo)
    assert expected.warnings == ()
    assert np.array_equal(expected.photo, np.asarray(Image.open(path)))  # and the tensor shows as it is, not stretched
    for source in (path, Image.open(path), np.asarray(Image.open(path))):
        result = camtool.explain(Spots(), source)
        assert result.warnings == ()
        assert result.box == pytest.approx(expected.box)
        assert_same_explanation(result, expected)


def test_a_box_is_given_on_the_photo() -> None:
    """In front of the detector the photo may be cropped, scaled and mirrored; a person points at the photo."""
    from torchvision.transforms import v2

    transform = v2.Compose(
        [v2.CenterCrop(96), v2.RandomHorizontalFlip(1.0), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    )
    photo = Image.new("RGB", (160, 100))
    photo.paste((255, 0, 0), (48, 18, 64, 34))  # by the crop at 16, 16; mirrored at 64
    photo.paste((250, 0, 0), (96, 50, 112, 66))
    for want, place in ((Detection(0), (48, 18, 64, 34)), (Box((97, 51, 113, 66)), (96, 50, 112, 66))):
        result = camtool.explain(Spots(), photo, want, transform=transform, method="hirescam")
        assert result.box == pytest.approx(place)
        assert hottest(result) == pytest.approx(((place[0] + place[2]) / 2, (place[1] + place[3]) / 2), abs=1)


# --------------------------------------------------------------------------------------------------- what is drawn


def test_the_box_is_drawn_around_what_was_detected() -> None:
    result = camtool.explain(Spots(), TWO, 2)
    plain = overlay.blend(result.photo, result.heatmap)
    drawn = result.overlay()
    framed = overlay.draw_boxes(plain, [result.box])
    changed = (plain != framed).any(2)
    rows, columns = np.nonzero(changed)
    assert min(columns.min() - 64, rows.min() - 48) >= -3
    assert max(columns.max() - 80, rows.max() - 64) <= 2
    assert not changed[52:60, 68:76].any(), "the inside is left as it is"
    assert drawn[62:66, 70].min(1).max() > 230, "the line is white"
    np.testing.assert_array_equal(drawn, overlay.draw_boxes(plain, [result.box], labels=[f"{result.label} 30%"]))
    np.testing.assert_array_equal(drawn[48:], framed[48:], "the tag stands above the box")
    assert (drawn[:48] != framed[:48]).any()


def test_an_empty_box_is_drawn_as_a_pixel() -> None:
    assert overlay.at_least_a_pixel((3.0, 4.0, 3.0, 4.0)) == (3, 4, 4, 5)
    assert overlay.at_least_a_pixel((3.0, 4.0, 8.0, 9.5)) == (3, 4, 8, 9.5)


# ------------------------------------------------------------------------------------------------------- in a folder


def test_a_folder_tells_the_box_and_goes_on_where_nothing_was_found(tmp_path: Path) -> None:
    for name, photo in (("a", TWO), ("b", 0 * TWO), ("c", TWO.flip(1))):
        Image.fromarray((photo * 255).byte().movedim(0, -1).numpy()).save(tmp_path / f"{name}.png")
    out = tmp_path / "out"
    outcomes = list(run(camtool.Explainer(Spots()), plan([str(tmp_path)]).jobs, None, Output(out)))
    assert [type(each) for each in outcomes] == [Success, Failure, Success]
    assert "found nothing in this image" in outcomes[1].reason  # type: ignore[union-attr]
    lines = [json.loads(line) for line in (out / "explanations.jsonl").read_text().splitlines()]
    assert [line["box"] for line in lines] == [pytest.approx([16, 32, 32, 48]), pytest.approx([16, 48, 32, 64])]
    assert lines[0]["probability"] == pytest.approx(0.5, abs=0.01)


def test_a_folder_of_photos_without_the_class_ends_with_failures(tmp_path: Path) -> None:
    Image.fromarray((TWO * 255).byte().movedim(0, -1).numpy()).save(tmp_path / "a.png")
    (outcome,) = run(camtool.Explainer(Spots()), plan([str(tmp_path)]).jobs, 3, Output(tmp_path / "out"))
    assert isinstance(outcome, Failure)
    assert "found no class 3" in outcome.reason


# -------------------------------------------------------------------------------------------------- reasons to doubt


def test_a_detection_of_little_confidence_is_told() -> None:
    weak = photo_with((16, 16, 0, 0.1))
    (warning,) = camtool.explain(Spots(threshold=0.01), weak).warnings
    assert "confidence in this detection is only 5.0%" in warning
    assert camtool.explain(Spots(threshold=0.01), TWO).warnings == ()


def test_a_detection_without_a_doubt_is_told() -> None:
    (warning,) = camtool.explain(Spots(), photo_with((16, 16, 0, 2.0))).warnings
    assert "all but certain of this detection" in warning


# ------------------------------------------------------------------------------------------------ torchvision's own

SMALL = {"weights": None, "weights_backbone": None, "num_classes": 5}
BY_SIDES = {**SMALL, "min_size": 128}
BY_REGION = {**BY_SIDES, "box_score_thresh": 0.0, "rpn_post_nms_top_n_test": 40, "box_detections_per_img": 10}

TORCHVISION: dict[str, Any] = {
    "fasterrcnn_resnet50_fpn": BY_REGION,
    "fasterrcnn_resnet50_fpn_v2": BY_REGION,
    "fasterrcnn_mobilenet_v3_large_fpn": BY_REGION,
    "fasterrcnn_mobilenet_v3_large_320_fpn": BY_REGION,
    "maskrcnn_resnet50_fpn": BY_REGION,
    "maskrcnn_resnet50_fpn_v2": BY_REGION,
    "keypointrcnn_resnet50_fpn": {**BY_REGION, "num_classes": 2, "num_keypoints": 5},
    "retinanet_resnet50_fpn": {**BY_SIDES, "score_thresh": 0.0},
    "retinanet_resnet50_fpn_v2": {**BY_SIDES, "score_thresh": 0.0},
    "fcos_resnet50_fpn": {**BY_SIDES, "score_thresh": 0.0},
    "ssd300_vgg16": {**SMALL, "score_thresh": 0.0},
    "ssdlite320_mobilenet_v3_large": {**SMALL, "score_thresh": 0.0},
}


def test_the_list_holds_every_detector_that_torchvision_has() -> None:
    from torchvision.models import list_models

    assert set(TORCHVISION) == set(list_models(zoo))


def untrained(name: str, seed: int = 0) -> nn.Module:
    """A detector with random weights whose activations neither vanish nor explode, and which is sure of nothing."""
    torch.manual_seed(seed)
    model = getattr(zoo, name)(**TORCHVISION[name]).eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if hasattr(module, "running_var"):  # frozen ones too: halve what each residual branch adds
            module.weight.data.fill_(0.7)
    return model


SLOW_TO_RUN = {"ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"}


@pytest.mark.parametrize(
    "name", [name if name in SLOW_TO_RUN else pytest.param(name, marks=pytest.mark.slow) for name in TORCHVISION]
)
def test_torchvisions_detectors_are_explained_as_they_are(name: str) -> None:
    model, photos = untrained(name), torch.rand(2, 3, 96, 140)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    together = camtool.explain(model, photos, Top(4), method="layercam")
    for own, photo in zip(together, photos, strict=True):
        with torch.no_grad():
            (found,) = model([photo])
        for n, result in enumerate(own):
            order = found["scores"].argsort(descending=True, stable=True)[n]
            assert result.box == pytest.approx(found["boxes"][order].tolist(), abs=1e-2)
            assert result.score == pytest.approx(found["scores"][order].item(), rel=1e-4)
            assert result.index == found["labels"][order]
            assert result.heatmap.shape == (96, 140)
            assert np.isfinite(result.raw).all()
    layers = {result.layer for own in together for result in own}
    assert len(layers) == 1, "one layer serves all detections, whatever level they were read from"
    assert layers.pop().startswith("backbone.")
    assert any(result.heatmap.any() for own in together for result in own)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_every_level_of_a_backbone_is_made_from_the_layer_that_is_chosen() -> None:
    model = untrained("ssdlite320_mobilenet_v3_large")
    photo = torch.rand(1, 3, 96, 140)
    (layer,) = resolve(model, photo)
    backbone, levels = model.backbone, model.backbone(prepared(model, photo))
    assert layer.layout.grid == tuple(next(iter(levels.values())).shape[2:])
    seen: list[Tensor] = []
    inside = backbone.get_submodule(layer.name.removeprefix("backbone."))
    handle = inside.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        levels = backbone(prepared(model, photo).requires_grad_())
    finally:
        handle.remove()
    assert len(levels) == 6
    for level in levels.values():
        (gradient,) = torch.autograd.grad(level.sum(), seen[0], retain_graph=True)
        assert gradient.any()


def test_a_layer_may_be_named_at_any_level() -> None:
    model, photo = untrained("fasterrcnn_mobilenet_v3_large_320_fpn"), torch.rand(3, 96, 140)
    result = camtool.explain(model, photo, layer="backbone.fpn.layer_blocks.0")
    assert result.raw.shape == tuple(model.backbone(prepared(model, photo[None]))["0"].shape[2:])


def test_a_detector_is_known_by_how_it_prepares_its_pictures() -> None:
    assert preparation_of(Spots()) is not None
    assert preparation_of(untrained("ssdlite320_mobilenet_v3_large")) is not None
    other = nn.Sequential(nn.Conv2d(3, 3, 1))
    other.transform = nn.Identity()  # another's, which is no preparation
    assert preparation_of(other) is None
    x = torch.rand(1, 3, 8, 8)
    assert prepared(other, x) is x


# ------------------------------------------------------------------------------------------------------ by queries


def tiny_detr(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    resnet = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1] * 4, layer_type="basic", out_features=["stage4"]
    )
    sizes = {
        **{f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")},
        "d_model": 16,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "num_queries": 12,
        "num_labels": 5,
    }
    if kind == "Yolos":
        config = transformers.YolosConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=[64, 96],
            patch_size=16,
            num_detection_tokens=9,
            num_labels=5,
        )
    else:
        make = getattr(transformers, f"{kind}Config")
        config = make(use_timm_backbone=False, backbone_config=resnet, **sizes)
    model = getattr(transformers, f"{kind}ForObjectDetection")(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return model


def signed(evidence: Evidence) -> Tensor:
    """HiResCAM without its ReLU, which leaves nothing of some maps of random nets."""
    return (evidence.gradients * evidence.activations).sum(1)


@pytest.mark.parametrize("kind", ["Detr", "ConditionalDetr", "Yolos"])
def test_queries_are_explained_as_they_are(kind: str) -> None:
    model, photos = tiny_detr(kind), torch.randn(2, 3, 64, 96)
    results = camtool.explain(model, photos, method=signed)
    output = model(photos)
    nothing = kind != "ConditionalDetr"
    chances = output.logits.softmax(2)[..., :-1] if nothing else output.logits.sigmoid()
    for image, result in enumerate(results):
        query, index = divmod(int(chances[image].argmax()), chances.shape[2])
        x, y, w, h = output.pred_boxes[image, query].tolist()
        assert result.box == pytest.approx(
            (96 * (x - w / 2), 64 * (y - h / 2), 96 * (x + w / 2), 64 * (y + h / 2)), rel=1e-4
        )
        assert result.index == index
        assert result.probability == pytest.approx(chances[image, query, index].item(), rel=1e-4)
        assert result.score == pytest.approx(output.logits[image, query, index].item(), abs=1e-4)
        assert result.heatmap.any()
        grid = (4, 6) if kind == "Yolos" else (2, 3)
        assert result.raw.shape == grid, "the picture's tokens, and none of the queries"
        alone = camtool.explain(model, photos[image], method=signed)
        assert_same_raw(result.raw, alone.raw)


def test_any_class_of_a_query_may_be_asked_for() -> None:
    model, photo = tiny_detr("Detr"), torch.randn(3, 64, 96)
    logits = model(photo[None]).logits[0].detach()
    surest = logits.softmax(1).argmax(0)
    results = camtool.explain(model, photo, [0, 1, 2, 3, 4])
    assert [result.score for result in results] == pytest.approx(logits[surest, range(6)][:5].tolist(), abs=1e-4)
    with pytest.raises(TargetError, match="5 does not exist: the model has 5 classes"):
        camtool.explain(model, photo, 5)


# -------------------------------------------------------------------------------------------------------- by anchors


class Anchors(nn.Module):
    """Returns what Ultralytics' models do: a box and the classes' confidences for each position, and the maps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 8, 8), nn.ReLU())
        self.deeper, self.head = nn.Sequential(nn.Conv2d(6, 6, 2, 2), nn.ReLU()), nn.Conv2d(6, 3, 1)
        self.names = {0: "cat", 1: "dog", 2: "cow"}

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        fine = self.body(x)
        maps = [self.head(fine), self.head(self.deeper(fine))]
        return torch.cat([self._read(each, x.shape[-1] / each.shape[-1]) for each in maps], 2), maps

    def _read(self, maps: Tensor, stride: float) -> Tensor:
        rows, columns = torch.meshgrid(*map(torch.arange, maps.shape[2:]), indexing="ij")
        centre = (torch.stack([columns, rows]).flatten(1) + 0.5) * stride
        boxes = torch.cat([centre, torch.full_like(centre, 2 * stride)])
        return torch.cat([boxes.expand(len(maps), -1, -1), maps.sigmoid().flatten(2)], 1)


def test_anchors_are_explained_as_they_are() -> None:
    model, photos = Anchors(), torch.rand(2, 3, 48, 64)
    read = model(photos)[0]
    assert read.shape == (2, 4 + 3, 6 * 8 + 3 * 4)
    for image, result in enumerate(camtool.explain(model, photos, method=signed)):
        assert result.layer == "body", "of which both levels are made"
        index, anchor = divmod(int(read[image, 4:].argmax()), read.shape[2])
        x, y, w, h = read[image, :4, anchor].tolist()
        assert result.box == pytest.approx((x - w / 2, y - h / 2, x + w / 2, y + h / 2))
        assert result.index == index
        assert result.score == result.probability == pytest.approx(read[image, 4 + index, anchor].item())
        assert result.heatmap.any()


def test_a_wish_on_no_detections_at_all() -> None:
    from camtool.outputs import Detections

    none = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    with pytest.raises(NothingFoundError, match="found nothing"):
        choose(None, none, None)
