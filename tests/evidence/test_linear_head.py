"""Linear heads: found by arithmetic, and refused where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from camtool.errors import MethodError
from camtool.evidence.evidence import gather_evidence
from camtool.evidence.linear_head import compute_class_weights, find_scoring_head, get_linear_head
from camtool.methods import METHODS
from camtool.targets import ClassScore, Contrast, Custom, Negated, Target
from tests.evidence.small_models import (
    CLASSES,
    HEADS,
    Conv2d,
    gather_one,
    make_model,
    make_tail,
    observe_layers,
)
from tests.helpers.nets import Apply


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_the_linear_head_gives_the_models_output(name: str, dtype: torch.dtype) -> None:
    model = HEADS[name]().to(dtype)
    layer = "1" if name == "as many channels as classes" else "0"
    forward_pass = observe_layers(model, layer, dtype=dtype)
    (evidence,) = gather_evidence(forward_pass, [ClassScore(1), ClassScore(4), Contrast(0, (2, 3), weight=0.5)])
    head = get_linear_head(evidence)
    assert head.weight.dtype == torch.promote_types(dtype, torch.float32)
    again = head.maps.flatten(2).mean(2) @ head.weight.T + head.bias
    loose = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}
    assert_close(again, forward_pass.logits.to(again), **loose)
    w = head.weight
    assert_close(compute_class_weights(evidence, head), torch.stack([w[1], w[4], w[0] - 0.25 * (w[2] + w[3])]))


def test_the_head_after_a_relu_pools_the_positive_part() -> None:
    evidence = gather_one(HEADS["ReLU, pool, linear"](), "0")
    assert evidence.activations.min() < 0
    assert torch.equal(get_linear_head(evidence).maps, evidence.activations.relu())


NO_HEADS = {
    "two linear layers": lambda: make_model(*make_tail(nn.Linear(6, 6), nn.Linear(6, CLASSES))),
    "a linear layer bypassed": lambda: make_model(*make_tail(Apply(torch.tanh), nn.Linear(6, CLASSES))),
    "max pooling": lambda: make_model(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)),
    "a scaled output": lambda: make_model(*make_tail(nn.Linear(6, CLASSES), Apply(lambda x: 1.1 * x))),
    "flattened positions": lambda: make_model(nn.Flatten(), nn.Linear(6 * 64, CLASSES)),
    "score maps": lambda: make_model(Conv2d(6, CLASSES, 1)),
}


@pytest.mark.parametrize("name", NO_HEADS)
def test_a_model_without_a_linear_head_raises_an_error(name: str) -> None:
    evidence = gather_one(NO_HEADS[name](), "0", [Custom(lambda one: one.sum())] * 3)
    with pytest.raises(MethodError, match=r"needs a model that ends in global average pooling.* 6 channels to"):
        get_linear_head(evidence)


def test_cam_computes_no_gradient_at_the_layer() -> None:
    evidence = gather_one(HEADS["pool, linear"](), "0")
    assert METHODS["cam"](evidence).shape == (3, 8, 8)
    assert not evidence.uses_gradients


@pytest.mark.parametrize(
    "target", [Custom(lambda one: one["logits"][1]), Negated(Custom(lambda one: one["logits"][1]))]
)
def test_a_target_of_the_whole_output_has_no_scoring_head(target: Target) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = HEADS["pool, linear"]()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(x)}

    evidence = gather_one(Wrapped().eval(), "inner.0", [target] * 3)
    assert find_scoring_head(evidence) is None
    assert METHODS["ablationcam"](evidence).shape == (3, 8, 8)
    with pytest.raises(MethodError, match=r"function of the model's whole output; use method='gradcam'"):
        METHODS["cam"](evidence)
