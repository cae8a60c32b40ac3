"""Targets of the user: a class, or a function, that is defined here alone and answers every question about itself."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool import targets
from camtool.figures.explanation_figures import describe_differences
from camtool.outputs.class_scores import find_logits
from camtool.rendering import image_writing
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.save_kinds import OutputSettings
from camtool.targets import Custom, ImageOutput, Negated, ScoreContext, Target, Traits
from camtool.targets.base_target import Corners

PHOTO = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
LABELS = ["sky", "road", "tree"]


@dataclass(frozen=True)
class LeftPart(Target):
    """A class in the left part of the image: by default as wide as the class is predicted there, at least a pixel."""

    index: int
    columns: int | None = None

    traits = Traits(has_place=True, reads="scores")

    def __call__(self, output: Any) -> Tensor:
        return find_logits(output)[:, self.index, :, : self.columns].sum((1, 2))

    def resolve_on(self, image: ImageOutput) -> Target:
        super().resolve_on(image)
        assert isinstance(image.prediction, Tensor)
        predicted = image.prediction.argmax(0) == self.index
        return replace(self, columns=max(1, int(predicted.any(0).sum()))) if self.columns is None else self

    def get_class_index(self) -> int:
        return self.index

    def describe(self, labels: Sequence[str] | None) -> str:
        return f"{super().describe(labels)} on the left"

    def get_probability(self, context: ScoreContext) -> float:
        assert context.probabilities is not None
        return float(context.probabilities[self.index, :, : self.columns].max())

    def get_box(self) -> Corners:
        return (0.0, 0.0, float(self.columns or 0), 16.0)

    def get_warnings(self, context: ScoreContext) -> Sequence[str]:
        return (f"LeftPart has the score {context.score:.1f} and the link {context.link}.",)


@dataclass(frozen=True)
class Minimal(Target):
    """The same score, from a class that overrides nothing."""

    index: int

    def __call__(self, output: Any) -> Tensor:
        return find_logits(output)[:, self.index, :, :12].sum((1, 2))


def make_segmenter() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)).eval()


class Preprocess:
    """From a photo to a tensor; black is known from the mean and the standard deviation."""

    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __call__(self, image: Any) -> Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def explain(target: Any, method: str = "gradcam") -> camtool.Explanation:
    result = camtool.explain(
        make_segmenter(), PHOTO, target, method=method, layer="1", transform=Preprocess(), labels=LABELS
    )
    assert isinstance(result, camtool.Explanation)
    return result


# --------------------------------------------------------------------------------------------------- a class of targets


def test_class_index_and_label_reach_the_explanation() -> None:
    result = explain(LeftPart(1))
    assert (result.index, result.label) == (1, "road on the left")
    assert "road on the left" in repr(result)
    assert explain(Negated(LeftPart(1))).label == "not road on the left"
    assert explain(Negated(LeftPart(1))).index == 1


def test_resolved_target_is_scored() -> None:
    planes = make_segmenter()(Preprocess()(PHOTO)[None]).detach()
    columns = max(1, int((planes[0].argmax(0) == 2).any(0).sum()))
    assert 1 < columns < 24, "the net predicts the class in some columns"
    result = explain(LeftPart(2))
    assert result.score == pytest.approx(float(planes[0, 2, :, :columns].sum()), rel=1e-4)
    assert explain(Negated(LeftPart(2))).score == pytest.approx(-result.score)


def test_probability_and_box_reach_the_explanation() -> None:
    probabilities = make_segmenter()(Preprocess()(PHOTO)[None]).detach().softmax(1)[0]
    result = explain(LeftPart(1, columns=12))
    assert result.probability == pytest.approx(float(probabilities[1, :, :12].max()))
    assert result.box == (0, 0, 12, 16)
    negated = explain(Negated(LeftPart(1, columns=12)))
    assert (negated.probability, negated.box) == (pytest.approx(result.probability), result.box)


def test_box_is_drawn() -> None:
    drawn, plain = explain(LeftPart(1, columns=12)).overlay(), explain(Minimal(1)).overlay()
    assert (drawn[:, 11:13] != plain[:, 11:13]).any()
    assert (drawn[4:12, 18:] == plain[4:12, 18:]).all(), "the same map outside of the box"


def test_warnings_reach_the_explanation() -> None:
    result = explain(LeftPart(1))
    assert f"LeftPart has the score {result.score:.1f} and the link softmax." in result.warnings
    negated = explain(Negated(LeftPart(1)))
    assert f"LeftPart has the score {-negated.score:.1f} and the link softmax." in negated.warnings


def test_label_names_the_overlays_file_and_title(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = describe_differences([explain(LeftPart(1)), explain(LeftPart(2))])
    assert ["road on the left" in str(words[0]), "tree on the left" in str(words[1])] == [True, True]
    image_writing.write_image(tmp_path / "a.png", PHOTO)
    explainer = camtool.Explainer(make_segmenter(), layer="1", transform=Preprocess(), labels=LABELS)
    list(run_jobs(explainer, plan_run([str(tmp_path / "a.png")]).jobs, LeftPart(1), OutputSettings(tmp_path / "out")))
    (file,) = (tmp_path / "out").rglob("*.png")
    assert "1-road-on-the-left" in file.name


def average_over_brightness(target: Any) -> Any:
    """Return the mean map over the three brightnesses of tta, without its flips."""
    lights = torch.stack([factor * Preprocess()(PHOTO) for factor in (0.9, 1.0, 1.1)])
    return np.mean([result.raw for result in camtool.explain(make_segmenter(), lights, target, layer="1")], axis=0)


def test_tta_does_not_flip_the_image_of_a_target_with_a_place() -> None:
    target = LeftPart(1, columns=12)
    assert target.traits.has_place
    assert Negated(target).traits.has_place
    np.testing.assert_allclose(explain(target, "tta:gradcam").raw, average_over_brightness(target), atol=1e-6)


def test_tta_flips_the_image_of_other_targets() -> None:
    assert not Minimal(1).traits.has_place
    assert not np.allclose(explain(Minimal(1), "tta:gradcam").raw, average_over_brightness(Minimal(1)), atol=1e-3)


def test_sess_does_not_crop_the_image_of_a_target_with_a_place() -> None:
    with pytest.raises(camtool.MethodError, match="target LeftPart refers to a fixed region"):
        explain(LeftPart(1), "sess:gradcam")


def test_a_method_that_became_a_trait_is_refused() -> None:
    with pytest.raises(camtool.TargetError, match=r"^Old\.has_place is no method of a target any more; set traits"):
        type("Old", (Minimal,), {"has_place": lambda self: True})


def test_target_that_overrides_nothing_is_about_no_class_and_no_place() -> None:
    result = explain(Minimal(1))
    assert (result.index, result.label, result.probability, result.box) == (None, "Minimal(index=1)", None, None)
    assert result.warnings == ()


def test_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(camtool.TargetError, match="target_class 7 does not exist"):
        explain(LeftPart(7))


# ---------------------------------------------------------------------------------------------------- classifier scores


@dataclass(frozen=True)
class Halved(Target):
    """Half the logit of a class: about a class, and on request a probability or a comparable score."""

    index: int
    is_score: bool = True

    def __call__(self, output: Any) -> Tensor:
        return find_logits(output)[:, self.index] / 2

    def get_class_index(self) -> int:
        return self.index

    @property
    def traits(self) -> Traits:
        return Traits(is_class_score=self.is_score)

    def to_probability(self) -> Target | None:
        return targets.Probability(self.index) if self.is_score else None


@dataclass(frozen=True)
class Against(Halved):
    """The same, where a higher score speaks against the class."""

    @property
    def traits(self) -> Traits:
        return replace(super().traits, opposes_class=True)


class Head(nn.Module):
    """A small classifier with a linear head; ``wrap`` makes its output of the pooled features and the logits."""

    def __init__(self, wrap: Any = lambda features, logits: logits) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.wrap = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), nn.Linear(6, 8), wrap

    def forward(self, x: Tensor) -> Any:
        pooled = self.body(x).mean((2, 3))
        return self.wrap(pooled, self.head(pooled))


IMAGE = torch.rand(1, 3, 12, 12)


def test_methods_use_the_probability_that_a_target_offers() -> None:
    net = Head().eval()
    (own,) = camtool.explain(net, IMAGE, Halved(2), method="rise")
    (builtin,) = camtool.explain(net, IMAGE, targets.ClassScore(2), method="rise")
    np.testing.assert_allclose(own.raw, builtin.raw, rtol=1e-5)


def test_rivalcam_takes_a_target_that_says_it_is_a_class_score() -> None:
    net = Head().eval()
    assert np.isfinite(camtool.explain(net, IMAGE, Halved(2), method="rivalcam", layer="body")[0].raw).all()
    with pytest.raises(camtool.MethodError, match="compares the scores of classes"):
        camtool.explain(net, IMAGE, Halved(2, is_score=False), method="rivalcam", layer="body")


def test_low_rank_gets_a_warning_only_if_the_score_favors_the_class() -> None:
    net = Head().eval()
    last = int(net(IMAGE)[0].argmin())
    for target, expected in ((Halved(last), 1), (Against(last), 0), (Negated(Against(last)), 1)):
        (result,) = camtool.explain(net, IMAGE, target, layer="body")
        assert sum("ranks this class only" in warning for warning in result.warnings) == expected


@dataclass(frozen=True)
class FeatureSum(Target):
    """The sum of the features, which an output holds besides the logits."""

    def __call__(self, output: Any) -> Tensor:
        return output["features"].sum(1)


@pytest.mark.parametrize("method", ["gradcam", "scorecam", "ablationcam", "rise"])
def test_methods_give_a_target_the_whole_output(method: str) -> None:
    net = Head(lambda features, logits: {"logits": logits, "features": features}).eval()
    (own,) = camtool.explain(net, IMAGE, FeatureSum(), method=method, layer="body")
    (function,) = camtool.explain(net, IMAGE, lambda one: one["features"].sum(), method=method, layer="body")
    np.testing.assert_allclose(own.raw, function.raw, rtol=1e-5)


def test_cam_refuses_a_target_that_may_read_more_than_the_logits() -> None:
    net = Head(lambda features, logits: {"logits": logits, "features": features}).eval()
    with pytest.raises(camtool.MethodError, match="whole output"):
        camtool.explain(net, IMAGE, FeatureSum(), method="cam", layer="body")


# ------------------------------------------------------------------------------------------------------------ functions


def score_left_part(output: Tensor) -> Tensor:
    return output[1, :, :12].sum()


def test_function_alone_is_named_and_about_no_class() -> None:
    result = explain(score_left_part)
    assert (result.index, result.label, result.box) == (None, "score_left_part", None)


@pytest.mark.parametrize("warnings", [["Only the left part counts."], "Only the left part counts."])
def test_function_answers_what_custom_is_given(warnings: Any) -> None:
    target = Custom(score_left_part, class_index=1, box=(0, 0, 12, 16), warnings=warnings)
    result = explain(target)
    assert (result.index, result.label, result.box) == (1, "road", (0, 0, 12, 16))
    assert result.probability == pytest.approx(explain(targets.ClassScore(1)).probability)
    assert "Only the left part counts." in result.warnings
    assert explain(replace(target, label="road ahead")).label == "road ahead"
    np.testing.assert_array_equal(result.raw, explain(score_left_part).raw)


@pytest.mark.parametrize("answers", [{"is_local": True}, {"box": (0, 0, 12, 16)}], ids=str)
def test_tta_does_not_flip_the_image_of_a_local_function(answers: dict[str, Any]) -> None:
    target = Custom(score_left_part, **answers)
    np.testing.assert_allclose(explain(target, "tta:gradcam").raw, average_over_brightness(target), atol=1e-6)
    assert not np.allclose(explain(score_left_part, "tta:gradcam").raw, average_over_brightness(target), atol=1e-3)


def test_class_of_a_function_must_exist() -> None:
    with pytest.raises(camtool.TargetError, match="target_class 7 does not exist"):
        explain(Custom(score_left_part, class_index=7))


# ------------------------------------------------------------------------------------------------------------ structure


def test_no_code_outside_of_the_package_asks_for_the_class_of_a_target() -> None:
    kinds = {name for name, kind in vars(targets).items() if isinstance(kind, type)} - {"Target", "Top"}
    package = Path(camtool.__file__).parent
    found = []
    for path in package.rglob("*.py"):
        if path.parent == package / "targets":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_test = isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass", "type")
            if is_test or isinstance(node, (ast.Match, ast.Compare)):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
                # Groups of HDF5 are folders.
                names |= {each.attr for each in attributes if ast.unparse(each.value) != "h5py"}
                found += [f"{path.name}:{node.lineno}: {name}" for name in sorted(names & kinds)]
    assert not found, f"ask the target with a method of camtool.targets.Target instead: {found}"


class Heads(nn.Module):
    """Two outputs with nothing in common."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        pool = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.a, self.b = (nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), *pool, nn.Linear(4, 3)) for _ in "ab")

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: getattr(self, name)(x) for name in "ab"}


@dataclass
class OfHead:
    name: str

    def __call__(self, output: Any) -> Tensor:
        return output[self.name].max()


def make_closure(name: str) -> Any:
    return lambda output: output[name].max()


def make_default(name: str) -> Any:
    return lambda output, name=name: output[name].max()


def make_keyword(name: str) -> Any:
    return lambda output, *, name=name: output[name].max()


def make_partial(name: str) -> Any:
    return partial(lambda name, output: output[name].max(), name)


@pytest.mark.parametrize("make", [make_closure, make_default, make_keyword, make_partial, OfHead])
@pytest.mark.parametrize("wrap", [lambda function: function, Custom])
def test_a_function_of_another_output_has_another_layer(make: Any, wrap: Any) -> None:
    net, image = Heads().eval(), torch.rand(3, 16, 16)
    assert [camtool.explain(net, image, wrap(make(name))).layer[0] for name in "aba"] == ["a", "b", "a"]
