"""Models of Ultralytics: by file, as they are, and as YOLO objects, with their preparation of photos."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool import ModelError
from camtool.evidence.evidence import Evidence
from camtool.geometry.measured_transforms import probe_geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.models import find_input_size, resolve_labels
from camtool.models.declared_properties import find_transform
from camtool.models.loading import may_run_code
from camtool.models.sources.ultralytics import Letterbox
from camtool.targets import Box, Detection

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ultralytics import RTDETR, YOLO
    from ultralytics.data.augment import LetterBox as TheirLetterbox

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 140, 3), np.uint8))
LEVELS = (8, 16, 32)


def build(name: str, *, end2end: bool = False) -> Any:
    """Return a YOLO object with random weights, whose class scores depend on the image and differ between anchors."""
    torch.manual_seed(0)
    whole = (RTDETR if "rtdetr" in name else YOLO)(f"{name}.yaml")
    model = whole.model.eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.weight.data.fill_(1.7)
    for branches in (getattr(model.model[-1], each, None) for each in ("cv3", "one2one_cv3")):
        for branch in branches or ():
            last = branch[-1]
            nn.init.normal_(last.weight, std=0.3)
            nn.init.zeros_(last.bias)
    if end2end:
        model.model[-1].end2end = True
    return whole


# --------------------------------------------------------------------------------------------------------------- photos


@pytest.mark.parametrize("size", [(90, 140), (140, 90), (640, 480), (7, 300), (101, 101), (1080, 1920)])
def test_photos_are_prepared_as_ultralytics_does(size: tuple[int, int]) -> None:
    pixels: NDArray[np.uint8] = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    theirs = TheirLetterbox((320, 320), auto=True, stride=32)(image=pixels)
    ours = Letterbox(320, 32)(Image.fromarray(pixels))
    np.testing.assert_array_equal((ours * 255).round().byte().permute(1, 2, 0).numpy(), theirs)


@pytest.mark.parametrize("size", [(90, 140), (480, 333)])
def test_the_place_of_the_photo_is_read_and_equals_a_measurement(size: tuple[int, int]) -> None:
    transform = Letterbox(320, 32)
    read, probed = read_geometry(transform, size), probe_geometry(transform, size)
    assert read.size == probed.size
    assert read.box == pytest.approx(probed.box, abs=0.5)
    assert read.sees_all


def test_each_kind_of_model_has_its_preparation() -> None:
    sizes = {"yolov8n": (416, 640), "yolo11n-cls": (640, 640), "rtdetr-l": (640, 640)}
    for name, size in sizes.items():
        model = build(name).model
        transform = find_transform(model)
        assert transform is not None
        assert tuple(transform(PHOTO).shape[1:]) == size
        assert find_input_size(model) == (640, 640)
        assert resolve_labels(model, None, 80) is None, "numbers are no names"
        model.args = {"imgsz": [320, 256]}
        assert find_input_size(model) == (320, 320)


# -------------------------------------------------------------------------------------------------------------- loading


def test_a_file_is_loaded_with_its_names(tmp_path: Path) -> None:
    original = build("yolov8n")
    original.model.names = {index: f"kind {index}" for index in range(80)}
    original.save(tmp_path / "mine.pt")
    loaded = camtool.load(f"ultralytics:{tmp_path / 'mine.pt'}")
    assert loaded.labels is not None
    assert loaded.labels[7] == "kind 7"
    assert not loaded.model.training
    result = camtool.explain(loaded, PHOTO, "kind 7")
    assert result.label == "kind 7"
    assert result.heatmap.shape == (90, 140)


def test_random_weights_and_a_file_of_weights(tmp_path: Path) -> None:
    original = build("yolov8n").model
    torch.save(original.state_dict(), tmp_path / "weights.pt")
    loaded = camtool.load("ultralytics:yolov8n.yaml", tmp_path / "weights.pt")
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(loaded.model(images)[0], original(images)[0])


def test_aliases_in_a_description_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("backbone: &a [*a]\n")
    with pytest.raises(ModelError, match=r"own.yaml' cannot be loaded: aliases of YAML"):
        camtool.load(f"ultralytics:{tmp_path / 'own.yaml'}")


@pytest.mark.parametrize(("name", "read"), [("yolo11n.yaml", "yolo11.yaml"), ("yolov8n6.yaml", "yolov8-p6.yaml")])
def test_a_file_that_ultralytics_finds_by_a_shorter_name_is_the_users(tmp_path, monkeypatch, name, read) -> None:
    monkeypatch.chdir(tmp_path)
    assert not may_run_code(f"ultralytics:{name}")
    (tmp_path / read).write_text("backbone: &a [*a]\n")
    assert may_run_code(f"ultralytics:{name}")
    with pytest.raises(ModelError, match="aliases of YAML"):
        camtool.load(f"ultralytics:{name}")


def test_what_cannot_be_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"nothing.yaml' cannot be loaded: .*does not exist.*yolo11n.pt") as error:
        camtool.load("ultralytics:nothing.yaml")
    assert error.value.__suppress_context__
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(ModelError, match="pip install 'camtool\\[ultralytics\\]'"):
        camtool.load("ultralytics:yolov8n.yaml")


# ------------------------------------------------------------------------------------------------------- explanations

MODELS = ["yolov8n", "yolov8n-p2", "yolov8n-world", "yolov10n", "yolo11n-pose", "yolo11n-obb", "yolo26n", "yolo26n-seg"]
"""One of each kind of head; ``tests/zoo/test_families.py`` has the other versions."""


def get_logits(output: Any) -> Tensor:
    """Return the logits ``(K, A)`` of the first image, of the head that the table is made of."""
    head = output[1]
    logits: Tensor = head.get("one2many", head)["scores"][0]
    return logits


def compute_signed_gradcam(evidence: Evidence) -> Tensor:
    """Return Grad-CAM without its ReLU, which would make some maps of random nets empty."""
    return (evidence.gradients.mean((2, 3), keepdim=True) * evidence.activations).sum(1)


def compute_gradcam(model: nn.Module, layer: str, images: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """Return the signed Grad-CAM of a class's most confident anchor, and its logit, with hooks and nothing else."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda *call: kept.append(call[2]))
    score = get_logits(model(images))[index].amax()
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[-1])
    weights = gradient[0].mean((1, 2), keepdim=True)
    return (weights * kept[-1][0]).sum(0).detach(), score.detach()


@pytest.mark.parametrize("name", MODELS)
def test_gradcam_of_the_surest_detection(name: str) -> None:
    whole, images = build(name), torch.rand(1, 3, 96, 128)
    result = camtool.explain(whole, images, Detection(0, confidence=0), method=compute_signed_gradcam)[0]
    logits = get_logits(whole.model(images))
    assert result.index == int(logits.amax(1).argmax()), "the class of the surest anchor"
    expected, score = compute_gradcam(whole.model, result.layer, images, result.index)
    assert result.score == pytest.approx(score.item(), rel=1e-4)
    assert result.probability == pytest.approx(score.sigmoid().item(), rel=1e-4)
    np.testing.assert_allclose(result.raw, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert result.raw.any()
    assert result.box is not None


@pytest.mark.parametrize("name", ["yolov8n", "yolo26n"])
def test_the_layer_serves_detections_of_every_level(name: str) -> None:
    """The gradient of each level's surest anchor reaches the chosen layer."""
    model, images = build(name).model, torch.rand(1, 3, 96, 128)
    layer = camtool.explain(model, images)[0].layer
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda *call: kept.append(call[2]))
    scores = get_logits(model(images))
    handle.remove()
    levels = scores.split([math.prod(side // stride for side in (96, 128)) for stride in LEVELS], 1)
    for level in levels:
        (gradient,) = torch.autograd.grad(level.amax(), kept[-1], retain_graph=True)
        assert gradient.abs().max() > 0


def test_rows_that_the_model_selected() -> None:
    """A model without non-maximum suppression returns the best rows, which are read from its second head."""
    whole, images = build("yolo26n", end2end=True), torch.rand(1, 3, 96, 128)
    table, heads = whole.model(images)
    row = table[0, table[0, :, 4].argmax()]
    assert table.shape == (1, 252, 6)
    assert row[4].item() == pytest.approx(heads["one2one"]["scores"].max().sigmoid().item(), rel=1e-4)
    result = camtool.explain(whole, images, method=compute_signed_gradcam)[0]
    assert result.index == int(row[5])
    assert result.probability == pytest.approx(row[4].item(), rel=1e-4)
    assert result.box == pytest.approx(row[:4].tolist(), abs=0.01)
    assert result.layer == camtool.explain(build("yolo26n"), images)[0].layer
    assert result.raw.any()


class TableAlone(nn.Module):
    """A wrapper that returns the first of a model's results."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        table: Tensor = self.model(images)[0]
        return table


def test_a_wrapper_that_returns_the_anchors_alone() -> None:
    whole, images = build("yolov8n"), torch.rand(1, 3, 96, 128)
    alone, usual = (camtool.explain(model, images)[0] for model in (TableAlone(whole.model).eval(), whole))
    assert (alone.layer, alone.index) == (f"model.{usual.layer}", usual.index)
    assert usual.box is not None
    assert alone.box == pytest.approx(usual.box, abs=0.01)


def test_a_wrapper_that_returns_selected_rows_alone() -> None:
    """Nothing tells the levels, so the chosen layer is one that rows with small and with large boxes depend on."""
    model, images = TableAlone(build("yolo26n", end2end=True).model).eval(), torch.rand(1, 3, 96, 128)
    rows = model(images)[0]
    order = rows[:, 4].argsort(descending=True)
    for rank in (0, 1, 20, 100, 250):
        result = camtool.explain(model, images, Detection(rank), method=compute_signed_gradcam)[0]
        assert result.probability == pytest.approx(rows[order[rank], 4].item(), rel=1e-4)
        assert result.raw.any()


def test_targets_of_a_detector() -> None:
    whole = build("yolov8n")
    best = camtool.explain(whole, PHOTO)
    assert best.box is not None
    same = camtool.explain(whole, PHOTO, Box(best.box))
    assert (same.index, same.score) == (best.index, pytest.approx(best.score, rel=1e-4))
    first = camtool.explain(whole, PHOTO, Detection(0))
    assert first.score == pytest.approx(best.score, rel=1e-4)
    assert camtool.explain(whole, PHOTO, 5).index == 5


def test_a_classifier_that_returns_probabilities_and_logits() -> None:
    whole, images = build("yolo11n-cls"), torch.rand(2, 3, 64, 64)
    probabilities, logits = whole.model(images)
    for image, result in enumerate(camtool.explain(whole, images)):
        assert result.score == pytest.approx(logits[image].max().item(), rel=1e-4)
        assert result.probability == pytest.approx(probabilities[image].max().item(), rel=1e-4)
        assert result.layer == "model.10.conv"
        assert not any("several tensors" in str(each) for each in result.warnings)


def test_queries_of_rtdetr() -> None:
    whole, images = build("rtdetr-l"), torch.rand(1, 3, 128, 160)
    result = camtool.explain(whole, images, Detection(0, confidence=0))[0]
    boxes, logits = whole.model(images)[1][:2]
    query, index = divmod(int(logits[-1, 0].argmax()), logits.shape[-1])
    assert result.index == index
    assert result.score == pytest.approx(logits[-1, 0, query, index].item(), rel=1e-3)
    x, y, w, h = (boxes[-1, 0, query] * torch.tensor([160, 128, 160, 128])).tolist()
    assert result.box == pytest.approx((x - w / 2, y - h / 2, x + w / 2, y + h / 2), abs=0.1)
    assert result.raw.max() > 0
