"""Maps on grids whose cells do not tile the input: placement on photos, and one grid on another."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import build_interpolation_matrix, resample
from camtool.maps import resize
from camtool.rendering.views import Signal

SHIFTED = CellCenters((8, 16), (AxisCenters(0.5, 4), AxisCenters(2.5, 4)))
"""2 x 4 cells on an input of 8 x 16 pixels, at rows 0.5 and 4.5 and at columns 2.5, 6.5, 10.5 and 14.5."""


def interpolate(values: list[float], centers: list[float], places: np.ndarray) -> np.ndarray:
    """Linear between the centers, constant beyond them: numpy's own rule."""
    return np.interp(places, centers, values)


def test_a_map_is_linear_between_its_centers_and_constant_beyond() -> None:
    raw = torch.tensor([[1.0, 5.0, 2.0, 4.0], [0.0, 3.0, 3.0, 1.0]], dtype=torch.float64)
    placed = Geometry.whole(8, 16).place(raw, SHIFTED).numpy()
    columns = np.stack([interpolate(list(row), [2.5, 6.5, 10.5, 14.5], np.arange(16) + 0.5) for row in raw.numpy()])
    expected = np.stack([interpolate(list(column), [0.5, 4.5], np.arange(8) + 0.5) for column in columns.T], 1)
    np.testing.assert_allclose(placed, expected, atol=1e-12)


def test_stretched_centers_place_as_no_centers_do() -> None:
    geometry = Geometry.whole(50, 70).resize(32).center_crop(28)
    maps, stretched = torch.rand(3, 4, 7, dtype=torch.float64), CellCenters.stretch((4, 7), (28, 28))
    torch.testing.assert_close(geometry.place(maps, stretched), geometry.place(maps), rtol=0, atol=1e-12)
    assert stretched.compute_shift((4, 7)) == pytest.approx((0, 0))


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry.whole(60, 90).resize(40).center_crop(32),
        Geometry.whole(31, 47).resize((32, 32)),
        Geometry.whole(40, 40).pad(4, 8, 12, 0).resize((32, 32)),
        Geometry.whole(60, 90).resize(40).center_crop(32).flip(),
    ],
    ids=["crop", "odd", "padding", "flip"],
)
def test_a_center_in_the_input_lands_on_its_pixel_of_the_photo(geometry: Geometry) -> None:
    """The heat of one cell peaks where the cell's center, carried to the photo by its box, lies."""
    centers = CellCenters((32, 32), (AxisCenters(0.5, 8), AxisCenters(3.5, 8)))
    maps = torch.zeros(4, 4)
    maps[2, 1] = 1
    placed = geometry.place(maps, centers).numpy()
    top, left, bottom, right = geometry.box
    row, column = top + (bottom - top) * 16.5 / 32, left + (right - left) * 11.5 / 32
    rows, columns = np.nonzero(placed == placed.max())
    scale = max(abs(bottom - top), abs(right - left)) / 32
    assert abs(rows.mean() + 0.5 - row) <= max(scale, 1)
    assert abs(columns.mean() + 0.5 - column) <= max(scale, 1)


def test_a_flip_mirrors_the_heatmap() -> None:
    geometry, maps = Geometry.whole(16, 16), torch.rand(2, 4, dtype=torch.float64)
    centers = CellCenters((16, 16), (AxisCenters(0.5, 8), AxisCenters(0.5, 4)))
    torch.testing.assert_close(geometry.flip().place(maps, centers), geometry.place(maps, centers).flip(-1))


def test_signals() -> None:
    view = Signal(np.zeros((1, 8), np.float32))
    placed = view.place_map(np.array([0, 1], np.float32), CellCenters((8,), (AxisCenters(0.5, 4),)))
    np.testing.assert_allclose(placed, [0, 0.25, 0.5, 0.75, 1, 1, 1, 1], atol=1e-6)


def test_resampling_by_hand() -> None:
    """Two cells at 0.5 and 4.5 of 8 pixels, read at 2.5 (half way) and 6.5 (beyond the last)."""
    coarse, fine = CellCenters((8,), (AxisCenters(0.5, 4),)), CellCenters((8,), (AxisCenters(2.5, 4),))
    maps = torch.tensor([[1.0, 3.0]])
    assert resample(maps, coarse, (2,), fine).tolist() == [[2, 3]]
    assert resample(maps, None, (2,), None).tolist() == [[1, 3]]  # 2 and 6
    assert resample(maps, None, (2,), coarse).tolist() == [[1, pytest.approx(2.25)]]  # at 0.5 and 4.5


@pytest.mark.parametrize("grid", [(5,), (3, 9), (2, 4, 6)])
def test_resampling_of_stretched_grids_is_resizing(grid: tuple[int, ...]) -> None:
    maps, size = torch.rand(2, *[4] * len(grid), dtype=torch.float64), [24] * len(grid)
    old, new = CellCenters.stretch(maps.shape[1:], size), CellCenters.stretch(grid, size)
    torch.testing.assert_close(resample(maps, old, grid, new), resize(maps, grid))
    torch.testing.assert_close(resample(maps, old, grid, None), resize(maps, grid))


def test_the_same_grid_is_unchanged() -> None:
    maps = torch.rand(1, 2, 4)
    assert resample(maps, SHIFTED, (2, 4), SHIFTED) is maps


def test_centers_whose_field_is_unknown_are_equal_after_they_were_pickled() -> None:
    assert pickle.loads(pickle.dumps(SHIFTED)) == SHIFTED


def test_pixels_between_two_centers() -> None:
    # The centers are 0.5 and 4.5, in pixels.
    second = torch.tensor([0, 1 / 4, 1 / 2, 3 / 4, 1, 1, 1, 1], dtype=torch.float64)
    matrix = build_interpolation_matrix(2, 0, 8, 8, SHIFTED.axes[0], 8)
    torch.testing.assert_close(matrix, torch.stack([1 - second, second], 1))
