"""Detectors whose feature levels form a chain, as in SSD: each detection is explained at the level that made it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD, SSDHead

import camtool
from camtool.evidence.evidence import Evidence
from camtool.layers.default_layer import LEVEL, Candidate, mark_levels
from camtool.layers.layouts import Layout
from camtool.layers.selection import find_layers, find_level_layers
from camtool.targets import Custom, Detection, Negated
from tests.targets.test_detector_models import make_untrained_detector

SIDE, FINE, COARSE = 96, 8, 32


class TwoLevels(nn.Module):
    """A backbone that measures brightness: in cells of 8 x 8 pixels, and from these in cells of 32 x 32."""

    out_channels = (2, 2)

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 2, FINE, FINE), nn.ReLU())
        self.coarse = nn.Sequential(nn.Conv2d(2, 2, COARSE // FINE, COARSE // FINE), nn.ReLU())
        for stage in (self.fine[0], self.coarse[0]):
            nn.init.constant_(stage.weight, 1 / stage.weight[0].numel())
            nn.init.zeros_(stage.bias)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.fine(x)
        return OrderedDict({"0": fine, "1": self.coarse(fine)})


def build_planted_ssd() -> SSD:
    """An SSD with weights set by hand: it finds bright squares that fill one cell of a level, and nothing around them.

    The logit is ``20 (center - 0.9 mean of the neighbors - 0.8)``: 4 for a square that fills the cell, -2.8 at the
    corner of a larger one, and less elsewhere. The boxes are the cells.
    """
    head = SSDHead([2, 2], [2, 2], 2)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    for level in head.classification_head.module_list:
        # Two anchors by two classes; the second anchor finds nothing, and class 0 is the background.
        level.weight.data[1] = -0.9 / 8 * 20 / 2
        level.weight.data[1, :, 1, 1] = 20 / 2
        level.bias.data[:] = torch.tensor([0.0, -16.0, 0.0, -30.0])
    anchors = DefaultBoxGenerator([[], []], scales=[FINE / SIDE, COARSE / SIDE, 1.0], steps=[FINE, COARSE])
    constants: dict[str, Any] = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    return SSD(TwoLevels(), anchors, (SIDE, SIDE), 2, head=head, score_thresh=0.5, **constants).eval()


def draw_squares(*squares: tuple[int, int, int]) -> Tensor:
    """Return a black image ``(3, 96, 96)`` with white squares, each given by its left, its top and its side."""
    image = torch.zeros(3, SIDE, SIDE)
    for x, y, side in squares:
        image[:, y : y + side, x : x + side] = 1
    return image


SMALL, LARGE = (72, 16, FINE), (0, 64, COARSE)


def compute_gradcam(model: nn.Module, image: Tensor, layer: str, rank: int, *, rectify: bool = True) -> np.ndarray:
    """Compute the Grad-CAM of a detection at a layer, from Selvaraju et al. 2017, equations 1 and 2.

    Without the ReLU, as it would make some maps of random nets empty, if ``rectify`` is False.
    """
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _given: Any, output: Tensor) -> Tensor:
        kept.append(output)
        return output.clone()

    handle = model.get_submodule(layer).register_forward_hook(keep)
    with torch.enable_grad():
        scores = model([image.clone()])[0]["scores"]
        score = scores[scores.argsort(descending=True, stable=True)[rank]]
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[0])
    activations = kept[0][0].detach()
    weights = gradient[0].mean((1, 2), keepdim=True)
    signed = (weights * activations).sum(0)
    return (signed.relu() if rectify else signed).numpy()


def compute_signed_gradcam(evidence: Evidence) -> Tensor:
    """Return Grad-CAM without its ReLU."""
    return (evidence.gradients.mean((2, 3), keepdim=True) * evidence.activations).sum(1)


def assert_peak_in_box(result: camtool.Explanation) -> None:
    y, x = np.unravel_index(result.heatmap.argmax(), result.heatmap.shape)
    assert result.box is not None
    x0, y0, x1, y1 = result.box
    assert x0 <= x < x1
    assert y0 <= y < y1


@pytest.mark.parametrize(
    ("square", "layer", "grid"), [(SMALL, "backbone.fine", (12, 12)), (LARGE, "backbone.coarse", (3, 3))]
)
def test_a_square_is_explained_at_the_level_that_found_it(
    square: tuple[int, int, int], layer: str, grid: tuple[int, int]
) -> None:
    model, image = build_planted_ssd(), draw_squares(square)
    result = camtool.explain(model, image)
    x, y, side = square
    assert result.box == pytest.approx((x, y, x + side, y + side), abs=1e-3)
    assert (result.layer, result.raw.shape) == (layer, grid)
    np.testing.assert_allclose(
        result.raw, compute_gradcam(model, image, layer, 0), rtol=0, atol=1e-5 * result.raw.max()
    )
    assert_peak_in_box(result)
    # Grad-CAM of brightness: only the cell of the square is bright.
    stride = SIDE // grid[0]
    assert np.argwhere(result.raw > 0).tolist() == [[y // stride, x // stride]]


def test_detections_of_one_image_have_different_levels() -> None:
    model, image = build_planted_ssd(), draw_squares(SMALL, LARGE)
    results = camtool.explain(model, image, [Detection(0), Detection(1)], method="odam")
    assert {result.layer for result in results} == {"backbone.fine", "backbone.coarse"}
    for rank, result in enumerate(results):
        assert_peak_in_box(result)
        alone = camtool.explain(model, image, Detection(rank), method="odam")
        np.testing.assert_allclose(result.raw, alone.raw, rtol=0, atol=1e-6 * alone.raw.max())
        assert (result.layer, result.box, result.score) == (alone.layer, alone.box, alone.score)


def test_images_and_methods_keep_their_order() -> None:
    model, images = build_planted_ssd(), torch.stack([draw_squares(LARGE), draw_squares(SMALL), draw_squares(LARGE)])
    results: Any = camtool.explain(model, images, method=["gradcam", "scorecam", "fullgrad", "eigencam"])
    for image, of_methods in zip(images, results, strict=True):
        layer = "backbone.coarse" if image is images[0] or bool(image[0, 80, 10]) else "backbone.fine"
        assert [each.method for each in of_methods] == ["gradcam", "scorecam", "fullgrad", "eigencam"]
        assert [each.layer for each in of_methods] == [layer, layer, "", layer]
        alone: Any = camtool.explain(model, image, method=["gradcam", "eigencam"])
        for one, other in zip((of_methods[0], of_methods[3]), alone, strict=True):
            np.testing.assert_allclose(one.raw, other.raw, rtol=0, atol=1e-6 * other.raw.max())


def test_what_is_not_one_detection_has_the_layer_that_serves_all() -> None:
    model, image = build_planted_ssd(), draw_squares(SMALL, LARGE)
    result = camtool.explain(model, image, Custom(lambda found: found["scores"].sum()))
    assert result.layer == "backbone.fine"
    layers = {camtool.explain(model, image, Negated(Detection(rank))).layer for rank in (0, 1)}
    assert layers == {"backbone.fine", "backbone.coarse"}


def test_a_layer_that_the_user_names_is_used_for_every_detection() -> None:
    model, image = build_planted_ssd(), draw_squares(SMALL, LARGE)
    results = camtool.explain(model, image, [Detection(0), Detection(1)], layer="backbone.fine")
    assert [result.layer for result in results] == ["backbone.fine"] * 2
    both = camtool.explain(model, draw_squares(LARGE), layer=["backbone.fine", "backbone.coarse"])
    assert both.layer == "backbone.fine + backbone.coarse"


def test_the_table_of_layers_marks_the_levels() -> None:
    model, image = build_planted_ssd(), draw_squares(SMALL)
    assert [layer.name for layer in find_level_layers(model, image[None])] == ["backbone.fine", "backbone.coarse"]
    assert [layer.name for layer in find_layers(model, image[None])] == ["backbone.fine"]
    verdicts = {each.name: each.verdict for each in camtool.candidate_layers(model, image)}
    assert verdicts["backbone.fine"] == "the deepest that the score's gradient reaches"
    assert verdicts["backbone.coarse"] == LEVEL


def build_candidates(chosen: int) -> list[Candidate]:
    layout = Layout("channels first", (4, 4))
    return [Candidate(str(i), "Conv2d", (1, 2, 4, 4), layout, (8.0, 8.0), chosen=i == chosen) for i in range(4)]


@pytest.mark.parametrize(
    ("chosen", "reached", "levels"),
    [
        (1, ["1100", "1110", "1111"], "0111"),  # a chain of three levels
        (1, ["1100", "1111", "1111"], "0101"),  # the last level has no grid of its own
        (0, ["1100", "1010", "1001"], "0000"),  # a pyramid: each level has a layer behind the one that serves all
        (3, ["1111"], "0000"),  # one level
        (3, ["1111", "1111"], "0000"),  # two levels read from one layer
        (0, [], "0000"),
    ],
)
def test_only_the_levels_of_a_chain_are_marked(chosen: int, reached: list[str], levels: str) -> None:
    found = mark_levels(build_candidates(chosen), [[mark == "1" for mark in each] for each in reached])
    assert "".join(str(int(each.is_level)) for each in found) == levels
    assert [each.chosen for each in found] == [i == chosen for i in range(4)]


LAYERS = {
    "ssdlite320_mobilenet_v3_large": ["features.0", "features.1", "extra.0", "extra.1", "extra.2", "extra.3.0"],
    "ssd300_vgg16": ["features", "extra.0", "extra.1", "extra.2", "extra.3", "extra.4.1"],
}
"""The deepest layers that a level of each model is computed from. The last level has one cell, so it has no grid."""


def silence_other_levels(model: nn.Module, level: int) -> None:
    """Make all anchors of the other levels background, whatever the image, and those of this level uncertain."""
    classes = 5
    for index, head in enumerate(model.head.classification_head.module_list):
        last = [each for each in head.modules() if isinstance(each, nn.Conv2d)][-1]
        assert last.bias is not None
        last.weight.data *= 0.01 if index == level else 0
        last.bias.data[::classes] = 0.0 if index == level else 30.0


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *(("ssdlite320_mobilenet_v3_large", level) for level in range(6)),
        *(("ssd300_vgg16", level) for level in (0, 5)),
    ],
)
def test_the_map_equals_a_gradcam_by_hand_at_each_level(name: str, level: int) -> None:
    model, image = make_untrained_detector(name), torch.rand(3, 96, 140)
    silence_other_levels(model, level)
    expected_layers = [f"backbone.{layer}" for layer in LAYERS[name]]
    assert [layer.name for layer in find_level_layers(model, image[None])] == expected_layers
    result = camtool.explain(model, image, method=compute_signed_gradcam)
    assert result.layer == expected_layers[level]
    expected = compute_gradcam(model, image, result.layer, 0, rectify=False)
    assert expected.any()
    np.testing.assert_allclose(result.raw, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_pyramid_keeps_the_layer_that_serves_all_levels() -> None:
    model, image = make_untrained_detector("fasterrcnn_mobilenet_v3_large_320_fpn"), torch.rand(1, 3, 96, 140)
    assert find_level_layers(model, image) == []
    assert find_level_layers(nn.Sequential(nn.Conv2d(3, 2, 3)), image) == []
