"""Networks of many kinds on one page: logits and maps of every method that can be exported are those of Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn
from torchvision.transforms._presets import ImageClassification

import camtool
from camtool.models import Loaded
from tests.app.web_page.page_tab import Opened, draw, encode, serve

pytestmark = pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")

NETWORKS = (
    *(
        "torchvision:mobilenet_v2",
        "torchvision:squeezenet1_1",
        "torchvision:resnet18",
        "torchvision:shufflenet_v2_x0_5",
    ),
    *("densenet", "mobilenetv3_small_050", "test_byobnet", "test_convnext", "test_efficientnet", "test_nfnet"),
    *("test_vit2", "test_coatnet"),
)
METHODS = [
    *("activation-map", "fem", "gradcam", "signed-gradcam", "gradcam++", "xgradcam", "hirescam", "layercam"),
    *("gradcam-elementwise", "zoomcam", "odam"),
]
_SIDE = 64


def make_mobilenet_v3() -> nn.Module:
    model = timm.create_model("mobilenetv3_small_050")
    for stage, count in enumerate((1, 2, 2, 1, 1)):
        model.blocks[stage] = model.blocks[stage][:count]
    return model


FEW_BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "torchvision:mobilenet_v2": partial(
        torchvision.models.MobileNetV2, inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]
    ),
    "torchvision:resnet18": partial(torchvision.models.ResNet, torchvision.models.resnet.BasicBlock, [1, 1, 1, 1]),
    "torchvision:shufflenet_v2_x0_5": partial(torchvision.models.ShuffleNetV2, [1, 1, 2], [24, 48, 96, 192, 1024]),
    "mobilenetv3_small_050": make_mobilenet_v3,
    "test_convnext": partial(timm.create_model, "test_convnext", depths=[1, 1, 1, 2]),
    "test_vit2": partial(timm.create_model, "test_vit2", depth=2, img_size=_SIDE),
}
"""What builds a network without the repetitions of its blocks.

Each operation with the same attributes is left, but for some numbers of channels.
"""


def make_network(name: str) -> Loaded:
    """Return a network with random weights for small photos."""
    torch.manual_seed(0)
    model: nn.Module
    if name in FEW_BLOCKS:
        model = FEW_BLOCKS[name]()
    elif name.startswith("torchvision:"):
        model = torchvision.models.get_model(name.removeprefix("torchvision:"), weights=None)
    elif name == "densenet":
        model = torchvision.models.DenseNet(8, (2, 2, 2), 16)
    else:
        size: dict[str, Any] = {"img_size": _SIDE} if name == "test_coatnet" else {}
        model = timm.create_model(name, **size)
    return Loaded(model.eval(), ImageClassification(crop_size=_SIDE, resize_size=_SIDE + 8), name=name)


@pytest.fixture(scope="module")
def page(browser: Any, folder: Path) -> Any:
    with serve(folder) as address:
        opened = Opened(browser, address)
        yield opened
        opened.tab.close()
        assert len(opened.requests) == opened.loaded
        assert opened.problems == []


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_and_maps_are_those_of_python(name: str, page: Opened, tmp_path: Path) -> None:
    loaded, photo = make_network(name), draw(1, size=96)
    camtool.export(loaded, tmp_path / "model.onnx", METHODS, dynamic_batch=False)
    page.drop(tmp_path / "model.onnx", name)
    page.choose(("photo.png", encode(photo)))
    logits, maps = page.read_answer()
    assert loaded.transform is not None
    with torch.no_grad():
        expected = loaded.model(loaded.transform(photo)[None])[0].numpy()
    assert np.abs(logits - expected).max() <= 1e-4 * max(1, np.abs(expected).max())
    index = int(expected.argmax())
    for method in METHODS:
        raw = camtool.explain(loaded, photo, index, method=method).raw
        assert np.abs(maps[method] - raw).max() <= 1e-3 * np.abs(raw).max(), method
