"""What is explained: each target's numbers, what a person may ask for, and the outputs that models return."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.targets import (
    AgainstRest,
    ClassScore,
    Contrast,
    Custom,
    Finer,
    Negated,
    Probability,
    Region,
    Similarity,
    Target,
    Top,
    Value,
    choose,
    class_of,
    has_a_place,
    logits,
    name_of,
    probabilities,
    score,
)

LOGITS = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
"""Two images, three classes."""

PLANES = torch.arange(16.0).reshape(2, 2, 2, 2)
"""Two images, two classes, 2 x 2 pixels."""

LABELS = ["tabby, tabby cat", "Crane", "crane"]


class Answer(OrderedDict):
    """A dictionary whose entries are attributes too, as Hugging Face's models return."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


# -------------------------------------------------------------------------------------------------- each by hand


@pytest.mark.parametrize(
    ("target", "output", "expected"),
    [
        (ClassScore(1), LOGITS, [5, 0]),
        (ClassScore(1), PLANES, [4 + 5 + 6 + 7, 12 + 13 + 14 + 15]),  # summed over the pixels
        (Probability(0), torch.tensor([[0.0, log(3)], [log(4), 0.0]]), [1 / 4, 4 / 5]),
        (Probability(0), torch.tensor([[0.0], [log(4)]]), [1 / 2, 4 / 5]),  # one logit: its sigmoid
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


def test_a_region_must_have_the_outputs_size() -> None:
    with pytest.raises(TargetError, match=r"mask has shape \(3, 3\), but the model's output has \(2, 2\) pixels"):
        Region(0, torch.ones(3, 3))(PLANES)


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
        (lambda: Finer(0)(torch.zeros(2, 1)), r"shape \(1,\), not \(K,\) with two classes or more"),
        (lambda: Finer(0)(PLANES), r"shape \(2, 2, 2\), not \(K,\)"),
        (lambda: AgainstRest(0)(torch.zeros(2, 1)), "one class, so there is no rest"),
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
    region = Region(0, torch.ones(2, 2))
    assert [has_a_place(target) for target in (region, Negated(region), Negated(ClassScore(0)), Finer(0))] == [
        *(True, True, False, False)
    ]


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


def test_a_name_needs_labels() -> None:
    with pytest.raises(TargetError, match="'tabby' is a name, but no labels are known; pass labels="):
        choose("tabby", LOGITS[0], None)


@pytest.mark.parametrize("want", [None, Top(3)])
def test_a_map_of_classes_has_no_top_class(want: Top | None) -> None:
    with pytest.raises(TargetError, match=r"shape \(2, 2, 2\), not \(K,\); pass a class index or a target"):
        choose(want, PLANES[0], None)
    assert choose(1, PLANES[0], None) == [ClassScore(1)]


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
        (Value(1), None, "Value(index=1)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_target_knows_its_class_and_its_name(target: Target, index: int | None, name: str) -> None:
    assert class_of(target) == index
    assert name_of(target, LABELS) == name
    assert f"class {index}" in name_of(target, None) or index is None


def test_a_similaritys_name_does_not_spell_out_the_embedding() -> None:
    assert name_of(Similarity(torch.randn(512)), LABELS) == "similarity"


# ------------------------------------------------------------------------------------------------- models' outputs

Pair = namedtuple("Pair", "logits state")
AUX = torch.randn(2, 9)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, AUX),
        [LOGITS, AUX],
        Pair(LOGITS, AUX),
        {"out": LOGITS, "aux": AUX},
        {"aux": AUX, "out": LOGITS},
        {"hidden": AUX, "logits": LOGITS},
        OrderedDict(aux=AUX, logits=LOGITS),
        Answer(hidden=AUX, logits=LOGITS),
        UserDict({"hidden": AUX, "logits": LOGITS}),
        {"logits": (LOGITS, AUX)},
        (None, torch.tensor([1, 2]), LOGITS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_scores_are_found_in_whatever_a_model_returns(output: Any) -> None:
    assert torch.equal(logits(output), LOGITS)
    assert score([ClassScore(1), ClassScore(0)], output).tolist() == [5, 4]
    assert score([ClassScore(1), Value(0)], output).tolist() == [5, 4]


def test_a_callable_sees_one_image_in_the_models_own_structure() -> None:
    seen: list[Any] = []

    def first(one: Answer) -> Tensor:
        seen.append((type(one), one.hidden.shape, one["logits"].shape))
        return one.logits[0]

    assert Custom(first)(Answer(hidden=AUX, logits=LOGITS)).tolist() == [1, 4]
    assert seen == [(Answer, (9,), (3,))] * 2


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=str)
def test_a_model_with_one_logit_has_one_class(shape: tuple[int, ...]) -> None:
    output = torch.tensor([0.0, 2.0]).reshape(shape)
    assert choose(None, logits(output)[0], ["crack"]) == [ClassScore(0)]
    assert score([ClassScore(0), ClassScore(0)], output).tolist() == [0, 2]
    torch.testing.assert_close(probabilities(output), torch.tensor([[0.5], [1 / (1 + exp(-2))]]))
    torch.testing.assert_close(score([Probability(0), Value()], output), torch.tensor([0.5, 2.0]))


@pytest.mark.parametrize("output", ["yes", None, {}, (1, 2), torch.tensor([1, 2]), torch.tensor(1.0)], ids=repr)
def test_an_output_without_scores_is_refused(output: Any) -> None:
    with pytest.raises(TargetError, match=f"the model returned {type(output).__name__} without a tensor of scores"):
        logits(output)


def test_a_contrast_needs_rivals_and_numbers() -> None:
    with pytest.raises(TargetError, match=r"Contrast's against is empty"):
        Contrast(1, ())
    for shares in ((float("nan"), 1.0), (float("inf"), 1.0), (0.0, 0.0)):
        with pytest.raises(TargetError, match=r"shares .* do not fit its 2 rivals"):
            Contrast(1, (2, 3), shares=shares)
