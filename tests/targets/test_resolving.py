"""Requests of the user, resolved to targets on an image's output."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np
import pytest
import torch

from camtool.errors import NothingFoundError, TargetError
from camtool.geometry.crop_and_resize import Geometry
from camtool.outputs.class_scores import compute_probabilities
from camtool.outputs.detections import Detections
from camtool.targets import (
    ClassScore,
    Contrast,
    Custom,
    Finer,
    Negated,
    Region,
    ScoreContext,
    Target,
    Top,
    Value,
    encode_texts,
    resolve_targets,
)
from tests.targets.example_outputs import LABELS, LOGITS, PLANES


def test_mask_with_one_axis_covers_the_output_and_not_the_photo() -> None:
    steps = torch.arange(8.0).reshape(2, 4)
    (target,) = resolve_targets(Region(1, torch.tensor([1.0, 0.0])), steps, None, Geometry.whole(40, 60))
    torch.testing.assert_close(target(steps[None]), torch.tensor([4.0 + 5.0]))


# ------------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("requested", "expected"),
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
def test_requests_become_targets(requested: Any, expected: list[Target]) -> None:
    chosen = resolve_targets(requested, LOGITS[0], LABELS)
    if requested is max:  # a target that holds a function or a tensor equals only itself
        assert isinstance(chosen[0], Custom)
        assert chosen[0].function is max
    else:
        assert chosen == expected
        assert all(type(target.index) is int for target in chosen if isinstance(target, ClassScore))


@pytest.mark.parametrize(
    ("requested", "message"),
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
def test_invalid_requests_are_refused(requested: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve_targets(requested, LOGITS[0], LABELS)


def test_error_lists_labels_that_contain_a_word_whole_words_first() -> None:
    labels = ["catamaran", "tiger cat", "dog", "Egyptian cat", "wildcat", "concat"]
    with pytest.raises(TargetError) as error:
        resolve_targets("Cat", torch.zeros(6), labels)
    assert "Labels with 'Cat': tiger cat (1), Egyptian cat (3), catamaran (0); pass" in str(error.value)


def test_error_lists_some_of_many_labels_and_counts_the_rest() -> None:
    with pytest.raises(TargetError, match=r"dog 19 \(19\), and 5 more; pass one"):
        resolve_targets("dog", torch.zeros(25), [f"dog {n}" for n in range(25)])


def test_class_name_needs_labels() -> None:
    with pytest.raises(TargetError, match="'tabby' is a name, but no labels are known; pass labels="):
        resolve_targets("tabby", LOGITS[0], None)


@pytest.mark.parametrize("requested", [None, Top(3)])
def test_output_of_two_axes_has_no_top_class(requested: Top | None) -> None:
    with pytest.raises(TargetError, match=r"shape \(2, 4\), not \(K,\); pass a class index, or a function"):
        resolve_targets(requested, PLANES[0].flatten(1), None)
    assert resolve_targets(1, PLANES[0].flatten(1), None) == [ClassScore(1)]


# ------------------------------------------------------------------------------------------------------- a single logit


@pytest.mark.parametrize(("logit", "index"), [(2.0, 1), (-2.0, 0), (1e-6, 1)])
def test_sign_of_a_single_logit_gives_one_of_two_classes(logit: float, index: int) -> None:
    answer = torch.tensor([logit])
    (target,) = resolve_targets(None, answer, ["sound", "crack"])
    assert target == ClassScore(index)
    assert float(target(answer[None])) == pytest.approx(abs(logit))
    assert resolve_targets(["sound", "crack"][index], answer, ["sound", "crack"]) == [target]
    probabilities = compute_probabilities(answer[None])[0].numpy()
    assert target.get_probability(ScoreContext(abs(logit), probabilities)) == pytest.approx(1 / (1 + exp(-abs(logit))))
    with pytest.raises(TargetError, match="2 does not exist: the model has 2 classes, 0 to 1"):
        resolve_targets(2, answer, None)


def test_regression_has_no_classes() -> None:
    answer = torch.tensor([-3.5])
    (target,) = resolve_targets(Value(), answer, None)
    assert float(target(answer[None])) == -3.5
    assert target.get_probability(ScoreContext(-3.5, compute_probabilities(answer[None])[0].numpy())) is None


def test_model_that_compares_with_texts_refuses_every_kind_of_class() -> None:
    for requested in (Finer(1), ClassScore(1), Negated(ClassScore(1)), torch.tensor(3), Contrast(1, 0)):
        with pytest.raises(TargetError, match="compares images with texts and has no classes"):
            encode_texts([requested], torch.zeros)


def test_class_that_no_detector_can_have_does_not_exist() -> None:
    found = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    with pytest.raises(TargetError, match="-1 does not exist: classes count from 0"):
        resolve_targets(-1, found, None)
    with pytest.raises(TargetError, match="2 does not exist: labels has 2 names"):
        resolve_targets(2, found, ["cat", "dog"])
    with pytest.raises(NothingFoundError):
        resolve_targets(1, found, ["cat", "dog"])
