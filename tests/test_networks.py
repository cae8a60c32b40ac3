"""The networks, questions and tables of the benchmarks of faithfulness."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import (
    MapJudge,
    Network,
    Question,
    QuestionScore,
    explain_by,
    format_counts,
    format_pairs,
    format_table,
    summarize,
)
from camtool.demo.camnet import load_honest_model
from camtool.hooks.fast_repeated_passes import FoldedModel


class Planes(nn.Module):
    """Two planes of class scores: the first and the second channel, weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2, 2, 1, bias=False)
        self.mix.weight.data = torch.diag(torch.tensor([2.0, 3.0]))[:, :, None, None]

    def forward(self, x: Tensor) -> Tensor:
        planes: Tensor = self.mix(x)
        return planes


def test_the_score_of_a_segmenter_is_the_mean_over_the_region() -> None:
    images = torch.arange(16.0).reshape(1, 2, 2, 4)
    region = torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 1]])
    question = Question(images, 1, 1.0, region=region)
    model = FoldedModel(Planes(), images)
    # The second channel has 8 to 15; the region has 8, 9 and 15.
    assert QuestionScore(model, question)(images, torch.tensor([0])).tolist() == pytest.approx([3 * 32 / 3])
    expected = np.mean([1 / (1 + math.exp(2 * (value - 8) - 3 * value)) for value in (8, 9, 15)])
    score = QuestionScore(model, question, "probability")
    assert score(images, torch.tensor([0])).tolist() == pytest.approx([expected])


def test_a_summary_has_paired_gains_and_leaves_out_what_is_not_finite() -> None:
    values, reference = np.array([1.0, 2.0, np.nan, 6.0]), np.array([0.0, 2.0, 5.0, 4.0])
    # The mean of 1, 2, 6 is 3, its variance 7; that of the gains 1, 0, 2 is 1, with variance 1.
    assert summarize(values, reference) == [3.0, round(math.sqrt(7 / 3), 3), 1.0, round(math.sqrt(1 / 3), 3)]
    assert summarize(values) == [3.0, round(math.sqrt(7 / 3), 3)]


def test_a_table_marks_what_is_beyond_two_standard_errors() -> None:
    rows = {
        "gradcam": {"vit": {"cells": [0.5, 0.1, 0.0, 0.0]}, "mobilenet_v2": {"cells": [0.4, 0.1, 0.0, 0.0]}},
        "other": {"vit": {"cells": [0.7, 0.1, 0.2, 0.09]}, "mobilenet_v2": {"cells": [0.1, 0.1, -0.3, 0.1]}},
        "third": {"vit": {"cells": [0.6, 0.1, 0.1, 0.05]}},
    }
    assert format_table("x.json", rows, list(rows), "cells").splitlines() == [
        "<!-- numbers: benchmarks/x.json -->",
        "| | MobileNetV2 | ViT |",
        "|---|---|---|",
        "| `gradcam` | 0.400 | 0.500 |",
        "| other | *0.100* | **0.700** |",
        "| third | - | 0.600 |",
    ]
    assert format_table("x.json", rows, ["other"], "cells", is_gain=True).endswith("| other | *-0.300* | **+0.200** |")


def test_a_table_of_counts_has_networks_ahead_and_behind_and_the_range_of_the_gains() -> None:
    rows = {
        "gradcam": {"vit": {"cells": [0.7, 0.1, 0.2, 0.09]}, "mobilenet_v2": {"cells": [0.1, 0.1, -0.3, 0.1]}},
        "other": {"vit": {"cells": [0.6, 0.1, 0.1, 0.05]}, "mobilenet_v2, tuned": {"cells": [0.9, 0.1, 0.5, 0.1]}},
    }
    assert format_counts(rows, list(rows), {"cells": "Cells", "masks": "Masks"}).splitlines() == [
        "| | cells | masks |",
        "|---|---|---|",
        "| `gradcam` | +1 -1 of 2, -0.300 to +0.200 | - |",
        "| other | +0 -0 of 1, +0.100 to +0.100 | - |",
    ]


def test_a_table_of_pairs_has_the_methods_that_fit_a_network() -> None:
    rows = {
        "gradcam": {"vit": {"cells": [0.5, 0.1, 0.0, 0.0], "masks": [0.2, 0.1, 0.0, 0.0]}},
        "wrapped": {"vit": {"cells": [0.3, 0.1, -0.2, 0.09]}, "mobilenet_v2": {"masks": [0.1, 0.1, -0.3, 0.2]}},
        "alone": {"vit": {"cells": [0.5, 0.1, 0.0, 0.0]}},
    }
    pairs, titles = {"gradcam": "wrapped", "alone": "missing"}, {"cells": "Cells", "masks": "Masks", "none": "None"}
    assert format_pairs("x.json", rows, pairs, titles).splitlines() == [
        "<!-- numbers: benchmarks/x.json -->",
        "| | cells | masks | none |",
        "|---|---|---|---|",
        "| ViT, `gradcam` | 0.500 → *0.300* | 0.200 → - | - |",
    ]


def test_scenes_are_asked_about_the_objects_that_the_network_recognizes() -> None:
    network = Network("demo", load_honest_model().model)
    questions = network.list_questions(most=3)
    assert questions
    for question in questions:
        assert question.mask is not None
        assert int(network.model(question.inputs).argmax()) == question.index
    assert network.list_questions("tuned") == []
    pairs = network.list_pointing(questions, most=2)
    assert {len({one.index for one in pairs if one.inputs.equal(pair.inputs)}) for pair in pairs} == {2}


def test_a_map_of_the_object_points_better_than_its_complement() -> None:
    network = Network("demo", load_honest_model().model)
    judge = MapJudge(network, measures=("cells", "pointing"), most=2, most_pointing=1)
    inside = judge.measure(lambda _, question: np.asarray(question.mask, np.float32))
    outside = judge.measure(lambda _, question: 1 - np.asarray(question.mask, np.float32))
    assert inside["pointing"].tolist() == [1.0] * len(judge.pointing)
    assert outside["pointing"].tolist() == [0.0] * len(judge.pointing)
    assert (inside["cells"] > outside["cells"]).all()
    assert set(judge.measure(explain_by("gradcam"), without=["pointing"])) == {"cells"}
