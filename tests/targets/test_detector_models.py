"""Detectors of torchvision, Hugging Face and Ultralytics, explained without any change to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import detection as zoo

import camtool
from camtool.errors import TargetError
from camtool.evidence.evidence import Evidence
from camtool.hooks.model_passes import apply_detector_transform
from camtool.hooks.structures.modules import find_detector_transform
from camtool.layers.selection import find_layers
from camtool.targets import AllDetections, Detection, Top
from tests.helpers.comparison import assert_same_raw
from tests.targets.test_detection_targets import SquareDetector

# ---------------------------------------------------------------------------------------------------------- torchvision

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
    "keypointrcnn_resnet50_fpn": {**BY_REGION, "box_detections_per_img": 5, "num_classes": 2, "num_keypoints": 5},
    "retinanet_resnet50_fpn": {**BY_SIDES, "score_thresh": 0.0},
    "retinanet_resnet50_fpn_v2": {**BY_SIDES, "score_thresh": 0.0},
    "fcos_resnet50_fpn": {**BY_SIDES, "score_thresh": 0.0},
    "ssd300_vgg16": {**SMALL, "score_thresh": 0.0},
    "ssdlite320_mobilenet_v3_large": {**SMALL, "score_thresh": 0.0},
}


def test_list_holds_every_detector_of_torchvision() -> None:
    from torchvision.models import list_models

    assert set(TORCHVISION) == set(list_models(zoo))


def make_untrained_detector(name: str, seed: int = 0) -> nn.Module:
    """Return a detector with random weights whose activations neither vanish nor explode."""
    torch.manual_seed(seed)
    model = getattr(zoo, name)(**TORCHVISION[name]).eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if hasattr(module, "running_var"):  # also frozen ones: halve what each residual branch adds
            module.weight.data.fill_(0.7)
    return model


DETECTORS = ["fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"]


@pytest.mark.parametrize(
    "name",
    [
        *("ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"),
        *DETECTORS,
    ],
)
def test_torchvision_detectors_are_explained_unchanged(name: str) -> None:
    model, photos = make_untrained_detector(name), torch.rand(2, 3, 96, 140)
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
    assert len(layers) == 1 or name.startswith("ssd"), "all detections share one layer, at any level of the backbone"
    assert all(layer.startswith("backbone.") for layer in layers)
    assert any(result.heatmap.any() for own in together for result in own)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_every_level_of_a_backbone_depends_on_the_chosen_layer() -> None:
    model = make_untrained_detector("ssdlite320_mobilenet_v3_large")
    photo = torch.rand(1, 3, 96, 140)
    (layer,) = find_layers(model, photo)
    backbone, levels = model.backbone, model.backbone(apply_detector_transform(model, photo))
    assert layer.layout.grid == tuple(next(iter(levels.values())).shape[2:])
    seen: list[Tensor] = []
    inside = backbone.get_submodule(layer.name.removeprefix("backbone."))
    handle = inside.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        levels = backbone(apply_detector_transform(model, photo).requires_grad_())
    finally:
        handle.remove()
    assert len(levels) == 6
    for level in levels.values():
        (gradient,) = torch.autograd.grad(level.sum(), seen[0], retain_graph=True)
        assert gradient.any()


def test_user_may_choose_a_layer_at_any_level() -> None:
    model, photo = make_untrained_detector("fasterrcnn_mobilenet_v3_large_320_fpn"), torch.rand(3, 96, 140)
    result = camtool.explain(model, photo, layer="backbone.fpn.layer_blocks.0")
    assert result.raw.shape == tuple(model.backbone(apply_detector_transform(model, photo[None]))["0"].shape[2:])


def test_detector_is_recognized_by_its_transform() -> None:
    assert find_detector_transform(SquareDetector()) is not None
    assert find_detector_transform(make_untrained_detector("ssdlite320_mobilenet_v3_large")) is not None
    other = nn.Sequential(nn.Conv2d(3, 3, 1))
    other.transform = nn.Identity()  # an attribute of the same name that is not a detector's transform
    assert find_detector_transform(other) is None
    x = torch.rand(1, 3, 8, 8)
    assert apply_detector_transform(other, x) is x


# -------------------------------------------------------------------------------------------------------------- queries


def make_tiny_detr(kind: str) -> nn.Module:
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


SUREST = Detection(0, confidence=0)
"""The surest candidate: nets of random weights are hardly sure enough to report one."""


def compute_signed_hirescam(evidence: Evidence) -> Tensor:
    """Return HiResCAM without its ReLU, which would make some maps of random nets empty."""
    return (evidence.gradients * evidence.activations).sum(1)


@pytest.mark.parametrize("kind", ["Detr", "ConditionalDetr", "Yolos"])
def test_query_detectors_are_explained_unchanged(kind: str) -> None:
    # Of fewer than 16 cells it is not certain that they have places on the image.
    height, width = (64, 96) if kind == "Yolos" else (128, 192)
    model, photos = make_tiny_detr(kind), torch.randn(2, 3, height, width)
    results = camtool.explain(model, photos, SUREST, method=compute_signed_hirescam)
    output = model(photos)
    has_no_object = kind != "ConditionalDetr"
    probabilities = output.logits.softmax(2)[..., :-1] if has_no_object else output.logits.sigmoid()
    for image, result in enumerate(results):
        query, index = divmod(int(probabilities[image].argmax()), probabilities.shape[2])
        x, y, w, h = output.pred_boxes[image, query].tolist()
        assert result.box == pytest.approx(
            (width * (x - w / 2), height * (y - h / 2), width * (x + w / 2), height * (y + h / 2)), rel=1e-4
        )
        assert result.index == index
        assert result.probability == pytest.approx(probabilities[image, query, index].item(), rel=1e-4)
        assert result.score == pytest.approx(output.logits[image, query, index].item(), abs=1e-4)
        assert result.heatmap.any()
        assert result.raw.shape == (4, 6), "the tokens of the image without the queries"
        alone = camtool.explain(model, photos[image], SUREST, method=compute_signed_hirescam)
        assert_same_raw(result.raw, alone.raw)


def test_every_class_of_a_query_can_be_explained() -> None:
    model, photo = make_tiny_detr("Detr"), torch.randn(3, 64, 96)
    logits = model(photo[None]).logits[0].detach()
    best = logits.softmax(1).argmax(0)
    results = camtool.explain(model, photo, [0, 1, 2, 3, 4])
    assert [result.score for result in results] == pytest.approx(logits[best, range(6)][:5].tolist(), abs=1e-4)
    with pytest.raises(TargetError, match="5 does not exist: the model has 5 classes"):
        camtool.explain(model, photo, 5)


# -------------------------------------------------------------------------------------------------------------- anchors


class AnchorDetector(nn.Module):
    """A detector with the output of Ultralytics' models: a box and confidences for each position, and the maps."""

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
        center = (torch.stack([columns, rows]).flatten(1) + 0.5) * stride
        boxes = torch.cat([center, torch.full_like(center, 2 * stride)])
        return torch.cat([boxes.expand(len(maps), -1, -1), maps.sigmoid().flatten(2)], 1)


def test_anchor_detectors_are_explained_unchanged() -> None:
    model, photos = AnchorDetector(), torch.rand(2, 3, 48, 64)
    read = model(photos)[0]
    assert read.shape == (2, 4 + 3, 6 * 8 + 3 * 4)
    for image, result in enumerate(camtool.explain(model, photos, SUREST, method=compute_signed_hirescam)):
        assert result.layer == "body", "both levels depend on it"
        index, anchor = divmod(int(read[image, 4:].argmax()), read.shape[2])
        x, y, w, h = read[image, :4, anchor].tolist()
        assert result.box == pytest.approx((x - w / 2, y - h / 2, x + w / 2, y + h / 2))
        assert result.index == index
        assert result.score == result.probability == pytest.approx(read[image, 4 + index, anchor].item())
        assert result.heatmap.any()


# ------------------------------------------------------------------------------------ detectors that hide their classes


class Wrapped(nn.Module):
    """A detector behind a plain module, which declares no number of classes."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        output = self.inside(x)
        return {"logits": output["logits"], "pred_boxes": output["pred_boxes"]}


class ThreeLogits(nn.Module):
    """Two queries for the left and right half of an image, with three logits each, and no word on their meaning."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.pool = nn.Conv2d(3, 4, 8, stride=8), nn.AdaptiveAvgPool2d((1, 2))
        self.head = nn.Linear(4, 3)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor([0.0, 1.0, 9.0]))  # the last one always wins

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.pool(self.body(x)).flatten(2).mT)
        boxes = x.new_tensor([[0.25, 0.5, 0.5, 1.0], [0.75, 0.5, 0.5, 1.0]])
        return {"logits": logits, "pred_boxes": boxes.expand(len(x), 2, 4)}


def has_assumption(warnings: Sequence[str]) -> bool:
    return any("does not say how many classes it has" in each for each in warnings)


@pytest.mark.parametrize("kind", ["Detr", "ConditionalDetr"])
def test_a_wrapped_detector_gives_the_detections_of_the_detector_inside(kind: str) -> None:
    model, photo = make_tiny_detr(kind), torch.randn(3, 64, 96)
    logits = model(photo[None])["logits"][0]
    probabilities = logits.softmax(1)[:, :-1] if kind == "Detr" else logits.sigmoid()
    result = camtool.explain(Wrapped(model), photo, SUREST, method=compute_signed_hirescam)
    inside = camtool.explain(model, photo, SUREST, method=compute_signed_hirescam)
    assert result.probability == pytest.approx(probabilities.max().item(), rel=1e-5)
    assert result.index == inside.index == int(probabilities.amax(0).argmax())
    np.testing.assert_array_equal(result.raw, inside.raw)
    assert not has_assumption(result.warnings)


def test_the_last_class_of_a_wrapped_detector_with_sigmoids_can_be_explained() -> None:
    model, photo = make_tiny_detr("ConditionalDetr"), torch.randn(3, 64, 96)
    result = camtool.explain(Wrapped(model), photo, 4, method=compute_signed_hirescam)
    assert result.probability == pytest.approx(model(photo[None])["logits"][0, :, 4].sigmoid().max().item(), rel=1e-5)


def test_the_assumption_of_no_object_is_a_warning_until_the_class_count_is_set() -> None:
    torch.manual_seed(0)
    model, photo = ThreeLogits().eval(), torch.randn(3, 64, 96)
    logits = model(photo[None])["logits"][0]

    assumed = camtool.explain(model, photo, SUREST, method=compute_signed_hirescam)
    assert assumed.index == 1
    assert assumed.probability == pytest.approx(logits.softmax(1)[:, 1].max().item(), rel=1e-5)
    (warning,) = [each for each in assumed.warnings if has_assumption([each])]
    assert "the last of its 3 logits" in warning
    assert "model.num_classes = 3" in warning
    assert "or 2 if this is right" in warning
    for request in (0, AllDetections(confidence=0), camtool.targets.Box((0, 0, 48, 64))):
        found = camtool.explain(model, photo, request, method=compute_signed_hirescam)
        assert all(has_assumption(each.warnings) for each in (found if isinstance(found, list) else [found]))

    model.num_classes = 3
    sigmoids = camtool.explain(model, photo, SUREST, method=compute_signed_hirescam)
    assert sigmoids.index == 2
    assert sigmoids.probability == pytest.approx(logits.sigmoid()[:, 2].max().item(), rel=1e-5)
    assert not has_assumption(sigmoids.warnings)

    model.num_classes = 2
    confirmed = camtool.explain(model, photo, SUREST, method=compute_signed_hirescam)
    assert confirmed.probability == assumed.probability
    assert not has_assumption(confirmed.warnings)
