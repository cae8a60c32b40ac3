"""Arithmetic on maps: scaling into [0, 1] and resizing."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import interpolate
from torch.testing import assert_close

import camtool.maps
from camtool.maps import resize_to_grid, scale_min_max

GRIDS = [(7,), (4, 5), (3, 4, 2)]

NAN, INF = float("nan"), float("inf")


# ---------------------------------------------------------------------------------------------------- normalize


def normalize(batch: torch.Tensor, among: torch.Tensor | None = None) -> torch.Tensor:
    """Normalize each map of a batch."""
    pairs = zip(batch, [None] * len(batch) if among is None else among, strict=True)
    return torch.stack(
        [torch.from_numpy(camtool.maps.normalize(m.numpy(), None if a is None else a.numpy())) for m, a in pairs]
    )


def test_normalize_maps_the_lowest_to_0_and_the_highest_to_1() -> None:
    assert normalize(torch.tensor([[[-2.0, 0.0], [2.0, 6.0]]])).tolist() == [[[0.0, 0.25], [0.5, 1.0]]]


@pytest.mark.parametrize("grid", GRIDS)
def test_normalize_scales_grids_of_every_rank_image_by_image(grid: tuple[int, ...]) -> None:
    maps = torch.randn(3, *grid) * torch.tensor([1.0, 1e3, 1e-3]).reshape(3, *[1] * len(grid))
    result = normalize(maps)
    assert result.shape == maps.shape
    assert result.flatten(1).amin(1).tolist() == [0, 0, 0]
    assert result.flatten(1).amax(1).tolist() == [1, 1, 1]
    assert torch.equal(result, torch.cat([normalize(each[None]) for each in maps]))


@pytest.mark.parametrize("value", [0.0, 1.0, -3.7, 0.1, 1e30, -1e30, 1e-30])
def test_a_constant_map_becomes_zeros(value: float) -> None:
    assert not normalize(torch.full((1, 3, 4), value)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_map_that_varies_by_rounding_alone_becomes_zeros(dtype: torch.dtype) -> None:
    maps = -3 - torch.arange(8, dtype=dtype)[None] * torch.finfo(dtype).eps * 3
    assert maps.unique().numel() > 1
    assert not normalize(maps).any()


def test_normalize_keeps_a_small_but_real_difference() -> None:
    assert normalize(torch.tensor([[1.0, 1.0 + 1e-4]])).tolist() == [[0, 1]]
    assert normalize(torch.tensor([[0.0, 1e-30]])).tolist() == [[0, 1]]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_non_finite_value_empties_only_its_own_map(bad: float) -> None:
    result = normalize(torch.tensor([[0.0, bad, 1.0], [0.0, 2.0, 4.0]]))
    assert result.tolist() == [[0, 0, 0], [0, 0.5, 1]]


def test_a_range_that_overflows_empties_the_map() -> None:
    assert not normalize(torch.tensor([[-3e38, 0.0, 3e38]])).any()


def test_normalize_ignores_positions_outside_the_mask() -> None:
    maps = torch.tensor([[[9.0, 1.0], [2.0, 3.0]], [[-9.0, 0.0], [4.0, 1.0]]])
    among = torch.tensor([[False, True], [True, True]]).expand(2, 2, 2)
    assert normalize(maps, among).tolist() == [[[0, 0], [0.5, 1]], [[0, 0], [1, 0.25]]]


def test_each_image_may_have_its_own_mask() -> None:
    maps = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    among = torch.tensor([[True, True, False], [False, True, True]])
    assert normalize(maps, among).tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_non_finite_value_outside_the_mask_is_ignored(bad: float) -> None:
    among = torch.tensor([[False, True, True]])
    assert normalize(torch.tensor([[bad, 1.0, 3.0]]), among).tolist() == [[0, 0, 1]]


def test_an_empty_mask_gives_zeros() -> None:
    assert not normalize(torch.rand(1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.bool)).any()


def test_normalize_is_idempotent_and_leaves_its_argument_unchanged() -> None:
    maps = torch.randn(2, 3, 4)
    before = maps.clone()
    once = normalize(maps)
    assert torch.equal(maps, before)
    assert torch.equal(normalize(once), once)


# ------------------------------------------------------------------------------------------------ resize_to_grid


@pytest.mark.parametrize(
    ("grid", "to", "mode"),
    [
        ((5,), (13,), "linear"),
        ((3, 4), (9, 7), "bilinear"),
        ((3, 4), (2, 2), "bilinear"),
        ((2, 3, 4), (4, 6, 5), "trilinear"),
    ],
)
def test_resize_interpolates_between_the_centers_of_cells(
    grid: tuple[int, ...], to: tuple[int, ...], mode: str
) -> None:
    maps = torch.randn(2, *grid)
    assert_close(
        resize_to_grid(maps, to), interpolate(maps[:, None], to, mode=mode, align_corners=False)[:, 0], rtol=0, atol=0
    )


def test_resize_by_hand() -> None:
    assert resize_to_grid(torch.tensor([[0.0, 4.0]]), [4]).tolist() == [[0, 1, 3, 4]]


def test_resize_to_the_same_grid_returns_the_map_itself() -> None:
    maps = torch.randn(2, 3, 4)
    assert resize_to_grid(maps, [3, 4]) is maps


def test_scale_min_max_scales_each_map_and_empties_constant_ones() -> None:
    maps = torch.tensor([[-2.0, 0.0, 6.0], [3.0, 3.0, 3.0], [-3.0, -3.0 - 5e-7, -3.0]])
    assert scale_min_max(maps).tolist() == [[0, 0.25, 1], [0, 0, 0], [0, 0, 0]]
