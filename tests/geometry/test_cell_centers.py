"""Maps on grids whose cells do not tile the input: placement on photos, and one grid on another."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import build_interpolation_matrix, draw_heat, resample
from camtool.maps import resize_to_grid
from camtool.rendering.views import Photo, Signal

SHIFTED = CellCenters((8, 16), (AxisCenters(0.5, 4), AxisCenters(2.5, 4)))
"""2 x 4 cells on an input of 8 x 16 pixels, at rows 0.5 and 4.5 and at columns 2.5, 6.5, 10.5 and 14.5."""


def interpolate(values: list[float], centers: list[float], length: int, *, holds: bool = False) -> np.ndarray:
    """Linear between the centers at all pixels of an axis. Beyond them the values fade, unless they are held."""
    pixels, stride = np.arange(length) + 0.5, centers[1] - centers[0]
    drawn = np.interp(pixels, centers, values)
    for space, beyond in ((centers[0], centers[0] - pixels), (length - centers[-1], pixels - centers[-1])):
        end = min(space, stride)
        if end > stride / 2 and not holds:
            drawn = drawn * np.interp(beyond, [stride - end, end], [1, 0])
    return drawn


@pytest.mark.parametrize("holds", [False, True])
def test_a_map_is_linear_between_its_centers_and_fades_beyond(holds: bool) -> None:
    raw = torch.tensor([[1.0, 5.0, 2.0, 4.0], [0.0, 3.0, 3.0, 1.0]], dtype=torch.float64)
    placed = Geometry.whole(8, 16).place_on_photo(raw, SHIFTED, holds=holds).numpy()
    columns = np.stack([interpolate(list(row), [2.5, 6.5, 10.5, 14.5], 16, holds=holds) for row in raw.numpy()])
    expected = np.stack([interpolate(list(column), [0.5, 4.5], 8, holds=holds) for column in columns.T], 1)
    np.testing.assert_allclose(placed, expected, atol=1e-12)


@pytest.mark.parametrize("space", [500, 501, 600, 750, 1000, 1300, 2000])
def test_an_outermost_cell_covers_half_a_stride_beyond_its_center(space: int) -> None:
    """As it does on its inner side. The stride is 1000 pixels; the last center lies ``space`` before the edge."""
    length = 1500 + space
    matrix = build_interpolation_matrix(2, 0, length, length, AxisCenters(500, 1000), length)
    beyond = matrix[1500:, 1]
    assert float(beyond.sum()) == pytest.approx(500, abs=1)
    assert float(beyond[-1]) == pytest.approx(1 if space == 500 else 0, abs=0.6 if space == 501 else 0.01)
    assert bool((beyond.diff() <= 0).all())
    assert torch.equal(matrix[:500, 0], torch.ones(500, dtype=torch.float64))


def test_a_center_may_lie_outside_of_the_input() -> None:
    """Moved by a quarter of a pixel, 1/16 of a cell, a cell keeps 15/16 of its value, also outside of the input."""
    old, new = (CellCenters((12,), (AxisCenters(first, 4),)) for first in (-1, -0.75))
    assert resample(torch.tensor([[16.0, 0.0, 0.0]]), old, (3,), new).tolist() == [[15, 0, 0]]
    assert resample(torch.tensor([[16.0, 0.0, 0.0]]), new, (3,), old).tolist() == [[16, 1, 0]]


def test_a_map_fades_to_its_lowest_value() -> None:
    view, centers = Signal(np.zeros((1, 8), np.float32)), CellCenters((8,), (AxisCenters(0.5, 4),))
    ramp = np.array([0, 0.25, 0.5, 0.75, 1, 5 / 6, 1 / 2, 1 / 6])
    for lowest in (-3, 0, 2):
        raw = np.array([lowest, lowest + 1], np.float32)
        np.testing.assert_allclose(view.to_heatmap(raw, centers), ramp, atol=1e-6)
        drawn = draw_heat(torch.from_numpy(raw)[None], centers, (8,))[0]
        np.testing.assert_allclose(drawn, lowest + ramp, atol=1e-6)


def test_a_constant_map_stays_constant() -> None:
    centers = CellCenters((8, 8), (AxisCenters(0.5, 4), AxisCenters(0.5, 4)))
    view, raw = Photo(np.zeros((8, 8, 3), np.uint8), Geometry.whole(8, 8)), np.full((2, 2), 7, np.float32)
    assert not view.to_heatmap(raw, centers).any()
    assert draw_heat(torch.from_numpy(raw)[None], centers, (8, 8)).unique().tolist() == [7]


def test_stretched_centers_place_as_no_centers_do() -> None:
    geometry = Geometry.whole(50, 70).resize(32).center_crop(28)
    maps, stretched = torch.rand(3, 4, 7, dtype=torch.float64), CellCenters.stretch((4, 7), (28, 28))
    torch.testing.assert_close(
        geometry.place_on_photo(maps, stretched), geometry.place_on_photo(maps), rtol=0, atol=1e-12
    )
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
    placed = geometry.place_on_photo(maps, centers).numpy()
    top, left, bottom, right = geometry.box
    row, column = top + (bottom - top) * 16.5 / 32, left + (right - left) * 11.5 / 32
    rows, columns = np.nonzero(placed == placed.max())
    scale = max(abs(bottom - top), abs(right - left)) / 32
    assert abs(rows.mean() + 0.5 - row) <= max(scale, 1)
    assert abs(columns.mean() + 0.5 - column) <= max(scale, 1)


def test_a_flip_mirrors_the_heatmap() -> None:
    geometry, maps = Geometry.whole(16, 16), torch.rand(2, 4, dtype=torch.float64)
    centers = CellCenters((16, 16), (AxisCenters(0.5, 8), AxisCenters(0.5, 4)))
    torch.testing.assert_close(
        geometry.flip().place_on_photo(maps, centers), geometry.place_on_photo(maps, centers).flip(-1)
    )


def test_signals() -> None:
    view = Signal(np.zeros((1, 8), np.float32))
    placed = view.to_heatmap(np.array([0, 1], np.float32), CellCenters((8,), (AxisCenters(2, 4),)))
    np.testing.assert_allclose(placed, [0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1], atol=1e-6)


def test_resampling_by_hand() -> None:
    """Two cells at 0.5 and 4.5 of 8 pixels, read at 2.5 (half way) and 6.5, where half of the last one is left."""
    coarse, fine = CellCenters((8,), (AxisCenters(0.5, 4),)), CellCenters((8,), (AxisCenters(2.5, 4),))
    maps = torch.tensor([[1.0, 3.0]])
    assert resample(maps, coarse, (2,), fine).tolist() == [[2, 1.5]]
    assert resample(maps, coarse, (2,), fine, holds=True).tolist() == [[2, 3]]
    assert resample(maps, None, (2,), None).tolist() == [[1, 3]]  # 2 and 6
    assert resample(maps, None, (2,), coarse).tolist() == [[1, pytest.approx(2.25)]]  # at 0.5 and 4.5


@pytest.mark.parametrize("grid", [(5,), (3, 9), (2, 4, 6)])
def test_resampling_of_stretched_grids_is_resizing(grid: tuple[int, ...]) -> None:
    maps, size = torch.rand(2, *[4] * len(grid), dtype=torch.float64), [24] * len(grid)
    old, new = CellCenters.stretch(maps.shape[1:], size), CellCenters.stretch(grid, size)
    torch.testing.assert_close(resample(maps, old, grid, new), resize_to_grid(maps, grid))
    torch.testing.assert_close(resample(maps, old, grid, None), resize_to_grid(maps, grid))


def test_the_same_grid_is_unchanged() -> None:
    maps = torch.rand(1, 2, 4)
    assert resample(maps, SHIFTED, (2, 4), SHIFTED) is maps


def test_centers_whose_field_is_unknown_are_equal_after_they_were_pickled() -> None:
    assert pickle.loads(pickle.dumps(SHIFTED)) == SHIFTED


def test_pixels_between_two_centers() -> None:
    # The centers are 0.5 and 4.5, in pixels.
    second = torch.tensor([0, 1 / 4, 1 / 2, 3 / 4, 1, 1, 1, 1], dtype=torch.float64)
    matrix = build_interpolation_matrix(2, 0, 8, 8, SHIFTED.axes[0], 8, holds=True)
    torch.testing.assert_close(matrix, torch.stack([1 - second, second], 1))
