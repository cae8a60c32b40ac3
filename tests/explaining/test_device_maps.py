"""Overlays of a batch on its device: the same as those of explanations, and nothing that waits for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import camtool
from camtool.demo.scenes import draw_scene
from camtool.errors import CamtoolError, ImageError, MethodError, OverlayError, TargetError
from camtool.rendering import blend
from camtool.rendering.colormaps import COLORMAPS
from camtool.rendering.overlay import blend_batch
from tests.hooks.state.test_no_trace import unchanged


class Net(nn.Module):
    """A small classifier."""

    def __init__(self, channels: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.stem(x)).mean((2, 3)))


def build(**options: int) -> nn.Module:
    torch.manual_seed(2)
    return Net(**options).eval()


def assert_similar(ours: Tensor, expected: list[np.ndarray]) -> None:
    for our, other in zip(ours, expected, strict=True):
        difference = np.abs(our.movedim(0, -1).numpy().astype(int) - other)
        assert difference.max() <= 2  # a heat on the edge of two colors
        assert (difference > 0).mean() < 0.02


@pytest.mark.parametrize("colormap", COLORMAPS)
@pytest.mark.parametrize("alpha", [None, 0.3])
def test_blend_batch_has_the_formula_of_blend(colormap: str, alpha: float | None) -> None:
    photos = torch.randint(0, 256, (3, 3, 9, 14), dtype=torch.uint8)
    heatmaps = torch.rand(3, 9, 14)
    heatmaps[1] = 0  # nothing to show
    expected = [
        blend(photo.movedim(0, -1).numpy(), heat.numpy(), alpha=alpha, colormap=colormap)
        for photo, heat in zip(photos, heatmaps, strict=True)
    ]
    assert_similar(blend_batch(photos, heatmaps, alpha=alpha, colormap=colormap), expected)


@pytest.mark.parametrize("method", ["gradcam", "gradcam++", "xgradcam", "hirescam", "layercam", "fem"])
@pytest.mark.parametrize("layer", [None, "stem", ["stem", "last"]])
def test_overlays_are_those_of_the_explanations(method: str, layer: Any) -> None:
    net, x = build(), torch.rand(5, 3, 32, 40)
    explainer = camtool.Explainer(net, method, layer)
    for classes in (None, 2, [0, 1, 2, 3, 0], torch.tensor([3, 2, 1, 0, 3])):
        with unchanged(net):
            drawn = explainer.draw_overlays(x, classes)
        assert drawn.shape == (5, 3, 32, 40)
        assert drawn.dtype == torch.uint8
        assert_similar(drawn, [each.overlay() for each in explainer(x, classes)])


@pytest.mark.parametrize("placement", ["centers", "stretch"])
def test_the_placement_is_that_of_the_explanations(placement: Any) -> None:
    net, x = build(), torch.rand(2, 3, 32, 32)
    explainer = camtool.Explainer(net, placement=placement)
    assert_similar(explainer.draw_overlays(x, 1), [each.overlay() for each in explainer(x, 1)])


def test_normalized_and_gray_images_are_shown_as_they_were(demo: camtool.Loaded) -> None:
    assert demo.transform is not None
    scenes = [draw_scene(seed) for seed in range(3)]
    batch = torch.stack([demo.transform(Image.fromarray(scene.image)) for scene in scenes])
    explainer = camtool.Explainer(demo)
    assert_similar(explainer.draw_overlays(batch), [each.overlay() for each in explainer(batch)])
    gray, x = camtool.Explainer(build(channels=1)), torch.rand(2, 1, 32, 32)
    assert_similar(gray.draw_overlays(x), [each.overlay() for each in gray(x)])


def test_a_single_output_stands_for_two_classes() -> None:
    explainer, x = camtool.Explainer(build(classes=1), "hirescam"), torch.rand(3, 3, 32, 32)
    for classes in (None, 0, 1):
        assert_similar(explainer.draw_overlays(x, classes), [each.overlay() for each in explainer(x, classes)])


class Watch(TorchDispatchMode):
    """Fails at operations that wait for the device, or whose result's size depends on values."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function)
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "aten.equal", "is_nonzero", "unique")
        assert not any(each in name for each in waits), name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("engine", ["eager", "prepared"])
@pytest.mark.parametrize("classes", [None, 1, torch.tensor([0, 1, 2])])
def test_nothing_waits_for_the_device(classes: Any, engine: Any) -> None:
    explainer = camtool.Explainer(build(), "layercam", ["stem", "last"], engine=engine)
    x = torch.rand(3, 3, 32, 32)
    explainer.draw_overlays(x, classes)  # chooses the layouts and the centers, and compares the engine
    with Watch():
        explainer.draw_overlays(x, classes)


class OnDevice(Tensor):
    """A tensor that numpy cannot read, as those on a GPU."""

    def __array__(self, *_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_a_class_that_does_not_exist_has_no_map(demo: camtool.Loaded) -> None:
    explainer, x = camtool.Explainer(demo), torch.rand(2, 3, 128, 128)
    for classes in (-2, [0, 99], [torch.tensor(0), torch.tensor(99).as_subclass(OnDevice)]):
        with pytest.raises(TargetError, match=r"target_class (-2|99) does not exist"):
            explainer.compute_maps(x, classes)
    maps = explainer.compute_maps(x, torch.tensor([-1, 99]))  # a tensor is not read
    assert maps.isnan().all((1, 2)).tolist() == [False, True]
    unknown = torch.tensor([-2, 99])
    assert torch.equal(explainer.draw_overlays(x, unknown), explainer.draw_overlays(x, unknown, alpha=0))


def test_errors_say_what_is_needed() -> None:
    net, x = build(), torch.rand(2, 3, 32, 32)
    with pytest.raises(MethodError, match="one method"):
        camtool.Explainer(net, ["gradcam", "layercam"]).draw_overlays(x)
    with pytest.raises(MethodError, match="one method that looks at a layer"):
        camtool.Explainer(net, "inputxgradient").draw_overlays(x)
    with pytest.raises(MethodError, match="'scorecam' cannot be computed on the device: the method reads"):
        camtool.Explainer(net, "scorecam").draw_overlays(x)
    with pytest.raises(TargetError, match=r"\(3,\) classes came for 2 images"):
        camtool.Explainer(net).draw_overlays(x, [0, 1, 2])
    for classes in (2.7, True, torch.tensor(2.7), [0, 2.5], [True, False], np.array([True, True]), torch.ones(2) * 1j):
        for draw in (camtool.Explainer(net).draw_overlays, camtool.Explainer(net).compute_maps):
            with pytest.raises(TargetError, match=r"target_class has the type torch.* integers"):
                draw(x, classes)
    for wrong in ("dog", [None, 1], [[0], [1, 2]], lambda output: output.max()):
        with pytest.raises(TargetError, match="maps on the device are of classes; pass indices"):
            camtool.Explainer(net).compute_maps(x, wrong)
    with pytest.raises(ImageError, match=r"N, C, H, W.*\(3, 32, 32\) came"):
        camtool.Explainer(net).draw_overlays(x[0])
    with pytest.raises(ImageError, match="gray or RGB"):
        camtool.Explainer(build(channels=2)).draw_overlays(torch.rand(2, 2, 32, 32))
    with pytest.raises(CamtoolError, match="for classifiers"):
        camtool.Explainer(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 1))).draw_overlays(x)
    with pytest.raises(OverlayError, match=r"N, 3, H, W"):
        blend_batch(x, torch.rand(2, 3, 3))
    with pytest.raises(OverlayError, match="alpha"):
        camtool.Explainer(net).draw_overlays(x, alpha=2)


def test_the_real_model(mobilenet: camtool.Loaded, shared: Path) -> None:
    assert mobilenet.transform is not None
    photos = sorted((shared / "images").glob("*.jpg"))[:4]
    batch = torch.stack([mobilenet.transform(Image.open(each).convert("RGB")) for each in photos])
    explainer = camtool.Explainer(mobilenet)
    assert_similar(explainer.draw_overlays(batch), [each.overlay() for each in explainer(batch)])


@pytest.mark.parametrize("method", ["gradcam", "gradcam++", "hirescam", "layercam", "fem"])
@pytest.mark.parametrize("layer", [None, ["stem", "last"]])
@pytest.mark.parametrize("differentiable", [False, True])
def test_maps_are_those_of_the_explanations(method: str, layer: Any, differentiable: bool) -> None:
    net, x = build(), torch.rand(3, 3, 32, 40)
    explainer = camtool.Explainer(net, method, layer)
    expected = explainer(x, [0, 1, 2])
    with unchanged(net):
        raw = explainer.compute_maps(x, [0, 1, 2], differentiable=differentiable)
        heatmaps = explainer.compute_maps(x, [0, 1, 2], resize=True, differentiable=differentiable)
    for ours, heat, result in zip(raw.detach(), heatmaps.detach(), expected, strict=True):
        torch.testing.assert_close(ours.float(), torch.from_numpy(result.raw), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(heat, torch.from_numpy(result.heatmap), rtol=1e-4, atol=1e-5)
    assert raw.requires_grad == differentiable


class Smooth(nn.Module):
    """A network whose second derivatives are not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 5, 3, 2, 1), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.last(torch.tanh(self.first(x)))).mean((2, 3)) ** 2)


def compute_loss(net: nn.Module, x: Tensor, method: str) -> Tensor:
    """Return a loss of the maps: the share of the heat in the left half of the grid."""
    maps = camtool.Explainer(net, method, "last").compute_maps(x, [2, 0], differentiable=True)
    return (maps[:, :, :2].sum((1, 2)) / maps.sum((1, 2)).clamp_min(1e-9)).sum()


@pytest.mark.parametrize("method", ["gradcam", "layercam"])
def test_gradients_of_a_loss_of_the_maps_are_its_slopes(method: str) -> None:
    torch.manual_seed(4)
    net, x = Smooth().double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    wanted = [net.first.weight, net.last.bias, net.head.weight, x]
    gradients = torch.autograd.grad(compute_loss(net, x, method), wanted)
    for tensor, gradient in zip(wanted, gradients, strict=True):
        place = int(gradient.abs().argmax())
        assert gradient.flatten()[place] != 0
        values, step = tensor.detach().clone().flatten(), 1e-6
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                moved = values.clone()
                moved[place] += sign * step
                tensor.copy_(moved.view_as(tensor))
            losses.append(compute_loss(net, x, method).item())
        with torch.no_grad():
            tensor.copy_(values.view_as(tensor))
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(gradient.flatten()[place].item(), rel=1e-4)


def test_a_loss_of_the_maps_trains_where_to_look() -> None:
    torch.manual_seed(0)
    net, x = build(), torch.rand(8, 3, 32, 32)
    explainer, optimizer = camtool.Explainer(net, "layercam", "last"), torch.optim.Adam(net.parameters(), 3e-3)
    shares = []
    for _ in range(30):
        maps = explainer.compute_maps(x, 1, differentiable=True)
        share = (maps[:, :, :4].sum((1, 2)) / maps.sum((1, 2)).clamp_min(1e-9)).mean()
        optimizer.zero_grad()
        (-share).backward()
        optimizer.step()
        shares.append(share.item())
    assert shares[-1] > shares[0] + 0.1


def test_maps_that_cannot_be_computed_on_the_device_are_refused() -> None:
    net, x = build(), torch.rand(2, 3, 16, 16)
    for options, message in (
        ({"method": "scorecam"}, "cannot be computed on the device"),
        ({"method": ["gradcam", "layercam"]}, "compute_maps takes one method"),
    ):
        with pytest.raises(MethodError, match=message):
            camtool.Explainer(net, **options).compute_maps(x)
