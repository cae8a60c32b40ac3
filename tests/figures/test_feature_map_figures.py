"""Figures of feature maps: the values behind the colors, their order and their scales."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from camtool import figures
from camtool.errors import LayerError
from camtool.figures.paper_style import MINUS
from tests.figures.drawing_helpers import TIMES, find_texts, get_arrays, get_color_bars, get_images, get_titles, to_png

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


def test_feature_maps_are_the_layers_output_on_one_scale(net):
    x = torch.rand(1, 3, 8, 12)
    figure = figures.feature_maps(net, x, "first", 4)
    assert_allclose(np.stack(get_arrays(figure)), net.first(x)[0, :4].detach().numpy())
    most = float(net.first(x)[0, :4].detach().abs().max())
    assert {image.get_clim() for image in [*get_images(figure), get_color_bars(figure)[0].images[0]]} == {(-most, most)}
    assert get_titles(figure) == ["0", "1", "2", "3"]
    assert [text.get_text() for text in figure.texts] == ["first", f"6 {TIMES} 8 {TIMES} 12"]
    assert len(figure.axes) == 1 + 1


def make_signed_maps() -> tuple[nn.Module, Tensor, np.ndarray]:
    """Return a convolution, an input, and two maps: one from 0 to 1, the other from -2 to 0."""
    conv, x = nn.Conv2d(1, 2, 1, bias=False), torch.linspace(0, 1, 16).reshape(1, 1, 4, 4)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, -2.0])[:, None, None, None])
        return conv, x, conv(x)[0].numpy()


def test_maps_of_both_signs_are_colored_around_zero():
    conv, x, expected = make_signed_maps()
    figure = figures.feature_maps(conv, x)
    shown = [*get_images(figure), get_color_bars(figure)[0].images[0]]
    assert {(image.get_cmap().name, *image.get_clim()) for image in shown} == {("RdBu_r", -2.0, 2.0)}
    assert_allclose(np.stack(get_arrays(figure)), expected)
    assert {f"{MINUS}2", "0", "2"} <= {text.get_text() for text in find_texts(figure)}
    red, blue = (image.to_rgba(value)[:3] for image, value in ((shown[0], 2.0), (shown[0], -2.0)))
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert min(shown[0].to_rgba(0.0)) > 0.9


def test_scale_each_centers_each_map_on_zero():
    conv, x, expected = make_signed_maps()
    figure = figures.feature_maps(conv, x, scale="each")
    assert_allclose(np.stack(get_arrays(figure)), expected / np.array([1, 2])[:, None, None])
    assert {(image.get_cmap().name, *image.get_clim()) for image in get_images(figure)} == {("RdBu_r", -1.0, 1.0)}
    assert {f"{MINUS}max", "0", "max"} <= {text.get_text() for text in find_texts(figure)}


def test_maps_of_one_sign_and_given_colormaps_keep_their_limits():
    conv, x, _ = make_signed_maps()
    positive = figures.feature_maps(nn.Sequential(conv, nn.ReLU()), x, "1")
    assert {(image.get_cmap().name, *image.get_clim()) for image in get_images(positive)} == {("viridis", 0.0, 1.0)}
    asked = figures.feature_maps(conv, x, colormap="magma")
    assert {(image.get_cmap().name, *image.get_clim()) for image in get_images(asked)} == {("magma", -2.0, 1.0)}


def test_convolutions_that_run_are_drawn_in_order_of_execution(net):
    figure = figures.feature_maps(net, torch.rand(1, 3, 8, 8))
    assert [text.get_text() for text in figure.texts][::2] == ["first", "block.1"]


def test_order_strongest_sorts_by_mean_magnitude(net):
    figure = figures.feature_maps(net, torch.rand(1, 3, 8, 8), "first", 3, order="strongest")
    assert get_titles(figure) == ["5", "4", "2"]  # their weights are -6, 5 and 3


def test_order_class_sorts_by_gradient_times_activation():
    class Sum(nn.Module):
        """Class 1 is 2 times the first channel's mean less the second's; the third is strong and counts for nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 1, bias=False)
            with torch.no_grad():
                self.conv.weight.copy_(torch.tensor([1.0, 1.0, 50.0])[:, None, None, None])

        def forward(self, x: Tensor) -> Tensor:
            means = self.conv(x).mean((2, 3))
            return torch.stack([means[:, 1], 2 * means[:, 0] - means[:, 1]], 1)

    x = torch.rand(1, 1, 5, 5) + 0.5
    assert get_titles(figures.feature_maps(Sum(), x, "conv", order="class", target_class=1)) == ["0", "2", "1"]
    assert get_titles(figures.feature_maps(Sum(), x, "conv", order="class", target_class=0)) == ["1", "0", "2"]


def test_order_class_takes_the_more_probable_class_of_one_probability():
    class Chance(nn.Module):
        """The probability of class 1 is below a half: more speaks against it than for it."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1, bias=False)
            nn.init.ones_(self.conv.weight)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.conv(x).mean((2, 3)).T
            return (first - 3 * second).sigmoid()[:, None]

    figure = figures.feature_maps(Chance(), torch.rand(1, 1, 5, 5) + 0.5, "conv", order="class")
    assert get_titles(figure) == ["1", "0"]


def test_scale_each_scales_each_channel(net):
    figure = figures.feature_maps(net, torch.rand(1, 3, 8, 8), "block.0", scale="each")
    extremes = [(plane.min(), plane.max()) for plane in get_arrays(figure)]
    assert_allclose(extremes, [(0, number % 2 == 0) for number in range(6)])  # every second one is all zeros
    assert {"low", "high"} <= {text.get_text() for text in find_texts(figure)}


def test_a_few_maps_have_a_maximum_width(net):
    one, many = figures.feature_maps(net, torch.rand(1, 3, 8, 8), "first", 1), figures.kernels(nn.Conv2d(3, 2, 3))
    for figure in (one, many):
        for image in get_images(figure):
            assert image.get_window_extent().width / figure.dpi == pytest.approx(2)
    bar = get_color_bars(one)[0].get_window_extent()
    assert bar.x0 / one.dpi == pytest.approx(2.08)  # beside the map, and not at the far end of the page


def test_signals_are_plots_with_common_limits():
    conv, x = nn.Conv1d(2, 3, 3, padding=1), torch.rand(1, 2, 50)
    figure = figures.feature_maps(conv, x)
    lines = [axes.lines[-1].get_ydata() for axes in figure.axes]
    assert_allclose(np.stack(lines), conv(x)[0].detach().numpy())
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_middle_slice_of_a_volume_is_drawn():
    conv, x = nn.Conv3d(1, 2, 1), torch.rand(1, 1, 5, 6, 7)
    figure = figures.feature_maps(conv, x)
    assert_allclose(np.stack(get_arrays(figure)), conv(x)[0, :, 2].detach().numpy())
    assert "slice 2" in figure.texts[1].get_text()


def test_patterns_select_layers_with_a_grid_and_names_must_have_one(net):
    x = torch.rand(1, 3, 8, 8)
    assert [name for name, _ in figures.feature_pages(net, x, "*")] == ["first", "block.0", "block.1", "block"]
    with pytest.raises(LayerError, match="'head' returned"):
        figures.feature_maps(net, x, ["first", "head"])
    with pytest.raises(LayerError, match="'unused' did not run"):
        figures.feature_maps(net, x, "unused")
    with pytest.raises(LayerError, match="none of these layers ran"):
        figures.feature_maps(net, x, "unus*")
    with pytest.raises(LayerError, match=r"no layer 'firts'.* Did you mean 'first'"):
        figures.feature_maps(net, x, "firts")


def test_convolution_with_1x1_output_is_drawn():
    squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 4, 1))
    assert np.stack(get_arrays(figures.feature_maps(squeeze, torch.rand(1, 3, 8, 8)))).shape == (4, 1, 1)


def test_tokens_are_drawn_as_a_grid():
    vit = pytest.importorskip("torchvision").models.VisionTransformer(32, 8, 1, 2, 12, 24, num_classes=3).eval()
    nn.init.normal_(vit.heads.head.weight)
    x = torch.rand(1, 3, 32, 32)
    figure = figures.feature_maps(vit, x, "encoder.layers.encoder_layer_0", 2)
    assert figure.texts[1].get_text() == f"12 {TIMES} 4 {TIMES} 4"


def test_values_that_are_not_finite_do_not_change_the_scale():
    class Broken(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x).clone()
            out[..., 0, 0] = torch.nan
            out[..., 0, 1] = torch.inf
            return out

    conv = Broken(1, 2, 1)
    figure = figures.feature_maps(conv, torch.rand(1, 1, 4, 4))
    low, high = figure.axes[0].images[0].get_clim()
    assert np.isfinite([low, high]).all()
    assert to_png(figure)


def test_channel_of_nan_comes_last_and_is_mentioned():
    conv = nn.Conv2d(1, 3, 1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([torch.nan, 1.0, 2.0])[:, None, None, None])
    x = torch.rand(1, 1, 4, 4)
    x[0, 0, 0, 0] = torch.inf
    figure = figures.feature_maps(conv, x, order="strongest", scale="each")
    assert get_titles(figure) == ["1", "2", "0"] or get_titles(figure) == ["2", "1", "0"]
    assert figure.texts[1].get_text() == f"3 {TIMES} 4 {TIMES} 4, the strongest first, 18 not finite: white"
    assert np.nanmin(get_arrays(figure)[0]) == 0  # one infinite number does not hide the others
    assert np.nanmax(np.ma.filled(get_arrays(figure)[0], np.nan)) == 1
    assert to_png(figure)


def test_feature_maps_do_not_change_the_model(net):
    net.train()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    figures.feature_maps(net, torch.rand(1, 3, 8, 8), order="class")
    figures.kernels(net)
    assert net.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in state.items())


def test_feature_pages_yields_one_figure_per_layer(net):
    pages = figures.feature_pages(net, torch.rand(1, 3, 8, 8))
    name, figure = next(pages)
    assert name == "first"
    assert figure.texts[0].get_text() == "first"
    assert [name for name, _ in pages] == ["block.1"]
