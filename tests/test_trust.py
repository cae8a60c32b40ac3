"""Each warning comes when it should, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.models as zoo
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool import METHODS, targets
from camtool.evidence import Evidence
from camtool.targets import ClassScore, Contrast, Custom, Probability, Region, Value

CLASSES = 8

ZERO, CONSTANT, NOT_FINITE = "gradient at the layer is zero", "map is constant", "not finite"
SAME_EVERYWHERE = "input is the same everywhere"
RANK, SATURATED, TWICE, ASSUMED = "ranks this class only", "saturated", "times in one forward", "No transform was given"


class Net(nn.Module):
    """Colours, averaged and weighed: class k is mostly for colour k % 3; a bias ranks class 0 first, then 1, ..."""

    def __init__(self, *, bias: float = 1.0, runs: int = 1) -> None:
        super().__init__()
        self.colours, self.head, self.runs = nn.Conv2d(3, 3, 1, bias=False), nn.Linear(3, CLASSES), runs
        with torch.no_grad():
            self.colours.weight.copy_(torch.eye(3)[:, :, None, None])
            self.head.weight.copy_(0.1 * torch.eye(3)[torch.arange(CLASSES) % 3] + 0.01)
            self.head.bias.copy_(-bias * torch.arange(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.runs):
            x = self.colours(x)
        return self.head(x.mean((2, 3)))


def picture() -> Tensor:
    return torch.rand(3, 16, 16)


def warned(model: Any, img: Any, target_class: Any = None, **options: Any) -> tuple[str, ...]:
    return camtool.explain(model, img, target_class, **options).warnings


def one_that_says(warnings: tuple[str, ...], *said: str) -> bool:
    """Whether there are just as many warnings as ``said``, and each is found in its own."""
    return len(warnings) == len(said) and all(part in warning for part, warning in zip(said, warnings, strict=True))


UNSUITED = ["guided-backprop", "guided-gradcam", *(name for name in METHODS if "attention" in METHODS[name].needs)]
"""There is no ReLU in the net, and no attention."""

RIGHTLY_EMPTY = ["fem", "smoothgrad"]
"""No pixel of uniform noise lies two deviations above the mean; and the net is linear, with one gradient everywhere."""


@pytest.mark.parametrize("method", [name for name in METHODS if name not in UNSUITED + RIGHTLY_EMPTY])
def test_where_nothing_is_wrong_nothing_is_said(method: str) -> None:
    assert warned(Net(), picture(), method=method) == ()


# ----------------------------------------------------------------------------------------------------- the map


def test_a_gradient_of_zero_is_told() -> None:
    assert one_that_says(warned(Net(), picture(), lambda one: 0 * one.sum()), ZERO)


def test_a_layer_behind_the_last_attention_is_told_of() -> None:
    vit = zoo.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)
    image = torch.randn(3, 32, 32)
    assert one_that_says(warned(vit, image, layer="encoder.layers.encoder_layer_1"), ZERO)
    assert not any(ZERO in warning for warning in warned(vit, image, layer="encoder.layers.encoder_layer_0"))


def test_of_a_batch_only_the_image_without_a_gradient_is_told_of() -> None:
    nothing = lambda one: 0 * one.sum()  # noqa: E731
    first, second, third = camtool.explain(Net(), [picture() for _ in range(3)], [0, nothing, 0])
    assert first.warnings == third.warnings == ()
    assert one_that_says(second.warnings, ZERO)


def test_a_method_that_reads_no_gradient_is_not_told_of_one() -> None:
    def brightness(evidence: Evidence) -> Tensor:
        return evidence.activations.sum(1)

    assert warned(Net(), picture(), lambda one: 0 * one.sum(), method=brightness) == ()


def test_with_several_layers_one_that_the_gradient_reaches_is_enough() -> None:
    class Branches(Net):
        def __init__(self) -> None:
            super().__init__()
            self.aside = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0 * self.aside(x).sum()

    assert warned(Branches(), picture(), layer=["aside", "colours"]) == ()
    assert one_that_says(warned(Branches(), picture(), layer="aside"), ZERO)


@pytest.mark.parametrize("method", RIGHTLY_EMPTY)
def test_a_map_that_is_rightly_empty_is_told(method: str) -> None:
    assert one_that_says(warned(Net(), picture(), method=method), CONSTANT)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in UNSUITED])
def test_a_picture_of_one_colour_gives_a_constant_map(method: str) -> None:
    result = camtool.explain(Net(), torch.full((3, 16, 16), 0.5), method=method)
    assert one_that_says(result.warnings, SAME_EVERYWHERE, CONSTANT)
    assert not result.heatmap.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_told_and_shown_as_empty(value: float) -> None:
    def broken(evidence: Evidence) -> Tensor:
        maps = evidence.activations.sum(1)
        maps[:, 2, 3] = value
        return maps

    result = camtool.explain(Net(), picture(), method=broken)
    assert one_that_says(result.warnings, NOT_FINITE)
    assert np.array_equal(result.heatmap, np.zeros((16, 16)))


# -------------------------------------------------------------------------------------------------------- the target


@pytest.mark.parametrize("wrap", [int, ClassScore, Probability, lambda k: Contrast(k, 0)])
def test_a_class_outside_the_first_five_is_told_with_its_rank(wrap: Any) -> None:
    model, image = Net(bias=0.2), picture()
    assert not any(RANK in warning for warning in warned(model, image, wrap(4)))
    assert any("ranks this class only 6 of 8" in warning for warning in warned(model, image, wrap(5)))


def test_the_rank_is_each_images_own() -> None:
    model = Net(bias=0)
    with torch.no_grad():
        model.head.weight.copy_(torch.arange(CLASSES)[:, None] - 3.5)
    bright, dark = camtool.explain(model, [picture(), -picture()], 7)
    assert bright.warnings == ()
    assert any("ranks this class only 8 of 8" in warning for warning in dark.warnings)


@pytest.mark.parametrize("target", [Value(7), Custom(lambda one: one[7])], ids=["Value", "Custom"])
def test_what_is_about_no_class_has_no_rank(target: Any) -> None:
    assert warned(Net(), picture(), target) == ()


def test_a_map_of_classes_has_no_ranks() -> None:
    def planes(x: Tensor) -> Tensor:
        return torch.cat([x + 1 - k for k in range(3)], 1)

    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return planes(self.body(x))

    assert warned(Segments(), picture(), Region(8, torch.ones(16, 16).tril()), layer="body") == ()


@pytest.mark.parametrize(("bias", "saturated"), [(3.0, False), (30.0, True)])
def test_a_saturated_probability_is_told(bias: float, saturated: bool) -> None:
    model, image = Net(bias=bias), picture()
    told = any(SATURATED in warning for warning in warned(model, image, Probability(0)))
    assert told is saturated
    assert not any(SATURATED in warning for warning in warned(model, image, ClassScore(0)))


def test_one_logit_saturates_as_well() -> None:
    model = Net()
    model.head = nn.Linear(3, 1)
    nn.init.constant_(model.head.bias, 12.0)
    assert one_that_says(warned(model, picture(), Probability(1)), SATURATED)


# -------------------------------------------------------------------------------------- the layer and the preparation


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_a_layer_that_runs_more_than_once_is_told_with_its_name(runs: int) -> None:
    said = warned(Net(runs=runs), picture())
    assert said == () if runs == 1 else one_that_says(said, f"Layer 'colours' ran {runs} times in one forward")


def test_an_assumed_transform_is_told_and_a_given_one_or_a_prepared_tensor_is_not() -> None:
    photo = Image.fromarray((torch.rand(40, 40, 3) * 255).byte().numpy())

    def transform(image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(image)).movedim(-1, 0) / 255

    assert one_that_says(warned(Net(), photo), ASSUMED)
    assert warned(Net(), photo, transform=transform) == ()
    assert warned(camtool.Loaded(Net(), transform), photo) == ()
    assert warned(Net(), torch.rand(3, 16, 16)) == ()


def test_several_doubts_are_all_told() -> None:
    said = warned(Net(runs=2, bias=0.2), torch.full((3, 16, 16), 0.5), 7)
    assert one_that_says(said, SAME_EVERYWHERE, CONSTANT, RANK, TWICE)


def test_what_speaks_against_a_class_may_be_asked_of_one_that_ranks_last() -> None:
    last = CLASSES - 1
    assert RANK in "".join(warned(Net(), picture(), last))
    assert RANK not in "".join(warned(Net(), picture(), targets.Negated(targets.ClassScore(last))))


def test_a_negated_probability_may_be_saturated_too() -> None:
    wanted = targets.Negated(targets.Probability(0))
    assert SATURATED in "".join(warned(Net(bias=30.0), picture(), wanted))


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.Sigmoid()], ids=["softmax", "sigmoid"])
def test_a_score_that_is_a_probability_is_told(end: nn.Module) -> None:
    model = nn.Sequential(Net(bias=0.2), end)
    for target in (0, Probability(0), Contrast(0, 1)):
        assert one_that_says(warned(model, picture(), target, layer="0.colours"), "let the model return its logits")
    assert warned(model, picture(), Value(0), layer="0.colours") == ()


def test_a_dimension_of_an_embedding_is_told() -> None:
    model = Net()
    model.num_classes = 0  # type: ignore[assignment]
    assert one_that_says(warned(model, picture()), "returns an embedding and has no classes")
