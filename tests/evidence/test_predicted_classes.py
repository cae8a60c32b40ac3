"""The model's top class beside the explained one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import camtool


class Scores(nn.Module):
    """A model whose scores are those given, up to 0.1."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, len(scores))
        nn.init.uniform_(self.head.weight, -0.01, 0.01)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor(scores))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


IMAGES = torch.linspace(0, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


@pytest.mark.parametrize("target", [None, 0, 2])
def test_the_prediction_is_the_top_class_whatever_is_explained(target):
    results = camtool.explain(Scores([0.1, 3.0, 0.2]), IMAGES, target, labels=["ant", "bee", "cat"])
    assert [(each.predicted_index, each.predicted_label) for each in results] == [(1, "bee")] * 2
    unnamed = camtool.explain(Scores([0.1, 3.0, 0.2]), IMAGES, target)[0]
    assert unnamed.predicted_label == "class 1"


@pytest.mark.parametrize(("score", "index"), [(2.0, 1), (-2.0, 0)])
def test_a_single_score_predicts_one_of_two_classes(score, index):
    assert camtool.explain(Scores([score]), IMAGES, 0)[0].predicted_index == index


def test_scores_that_are_not_finite_predict_nothing():
    results = camtool.explain(Scores([1.0, float("nan"), 2.0]), IMAGES, 0)
    assert [each.predicted_index for each in results] == [None, None]
    assert [each.predicted_label for each in results] == [None, None]


def test_a_segmenter_predicts_no_class_of_the_image():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1))
    assert camtool.explain(net, IMAGES, 1)[0].predicted_index is None
