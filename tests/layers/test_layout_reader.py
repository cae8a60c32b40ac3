"""Reading of outputs as grids, each in the light of the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from camtool.hooks.tracing import TracedCall, trace
from camtool.layers.layout_reader import LayoutReader
from camtool.layers.layouts import Layout
from camtool.outputs.detections import QueryTokens
from tests.layers.nets import AttentionPooling, MultiHeadAttention, TokenMixer, TokenNet

FIRST, LAST, TOKENS = "channels first", "channels last", "tokens"


def find_layouts(model: nn.Module, image: Tensor) -> dict[str, list[Layout]]:
    """Return the ways to read the output of each module."""
    calls = trace(model, image)
    reader = LayoutReader(calls, image.shape[2:])
    return {call.name: reader.find_layouts(call) for call in calls}


def make_call(name: str, module: nn.Module, shape: tuple[int, ...]) -> TracedCall:
    return TracedCall(name, module, shape, passes_through=False, follows_previous=False, source=None)


# --------------------------------------------------------------------------------------------------------- grids


def test_an_image_that_the_model_makes_square_has_a_square_grid() -> None:
    patches = nn.Sequential(nn.AdaptiveAvgPool2d(96), nn.Conv2d(3, 8, 16, stride=16))
    found = find_layouts(TokenNet(nn.LayerNorm(8), patches), torch.randn(1, 3, 96, 160))
    assert found["body"] == [Layout(TOKENS, (6, 6), 1)]


def test_the_tokens_of_a_clip_have_the_grid_of_a_convolution() -> None:
    found = find_layouts(TokenNet(nn.LayerNorm(8), nn.Conv3d(3, 8, 8, stride=8)), torch.randn(1, 3, 16, 32, 24))
    assert found["body"] == [Layout(TOKENS, (2, 4, 3), 1)]


@pytest.mark.parametrize(
    ("tokens", "queries", "layout"),
    [
        (1 + 64 + 10, QueryTokens(behind=10), Layout(TOKENS, (8, 8), 1, suffix=10)),  # YOLOS: class, image, queries
        (16, QueryTokens(behind=10), Layout(TOKENS, (4, 4))),  # DETR: not two tokens, a grid of 2 x 2 and the queries
        (20 + 5 + 64, QueryTokens(before=20), Layout(TOKENS, (8, 8), 25)),  # EoMT: queries, class and registers, image
        (5 + 64, QueryTokens(before=20), Layout(TOKENS, (8, 8), 5)),  # EoMT before it adds the queries
    ],
)
def test_queries_may_be_among_the_tokens_of_the_image(tokens: int, queries: QueryTokens, layout: Layout) -> None:
    call = make_call("tokens", nn.Identity(), (1, tokens, 8))
    assert LayoutReader([call], (64, 64), queries).find_layouts(call) == [layout]


def test_feature_levels_of_a_detector_are_not_a_grid_with_a_prefix_and_queries() -> None:
    """LW-DETR: 16 x 24 and 4 x 6 positions are also 16 x 24 with a prefix of 14 and 10 queries."""
    levels = [make_call(f"level{side}", nn.Conv2d(1, 1, 1), (1, 8, side, side * 3 // 2)) for side in (16, 4)]
    call = make_call("tokens", nn.Identity(), (1, 16 * 24 + 4 * 6, 8))
    found = LayoutReader([*levels, call], (128, 192), QueryTokens(behind=10)).find_layouts(call)
    assert found == [Layout(TOKENS, (4, 6), 16 * 24)]


@pytest.mark.parametrize("kind", [FIRST, LAST])
def test_a_grid_with_the_exact_proportions_of_the_image_is_preferred(kind: str) -> None:
    """Ten channels over 8 x 8 positions, read the other way, are 10 x 8 positions, or 8 x 10."""
    shape = (1, 10, 8, 8) if kind == FIRST else (1, 8, 8, 10)
    call = make_call("maps", nn.Identity(), shape)
    assert LayoutReader([call], (128, 128)).find_layouts(call) == [Layout(kind, (8, 8))]


# ---------------------------------------------------------------------------------------- shapes that look like grids


@pytest.mark.parametrize("width", [60, 64, 68])  # each of two heads has about as many channels as there are tokens
def test_the_inside_of_attention_is_no_grid(width: int) -> None:
    patches = nn.Conv2d(3, width * 2, 8, stride=8)
    found = find_layouts(TokenNet(MultiHeadAttention(width * 2, 2), patches), torch.randn(1, 3, 64, 64))
    assert {name: found[f"body.{name}"] for name in ("queries", "over_tokens", "over_channels")} == {
        "queries": [],
        "over_tokens": [],
        "over_channels": [],
    }
    assert found["body"] == found["body.back"] == [Layout(TOKENS, (8, 8), 1)]


def test_the_keys_of_attention_pooling_are_no_grid() -> None:
    found = find_layouts(TokenNet(AttentionPooling(128), nn.Conv2d(3, 128, 8, stride=8)), torch.randn(1, 3, 64, 64))
    assert (found["body.keys"], found["body.both"]) == ([], [Layout(TOKENS, (8, 8), 1)])


def test_maps_of_the_shape_of_attention_weights_are_a_grid_elsewhere() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(2), nn.Linear(64 * 64, 8))
    assert find_layouts(model, torch.randn(1, 3, 64, 64))["0"] == [Layout(FIRST, (64, 64))]


def test_channels_are_not_read_as_tokens_inside_of_token_mixing() -> None:
    patches = nn.Conv2d(3, 64, 16, stride=16)  # 64 channels could be 8 x 8 tokens
    found = find_layouts(TokenNet(TokenMixer(17), patches), torch.randn(1, 3, 64, 64))
    assert (found["body.along"], found["body"]) == ([], [Layout(TOKENS, (4, 4), 1)])
