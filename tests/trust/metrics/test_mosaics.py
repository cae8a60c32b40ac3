"""Grid pointing game and DiFull: mosaics, the heat in their cells, and a disconnected model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import MetricError
from camtool.targets import ClassScore
from camtool.trust.metrics.mosaics import (
    DisconnectedModel,
    choose_tiles,
    compute_difull,
    compute_grid_pointing,
    make_mosaics,
    select_confident,
)

CLASSES = torch.tensor([5, 5, 1, 0, 7, 1, 2])
IMAGES = torch.rand(7, 3, 8, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("grid", [2])
def test_the_images_of_a_mosaic_have_different_classes_and_include_the_explained_one(grid: int) -> None:
    tiles, cells = choose_tiles(CLASSES, grid=grid, seed=0)
    assert tiles.shape == (7, 4)
    for row in range(7):
        assert tiles[row, cells[row]] == row
        assert CLASSES[tiles[row]].unique().numel() == 4
    assert cells.unique().numel() > 1
    again = choose_tiles(CLASSES, grid=grid, seed=0)
    assert torch.equal(again[0], tiles)
    assert not torch.equal(choose_tiles(CLASSES, grid=grid, seed=1)[0], tiles)


def test_mosaics_are_laid_out_row_by_row() -> None:
    (mosaic,) = make_mosaics(IMAGES, torch.tensor([[3, 1, 4, 0]]))
    assert torch.equal(mosaic, torch.cat([torch.cat([*IMAGES[[3, 1]]], 2), torch.cat([*IMAGES[[4, 0]]], 2)], 1))
    shrunk = make_mosaics(IMAGES, torch.tensor([[3, 3, 3, 3]]), shrink=True)
    assert shrunk.shape == (1, 3, 8, 12)
    torch.testing.assert_close(shrunk.mean(), IMAGES[3].mean(), rtol=0.02, atol=0)


def test_the_value_is_the_share_of_positive_heat_in_the_right_cell() -> None:
    tiles, cells = choose_tiles(CLASSES, grid=2, seed=4)

    def explain(mosaics: Tensor, rows: Tensor) -> Tensor:
        assert torch.equal(mosaics, make_mosaics(IMAGES, tiles[rows]))
        maps = torch.zeros(len(mosaics), 16, 24)
        for heat, row in zip(maps, rows, strict=True):
            i, j = divmod(int(cells[row]), 2)
            heat[0, 0], heat[15, 0], heat[0, 23], heat[15, 23] = 1, 1, 1, 1
            heat[8 * i + 3, 12 * j + 3] = 2
            heat[8 * (1 - i) + 3, 12 * j + 3] = -100
        return maps

    values = compute_grid_pointing(explain, IMAGES, CLASSES, seed=4, chunk=3)
    assert values.tolist() == pytest.approx([0.5] * 7)


def test_a_map_without_heat_has_the_chance_level() -> None:
    values = compute_grid_pointing(lambda mosaics, rows: -mosaics.mean(1), IMAGES, CLASSES)
    assert values.tolist() == [0.25] * 7
    values = compute_grid_pointing(lambda mosaics, rows: mosaics.mean(1), IMAGES, CLASSES, shrink=True)
    assert (values - 0.25).abs().max() < 0.05


def test_wrong_mosaics_are_errors() -> None:
    with pytest.raises(MetricError, match="mosaics of 3 x 3 images need 9 classes, got 5"):
        compute_grid_pointing(lambda mosaics, rows: mosaics[:, 0], IMAGES, CLASSES, grid=3)
    with pytest.raises(MetricError, match=r"classes must be one per image, \(7,\); got 2"):
        compute_grid_pointing(lambda mosaics, rows: mosaics[:, 0], IMAGES, CLASSES[:2])
    with pytest.raises(MetricError, match=r"explain returned for mosaics must have one map.*\(7, 16, 24\)"):
        compute_grid_pointing(lambda mosaics, rows: mosaics[:, 0, :8], IMAGES, CLASSES)
    with pytest.raises(MetricError, match="multiples of grid=2"):
        compute_grid_pointing(lambda mosaics, rows: mosaics[:, 0], IMAGES[..., :7, :], CLASSES, shrink=True)


def test_confident_images_are_those_with_a_high_score() -> None:
    confident = select_confident(lambda images, rows: rows / 10, IMAGES, least=0.3, chunk=2)
    assert confident.tolist() == [False, False, False, True, True, True, True]


# -------------------------------------------------------------------------------------------------------- DiFull


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 10)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features.mean((2, 3)))


@pytest.fixture
def disconnected() -> DisconnectedModel:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 6, 3, padding=1))
    return DisconnectedModel(trunk, Head()).eval()


def test_an_output_of_the_disconnected_model_depends_on_its_cell_only(disconnected: DisconnectedModel) -> None:
    tiles, _ = choose_tiles(CLASSES, seed=0)
    mosaics = make_mosaics(IMAGES, tiles)
    with torch.no_grad():
        logits = disconnected(mosaics).reshape(7, 4, 10)
        alone = disconnected.head(disconnected.trunk(IMAGES))
    for cell in range(4):
        torch.testing.assert_close(logits[:, cell], alone[tiles[:, cell]])


@pytest.mark.parametrize(("method", "least", "most"), [("hirescam", 1.0, 1.0), ("cam-of-nothing", 0.0, 0.5)])
def test_difull_tells_a_method_that_stays_in_the_cell(
    disconnected: DisconnectedModel, method: str, least: float, most: float
) -> None:
    def explain(mosaics: Tensor, rows: Tensor, cells: Tensor) -> Tensor:
        if method != "hirescam":
            return mosaics.mean(1)
        targets = [ClassScore(int(cell * 10 + CLASSES[row])) for cell, row in zip(cells, rows, strict=True)]
        results = camtool.explain(disconnected, mosaics, targets, layer="stitched", method=method)
        grids = torch.stack([torch.as_tensor(result.raw) for result in results])
        assert grids.shape[1:] == (8, 12)
        return grids.repeat_interleave(2, 1).repeat_interleave(2, 2)

    values = compute_difull(explain, IMAGES, CLASSES)
    shown = values[values != 0.25]  # 0.25 stands for a map without positive heat
    assert len(shown) >= 4
    assert ((shown >= least - 1e-6) & (shown <= most + 1e-6)).all()
