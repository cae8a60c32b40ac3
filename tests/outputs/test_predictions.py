"""Outputs split by image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from camtool.outputs.class_scores import (
    find_logits,
)
from camtool.outputs.predictions import get_image_output, get_predictions
from camtool.targets import Custom
from tests.outputs.example_outputs import AUX, LOGITS, ModelOutput, PlainOutput


def test_function_gets_one_image_in_the_structure_of_the_output() -> None:
    seen: list[Any] = []

    def first(one: Any) -> Tensor:
        seen.append((type(one), one.hidden.shape, one.logits.shape))
        return one.logits[0]

    for kind in (ModelOutput, PlainOutput):
        assert Custom(first)(kind(hidden=AUX, logits=LOGITS)).tolist() == [1, 4]
        assert seen[-2:] == [(kind, (9,), (3,))] * 2


def test_image_output_keeps_the_structure_and_tensors_without_a_batch_axis() -> None:
    scale = torch.tensor(10.0)
    one = get_image_output(PlainOutput((AUX, scale), LOGITS), 1, keep_batch=True)
    assert torch.equal(one.logits, LOGITS[1:])
    assert torch.equal(one.hidden[0], AUX[1:])
    assert one.hidden[1] is scale
    assert one.name == "plain"


def test_predictions_have_no_graph() -> None:
    output = {"logits": LOGITS.clone().requires_grad_()}
    assert find_logits(output).requires_grad
    assert not get_predictions(output).requires_grad  # type: ignore[attr-defined]
