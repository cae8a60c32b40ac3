"""Networks for images that run on each frame of clips, as rows of one batch: one map for each frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import LayerError
from camtool.evidence.evidence import Evidence
from tests.state.test_no_trace import unchanged


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
            expected += drop * features[:, channel]
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
