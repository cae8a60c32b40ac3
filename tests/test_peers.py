"""camtool against the two well-known libraries: the same numbers, or a known reason why not.

Raw maps are compared, before either library rectifies, scales and resizes them, up to 1e-5 of the map's peak. Where a
peer departs, :data:`DEVIATIONS` says how; each entry that changes a map by more than that has a test below that shows
the very departure it describes, so that the list stays true.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.evidence import Evidence, Scene
from camtool.layers import resolve
from camtool.methods import METHODS
from camtool.targets import Custom

grad_cam = pytest.importorskip("pytorch_grad_cam", reason="grad-cam is not installed: pip install 'camtool[test]'")
torchcam = pytest.importorskip("torchcam.methods", reason="torchcam is not installed: pip install 'camtool[test]'")
torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Deviation:
    """Where a peer computes something else."""

    peer: str
    methods: str
    what: str
    here: str


DEVIATIONS = (
    Deviation(
        "grad-cam 1.5.7",
        "Grad-CAM++",
        "1e-6 is added to the denominator 2 g² + g³ Σ A: where g is below about 1e-3 this, not the equation, decides.",
        "g² is cancelled first, so nothing has to be added. Compared at 10⁴ times the logit, where 1e-6 is nothing.",
    ),
    Deviation(
        "torchcam 0.5.0",
        "Grad-CAM++",
        "alpha is divided in place on a copy made by indexing, so that the division is lost and w = Σ relu(g)³.",
        "eq. 19; not compared.",
    ),
    Deviation(
        "grad-cam 1.5.7, torchcam 0.5.0",
        "XGrad-CAM",
        "1e-7 and 1e-8 are added to Σ A, whatever its sign and size.",
        "a channel that sums to rounding noise gets no weight; the rest is divided as it is.",
    ),
    Deviation(
        "grad-cam 1.5.7, torchcam 0.5.0",
        "all, at a layer with an in-place ReLU behind it (densenet121 'features', vgg11 'features.18')",
        "the activations kept are an alias, which the ReLU overwrites: A becomes relu(A). torchcam's gradient then "
        "is that of relu(A) too; grad-cam pairs the gradient of the one with the values of the other.",
        "the layer hands a clone on, so A is what it returned. Compared at layers that nothing overwrites. For CAM on "
        "DenseNet the accident is right, as relu(A) is what the model pools: there the maps are equal.",
    ),
    Deviation(
        "torchcam 0.5.0",
        "CAM",
        "a head is taken to be linear behind the pooling if the model has just one nn.Linear.",
        "the head must give the model's own output; otherwise MethodError.",
    ),
    Deviation(
        "grad-cam 1.5.7, torchcam 0.5.0",
        "all",
        "the map is rectified, divided by its peak + 1e-7 (1e-8), and by grad-cam resized and scaled once more.",
        "Explanation.raw is left as it is; a heatmap is resized, then scaled, once.",
    ),
)
"""All known differences in result, in one place."""

LAYERS = {  # none has an in-place operation behind it
    "resnet18": "layer4",
    "mobilenet_v2": "features",
    "densenet121": "features.denseblock4",
    "vgg11": "features",
}

IN_GRAD_CAM = {
    "gradcam": grad_cam.GradCAM,
    "gradcam++": grad_cam.GradCAMPlusPlus,
    "xgradcam": grad_cam.XGradCAM,
    "hirescam": grad_cam.HiResCAM,
    "layercam": grad_cam.LayerCAM,
}

IN_TORCHCAM = {"gradcam": torchcam.GradCAM, "xgradcam": torchcam.XGradCAM, "layercam": torchcam.LayerCAM}

CLASS = 3


def scaled_logit(output_of_one_image: Tensor) -> Tensor:
    """The target of all: the highest logit, enlarged so that the peers' small constants lose their weight."""
    return 1e4 * output_of_one_image.max()


# ------------------------------------------------------------------------------------------------- three sources


@cache
def network(name: str) -> nn.Module:
    """Random weights, and the statistics of batch normalisation that belong to them."""
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(num_classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over all that it sees
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 64, 64))
    return model.eval()


def pictures_for(model: nn.Module) -> Tensor:
    return torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1)).to(next(model.parameters()))


def evidence(model: nn.Module, layer: str, target: Any = scaled_logit) -> Evidence:
    x = pictures_for(model)
    scene = Scene(model, x, resolve(model, x, [layer]))
    return scene.evidence([Custom(target)] * len(x))[0]


def of_grad_cam(kind: type, model: nn.Module, layer: str, target: Any = scaled_logit) -> Tensor:
    """What its ``get_cam_image`` returns inside its own ``forward``, rectified as the next line there does."""
    kept = []
    with kind(model, [model.get_submodule(layer)]) as peer:
        get_cam_image = peer.get_cam_image
        peer.get_cam_image = lambda *args: kept.append(get_cam_image(*args)) or kept[-1]
        peer(pictures_for(model), [target] * 2)
    model.zero_grad(set_to_none=True)
    return torch.from_numpy(kept[0]).relu()


def of_torchcam(kind: type, model: nn.Module, layer: str, target: Any = scaled_logit) -> Tensor:
    with kind(model, layer) as peer:
        scores = model(pictures_for(model))
        return peer(scores=scores, targets=target, normalized=False)[0]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the map's peak, of the image where it is largest."""
    assert ours.shape == theirs.shape
    peaks = ours.abs().amax((1, 2))
    assert (peaks > 0).all(), "an empty map proves nothing"
    return float(((ours - theirs).abs().amax((1, 2)) / peaks).max())


# ------------------------------------------------------------------------------------------------------ the same


def layer_for(name: str, network_name: str) -> str:
    """DenseNet's blocks are signed: Σ A may come near 0, where XGrad-CAM hangs on the peers' constants, and 2 + g Σ A
    too, where Grad-CAM++ has a pole that makes much of rounding.
    """
    if network_name == "densenet121" and name in ("gradcam++", "xgradcam"):
        return "features.transition3.relu"
    return LAYERS[network_name]


@pytest.mark.parametrize("name", IN_GRAD_CAM)
@pytest.mark.parametrize("network_name", LAYERS)
def test_the_same_as_grad_cam(network_name: str, name: str) -> None:
    model, layer = network(network_name), layer_for(name, network_name)
    ours = METHODS[name](evidence(model, layer))
    assert difference(ours, of_grad_cam(IN_GRAD_CAM[name], model, layer)) < 1e-5


@pytest.mark.parametrize("name", IN_TORCHCAM)
@pytest.mark.parametrize("network_name", LAYERS)
def test_the_same_as_torchcam(network_name: str, name: str) -> None:
    model, layer = network(network_name), layer_for(name, network_name)
    ours = METHODS[name](evidence(model, layer))
    assert difference(ours, of_torchcam(IN_TORCHCAM[name], model, layer)) < 1e-5


@pytest.mark.parametrize(
    ("network_name", "layer"), [("resnet18", "layer4"), ("mobilenet_v2", "features"), ("densenet121", "features")]
)
def test_cam_is_the_same_as_torchcams(network_name: str, layer: str) -> None:
    model = network(network_name)
    with torchcam.CAM(model, layer) as peer:
        model(pictures_for(model))
        theirs = peer(class_idx=CLASS, normalized=False)[0]
    ours = METHODS["cam"](evidence(model, layer, lambda output: output[CLASS]))
    assert ours.amin() < 0
    assert difference(ours, theirs) < 1e-5


def test_neither_draws_a_cam_of_vgg() -> None:
    model = network("vgg11")
    with pytest.raises(ValueError, match="does not support multiple fully connected layers"):
        torchcam.CAM(model, "features")
    with pytest.raises(camtool.MethodError, match="Use method='gradcam'"):
        camtool.explain(model, pictures_for(model), CLASS, method="cam", layer="features")


def test_a_heatmap_is_the_same_as_grad_cams() -> None:
    """Rectified, resized and scaled: OpenCV's and torch's bilinear resizing are one."""
    model = network("resnet18")
    with grad_cam.GradCAM(model, [model.layer4]) as peer:
        theirs = peer(pictures_for(model), [scaled_logit] * 2)
    model.zero_grad(set_to_none=True)
    ours = camtool.explain(model, pictures_for(model), scaled_logit, layer="layer4")
    for result, heatmap in zip(ours, theirs, strict=True):
        assert result.heatmap == pytest.approx(heatmap, abs=1e-5)


# ------------------------------------------------------------------------------------------ the known deviations


def weighted(weights: Tensor, A: Tensor) -> Tensor:
    return (weights[:, :, None, None] * A).sum(1).relu()


def test_grad_cams_constant_decides_gradcam_plus_plus_where_gradients_are_small() -> None:
    model = network("resnet18")
    small = evidence(model, "layer4", lambda output: 1e-2 * output.max())
    theirs = of_grad_cam(grad_cam.GradCAMPlusPlus, model, "layer4", lambda output: 1e-2 * output.max())
    A, g = small.activations, small.gradients
    alpha = g**2 / (2 * g**2 + g**3 * A.sum((2, 3), keepdim=True) + 1e-6)
    assert difference(weighted((alpha * g.relu()).sum((2, 3)), A), theirs) < 1e-5
    assert difference(METHODS["gradcam++"](small), theirs) > 0.1


def test_torchcams_gradcam_plus_plus_sums_cubes() -> None:
    model = network("resnet18")
    seen = evidence(model, "layer4")
    theirs = of_torchcam(torchcam.GradCAMpp, model, "layer4")
    assert difference(weighted(seen.gradients.relu().pow(3).sum((2, 3)), seen.activations), theirs) < 1e-5
    assert difference(METHODS["gradcam++"](seen), theirs) > 0.1


@pytest.mark.parametrize(
    ("of_peer", "kind", "constant"),
    [(of_grad_cam, grad_cam.XGradCAM, 1e-7), (of_torchcam, torchcam.XGradCAM, 1e-8)],
)
def test_the_peers_constants_show_in_xgradcam_where_channels_sum_to_little(
    of_peer: Callable[..., Tensor], kind: type, constant: float
) -> None:
    # In float64, as otherwise rounding shows there just as much.
    model, layer = copy.deepcopy(network("densenet121")).double(), LAYERS["densenet121"]
    seen, theirs = evidence(model, layer), of_peer(kind, model, layer)
    A, g = seen.activations, seen.gradients
    with_constant = weighted((g * A).sum((2, 3)) / (A.sum((2, 3)) + constant), A)
    assert difference(with_constant, theirs) < 1e-12
    assert difference(METHODS["xgradcam"](seen), theirs) > 1e-6


def test_an_in_place_relu_behind_the_layer_overwrites_what_the_peers_keep() -> None:
    model, layer = network("densenet121"), "features"
    seen = evidence(model, layer)
    A, g = seen.activations, seen.gradients
    top = model(pictures_for(model)).argmax(1)
    at_relu = 1e4 * model.classifier.weight[top].detach() / A[0, 0].numel()  # the same at every position
    theirs = of_grad_cam(grad_cam.GradCAM, model, layer)
    assert difference(weighted(g.mean((2, 3)), A.relu()), theirs) < 1e-5
    assert difference(METHODS["gradcam"](seen), theirs) > 0.1
    theirs = of_torchcam(torchcam.GradCAM, model, layer)
    assert difference(weighted(at_relu, A.relu()), theirs) < 1e-5
    assert difference(METHODS["gradcam"](seen), theirs) > 0.1


def test_torchcam_draws_a_cam_where_the_head_does_not_pool_the_mean() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()
    with torchcam.CAM(model, "0") as peer:
        model(pictures_for(model))
        assert peer(class_idx=CLASS)[0].any()
    with pytest.raises(camtool.MethodError, match="global average pooling"):
        camtool.explain(model, pictures_for(model), CLASS, method="cam", layer="0")
