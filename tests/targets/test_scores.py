"""Scores of every target, checked by hand, and arguments that are refused."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.outputs.class_scores import find_logits
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
    ScoreContext,
    Similarity,
    Target,
    Top,
    Value,
    resolve_targets,
    score_targets,
)
from tests.targets.example_outputs import LABELS, LOGITS, PLANES

ONE = torch.tensor([[0.0], [log(4)]])
"""Two images, a single logit."""


# ----------------------------------------------------------------------------------------------------------- one by one


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
        (Finer(0, weighting="mean", weight=0.6), LOGITS, [1 - 0.6 * 3.5, 4 - 0.6 * 1.5]),  # there are only two rivals
        (Finer(0), torch.tensor([[0.0, log(3), log(6)]]), [-(1 / 3 * log(3) + 2 / 3 * log(6))]),  # p of .3 and .6
        (AgainstRest(0), LOGITS, [1 - 3.5, 4 - 1.5]),
        (AgainstRest(0, "max"), LOGITS, [1 - 5, 4 - 3]),
        (AgainstRest(0, "logsumexp"), torch.tensor([[1.0, log(2), log(5)]]), [1 - log(7)]),
        (AgainstRest(0), PLANES, [-16, -16]),  # a difference of -4 at each pixel
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
        (Region(1, torch.ones(2, 2)), torch.tensor([[[[1.0, -2.0], [3.0, 4.0]]]]), [6]),  # one plane gives two classes
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
def test_every_target_returns_one_score_per_image(target: Target, output: Tensor, expected: list[float]) -> None:
    scores = target(output)
    assert scores.shape == (len(output),)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float32))
    torch.testing.assert_close(score_targets([target] * len(output), output), scores)


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
def test_class_that_does_not_exist_is_refused(target: Any, index: int) -> None:
    with pytest.raises(TargetError, match=rf"{index} does not exist: the model has 3 classes, 0 to 2"):
        target(index)(LOGITS)
    with pytest.raises(TargetError, match=rf"{index} does not exist"):
        score_targets([target(index)] * 2, LOGITS)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3), r"mask has shape \(3,\), but .* \(2, 2\); pass a mask with the same number of axes"),
        (torch.ones(1, 2, 2), r"mask has shape \(1, 2, 2\)"),
        (torch.ones(0, 2), r"mask has shape \(0, 2\)"),
        (torch.zeros(2, 2), "mask is empty in the part that reaches the model"),
        (torch.tensor([[1.0, -1.0], [0.0, 0.0]]), "mask holds negative weights"),
        (torch.full((2, 2), torch.nan), "mask holds negative weights"),
    ],
)
def test_region_refuses_a_mask_that_does_not_fit(mask: Tensor, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Region(0, mask)(PLANES)


def test_region_and_point_need_score_planes() -> None:
    with pytest.raises(TargetError, match=r"for an image and a class has shape \(\)"):
        Region(0, torch.ones(2, 2))(LOGITS)
    with pytest.raises(TargetError, match=r"Point needs score planes .* has shape \(3,\)"):
        Point(0, 0)(LOGITS)
    for x, y in ((2, 0), (0, 2), (-0.1, 0)):
        with pytest.raises(TargetError, match="is outside of the part of the photo"):
            Point(x, y)(PLANES)


@pytest.mark.parametrize(
    ("function", "came"),
    [
        (lambda one: one, r"a tensor of shape \(3,\)"),
        (lambda one: float(one[0]), "float"),
        (lambda one: None, "NoneType"),
    ],
)
def test_function_must_return_a_tensor_with_one_number(function: Any, came: str) -> None:
    with pytest.raises(TargetError, match=f"<lambda> returned {came}; it must return a tensor with one number"):
        Custom(function)(LOGITS)


def test_error_of_a_function_says_what_it_gets() -> None:
    with pytest.raises(TargetError, match=r"<lambda> failed with IndexError: .* without the batch axis.*: \(3,\)"):
        Custom(lambda one: one[:, 0])(LOGITS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Finer(0, rivals=0), "Finer's rivals is 0; it must be 1 or more"),
        (lambda: Finer(0, weighting="means"), r"Finer's weighting must be one of .*, got 'means'.*Did you mean 'mean'"),
        (
            lambda: AgainstRest(0, "logsumexps"),
            r"AgainstRest's how must be one of .*, got 'logsumexps'.*Did you mean 'logsumexp'",
        ),
        (lambda: Contrast(0, (1, 2), shares=(1.0,)), r"shares \(1\.0,\) do not fit its 2 rivals"),
        (lambda: Contrast(1, (1, 2)), "Contrast's of, class 1, is in against as well; leave it out there"),
        (lambda: Contrast(np.int64(1), torch.tensor(1)), "Contrast's of, class 1, is in against as well"),
        (lambda: Contrast(0, 1, shares=(0.0,)), "pass one above 0 each"),
        (lambda: Negated(3), r"Negated takes a target such as ClassScore\(3\), .* got int"),
        (lambda: Negated(max), "got builtin_function_or_method"),
        (lambda: Finer(0)(PLANES), r"shape \(2, 2, 2\), not \(K,\)"),
        (
            lambda: Probability(0, of="sigmod"),
            r"Probability's of must be one of .*, got 'sigmod'.*Did you mean 'sigmoid'",
        ),
        (lambda: Box((0, 0, 0, 1)), r"Box's xyxy \(0, 0, 0, 1\) is empty"),
        (lambda: Box((0, 0, 1, 1), 0, 0), "iou_threshold must be a finite number above 0 and at most 1, got 0"),
        (lambda: Box((0, 0, 1, 1), 0, 1.1), "iou_threshold must be .*, got 1.1"),
        (lambda: Box((0, 0, 1, 1))(LOGITS), "about a detection, but the model is not a detector"),
    ],
)
def test_invalid_arguments_of_targets_are_refused(make: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        make()


# --------------------------------------------------------------------------------------------------------- many at once


def test_score_targets_scores_each_image_by_its_own_target() -> None:
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
    torch.testing.assert_close(score_targets(targets, output), torch.cat(each))


@dataclass(frozen=True)
class Lead(Target):
    """A user's own target: the difference between the two highest logits. It requires all images at once."""

    images: int

    def __call__(self, output: Any) -> Tensor:
        assert len(output) == self.images
        first, second = find_logits(output).topk(2).values.T
        return first - second


def test_own_target_scores_all_images_at_once() -> None:
    (own,), (negated,) = (
        resolve_targets(Lead(2), LOGITS[0], LABELS),
        resolve_targets(Negated(Lead(2)), LOGITS[0], LABELS),
    )
    assert (own, negated) == (Lead(2), Negated(Lead(2)))
    torch.testing.assert_close(score_targets([own, Lead(2)], LOGITS), torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(score_targets([negated, negated], LOGITS), torch.tensor([-3.0, -1.0]))
    assert (own.get_class_index(), own.describe(LABELS), own.traits.has_place) == (None, "Lead(images=2)", False)
    assert own.get_probability(ScoreContext(3.0, np.array([0.8, 0.1, 0.1]))) is None


def test_class_scores_are_the_same_alone_and_among_other_targets() -> None:
    output, targets = torch.randn(3, 4, 2, 2), [ClassScore(1), ClassScore(3), ClassScore(0)]
    among_others = score_targets([*targets, Probability(0)], torch.cat([output, output[:1]]))[:3]
    torch.testing.assert_close(score_targets(targets, output), among_others)


@pytest.mark.parametrize("images", [[0, 1, 2], [2, 0, 1], [1, 1, 2, 0], [2]])
def test_the_logits_of_several_classes_are_those_of_each_image(images: list[int]) -> None:
    output = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    indices = [3, 0, 1, 3][: len(images)]
    weights = torch.arange(1.0, 1 + len(images), dtype=torch.float64)
    scores = score_targets([ClassScore(index) for index in indices], output, images)
    assert scores.tolist() == [output[image, index].item() for image, index in zip(images, indices, strict=True)]
    (gradient,) = torch.autograd.grad(scores @ weights, output)
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for image, index, weight in zip(images, indices, weights, strict=True):
        expected[image, index] += weight
    assert torch.equal(gradient, expected)


def test_several_classes_of_a_single_logit_are_scored_by_their_sign() -> None:
    assert score_targets([ClassScore(0), ClassScore(1)], ONE).tolist() == pytest.approx([0, log(4)])
    assert score_targets([ClassScore(0, of="identity"), ClassScore(1)], ONE).tolist() == pytest.approx([1, log(4)])


def test_one_missing_class_among_several_is_refused() -> None:
    with pytest.raises(TargetError, match="7"):
        score_targets([ClassScore(0), ClassScore(7)], LOGITS)


@dataclass(frozen=True)
class Doubled(ClassScore):
    """A user's own target that derives from a class score."""

    def __call__(self, output: Any) -> Tensor:
        return 2 * super().__call__(output)


def test_own_class_scores_are_called() -> None:
    expected = [2 * float(LOGITS[0, 1]), 2 * float(LOGITS[1, 2])]
    assert score_targets([Doubled(1), Doubled(2)], LOGITS).tolist() == expected


def test_function_gets_tensors_without_a_batch_axis_whole() -> None:
    scale, texts = torch.tensor(10.0), torch.randn(5, 3)

    def best(one: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        image, text, factor = one
        return factor * (text @ image).max()

    expected = 10 * (LOGITS @ texts.T).amax(1)
    torch.testing.assert_close(score_targets([Custom(best)] * 2, (LOGITS, texts, scale)), expected)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ClassScore("a"), "ClassScore's index must be a whole number, got 'a'"),
        (lambda: Probability(1.5), "Probability's index must be a whole number, got 1.5"),
        (lambda: Contrast("a dog", "a cat"), "Contrast's of must be a whole number, got 'a dog'"),
        (lambda: Contrast(1, "a cat"), "Contrast's against must be a whole number, got 'a cat'"),
        (lambda: Contrast(1, True), "Contrast's against must be a whole number, got True"),
        (lambda: Contrast(1, [0.0]), "Contrast's against must be a whole number, got 0.0"),
        (lambda: Contrast(1, 0, "a"), "Contrast's weight must be a finite number, got 'a'"),
        (lambda: Contrast(1, 0, float("nan")), "Contrast's weight must be a finite number, got nan"),
        (lambda: Contrast(1, (0, 2), shares=("a", "b")), "Contrast's shares .* do not fit its 2 rivals"),
        (lambda: Contrast(1, (0, 2), shares=1.0), "Contrast's shares .* do not fit its 2 rivals"),
        (lambda: Finer(1, weight=float("inf")), "Finer's weight must be a finite number, got inf"),
        (lambda: Finer(None), "Finer's index must be a whole number, got None"),
        (lambda: AgainstRest("a"), "AgainstRest's index"),
        (lambda: Value("a"), "Value's index"),
        (lambda: Region("a", torch.ones(2, 2)), "Region's class_index"),
        (lambda: Point(1, (40, 50)), r"Point's x and y must be 2 numbers, got \(1, \(40, 50\)\)"),
        (lambda: Point(1, 2, "a"), "Point's class_index"),
        (lambda: Detection("a"), "Detection's n"),
        (lambda: Box(0), "Box's xyxy must be 4 numbers, got 0"),
        (lambda: Box((1, 2, 3)), "Box's xyxy must be 4 numbers"),
        (lambda: Box((1, 2, 3, 4), "a"), "Box's class_index"),
        (lambda: Box((1, 2, 3, 4), None, "a"), "Box's iou_threshold must be a finite number"),
        (lambda: Custom(3), "Custom's function must be a function, got 3"),
        (lambda: Custom(max, class_index="dog"), "Custom's class_index must be a whole number, or None, got 'dog'"),
        (lambda: Custom(max, box=(1, 2, 3)), r"Custom's box must be 4 numbers, got \(1, 2, 3\)"),
        (lambda: Custom(max, box=(1, 2, 1, 4)), "Custom's box .* is empty"),
        (lambda: Custom(max, label=3), "Custom's label must be a text, or None, got 3"),
        (lambda: Custom(max, warnings=[3]), r"Custom's warnings must be texts, got \[3\]"),
        (lambda: Custom(max, warnings=None), "Custom's warnings must be texts, got None"),
        (lambda: Value(0, 3), "Value's name must be a text, or None, got 3"),
        (lambda: Similarity(torch.ones(2), 3), "Similarity's name must be a text"),
        (lambda: resolve_targets(Top(True), torch.zeros(3), None), "Top's k must be a whole number, got True"),
        (lambda: resolve_targets(Top("a"), torch.zeros(3), None), "Top's k must be a whole number, got 'a'"),
    ],
)
def test_arguments_that_are_not_numbers_are_refused(make: Any, match: str) -> None:
    with pytest.raises(TargetError, match=match):
        make()


def test_numbers_may_be_of_numpy_or_tensors() -> None:
    output = torch.tensor([[1.0, 5.0, 2.0]])
    assert ClassScore(np.int64(1))(output) == ClassScore(torch.tensor(1))(output) == 5
    assert Contrast(1, np.int64(0))(output) == Contrast(1, torch.tensor(0))(output) == 4
    for several in (np.array([0, 2]), torch.tensor([0, 2]), range(0, 3, 2), [0, 2]):
        assert Contrast(1, several, shares=np.array([1.0, 3.0])) == Contrast(1, (0, 2), shares=(1, 3))
        assert Finer(1, similar=several) == Finer(1, similar=(0, 2))


def test_similarity_reads_the_embedding_and_not_the_similarities() -> None:
    output = {"logits_per_image": torch.zeros(1, 2), "image_embeds": torch.tensor([[3.0, 4.0]])}
    assert Similarity(torch.tensor([1.0, 0.0]))(output) == pytest.approx(0.6)
