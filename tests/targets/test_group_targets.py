"""Groups of classes: scores and gradients from the definition, words, rivals, warnings, engines and photos."""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import TargetError
from camtool.outputs.class_scores import Link, compute_probabilities
from camtool.outputs.detections import Detections
from camtool.targets import (
    ClassScore,
    Contrast,
    Group,
    ImageOutput,
    Negated,
    Region,
    ScoreContext,
    Target,
    Within,
    encode_texts,
    resolve_targets,
    score_targets,
)
from camtool.trust.metrics.localization import compute_energy_in_mask
from tests.helpers.nets import Apply
from tests.helpers.photos import unseen
from tests.hooks.state.test_no_trace import unchanged

LABELS = ["tabby", "tiger cat", "husky", "malamute", "timber wolf", "red wolf"]


def resolve(request: Any, scores: Tensor, labels: list[str] | None = LABELS, link: Link | None = "softmax") -> Target:
    (target,) = resolve_targets(request, scores, labels, link=link)
    return target


def compute_score_by_hand(logits: list[float], members: list[int], rivals: list[int]) -> tuple[float, list[float]]:
    """Return ``log Σ_{c in members} e^{y_c} - log Σ_{d in rivals} e^{y_d}``, and its derivative by each logit."""
    of_members = sum(exp(logits[c]) for c in members)
    of_rivals = sum(exp(logits[d]) for d in rivals)
    score = log(of_members) - (log(of_rivals) if rivals else 0.0)
    derivative = [0.0] * len(logits)
    for c in members:
        derivative[c] += exp(logits[c]) / of_members
    for d in rivals:
        derivative[d] -= exp(logits[d]) / of_rivals
    return score, derivative


# ------------------------------------------------------------------------------------------------ score and gradient


@pytest.mark.parametrize(
    ("request_", "members", "rivals"),
    [
        (Group([3, 0]), [0, 3], []),
        ("group:wolf", [4, 5], []),
        (Group(np.int64(3), against=[np.int64(0), "wolf"]), [3], [0, 4, 5]),
        ("husky, malamute vs wolf", [2, 3], [4, 5]),
        ("3 vs tabby", [3], [0]),
        (Group("malamute", against=["husky", "wolf", 3]), [3], [2, 4, 5]),  # the others of the group
    ],
    ids=str,
)
def test_score_and_gradient_equal_the_definition(request_: Any, members: list[int], rivals: list[int]) -> None:
    output = (3 * torch.randn(5, 6, dtype=torch.float64)).requires_grad_()
    targets = [resolve(request_, one) for one in output.detach()]
    scores = score_targets(targets, output)
    (gradient,) = torch.autograd.grad(scores.sum(), output)
    expected = [compute_score_by_hand(row, members, rivals) for row in output.tolist()]
    assert_close(scores, torch.tensor([score for score, _ in expected], dtype=torch.float64))
    assert_close(gradient, torch.tensor([derivative for _, derivative in expected], dtype=torch.float64))
    alone = torch.cat([target(output[i : i + 1]) for i, target in enumerate(targets)])
    assert_close(scores, alone, rtol=0, atol=0)


def test_score_minus_that_of_all_classes_is_the_logarithm_of_the_probability() -> None:
    output = torch.randn(4, 6, dtype=torch.float64)
    probability = output.softmax(1)[:, [1, 4]].sum(1)
    assert_close(Group([1, 4])(output) - output.logsumexp(1), probability.log())
    against = output.softmax(1)[:, [0, 2, 5]].sum(1)
    assert_close(Group([1, 4], against=[0, 2, 5])(output), (probability / against).log())


def test_large_logits_do_not_overflow() -> None:
    assert_close(Group([0, 1])(torch.tensor([[500.0, 500.0, 0.0]])), torch.tensor([500 + log(2)]))


def test_several_groups_in_a_batch_equal_single_ones() -> None:
    output = torch.randn(3, 6)
    targets = [resolve(group, one) for group, one in zip((Group([4, 5]), Group([0, 1]), 2), output, strict=True)]
    expected = [float(target(output[i : i + 1])) for i, target in enumerate(targets)]
    assert score_targets(targets, output).tolist() == expected
    assert score_targets(targets[:2], output, [0, 0]).tolist() == [float(target(output[:1])) for target in targets[:2]]


class Colors(nn.Module):
    """Six classes of three channels, on a grid of 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 5, 2, 2), nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(3)
    return Colors().eval()


@pytest.mark.parametrize("method", ["gradcam", "rivalcam", "faithcam", "scorecam", "rise"])
def test_a_group_of_one_class_is_the_class(net: nn.Module, method: str) -> None:
    x, options = torch.rand(2, 3, 8, 8), {"samples": 8} if method == "rise" else {}
    for group in (Group(2), Group(["husky"]), "group:husky"):
        ours, usual = (
            camtool.explain(net, x, target, method=method, layer="conv", labels=LABELS, **options)
            for target in (group, 2)
        )
        for one, other in zip(ours, usual, strict=True):
            assert (one.label, one.index, one.groups) == ("husky", 2, ())
            assert one.score == pytest.approx(other.score, abs=1e-6)
            assert one.probability == pytest.approx(other.probability, abs=1e-6)
            assert_allclose(one.raw, other.raw, rtol=1e-4, atol=1e-6)
            assert one.warnings == other.warnings


def test_the_map_of_a_group_is_that_of_its_gradient(net: nn.Module) -> None:
    """HiResCAM is linear in the gradient: the map is the mean of those of the classes, weighed by their shares."""
    net, x = net.double(), torch.rand(1, 3, 8, 8, dtype=torch.float64)
    layer = net.conv(x)[0].relu()
    logits = net(x)[0].tolist()
    weight = net.head.weight.detach()
    parts = {c: sum(float(weight[c, k]) / 16 * layer[k].detach().numpy() for k in range(5)) for c in (1, 3)}
    total = exp(logits[1]) + exp(logits[3])
    expected = sum(exp(logits[c]) / total * parts[c] for c in (1, 3))
    model = nn.Sequential(net.conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.head)
    (result,) = camtool.explain(model, x, Group([1, 3]), method="hirescam", layer="1")
    assert_allclose(result.raw, np.maximum(expected, 0), rtol=1e-5, atol=1e-7)


# -------------------------------------------------------------------------------------------------- what is explained


def test_the_result_lists_the_classes(net: nn.Module) -> None:
    (group, contrast, negated, within) = camtool.explain(
        net, torch.rand(3, 8, 8), ["group:wolf", "husky, malamute vs wolf", Negated(Group("wolf")), Within([4, 5])],
        labels=LABELS,
    )  # fmt: skip
    wolves, dogs = {4: "timber wolf", 5: "red wolf"}, {2: "husky", 3: "malamute"}
    assert (group.label, group.index, group.groups) == ("wolf (2 classes)", None, (wolves,))
    assert contrast.label == "husky or malamute rather than wolf (2 classes)"
    assert (contrast.index, contrast.groups) == (None, (dogs, wolves))
    assert (negated.label, negated.groups) == ("not wolf (2 classes)", (wolves,))
    assert within.label in ("timber wolf rather than red wolf", "red wolf rather than timber wolf")
    assert within.groups == ()


def test_labels_of_long_lists_are_short() -> None:
    assert resolve(Group([0, 1, 2, 3, 4]), torch.zeros(6)).describe(LABELS) == "tabby, tiger cat or 3 more"
    assert resolve(Group([0, 1]), torch.zeros(6), None).describe(None) == "class 0 or class 1"
    target = resolve("husky vs 2, 3, wolf", torch.zeros(6))
    assert target.describe(LABELS) == "husky rather than the other 3 of husky, malamute or wolf (2 classes)"


@pytest.mark.parametrize(
    ("text", "members", "rivals"),
    [
        ("group:2,malamute", (2, 3), ()),
        ("group: wolf", (4, 5), ()),
        ("Wolf VS. cat", (4, 5), (1,)),
        ("group:wolf vs tabby", (4, 5), (0,)),
        ("5 vs tabby,tiger cat", (5,), (0, 1)),
    ],
)
def test_texts_become_groups(text: str, members: tuple[int, ...], rivals: tuple[int, ...]) -> None:
    target: Any = resolve(text, torch.zeros(6))
    assert (target.members, target.rivals) == (members, rivals)


def test_a_label_is_a_class_whatever_it_says() -> None:
    labels = ["cat vs dog", "group:b", "within:c", "hot dog", "dog"]
    for index, label in enumerate(labels[:3]):
        assert resolve(label, torch.zeros(5), labels) == ClassScore(index)
    target: Any = resolve("dog vs hot dog", torch.zeros(5), labels)
    assert (target.members, target.rivals) == ((4,), (3,)), "a side that is a label is that class, as everywhere"


def test_within_compares_the_two_strongest_classes_of_the_group() -> None:
    logits = torch.tensor([9.0, 3.0, 1.0, 7.0, 5.0, 8.0])
    assert resolve(Within([1, 2, 3, 4]), logits) == Contrast(3, 4)
    assert resolve("within:wolf", logits) == Contrast(5, 4)
    assert_close(Within([1, 2])(torch.stack([logits, -logits])), torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Group([]), r"Group's classes is empty; pass a word"),
        (lambda: Group(""), r"Group's classes is empty"),
        (lambda: Group([0], against=()), r"Group's against is empty"),
        (lambda: Group([0, 1.0]), r"got float"),
        (lambda: Group(True), r"got bool"),
        (lambda: Within([None]), r"Within's classes takes a word, .* got NoneType"),
        (lambda: Group(torch.tensor([1, 2])), r"got Tensor"),
        (lambda: resolve(Group([0, 0]), torch.zeros(6)), r"hold tabby \(0\) twice"),
        (lambda: resolve(Group(["wolf", 4]), torch.zeros(6)), r"hold timber wolf \(4\) twice"),
        (lambda: resolve(Group([0, 6]), torch.zeros(6)), r"6 does not exist: the model has 6 classes"),
        (lambda: resolve(Group([-1]), torch.zeros(6)), r"-1 does not exist"),
        (lambda: resolve(Group(range(6)), torch.zeros(6)), r"are all 6 classes of the model"),
        (lambda: resolve(Group([0, 1], against=[1, 2]), torch.zeros(6)), r"both hold tiger cat; leave out"),
        (lambda: resolve(Group([0, 1], against=[1, 0]), torch.zeros(6)), r"both hold tabby and tiger cat"),
        (lambda: resolve(Group([0, 1, 2, 3], against=[0, 1, 2, 3]), torch.zeros(6)), r"tabby, tiger cat and 2 more"),
        (lambda: resolve("a vs b vs c", torch.zeros(6)), r"has 3 sides; compare two"),
        (lambda: resolve("husky vs lynx", torch.zeros(6)), r"'lynx' is not among the 6 labels"),
        (lambda: resolve("group:", torch.zeros(6)), r"is empty"),
        (lambda: resolve("group:wolf", torch.zeros(6), None), r"no labels are known"),
        (lambda: resolve(Within(["husky"]), torch.zeros(6)), r"Within compares two classes of a group .* got husky"),
        (lambda: resolve(Within([1, 2]), torch.zeros(6, 4, 4)), r"by their scores \(K,\), got scores \(6, 4, 4\)"),
        (lambda: resolve(Group([0, 1]), torch.zeros(1)), r"are all 2 classes"),  # a single logit
        (lambda: resolve(Group([0, 1]), torch.zeros(6), None, None), r"returns an embedding and has no classes"),
        (lambda: resolve(Negated(Group([0])), torch.zeros(6), None, None), r"returns an embedding"),
        (lambda: encode_texts([Group([0, 1])], torch.zeros), r"compares images with texts and has no classes"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        make()


@pytest.mark.parametrize("target", [Group([0, 1]), Within([0, 1]), "cat vs dog"])
def test_detectors_are_refused(target: Any) -> None:
    found = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    with pytest.raises(TargetError, match="about the scores of a classifier, and a detection has one class"):
        resolve(target, found, ["cat", "dog"])  # type: ignore[arg-type]


def test_a_single_logit_has_two_classes() -> None:
    target = resolve(Group(["sound"]), torch.tensor([2.0]), ["sound", "crack"])
    assert float(target(torch.tensor([[2.0]]))) == -2
    (against,) = resolve_targets("crack vs sound", torch.tensor([2.0]), ["sound", "crack"])
    assert float(against(torch.tensor([[2.0]]))) == 4


# -------------------------------------------------------------------------------------------------- probability, rivals


def give_probability(request: Any, output: Tensor, link: Link) -> float | None:
    values = compute_probabilities(output, link)[0].numpy()
    return resolve(request, output[0], link=link).get_probability(ScoreContext(0.0, values, link))


def test_probabilities_of_classes_that_exclude_others_are_added() -> None:
    output = torch.tensor([[log(1), log(2), log(3), log(4), log(5), log(5)]])
    assert give_probability(Group([1, 4]), output, "softmax") == pytest.approx(7 / 20)
    assert give_probability("group:wolf", output.exp() / 20, "identity") == pytest.approx(10 / 20)
    assert give_probability("husky vs wolf", output, "softmax") == pytest.approx(3 / 20)
    target = resolve(Group([1, 4]), output[0]).to_probability()
    assert target is not None
    assert float(target(output)) == pytest.approx(7 / 20)


def test_probabilities_of_independent_labels_are_not_added() -> None:
    output = torch.tensor([[2.0, 2.0, -2.0, -2.0, 0.0, 0.0]])
    assert give_probability(Group([0, 1]), output, "sigmoid") is None
    assert give_probability(Group([0, 1]), output.sigmoid(), "identity") is None
    assert give_probability(Group([0]), output, "sigmoid") == pytest.approx(1 / (1 + exp(-2)))
    assert resolve(Group([0, 1]), output[0], link="sigmoid").to_probability() is None
    assert_close(resolve(Group([0, 1]), output[0], link="sigmoid")(output), torch.tensor([2 + log(2)]))


def test_probabilities_that_the_model_returns_are_the_score() -> None:
    output = torch.tensor([[0.1, 0.2, 0.3, 0.15, 0.05, 0.2]])
    assert_close(resolve(Group([1, 2]), output[0], link="identity")(output), torch.tensor([0.5]))
    assert_close(resolve(Group([1, 2], against=0), output[0], link="identity")(output), torch.tensor([0.4]))


def test_rivals_are_the_strongest_classes_outside_of_the_group() -> None:
    logits = torch.tensor([1.0, 6.0, 5.0, 4.0, 3.0, 2.0])
    target = resolve(Group([1, 3]), logits)
    assert target.find_rivals(ImageOutput(logits), 1) == [ClassScore(2)]
    assert target.find_rivals(ImageOutput(logits), 9) == [ClassScore(2), ClassScore(4), ClassScore(5), ClassScore(0)]
    assert resolve(Group([1, 3], against=2), logits).find_rivals(ImageOutput(logits), 9) == ()


@pytest.mark.parametrize("method", ["rivalcam", "faithcam"])
def test_a_group_of_equal_classes_competes_as_one(method: str) -> None:
    """Two classes with one logit z are one class with the logit z + log 2, and do not compete with each other."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(3, 4).double(), torch.randn(3).double(), torch.rand(2, 3, 8, 8).double()
    trunk = nn.Conv2d(3, 4, 2, 2).double()

    def build(weight: Tensor, bias: Tensor) -> nn.Module:
        head = nn.Linear(4, len(bias)).double()
        head.weight.data, head.bias.data = weight, bias
        return nn.Sequential(trunk, nn.ReLU(), Apply(lambda a: a.mean((2, 3))), head).eval()

    twice = build(weight[[0, 0, 1, 2]], bias[[0, 0, 1, 2]])
    once = build(weight, bias + torch.tensor([log(2), 0, 0]))
    ours = camtool.explain(twice, x, Group([0, 1]), method=method, layer="1")
    usual = camtool.explain(once, x, 0, method=method, layer="1")
    for one, other in zip(ours, usual, strict=True):
        assert one.raw.any()
        assert_allclose(one.raw, other.raw, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("method", ["gradcam", "rivalcam", "faithcam", "scorecam"])
def test_a_batch_of_groups_and_classes_equals_single_images(net: nn.Module, method: str) -> None:
    """A group leaves fewer rivals than a class."""
    x, wanted = torch.rand(3, 3, 8, 8), [[Group([0, 1, 2, 3]), 4], [Group([4, 5]), Group([0, 1])], [1, Group([2, 3])]]
    together = camtool.explain(net, x, wanted, method=method, layer="conv")
    for image, targets in enumerate(wanted):
        for row, target in enumerate(targets):
            (alone,) = camtool.explain(net, x[image : image + 1], target, method=method, layer="conv")
            assert_allclose(together[image][row].raw, alone.raw, rtol=1e-4, atol=1e-6)


def test_rivalcam_refuses_differences_of_groups(net: nn.Module) -> None:
    with pytest.raises(camtool.CamtoolError, match="an index, a name, ClassScore or Group"):
        camtool.explain(net, torch.rand(1, 3, 8, 8), Group([0, 1], against=2), method="rivalcam", layer="conv")


# ---------------------------------------------------------------------------------------------------------- segmenters

PLANES = torch.tensor([[[4.0, 0.0], [0.0, 1.0]], [[1.0, 5.0], [0.0, 0.0]], [[0.0, 0.0], [9.0, 7.0]]])
"""Three classes on 2 x 2 positions: 0 1 above 2 2."""


def test_a_group_of_a_segmenter_counts_where_one_of_its_classes_is_predicted() -> None:
    target: Any = resolve(Group([0, 1]), PLANES, ["car", "truck", "road"])
    assert target.mask.tolist() == [[True, True], [False, False]]
    assert target.traits.has_place
    expected = log(exp(4) + exp(1)) + log(exp(0) + exp(5))
    assert float(target(PLANES[None])) == pytest.approx(expected)
    values = PLANES.softmax(0).numpy()
    joint = values[:2].sum(0)
    assert target.get_probability(ScoreContext(0.0, values)) == pytest.approx((joint[0, 0] + joint[0, 1]) / 2)
    (rival,) = target.find_rivals(ImageOutput(PLANES), 5)
    assert (rival.class_index, rival.mask.tolist()) == (2, [[0, 0], [1, 1]])


def test_a_group_of_one_class_of_a_segmenter_is_the_class() -> None:
    ours: Any = resolve(Group("truck"), PLANES, ["car", "truck", "road"])
    usual: Any = resolve("truck", PLANES, ["car", "truck", "road"])
    assert isinstance(usual, Region)
    assert float(ours(PLANES[None])) == float(usual(PLANES[None]))
    values = PLANES.softmax(0).numpy()
    assert ours.get_probability(ScoreContext(0.0, values)) == pytest.approx(
        usual.get_probability(ScoreContext(0.0, values))
    )


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu())


def test_a_group_that_a_segmenter_predicts_nowhere_gets_a_warning() -> None:
    torch.manual_seed(1)
    model, x = Segmenter().eval(), torch.rand(1, 3, 16, 16)
    model.head.bias.data = torch.tensor([0.0, 0.0, 50.0])
    (result,) = camtool.explain(model, x, Group([0, 1]), layer="conv")
    assert "predicts this group nowhere" in str([*result.warnings])
    model.head.bias.data = torch.tensor([0.0, 50.0, 0.0])
    (result,) = camtool.explain(model, x, Group([0, 1]), layer="conv")
    assert "class-nowhere" not in [warning.code for warning in result.warnings]


# ----------------------------------------------------------------------------------------------------- warnings, traces


def build_constant(logits: list[float]) -> nn.Module:
    """Return a net whose logits are nearly these for all images."""
    head = nn.Linear(3, len(logits))
    head.weight.data.mul_(0.01)
    head.bias.data = torch.tensor(logits)
    return nn.Sequential(nn.Conv2d(3, 3, 2, 2), nn.ReLU(), Apply(lambda a: a.mean((2, 3))), head).eval()


def list_codes(model: nn.Module, target: Any) -> list[str]:
    torch.manual_seed(0)
    (result,) = camtool.explain(model, torch.rand(1, 3, 16, 16), target, layer="1", method="hirescam")
    return [warning.code for warning in result.warnings]


def test_the_rank_of_a_group_is_that_of_its_classes_together() -> None:
    model = build_constant([0.0] * 8 + [0.5] * 6)
    assert "low-rank" in list_codes(model, 0)
    assert "low-rank" not in list_codes(model, Group([0, 1, 2])), "three times e^0 is more than e^0.5"
    model = build_constant([0.0] * 8 + [3.0] * 6)
    assert "low-rank" in list_codes(model, Group([0, 1, 2]))
    assert "low-rank" in list_codes(model, Group([0, 1, 2], against=[8]))
    assert "low-rank" not in list_codes(model, Negated(Group([0, 1, 2]))), "what speaks against it is a fair question"


def test_a_class_inside_of_the_group_is_not_another_class(net: nn.Module) -> None:
    """The check of other classes compares with those outside."""
    x = torch.rand(1, 3, 8, 8)
    top = int(net(x).argmax())
    group = Group(sorted({top, (top + 1) % 6}))
    (result,) = camtool.explain(net, x, group, layer="conv")
    assert result.predicted_index in result.groups[0]
    assert "low-rank" not in [warning.code for warning in result.warnings]
    codes = [finding.code for finding in result.check().findings]
    assert "same-map" not in codes
    # With all but one class in the group, one remains to be compared.
    (result,) = camtool.explain(net, x, Group([0, 1, 2, 3, 4]), layer="conv")
    result.check()


def test_probabilities_get_the_same_warning_as_for_a_class() -> None:
    model = nn.Sequential(*build_constant([0.0] * 3), nn.Softmax(1)).eval()
    assert "probability-score" in list_codes(model, Group([0, 1]))


def test_what_scores_single_classes_refuses_groups(demo: camtool.Loaded) -> None:
    scenes = [unseen(number).image for number in range(2)]
    for target in (Group(["star", "heart"]), "star vs heart"):
        with pytest.raises(camtool.CamtoolError, match="target_class: give one class for each image"):
            camtool.evaluate(demo, scenes, ["gradcam"], target_class=target, metrics=["deletion"])
        with pytest.raises(TargetError, match="maps on the device are of classes; pass indices"):
            camtool.Explainer(demo.model).compute_maps(torch.rand(2, 3, 64, 64), target)  # type: ignore[arg-type]


def test_nothing_is_left_behind(net: nn.Module) -> None:
    x = torch.rand(2, 3, 8, 8)
    with unchanged(net):
        camtool.explain(net, x, Group([0, 1], against=[2, 3]), method=["gradcam", "faithcam"])
        with pytest.raises(TargetError):
            camtool.explain(net, x, Group([0, 99]))


# --------------------------------------------------------------------------------------------------- scenes and photos


def test_on_a_scene_both_shapes_or_one_of_them_are_shown(demo: camtool.Loaded) -> None:
    """The demo's model names the shapes of scenes; ``python -m benchmarks groups`` measures more of them."""
    inside = []
    for number in range(12):
        scene = unseen(number, objects=2)
        one, other = scene.objects
        group, contrast = camtool.explain(
            demo, scene.image, [Group([one.index, other.index]), f"{one.label} vs {other.label}"], method="faithcam"
        )
        inside.append(
            [compute_energy_in_mask(each.heatmap, thing.mask) for each in (group, contrast) for thing in (one, other)]
        )
    of_group, beside, of_contrast, against = np.mean(inside, 0)
    assert min(of_group, beside) > 0.1
    assert of_contrast > 5 * against


def test_on_a_photo_of_a_dog_and_a_cat(mobilenet: camtool.Loaded, shared: Path) -> None:
    """The dog is above, and the cat below."""
    results = camtool.explain(
        mobilenet,
        shared / "images" / "both.png",
        ["group:dog", "group:cat", "dog vs cat", "cat vs dog"],
        method="hirescam",
    )
    above = [float(each.heatmap[: len(each.heatmap) // 2].sum() / each.heatmap.sum()) for each in results]
    assert above[0] > 0.6 > 0.4 > above[1]
    assert above[2] > above[0]
    assert above[3] < above[1]
    assert [len(each.groups[0]) for each in results] == [118, 5, 118, 5]
    assert results[0].probability > 0.9
