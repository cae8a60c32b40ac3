"""Outputs split by image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.outputs.class_scores import (
    find_logits,
)
from camtool.outputs.predictions import get_image_output, get_predictions, split_images
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


def test_split_images_gives_the_parts_and_gradients_of_single_images() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(3, 4, generator=generator)
    for images in ([0, 1, 2], [2, 0], [1, 1, 0]):
        output = torch.rand(3, 4, generator=generator, requires_grad=True)
        parts = split_images(output, images)
        assert [part.tolist() for part in parts] == [[output[image].tolist()] for image in images]
        score = torch.stack([(row + 1) * (part * weights[row]).sum() for row, part in enumerate(parts)]).sum()
        (gradient,) = torch.autograd.grad(score, output)
        expected = torch.zeros(3, 4)
        for row, image in enumerate(images):
            expected[image] += (row + 1) * weights[row]
        torch.testing.assert_close(gradient, expected)


def test_split_images_keeps_the_structure() -> None:
    scale = torch.tensor(2.0)
    parts = split_images({"logits": LOGITS, "scale": scale}, range(len(LOGITS)))
    assert [part["logits"].tolist() for part in parts] == [[row.tolist()] for row in LOGITS]
    assert all(part["scale"] is scale for part in parts)


@pytest.mark.parametrize("options", [{}, {"layer": "0"}, {"method": "occlusion"}], ids=str)
def test_time_steps_before_the_batch_are_refused(options: dict[str, str]) -> None:
    class Reader(nn.Sequential):
        """A text recognizer that returns ``(T, N, K)``, as CTC takes it."""

        def forward(self, x: Tensor) -> Tensor:
            lines: Tensor = super().forward(x).mean(2).permute(2, 0, 1)
            return lines

    model = Reader(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 11, 1)).eval()
    with pytest.raises(camtool.TargetError, match=r"returned \(47, 1, 11\) .*output.permute\(1, 2, 0\)"):
        camtool.explain(model, torch.rand(1, 1, 32, 96), 1, **options)
