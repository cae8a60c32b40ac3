"""What is explained: each target's numbers, and what a person may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from camtool.errors import NothingFoundError, TargetError
from camtool.geometry import Geometry
from camtool.outputs import Detections, logits, probabilities
from camtool.targets import (
    AgainstRest,
    Box,
    ClassScore,
    Contrast,
    Custom,
    Detection,
    Finer,
    Negated,
    Point,
    Probability,
    Region,
    Similarity,
    Target,
    Top,
    Value,
    choose,
    class_of,
    from_texts,
    has_a_place,
    name_of,
    probability,
    score,
)

LOGITS = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
"""Two images, three classes."""

PLANES = torch.arange(16.0).reshape(2, 2, 2, 2)
"""Two images, two classes, 2 x 2 pixels."""

LABELS = ["tabby, tabby cat", "Crane", "crane"]


ONE = torch.tensor([[0.0], [log(4)]])
"""Two images, a single logit."""


# -------------------------------------------------------------------------------------------------- each by hand


@pytest.mark.parametrize(
    ("target", "output", "expected"),
    [
        (ClassScore(1), LOGITS, [5, 0]),
        (ClassScore(1), PLANES, [4 + 5 + 6 + 7, 12 + 13 + 14 + 15]),  # summed over the pixels
        (Probability(0), torch.tensor([[0.0, log(3)], [log(4), 0.0]]), [1 / 4, 4 / 5]),
        (Probability(0, of="sigmoid"), torch.tensor([[0.0, 9.0], [log(4), -9.0]]), [1 / 2, 4 / 5]),
        (Probability(1), ONE, [1 / 2, 4 / 5]),  # the sigmoid
        (Probability(1, of="sigmoid"), ONE, [1 / 2, 4 / 5]),
        (Probability(0), ONE, [1 / 2, 1 / 5]),
        (ClassScore(1), ONE, [0, log(4)]),
        (ClassScore(0), ONE, [0, -log(4)]),
        (ClassScore(0), ONE[:, 0], [0, -log(4)]),
        (Contrast(1, 0), ONE, [0, 2 * log(4)]),
        (AgainstRest(0), ONE, [0, -2 * log(4)]),
        (Finer(1), ONE, [0, 2 * log(4)]),
        (Value(), ONE, [0, log(4)]),
        (Probability(0), torch.tensor([[[0.0, 0.0], [log(3), 0.0]]]), [(1 / 4 + 1 / 2) / 2]),  # mean of two pixels
        (Contrast(0, 1), LOGITS, [1 - 5, 4 - 0]),
        (Contrast(0, 1, weight=0.5), LOGITS, [1 - 2.5, 4 - 0]),
        (Contrast(0, (1, 2)), LOGITS, [1 - 3.5, 4 - 1.5]),
        (Contrast(0, (1, 2), shares=(1, 3)), LOGITS, [1 - (5 + 6) / 4, 4 - (0 + 9) / 4]),
        (Finer(0, rivals=1), LOGITS, [1 - 2, 4 - 3]),  # 2 is nearest to 1, and 3 to 4
        (Finer(1, rivals=1, weight=0.5), LOGITS, [5 - 0.5 * 2, 0 - 0.5 * 3]),
        (Finer(0, rivals=2, weighting="mean"), LOGITS, [1 - 3.5, 4 - 1.5]),
        (Finer(0, weighting="mean", weight=0.6), LOGITS, [1 - 0.6 * 3.5, 4 - 0.6 * 1.5]),  # there are but two rivals
        (Finer(0), torch.tensor([[0.0, log(3), log(6)]]), [-(1 / 3 * log(3) + 2 / 3 * log(6))]),  # p of .3 and .6
        (AgainstRest(0), LOGITS, [1 - 3.5, 4 - 1.5]),
        (AgainstRest(0, "max"), LOGITS, [1 - 5, 4 - 3]),
        (AgainstRest(0, "logsumexp"), torch.tensor([[1.0, log(2), log(5)]]), [1 - log(7)]),
        (AgainstRest(0), PLANES, [-16, -16]),  # 4 less at each of the pixels
        (Negated(ClassScore(1)), LOGITS, [-5, 0]),
        (Negated(Negated(Custom(lambda one: one[0]))), LOGITS, [1, 4]),
        (Value(), LOGITS, [1, 4]),
        (Value(2), LOGITS, [2, 3]),
        (Value(), torch.tensor([7.0, 8.0]), [7, 8]),
        (Value(5), PLANES, [5, 13]),
        (Region(1, torch.tensor([[1, 0], [0, 1]])), PLANES, [4 + 7, 12 + 15]),
        (Region(1, torch.tensor([[True, False], [False, True]])), PLANES, [4 + 7, 12 + 15]),
        (Region(0, torch.tensor([[0.5, 0.0], [0.0, 0.0]])), PLANES, [0, 4]),
        (Region(1, np.array([[True, False], [False, True]])), PLANES, [4 + 7, 12 + 15]),
        (Region(0, torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]])), PLANES, [(0 + 2) / 2 + 2 / 2, (8 + 10) / 2 + 10 / 2]),
        (Region(1, torch.ones(1, 1)), PLANES, [4 + 5 + 6 + 7, 12 + 13 + 14 + 15]),
        (Region(1, torch.ones(2, 2)), torch.tensor([[[[1.0, -2.0], [3.0, 4.0]]]]), [6]),  # one plane: of two classes
        (Region(0, torch.ones(2, 2)), torch.tensor([[[[1.0, -2.0], [3.0, 4.0]]]]), [-6]),
        (Point(1, 0, 0), PLANES, [1, 9]),
        (Point(0.9, 1.5), PLANES, [6, 14]),  # class 1, which is the highest everywhere
        (Region.at(1, (1.5, 1.5)), PLANES, [7, 15]),
        (Similarity(torch.tensor([3.0, 4.0])), torch.tensor([[6.0, 8.0], [-4.0, 3.0], [1.0, 0.0]]), [1, 0, 0.6]),
        (Custom(lambda one: one[0] * one[1]), LOGITS, [5, 0]),
        (Custom(lambda one: one.max(0, keepdim=True).values), LOGITS, [5, 4]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_target_gives_one_number_an_image(target: Target, output: Tensor, expected: list[float]) -> None:
    scores = target(output)
    assert scores.shape == (len(output),)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float32))
    torch.testing.assert_close(score([target] * len(output), output), scores)


@pytest.mark.parametrize("index", [3, -1, 1000])
@pytest.mark.parametrize(
    "target",
    [
        ClassScore,
        Probability,
        Value,
        Finer,
        AgainstRest,
        lambda index: Contrast(index, 0),
        lambda index: Contrast(0, index),
        lambda index: Negated(ClassScore(index)),
    ],
    ids=["ClassScore", "Probability", "Value", "Finer", "AgainstRest", "Contrast of", "Contrast against", "Negated"],
)
def test_a_class_that_does_not_exist_is_refused(target: Any, index: int) -> None:
    with pytest.raises(TargetError, match=rf"{index} does not exist: the model has 3 classes, 0 to 2"):
        target(index)(LOGITS)
    with pytest.raises(TargetError, match=rf"{index} does not exist"):
        score([target(index)] * 2, LOGITS)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3), r"mask has shape \(3,\), but .* \(2, 2\); give a mask with as many axes, of any size"),
        (torch.ones(1, 2, 2), r"mask has shape \(1, 2, 2\)"),
        (torch.ones(0, 2), r"mask has shape \(0, 2\)"),
        (torch.zeros(2, 2), "mask is empty where the model looks"),
        (torch.tensor([[1.0, -1.0], [0.0, 0.0]]), "mask holds negative weights"),
        (torch.full((2, 2), torch.nan), "mask holds negative weights"),
    ],
)
def test_a_mask_that_marks_nothing_is_refused(mask: Tensor, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Region(0, mask)(PLANES)


def test_a_region_is_about_a_plane_of_scores() -> None:
    with pytest.raises(TargetError, match=r"for an image and a class has shape \(\)"):
        Region(0, torch.ones(2, 2))(LOGITS)
    with pytest.raises(TargetError, match=r"Point is about a place, but the model's output for an image is \(3,\)"):
        Point(0, 0)(LOGITS)
    for x, y in ((2, 0), (0, 2), (-0.1, 0)):
        with pytest.raises(TargetError, match="is outside of what the model sees"):
            Point(x, y)(PLANES)


def test_a_mask_over_what_has_no_two_axes_lies_over_that_and_not_over_the_photo() -> None:
    steps = torch.arange(8.0).reshape(2, 4)
    (target,) = choose(Region(1, torch.tensor([1.0, 0.0])), steps, None, Geometry.whole(40, 60))
    torch.testing.assert_close(target(steps[None]), torch.tensor([4.0 + 5.0]))


@pytest.mark.parametrize(
    ("function", "came"),
    [
        (lambda one: one, r"a tensor of shape \(3,\)"),
        (lambda one: float(one[0]), "float"),
        (lambda one: None, "NoneType"),
    ],
)
def test_a_callable_must_return_a_tensor_with_one_number(function: Any, came: str) -> None:
    with pytest.raises(TargetError, match=f"<lambda> returned {came}; it must return a tensor with one number"):
        Custom(function)(LOGITS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Finer(0, rivals=0), "Finer's rivals is 0; it must be 1 or more"),
        (lambda: Finer(0, weighting="means"), r"Finer's weighting 'means' is unknown; .*Did you mean 'mean'"),
        (
            lambda: AgainstRest(0, "logsumexps"),
            r"AgainstRest's how 'logsumexps' is unknown; .*Did you mean 'logsumexp'",
        ),
        (lambda: Contrast(0, (1, 2), shares=(1.0,)), r"shares \(1\.0,\) do not fit its 2 rivals"),
        (lambda: Contrast(0, 1, shares=(0.0,)), "give each a positive number"),
        (lambda: Negated(3), r"Negated takes a target such as ClassScore\(3\), .* got int"),
        (lambda: Negated(max), "got builtin_function_or_method"),
        (lambda: Finer(0)(PLANES), r"shape \(2, 2, 2\), not \(K,\)"),
        (lambda: Probability(0, of="sigmod"), r"Probability's of 'sigmod' is unknown; .*Did you mean 'sigmoid'"),
        (lambda: Box((0, 0, 0, 1)), r"Box \(0, 0, 0, 1\) is empty"),
        (lambda: Box((0, 0, 1, 1), 0, 0), "iou_threshold is 0; it must be above 0 and at most 1"),
        (lambda: Box((0, 0, 1, 1), 0, 1.1), "iou_threshold is 1.1"),
        (lambda: Box((0, 0, 1, 1))(LOGITS), "about a detection, but the model is no detector"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        make()


# ---------------------------------------------------------------------------------------------- finer comparisons


def peers_finer_score(outputs: list[float], index: int, rivals: list[int], weight: float) -> float:
    """As pytorch-grad-cam's FinerWeightedTarget has it: ``Σ_d p_d (y_c - weight y_d) / Σ_d p_d``."""
    total = sum(exp(value) for value in outputs)
    above, below = 0.0, 0.0
    for rival in rivals:
        p = exp(outputs[rival]) / total
        above += p * (outputs[index] - weight * outputs[rival])
        below += p
    return above / below


@pytest.mark.parametrize("weight", [0.0, 0.6, 1.0])
def test_finers_score_is_the_authors(weight: float) -> None:
    output = torch.randn(4, 9, dtype=torch.float64)
    expected = []
    for row in output.tolist():
        ranked = sorted(range(9), key=lambda index: abs(row[index] - row[2]))
        assert ranked[0] == 2
        expected.append(peers_finer_score(row, 2, ranked[1:4], weight))
    torch.testing.assert_close(Finer(2, weight=weight)(output), torch.tensor(expected, dtype=torch.float64))


def test_finers_gradient_is_that_of_the_differences_between_logits() -> None:
    output = torch.tensor([[0.0, log(3), log(6), -9.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(Finer(0, rivals=2, weight=0.5)(output).sum(), output)
    torch.testing.assert_close(gradient, torch.tensor([[1, -0.5 / 3, -0.5 * 2 / 3, 0]]))


def test_finers_shares_survive_probabilities_that_vanish() -> None:
    output = torch.tensor([[-500.0, -500.0, -499.0, 1e4]])
    target = Finer(0, rivals=2).settled(output[0])
    assert target.rivals == (1, 2)
    torch.testing.assert_close(torch.tensor(target.shares), torch.tensor([1 / (1 + exp(1)), exp(1) / (1 + exp(1))]))


def test_finers_rivals_are_settled_on_the_image_itself() -> None:
    target = Finer(0, rivals=1, weighting="mean")
    assert choose(target, LOGITS[0], LABELS) == [Contrast(0, (2,), shares=(1.0,))]
    assert choose(Negated(target), LOGITS[1], LABELS) == [Negated(Contrast(0, (2,), shares=(1.0,)))]
    assert choose(Finer(1, rivals=1), torch.tensor([2.0, 2.0, 2.0]), None)[0].rivals == (0,)  # a tie goes to the first


def test_what_raises_all_classes_alike_is_no_reason_for_one_against_the_rest() -> None:
    for how in ("mean", "max", "logsumexp"):
        torch.testing.assert_close(AgainstRest(1, how)(LOGITS + 7), AgainstRest(1, how)(LOGITS))


def test_against_the_logsumexp_of_the_rest_a_class_has_its_log_odds() -> None:
    p = probabilities(LOGITS)[:, 1]
    torch.testing.assert_close(AgainstRest(1, "logsumexp")(LOGITS), (p / (1 - p)).log())


def test_only_what_is_about_a_region_has_a_place() -> None:
    region, box = Region(0, torch.ones(2, 2)), Box((0, 0, 1, 1))
    placed = [region, Negated(region), Point(0, 0), box, Negated(box), Detection()]
    assert all(map(has_a_place, placed))
    assert not any(map(has_a_place, [Negated(ClassScore(0)), Finer(0), Custom(max)]))


# ------------------------------------------------------------------------------------------------ many at once


def test_each_image_has_its_own_target() -> None:
    output = torch.randn(10, 4)
    targets = [
        ClassScore(2),
        Probability(1),
        Contrast(3, (0, 1)),
        Value(1),
        Similarity(torch.randn(4)),
        Custom(lambda one: one.norm()),
        Finer(0),
        AgainstRest(3, "max"),
        Negated(ClassScore(2)),
        ClassScore(0),
    ]
    each = [target(output[i : i + 1]) for i, target in enumerate(targets)]
    torch.testing.assert_close(score(targets, output), torch.cat(each))


@dataclass(frozen=True)
class Lead(Target):
    """A person's own: how far the highest logit lies above the next. All images must come at once."""

    images: int

    def __call__(self, output: Any) -> Tensor:
        assert len(output) == self.images
        first, second = logits(output).topk(2).values.T
        return first - second


def test_a_persons_own_target_is_asked_about_all_images_at_once() -> None:
    (own,), (negated,) = choose(Lead(2), LOGITS[0], LABELS), choose(Negated(Lead(2)), LOGITS[0], LABELS)
    assert (own, negated) == (Lead(2), Negated(Lead(2)))
    torch.testing.assert_close(score([own, Lead(2)], LOGITS), torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(score([negated, negated], LOGITS), torch.tensor([-3.0, -1.0]))
    assert (class_of(own), name_of(own, LABELS), has_a_place(own)) == (None, "Lead(images=2)", False)
    assert probability(own, 3.0, np.array([0.8, 0.1, 0.1])) is None


def test_class_scores_alone_are_the_same_as_among_others() -> None:
    output, targets = torch.randn(3, 4, 2, 2), [ClassScore(1), ClassScore(3), ClassScore(0)]
    among_others = score([*targets, Probability(0)], torch.cat([output, output[:1]]))[:3]
    torch.testing.assert_close(score(targets, output), among_others)


def test_what_is_not_one_entry_an_image_reaches_a_callable_whole() -> None:
    scale, texts = torch.tensor(10.0), torch.randn(5, 3)

    def best(one: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        image, text, factor = one
        return factor * (text @ image).max()

    expected = 10 * (LOGITS @ texts.T).amax(1)
    torch.testing.assert_close(score([Custom(best)] * 2, (LOGITS, texts, scale)), expected)


# ----------------------------------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("want", "expected"),
    [
        (None, [ClassScore(1)]),
        (Top(2), [ClassScore(1), ClassScore(2)]),
        (Top(9), [ClassScore(1), ClassScore(2), ClassScore(0)]),
        (2, [ClassScore(2)]),
        (np.int64(2), [ClassScore(2)]),
        (np.uint8(2), [ClassScore(2)]),
        (torch.tensor(2), [ClassScore(2)]),
        (torch.tensor(2, dtype=torch.uint8), [ClassScore(2)]),
        ("tabby, tabby cat", [ClassScore(0)]),
        ("Tabby, TABBY cat", [ClassScore(0)]),
        (Contrast(0, 1), [Contrast(0, 1)]),
        (Value(1), [Value(1)]),
        (max, [Custom(max)]),
    ],
    ids=repr,
)
def test_a_wish_becomes_targets(want: Any, expected: list[Target]) -> None:
    chosen = choose(want, LOGITS[0], LABELS)
    if want is max:  # a target that holds a function or a tensor equals only itself
        assert isinstance(chosen[0], Custom)
        assert chosen[0].function is max
    else:
        assert chosen == expected
        assert all(type(target.index) is int for target in chosen if isinstance(target, ClassScore))


@pytest.mark.parametrize(
    ("want", "message"),
    [
        (3, "3 does not exist: the model has 3 classes, 0 to 2"),
        (-1, "-1 does not exist"),
        (np.int64(-1), "-1 does not exist"),
        (torch.tensor(3), "3 does not exist"),
        (True, "must be None, an index, .* got bool"),
        (np.True_, "must be None, an index, .* got bool"),
        (torch.tensor(True), "must be None, an index, .* got bool"),
        (1.0, "got float"),
        (torch.tensor(1.0), "got float"),
        (torch.tensor([1, 2]), "got Tensor"),
        ({"class": 1}, "got dict"),
        ("tabby", r"'tabby' is not among the 3 labels\. Did you mean 'tabby, tabby cat'"),
        ("zebra", r"'zebra' is not among the 3 labels\.$"),
        ("crane", r"'crane' names the classes \[1, 2\]; pass one of these indices"),
        (Top(0), r"Top\(k=0\): k must be 1 or more"),
        (Top(-1), r"Top\(k=-1\): k must be 1 or more"),
    ],
    ids=repr,
)
def test_a_wish_that_cannot_be_met_is_refused(want: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        choose(want, LOGITS[0], LABELS)


def test_a_word_lists_the_labels_that_have_it_whole_words_first() -> None:
    labels = ["catamaran", "tiger cat", "dog", "Egyptian cat", "wildcat", "concat"]
    with pytest.raises(TargetError) as error:
        choose("Cat", torch.zeros(6), labels)
    assert "Labels with 'Cat': tiger cat (1), Egyptian cat (3), catamaran (0); ask" in str(error.value)


def test_a_word_of_many_labels_lists_some_and_counts_the_rest() -> None:
    with pytest.raises(TargetError, match=r"dog 19 \(19\), and 5 more; ask for one"):
        choose("dog", torch.zeros(25), [f"dog {n}" for n in range(25)])


def test_a_name_needs_labels() -> None:
    with pytest.raises(TargetError, match="'tabby' is a name, but no labels are known; pass labels="):
        choose("tabby", LOGITS[0], None)


@pytest.mark.parametrize("want", [None, Top(3)])
def test_what_is_neither_scores_nor_planes_has_no_top_class(want: Top | None) -> None:
    with pytest.raises(TargetError, match=r"shape \(2, 4\), not \(K,\); pass a class index, or a callable"):
        choose(want, PLANES[0].flatten(1), None)
    assert choose(1, PLANES[0].flatten(1), None) == [ClassScore(1)]


# ------------------------------------------------------------------------------------------------- a single logit


@pytest.mark.parametrize(("logit", "index"), [(2.0, 1), (-2.0, 0), (1e-6, 1)])
def test_the_sign_of_a_single_logit_says_which_of_two_classes(logit: float, index: int) -> None:
    answer = torch.tensor([logit])
    (target,) = choose(None, answer, ["sound", "crack"])
    assert target == ClassScore(index)
    assert float(target(answer[None])) == pytest.approx(abs(logit))
    assert choose(["sound", "crack"][index], answer, ["sound", "crack"]) == [target]
    chances = probabilities(answer[None])[0].numpy()
    assert probability(target, abs(logit), chances) == pytest.approx(1 / (1 + exp(-abs(logit))))
    with pytest.raises(TargetError, match="2 does not exist: the model has 2 classes, 0 to 1"):
        choose(2, answer, None)


def test_a_regression_has_no_classes() -> None:
    answer = torch.tensor([-3.5])
    (target,) = choose(Value(), answer, None)
    assert float(target(answer[None])) == -3.5
    assert probability(target, -3.5, probabilities(answer[None])[0].numpy()) is None


# ------------------------------------------------------------------------------------------------- how probable


@pytest.mark.parametrize(
    ("target", "value", "expected"),
    [
        (ClassScore(1), 5.0, 0.2),
        (Negated(ClassScore(1)), -5.0, 0.2),
        (Contrast(1, 0), 5.0, 0.2),
        (Probability(1, of="sigmoid"), 0.75, 0.75),  # not the share that softmax gives it
        (Negated(Probability(1, of="sigmoid")), -0.75, 0.75),
        (Value(1), 5.0, None),
        (Custom(max), 5.0, None),
    ],
    ids=str,
)
def test_what_a_target_is_about_has_a_probability(target: Target, value: float, expected: float | None) -> None:
    assert probability(target, value, np.array([0.8, 0.2])) == expected


def test_a_regions_probability_is_that_inside_it() -> None:
    chances = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.9, 0.8], [0.7, 0.6]]])
    assert probability(Region(1, torch.tensor([[1.0, 0.0], [0.0, 2.0]])), 0.0, chances) == pytest.approx(0.7)
    assert probability(ClassScore(1), 0.0, chances) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("target", "index", "name"),
    [
        (ClassScore(1), 1, "Crane"),
        (ClassScore(7), 7, "class 7"),  # more classes than labels
        (Probability(0), 0, "probability of tabby, tabby cat"),
        (Contrast(2, 0), 2, "crane rather than tabby, tabby cat"),
        (Contrast(2, (0, 1)), 2, "crane rather than tabby, tabby cat, Crane"),
        (Finer(2), 2, "crane rather than its like"),
        (AgainstRest(2), 2, "crane rather than the rest"),
        (Negated(ClassScore(1)), 1, "not Crane"),
        (Negated(AgainstRest(1)), 1, "not Crane rather than the rest"),
        (Negated(Custom(max)), None, "not max"),
        (Region(1, torch.ones(2, 2)), 1, "Crane"),
        (Custom(max), None, "max"),
        (Value(1), None, "value 1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_target_knows_its_class_and_its_name(target: Target, index: int | None, name: str) -> None:
    assert class_of(target) == index
    assert name_of(target, LABELS) == name
    assert f"class {index}" in name_of(target, None) or index is None


def test_a_similaritys_name_does_not_spell_out_the_embedding() -> None:
    assert name_of(Similarity(torch.randn(512)), LABELS) == "similarity"


def test_a_contrast_needs_rivals_and_numbers() -> None:
    with pytest.raises(TargetError, match=r"Contrast's against is empty"):
        Contrast(1, ())
    for shares in ((float("nan"), 1.0), (float("inf"), 1.0), (0.0, 0.0)):
        with pytest.raises(TargetError, match=r"shares .* do not fit its 2 rivals"):
            Contrast(1, (2, 3), shares=shares)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ClassScore("a"), "ClassScore's index is 'a'; it must be a whole number"),
        (lambda: Probability(1.5), "Probability's index is 1.5"),
        (lambda: Contrast("a dog", "a cat"), "Contrast's of is 'a dog'"),
        (lambda: Contrast(1, "a cat"), "Contrast's against is 'a cat'"),
        (lambda: Finer(None), "Finer's index is None"),
        (lambda: AgainstRest("a"), "AgainstRest's index"),
        (lambda: Value("a"), "Value's index"),
        (lambda: Region("a", torch.ones(2, 2)), "Region's class_index"),
        (lambda: Point(1, (40, 50)), r"Point's x and y must be 2 numbers, got \(1, \(40, 50\)\)"),
        (lambda: Point(1, 2, "a"), "Point's class_index"),
        (lambda: Detection("a"), "Detection's n"),
        (lambda: Box(0), "Box's xyxy must be 4 numbers, got 0"),
        (lambda: Box((1, 2, 3)), "Box's xyxy must be 4 numbers"),
        (lambda: Box((1, 2, 3, 4), "a"), "Box's class_index"),
        (lambda: choose(Top("a"), torch.zeros(3), None), "Top's k is 'a'"),
    ],
)
def test_what_is_no_number_is_refused(make: Any, match: str) -> None:
    with pytest.raises(TargetError, match=match):
        make()


def test_numbers_may_be_numpys_or_tensors() -> None:
    output = torch.tensor([[1.0, 5.0, 2.0]])
    assert ClassScore(np.int64(1))(output) == ClassScore(torch.tensor(1))(output) == 5
    assert Contrast(1, np.int64(0))(output) == 4


def test_a_model_of_texts_has_no_classes_in_whatever_form() -> None:
    for want in (Finer(1), ClassScore(1), Negated(ClassScore(1)), torch.tensor(3), Contrast(1, 0)):
        with pytest.raises(TargetError, match="compares pictures with texts and has no classes"):
            from_texts([want], torch.zeros)


def test_an_embedding_is_found_beside_the_similarities() -> None:
    output = {"logits_per_image": torch.zeros(1, 2), "image_embeds": torch.tensor([[3.0, 4.0]])}
    assert Similarity(torch.tensor([1.0, 0.0]))(output) == pytest.approx(0.6)


def test_a_class_that_a_detector_cannot_know_does_not_exist() -> None:
    found = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    with pytest.raises(TargetError, match="-1 does not exist: classes count from 0"):
        choose(-1, found, None)
    with pytest.raises(TargetError, match="2 does not exist: labels has 2 names"):
        choose(2, found, ["cat", "dog"])
    with pytest.raises(NothingFoundError):
        choose(1, found, ["cat", "dog"])
