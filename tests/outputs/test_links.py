"""How scores become probabilities, read from their values and from the autograd graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from camtool.outputs.class_scores import FoundLink, infer_link

SMALL = torch.tensor([[0.25, 0.5, 0.125], [0.5, 0.75, 0.0]])
"""Numbers between 0 and 1, which do not sum to 1."""

PROBABILITIES, LOGITS, DOUBT = FoundLink("identity"), FoundLink("softmax"), FoundLink("softmax", is_assumed=True)


def multiply(x: Tensor) -> Tensor:
    return x @ torch.eye(3)


def add_planes(x: Tensor) -> Tensor:
    return x[..., None, None].expand(-1, -1, 2, 2)


def upsample(planes: Tensor) -> Tensor:
    return nn.functional.interpolate(planes, scale_factor=2, mode="bilinear")


class Opaque(torch.autograd.Function):
    """A sigmoid that the graph does not call a sigmoid."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.sigmoid()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


ENDS: dict[str, tuple[Callable[[Tensor], Tensor], FoundLink]] = {
    "linear": (multiply, LOGITS),
    "relu": (torch.relu, LOGITS),
    "means of logits": (lambda x: add_planes(multiply(x)).contiguous().relu().mean((2, 3)), LOGITS),
    "large logits": (lambda x: (10 * x).exp(), LOGITS),
    "sigmoid": (torch.sigmoid, PROBABILITIES),
    "hardsigmoid": (nn.functional.hardsigmoid, PROBABILITIES),
    "transposed sigmoids": (lambda x: x.T.sigmoid().T, PROBABILITIES),
    "means of sigmoids": (lambda x: add_planes(x).sigmoid().mean((2, 3)), PROBABILITIES),
    "upsampled sigmoids": (lambda x: upsample(add_planes(x).sigmoid()), PROBABILITIES),
    "softmax": (lambda x: x.softmax(1), PROBABILITIES),
    "softmax without its last class": (lambda x: x.softmax(1)[:, :-1], PROBABILITIES),
    "a sigmoid by hand": (lambda x: 1 / (1 + (-x).exp()), DOUBT),
    "a sigmoid by hand from tanh": (lambda x: 0.5 + x.tanh() / 2, DOUBT),
    "clamped": (lambda x: x.clamp(0, 1), DOUBT),
    "a function of the user": (Opaque.apply, DOUBT),
    "no graph": (lambda x: x.sigmoid().detach(), DOUBT),
}
"""The end of a model, and the link of its scores."""


@pytest.mark.parametrize("name", ENDS)
def test_link_of_scores_on_the_graph(name: str) -> None:
    end, expected = ENDS[name]
    assert infer_link(nn.Identity(), end(SMALL.clone().requires_grad_())) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("sigmoid", PROBABILITIES), ("linear", LOGITS), ("mul", DOUBT), (None, DOUBT)]
)
def test_without_a_graph_the_final_operation_decides(name: str | None, expected: FoundLink) -> None:
    assert infer_link(nn.Identity(), SMALL, lambda: name) == expected


@pytest.mark.parametrize("scores", [4 * SMALL, SMALL.softmax(1)], ids=["large", "sum to 1"])
def test_the_final_operation_is_not_asked_for_without_need(scores: Tensor) -> None:
    asked: list[None] = []
    infer_link(nn.Identity(), scores, lambda: asked.append(None))
    assert not asked
