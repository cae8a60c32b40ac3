"""Networks for images that run on each frame of clips, as rows of one batch: one map for each frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import LayerError, MethodError
from camtool.evidence.evidence import Evidence
from camtool.layers.centers import find_centers
from camtool.layers.layouts import Layer, Layout
from camtool.maps import resize_to_grid
from tests.helpers.vision_transformers import CHANNELS, Block
from tests.hooks.state.test_no_trace import unchanged


class FrameNet(nn.Module):
    """A network on the frames of clips ``(N, C, T, H, W)``, whose features a head joins."""

    def __init__(self, head: str = "mean", order: str = "clips first") -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 10, 3, 2, 1), nn.Tanh())
        self.head, self.order, self.classes = head, order, nn.Linear(10, 4)
        self.memory = nn.LSTM(10, 10, batch_first=True) if head == "lstm" else None

    def forward(self, clips: Tensor) -> Tensor:
        clips = clips if self.order == "frames before channels" else clips.transpose(1, 2)  # (N, T, C, H, W)
        if self.order == "frames first":
            features = self.trunk(clips.transpose(0, 1).flatten(0, 1)).mean((2, 3))
            frames = features.unflatten(0, (clips.shape[1], -1)).transpose(0, 1)
        else:
            frames = self.trunk(clips.flatten(0, 1)).mean((2, 3)).unflatten(0, (len(clips), -1))
        if self.memory is not None:
            frames = self.memory(frames)[0][:, -1:]
        return self.classes(frames.amax(1) if self.head == "max" else frames.mean(1))


def build(*options: str) -> FrameNet:
    torch.manual_seed(0)
    return FrameNet(*options).eval()


def compute_signed_gradcam(evidence: Evidence) -> Tensor:
    weights = evidence.gradients.mean((2, 3, 4), keepdim=True)
    return (weights * evidence.activations).sum(1)


@pytest.mark.parametrize("head", ["mean", "max", "lstm"])
@pytest.mark.parametrize("size", [(5, 16, 24), (3, 16, 16), (8, 16, 16)])
def test_gradcam_of_each_frame(head: str, size: tuple[int, ...]) -> None:
    """Computed by hooks and nothing else: the weights of a clip are means over its frames and positions."""
    net, clips = build(head), torch.randn(3, 3, *size)
    with unchanged(net):
        results = camtool.explain(net, clips, [0, 1, 2], method=compute_signed_gradcam)
    kept: list[Tensor] = []
    handle = net.trunk.register_forward_hook(lambda *call: kept.append(call[2]))
    scores = net(clips)
    handle.remove()
    (gradient,) = torch.autograd.grad(scores[range(3), range(3)].sum(), kept[0])
    for number, result in enumerate(results):
        rows = slice(number * size[0], (number + 1) * size[0])
        activations, slopes = kept[0][rows].detach(), gradient[rows]
        expected = (slopes.mean((0, 2, 3))[:, None, None] * activations).sum(1)
        np.testing.assert_allclose(result.raw, expected, rtol=1e-4, atol=1e-7)
        assert result.raw.shape == (size[0], 4, size[2] // 4)
        assert result.heatmap.shape == size
        alone = camtool.explain(net, clips[number : number + 1], number, method=compute_signed_gradcam)[0]
        np.testing.assert_allclose(alone.raw, result.raw, rtol=1e-4, atol=1e-7)


def test_several_classes_of_a_clip_and_a_named_layer() -> None:
    net, clips = build(), torch.randn(2, 3, 4, 16, 16)
    together = camtool.explain(net, clips, [[0, 1, 2], [3]], method="layercam", layer="trunk.1")
    for clip, own in enumerate(together):
        for result in own:
            alone = camtool.explain(net, clips[clip : clip + 1], result.index, method="layercam", layer="trunk.1")[0]
            np.testing.assert_allclose(result.raw, alone.raw, rtol=1e-4, atol=1e-7)
            assert result.raw.shape == (4, 8, 8)


def test_a_frame_that_does_not_matter_has_no_heat() -> None:
    class Third(FrameNet):
        """A network that reads the third frame alone."""

        def forward(self, clips: Tensor) -> Tensor:
            clips = clips.transpose(1, 2)
            features = self.trunk(clips.flatten(0, 1)).mean((2, 3)).unflatten(0, (len(clips), -1))
            return self.classes(features[:, 2])

    net, clips = Third().eval(), torch.randn(1, 3, 5, 16, 16)
    raw = camtool.explain(net, clips, 1, method="gradcam-elementwise")[0].raw
    assert raw[2].any()
    assert not raw[[0, 1, 3, 4]].any()


def test_ablation_of_a_channel_removes_it_from_all_frames() -> None:
    net, clip = build("max"), torch.randn(1, 3, 4, 16, 16)
    result = camtool.explain(net, clip, 2, method="ablationcam")[0]
    with torch.no_grad():
        features = net.trunk(clip[0].transpose(0, 1))
        score = net.classes(features.mean((2, 3)).amax(0))[2]
        expected = torch.zeros(features.shape[0], *features.shape[2:])
        for channel in range(features.shape[1]):
            without = features.clone()
            without[:, channel] = 0
            drop = (score - net.classes(without.mean((2, 3)).amax(0))[2]) / score
            expected += features[:, channel].sum().sign() * drop * features[:, channel]
    np.testing.assert_allclose(result.raw, expected.relu(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("order", ["frames first", "frames before channels"])
@pytest.mark.parametrize("layer", [None, "trunk"])
def test_rows_in_another_order_are_refused(order: str, layer: Any) -> None:
    """A clip of three frames and three channels fits both ways, and its frames would be mixed up."""
    net, clips = build("mean", order), torch.randn(1, 3, 3, 16, 16)
    with pytest.raises(LayerError, match="the rows of its batch are not the frames of each clip"):
        camtool.explain(net, clips, layer=layer)


def test_engines_leave_such_models_to_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    net, clips = build(), torch.randn(2, 3, 4, 16, 16)
    ours, usual = (camtool.explain(net, clips, 1, engine=engine) for engine in ("prepared", "eager"))
    np.testing.assert_allclose(ours[1].raw, usual[1].raw, rtol=1e-5)
    assert "the frames of clips" in caplog.text


# --------------------------------------------------------------------------------------------- tokens of each frame


class FrameTransformer(nn.Module):
    """A vision transformer on each frame of clips ``(N, C, T, H, W)``; a head joins the class tokens of the frames."""

    def __init__(self, head: str = "mean", shuffled: bool = False) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, CHANNELS, 4, stride=4), nn.Parameter(torch.randn(1, 1, CHANNELS))
        self.blocks, self.shuffled = nn.Sequential(Block("fused"), Block("fused")), shuffled
        self.memory = nn.LSTM(CHANNELS, CHANNELS, batch_first=True) if head == "lstm" else None
        self.classes = nn.Linear(CHANNELS, 4)

    def forward(self, clips: Tensor) -> Tensor:
        patches = self.patches(clips.transpose(1, 2).flatten(0, 1)).flatten(2).transpose(1, 2)
        if self.shuffled:
            patches = patches[:, torch.randperm(patches.shape[1], generator=torch.Generator().manual_seed(0))]
        tokens = self.blocks(torch.cat([self.first.expand(len(patches), -1, -1), patches], 1))
        return self.join(tokens.unflatten(0, (len(clips), -1)))

    def join(self, tokens: Tensor) -> Tensor:
        """Return the scores ``(N, 4)`` from the tokens of the last block ``(N, T, 1 + P, C)``."""
        frames = tokens[:, :, 0]
        if self.memory is not None:
            return self.classes(self.memory(frames)[0][:, -1])
        return self.classes(frames.mean(1))


def build_transformer(*options: Any) -> FrameTransformer:
    torch.manual_seed(0)
    return FrameTransformer(*options).double().eval()


def make_clips(count: int, frames: int) -> Tensor:
    return torch.randn(count, 3, frames, 16, 24, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("layer", [None, "blocks.0"])
@pytest.mark.parametrize("head", ["mean", "lstm"])
@pytest.mark.parametrize("frames", [3, 5, 25])
def test_gradcam_of_the_tokens_of_each_frame(head: str, frames: int, layer: Any) -> None:
    """Computed by a hook, token by token: token 1 + 6 i + j of row 5 n + t is the cell (i, j) of frame t of clip n."""
    net, clips = build_transformer(head), make_clips(2, frames)
    with unchanged(net):
        results = camtool.explain(net, clips, [0, 2], method=compute_signed_gradcam, layer=layer)
    kept: list[Tensor] = []
    handle = net.get_submodule(results[0].layer).register_forward_hook(lambda *call: kept.append(call[2]))
    scores = net(clips)
    handle.remove()
    (gradient,) = torch.autograd.grad(scores[0, 0] + scores[1, 2], kept[0])
    for number, result in enumerate(results):
        rows = range(number * frames, (number + 1) * frames)
        weights = sum(gradient[row, 1:].sum(0) for row in rows) / (frames * 24)
        assert result.raw.shape == (frames, 4, 6)
        assert result.heatmap.shape == (frames, 16, 24)
        for frame, row in enumerate(rows):
            for i in range(4):
                expected = [float(weights @ kept[0][row, 1 + 6 * i + j].detach()) for j in range(6)]
                np.testing.assert_allclose(result.raw[frame, i], expected, rtol=1e-4, atol=1e-9)
        alone = camtool.explain(net, clips[number : number + 1], 2 * number, method=compute_signed_gradcam, layer=layer)
        np.testing.assert_allclose(alone[0].raw, result.raw, rtol=1e-4, atol=1e-9)


def test_ablation_of_a_channel_of_tokens_keeps_the_class_token() -> None:
    net, clip = build_transformer(), make_clips(1, 3)
    result = camtool.explain(net, clip, 2, method="ablationcam", layer="blocks.0")[0]
    kept: list[Tensor] = []
    handle = net.blocks[0].register_forward_hook(lambda *call: kept.append(call[2]))
    with torch.no_grad():
        score = net(clip)[0, 2]
    handle.remove()
    expected = torch.zeros(3, 24).double()
    with torch.no_grad():
        for channel in range(CHANNELS):
            without = kept[0].clone()
            without[:, 1:, channel] = 0
            drop = (score - net.join(net.blocks[1](without)[None])[0, 2]) / score.abs()
            expected += kept[0][:, 1:, channel].sum().sign() * drop * kept[0][:, 1:, channel]
    assert expected.relu().any()
    np.testing.assert_allclose(result.raw, expected.relu().reshape(3, 4, 6), rtol=1e-4, atol=1e-9)


def test_tokens_in_another_order_within_their_frame_are_refused() -> None:
    net, clip = build_transformer("mean", True), make_clips(1, 5)
    for layer in ("blocks.0", "blocks.1.norm1"):
        with pytest.raises(LayerError, match="not in the order of the image's rows"):
            camtool.explain(net, clip, 1, layer=layer)
    assert camtool.explain(net, clip, 1)[0].layer == "patches"  # the last layer before they are shuffled


@pytest.mark.parametrize("method", ["rollout", "chefer", "maskclip"])
def test_methods_of_attention_refuse_frames(method: str) -> None:
    with pytest.raises(MethodError):
        camtool.explain(build_transformer(), make_clips(1, 5), 1, method=method)


def test_frames_with_channels_last() -> None:
    class Last(FrameNet):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Identity()

        def forward(self, clips: Tensor) -> Tensor:
            features = self.turn(self.trunk(clips.transpose(1, 2).flatten(0, 1)).movedim(1, -1))
            return self.classes(features.mean((1, 2)).unflatten(0, (len(clips), -1)).mean(1))

    torch.manual_seed(0)
    net, clips = Last().eval(), torch.randn(2, 3, 5, 16, 24)
    first, last = (camtool.explain(net, clips, 1, layer=layer) for layer in ("trunk", "turn"))
    for one, other in zip(first, last, strict=True):
        np.testing.assert_allclose(one.raw, other.raw, rtol=1e-4, atol=1e-7)
    assert np.any([each.raw for each in first])


# -------------------------------------------------------------------------------------------------------- placement


@pytest.mark.parametrize("crop", [0, 3])
def test_the_cells_of_each_frame_have_the_centers_of_the_network_for_images(crop: int) -> None:
    class Cropped(FrameNet):
        def forward(self, clips: Tensor) -> Tensor:
            return super().forward(clips[..., crop:])

    torch.manual_seed(0)
    net, clips = Cropped().eval(), torch.randn(1, 3, 5, 32, 32 + crop)
    result = camtool.explain(net, clips, 1)[0]
    image = find_centers(net.trunk, clips[:, :, 0, :, crop:], Layer("3", Layout("channels first", (8, 8))))
    assert image is not None
    assert result.centers is not None
    time, rows, columns = result.centers.axes
    assert (time.offset, time.stride) == (0.5, 1)
    assert rows == image.axes[0]
    assert (columns.offset, columns.stride) == (image.axes[1].offset + crop, image.axes[1].stride)


def test_numbers_by_hand_and_the_heatmap_of_each_frame() -> None:
    """Two convolutions of 3 taps with stride 2 and padding 1: cell j is around pixel 4 j + 0.5."""
    net, clips = build(), torch.randn(1, 3, 3, 16, 24)
    (placed,) = camtool.explain(net, clips, 1, method="layercam")
    (stretched,) = camtool.explain(net, clips, 1, method="layercam", placement="stretch")
    assert placed.centers is not None
    assert [(axis.offset, axis.stride) for axis in placed.centers.axes] == [(0.5, 1), (0.5, 4), (0.5, 4)]
    np.testing.assert_allclose(placed.raw, stretched.raw)
    # At the centers of the cells, the heatmap has the values of the cells, and stretched those between.
    np.testing.assert_allclose(placed.heatmap[:, ::4, ::4], placed.raw / placed.raw.max(), rtol=1e-4, atol=1e-6)
    expected = resize_to_grid(torch.from_numpy(stretched.raw)[None], (3, 16, 24))[0]
    np.testing.assert_allclose(stretched.heatmap, expected / expected.amax(), rtol=1e-4, atol=1e-6)
