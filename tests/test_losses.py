"""Losses: literal values in float64, gradients of the parameters by finite differences, and what training needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import camtool
from camtool import losses
from camtool.errors import CamtoolError, TargetError
from tests.hooks.state.test_no_trace import unchanged


class Smooth(nn.Module):
    """A network whose second derivatives are not zero; its last layer has a grid of 8 x 8 for 16 x 16 pixels."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)
        self.last, self.head = nn.Conv2d(4, 5, 3, 1, 1), nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.last(torch.tanh(self.norm(self.first(x))))).mean((2, 3)) ** 2)


def build(classes: int = 3) -> Smooth:
    torch.manual_seed(4)
    return Smooth(classes).double().eval()


MAPS = torch.tensor([[[1.0, 3.0], [-2.0, 4.0]], [[0.0, 0.0], [-1.0, 0.0]], [[5.0, 0.0], [0.0, 5.0]]]).double()
MASKS = torch.tensor([[[1, 0], [1, 1]], [[1, 0], [0, 0]], [[0, 0], [0, 0]]], dtype=torch.bool)


def test_shares_of_the_heat_are_those_computed_by_hand() -> None:
    # The first map has 1 + 4 of 8 inside; the second has no heat; the third has no mask.
    assert losses.heat_outside(MAPS, MASKS).item() == pytest.approx((3 / 8 + 0) / 2)
    assert losses.heat_inside(MAPS, MASKS).item() == pytest.approx((5 / 8 + 0) / 2)
    soft = torch.tensor([[[0.5, 0.0], [1.0, 0.25]]]).double()
    assert losses.heat_inside(MAPS[:1], soft).item() == pytest.approx((0.5 + 1) / 8)
    assert losses.heat_outside(MAPS[:1], soft).item() == pytest.approx((0.5 + 3 + 3) / 8)


@pytest.mark.parametrize("loss", [losses.heat_outside, losses.heat_inside])
def test_images_without_a_mask_add_nothing(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    maps = torch.rand(4, 5, 6, dtype=torch.float64, requires_grad=True)
    masks = torch.rand(4, 5, 6) > 0.5
    masks[1] = masks[2] = False
    value = loss(maps, masks)
    (gradient,) = torch.autograd.grad(value, maps)
    assert value.item() == pytest.approx(loss(maps[::3], masks[::3]).item())
    assert gradient.flatten(1).any(1).tolist() == [True, False, False, True]
    none = loss(maps, torch.zeros_like(masks))
    none.backward()
    assert none.item() == 0
    assert not maps.grad.any()


@pytest.mark.parametrize("loss", [losses.heat_outside, losses.heat_inside])
def test_gradients_of_the_shares(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    maps = torch.randn(3, 4, 5, dtype=torch.float64)
    maps = maps.sign() * (maps.abs() + 0.1)  # away from the kink at 0
    assert torch.autograd.gradcheck(lambda x: loss(x, MASKS_OF_RANDOM), (maps.requires_grad_(),))


MASKS_OF_RANDOM = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(3)) > 0.4


def test_right_reasons_is_equation_1_for_a_linear_model() -> None:
    """``∂/∂x Σ_k log p_k = Σ_k W_k - K Σ_k p_k W_k`` for a softmax of ``W x``."""
    rng = np.random.default_rng(0)
    weights, x = rng.normal(size=(4, 12)), rng.normal(size=(3, 12))
    masks = rng.random((3, 2, 3)) > 0.5
    total = 0.0
    for image, mask in zip(x, masks, strict=True):
        exponentials = np.exp(weights @ image)
        probabilities = exponentials / exponentials.sum()
        gradient = weights.sum(0) - 4 * probabilities @ weights
        total += sum(
            (mask[row, column] * gradient[6 * channel + 3 * row + column]) ** 2
            for channel in range(2)
            for row in range(2)
            for column in range(3)
        )
    images = torch.from_numpy(x).reshape(3, 2, 2, 3).requires_grad_()
    outputs = images.flatten(1) @ torch.from_numpy(weights).T
    assert losses.right_reasons(outputs, images, torch.from_numpy(masks)).item() == pytest.approx(total / 3, rel=1e-12)


def test_right_reasons_takes_a_single_output_for_two_classes() -> None:
    """``∂/∂x (log σ(z) + log σ(-z)) = (1 - 2 σ(z)) w``."""
    w, images = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 0.25]).double().reshape(1, 1, 1, 2) * 3
    z = 3 * (0.5 - 0.5) + 1.0
    expected = (1 - 2 / (1 + math.exp(-z))) ** 2 * (-2.0) ** 2
    images.requires_grad_()
    for outputs in (images.flatten(1) @ w[:, None] + 1, images.flatten(1) @ w + 1):
        value = losses.right_reasons(outputs, images, torch.tensor([[[False, True]]]))
        assert value.item() == pytest.approx(expected, rel=1e-12)


def test_attention_mining_is_the_probability_without_the_heat() -> None:
    images, maps = torch.tensor([[2.0, -1.0], [0.5, 3.0]]).double(), torch.tensor([[0.9, 0.2], [0.5, 0.0]]).double()
    weights = [[1.0, 0.3], [-0.5, 0.8]]
    expected = 0.0
    for image, heat, chosen in zip(images.tolist(), maps.tolist(), [1, 0], strict=True):
        # Equations 3 and 4: T(A) = 1 / (1 + exp(-ω (A - σ))), I* = I - T(A) ⊙ I
        left = [x - x / (1 + math.exp(-7 * (a - 0.4))) for x, a in zip(image, heat, strict=True)]
        scores = [math.exp(w[0] * left[0] + w[1] * left[1]) for w in weights]
        expected += scores[chosen] / sum(scores) / 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)).double()
    model[1].weight.data = torch.tensor(weights).double()
    value = losses.attention_mining(
        model, images[:, None, None], torch.tensor([1, 0]), maps[:, None], threshold=0.4, scale=7
    )
    assert value.item() == pytest.approx(expected, rel=1e-12)


def compute_loss(net: Smooth, x: Tensor, kind: str) -> Tensor:
    """Return one of the losses on a network, with a graph to its parameters."""
    masks = torch.zeros(2, 16, 16, dtype=torch.bool)
    masks[:, 3:12, 2:9] = True
    classes = torch.tensor([2, 0])
    if kind == "right_reasons":
        images = x.detach().requires_grad_()
        return losses.right_reasons(net(images), images, masks)
    maps = camtool.Explainer(net, kind.partition(" ")[2], "last").compute_maps(x, classes, differentiable=True)
    if kind.startswith("attention_mining"):
        return losses.attention_mining(net, x, classes, torch.tanh(interpolate(maps[:, None], scale_factor=2))[:, 0])
    return losses.heat_inside(maps, masks[:, ::2, ::2])


@pytest.mark.parametrize(
    "kind", ["heat_inside gradcam", "heat_inside hirescam", "right_reasons", "attention_mining gradcam"]
)
def test_gradients_of_the_parameters_are_finite_differences(kind: str) -> None:
    """The second derivatives through the weights of Grad-CAM, and through the input gradients."""
    net, x, step = build(), torch.randn(2, 3, 16, 16, dtype=torch.float64), 1e-6
    parameters = [net.first.weight, net.norm.weight, net.last.bias, net.head.weight]
    gradients = torch.autograd.grad(compute_loss(net, x, kind), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn_like(parameter)
        values = []
        for sign in (step, -step):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign)
            values.append(compute_loss(net, x, kind).item())
            with torch.no_grad():
                parameter.sub_(direction, alpha=sign)
        expected = (gradient * direction).sum().item()
        assert expected != 0
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=1e-4, abs=1e-8)


def add_up_losses(model: nn.Module, x: Tensor, classes: Tensor, masks: Tensor) -> Tensor:
    """Return all losses of a training step; ``model`` may be wrapped."""
    images = x.clone().requires_grad_()
    outputs = model(images)
    maps = camtool.Explainer(model, "gradcam").compute_maps(x, classes, resize=True, differentiable=True)
    return (
        cross_entropy(outputs.float(), classes)
        + losses.heat_outside(maps, masks)
        + losses.heat_inside(maps, ~masks)
        + losses.right_reasons(outputs, images, masks)
        + losses.attention_mining(model, x, classes, maps)
    )


@pytest.fixture
def step() -> tuple[Smooth, Tensor, Tensor, Tensor]:
    masks = torch.zeros(4, 16, 16, dtype=torch.bool)
    masks[:3, 4:9, 5:16] = True
    return build().float(), torch.randn(4, 3, 16, 16), torch.tensor([2, 0, 1, 1]), masks


def test_a_training_step_changes_gradients_alone(step: tuple[Smooth, Tensor, Tensor, Tensor]) -> None:
    net, *batch = step
    with unchanged(net):
        value = add_up_losses(net, *batch)
        torch.autograd.grad(value, [*net.parameters()])
    net.train()
    batches_before = int(net.norm.num_batches_tracked)
    add_up_losses(net, *batch).backward()
    assert net.training
    assert int(net.norm.num_batches_tracked) == batches_before + 2  # the forward pass, and that without the heat
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in net.parameters())


def test_autocast_changes_the_losses_by_rounding(step: tuple[Smooth, Tensor, Tensor, Tensor]) -> None:
    net, *batch = step
    expected = add_up_losses(net, *batch)
    expected_gradient = torch.autograd.grad(expected, net.last.weight)[0]
    with torch.autocast("cpu", torch.bfloat16):
        value = add_up_losses(net, *batch)
    gradient = torch.autograd.grad(value, net.last.weight)[0]
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=0.05)
    assert torch.cosine_similarity(gradient.flatten(), expected_gradient.flatten(), 0) > 0.9


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A process group of one, which DistributedDataParallel needs."""
    method = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_distributed_model_gets_the_same_gradients(
    step: tuple[Smooth, Tensor, Tensor, Tensor], process_group: None
) -> None:
    net, *batch = step
    expected = torch.autograd.grad(add_up_losses(net, *batch), [*net.parameters()])
    add_up_losses(nn.parallel.DistributedDataParallel(net), *batch).backward()
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_what_does_not_fit_is_named() -> None:
    maps, images = torch.rand(2, 4, 4), torch.rand(2, 3, 4, 4)
    masks, linear = torch.ones(2, 4, 4, dtype=torch.bool), nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    for call, message in [
        (lambda: losses.heat_inside(maps, masks[:, :2]), r"masks must have one mask for each image, \(2, 4, 4\), got"),
        (lambda: losses.heat_outside(maps, masks[:, None]), r"got \(2, 1, 4, 4\); compute_maps\(..., resize=True\)"),
        (lambda: losses.heat_outside(maps, 255 * masks), r"masks must be a boolean tensor.*got torch.int64"),
        (lambda: losses.heat_inside(maps, [None, None]), "masks must be a boolean tensor.*got list"),
        (lambda: losses.right_reasons(linear(images), images, masks), "images must require a gradient"),
        (lambda: losses.attention_mining(linear, images, torch.tensor([0, 1]), maps[:, :2]), "maps must be .*resize"),
        (lambda: losses.attention_mining(linear, images, torch.tensor([0, 1]), maps, threshold=2), "threshold must"),
        (lambda: losses.attention_mining(linear, images, torch.tensor([0, 1]), maps, scale=0), "scale must"),
    ]:
        with pytest.raises(CamtoolError, match=message):
            call()
    with pytest.raises(TargetError, match="classes must hold one class for each of the 2 images"):
        losses.attention_mining(linear, images, torch.tensor([0]), maps)


def test_the_heat_in_a_mask_is_that_of_the_explanations(mobilenet: Any, shared: Path) -> None:
    photos = sorted((shared / "images").glob("*.jpg"))[:3]
    batch = torch.stack([mobilenet.transform(Image.open(photo).convert("RGB")) for photo in photos])
    mask = np.zeros((224, 224), bool)
    mask[40:150, 60:200] = True
    maps = camtool.Explainer(mobilenet).compute_maps(batch, resize=True)
    expected = np.mean([result.heat_in(mask) for result in camtool.explain(mobilenet, batch)])
    masks = torch.from_numpy(mask).expand(3, -1, -1)
    assert losses.heat_inside(maps, masks).item() == pytest.approx(expected, abs=1e-4)
    assert losses.heat_outside(maps, masks).item() == pytest.approx(1 - expected, abs=1e-4)
