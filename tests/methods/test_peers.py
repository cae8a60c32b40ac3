"""Raw maps equal those of grad-cam and torchcam.

Raw maps are compared, before either library rectifies, scales and resizes them, up to 1e-5 of the map's peak. Where a
peer departs, see ``test_peer_differences.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

import camtool
from camtool.methods import METHODS
from tests.helpers.peers import (
    CLASS,
    LAYERS,
    difference,
    evidence,
    grad_cam,
    network,
    of_grad_cam,
    of_torchcam,
    pictures_for,
    small_net,
    torchcam,
)

IN_GRAD_CAM = {
    "gradcam": grad_cam.GradCAM,
    "gradcam++": grad_cam.GradCAMPlusPlus,
    "xgradcam": grad_cam.XGradCAM,
    "hirescam": grad_cam.HiResCAM,
    "layercam": grad_cam.LayerCAM,
    "gradcam-elementwise": grad_cam.GradCAMElementWise,
    "shapleycam": grad_cam.ShapleyCAM,
}

IN_TORCHCAM = {"gradcam": torchcam.GradCAM, "xgradcam": torchcam.XGradCAM, "layercam": torchcam.LayerCAM}


# ------------------------------------------------------------------------------------------------------ the same


def layer_for(name: str, network_name: str) -> str:
    """DenseNet's blocks are signed: Σ A may come near 0, where XGrad-CAM hangs on the peers' constants; Grad-CAM++ has
    another sum there.
    """
    if network_name == "densenet121" and name in ("gradcam++", "xgradcam"):
        return "features.transition3.relu"
    return LAYERS[network_name]


OTHERS = [name for name in LAYERS if name not in ("resnet18", "densenet121")]


def on_networks(names: Iterable[str]) -> list[tuple[str, str]]:
    """All methods on rectified and on signed activations, and one on the other networks: it sees only two tensors."""
    return [*product(["resnet18", "densenet121"], names), *product(OTHERS, ["gradcam"])]


@pytest.mark.parametrize(("network_name", "name"), on_networks(IN_GRAD_CAM))
def test_raw_maps_equal_grad_cam(network_name: str, name: str) -> None:
    model, layer = network(network_name), layer_for(name, network_name)
    ours = METHODS[name](evidence(model, layer))
    assert difference(ours, of_grad_cam(IN_GRAD_CAM[name], model, layer)) < 1e-5


@pytest.mark.parametrize(("network_name", "name"), on_networks(IN_TORCHCAM))
def test_raw_maps_equal_torchcam(network_name: str, name: str) -> None:
    model, layer = network(network_name), layer_for(name, network_name)
    ours = METHODS[name](evidence(model, layer))
    assert difference(ours, of_torchcam(IN_TORCHCAM[name], model, layer)) < 1e-5


@pytest.mark.parametrize(
    ("network_name", "layer"), [("resnet18", "layer4"), ("mobilenet_v2", "features"), ("densenet121", "features")]
)
def test_cam_equals_torchcam(network_name: str, layer: str) -> None:
    model = network(network_name)
    with torchcam.CAM(model, layer) as peer:
        model(pictures_for(model))
        theirs = peer(class_idx=CLASS, normalized=False)[0]
    ours = METHODS["cam"](evidence(model, layer, lambda output: output[CLASS]))
    assert ours.amin() < 0
    assert difference(ours, theirs) < 1e-5


def test_both_reject_cam_of_vgg() -> None:
    model = network("vgg11")
    with pytest.raises(ValueError, match="does not support multiple fully connected layers"):
        torchcam.CAM(model, "features")
    with pytest.raises(camtool.MethodError, match="Use method='gradcam'"):
        camtool.explain(model, pictures_for(model), CLASS, method="cam", layer="features")


def rest(output_of_one_image: Tensor) -> Tensor:
    """ShapleyCAM's own target: the logit plus the log-probability, which curves behind any net."""
    return output_of_one_image[CLASS] + output_of_one_image.log_softmax(0)[CLASS]


@pytest.mark.parametrize(
    ("network_name", "layer"), [("resnet18", "layer3"), ("mobilenet_v2", "features"), ("small", "0")]
)
def test_shapleycam_equals_grad_cam_for_a_nonlinear_score(network_name: str, layer: str) -> None:
    model = small_net() if network_name == "small" else network(network_name)
    seen = evidence(model, layer, rest)
    assert seen.hessian_vector_product(seen.activations).any()
    assert difference(METHODS["shapleycam"](seen), of_grad_cam(grad_cam.ShapleyCAM, model, layer, rest)) < 1e-5


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_ablationcam_equals_grad_cam_after_a_relu(batch_size: int) -> None:
    model = small_net()
    theirs = of_grad_cam(partial(grad_cam.AblationCAM, batch_size=batch_size), model, "0", torch.max)
    assert difference(METHODS["ablationcam"](evidence(model, "0", torch.max)), theirs) < 1e-5


def test_scorecam_equals_both_if_no_mask_is_resized() -> None:
    model, target = small_net(), lambda output: 100 * output[CLASS]
    for module in model[0][0], model[0][2]:
        module.stride = (1, 1)
    ours = METHODS["scorecam"](evidence(model, "0", target))
    assert difference(ours, of_grad_cam(grad_cam.ScoreCAM, model, "0", target)) < 1e-5
    assert difference(ours, of_torchcam(torchcam.ScoreCAM, model, "0", target)) < 1e-5
