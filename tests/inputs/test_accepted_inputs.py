"""Signals, images, volumes and clips: how the kind of an input is inferred, and how it is explained."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.models import video
from torchvision.models.video.mvit import MSBlockConfig, MViT

import camtool
from camtool.inputs.accepted_inputs import choose_example_shape, infer_kind
from camtool.layers.layouts import find_token_layout
from tests.helpers.method_lists import FOR_CLASSIFIERS

CLASSES = 4
OPTIONS: dict[str, dict[str, int]] = {"rise": {"samples": 12, "cells": 3}}
METHODS = [*camtool.METHODS, "noise:gradcam", "tta:gradcam"]


def trunk(channels: int = 3) -> nn.Sequential:
    layers = [nn.Conv2d(channels, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers)


CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
POOLS = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


def build_net(axes: int, channels: int) -> nn.Module:
    convolution = CONVOLUTIONS[axes]
    layers = [convolution(channels, 6, 5, 2, 2), nn.ReLU(), convolution(6, 6, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, POOLS[axes](1), nn.Flatten(), nn.Linear(6, CLASSES)).eval()


def build_spike_detector(axes: int) -> nn.Module:
    """Build a net whose score is the sum of values above 2, so that only a spike is evidence; the stride is 2."""
    net = nn.Sequential(CONVOLUTIONS[axes](1, 1, 2, 2), nn.ReLU(), POOLS[axes](1), nn.Flatten(), nn.Linear(1, 2))
    nn.init.ones_(net[0].weight)
    nn.init.constant_(net[0].bias, -2)
    net[4].weight.data = torch.tensor([[1.0], [-1.0]])
    return net.eval()


@pytest.mark.parametrize(
    ("shape", "kind", "size"),
    [
        ((2, 3, 100), "signal", (100,)),
        ((2, 1, 8, 10, 12), "volume", (8, 10, 12)),
        ((2, 3, 8, 10, 12), "clip", (8, 10, 12)),
        ((2, 3, 16, 20), "photo", (16, 20)),
    ],
)
def test_the_convolutions_decide_the_kind_of_input(shape, kind, size) -> None:
    net = build_net(len(size), shape[1])
    batch = torch.randn(shape)
    results = camtool.explain(net, batch, 1, method=["gradcam", "layercam"])
    assert [[each.view.kind for each in by_image] for by_image in results] == [[kind] * 2] * 2
    assert all(result.heatmap.shape == size for by_image in results for result in by_image)
    single = camtool.explain(net, batch[1], 1)
    assert isinstance(single, camtool.Explanation)
    assert_close(single.raw, results[1][0].raw)
    listed = camtool.explain(net, [batch[0], batch[1]], [1, 2])
    assert [each.index for each in listed] == [1, 2]
    assert_close(listed[0].raw, results[0][0].raw)


@pytest.mark.parametrize("place", [20, 61, 90])
def test_the_heatmap_of_a_signal_peaks_at_the_known_evidence(place) -> None:
    signal = torch.full((1, 100), 0.1)
    signal[0, place] = 5
    result = camtool.explain(build_spike_detector(1), signal, 0, method="hirescam", layer="1")
    assert abs(int(result.heatmap.argmax()) - place) <= 1
    assert result.heatmap[: place - 3].max() < 0.01
    assert result.heatmap[place + 4 :].max() < 0.01


@pytest.mark.parametrize("place", [(2, 5, 7), (6, 1, 12)])
def test_the_heatmap_of_a_volume_peaks_at_the_known_evidence(place) -> None:
    volume = torch.full((1, 8, 10, 14), 0.1)
    volume[0][place] = 5
    result = camtool.explain(build_spike_detector(3), volume, 0, method="hirescam", layer="1")
    peak = np.unravel_index(result.heatmap.argmax(), result.heatmap.shape)
    assert max(abs(int(at) - known) for at, known in zip(peak, place, strict=True)) <= 1
    assert result.frames().shape == (8, 10, 14, 3)
    assert result.masked().shape[2] == 3


def test_an_array_is_a_signal_for_a_model_of_signals(tmp_path) -> None:
    net, values = build_net(1, 2), np.random.default_rng(0).standard_normal((2, 100))
    result = camtool.explain(net, values, 1)
    expected = camtool.explain(net, torch.from_numpy(values).float(), 1)
    assert np.array_equal(result.raw, expected.raw)
    assert len(camtool.explain(net, values[None], 1)) == 1
    backwards = camtool.explain(net, values[:, ::-1], 1)
    assert np.array_equal(backwards.raw, camtool.explain(net, values[:, ::-1].copy(), 1).raw)
    assert result.save(tmp_path / "signal.png").stat().st_size > 1000
    assert result._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(camtool.CamtoolError, match="a signal has no boxes"):
        result.boxes()


def test_the_user_can_name_the_kind() -> None:
    net = build_net(3, 3)
    batch = torch.randn(1, 3, 8, 10, 12)
    assert camtool.explain(net, batch, 1, kind="volume")[0].view.kind == "volume"
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 100, CLASSES)).eval()
    result = camtool.explain(flat, torch.randn(2, 3, 100), 1, method="inputxgradient", kind="signal")
    assert [each.heatmap.shape for each in result] == [(100,), (100,)]


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("singal", (1, 3, 8, 8), "kind='singal' is unknown; it is one of 'signal', 'image'"),
        ("signal", (1, 3, 8, 8), r"kind='signal' is \(N, C, L\), .* \(1, 3, 8, 8\)"),
        ("clip", (3, 8, 8), r"kind='clip' is \(N, C, D, H, W\)"),
    ],
)
def test_an_invalid_kind_raises_an_error(kind, shape, message) -> None:
    with pytest.raises(camtool.ImageError, match=message):
        camtool.explain(trunk().eval(), torch.zeros(shape), kind=kind)


def test_a_signal_of_integers_raises_an_error() -> None:
    with pytest.raises(
        camtool.ImageError, match=r"a prepared signal is a floating tensor \(C, L\); torch.int64 \(3, 100\) came"
    ):
        camtool.explain(build_net(1, 3), torch.zeros(3, 100, dtype=torch.long))


def test_the_modules_are_searched_once(monkeypatch) -> None:
    net = build_net(1, 3)
    assert infer_kind(net, (1, 3, 50)) == "signal"
    monkeypatch.setattr(nn.Module, "modules", lambda module: pytest.fail("the model is walked through again"))
    assert infer_kind(net, (3, 50)) == "signal"


@pytest.mark.parametrize("first", [True, False])
def test_a_convolution_over_channels_does_not_make_the_input_a_signal(first) -> None:
    """Some networks weight their channels by a 1-D convolution, and it may be the first module."""

    class Weighing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Conv1d(1, 1, 3, padding=1) if first else nn.Identity()
            self.trunk, self.head = trunk(), nn.Linear(6, CLASSES)
            self.behind = nn.Identity() if first else nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.behind(self.before(self.trunk(x).mean((2, 3))[:, None]))[:, 0])

    net, batch = Weighing().eval(), torch.rand(2, 3, 32, 40)
    assert infer_kind(net, (3, 16, 20)) == "image"
    results = camtool.explain(net, batch, 1)
    assert_close(camtool.explain(net, batch[1], 1).raw, results[1].raw)
    for pixels in (np.zeros((32, 40, 3), np.uint8), np.arange(32 * 40, dtype=np.uint8).reshape(32, 40)):
        assert camtool.explain(net, pixels, 1).heatmap.shape == (32, 40)


@pytest.mark.parametrize("shape", [(2, 8, 3, 16, 16), (8, 3, 16, 16)])
def test_frames_before_the_channels_raise_an_error(shape) -> None:
    with pytest.raises(camtool.ImageError, match=r"\(N, T, C, H, W\); camtool reads clips as \(N, C, T, H, W\)"):
        camtool.explain(build_net(3, 3), torch.zeros(shape))


def test_a_model_that_takes_frames_first_can_be_wrapped() -> None:
    class Turned(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, clip: Tensor) -> Tensor:
            return self.net(clip.transpose(1, 2))

    net, clip = build_net(3, 3), torch.randn(1, 3, 8, 16, 16)
    frames_first = Turned(net)
    with pytest.raises(camtool.ImageError, match="frames before its channels"):
        camtool.explain(frames_first, clip.transpose(1, 2), 1)
    assert_close(camtool.explain(Turned(frames_first), clip, 1)[0].raw, camtool.explain(net, clip, 1)[0].raw)


@pytest.mark.parametrize(
    ("axes", "channels", "shape"), [(3, 2, (2, 16, 32, 48)), (2, 1, (1, 32, 48)), (1, 3, (3, 32, 48))]
)
def test_the_example_shape_fits_the_model(axes, channels, shape) -> None:
    assert choose_example_shape(build_net(axes, channels), 32, 48) == shape


@pytest.mark.parametrize("kind", [None, "clip", "volume"])
def test_frames_first_raise_an_error_even_if_there_are_as_many_as_channels(kind) -> None:
    net = build_net(3, 3)
    net.config = SimpleNamespace(num_frames=3, num_channels=3)
    with pytest.raises(camtool.ImageError, match="Wrap a model that takes frames first"):
        camtool.explain(net, torch.zeros(1, 3, 3, 16, 16), kind=kind)


def test_an_image_for_a_model_of_signals_or_volumes_raises_an_error() -> None:
    for axes, message in ((1, r"take a signal \(C, L\)"), (3, r"take a volume \(C, D, H, W\)")):
        with pytest.raises(camtool.ImageError, match=f"img: an image came, but the model's convolutions {message}"):
            camtool.explain(build_net(axes, 3), Image.new("RGB", (32, 32)))


# ------------------------------------------------------------------------------------------- channels and types


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_an_image_becomes_gray_for_a_model_of_one_channel(mode) -> None:
    colors = Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 260, 3), np.uint8))
    photo, net = colors.convert("L").convert(mode), build_net(2, 1)
    result = camtool.explain(net, photo, 1)
    gray = np.asarray(photo.convert("L").resize((277, 256), Image.Resampling.BILINEAR))[16:240, 26:250]
    prepared = (torch.from_numpy(gray / np.float32(255)) - 0.449) / 0.226
    assert_close(result.raw, camtool.explain(net, prepared[None], 1).raw, atol=1e-3, rtol=1e-2)
    assert result.heatmap.shape == (240, 260)
    assert any("converted to gray" in warning for warning in result.warnings)


@pytest.mark.parametrize("given", [torch.float64, torch.float16])
def test_a_tensor_is_converted_to_the_floating_type_of_the_model(given) -> None:
    net, batch = build_net(2, 3), torch.randn(2, 3, 16, 16)
    expected = camtool.explain(net, batch.to(given).float(), 1)[1].raw
    assert np.array_equal(camtool.explain(net, batch.to(given), 1)[1].raw, expected)
    assert np.array_equal(camtool.explain(net, {"input": batch.to(given)}, 1)[1].raw, expected)
    assert camtool.explain(net.double(), batch.double(), 1)[1].view.photo.shape == (16, 16, 3)
    assert infer_kind(net, (2, 3, 16, 20)) == "image"


@pytest.mark.parametrize("name", [name for name in FOR_CLASSIFIERS if name != "cam"])
@pytest.mark.parametrize("shape", [(2, 3, 60), (1, 1, 8, 10, 12)], ids=["signal", "volume"])
def test_every_method_explains_signals_and_volumes(name, shape) -> None:
    net = build_net(len(shape) - 2, shape[1])
    for result in camtool.explain(net, torch.randn(shape), 1, method=name, **OPTIONS.get(name, {})):
        assert result.raw.ndim == len(shape) - 2
        assert result.heatmap.shape == shape[2:]
        assert np.isfinite(result.raw).all()


@pytest.mark.parametrize("stride", [(1, 4, 4), (4, 4, 1), (1, 2, 4)])
def test_each_axis_of_a_volume_may_have_its_own_stride(stride) -> None:
    net = nn.Sequential(nn.Conv3d(1, 6, 3, stride, 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    net = nn.Sequential(*net, nn.Linear(6, CLASSES)).eval()
    result = camtool.explain(net, torch.randn(1, 1, 16, 16, 16), 1)[0]
    assert result.raw.shape == tuple(16 // step for step in stride)


def test_tokens_over_time_have_the_layout_of_their_convolution() -> None:
    layout = find_token_layout(1 + 8 * 7 * 7, (16, 224, 224), [(8, 56, 56)])
    assert (layout.grid, layout.prefix) == ((8, 7, 7), 1)
    assert find_token_layout(1 + 8 * 7 * 6, (16, 224, 224), [(8, 56, 56)]) is None


def build_small_mvit() -> nn.Module:
    """Build a video transformer that pools the frames but not the time, with a class token first."""

    def block(channels: int, wider: int, pool: list[int]) -> MSBlockConfig:
        return MSBlockConfig(2, channels, wider, [3, 3, 3], [3, 3, 3], pool, [1, 2, 2])

    blocks = [block(16, 32, [1, 1, 1]), block(32, 32, [1, 2, 2]), block(32, 32, [1, 2, 2])]
    switches = {"residual_with_cls_embed": True, "rel_pos_embed": False, "proj_after_attn": False}
    return MViT((64, 64), 8, blocks, residual_pool=False, **switches).eval()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("r3d_18", (8, 64, 80)),
        ("mc3_18", (8, 64, 64)),
        ("r2plus1d_18", (8, 64, 64)),
        ("s3d", (16, 224, 224)),
        ("small_mvit", (8, 64, 64)),
        ("swin3d_t", (8, 64, 96)),
    ],
)
def test_video_models_are_explained(name, shape) -> None:
    net = build_small_mvit() if name == "small_mvit" else getattr(video, name)(weights=None).eval()
    results = camtool.explain(net, torch.randn(1, 3, *shape), [list(range(6))])[0]
    for result in results:
        assert (result.view.kind, result.heatmap.shape, len(result.raw.shape)) == ("clip", shape, 3)
        assert min(result.raw.shape[1:]) > 1
    assert any(np.ptp(result.raw) > 0 for result in results)
