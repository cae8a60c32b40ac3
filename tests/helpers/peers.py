"""Networks, inputs and raw maps of camtool, grad-cam and torchcam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.layers.selection import find_layers
from camtool.targets import Custom, Target

grad_cam = pytest.importorskip("pytorch_grad_cam", reason="grad-cam is not installed: pip install 'camtool[dev]'")
torchcam = pytest.importorskip("torchcam.methods", reason="torchcam is not installed: pip install 'camtool[dev]'")
torchvision = pytest.importorskip("torchvision")


LAYERS = {  # none has an in-place operation behind it
    "resnet18": "layer4",
    "mobilenet_v2": "features",
    "densenet121": "features.denseblock4",
    "vgg11": "features",
}

CLASS = 3


def scaled_logit(output_of_one_image: Tensor) -> Tensor:
    """Score the highest logit, enlarged so that the small constants of the other libraries are negligible."""
    return 1e4 * output_of_one_image.max()


# ------------------------------------------------------------------------------------------------- three sources


def build_vgg11() -> nn.Module:
    """Return VGG-11 with narrow linear layers, as its own take 500 MB."""
    with torch.device("meta"):
        model = torchvision.models.VGG(nn.Identity(), num_classes=10, init_weights=False)
    model.features = torchvision.models.vgg.make_layers(torchvision.models.vgg.cfgs["A"])
    for module in model.features:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)
    model.avgpool, model.classifier = (
        nn.AdaptiveAvgPool2d(1),
        nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    return model


@lru_cache(maxsize=1)
def network(name: str) -> nn.Module:
    """Return a network with random weights and the batch norm statistics that fit them."""
    torch.manual_seed(0)
    model = build_vgg11() if name == "vgg11" else getattr(torchvision.models, name)(num_classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over all that it sees
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 64, 64))
    return model.eval()


def small_net(last: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Eight channels on a grid of 24 x 24 at layer ``"0"``, and behind it a convolution and a bend."""
    torch.manual_seed(0)
    trunk = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, stride=2, padding=1), last()),
    )
    tail = nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6)
    return nn.Sequential(trunk, *tail).eval()


def pictures_for(model: nn.Module) -> Tensor:
    return torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1)).to(next(model.parameters()))


def evidence(model: nn.Module, layer: str, target: Any = scaled_logit, *, black: Tensor | None = None) -> Evidence:
    return about(model, layer, [Custom(target)] * 2, black=black)


def about(model: nn.Module, layer: str, targets: Sequence[Target], *, black: Tensor | None = None) -> Evidence:
    x = pictures_for(model)
    return gather_evidence(run_forward_pass(model, x, find_layers(model, x, [layer]), PassSettings(black)), targets)[0]


def of_grad_cam(kind: Callable[..., Any], model: nn.Module, layer: str, target: Any = scaled_logit) -> Tensor:
    """Return grad-cam's raw maps, rectified as after ``get_cam_image``."""
    return raw_of_grad_cam(kind, model, layer, target).relu()


def raw_of_grad_cam(
    kind: Callable[..., Any], model: nn.Module, layer: str, target: Any = scaled_logit, **options: Any
) -> Tensor:
    """Return the result of ``get_cam_image`` inside grad-cam's ``forward``."""
    kept = []
    with kind(model, [model.get_submodule(layer)]) as peer:
        inner = getattr(peer, "base_cam", peer)
        get_cam_image = inner.get_cam_image
        inner.get_cam_image = lambda *args: kept.append(get_cam_image(*args)) or kept[-1]
        peer(pictures_for(model), None if target is None else [target] * 2, **options)
    model.zero_grad(set_to_none=True)
    return torch.from_numpy(kept[0])


def heatmaps_of_grad_cam(
    kind: Callable[..., Any], model: nn.Module, layers: Sequence[str], target: Any = scaled_logit, **options: Any
) -> Tensor:
    """Return grad-cam's heatmaps at the image's size."""
    peer = kind(model, [model.get_submodule(layer) for layer in layers])
    heatmaps = torch.from_numpy(peer(pictures_for(model), [target] * 2, **options))
    for each in getattr(peer, "base_cam_per_layer", [getattr(peer, "base_cam", peer)]):
        each.activations_and_grads.release()
    model.zero_grad(set_to_none=True)
    return heatmaps


def of_torchcam(
    kind: Callable[..., Any], model: nn.Module, layer: str | list[str], target: Any = scaled_logit, **how: Any
) -> Tensor:
    with kind(model, layer) as peer:
        scores = model(pictures_for(model))
        return peer(scores=scores, **(how or {"targets": target}), normalized=False)[0]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference relative to the map's peak, over the images."""
    assert ours.shape == theirs.shape
    peaks = ours.abs().amax((1, 2))
    assert (peaks > 0).all(), "an empty map proves nothing"
    return float(((ours - theirs).abs().amax((1, 2)) / peaks).max())
