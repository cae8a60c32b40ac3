"""Targets of detectors, on a detector that is made by hand: scores, boxes, maps on the photo, errors and warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models.detection.transform import GeneralizedRCNNTransform

import camtool
from camtool.errors import MethodError, NothingFoundError, TargetError
from camtool.geometry.crop_and_resize import Geometry
from camtool.outputs.detections import Detections
from camtool.outputs.post_processing import PostProcessing
from camtool.rendering import overlay, regions
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.result_writer import Success
from camtool.runs.save_kinds import OutputSettings
from camtool.targets import (
    Box,
    ClassScore,
    Contrast,
    Detection,
    MatchedDetection,
    Negated,
    Probability,
    Region,
    Top,
    resolve_targets,
)
from tests.helpers.comparison import assert_same_explanation, assert_same_raw

CELL = 16
LABELS = ["background", "red thing", "green thing", "blue thing"]


class SquareDetector(nn.Module):
    """A detector with the interface of torchvision's that finds colored cells of 16 x 16 pixels.

    The class is the strongest color of the cell, and the confidence is half the mean of that color.
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
        assert isinstance(images, list), "torchvision's detectors take a list of images"
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        batch, _ = self.transform(images)
        found = list(map(self._read, self.head(self.backbone(batch.tensors))))
        return self.transform.postprocess(found, batch.image_sizes, sizes)

    def _read(self, maps: Tensor) -> dict[str, Tensor]:
        scores, colors = maps.amax(0).flatten(), maps.argmax(0).flatten()
        rows, columns = torch.meshgrid(*map(torch.arange, maps.shape[1:]), indexing="ij")
        corner = torch.stack([columns, rows], -1).reshape(-1, 2) * float(CELL)
        kept = scores > self.threshold
        boxes = torch.cat([corner, corner + CELL], 1)
        return {"boxes": boxes[kept], "labels": colors[kept] + 1, "scores": scores[kept]}


def make_photo(*squares: tuple[int, int, int, float], size: tuple[int, int] = (96, 96), side: int = CELL) -> Tensor:
    """Return a black photo ``(3, H, W)`` with squares, each given as (left, top, color, brightness)."""
    photo = torch.zeros(3, *size)
    for left, top, color, brightness in squares:
        photo[color, top : top + side, left : left + side] = brightness
    return photo


TWO = make_photo((16, 32, 0, 1.0), (64, 48, 1, 0.6), (64, 0, 1, 0.4))
"""One red square, the brightest, and two green ones."""


# ----------------------------------------------------------------------------------------------------------- resolution


@pytest.mark.parametrize(
    ("requested", "box", "index", "confidence"),
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
        (Box((0, 0, 96, 96), 2, iou_threshold=0.01), (64, 48, 80, 64), 2, 0.3),  # the most confident of several
    ],
    ids=str,
)
def test_one_detection_is_explained(requested: Any, box: tuple[float, ...], index: int, confidence: float) -> None:
    result = camtool.explain(SquareDetector(), TWO, requested, method="odam", labels=LABELS, smoothing=0.3)
    assert result.box == pytest.approx(box)
    assert (result.index, result.label) == (index, LABELS[index])
    assert result.score == pytest.approx(confidence, abs=1e-5)
    assert result.probability == pytest.approx(confidence, abs=1e-5)
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    # Next to the border the map is hot up to the border.
    assert find_hottest_point(result) == pytest.approx((x, y), abs=4)
    assert result.heatmap[TWO.amax(0).numpy() == 0].max() < 1


def find_hottest_point(result: Any) -> tuple[float, float]:
    """Return the center of the hottest pixels as (x, y)."""
    rows, columns = np.nonzero(result.heatmap >= result.heatmap.max() - 1e-6)
    return float(columns.mean() + 0.5), float(rows.mean() + 0.5)


def test_grad_cam_highlights_similar_objects_and_odam_only_the_detection() -> None:
    """Grad-CAM averages gradients over positions, so it highlights the other green square as well."""
    by_class, by_instance = (camtool.explain(SquareDetector(), TWO, 2, method=name) for name in ("gradcam", "odam"))
    other, own = (8, 72), (56, 72)
    assert by_class.heatmap[other] > 0.6 * by_class.heatmap[own]
    assert by_instance.heatmap[other] < 0.02 * by_instance.heatmap[own]


def test_top_k_are_the_most_confident_detections() -> None:
    results = camtool.explain(SquareDetector(), TWO, Top(9))
    assert [result.probability for result in results] == pytest.approx([0.5, 0.3, 0.2], abs=1e-5)
    assert len(camtool.explain(SquareDetector(), TWO, Top(2))) == 2


def test_negated_detection_keeps_its_box() -> None:
    result = camtool.explain(SquareDetector(), TWO, Negated(Detection(1)), labels=LABELS)
    assert result.label == "not green thing"
    assert (result.score, result.probability) == pytest.approx((-0.3, 0.3), abs=1e-5)
    assert result.box == pytest.approx((64, 48, 80, 64))


def test_function_gets_the_detections_of_one_image() -> None:
    result = camtool.explain(SquareDetector(), TWO, lambda found: found["scores"][found["labels"] == 2].sum())
    assert result.score == pytest.approx(0.5, abs=1e-5)
    assert result.box is None
    assert result.probability is None


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (3, "the model found no blue thing in this image.*lower the model's own threshold"),
        ("blue thing", "the model found no blue thing"),
        (Detection(3), r"detection 3, counted from 0, but the model found 3 in this image"),
        (Box((0, 0, 8, 8)), r"no detection overlaps the box \(0, 0, 8, 8\) by 0.5 or more; the best overlap is 0"),
        (Box((66, 0, 78, 16), 1), r"no detection of class 1 overlaps"),
        (Box((20, 36, 28, 44)), r"the best overlap is 0\.25"),
    ],
    ids=str,
)
def test_missing_detections_raise_an_error_with_the_reason(requested: Any, message: str) -> None:
    with pytest.raises(NothingFoundError, match=message):
        camtool.explain(SquareDetector(), TWO, requested, labels=LABELS)


def test_photo_without_detections_raises_an_error() -> None:
    for requested in (None, Top(3)):
        with pytest.raises(
            NothingFoundError, match=r"found nothing in this image.*lower the model's own threshold .*score_thresh"
        ):
            camtool.explain(SquareDetector(threshold=0.9), TWO, requested)
    with pytest.raises(NothingFoundError, match="the model found none at all"):
        camtool.explain(SquareDetector(threshold=0.9), TWO, Box((0, 0, 8, 8)))


@pytest.mark.parametrize("requested", [Contrast(1, 2), Region(1, torch.ones(3, 3))], ids=str)
def test_targets_that_compare_classes_refuse_detectors(requested: Any) -> None:
    with pytest.raises(TargetError, match=r"the model returned detections, which have no single score per class"):
        camtool.explain(SquareDetector(), TWO, requested)


@pytest.mark.parametrize("method", ["cam", "rivalcam"])
def test_methods_that_compare_classes_refuse_detectors(method: str) -> None:
    with pytest.raises((MethodError, TargetError), match=r"linear layer|the model returned detections"):
        camtool.explain(SquareDetector(), TWO, method=method)


# ------------------------------------------------------------------------------------------------------- changed images


def test_matched_detection_scores_the_best_overlap_in_other_images() -> None:
    target = MatchedDetection(2, (0.0, 0.0, 10.0, 10.0), (0, 0, 1, 1), 0.5)

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
    # The nearer one counts, not the more confident one; of two at one place the more confident one.
    assert score(([0, 0, 10, 6], 2, 0.75), ([0, 0, 10, 8], 2, 0.25)) == 0.25
    assert score(([0, 0, 10, 8], 2, 0.75), ([0, 0, 10, 8], 2, 0.25)) == 0.75
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
def test_methods_of_all_kinds_highlight_the_detection(method: str, options: dict[str, Any]) -> None:
    result = camtool.explain(SquareDetector(), TWO, 2, method=method, **options)
    left, top, right, bottom = map(int, result.box)
    inside = result.heatmap[top:bottom, left:right]
    assert inside.mean() > 3 * result.heatmap.mean()


def test_image_is_not_flipped_or_cropped_for_a_detection() -> None:
    with pytest.raises(MethodError, match="target MatchedDetection refers to a fixed region of it"):
        camtool.explain(SquareDetector(), TWO, method="sess:gradcam")
    lights = camtool.explain(SquareDetector(), torch.stack([factor * TWO for factor in (0.9, 1.0, 1.1)]))
    by_hand = np.mean([result.raw for result in lights], axis=0)
    np.testing.assert_allclose(
        camtool.explain(SquareDetector(), TWO, method="tta:gradcam").raw, by_hand, rtol=1e-4, atol=1e-6
    )


def test_batch_of_photos_equals_single_photos() -> None:
    photos = torch.stack([TWO, TWO.flip(2), make_photo((0, 80, 2, 0.9))])
    together = camtool.explain(SquareDetector(), photos, method="odam")
    for one, photo in zip(together, photos, strict=True):
        alone = camtool.explain(SquareDetector(), photo, method="odam")
        assert one.box == alone.box
        assert one.score == pytest.approx(alone.score)
        assert_same_explanation(one, alone)


def test_several_detections_of_a_photo_equal_single_ones() -> None:
    model, photos = SquareDetector(), torch.stack([TWO, TWO.flip(2)])
    several = camtool.explain(model, photos, [[1, 2], [2, Detection(0)]], method="hirescam")
    for own, photo, requests in zip(several, photos, [[1, 2], [2, 1]], strict=True):
        for one, requested in zip(own, requests, strict=True):
            assert_same_raw(one.raw, camtool.explain(model, photo, requested, method="hirescam").raw)


def test_detector_in_training_mode_is_explained_in_evaluation_mode() -> None:
    """torchvision's transform picks a random size in training mode. Errors leave the model unchanged as well."""
    model, expected = SquareDetector(), camtool.explain(SquareDetector(), TWO)
    model.transform.min_size = (64, 80, 96)
    model.train()
    model.head.training = False
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    assert np.array_equal(camtool.explain(model, TWO).raw, expected.raw)
    for requested in (3, Box((0, 0, 8, 8)), Contrast(1, 2)):
        with pytest.raises(TargetError):
            camtool.explain(model, TWO, requested)
    assert torch.equal(torch.get_rng_state(), before)
    assert [name for name, module in model.named_modules() if not module.training] == ["head"]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# --------------------------------------------------------------------------------------------------------- on the photo


@pytest.mark.parametrize("size", [(96, 96), (100, 130), (110, 137), (40, 64), (61, 203), (500, 100)], ids=str)
@pytest.mark.parametrize(("across", "down"), [(0.1, 0.2), (0.5, 0.5), (0.9, 0.1), (0.8, 0.9)])
def test_map_and_box_cover_the_object_on_the_photo(size: tuple[int, int], across: float, down: float) -> None:
    """The detector resizes the photo and pads it to a multiple of 32, which must not shift the map or the box."""
    height, width = size
    scale = min(96 / min(size), 160 / max(size))  # of the photo, within the model
    side = round(2 * CELL / scale)
    left, top = round(across * (width - side)), round(down * (height - side))
    photo = make_photo((left, top, 0, 1.0), size=size, side=side)
    result = camtool.explain(SquareDetector(), photo, method="hirescam")
    cell = CELL / scale
    x, y = find_hottest_point(result)
    x0, y0, x1, y1 = result.box
    assert x0 - 1 <= x <= x1 + 1, "the map is hottest in the box"
    assert y0 - 1 <= y <= y1 + 1
    # One of the cells inside the square is the hottest; next to the border the map is hot up to the border.
    assert abs(x - (left + side / 2)) <= 0.75 * cell + 1
    assert abs(y - (top + side / 2)) <= 0.75 * cell + 1
    assert result.heatmap.shape == size


def test_map_is_hot_in_the_corner_of_the_photo_that_is_bright() -> None:
    for left, top in ((0, 0), (184, 0), (0, 44), (184, 44)):
        result = camtool.explain(SquareDetector(), make_photo((left, top, 1, 1.0), size=(60, 200)), method="hirescam")
        y, x = np.unravel_index(result.heatmap.argmax(), (60, 200))
        assert (x < 100) == (left < 100)
        assert (y < 30) == (top < 30)


@pytest.mark.parametrize("fixed", [None, (96, 64)], ids=["by the sides", "fixed"])
def test_geometry_equals_that_of_torchvisions_transform(fixed: tuple[int, int] | None) -> None:
    for height in (31, 64, 97, 250, 333):
        for width in (33, 96, 128, 251, 640):
            preparation = GeneralizedRCNNTransform(80, 133, [0.0] * 3, [1.0] * 3, fixed_size=fixed).eval()
            batch, _ = preparation([torch.rand(3, height, width)])
            geometry = Geometry.whole(height, width).resize_for_detector(preparation)
            assert geometry.size == tuple(batch.tensors.shape[2:])
            h, w = batch.image_sizes[0]
            rows, columns = batch.tensors.shape[2:]
            assert_close(torch.tensor(geometry.box), torch.tensor([0, 0, height * rows / h, width * columns / w]))


def test_a_photo_of_any_kind_goes_in_whole(tmp_path: Path) -> None:
    """A detector preprocesses its images itself, so nothing is assumed or cropped, and there is no warning."""
    photo = make_photo((160, 16, 0, 1.0), size=(60, 200))
    path = tmp_path / "photo.png"
    Image.fromarray((photo * 255).byte().movedim(0, -1).numpy()).save(path)
    expected = camtool.explain(SquareDetector(), photo)
    assert expected.warnings == ()
    assert np.array_equal(expected.photo, np.asarray(Image.open(path)))  # the tensor is shown unchanged, not stretched
    for source in (path, Image.open(path), np.asarray(Image.open(path))):
        result = camtool.explain(SquareDetector(), source)
        assert result.warnings == ()
        assert result.box == pytest.approx(expected.box)
        assert_same_explanation(result, expected)


def test_box_is_in_pixels_of_the_photo() -> None:
    """A transform before the detector may crop, scale and flip the photo; boxes are still in pixels of the photo."""
    from torchvision.transforms import v2

    transform = v2.Compose(
        [v2.CenterCrop(96), v2.RandomHorizontalFlip(1.0), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    )
    photo = Image.new("RGB", (160, 100))
    photo.paste((255, 0, 0), (48, 18, 64, 34))  # after the crop at 16, 16; flipped at 64
    photo.paste((250, 0, 0), (96, 50, 112, 66))
    for requested, place in ((Detection(0), (48, 18, 64, 34)), (Box((97, 51, 113, 66)), (96, 50, 112, 66))):
        result = camtool.explain(SquareDetector(), photo, requested, transform=transform, method="hirescam")
        assert result.box == pytest.approx(place)
        assert find_hottest_point(result) == pytest.approx(
            ((place[0] + place[2]) / 2, (place[1] + place[3]) / 2), abs=1
        )


# -------------------------------------------------------------------------------------------------------------- drawing


def test_box_is_drawn_around_the_detection() -> None:
    result = camtool.explain(SquareDetector(), TWO, 2)
    plain = overlay.blend(result.photo, result.heatmap)
    drawn = result.overlay()
    framed = regions.draw_boxes(plain, [result.box])
    changed = (plain != framed).any(2)
    rows, columns = np.nonzero(changed)
    assert min(columns.min() - 64, rows.min() - 48) >= -3
    assert max(columns.max() - 80, rows.max() - 64) <= 2
    assert not changed[52:60, 68:76].any(), "the inside does not change"
    assert drawn[62:66, 70].min(1).max() > 230, "the line is white"
    np.testing.assert_array_equal(drawn, regions.draw_boxes(plain, [result.box], labels=[f"{result.label} 30%"]))
    np.testing.assert_array_equal(drawn[48:], framed[48:], "the label is above the box")
    assert (drawn[:48] != framed[:48]).any()


def test_empty_box_is_drawn_as_one_pixel() -> None:
    assert regions.grow_to_one_pixel((3.0, 4.0, 3.0, 4.0)) == (3, 4, 4, 5)
    assert regions.grow_to_one_pixel((3.0, 4.0, 8.0, 9.5)) == (3, 4, 8, 9.5)


# ---------------------------------------------------------------------------------------------------------- folder runs


def run_folder(folder: Path, target: Any, **settings: Any) -> tuple[list[Success], list[dict[str, Any]]]:
    """Return the outcomes of a run over the photos in a folder, none of which fails, and the lines of its manifest."""
    output = OutputSettings(folder / "out", **settings)
    outcomes = list(run_jobs(camtool.Explainer(SquareDetector()), plan_run([str(folder)]).jobs, target, output))
    assert all(isinstance(each, Success) for each in outcomes)
    lines = (folder / "out" / "explanations.jsonl").read_text().splitlines()
    return outcomes, [json.loads(line) for line in lines]  # type: ignore[return-value]


@pytest.mark.parametrize("target", [None, Top(2), [Top(1), Detection(0)]])
def test_folder_run_saves_boxes_and_says_where_nothing_was_found(tmp_path: Path, target: Any) -> None:
    for name, photo in (("a", TWO), ("b", 0 * TWO), ("c", TWO.flip(1))):
        Image.fromarray((photo * 255).byte().movedim(0, -1).numpy()).save(tmp_path / f"{name}.png")
    kinds = ("overlay", "heatmap", "npz")
    _, lines = run_folder(tmp_path, target, kinds=kinds, regions={"center": regions.PhotoRegion.parse("center")})
    by_photo: dict[str, list[dict[str, Any]]] = {name: [] for name in "abc"}
    for line in lines:
        by_photo[Path(line["image"]).stem].append(line)
    assert by_photo["a"][0]["box"] == pytest.approx([16, 32, 32, 48])
    assert by_photo["c"][0]["box"] == pytest.approx([16, 48, 32, 64])
    assert by_photo["a"][0]["probability"] == pytest.approx(0.5, abs=0.01)
    (nothing,) = by_photo["b"]
    assert nothing["label"] == "nothing found"
    assert nothing["warning_codes"][-1] == "nothing-found"
    assert [nothing[name] for name in ("index", "score", "probability", "box", "correct")] == [None] * 5
    assert nothing["heat_in"] == {"center": None}
    assert [*nothing["files"]] == [*kinds]
    picture = np.asarray(Image.open(tmp_path / "out" / nothing["files"]["overlay"]).convert("RGB"))
    assert picture.shape[0] > picture.shape[1], "below it stands what it is"
    assert not picture[: picture.shape[1]].any(), "the photo, which is black, without heat"


def test_folder_run_says_which_class_was_not_found(tmp_path: Path) -> None:
    Image.fromarray((TWO * 255).byte().movedim(0, -1).numpy()).save(tmp_path / "a.png")
    _, (line,) = run_folder(tmp_path, 3, kinds=("mask", "sufficient"))
    assert line["label"] == "nothing found"
    assert "found no class 3" in line["warnings"][0]
    assert [(tmp_path / "out" / name).is_file() for name in line["files"].values()] == [True, True]


# ------------------------------------------------------------------------------------------------------------- warnings


def test_detection_of_low_confidence_gets_a_warning() -> None:
    weak = make_photo((16, 16, 0, 0.1))
    (warning,) = camtool.explain(SquareDetector(threshold=0.01), weak).warnings
    assert "confidence in this detection is only 5.0%" in warning
    assert camtool.explain(SquareDetector(threshold=0.01), TWO).warnings == ()


def test_detection_with_saturated_confidence_gets_a_warning() -> None:
    (warning,) = camtool.explain(SquareDetector(), make_photo((16, 16, 0, 2.0))).warnings
    assert "confidence in this detection is saturated" in warning


@pytest.mark.parametrize("request_", [None, Top(1), Detection(0)])
def test_candidates_that_the_model_does_not_report_are_nothing(request_: Any) -> None:
    rule = PostProcessing(threshold=0.25)
    candidates = Detections(
        torch.tensor([[0.0, 0, 8, 8]]), torch.tensor([[1e-4, 0]]), torch.tensor([[1e-4, 0]]), None, post_processing=rule
    )
    with pytest.raises(NothingFoundError, match=r"above 0\.25"):
        resolve_targets(request_, candidates, None)


def test_request_on_no_detections_raises_an_error() -> None:
    none = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    with pytest.raises(NothingFoundError, match="found nothing"):
        resolve_targets(None, none, None)
