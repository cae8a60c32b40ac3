"""Answers of targets about themselves: class, label, probability, and whether they have a place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
    Value,
)
from tests.targets.example_outputs import LABELS


def test_only_targets_about_a_part_of_the_image_have_a_place() -> None:
    region, box = Region(0, torch.ones(2, 2)), Box((0, 0, 1, 1))
    placed = [region, Negated(region), Point(0, 0), box, Negated(box), Detection()]
    assert all(target.traits.has_place for target in placed)
    assert not any(target.traits.has_place for target in [Negated(ClassScore(0)), Finer(0), Custom(max)])


# -------------------------------------------------------------------------------------------------------- probabilities


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
def test_targets_have_the_probability_of_their_class(target: Target, value: float, expected: float | None) -> None:
    assert target.get_probability(ScoreContext(value, np.array([0.8, 0.2]))) == expected


def test_region_has_the_mean_probability_inside_its_mask() -> None:
    probabilities = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.9, 0.8], [0.7, 0.6]]])
    assert Region(1, torch.tensor([[1.0, 0.0], [0.0, 2.0]])).get_probability(
        ScoreContext(0.0, probabilities)
    ) == pytest.approx(0.7)
    assert ClassScore(1).get_probability(ScoreContext(0.0, probabilities)) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("target", "index", "name"),
    [
        (ClassScore(1), 1, "Crane"),
        (ClassScore(7), 7, "class 7"),  # more classes than labels
        (Probability(0), 0, "probability of tabby, tabby cat"),
        (Contrast(2, 0), 2, "crane rather than tabby, tabby cat"),
        (Contrast(2, (0, 1)), 2, "crane rather than tabby, tabby cat, Crane"),
        (Finer(2), 2, "crane rather than similar classes"),
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
def test_targets_have_a_class_and_a_label(target: Target, index: int | None, name: str) -> None:
    assert target.get_class_index() == index
    assert target.describe(LABELS) == name
    assert f"class {index}" in target.describe(None) or index is None


def test_label_of_a_similarity_does_not_contain_the_embedding() -> None:
    assert Similarity(torch.randn(512)).describe(LABELS) == "similarity"
