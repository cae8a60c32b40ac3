"""Attention as evidence: which models are refused, and what is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.evidence.attention import capture_attention_evidence
from camtool.hooks.attention.capture import capture_attention
from camtool.methods import METHODS
from camtool.targets import ClassScore
from tests.helpers.nets import Apply
from tests.helpers.vision_transformers import (
    ATTENTION_METHODS,
    ATTENTION_METHODS_WITH_GRADIENTS,
    CHANNELS,
    TinyViT,
    attend_in_batch,
    attend_to_itself,
    build_timm,
    gather_rows,
    make_images,
    make_tiny_vit,
)

# ---------------------------------------------------------------------------------------------- refused models


def make_cnn_without_attention() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_a_model_without_attention_raises_an_error(name: str) -> None:
    with pytest.raises(MethodError, match=r"runs no attention that can be captured.*method='gradcam'"):
        camtool.explain(make_cnn_without_attention(), torch.randn(1, 3, 16, 16), 0, method=name)


MODELS_WITH_SEVERAL_TOKEN_SETS: dict[str, Callable[[], nn.Module]] = {
    "windows, torchvision": lambda: torchvision.models.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=3
    ),
    "windows, timm": lambda: build_timm(
        "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 2)
    ),
    "stages": lambda: build_timm("pvt_v2_b0", depths=(1, 1, 1, 1)),
    "a class token added late": lambda: build_timm("cait_xxs24_224", img_size=64, depth=2, embed_dim=48),
}


@pytest.mark.parametrize("kind", MODELS_WITH_SEVERAL_TOKEN_SETS)
@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_attention_over_several_sets_of_tokens_raises_an_error(name: str, kind: str) -> None:
    with pytest.raises(MethodError, match=r"not over one common set of tokens.*Its matrices are \(.*for 1 image\."):
        camtool.explain(MODELS_WITH_SEVERAL_TOKEN_SETS[kind]().eval(), torch.randn(1, 3, 64, 64), 0, method=name)


def test_windows_in_the_axis_of_the_heads_raise_an_error() -> None:
    """Nine windows of 2 x 2 tokens, in one axis with the images, as two heads were: (2 · 9, 4, 4)."""

    class Windowed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            windows = x.unflatten(1, (9, 4)).flatten(0, 1)
            return x + attend_in_batch(windows[:, None], windows[:, None], windows[:, None])[:, 0].reshape(x.shape)

    tokens = Apply(lambda x: x.flatten(2).transpose(1, 2))
    net = nn.Sequential(tokens, Windowed(), Windowed(), Apply(lambda x: x.mean(1)))
    x = torch.randn(2, 3, 6, 6)
    assert capture_attention(net, x).calls[0].matrix.shape == (2, 9, 4, 4)
    with pytest.raises(MethodError, match="not over one common set of tokens"):
        METHODS["chefer"](gather_rows(net, x, [ClassScore(0)] * 2))


@pytest.mark.parametrize("axes", [1, 3])
def test_signals_and_volumes_raise_an_error(axes: int) -> None:
    positions = Apply(lambda x: x.flatten(2).transpose(1, 2))
    net = nn.Sequential(positions, Apply(attend_to_itself), Apply(lambda x: x.mean(1)))
    with pytest.raises(MethodError, match="not over one common set of tokens"):
        METHODS["rollout"](gather_rows(net, torch.randn(1, 3, *[4] * axes), [ClassScore(0)]))


@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_methods_without_gradients_work_on_a_detached_output(name: str) -> None:
    net, x = make_tiny_vit(), make_images(1)
    expected = METHODS[name](gather_rows(net, x, [ClassScore(1)]))
    frozen = nn.Sequential(net, Apply(Tensor.detach))
    if name in ATTENTION_METHODS_WITH_GRADIENTS:
        with pytest.raises(MethodError, match=r"no gradient passes from the score to the attention.*'rollout'"):
            METHODS[name](gather_rows(frozen, x, [ClassScore(1)]))
    else:
        assert_close(METHODS[name](gather_rows(frozen, x, [ClassScore(1)])), expected)


def test_an_unused_attention_pooling_is_ignored() -> None:
    class Unused(TinyViT):
        def answer(self, tokens: Tensor) -> Tensor:
            self.pool(self.norm(tokens))
            return self.head(self.norm(tokens).mean(1))

    torch.manual_seed(0)
    net = Unused(pooling="attention").double()
    evidence = gather_rows(net, x := make_images(), [ClassScore(1)] * 2)
    assert len(capture_attention(net, x).calls) == 4
    assert len(capture_attention_evidence(evidence).matrices) == 3
    assert METHODS["chefer"](evidence).any()


def test_legrad_requires_blocks_that_return_tokens() -> None:
    class Folds(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x.transpose(0, 1)).transpose(0, 1)

    net = make_tiny_vit()
    net.blocks[0] = nn.Sequential(net.blocks[0], Apply(lambda x: x.flatten(1)))
    net.blocks.insert(1, Apply(lambda x: x.unflatten(1, (13, CHANNELS))))
    evidence = gather_rows(net, make_images(), [ClassScore(1)] * 2)
    with pytest.raises(MethodError, match=r"must return tokens \(N, tokens, C\) of one shape.*'chefer'"):
        METHODS["legrad"](evidence)
    assert METHODS["chefer"](evidence).any()


def test_vitreciprocam_requires_a_layer_before_the_attention() -> None:
    net = make_tiny_vit()
    block = net.blocks[-1]
    block.norm1 = Apply(block.norm1.forward)
    block.forward = lambda x: x + block.attention(block.norm1(x) + 0)
    with pytest.raises(MethodError, match=r"no layer of the model returns exactly the input of its last attention"):
        METHODS["vitreciprocam"](gather_rows(net, make_images(1), [ClassScore(1)]))
