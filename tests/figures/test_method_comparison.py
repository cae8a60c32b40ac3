"""One image explained by several methods: the comparison and its drawing."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image
from torch import nn

import camtool
from camtool.errors import CamtoolError, MethodError


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


def test_compare_returns_the_explanations_of_explain(net):
    x = torch.rand(3, 24, 40)
    compared = camtool.compare(net, x, 2, methods=["gradcam", "layercam"])
    expected = camtool.explain(net, x, 2, method=["gradcam", "layercam"])
    assert len(compared) == 2
    assert [each.method for each in compared] == ["gradcam", "layercam"]
    for ours, theirs in zip(compared, expected, strict=True):
        assert_array_equal(ours.raw, theirs.raw)
    assert compared[1].method == "layercam"


def test_settings_are_passed_to_explain(net):
    compared = camtool.compare(net, torch.rand(3, 24, 40), methods=["gradcam"], layer="0", labels=["a", "b", "c", "d"])
    assert compared[0].layer == "0"
    assert compared[0].label in "abcd"


def test_several_targets_are_compared(net):
    compared = camtool.compare(net, torch.rand(3, 24, 40), [0, 1], methods=["gradcam", "hirescam"])
    assert [(each.index, each.method) for each in compared] == [
        (0, "gradcam"),
        (0, "hirescam"),
        (1, "gradcam"),
        (1, "hirescam"),
    ]


def test_to_pixels_contains_the_image_and_all_overlays(net, tmp_path):
    compared = camtool.compare(net, torch.rand(3, 120, 240), methods=["gradcam", "layercam"])
    drawing = compared.to_pixels()
    assert drawing.dtype == np.uint8
    assert drawing.shape == (120 + 34, 3 * 240 + 2 * 10, 3)
    for place, pixels in enumerate([compared[0].photo, *(each.overlay() for each in compared)]):
        assert_array_equal(drawing[:120, place * 250 : place * 250 + 240], pixels)
    below = drawing[120:]
    assert [(below[:, place * 250 : place * 250 + 240] < 128).any() for place in range(3)] == [True] * 3  # words
    assert (drawing[:, 240:250] == 255).all()
    with Image.open(BytesIO(compared._repr_png_())) as shown, Image.open(compared.save(tmp_path / "a.png")) as saved:
        assert_array_equal(np.asarray(shown), drawing)
        assert_array_equal(np.asarray(saved), drawing)
    assert compared.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(camtool.ImageError, match=r"suffix must be one of \.png, .* got '\.tex'"):
        compared.save(tmp_path / "a.tex")


def test_many_methods_are_in_even_rows(net):
    drawing = camtool.compare(net, torch.rand(3, 240, 240), methods=["gradcam"] * 7).to_pixels()
    assert drawing.shape == (2 * (240 + 34), 4 * 250 - 10, 3)


def test_repr_names_class_and_methods(net):
    compared = camtool.compare(net, torch.rand(3, 24, 40), 1, methods=["gradcam", "layercam"])
    assert repr(compared) == "<Comparison of 2 explanations of 'class 1': gradcam; layercam>"


def test_figure_draws_the_comparison_with_matplotlib(net):
    pytest.importorskip("matplotlib")
    figure = camtool.compare(net, torch.rand(3, 24, 40), methods=["gradcam", "layercam"]).figure(width=4)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["photo", "gradcam", "layercam"]
    assert figure.get_size_inches()[0] == 4


def test_several_images_and_unknown_methods_raise(net):
    with pytest.raises(CamtoolError, match=r"several images; pass one, or use camtool.figures.methods_grid"):
        camtool.compare(net, torch.rand(2, 3, 24, 40), methods=["gradcam"])
    with pytest.raises(MethodError, match="gradcma"):
        camtool.compare(net, torch.rand(3, 24, 40), methods=["gradcma"])
    with pytest.raises(CamtoolError, match="method asks for nothing"):
        camtool.compare(net, torch.rand(3, 24, 40), methods=[])
