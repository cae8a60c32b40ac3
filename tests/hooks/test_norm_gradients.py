"""Gradients of batch norms along axes of size one, which torch 2.14 computes wrongly where tokens lie around them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.hooks.model_passes import compute_row_gradients, differentiate
from camtool.hooks.norm_gradients import find_batch_norms, has_wrong_norm_gradients

LAYOUTS = {
    "images": lambda x: x.clone(memory_format=torch.contiguous_format),
    "tokens": lambda x: x.flatten(2).mT.contiguous().mT.unflatten(2, x.shape[2:]),
    "tokens first": lambda x: x.flatten(2).permute(2, 0, 1).contiguous().permute(1, 2, 0).unflatten(2, x.shape[2:]),
    "some channels": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "channels last": lambda x: x.transpose(1, -1).contiguous().transpose(1, -1),
}
"""Ways to lay the same values ``(N, C, *grid)`` into memory."""

SIZES = [(7, 6), (1, 6), (6, 1), (2, 5, 4), (1, 5, 4)]


def make_norm(axes: int) -> nn.Module:
    torch.manual_seed(0)
    norm = (nn.BatchNorm2d if axes == 2 else nn.BatchNorm3d)(5).double().eval()
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("inside", "outside"), [*product(LAYOUTS, LAYOUTS)])
def test_a_gradient_is_right_in_all_layouts(inside: str, outside: str, size: tuple[int, ...], count: int) -> None:
    norm = make_norm(len(size))
    image = LAYOUTS[inside](torch.randn(count, 5, *size).double()).requires_grad_()
    gradient = LAYOUTS[outside](torch.randn(count, 5, *size).double())
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()  # a batch norm in evaluation mode is affine
    expected = gradient * factor.detach().reshape(-1, *[1] * len(size))
    assert_close(differentiate(norm(image), image, gradient)[0], expected)


class Mixer(nn.Module):
    """A norm between tokens and images, as in XCiT and LeViT, and two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last, self.head = make_norm(2), nn.LayerNorm(5).double(), nn.Linear(5, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.last(self.norm(x).flatten(2).mT)
        return self.head((tokens * torch.linspace(-1, 1, tokens.shape[1], dtype=x.dtype)[:, None]).sum(1))


@pytest.mark.parametrize("rows", [1, 2], ids=["one class", "two classes"])
def test_rows_of_one_image_have_the_numeric_gradient(rows: int) -> None:
    model, image, step = Mixer(), torch.randn(1, 5, 4, 6).double(), torch.randn(1, 5, 4, 6).double()
    leaf = image.clone().requires_grad_()
    (gradients,) = compute_row_gradients(model(leaf)[0, :rows], [0] * rows, [leaf])
    with torch.no_grad():
        numeric = (model(image + 1e-5 * step) - model(image - 1e-5 * step))[0, :rows] / 2e-5
    assert_close((gradients * step).sum((1, 2, 3)), numeric, rtol=1e-6, atol=1e-7)


def test_a_second_derivative_passes_the_repair() -> None:
    model, leaf, step = Mixer(), torch.randn(1, 5, 4, 6).double().requires_grad_(), torch.randn(1, 5, 4, 6).double()
    (gradient,) = differentiate(model(leaf)[0, 0], leaf, create_graph=True)
    (product_of_hessian,) = differentiate(gradient, leaf, step)
    above, below = (
        differentiate(model(moved)[0, 0], moved)[0]
        for moved in ((leaf + sign * 1e-5 * step).detach().requires_grad_() for sign in (1, -1))
    )
    assert_close(product_of_hessian, (above - below) / 2e-5, rtol=1e-5, atol=1e-6)


def test_nothing_is_left_behind() -> None:
    norm, image = make_norm(2), torch.randn(1, 5, 4, 6).double().requires_grad_()
    output, gradient = norm(image), LAYOUTS["tokens"](torch.randn(1, 5, 4, 6).double())
    (before,) = torch.autograd.grad(output, image, gradient, retain_graph=True)
    differentiate(output, image, gradient, retain_graph=True)
    (after,) = torch.autograd.grad(output, image, gradient)
    assert torch.equal(before, after)
    assert not norm._forward_hooks
    assert not norm._backward_hooks


def test_only_a_torch_with_the_fault_is_searched() -> None:
    image = torch.randn(1, 5, 4, 6).double().requires_grad_()
    gradient = LAYOUTS["tokens"](torch.randn(1, 5, 4, 6).double())
    norm = make_norm(2)
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    (by_torch,) = torch.autograd.grad(norm(image), image, gradient)
    is_wrong = not torch.allclose(by_torch, gradient * factor.detach().reshape(-1, 1, 1))
    assert has_wrong_norm_gradients() == is_wrong
    assert bool(find_batch_norms([norm(image)])) == is_wrong
    assert find_batch_norms(nn.Conv2d(5, 2, 1).double()(image)) == []


@pytest.mark.parametrize("method", ["gradcam", "inputxgradient", "conservative:inputxgradient", "faithcam", "fullgrad"])
def test_a_photo_alone_has_the_map_that_it_has_beside_another(method: str) -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, 5, 4, stride=4), nn.ReLU(), nn.Conv2d(5, 5, 1)).double()
    model, batch = nn.Sequential(trunk, Mixer()).eval(), torch.rand(2, 3, 32, 32).double()
    alone, beside = (camtool.explain(model, images, 1, method=method)[0].raw for images in (batch[:1], batch))
    assert abs(beside).max() > 0
    assert_close(torch.from_numpy(alone), torch.from_numpy(beside), rtol=1e-4, atol=1e-6 * float(abs(beside).max()))
