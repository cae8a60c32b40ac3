"""Attention of a model that pools tiles: the weights of its softmax at the places of the tiles."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import ImageError, LayerError
from tests.hooks.state.test_no_trace import unchanged

PLACES = [(0, 0), (1, 2), (0, 3), (2, 1)]


class Pooling(nn.Module):
    """Gated or plain attention over tiles: weights ``(T, K)`` or ``(K, T)``, by a module or a function."""

    def __init__(self, *, branches: int = 1, axis: int = 0, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.score, self.axis = nn.Linear(5, branches), axis
        self.softmax, self.head = nn.Softmax(0), nn.Linear(5, classes)
        self.double()

    def forward(self, bag: Tensor) -> Tensor:
        features = bag.reshape(-1, bag.shape[-1]) if bag.ndim < 4 else bag.mean((2, 3)).repeat(1, 5)[:, :5]
        scores = self.score(features)
        weights = self.softmax(scores) if self.axis == 0 else scores.T.softmax(1).T
        return self.head((weights.mean(1, keepdim=True) * features).sum(0)).softmax(0)  # a softmax over classes


def compute_weights(model: Pooling, bag: Tensor, branch: int) -> list[float]:
    """The softmax over the tiles, by its definition."""
    row, bias = model.score.weight[branch].tolist(), model.score.bias.tolist()[branch]
    scores = [exp(bias + sum(w * x for w, x in zip(row, tile, strict=True))) for tile in bag.tolist()]
    return [score / sum(scores) for score in scores]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("branches", [1, 2])
def test_weights_lie_at_the_places_of_the_tiles(axis: int, branches: int) -> None:
    model, bag = Pooling(branches=branches, axis=axis), torch.randn(4, 5, dtype=torch.float64)
    by_branch = [compute_weights(model, bag, branch) for branch in range(branches)]
    for branch, expected in [(None, np.mean(by_branch, 0)), *enumerate(by_branch)]:
        with unchanged(model):
            result = camtool.bag_attention(model, bag, PLACES, branch=branch)
        raw = np.zeros((3, 4))
        for (row, column), weight in zip(PLACES, expected, strict=True):
            raw[row, column] = weight
        np.testing.assert_allclose(result.raw, raw, rtol=1e-6)
        assert result.score == pytest.approx(1)
    for same in (bag[None], bag.numpy()):
        again = camtool.bag_attention(model, same, PLACES)
        np.testing.assert_allclose(again.raw, camtool.bag_attention(model, bag, PLACES).raw, rtol=1e-6)


def test_places_may_be_integers_of_any_size() -> None:
    model, bag = Pooling(), torch.randn(2, 5, dtype=torch.float64)
    for kind in (np.uint8, np.int16):
        places = np.array([(0, 0), (np.iinfo(kind).max, 1)], kind)
        result = camtool.bag_attention(model, bag, places)
        np.testing.assert_allclose(result.raw[[0, -1], [0, 1]], compute_weights(model, bag, 0), rtol=1e-6)
        assert result.raw.shape == (np.iinfo(kind).max + 1, 2)


def test_tiles_are_drawn_at_their_places() -> None:
    tiles = torch.rand(4, 3, 6, 8, dtype=torch.float64)
    tiles[0], tiles[1] = 0, 1
    result = camtool.bag_attention(Pooling(), tiles, PLACES)
    assert result.photo.shape == (18, 32, 3)
    assert (result.photo[:6, :8] == 0).all()
    assert (result.photo[6:12, 16:24] == 255).all()
    assert (result.photo[12:, :8] == 255).all()  # no tile is there
    shown = camtool.bag_attention(Pooling(), tiles, PLACES, photo=np.zeros((30, 40, 3), np.uint8))
    assert shown.heatmap.shape == (30, 40)


class Ordered(Pooling):
    """A model whose weights depend on the order of the tiles."""

    def forward(self, bag: Tensor) -> Tensor:
        return super().forward(bag + torch.linspace(0, 1, len(bag), dtype=bag.dtype)[:, None])


def test_refused_bags() -> None:
    bag = torch.randn(4, 5, dtype=torch.float64)
    with pytest.raises(LayerError, match="Ordered: the weights depend on the order of the tiles"):
        camtool.bag_attention(Ordered(), bag, PLACES)
    with pytest.raises(LayerError, match="computes no softmax over 4 tiles"):
        camtool.bag_attention(nn.Linear(5, 3).double(), bag, PLACES)
    with pytest.raises(LayerError, match="computes 2 softmaxes over 4 tiles; choose with index="):
        camtool.bag_attention(Pooling(classes=4), bag, PLACES)
    first = camtool.bag_attention(Pooling(classes=4), bag, PLACES, index=0)
    assert first.raw.max() == pytest.approx(max(compute_weights(Pooling(classes=4), bag, 0)))
    with pytest.raises(LayerError, match="branch=2: a tile has 1 weights, 0 to 0"):
        camtool.bag_attention(Pooling(), bag, PLACES, branch=2)
    for wrong in ("a", True, 0.5):
        with pytest.raises(LayerError, match="branch must be a whole number, or None, got"):
            camtool.bag_attention(Pooling(), bag, PLACES, branch=wrong)
        with pytest.raises(LayerError, match="index must be a whole number, or None, got"):
            camtool.bag_attention(Pooling(), bag, PLACES, index=wrong)
    with pytest.raises(ImageError, match="bag must be a tensor or an array of numbers, got str"):
        camtool.bag_attention(Pooling(), "bag", PLACES)
    with pytest.raises(ImageError, match=r"for a bag \(1,\)"):
        camtool.bag_attention(Pooling(), bag[0, :1], PLACES)
    with pytest.raises(ImageError, match=r"0 different pairs .* for a bag \(0, 5\)"):
        camtool.bag_attention(Pooling(), bag[:0], np.zeros((0, 2), int))
    with pytest.raises(ImageError, match=r"51,201 rows and 40,193 columns .* e\.g\. y // 256 and x // 256"):
        camtool.bag_attention(Pooling(), bag, [(51200, 40192), (0, 1), (0, 2), (0, 3)])
    halves = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.5, 0.0]])
    for places in ([(0, 0)] * 4, [(0, 0), (0, 1), (0, 2)], [(0, 0), (0, 1), (0, 2), (0, -1)], halves):
        with pytest.raises(ImageError, match=r"different pairs of integers \(row, column\) for a bag \(4, 5\)"):
            camtool.bag_attention(Pooling(), bag, places)
