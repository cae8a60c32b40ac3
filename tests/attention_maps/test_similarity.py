"""Cosine similarity of the features of a place to those of all others."""

from __future__ import annotations

from math import hypot

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import ImageError, TargetError
from tests.hooks.state.test_no_trace import unchanged


class Features(nn.Module):
    """Features without classes: a convolution of stride 4, or tokens of a transformer's width."""

    def __init__(self, *, softmax: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.patches, self.softmax = nn.Conv2d(3, 6, 4, 4), softmax
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.patches(x).mean((2, 3))
        return pooled.softmax(1) if self.softmax else pooled


def compute_cosines(model: Features, image: Tensor, row: int, column: int) -> list[list[float]]:
    """cos(a, b) = a · b / (|a| |b|), cell by cell."""
    cells = model.patches(image)[0].permute(1, 2, 0).tolist()
    one = cells[row][column]
    return [
        [sum(a * b for a, b in zip(one, cell, strict=True)) / (hypot(*one) * hypot(*cell)) for cell in line]
        for line in cells
    ]


@pytest.mark.parametrize("softmax", [False, True])
def test_values_are_the_cosines(softmax: bool) -> None:
    model, image = Features(softmax=softmax), torch.rand(1, 3, 12, 20, dtype=torch.float64)
    for (x, y), (row, column) in (((1, 1), (0, 0)), ((19.5, 5), (1, 4)), ((8, 11), (2, 2))):
        with unchanged(model):
            result = camtool.patch_similarity(model, image, (x, y), layer="patches")
        np.testing.assert_allclose(result.raw, compute_cosines(model, image, row, column), rtol=1e-5, atol=1e-6)
        assert result.raw[row, column] == pytest.approx(1)
        assert result.box == pytest.approx((4 * column, 4 * row, 4 * column + 4, 4 * row + 4))
        assert result.label == f"like ({x:g}, {y:g})"
    default = camtool.patch_similarity(model, image, (8, 11))
    np.testing.assert_array_equal(default.raw, result.raw)
    assert default.warnings == ()


def test_a_photo_of_another_size_and_a_place_outside() -> None:
    model = Features().float()
    photo = np.zeros((40, 80, 3), np.uint8)
    photo[:, 40:] = (255, 40, 10)
    result = camtool.patch_similarity(model, photo, (52, 30), transform=camtool.preprocessing(size=32))
    assert result.heatmap.shape == (40, 80)
    right = result.heatmap[10:30, 45:55].mean()
    assert right > result.heatmap[10:30, 25:35].mean() + 0.5
    with pytest.raises(TargetError, match=r"place=\(90, 10\) is outside of the part of the photo"):
        camtool.patch_similarity(model, photo, (90, 10), transform=camtool.preprocessing(size=32))
    with pytest.raises(ImageError, match="2 images came"):
        camtool.patch_similarity(model, torch.rand(2, 3, 12, 12), (1, 1))
