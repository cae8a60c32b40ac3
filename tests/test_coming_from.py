"""What the pages "Coming from" say of numbers: maps equal those of other libraries as users call them there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.arguments.foreign_names import describe_foreign_name
from tests.helpers.peers import LAYERS, difference, grad_cam, network, pictures_for, torchcam

attr = pytest.importorskip("captum.attr", reason="captum is not installed: pip install 'camtool[test]'")
NETWORKS = ["resnet18", "mobilenet_v2", "vgg11"]
CLASSES = [3, 7]
PAGES = Path(__file__).parents[1] / "docs" / "coming-from"
CLOSE = 1e-4  # of the peak: others add 1e-7 to a peak, and differences of scores round


def get_layer(name: str) -> tuple[nn.Module, str, nn.Module]:
    model = network(name)
    return model, LAYERS[name], model.get_submodule(LAYERS[name])


def read_raw(model: nn.Module, method: str = "gradcam", **options: Any) -> Tensor:
    results = camtool.explain(model, pictures_for(model), CLASSES, method=method, **options)
    return torch.stack([torch.from_numpy(result.raw) for result in results])


def scale(maps: Tensor) -> Tensor:
    low, high = (extreme(maps.flatten(1), 1).values[:, None, None] for extreme in (torch.min, torch.max))
    return (maps - low) / (high - low)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("GradCAM", "gradcam"),
        ("HiResCAM", "hirescam"),
        ("LayerCAM", "layercam"),
        ("XGradCAM", "xgradcam"),
        ("GradCAMElementWise", "gradcam-elementwise"),
    ],
)
def test_heatmaps_equal_grad_cam_if_they_are_stretched(name: str, kind: str, method: str) -> None:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model, layer, module = get_layer(name)
    with getattr(grad_cam, kind)(model=model, target_layers=[module]) as peer:
        theirs = peer(pictures_for(model), [ClassifierOutputTarget(index) for index in CLASSES])
    model.zero_grad(set_to_none=True)
    ours: dict[str, Sequence[camtool.Explanation]] = {
        placement: camtool.explain(model, pictures_for(model), CLASSES, method=method, layer=layer, **options)
        for placement, options in {"stretch": {"placement": "stretch"}, "centers": {}}.items()
    }
    stretched, placed = (np.stack([result.heatmap for result in results]) for results in ours.values())
    assert theirs.max() > 0.99
    assert abs(stretched - theirs).max() < CLOSE
    if name != "vgg11":  # it pools tiles, whose centers are those of a stretched grid
        assert abs(placed - theirs).max() > 0.1


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("kind", "method"), [("GradCAM", "gradcam"), ("XGradCAM", "xgradcam"), ("LayerCAM", "layercam"), ("CAM", "cam")]
)
def test_raw_maps_are_those_of_torchcam_before_it_scales_them(name: str, kind: str, method: str) -> None:
    if (kind, name) == ("CAM", "vgg11"):
        pytest.skip("both refuse it; tests/methods/test_peers.py")
    model, layer, _ = get_layer(name)
    with getattr(torchcam, kind)(model, layer) as extractor:
        theirs = extractor(CLASSES, model(pictures_for(model)))[0]
    raw = read_raw(model, method, layer=layer)
    ours = scale(raw)
    assert float((ours - theirs).abs().max()) < CLOSE


@pytest.mark.parametrize("name", NETWORKS)
def test_raw_maps_are_those_of_captum(name: str) -> None:
    model, layer, module = get_layer(name)
    theirs = attr.LayerGradCam(model, module).attribute(pictures_for(model), target=CLASSES, relu_attributions=True)
    assert difference(read_raw(model, layer=layer), theirs[:, 0].detach()) < CLOSE


@pytest.mark.parametrize("name", NETWORKS)
def test_saliency_and_occlusion_are_those_of_captum(name: str) -> None:
    model, images = network(name), pictures_for(network(name))
    saliency = attr.Saliency(model).attribute(images.clone().requires_grad_(), target=CLASSES).sum(1)
    assert difference(read_raw(model, "smoothgrad", samples=1, noise=0, cap=1), saliency) < CLOSE
    covered = attr.Occlusion(model).attribute(images, (3, 24, 24), strides=(3, 12, 12), target=CLASSES)[:, 0]
    assert difference(read_raw(model, "occlusion", window=0.25, stride=0.125), covered) < CLOSE


@pytest.mark.parametrize("page", ["grad-cam", "torchcam", "captum"])
def test_methods_and_targets_that_a_page_names_exist(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    named = re.findall(r"camtool\.((?:targets\.)?[A-Za-z_]+)", re.sub(r"camtool\.md|camtool's", "", text))
    assert len(named) > 8
    for name in {*named}:
        assert attribute_exists(name), name


def attribute_exists(name: str) -> bool:
    home, _, own = name.rpartition(".")
    return hasattr(camtool.targets if home else camtool, own)


def test_the_answer_on_the_first_page_is_that_of_camtool() -> None:
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    with pytest.raises(AttributeError) as error:
        _ = camtool.GradCAMPlusPlus
    assert f"AttributeError: {error.value}" in text
    assert describe_foreign_name("GradCAMPlusPlus") in text
