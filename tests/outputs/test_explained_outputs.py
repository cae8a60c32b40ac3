"""Explanations of models whose outputs differ in structure, shape and meaning."""

from __future__ import annotations

from math import exp
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import TargetError
from camtool.outputs.class_scores import (
    find_logits,
)
from camtool.targets import ClassScore, Finer, Probability, Value
from tests.helpers.nets import Apply
from tests.outputs.example_outputs import LOGITS, ModelOutput, PlainOutput

# ---------------------------------------------------------------------------------------------- structure of the output


class ColorNet(nn.Module):
    """A linear classifier of mean colors; ``shape`` turns its logits into an output."""

    def __init__(self, weight: list[list[float]], shape: Any = lambda scores: scores) -> None:
        super().__init__()
        self.colors, self.head, self.shape = nn.Conv2d(3, 3, 1, bias=False), nn.Linear(3, len(weight)), shape
        with torch.no_grad():
            self.colors.weight.copy_(torch.eye(3)[:, :, None, None])
            self.head.weight.copy_(torch.tensor(weight))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.head(self.colors(x).mean((2, 3))))


RED_OR_NOT = [[1.0, -1.0, 0.0]]


def make_red_and_green_image() -> Tensor:
    """Return ``(3, 4, 8)``: the left half red, the right half green and twice as bright."""
    image = torch.zeros(3, 4, 8)
    image[0, :, :4], image[1, :, 4:] = 1, 2
    return image


@pytest.mark.parametrize(
    "shape", [lambda z: z, lambda z: z[:, 0], lambda z: {"logits": z}, lambda z: PlainOutput(z * 2, z)], ids=range(4)
)
def test_single_logit_is_explained_for_the_class_of_its_sign(shape: Any) -> None:
    net, image = ColorNet(RED_OR_NOT, shape), make_red_and_green_image()  # the logit is 0.5 - 1
    default, yes, no = camtool.explain(net, image, [None, 1, 0], method="hirescam", labels=["red"])
    assert (default.label, default.index, default.score) == ("not red", 0, pytest.approx(0.5))
    assert (yes.label, yes.score, no.score) == ("red", pytest.approx(-0.5), pytest.approx(0.5))
    assert no.probability == pytest.approx(1 / (1 + exp(-0.5)))
    assert yes.probability == pytest.approx(1 - no.probability)
    assert default.warnings == yes.warnings == ()
    assert (yes.heatmap[:, :3] == 1).all()
    assert (yes.heatmap[:, 5:] == 0).all()
    assert (no.heatmap[:, :3] == 0).all()
    assert (no.heatmap[:, 5:] == 1).all()
    assert camtool.explain(net, image, "green", labels=["green", "red"]).index == 0
    with pytest.raises(TargetError, match=r"has 3 names, the model 1 class\."):
        camtool.explain(net, image, labels=["a", "b", "c"])


def test_regression_is_explained_by_its_value() -> None:
    result = camtool.explain(ColorNet(RED_OR_NOT), make_red_and_green_image(), Value(), method="hirescam")
    assert (result.score, result.probability, result.index) == (pytest.approx(-0.5), None, None)
    assert (result.heatmap[:, :3] == 1).all()


def test_independent_labels_have_the_probability_that_the_model_declares() -> None:
    net, image = ColorNet([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), make_red_and_green_image()  # the logits are 0.5 and 1
    assert camtool.explain(net, image).probability == pytest.approx(1 / (1 + exp(0.5 - 1)))
    assert camtool.explain(net, image, Probability(1, of="sigmoid")).probability == pytest.approx(1 / (1 + exp(-1)))
    net.config = SimpleNamespace(problem_type="multi_label_classification")
    assert camtool.explain(net, image).probability == pytest.approx(1 / (1 + exp(-1)))


def test_layer_may_return_a_data_class() -> None:
    net = ColorNet(RED_OR_NOT)
    net.block = Apply(lambda x: PlainOutput(None, net.colors(x)))
    net.forward = lambda x: net.head(net.block(x).logits.mean((2, 3)))  # type: ignore[method-assign]
    one, other = (camtool.explain(net, make_red_and_green_image(), 1, layer=layer) for layer in ("block", "colors"))
    assert one.raw.any()
    assert (one.raw == other.raw).all()


# ---------------------------------------------------------------------------------------- scores that are probabilities

RED_OR_GREEN = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 2.0]]
"""The logits of the red and green image are 1, 2, 0 and 0."""


def squeeze_batch(scores: Tensor) -> Tensor:
    return scores.squeeze()


@pytest.mark.parametrize(
    "end",
    [
        Tensor.sigmoid,
        lambda z: z.sigmoid().squeeze(1),
        lambda z: z.sigmoid().flatten(),
        lambda z: z.sigmoid().squeeze(),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("method", ["gradcam", "rise"])
@pytest.mark.parametrize("frozen", [False, True])
def test_single_probability_is_used_unchanged(end: Any, method: str, frozen: bool) -> None:
    net, p = ColorNet(RED_OR_NOT, end).requires_grad_(not frozen), 1 / (1 + exp(0.5))
    default, yes, no = camtool.explain(net, make_red_and_green_image(), [None, 1, 0], method=method)
    assert default.index == 0
    assert (yes.score, yes.probability) == (pytest.approx(p), pytest.approx(p))
    assert (no.score, no.probability) == (pytest.approx(1 - p), pytest.approx(1 - p))


def test_single_logit_between_0_and_1_is_not_a_probability() -> None:
    net = ColorNet([[0.0, 0.7, 0.0]])  # the logit is 0.7
    for method in ("gradcam", "rise"):
        assert camtool.explain(net, make_red_and_green_image(), 1, method=method).probability == pytest.approx(
            1 / (1 + exp(-0.7))
        )


@pytest.mark.parametrize("method", ["gradcam", "rise"])
def test_softmax_is_not_applied_twice(method: str) -> None:
    net = ColorNet(RED_OR_GREEN, lambda z: z.softmax(1))
    p = exp(2) / (exp(1) + exp(2) + 2)
    result, asked = camtool.explain(net, make_red_and_green_image(), [None, Probability(1)], method=method)
    assert (result.index, result.score, result.probability) == (1, pytest.approx(p), pytest.approx(p))
    assert (asked.score, asked.probability) == (pytest.approx(p), pytest.approx(p))


def test_softmax_is_not_applied_to_sigmoids() -> None:
    result = camtool.explain(ColorNet(RED_OR_GREEN, Tensor.sigmoid), make_red_and_green_image())
    assert (result.score, result.probability) == (pytest.approx(1 / (1 + exp(-2))),) * 2


def test_rise_weighs_masks_by_probabilities_that_the_model_returns() -> None:
    own, logit = (ColorNet(RED_OR_NOT, end) for end in (Tensor.sigmoid, lambda z: z))
    maps = [camtool.explain(net, make_red_and_green_image(), 0, method="rise", samples=50).raw for net in (own, logit)]
    assert_close(*map(torch.from_numpy, maps))


def test_plane_of_probabilities_has_two_classes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 1, 1), nn.Sigmoid())
    image = torch.rand(3, 8, 8)
    p = net(image[None])[0, 0].detach()
    for index, plane in enumerate((1 - p, p)):
        result = camtool.explain(net, image, index)
        predicted = plane > 0.5 if (plane > 0.5).any() else torch.ones_like(p).bool()
        assert result.score == pytest.approx(float(plane[predicted].sum()), rel=1e-4)
        assert result.probability == pytest.approx(float(plane[predicted].mean()), rel=1e-4)


# --------------------------------------------------------------------------------------------------- axes of the output


def test_planes_of_one_position_are_scores() -> None:
    output = LOGITS[:, :, None, None]
    assert torch.equal(find_logits(output), LOGITS)
    net = ColorNet(RED_OR_GREEN, lambda z: z[:, :, None, None])
    for target in (None, Finer(1)):
        result, plain = (
            camtool.explain(each, make_red_and_green_image(), target) for each in (net, ColorNet(RED_OR_GREEN))
        )
        assert (result.index, result.probability) == (plain.index, pytest.approx(plain.probability))


@pytest.mark.parametrize("method", ["gradcam", "scorecam", "rise", "smoothgrad"])
@pytest.mark.parametrize("weight", [RED_OR_NOT, RED_OR_GREEN], ids=["one logit", "classes"])
def test_model_may_squeeze_its_output_for_one_image(weight: Any, method: str) -> None:
    plain, squeezed = (
        camtool.explain(ColorNet(weight, end), make_red_and_green_image(), method=method)
        for end in (lambda z: z, squeeze_batch)
    )
    assert (squeezed.index, squeezed.score) == (plain.index, pytest.approx(plain.score))
    assert_close(torch.from_numpy(squeezed.raw), torch.from_numpy(plain.raw))


@pytest.mark.parametrize(
    ("shape", "came"), [(lambda z: z[0:1], r"scores \(1, 4\)"), (lambda z: z[:, :0], r"scores \(2, 0\)")], ids=range(2)
)
def test_output_for_another_number_of_images_is_refused(shape: Any, came: str) -> None:
    with pytest.raises(TargetError, match=f"returned {came} for 2 images; wrap it"):
        camtool.explain(ColorNet(RED_OR_GREEN, shape), torch.stack([make_red_and_green_image()] * 2))


# ----------------------------------------------------------------------------------------------------------- embeddings


@pytest.mark.parametrize(
    "shape",
    [lambda z: {"pooler_output": z}, lambda z: ModelOutput(last_hidden_state=z[:, None], pooler_output=z)],
    ids=["by name", "beside the tokens"],
)
def test_embedding_is_explained_by_a_dimension_without_a_probability(shape: Any) -> None:
    net = ColorNet(RED_OR_GREEN, shape)
    highest, asked = camtool.explain(net, make_red_and_green_image(), [None, 0])
    assert (highest.label, highest.index, highest.probability) == ("dimension 1", None, None)
    assert (asked.label, asked.score) == ("dimension 0", pytest.approx(1))
    with pytest.raises(TargetError, match="returns an embedding and has no classes"):
        camtool.explain(net, make_red_and_green_image(), ClassScore(1))


def test_model_that_declares_no_classes_returns_an_embedding() -> None:
    net = ColorNet(RED_OR_GREEN)
    net.num_classes, net.num_features = 0, 4  # type: ignore[assignment]
    assert camtool.explain(net, make_red_and_green_image()).label == "dimension 1"
    net.num_features = 7  # type: ignore[assignment]  # so the four outputs come from a head that the user added
    assert camtool.explain(net, make_red_and_green_image()).label == "class 1"


def test_features_with_more_axes_are_not_score_planes() -> None:
    net = ColorNet(RED_OR_GREEN, lambda z: {"last_hidden_state": z[:, None].expand(-1, 5, -1)})
    with pytest.raises(TargetError, match=r"has no classes and returns features \(5, 4\)"):
        camtool.explain(net, make_red_and_green_image())
    assert camtool.explain(
        net, make_red_and_green_image(), lambda one: one["last_hidden_state"].sum()
    ).score == pytest.approx(15)
