"""Differences from grad-cam and torchcam: each test reproduces their numbers by one difference.

``tests/helpers/peer_differences.py`` lists the differences, and each entry names its test. The tests compute a
library's result from camtool's evidence, so the list stays correct.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.concept_maps.factorization import factorize
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import run_forward, run_tail
from camtool.maps import resize_to_grid, scale_min_max
from camtool.methods import METHODS, WRAPPERS, Method, find_method
from camtool.methods.families.activation import compute_first_component
from camtool.methods.families.input_gradient import compute_full_gradients
from camtool.methods.merges import ScaledMax, merge_maps
from camtool.targets import ClassScore, Finer, resolve_targets
from tests.helpers.nets import Apply
from tests.helpers.peer_differences import PEER_DIFFERENCES
from tests.helpers.peers import (
    CLASS,
    LAYERS,
    about,
    difference,
    evidence,
    grad_cam,
    heatmaps_of_grad_cam,
    network,
    of_grad_cam,
    of_torchcam,
    pictures_for,
    raw_of_grad_cam,
    scaled_logit,
    small_net,
    torchcam,
    torchvision,
)


def test_each_difference_has_a_test() -> None:
    assert {each.test for each in PEER_DIFFERENCES} <= set(globals())


def sum_weighted_channels(weights: Tensor, A: Tensor) -> Tensor:
    return (weights[:, :, None, None] * A).sum(1).relu()


def scaled(maps: Tensor) -> Tensor:
    """As grad-cam scales and resizes the maps of a layer."""
    return resize_to_grid(scale_min_max(maps.relu()), (96, 96))


def with_the_sign_of(ours: Tensor, theirs: Tensor) -> Tensor:
    """Their maps, each turned over where it goes against ours."""
    return theirs * (ours * theirs).sum((1, 2), keepdim=True).sign()


def test_heatmap_equals_grad_cam() -> None:
    """Rectified, resized and scaled: OpenCV's and torch's bilinear resizing are one."""
    model = network("resnet18")
    with grad_cam.GradCAM(model, [model.layer4]) as peer:
        theirs = peer(pictures_for(model), [scaled_logit] * 2)
    model.zero_grad(set_to_none=True)
    ours = camtool.explain(model, pictures_for(model), scaled_logit, layer="layer4", placement="stretch")
    for result, heatmap in zip(ours, theirs, strict=True):
        assert result.heatmap == pytest.approx(heatmap, abs=1e-5)


def test_grad_cams_constant_dominates_gradcam_plus_plus_for_small_gradients() -> None:
    model = network("resnet18")
    small = evidence(model, "layer4", lambda output: 1e-2 * output.max())
    theirs = of_grad_cam(grad_cam.GradCAMPlusPlus, model, "layer4", lambda output: 1e-2 * output.max())
    A, g = small.activations, small.gradients
    alpha = g**2 / (2 * g**2 + g**3 * A.sum((2, 3), keepdim=True) + 1e-6)
    assert difference(sum_weighted_channels((alpha * g.relu()).sum((2, 3)), A), theirs) < 1e-5
    assert difference(METHODS["gradcam++"](small), theirs) > 0.1


def test_grad_cams_gradcam_plus_plus_weighs_by_negative_activations() -> None:
    model, layer = network("densenet121"), "features.denseblock4"
    seen = evidence(model, layer)
    theirs = of_grad_cam(grad_cam.GradCAMPlusPlus, model, layer)
    A, g = seen.activations, seen.gradients
    alpha = g**2 / (2 * g**2 + g**3 * A.sum((2, 3), keepdim=True) + 1e-6)
    assert (alpha[g > 0] < 0).any()
    assert difference(sum_weighted_channels((alpha * g.relu()).sum((2, 3)), A), theirs) < 1e-3
    assert difference(theirs, METHODS["gradcam++"](seen)) > 0.1


def test_torchcams_gradcam_plus_plus_sums_cubes() -> None:
    model = network("resnet18")
    seen = evidence(model, "layer4")
    theirs = of_torchcam(torchcam.GradCAMpp, model, "layer4")
    assert difference(sum_weighted_channels(seen.gradients.relu().pow(3).sum((2, 3)), seen.activations), theirs) < 1e-5
    assert difference(METHODS["gradcam++"](seen), theirs) > 0.1


@pytest.mark.parametrize(
    ("of_peer", "kind", "constant"),
    [(of_grad_cam, grad_cam.XGradCAM, 1e-7), (of_torchcam, torchcam.XGradCAM, 1e-8)],
)
def test_constants_of_both_dominate_xgradcam_for_small_channel_sums(
    of_peer: Callable[..., Tensor], kind: type, constant: float
) -> None:
    # In float64, as otherwise rounding shows there just as much.
    model, layer = copy.deepcopy(network("densenet121")).double(), LAYERS["densenet121"]
    seen, theirs = evidence(model, layer), of_peer(kind, model, layer)
    A, g = seen.activations, seen.gradients
    with_constant = sum_weighted_channels((g * A).sum((2, 3)) / (A.sum((2, 3)) + constant), A)
    assert difference(with_constant, theirs) < 1e-12
    assert difference(METHODS["xgradcam"](seen), theirs) > 1e-6


def test_in_place_relu_after_the_layer_overwrites_the_stored_activations() -> None:
    model, layer = network("densenet121"), "features"
    seen = evidence(model, layer)
    A, g = seen.activations, seen.gradients
    top = model(pictures_for(model)).argmax(1)
    at_relu = 1e4 * model.classifier.weight[top].detach() / A[0, 0].numel()  # the same at every position
    theirs = of_grad_cam(grad_cam.GradCAM, model, layer)
    assert difference(sum_weighted_channels(g.mean((2, 3)), A.relu()), theirs) < 1e-5
    assert difference(METHODS["gradcam"](seen), theirs) > 0.1
    theirs = of_torchcam(torchcam.GradCAM, model, layer)
    assert difference(sum_weighted_channels(at_relu, A.relu()), theirs) < 1e-5
    assert difference(METHODS["gradcam"](seen), theirs) > 0.1


def test_torchcam_computes_cam_for_a_head_without_mean_pooling() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()
    with torchcam.CAM(model, "0") as peer:
        model(pictures_for(model))
        assert peer(class_idx=CLASS)[0].any()
    with pytest.raises(camtool.MethodError, match="global average pooling"):
        camtool.explain(model, pictures_for(model), CLASS, method="cam", layer="0")


# ---------------------------------------------------------------------------------------------- eigenvectors, FEM


def centered(features: Tensor) -> Tensor:
    return features - features.mean((2, 3), keepdim=True)


OF_EIGEN: dict[str, tuple[type, Callable[[Evidence], Tensor], bool]] = {
    "eigencam": (grad_cam.EigenCAM, lambda seen: seen.activations, False),
    "eigengradcam": (grad_cam.EigenGradCAM, lambda seen: seen.gradients * seen.activations, False),
    "eigen:gradcam": (grad_cam.GradCAM, lambda seen: seen.gradients.mean((2, 3), True) * seen.activations, True),
}


@pytest.mark.parametrize("name", OF_EIGEN)
def test_grad_cam_centers_the_features_of_eigen_methods(name: str) -> None:
    kind, features, smooth = OF_EIGEN[name]
    model = small_net()
    seen = evidence(model, "0")
    theirs = raw_of_grad_cam(kind, model, "0", eigen_smooth=smooth)
    emulated = compute_first_component(centered(features(seen)))
    assert difference(emulated, with_the_sign_of(emulated, theirs)) < 1e-5
    ours = find_method(name)(seen)
    assert difference(ours, with_the_sign_of(ours, theirs).relu()) > 0.1


def along_energy(maps: Tensor, A: Tensor) -> Tensor:
    return (maps * A.square().sum(1)).sum((1, 2))


def test_grad_cams_eigen_maps_have_an_arbitrary_sign() -> None:
    from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection

    A = torch.randn(50, 8, 5, 5).relu()
    theirs = torch.from_numpy(get_2d_projection(A.numpy()))
    turned = along_energy(theirs, A) < 0
    assert 5 < turned.sum() < 45
    assert (along_energy(METHODS["eigencam"](SimpleNamespace(activations=A)), A) > 0).all()


def test_grad_cam_centers_seg_eigen_cam() -> None:
    model = small_net()
    seen = evidence(model, "0")
    theirs = raw_of_grad_cam(grad_cam.SegEigenCAM, model, "0")
    component = compute_first_component(centered(seen.gradients.abs() * seen.activations))
    turned = -component.amin((1, 2), keepdim=True) > component.amax((1, 2), keepdim=True)
    assert difference(torch.where(turned, -component, component), theirs) < 1e-5
    assert difference(METHODS["segeigencam"](seen), theirs.relu()) > 0.1


@pytest.mark.parametrize("kernel", ["sigmoid", "rbf", "cosine"])
def test_kpca_cam_is_equal_up_to_its_sign(kernel: str) -> None:
    model = small_net()
    ours = METHODS["kpcacam"](evidence(model, "0"), kernel=kernel)
    theirs = raw_of_grad_cam(partial(grad_cam.KPCA_CAM, kernel=kernel), model, "0")
    assert difference(ours, with_the_sign_of(ours, theirs)) < 1e-5


def test_grad_cams_kpca_cam_makes_its_largest_value_positive() -> None:
    from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection_kernel

    A = torch.randn(50, 8, 5, 5).relu()
    theirs = torch.from_numpy(get_2d_projection_kernel(A.numpy()))
    assert (theirs.amax((1, 2)) > -theirs.amin((1, 2))).all()
    assert 0 < (along_energy(theirs, A) < 0).sum() < 50
    assert (along_energy(METHODS["kpcacam"](SimpleNamespace(activations=A)), A) > 0).all()


def test_grad_cams_fem_weighs_by_the_fraction_of_strong_positions() -> None:
    model = small_net()
    seen = evidence(model, "0")
    A, theirs = seen.activations, of_grad_cam(grad_cam.FEM, model, "0")
    deviation, mean = torch.std_mean(A, (2, 3), correction=0, keepdim=True)
    part = (mean + 2 * deviation < A).to(A).mean((2, 3))
    assert difference(sum_weighted_channels(part, A), theirs) < 1e-5
    ours = METHODS["fem"](seen)
    assert difference(scale_min_max(ours), scale_min_max(theirs)) > 0.1


def test_grad_cams_random_weights_come_from_numpy() -> None:
    model = small_net()
    np.random.seed(3)  # noqa: NPY002
    theirs, again = (of_grad_cam(grad_cam.RandomCAM, model, "0") for _ in range(2))
    np.random.seed(3)  # noqa: NPY002
    weights = torch.from_numpy(np.random.uniform(-1, 1, (2, 8)))  # noqa: NPY002
    ours = [METHODS["random"](evidence(model, "0")) for _ in range(2)]
    assert difference(sum_weighted_channels(weights, evidence(model, "0").activations), theirs) < 1e-5
    assert difference(theirs, again) > 0.1
    assert difference(*ours) == 0


# ----------------------------------------------------------------------------------------------- masked pictures


def pairs(seen: Evidence) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    """For each row its number, and its activations ``(C, h, w)`` and its picture."""
    return list(enumerate(zip(seen.activations, seen.inputs, strict=True)))


def test_grad_cam_aligns_the_corners_of_score_cam_masks() -> None:
    model, target = small_net(), lambda output: 100 * output[CLASS]
    seen = evidence(model, "0", target)
    theirs = of_grad_cam(grad_cam.ScoreCAM, model, "0", target)
    up = nn.UpsamplingBilinear2d((96, 96))  # aligns corners
    rows = [run_forward(seen, scale_min_max(up(A[:, None])[:, 0])[:, None] * x, row) for row, (A, x) in pairs(seen)]
    assert difference(sum_weighted_channels(torch.stack(rows).softmax(1), seen.activations), theirs) < 1e-5
    assert difference(METHODS["scorecam"](seen), theirs) > 1e-3


def test_torchcam_scales_score_cam_masks_before_resizing() -> None:
    model, target = small_net(), lambda output: 100 * output[CLASS]
    seen = evidence(model, "0", target)
    theirs = of_torchcam(torchcam.ScoreCAM, model, "0", target)
    assert difference(METHODS["scorecam"](seen, scale_first=True), theirs) < 1e-5
    assert difference(METHODS["scorecam"](seen), theirs) > 1e-3


def test_torchcams_sscam_adds_noise_to_scaled_masks() -> None:
    model, target = small_net(), lambda output: 10 * output[CLASS]
    seen = evidence(model, "0", target)
    torch.manual_seed(5)
    theirs = of_torchcam(partial(torchcam.SSCAM, num_samples=3), model, "0", target)
    torch.manual_seed(5)
    noise = torch.stack([torch.distributions.Normal(0, 2).sample((2, 8, 96, 96)) for _ in range(3)])

    def scores(row: int, A: Tensor, x: Tensor) -> Tensor:
        masks = resize_to_grid(scale_min_max(A), (96, 96))
        return torch.stack([run_forward(seen, (masks + each[row])[:, None] * x, row) for each in noise]).mean(0)

    weights = torch.stack([scores(row, A, x) for row, (A, x) in pairs(seen)]).softmax(1)
    assert difference(sum_weighted_channels(weights, seen.activations), theirs) < 1e-5
    assert difference(METHODS["sscam"](seen, samples=3), theirs) > 0.01


def test_torchcams_iscam_sums_its_steps() -> None:
    model, target = small_net(), lambda output: 10 * output[CLASS]
    seen = evidence(model, "0", target)
    theirs = of_torchcam(torchcam.ISCAM, model, "0", target)
    brightness = torch.arange(1, 11).cumsum(0) / 10
    assert brightness[-1] == 5.5

    def scores(row: int, A: Tensor, x: Tensor) -> Tensor:
        shown = resize_to_grid(scale_min_max(A), (96, 96))[:, None] * x
        return torch.stack([run_forward(seen, factor * shown, row) for factor in brightness]).mean(0)

    weights = torch.stack([scores(row, A, x) for row, (A, x) in pairs(seen)]).softmax(1)
    assert difference(sum_weighted_channels(weights, seen.activations), theirs) < 1e-5
    assert difference(METHODS["iscam"](seen), theirs) > 0.01


# ----------------------------------------------------------------------------------------------------- ablations


def test_grad_cams_ablation_depends_on_the_batch_size() -> None:
    model = small_net(nn.GELU).double()
    model[2] = nn.ReLU()  # a tail that does not saturate
    seen = evidence(model, "0", torch.max)
    A, y = seen.activations, seen.scores

    def emulated(batch_size: int) -> Tensor:
        weights = torch.empty(2, 8).to(A)
        for row, k in product(range(2), range(8)):
            variant = A[row].clone()
            variant[k] = A[row].min() - 1e7 * (k % batch_size + 1)
            weights[row, k] = (y[row] - run_tail(seen, variant[None], row)[0]) / y[row]
        return sum_weighted_channels(weights, A)

    theirs = {
        size: of_grad_cam(partial(grad_cam.AblationCAM, batch_size=size), model, "0", torch.max) for size in (1, 4)
    }
    for size in theirs:
        assert difference(emulated(size), theirs[size]) < 1e-5
        assert difference(METHODS["ablationcam"](seen), theirs[size]) > 0.1
    assert difference(theirs[1], theirs[4]) > 0.01


def test_grad_cams_ablation_of_a_negative_score_is_inverted() -> None:
    model = small_net()
    seen = evidence(model, "0", torch.min)
    assert (seen.scores < 0).all()
    weights = METHODS["ablationcam"].weight_function(seen)[:, :, 0, 0]
    theirs = of_grad_cam(grad_cam.AblationCAM, model, "0", torch.min)
    assert difference(sum_weighted_channels(-weights, seen.activations), theirs) < 1e-5
    assert difference(METHODS["ablationcam"](seen), theirs) > 0.1


# ------------------------------------------------------------------------------------------------------- FullGrad


def biased_net(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(6, 8, 3, padding=1, bias=False), norm(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6)),
    )
    for tensor in (*model[3].parameters(), *model[3].buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return model.eval()


def as_grad_cam(terms: Sequence[Tensor]) -> Tensor:
    """Return FullGrad's map of terms ``(R, C, h, w)`` with each channel scaled separately."""
    return scale_min_max(
        sum(
            resize_to_grid(scale_min_max(t.abs().flatten(0, 1)), (96, 96)).unflatten(0, t.shape[:2]).sum(1)
            for t in terms
        )
    )


def test_grad_cams_fullgrad_scales_each_channel_separately() -> None:
    model = biased_net(nn.BatchNorm2d)
    theirs = heatmaps_of_grad_cam(grad_cam.FullGrad, model, [])
    seen = evidence(model, "1")
    pixels, biases = compute_full_gradients(seen)
    assert difference(as_grad_cam([pixels, *(term for term in biases if term.ndim == 4)]), theirs) < 1e-5
    assert difference(scale_min_max(METHODS["fullgrad"](seen)), theirs) > 0.1


class OwnNorm(nn.BatchNorm2d):
    """Batch norm of a user's own class."""


@pytest.mark.parametrize("norm", [partial(nn.GroupNorm, 2), OwnNorm])
def test_grad_cams_fullgrad_leaves_out_other_norms(norm: Callable[[int], nn.Module]) -> None:
    model = biased_net(norm)
    theirs = heatmaps_of_grad_cam(grad_cam.FullGrad, model, [])
    pixels, (of_convolution, of_norm, _) = compute_full_gradients(evidence(model, "1"))
    assert difference(as_grad_cam([pixels, of_convolution]), theirs) < 1e-5
    assert difference(as_grad_cam([pixels, of_convolution, of_norm]), theirs) > 0.1


# -------------------------------------------------------------------------------------------------- finer classes


def test_grad_cams_finer_cam_has_gradients_through_the_rival_weights() -> None:
    model = small_net()
    model[-1].weight.data *= 10
    top = model(pictures_for(model)).argmax(1).tolist()

    def score(output: Tensor, *, flows: bool) -> Tensor:
        nearest = (output - output.max()).abs().argsort()
        best, rivals = nearest[0], nearest[1:4]
        shares = output.softmax(0)[rivals]
        shares = shares if flows else shares.detach()
        return (shares * (output[best] - output[rivals])).sum() / shares.sum()

    theirs = of_grad_cam(grad_cam.FinerCAM, model, "0", None)
    ours = METHODS["gradcam"](about(model, "0", [Finer(index) for index in top]))
    assert difference(METHODS["gradcam"](evidence(model, "0", partial(score, flows=True))), theirs) < 1e-5
    assert difference(METHODS["gradcam"](evidence(model, "0", partial(score, flows=False))), ours) < 1e-5
    assert difference(ours, theirs) > 0.01


def test_torchcams_finer_cam_is_equal_with_options() -> None:
    model = small_net()
    theirs = of_torchcam(torchcam.FinerCAM, model, "0", class_idx=CLASS)
    same, usual = Finer(CLASS, weight=0.6, weighting="mean"), Finer(CLASS)
    assert difference(METHODS["gradcam"](about(model, "0", [same] * 2)), theirs) < 1e-5
    assert difference(METHODS["gradcam"](about(model, "0", [usual] * 2)), theirs) > 0.1


def test_both_choose_finer_cam_rivals_by_nearest_logits() -> None:
    model, target = small_net(), Finer(CLASS, rivals=2, weight=0.6, weighting="mean")
    theirs = of_torchcam(partial(torchcam.FinerCAM, num_references=2), model, "0", class_idx=CLASS)
    seen = about(model, "0", [target] * 2)
    by_logits = [resolve_targets(target, answer, None)[0] for answer in seen.logits]
    by_weights = [
        resolve_targets(target, answer, None, find_class_vectors=lambda: model[-1].weight)[0] for answer in seen.logits
    ]
    assert difference(METHODS["gradcam"](about(model, "0", by_logits)), theirs) < 1e-5
    assert difference(METHODS["gradcam"](about(model, "0", by_weights)), theirs) > 0.1


# ------------------------------------------------------------------------------------------------ several layers

SHALLOW_TO_DEEP = ["layer2", "layer3", "layer4"]


def by_layer(name: str, model: nn.Module, layers: Sequence[str]) -> list[Tensor]:
    return [METHODS[name](evidence(model, layer)) for layer in layers]


def test_grad_cam_averages_layers_at_the_images_size() -> None:
    model = network("resnet18")
    maps = by_layer("gradcam", model, SHALLOW_TO_DEEP)
    theirs = heatmaps_of_grad_cam(grad_cam.GradCAM, model, SHALLOW_TO_DEEP)
    assert difference(scale_min_max(torch.stack([scaled(each) for each in maps]).mean(0)), theirs) < 1e-5
    assert difference(scale_min_max(resize_to_grid(merge_maps(maps, "mean"), (96, 96))), theirs) > 1e-3


def test_grad_cams_refine_cam_multiplies_at_the_images_size() -> None:
    model = network("resnet18")
    maps = by_layer("gradcam++", model, SHALLOW_TO_DEEP)
    theirs = heatmaps_of_grad_cam(grad_cam.RefineCAM, model, SHALLOW_TO_DEEP)
    assert difference(scale_min_max(torch.stack([scale_min_max(scaled(each)) for each in maps]).prod(0)), theirs) < 1e-5
    assert difference(scale_min_max(resize_to_grid(merge_maps(maps, "refinecam"), (96, 96))), theirs) > 1e-3


def test_grad_cams_refine_cam_swaps_the_smoothing_options() -> None:
    model, layers = small_net(), ["0.1", "0"]
    theirs = heatmaps_of_grad_cam(grad_cam.RefineCAM, model, layers, eigen_smooth=True)
    single = partial(heatmaps_of_grad_cam, grad_cam.GradCAMPlusPlus, model)
    augmented, asked = (
        scale_min_max(torch.stack([single([layer], **smoothing) for layer in layers]).prod(0))
        for smoothing in ({"aug_smooth": True}, {"eigen_smooth": True})
    )
    assert difference(augmented, theirs) < 1e-5
    assert difference(asked, theirs) > 0.1


def maps_of_torchcam(kind: type, model: nn.Module, layers: list[str]) -> Tensor:
    """Its maps of several layers, as one."""
    with kind(model, layers) as peer:
        maps = peer(scores=model(pictures_for(model)), targets=scaled_logit)
        return maps[0] if len(maps) == 1 else peer.fuse_cams(maps)


def test_merge_max_equals_torchcam_if_maps_reach_zero() -> None:
    model = network("resnet18")
    maps = by_layer("gradcam", model, SHALLOW_TO_DEEP)
    assert not any(each.amin((1, 2)).any() for each in maps)
    assert difference(merge_maps(maps, "max"), maps_of_torchcam(torchcam.GradCAM, model, SHALLOW_TO_DEEP)) < 1e-5


def test_torchcam_shifts_maps_to_zero_before_the_maximum() -> None:
    model, layers = small_net(nn.Softplus), ["0.1", "0"]
    for module in model[0][2], model[1], model[-1]:
        module.weight.data.abs_()
    maps = by_layer("gradcam", model, layers)
    assert (maps[1] > 0).all()
    theirs = maps_of_torchcam(torchcam.GradCAM, model, layers)
    finest = maps[0].shape[1:]
    assert (
        difference(torch.stack([resize_to_grid(scale_min_max(each), finest) for each in maps]).amax(0), theirs) < 1e-5
    )
    assert difference(merge_maps(maps, "max"), theirs) > 0.1


def test_torchcam_also_raises_the_deepest_layer() -> None:
    model = network("resnet18")
    maps = by_layer("layercam", model, SHALLOW_TO_DEEP)
    theirs = maps_of_torchcam(torchcam.LayerCAM, model, SHALLOW_TO_DEEP)
    finest = maps[0].shape[1:]
    raised = torch.stack([resize_to_grid((2 * scale_min_max(each)).tanh(), finest) for each in maps])
    assert difference(raised.amax(0), theirs) < 1e-5
    assert difference(merge_maps(maps, "layercam"), theirs) > 0.01
    assert difference(merge_maps(maps, ScaledMax(deep=0)), theirs) > 1e-3  # what is left is the order


def test_torchcams_refine_cam_uses_its_own_gradcam_plus_plus() -> None:
    model = network("resnet18")
    seen = [evidence(model, layer) for layer in SHALLOW_TO_DEEP]
    cubes = [sum_weighted_channels(each.gradients.relu().pow(3).sum((2, 3)), each.activations) for each in seen]
    theirs = maps_of_torchcam(torchcam.RefineCAM, model, SHALLOW_TO_DEEP)
    assert difference(scale_min_max(merge_maps(cubes, "refinecam")), theirs) < 1e-5
    assert (
        difference(scale_min_max(merge_maps([METHODS["gradcam++"](each) for each in seen], "refinecam")), theirs) > 0.1
    )


# ------------------------------------------------------------------------------------------------- several pictures


def test_torchcams_smooth_gradcam_plus_plus_uses_the_last_noisy_image() -> None:
    model = small_net()
    seen = evidence(model, "0")
    torch.manual_seed(7)
    theirs = of_torchcam(torchcam.SmoothGradCAMpp, model, "0")
    torch.manual_seed(7)
    noisy = [seen.for_inputs(seen.inputs + torch.distributions.Normal(0, 0.3).sample((2, 3, 96, 96))) for _ in range(4)]
    D2, D3 = (torch.stack([each.gradients**power for each in noisy]).mean(0) for power in (2, 3))
    alpha = D2 / (2 * D2 + (D3 * seen.activations).sum((2, 3), keepdim=True) + 1e-8)
    last = noisy[-1]
    assert (
        difference(sum_weighted_channels((alpha * last.gradients.relu()).sum((2, 3)), last.activations), theirs) < 1e-5
    )
    assert difference(METHODS["smoothgradcam++"](seen), theirs) > 0.1


def test_grad_cams_sess_scales_twice_and_blurs() -> None:
    import cv2

    model = small_net()
    theirs = heatmaps_of_grad_cam(grad_cam.SESS, model, ["0"], target=lambda output: 1e4 * output[..., CLASS])
    seen = about(model, "0", [ClassScore(CLASS)] * 2)
    twice = Method("twice", lambda part: scaled(METHODS["gradcam"](part)))
    scales = [(96 + 27 * step) / 96 for step in range(12)]
    sess = WRAPPERS["sess"].function
    blurred = [cv2.GaussianBlur(each, (11, 11), 5.0, 0) for each in sess(seen, twice, sess_scales=scales).numpy()]
    assert difference(scale_min_max(torch.from_numpy(np.stack(blurred))), theirs) < 1e-5
    assert difference(scale_min_max(sess(seen, find_method("gradcam"), sess_scales=scales)), theirs) > 0.1


def test_grad_cams_aug_smooth_multiplies_normalized_values() -> None:
    model = small_net()
    seen = evidence(model, "0", black=torch.tensor([-2.1, -2.0, -1.8]))
    theirs = heatmaps_of_grad_cam(grad_cam.GradCAM, model, ["0"], aug_smooth=True)

    def look(factor: float, *, flipped: bool) -> Tensor:
        x = factor * (seen.inputs.flip(-1) if flipped else seen.inputs)
        heatmap = scale_min_max(scaled(METHODS["gradcam"](seen.for_inputs(x))))
        return heatmap.flip(-1) if flipped else heatmap

    looks = [look(factor, flipped=flipped) for factor, flipped in product((0.9, 1, 1.1), (False, True))]
    assert difference(torch.stack(looks).mean(0), theirs) < 1e-5
    assert (theirs.amax((1, 2)) < 0.99).any()
    assert (
        difference(scale_min_max(resize_to_grid(find_method("tta:gradcam")(seen), (96, 96))), scale_min_max(theirs))
        > 0.01
    )


# ------------------------------------------------------------------------------------------------ guided, concepts


def net_of_relus(relu: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    trunk = nn.Conv2d(3, 8, 3, stride=2, padding=1), relu(), nn.Conv2d(8, 8, 3, padding=1), relu()
    return nn.Sequential(*trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6)).eval()


def guided_by_grad_cam(model: nn.Module) -> Tensor:
    theirs = grad_cam.GuidedBackpropReLUModel(model)(pictures_for(model), CLASS)
    model.zero_grad(set_to_none=True)
    return torch.from_numpy(theirs)


def test_guided_backprop_is_equal_without_clipping() -> None:
    model = net_of_relus(nn.ReLU)
    theirs = guided_by_grad_cam(model)
    seen = evidence(model, "0", lambda output: output[CLASS])
    assert theirs.shape == (96, 96, 3)
    assert theirs.amin() < 0
    shown = theirs.abs().sum(2)[None]
    assert difference(METHODS["guided-backprop"](seen, cap=1)[:1], shown) < 1e-5
    assert difference(METHODS["guided-backprop"](seen)[:1], shown) > 0.01


def test_grad_cams_guided_backprop_replaces_the_models_relus() -> None:
    model = net_of_relus(partial(nn.ReLU, inplace=True))
    METHODS["guided-backprop"](evidence(model, "0"))
    assert model[1] is not model[3]
    guided_by_grad_cam(model)
    assert model[1] is model[3]
    assert not model[1].inplace

    functional = net_of_relus(partial(Apply, torch.relu))
    x = pictures_for(functional).requires_grad_()
    (plain,) = torch.autograd.grad(functional(x)[0, CLASS], x)
    theirs = guided_by_grad_cam(functional).movedim(2, 0)
    assert difference(plain[0], theirs) < 1e-5
    ours = METHODS["guided-backprop"](evidence(functional, "0", lambda output: output[CLASS]), cap=1)
    assert difference(ours[:1], theirs.abs().sum(0, keepdim=True)) > 0.1


@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
def test_grad_cams_factorization_shifts_channels_and_scales_each_image() -> None:
    from pytorch_grad_cam.feature_factorization.deep_feature_factorization import dff

    model = small_net()
    A = evidence(model, "0").activations
    shifted = A + torch.arange(1.0, 9.0)[:, None, None]
    theirs, of_shifted = (torch.from_numpy(dff(each.numpy().copy(), 3)[1]) for each in (A, shifted))
    assert difference(theirs[:, 0], of_shifted[:, 0]) < 1e-2
    ours, of_shifted = (factorize(each.movedim(1, -1).flatten(0, 2), 3)[0] for each in (A, shifted))
    assert (ours - of_shifted).abs().amax() > 0.1

    peer = grad_cam.DeepFeatureFactorization(model, model[0])
    _, processed = peer(pictures_for(model), 3)
    peer.activations_and_grads.release()
    assert difference(scaled(theirs.flatten(0, 1)), torch.from_numpy(np.stack(processed)).flatten(0, 1)) < 1e-5
    peaks = camtool.concepts(model, pictures_for(model), 3, layer="0").maps.max((2, 3))
    assert peaks.max(0) == pytest.approx(np.ones(3))
    assert peaks.min() < 0.99


class AveragesTokens(nn.Module):
    """torchvision's ViT, but for its pooling."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, x: Tensor) -> Tensor:
        patches = self.vit._process_input(x)
        tokens = torch.cat([self.vit.class_token.expand(len(x), -1, -1), patches], 1) + self.vit.encoder.pos_embedding
        return self.vit.heads(self.vit.encoder.ln(self.vit.encoder.layers(tokens).mean(1)))


def test_torchcams_legrad_averages_the_tokens() -> None:
    vit = torchvision.models.VisionTransformer(64, 16, 3, 2, 24, 32, num_classes=5).eval()
    vit.heads.head.weight.data.normal_()  # which torchvision sets to zero
    x, blocks = torch.randn(2, 3, 64, 64), list(vit.encoder.layers)

    def theirs(**how: Callable[[Tensor], Tensor]) -> Tensor:
        with torchcam.LeGrad(vit, blocks, **how) as peer:
            return peer(CLASS, scores=vit(x), normalized=False)[0]

    def ours(model: nn.Module) -> Tensor:
        return torch.stack([torch.from_numpy(each.raw) for each in camtool.explain(model, x, CLASS, method="legrad")])

    assert difference(ours(AveragesTokens(vit)), theirs()) < 1e-5
    assert difference(ours(vit), theirs(score_projection=lambda tokens: vit.heads(vit.encoder.ln(tokens)[:, 0]))) < 1e-5
    assert difference(ours(vit), theirs()) > 0.1
