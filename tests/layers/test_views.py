"""Networks that join several inputs to one batch: the map is that of a network that runs on one after the other."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import LayerError
from camtool.hooks.observation import Rows
from tests.helpers.vision_transformers import CHANNELS, Block
from tests.state.test_no_trace import unchanged


class Tokens(nn.Module):
    """Patches of 8 x 8 pixels with a class token, ``(N, 1 + h·w, C)``."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, CHANNELS, 8, 8), nn.Sequential(Block("fused"), Block("fused"))
        self.first, self.places = nn.Parameter(torch.randn(1, 1, CHANNELS)), nn.Parameter(torch.randn(1, 31, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.blocks(tokens)  # type: ignore[no-any-return]


def build_trunk(kind: str) -> nn.Module:
    if kind == "tokens":
        return Tokens()
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.Tanh())


class Meet(nn.Module):
    """Adds to the features of each of two inputs those of the other one."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


class Siamese(nn.Module):
    """Scores of three inputs, of which the trunk gets two as one batch, in one of the usual ways or by two copies."""

    def __init__(self, kind: str, joined: str, view: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.classes = build_trunk(kind), nn.Bilinear(2, 2, 5)
        self.other = copy.deepcopy(self.trunk)
        self.joined, self.view = joined, view

    def forward(self, image: Tensor, second: Tensor, third: Tensor) -> Tensor:
        pair = [image, second] if self.view == 0 else [second, image]
        if self.joined == "stack":
            features = self.trunk(torch.stack(pair, 1).flatten(0, 1))
            one, two = features.unflatten(0, (len(image), 2)).unbind(1)
        elif self.joined == "cat":
            one, two = self.trunk(torch.cat(pair)).chunk(2)
        else:
            one, two = (trunk(x) for trunk, x in zip(self.in_turn, pair, strict=True))
        weights = torch.linspace(-3, 3, 2 * one[0].numel()).cos().reshape(2, -1)
        first, last = (each.flatten(1) @ weights.T for each in (one, two))
        return self.classes(first, last) + third.mean((1, 2, 3))[:, None]  # type: ignore[no-any-return]

    @property
    def in_turn(self) -> list[nn.Module]:
        return [self.trunk, self.other] if self.view == 0 else [self.other, self.trunk]


def draw_inputs(count: int) -> camtool.Inputs:
    return camtool.Inputs(*torch.rand(3, count, 3, 40, 48, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("method", ["gradcam", "layercam", "ablationcam", "shapleycam", "faithcam"])
@pytest.mark.parametrize("joined", ["stack", "cat"])
@pytest.mark.parametrize("view", [0, 1])
@pytest.mark.parametrize("kind", ["maps", "tokens"])
def test_the_map_is_that_of_a_trunk_for_each_input(kind: str, view: int, joined: str, method: str) -> None:
    inputs, layer = draw_inputs(3), "trunk.3" if kind == "maps" else "trunk.blocks.1"
    apart, together = Siamese(kind, "none", view).eval(), Siamese(kind, joined, view).eval()
    expected = camtool.explain(apart, inputs, [2, 0, 1], method=method, layer=layer)
    with unchanged(together):
        results = camtool.explain(together, inputs, [2, 0, 1], method=method)
    assert results[0].layer in (layer, "trunk", "trunk.blocks")
    assert any(each.heatmap.any() for each in expected)
    for ours, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours.heatmap, reference.heatmap, atol=1e-4)
        assert ours.score == pytest.approx(reference.score, rel=1e-4)


def test_a_layer_where_the_inputs_meet_is_not_read() -> None:
    net = Siamese("maps", "stack", 0).eval()
    net.trunk.append(Meet())
    (result,) = camtool.explain(net, draw_inputs(1), 2)
    assert result.layer == "trunk.3"
    with pytest.raises(LayerError, match=r"'trunk.4' returned \(2, 12, 10, 12\), but .* nor views of which one alone"):
        camtool.explain(net, draw_inputs(1), 2, layer="trunk.4")


@pytest.mark.parametrize("in_turn", [True, False])
def test_rows_are_split_by_image_and_joined_again(in_turn: bool) -> None:
    images = torch.arange(6).reshape(3, 2)  # two rows for each of three images
    batch = images.flatten() if in_turn else images.T.flatten()
    rows = Rows(2, in_turn)
    assert_close(rows.split(batch), images)
    assert_close(rows.join(images), batch)
