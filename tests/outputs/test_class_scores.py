"""Class scores and score planes in outputs, and their probabilities."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from camtool.errors import TargetError
from camtool.outputs.class_count import get_class_count
from camtool.outputs.class_scores import (
    compute_class_scores,
    compute_probabilities,
    compute_top_score,
    find_logits,
    infer_link,
)
from camtool.outputs.detections import find_detections
from camtool.outputs.predictions import count_images, get_predictions
from camtool.targets import ClassScore, Value, score_targets
from tests.outputs.example_outputs import AUX, LOGITS, QUERIES, ModelOutput, Odd, Pair, PlainOutput

# --------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, AUX),
        [LOGITS, AUX],
        Pair(LOGITS, AUX),
        Odd(AUX, LOGITS),
        {"out": LOGITS, "aux": AUX},
        {"aux": AUX, "out": LOGITS},
        {"hidden": AUX, "logits": LOGITS},
        {"logits": LOGITS, "loss": None},
        OrderedDict(aux=AUX, logits=LOGITS),
        ModelOutput(loss=torch.tensor(0.3), logits=LOGITS, hidden=AUX),
        ModelOutput(hidden=AUX, logits=LOGITS),
        UserDict({"hidden": AUX, "logits": LOGITS}),
        {"logits": (LOGITS, AUX)},
        PlainOutput(AUX, LOGITS),
        (torch.tensor(0.3), LOGITS),  # a loss first
        (None, torch.tensor([1, 2]), LOGITS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_find_logits_finds_scores_in_every_structure(output: Any) -> None:
    assert torch.equal(find_logits(output), LOGITS)
    assert torch.equal(get_predictions(output), LOGITS)  # type: ignore[arg-type]
    assert count_images(output) == 2
    assert find_detections(output) is None
    assert score_targets([ClassScore(1), ClassScore(0)], output).tolist() == [5, 4]
    assert score_targets([ClassScore(1), Value(0)], output).tolist() == [5, 4]


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=str)
def test_single_logit_gives_two_classes(shape: tuple[int, ...]) -> None:
    output = torch.tensor([0.0, 2.0]).reshape(shape)
    assert compute_class_scores(output).tolist() == [[0, 0], [-2, 2]]
    p = 1 / (1 + exp(-2))
    for of in ("softmax", "sigmoid"):
        assert_close(compute_probabilities(output, of), torch.tensor([[0.5, 0.5], [1 - p, p]]))


def test_independent_labels_have_a_sigmoid_each() -> None:
    output = torch.tensor([[0.0, log(3)]])
    assert_close(compute_probabilities(output), torch.tensor([[1 / 4, 3 / 4]]))
    assert_close(compute_probabilities(output, "sigmoid"), torch.tensor([[1 / 2, 3 / 4]]))


@pytest.mark.parametrize(
    "output", ["yes", None, {}, (1, 2), torch.tensor([1, 2]), torch.tensor(1.0), {"loss": torch.tensor(1.0)}], ids=repr
)
def test_output_without_scores_is_refused(output: Any) -> None:
    for read in (find_logits, get_predictions, count_images):
        with pytest.raises(TargetError, match=f"the model returned {type(output).__name__} without a tensor of scores"):
            read(output)


# -------------------------------------------------------------------------------------------------------------- queries


def test_queries_with_masks_become_score_planes() -> None:
    classes = torch.tensor([[[log(2), 0.0, 0.0], [0.0, log(6), 0.0]]])  # (1, 2 queries, 2 classes and no object)
    masks = torch.tensor([[[[0.0, 50.0]], [[50.0, -50.0]]]])  # weights 0.5, 1 and 1, 0
    planes = find_logits({"class_queries_logits": classes, "masks_queries_logits": masks})
    assert planes.shape == (1, 2, 1, 2)
    expected = torch.tensor([[[[2 / 4 / 2 + 1 / 8, 2 / 4]], [[1 / 4 / 2 + 6 / 8, 1 / 4]]]])
    assert_close(planes.exp(), expected)
    assert_close(compute_probabilities(planes), expected / expected.sum(1, keepdim=True))


# --------------------------------------------------------------------------------------------------------- model config


def test_model_config_gives_the_class_count_and_the_link() -> None:
    model = nn.Linear(2, 2)
    assert get_class_count(model) is None
    assert infer_link(model).link == "softmax"
    model.config = SimpleNamespace(num_labels=7, problem_type="multi_label_classification")
    assert get_class_count(model) == 7
    assert infer_link(model).link == "sigmoid"
    model.config.problem_type = None
    assert infer_link(model).link == "softmax"
    other = nn.Linear(2, 2)
    other.names = {0: "cat", 1: "dog"}
    assert get_class_count(other) == 2


# ------------------------------------------------------------------------------------------------------------ top score


def test_top_score_is_the_highest_logit_on_the_graph() -> None:
    output = LOGITS.clone().requires_grad_()
    found = compute_top_score({"logits": output})
    assert found is not None
    (gradient,) = torch.autograd.grad(found, output)
    assert (found.item(), gradient.nonzero().tolist()) == (5.0, [[0, 1]])


def test_top_score_of_planes_is_the_highest_mean() -> None:
    planes = torch.tensor([[[[9.0, 0.0]], [[5.0, 5.0]]]])  # one image, two classes, two positions
    assert compute_top_score({"out": planes}) == 5
    assert compute_top_score({"last_hidden_state": torch.full((1, 7, 3), 9.0), "pooler_output": LOGITS[:1]}) == 5


def test_top_score_of_detections_is_the_most_confident() -> None:
    boxes, labels = torch.rand(2, 4), torch.tensor([1, 2])
    assert compute_top_score([{"boxes": boxes, "labels": labels, "scores": torch.tensor([0.25, 0.5])}]) == 0.5
    nothing = {"boxes": boxes[:0], "labels": labels[:0], "scores": torch.zeros(0)}
    assert compute_top_score([nothing]) is None
    assert compute_top_score("no scores") is None


def test_top_score_of_a_single_logit_and_of_queries_is_a_logit() -> None:
    assert compute_top_score(torch.tensor([[-2.0]])).item() == 2  # type: ignore[union-attr]
    assert compute_top_score(QUERIES).item() == pytest.approx(log(3))  # type: ignore[union-attr]
