"""Figures of kernels: images, maps and tables."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from camtool import figures
from tests.figures.drawing_helpers import get_arrays, get_images, to_png

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


def test_rgb_filters_are_images_with_gray_for_zero():
    conv = nn.Conv2d(3, 2, 2, bias=False)
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 0], conv.weight[1, 2, 0, 1] = 0.5, -1.0
    red, blue = get_arrays(figures.kernels(conv))
    assert_array_equal(red, np.broadcast_to([191, 128, 128], (2, 2, 3)))
    assert_array_equal(blue[0, 1], [128, 128, 0])
    assert_array_equal(blue[1, 1], [128, 128, 128])


def test_filters_of_one_channel_are_maps_centered_on_zero():
    conv = nn.Conv2d(4, 4, 3, groups=4)
    figure = figures.kernels(conv)
    weight = conv.weight.detach().numpy()
    assert_allclose(np.stack(get_arrays(figure)), weight[:, 0])
    reach = float(np.abs(weight).max())
    assert {image.get_clim() for image in get_images(figure)} == {(-reach, reach)}


def test_filters_of_many_channels_are_a_table():
    conv = nn.Conv2d(20, 30, 3)
    (axes, _) = figures.kernels(conv, filters=5, inputs=4).axes
    table = np.asarray(axes.images[0].get_array())
    assert table.shape == (15, 12)
    assert_allclose(table[3:6, 6:9], conv.weight[1, 2].detach().numpy())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2", "3", "4"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("input channel", "filter")
    low, high = axes.images[0].get_clim()
    assert low == -high == -conv.weight[:5, :4].detach().abs().max().item()


@pytest.mark.parametrize("scale", ["shared", "each"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_weights_that_are_not_finite_are_white_and_mentioned(channels, scale):
    conv = nn.Conv2d(channels, 2, 2, bias=False)
    with torch.no_grad():
        conv.weight.fill_(-1)
        conv.weight[1, 0, 0, 0], conv.weight[1, 0, 0, 1] = torch.nan, torch.inf
    figure = figures.kernels(conv, scale=scale)
    assert ", 2 not finite: white" in figure.texts[1].get_text()
    if channels == 3:
        assert get_arrays(figure)[0].max() == 0
        assert get_arrays(figure)[1][0, :, 0].tolist() == [255, 255]
    else:
        assert {image.get_clim() for image in get_images(figure)} == {(-1, 1)}
        assert np.ma.masked_invalid(get_images(figure)[0].get_array()).min() == -1
    assert to_png(figure)


def test_long_description_continues_on_the_next_line():
    figure = figures.kernels(nn.Conv2d(3, 64, 11), width="single")
    _, *lines = [text.get_text() for text in figure.texts]
    assert len(lines) == 2
    assert re.search(r"black and white ±[\d.]+$", " ".join(lines))


@pytest.mark.parametrize(("inputs", "step"), [(16, 1), (70, 5), (320, 20)])
def test_table_numbers_have_round_steps(inputs, step):
    axes = figures.kernels(nn.Conv2d(inputs, 4, 1), inputs=inputs).axes[0]
    assert [int(label.get_text()) for label in axes.get_xticklabels()] == list(range(0, inputs, step))


def test_scale_each_scales_each_filter():
    conv = nn.Conv2d(1, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([4.0, -0.5])[:, None, None, None])
    assert [plane.item() for plane in get_arrays(figures.kernels(conv, scale="each"))] == [1, -1]
    assert [plane.item() for plane in get_arrays(figures.kernels(conv))] == [4, -0.5]


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_filters_are_ordered_by_output_channel(groups):
    conv = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    table = np.asarray(figures.kernels(conv).axes[0].images[0].get_array())
    assert table.shape == (18, 3 * 4 // groups)
    weight = conv.weight.detach().numpy()  # (in, out / groups, 3, 3)
    last = weight[4 // groups * (groups - 1) + 1, -1]  # of the last filter, its second input
    assert_allclose(table[15:18, 3:6], last)


def test_kernel_pages_yields_one_figure_per_layer(net):
    assert [name for name, _ in figures.kernel_pages(net)] == ["first", "block.1", "unused"]
    (name, figure), *rest = figures.kernel_pages(net, "block*", filters=2)
    assert (name, rest) == ("block.1", [])
    assert figure.texts[0].get_text() == "block.1"


def test_kernels_default_to_the_first_convolution(net):
    assert figures.kernels(net).texts[0].get_text() == "first"
    assert figures.kernels(net, net.block[1]).texts[0].get_text() == "block.1"
