"""Warnings on maps: each of them appears if it should, and only then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torchvision.models as zoo
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool import METHODS, targets, warning_codes
from camtool.evidence.evidence import Evidence
from camtool.outputs.class_scores import FoundLink
from camtool.targets import ClassScore, Contrast, Custom, Probability, Region, Value
from camtool.trust import map_warnings
from camtool.warning_codes import WARNING_KINDS, MapWarning
from tests.helpers.nets import Apply
from tests.layers.nets import RegisterNet

CLASSES = 8

ZERO, CONSTANT, NOT_FINITE = "gradient at the layer is zero", "map is constant", "not finite"
SAME_EVERYWHERE = "input is the same everywhere"
RANK, SATURATED, TWICE, ASSUMED = "ranks this class only", "saturated", "times in one forward", "No transform was given"

UNKNOWN = "nothing shows whether they are probabilities"


class ColorNet(nn.Module):
    """A linear classifier of mean colors: class k favors color k % 3, and a bias ranks class 0 first, then 1, ..."""

    def __init__(self, *, bias: float = 1.0, runs: int = 1) -> None:
        super().__init__()
        self.colors, self.head, self.runs = nn.Conv2d(3, 3, 1, bias=False), nn.Linear(3, CLASSES), runs
        with torch.no_grad():
            self.colors.weight.copy_(torch.eye(3)[:, :, None, None])
            self.head.weight.copy_(0.1 * torch.eye(3)[torch.arange(CLASSES) % 3] + 0.01)
            self.head.bias.copy_(-bias * torch.arange(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.runs):
            x = self.colors(x)
        return self.head(x.mean((2, 3)))


def make_image() -> Tensor:
    return torch.rand(3, 16, 16)


def find_warnings(model: Any, img: Any, target_class: Any = None, **options: Any) -> tuple[str, ...]:
    return camtool.explain(model, img, target_class, **options).warnings


def match_warnings(warnings: tuple[str, ...], *expected: str) -> bool:
    """Return True if the warnings contain the expected parts, one each, in order."""
    return len(warnings) == len(expected) and all(part in each for part, each in zip(expected, warnings, strict=True))


UNSUITABLE = [
    *("guided-backprop", "guided-gradcam", "drise"),
    *(name for name in METHODS if METHODS[name].needs & {"attention", "text"}),
]
"""Methods that need a ReLU, attention, a text or detections, of which the net has none."""

CONSTANT_MAPS = ["fem", "smoothgrad"]
"""Methods whose map of this net is constant: no pixel of uniform noise is two standard deviations above the mean (fem),
and the net is linear, so its gradient is the same everywhere (smoothgrad)."""


@pytest.mark.parametrize("method", [name for name in METHODS if name not in UNSUITABLE + CONSTANT_MAPS])
def test_correct_map_gets_no_warning(method: str) -> None:
    assert find_warnings(ColorNet(), make_image(), method=method) == ()


# ------------------------------------------------------------------------------------------------------------------ map


def test_zero_gradient_gets_a_warning() -> None:
    assert match_warnings(find_warnings(ColorNet(), make_image(), lambda one: 0 * one.sum()), ZERO)


def test_zero_gradient_at_the_image_alone_gets_none_from_a_method_that_follows_a_path() -> None:
    result = camtool.explain(
        ColorNet(), make_image(), lambda one: one[0].clamp(max=0.02), method="integratedgradcam", layer="colors"
    )
    assert float(result.heatmap.max()) == 1
    assert result.warnings == ()
    assert "zero-gradient" not in result.check().codes


def test_layer_after_the_last_attention_gets_a_warning() -> None:
    vit = zoo.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)
    image = torch.randn(3, 32, 32)
    assert [each.code for each in find_warnings(vit, image, layer="encoder.layers.encoder_layer_1")] == [
        "cells-not-read"
    ]
    assert find_warnings(vit, image, layer="encoder.layers.encoder_layer_0") == ()


def test_only_the_image_without_gradient_in_a_batch_gets_a_warning() -> None:
    zero = lambda one: 0 * one.sum()  # noqa: E731
    first, second, third = camtool.explain(ColorNet(), [make_image() for _ in range(3)], [0, zero, 0])
    assert first.warnings == third.warnings == ()
    assert match_warnings(second.warnings, ZERO)


def test_method_that_reads_no_gradient_gets_no_warning_about_it() -> None:
    def brightness(evidence: Evidence) -> Tensor:
        return evidence.activations.sum(1)

    assert find_warnings(ColorNet(), make_image(), lambda one: 0 * one.sum(), method=brightness) == ()


def test_gradient_at_one_of_several_layers_is_enough() -> None:
    class Branches(ColorNet):
        def __init__(self) -> None:
            super().__init__()
            self.aside = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0 * self.aside(x).sum()

    assert find_warnings(Branches(), make_image(), layer=["aside", "colors"]) == ()
    assert match_warnings(find_warnings(Branches(), make_image(), layer="aside"), ZERO)


@pytest.mark.parametrize("method", CONSTANT_MAPS)
def test_constant_map_gets_a_warning(method: str) -> None:
    assert match_warnings(find_warnings(ColorNet(), make_image(), method=method), CONSTANT)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in UNSUITABLE])
def test_image_of_one_color_gives_a_constant_map(method: str) -> None:
    result = camtool.explain(ColorNet(), torch.full((3, 16, 16), 0.5), method=method)
    assert match_warnings(result.warnings, SAME_EVERYWHERE, CONSTANT)
    assert not result.heatmap.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_map_with_values_that_are_not_finite_gets_a_warning_and_is_shown_empty(value: float) -> None:
    def broken(evidence: Evidence) -> Tensor:
        maps = evidence.activations.sum(1)
        maps[:, 2, 3] = value
        return maps

    result = camtool.explain(ColorNet(), make_image(), method=broken)
    assert match_warnings(result.warnings, NOT_FINITE)
    assert np.array_equal(result.heatmap, np.zeros((16, 16)))


# --------------------------------------------------------------------------------------------------------------- target


@pytest.mark.parametrize("wrap", [int, ClassScore, Probability, lambda k: Contrast(k, 0)])
def test_class_below_the_first_five_gets_a_warning_with_its_rank(wrap: Any) -> None:
    model, image = ColorNet(bias=0.2), make_image()
    assert not any(RANK in warning for warning in find_warnings(model, image, wrap(4)))
    assert any("ranks this class only 6 of 8" in warning for warning in find_warnings(model, image, wrap(5)))


def test_rank_is_counted_for_each_image() -> None:
    model = ColorNet(bias=0)
    with torch.no_grad():
        model.head.weight.copy_(torch.arange(CLASSES)[:, None] - 3.5)
    bright, dark = camtool.explain(model, [make_image(), -make_image()], 7)
    assert bright.warnings == ()
    assert any("ranks this class only 8 of 8" in warning for warning in dark.warnings)


@pytest.mark.parametrize("target", [Value(7), Custom(lambda one: one[7])], ids=["Value", "Custom"])
def test_target_without_a_class_has_no_rank(target: Any) -> None:
    assert find_warnings(ColorNet(), make_image(), target) == ()


def test_score_planes_have_no_ranks() -> None:
    def planes(x: Tensor) -> Tensor:
        return torch.cat([x + 1 - k for k in range(3)], 1)

    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return planes(self.body(x))

    assert find_warnings(Segments(), make_image(), Region(8, torch.ones(16, 16).tril()), layer="body") == ()


@pytest.mark.parametrize(("bias", "saturated"), [(3.0, False), (30.0, True)])
def test_saturated_probability_gets_a_warning(bias: float, saturated: bool) -> None:
    model, image = ColorNet(bias=bias), make_image()
    find_choice_warnings = any(SATURATED in warning for warning in find_warnings(model, image, Probability(0)))
    assert find_choice_warnings is saturated
    assert not any(SATURATED in warning for warning in find_warnings(model, image, ClassScore(0)))


def test_saturated_probability_of_a_single_logit_gets_a_warning() -> None:
    model = ColorNet()
    model.head = nn.Linear(3, 1)
    nn.init.constant_(model.head.bias, 12.0)
    assert match_warnings(find_warnings(model, make_image(), Probability(1)), SATURATED)


# ---------------------------------------------------------------------------------------------- layer and preprocessing


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_layer_that_runs_several_times_gets_a_warning_with_its_name(runs: int) -> None:
    warnings = find_warnings(ColorNet(runs=runs), make_image())
    assert warnings == () if runs == 1 else match_warnings(warnings, f"Layer 'colors' ran {runs} times in one forward")


def test_only_an_assumed_transform_gets_a_warning() -> None:
    photo = Image.fromarray((torch.rand(40, 40, 3) * 255).byte().numpy())

    def transform(image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(image)).movedim(-1, 0) / 255

    assert match_warnings(find_warnings(ColorNet(), photo), ASSUMED)
    assert find_warnings(ColorNet(), photo, transform=transform) == ()
    assert find_warnings(camtool.Loaded(ColorNet(), transform), photo) == ()
    assert find_warnings(ColorNet(), torch.rand(3, 16, 16)) == ()


def test_several_warnings_are_all_shown_in_order() -> None:
    warnings = find_warnings(ColorNet(runs=2, bias=0.2), torch.full((3, 16, 16), 0.5), 7)
    assert match_warnings(warnings, SAME_EVERYWHERE, CONSTANT, RANK, TWICE)


def test_negated_class_of_low_rank_gets_no_warning() -> None:
    last = CLASSES - 1
    assert RANK in "".join(find_warnings(ColorNet(), make_image(), last))
    assert RANK not in "".join(find_warnings(ColorNet(), make_image(), targets.Negated(targets.ClassScore(last))))


def test_negated_saturated_probability_gets_a_warning() -> None:
    wanted = targets.Negated(targets.Probability(0))
    assert SATURATED in "".join(find_warnings(ColorNet(bias=30.0), make_image(), wanted))


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.Sigmoid()], ids=["softmax", "sigmoid"])
def test_score_that_is_a_probability_gets_a_warning(end: nn.Module) -> None:
    model = nn.Sequential(ColorNet(bias=0.2), end)
    for target in (0, Probability(0), Contrast(0, 1)):
        assert match_warnings(
            find_warnings(model, make_image(), target, layer="0.colors"), "let the model return its logits"
        )
    assert find_warnings(model, make_image(), Value(0), layer="0.colors") == ()


def squash(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def test_score_that_may_be_a_probability_gets_a_warning() -> None:
    model = nn.Sequential(ColorNet(bias=0.2), Apply(squash))
    for target in (0, ClassScore(0), Contrast(0, 1)):
        assert match_warnings(find_warnings(model, make_image(), target, layer="0.colors"), UNKNOWN)
    for target in (Probability(0, of="identity"), Value(0)):
        assert find_warnings(model, make_image(), target, layer="0.colors") == ()
    assert find_warnings(ColorNet(bias=0.2), make_image()) == ()
    image = make_image()
    result = camtool.explain(model, image, Probability(0, of="identity"), layer="0.colors")
    assert result.probability == pytest.approx(model(image[None])[0, 0].item())


def test_dimension_of_an_embedding_gets_a_warning() -> None:
    model = ColorNet()
    model.num_classes = 0  # type: ignore[assignment]
    assert match_warnings(find_warnings(model, make_image()), "returns an embedding and has no classes")


# ---------------------------------------------------------------------------------------------------------------- table


def make_infinite_map(evidence: Evidence) -> Tensor:
    return evidence.activations.sum(1) + torch.inf


def make_segmenter_without_class_0() -> nn.Module:
    """Return a segmenter whose class 0 is half of green, and class 1 is red and green, so class 1 is always ahead."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.ReLU(), nn.Conv2d(3, 3, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3)[:, :, None, None])
        model[2].weight.copy_(torch.tensor([[0.0, 0.5, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])[:, :, None, None])
    return model


def make_constant_map(evidence: Evidence) -> Tensor:
    return torch.ones_like(evidence.activations[:, 0])


class Pair(nn.Module):
    """The sum of two classifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = ColorNet(), ColorNet()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x)


class LeftOut(ColorNet):
    """A classifier whose softmax was left out, as that of a Keras model is."""

    known_link = FoundLink("softmax", notes=(MapWarning("the logit before it", "logit-before-activation"),))


CASES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "zero-gradient": (ColorNet(), lambda one: 0 * one.sum(), {}, ZERO),
    "not-finite": (ColorNet(), None, {"method": make_infinite_map}, NOT_FINITE),
    "constant-map": (ColorNet(), None, {"method": make_constant_map}, CONSTANT),
    "probability-score": (nn.Sequential(ColorNet(bias=0.2), nn.Softmax(1)), 0, {"layer": "0.colors"}, "its logits"),
    "assumed-logits": (nn.Sequential(ColorNet(), Apply(squash)), 0, {"layer": "0.colors"}, UNKNOWN),
    "logit-before-activation": (LeftOut(), 0, {}, "logit before it"),
    "low-rank": (ColorNet(), 7, {}, RANK),
    "class-nowhere": (make_segmenter_without_class_0(), 0, {"layer": "0"}, "nowhere"),
    "saturated-probability": (ColorNet(bias=12.0), Probability(0), {}, SATURATED),
    "other-paths": (Pair(), None, {"layer": "one.colors"}, "other branches"),
    "cells-elsewhere": (nn.Sequential(Apply(lambda x: x.mT), ColorNet()), None, {}, "mirrors, turns or moves"),
    "no-places": (nn.Sequential(Apply(lambda x: torch.fft.fft2(x).real), ColorNet()), None, {}, "as behind a Fourier"),
    "several-calls": (ColorNet(runs=2), None, {}, TWICE),
    "shallow-layer": (RegisterNet(1, 24, 2, starts_as_mean=True).eval(), None, {}, "tokens whose places are uncertain"),
}
"""For each code a model, a target, options, and a part of the warning."""


def test_the_table_names_each_code_once() -> None:
    path = Path(warning_codes.__file__).with_name("warning_codes.json")
    # Of two entries with one name, JSON keeps the last.
    assert len(re.findall(r'^    "', path.read_text(encoding="utf-8"), re.MULTILINE)) == len(WARNING_KINDS)
    assert {kind.severity for kind in WARNING_KINDS.values()} == {*get_args(warning_codes.Severity)}


def test_every_warning_on_maps_has_a_case() -> None:
    source = Path(map_warnings.__file__).read_text(encoding="utf-8")
    codes = {code for code in WARNING_KINDS if f'"{code}"' in source} - {"cells-not-read", "target-warning"}
    assert codes <= CASES.keys(), "add a case of each warning to CASES in this file"


@pytest.mark.parametrize("code", CASES)
def test_every_warning_on_maps_comes_alone(code: str) -> None:
    model, target, options, expected = CASES[code]
    (warning,) = camtool.explain(model, make_image(), target, **options).warnings
    assert warning.code == code
    assert expected in warning
