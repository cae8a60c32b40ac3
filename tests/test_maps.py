"""Arithmetic on maps: scaling into [0, 1], resizing, and merging those of several layers."""

from __future__ import annotations

from math import tanh

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.testing import assert_close

import camtool.maps
from camtool.errors import MethodError
from camtool.maps import MERGES, Cascade, ScaledMax, Winsor, merge, merge_function, min_max, resize

GRIDS = [(7,), (4, 5), (3, 4, 2)]

NAN, INF = float("nan"), float("inf")


# ---------------------------------------------------------------------------------------------------- normalise


def normalise(batch: torch.Tensor, among: torch.Tensor | None = None) -> torch.Tensor:
    """Each map of a batch by itself, as tensors: the rows above and below speak of several at once."""
    pairs = zip(batch, [None] * len(batch) if among is None else among, strict=True)
    return torch.stack(
        [torch.from_numpy(camtool.maps.normalise(m.numpy(), None if a is None else a.numpy())) for m, a in pairs]
    )


def test_the_lowest_becomes_0_and_the_highest_1() -> None:
    assert normalise(torch.tensor([[[-2.0, 0.0], [2.0, 6.0]]])).tolist() == [[[0.0, 0.25], [0.5, 1.0]]]


@pytest.mark.parametrize("grid", GRIDS)
def test_every_rank_of_grid_is_scaled_image_by_image(grid: tuple[int, ...]) -> None:
    maps = torch.randn(3, *grid) * torch.tensor([1.0, 1e3, 1e-3]).reshape(3, *[1] * len(grid))
    result = normalise(maps)
    assert result.shape == maps.shape
    assert result.flatten(1).amin(1).tolist() == [0, 0, 0]
    assert result.flatten(1).amax(1).tolist() == [1, 1, 1]
    assert torch.equal(result, torch.cat([normalise(each[None]) for each in maps]))


@pytest.mark.parametrize("value", [0.0, 1.0, -3.7, 0.1, 1e30, -1e30, 1e-30])
def test_a_constant_map_becomes_zeros(value: float) -> None:
    assert not normalise(torch.full((1, 3, 4), value)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_differs_by_rounding_alone_is_constant(dtype: torch.dtype) -> None:
    maps = -3 - torch.arange(8, dtype=dtype)[None] * torch.finfo(dtype).eps * 3
    assert maps.unique().numel() > 1
    assert not normalise(maps).any()


def test_a_small_but_real_difference_is_seen() -> None:
    assert normalise(torch.tensor([[1.0, 1.0 + 1e-4]])).tolist() == [[0, 1]]
    assert normalise(torch.tensor([[0.0, 1e-30]])).tolist() == [[0, 1]]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_empties_its_own_map_and_no_other(bad: float) -> None:
    result = normalise(torch.tensor([[0.0, bad, 1.0], [0.0, 2.0, 4.0]]))
    assert result.tolist() == [[0, 0, 0], [0, 0.5, 1]]


def test_a_range_too_wide_for_the_type_empties_the_map() -> None:
    assert not normalise(torch.tensor([[-3e38, 0.0, 3e38]])).any()


def test_only_the_positions_among_count() -> None:
    maps = torch.tensor([[[9.0, 1.0], [2.0, 3.0]], [[-9.0, 0.0], [4.0, 1.0]]])
    among = torch.tensor([[False, True], [True, True]]).expand(2, 2, 2)
    assert normalise(maps, among).tolist() == [[[0, 0], [0.5, 1]], [[0, 0], [1, 0.25]]]


def test_each_image_can_have_its_own_positions() -> None:
    maps = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    among = torch.tensor([[True, True, False], [False, True, True]])
    assert normalise(maps, among).tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_is_not_finite_outside_the_positions_does_no_harm(bad: float) -> None:
    among = torch.tensor([[False, True, True]])
    assert normalise(torch.tensor([[bad, 1.0, 3.0]]), among).tolist() == [[0, 0, 1]]


def test_no_position_at_all_gives_zeros() -> None:
    assert not normalise(torch.rand(1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.bool)).any()


def test_normalising_leaves_its_argument_alone_and_does_nothing_twice() -> None:
    maps = torch.randn(2, 3, 4)
    before = maps.clone()
    once = normalise(maps)
    assert torch.equal(maps, before)
    assert torch.equal(normalise(once), once)


# ------------------------------------------------------------------------------------------------------- resize


@pytest.mark.parametrize(
    ("grid", "to", "mode"),
    [
        ((5,), (13,), "linear"),
        ((3, 4), (9, 7), "bilinear"),
        ((3, 4), (2, 2), "bilinear"),
        ((2, 3, 4), (4, 6, 5), "trilinear"),
    ],
)
def test_resizing_is_linear_between_the_centres_of_cells(grid: tuple[int, ...], to: tuple[int, ...], mode: str) -> None:
    maps = torch.randn(2, *grid)
    assert_close(resize(maps, to), interpolate(maps[:, None], to, mode=mode, align_corners=False)[:, 0], rtol=0, atol=0)


def test_resizing_by_hand() -> None:
    assert resize(torch.tensor([[0.0, 4.0]]), [4]).tolist() == [[0, 1, 3, 4]]


def test_a_map_of_the_right_size_comes_back_itself() -> None:
    maps = torch.randn(2, 3, 4)
    assert resize(maps, [3, 4]) is maps


# -------------------------------------------------------------------------------------------------------- merge


@pytest.mark.parametrize("how", [*MERGES, lambda stacked: stacked * NAN])
def test_a_single_map_is_left_alone(how: object) -> None:
    only = torch.randn(2, 3, 4)
    assert merge([only], how) is only


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("mean", [0.5, -0.25, 0.75]),
        ("max", [1.0, 0.5, 1.0]),
        ("layercam", [1.0, 0.5, tanh(2)]),  # the first is raised
        (ScaledMax(gamma=0.5), [1.0, 0.5, 0.5]),  # or lowered: tanh(0.5) is less than 0.5
        (ScaledMax(deep=2), [1.0, 0.5, 1.0]),
        (ScaledMax(deep=0), [tanh(2), tanh(1), tanh(2)]),
        ("refinecam", [0.5, 0.0, 0.0]),  # minmax: 0.5, 0, 1 and 1, 0, 0
        ("winsor", [1.0, 0.0, 0.0]),  # of the second alone, as the mean of the first is not positive
    ],
    ids=str,
)
def test_merging_by_hand(how: object, expected: list[float]) -> None:
    one = torch.tensor([[0.0, -4.0, 4.0]])  # in units of its peak: 0, -1, 1
    two = torch.tensor([[10.0, 5.0, 5.0]])  # 1, 0.5, 0.5
    assert_close(merge([one, two], how), torch.tensor([expected]))


@pytest.mark.parametrize("how", sorted({*MERGES} - {"winsor"}))  # which goes by it
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_a_layer_does_not_matter(how: str, scale: float) -> None:
    one, two = torch.rand(2, 3, 4), torch.rand(2, 6, 8)
    assert_close(merge([one * scale, two], how), merge([one, two], how))


@pytest.mark.parametrize("how", MERGES)
def test_a_merged_batch_is_its_images_merged_one_by_one(how: str) -> None:
    maps = [torch.randn(3, 2, 2), torch.randn(3, 4, 4) * 100]
    singly = torch.cat([merge([each[i : i + 1] for each in maps], how) for i in range(3)])
    assert_close(merge(maps, how), singly)


@pytest.mark.parametrize("grids", [[(2, 3), (4, 6)], [(4, 6), (2, 3)], [(1, 1), (4, 6), (3, 3)]])
def test_the_finest_grid_wins_wherever_it_stands(grids: list[tuple[int, int]]) -> None:
    assert merge([torch.rand(2, *grid) for grid in grids]).shape == (2, 4, 6)


def test_an_empty_map_of_one_layer_does_not_spoil_the_others() -> None:
    assert merge([torch.zeros(1, 2), torch.tensor([[1.0, 2.0]])]).tolist() == [[0.25, 0.5]]


def test_a_function_merges_too() -> None:
    def product(stacked: Tensor) -> Tensor:
        assert stacked.shape == (2, 1, 3)
        return stacked.prod(0)

    assert merge([torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[3.0, 3.0, 1.5]])], product).tolist() == [
        [0.25, 0.5, 0.5]
    ]


@pytest.mark.parametrize("ask", [merge_function, lambda how: merge([torch.rand(1, 2)], how)])
def test_an_unknown_merge_is_refused_with_what_is_known(ask: object) -> None:
    with pytest.raises(MethodError, match=r"merge 'meen' is unknown; known are mean, max, .*\. Did you mean 'mean'\?"):
        ask("meen")


# ------------------------------------------------------------------------------------------- the papers' merges

Grid = list[float]
"""A map of one image, on a line."""


def literal_layercam(layers: list[Grid], gamma: float, deep: int) -> Grid:
    scaled = []
    for number, layer in enumerate(layers):
        shallow = number < len(layers) - deep
        scaled.append([tanh(gamma * value / max(layer)) if shallow else value / max(layer) for value in layer])
    return [max(layer[i] for layer in scaled) for i in range(len(layers[0]))]


def literal_refinecam(layers: list[Grid]) -> Grid:
    result = [1.0] * len(layers[0])
    for layer in layers:
        for i in range(len(layer)):
            result[i] *= (layer[i] - min(layer)) / (max(layer) - min(layer))
    return result


def literal_winsor(layers: list[Grid], importance: list[float], percentile: float) -> Grid:
    positive = sorted(value for value in importance if value > 0)
    place = percentile / 100 * (len(positive) - 1)
    below = int(place)
    threshold = positive[below] + (place - below) * (positive[min(below + 1, len(positive) - 1)] - positive[below])
    lowest, highest = positive[0], min(positive[-1], threshold)
    result = [0.0] * len(layers[0])
    for layer, value in zip(layers, importance, strict=True):
        weight = 1.0 if highest == lowest else 0.1 + 0.9 * (min(value, threshold) - lowest) / (highest - lowest)
        for i in range(len(layer)):
            result[i] += weight * (layer[i] - min(layer)) / (max(layer) - min(layer)) if value > 0 else 0.0
    return result


def literal_cascade(layers: list[Grid]) -> Grid:
    """From deep to shallow, ``P_l = up(P_(l+1)) M_l / up(down(M_l))``; each layer has twice the cells of the next."""
    result = [max(0.0, value) / max(map(abs, layers[-1])) for value in layers[-1]]
    for layer in reversed(layers[:-1]):
        positive = [max(0.0, value) / max(map(abs, layer)) for value in layer]
        down = [(positive[2 * i] + positive[2 * i + 1]) / 2 for i in range(len(result))]
        around, coarse = doubled(down), doubled(result)
        result = [c * p / a if a > 0 else 0.0 for c, p, a in zip(coarse, positive, around, strict=True)]
    return result


def doubled(layer: Grid) -> Grid:
    """Twice the cells, linear between their centres: each new one is a quarter of a cell off an old one's."""
    result = []
    for i, value in enumerate(layer):
        before, after = layer[max(0, i - 1)], layer[min(len(layer) - 1, i + 1)]
        result += [0.75 * value + 0.25 * before, 0.75 * value + 0.25 * after]
    return result


def test_polycams_merge_is_its_oracle() -> None:
    layers = [torch.randn(2, cells, dtype=torch.float64) for cells in (16, 8, 4)]
    expected = [literal_cascade([layer[n].tolist() for layer in layers]) for n in range(2)]
    assert_close(merge(layers, "polycam"), torch.tensor(expected, dtype=torch.float64))


def test_polycams_merge_finds_the_place_within_the_coarse_cell_and_goes_by_grids_not_by_order() -> None:
    coarse, fine = torch.tensor([[0.0, 1.0]]), torch.tensor([[9.0, 0.0, 1.0, 3.0]])
    result = merge([fine, coarse], "polycam")
    assert result.argmax() == 3  # not where the fine map itself is highest
    assert_close(result, merge([coarse, fine], "polycam"))
    assert not merge([fine, torch.zeros(1, 2)], "polycam").any()


def test_on_one_grid_polycams_merge_keeps_the_deep_map_where_the_shallow_one_says_something() -> None:
    shallow, deep = torch.tensor([[0.0, 2.0, -1.0, 4.0]]), torch.tensor([[1.0, 0.5, 0.25, 0.125]])
    assert merge([shallow, deep], "polycam").tolist() == [[0, 0.5, 0, 0.125]]
    assert_close(Cascade()(torch.stack([shallow, deep])), merge([shallow, deep], "polycam"))


@pytest.mark.parametrize("deep", [0, 1, 2, 5])
def test_layercams_merge_is_its_oracle(deep: int) -> None:
    layers = torch.rand(4, 3, 7, dtype=torch.float64) * torch.tensor([1, 1e3, 1e-3, 7.0]).reshape(4, 1, 1)
    expected = [literal_layercam(layers[:, n].tolist(), 2, deep) for n in range(3)]
    assert_close(merge(list(layers), ScaledMax(deep=deep)), torch.tensor(expected, dtype=torch.float64))


def test_refinecams_merge_is_its_oracle() -> None:
    layers = torch.randn(3, 2, 7, dtype=torch.float64)
    expected = [literal_refinecam(layers[:, n].tolist()) for n in range(2)]
    assert_close(merge(list(layers), "refinecam"), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("percentile", [0, 33, 50, 80, 100])
def test_winsor_cams_merge_is_its_oracle(percentile: float) -> None:
    layers, importance = torch.rand(6, 3, 7, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    importance[:3], importance[5] = importance[:3].abs(), -1
    expected = [literal_winsor(layers[:, n].tolist(), importance[:, n].tolist(), percentile) for n in range(3)]
    ours = merge(list(layers), Winsor(percentile), lambda: importance)
    assert_close(ours, torch.tensor(expected, dtype=torch.float64))


def test_what_is_hot_in_one_layer_alone_is_cold_in_refinecams_product() -> None:
    coarse, fine = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    assert merge([coarse, fine], "refinecam").tolist() == [[0, 0, 1, 0]]
    assert not merge([torch.zeros(1, 4), fine], "refinecam").any()


def test_winsors_weights_by_hand() -> None:
    importance = torch.tensor([[1.0], [2.0], [3.0], [101.0], [-5.0], [0.0]])
    assert_close(Winsor(0).weights(importance)[:, 0], torch.tensor([1.0, 1, 1, 1, 0, 0]))  # all that count, alike
    assert_close(Winsor(100).weights(importance)[:, 0], torch.tensor([0.1, 0.109, 0.118, 1, 0, 0]))
    # Two thirds of the way from the lowest to the highest is the third of four: 3.
    assert_close(Winsor(200 / 3).weights(importance)[:, 0], torch.tensor([0.1, 0.55, 1, 1, 0, 0]))


def test_where_nothing_counts_winsors_map_is_empty() -> None:
    assert not Winsor()(torch.rand(3, 2, 5), -torch.rand(3, 2)).any()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_winsors_weights_have_no_unit(scale: float) -> None:
    importance = torch.rand(5, 2)
    assert_close(Winsor().weights(scale * importance), Winsor().weights(importance))


def test_an_endless_importance_is_merely_the_largest() -> None:
    assert_close(Winsor(100).weights(torch.tensor([[1.0], [INF], [NAN]])), torch.tensor([[0.1], [1.0], [0.0]]))


def test_only_a_merge_by_importance_asks_for_it() -> None:
    def never() -> Tensor:
        raise AssertionError

    maps = [torch.rand(2, 4), torch.rand(2, 4)]
    assert_close(merge(maps, "mean", never), merge(maps, "mean"))
    with pytest.raises(AssertionError):
        merge(maps, Winsor(), never)


def test_untold_of_the_importance_winsor_goes_by_the_means_of_the_maps() -> None:
    maps = [torch.rand(2, 4), 9 * torch.rand(2, 4), torch.rand(2, 8)]
    means = torch.stack([each.mean(1) for each in maps])
    assert_close(merge(maps, "winsor"), merge(maps, "winsor", lambda: means))
    stacked = torch.rand(2, 1, 4)
    assert_close(Winsor()(stacked), min_max(stacked[0]) + min_max(stacked[1]))


@pytest.mark.parametrize("how", MERGES)
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e38])
@pytest.mark.parametrize("grid", GRIDS)
def test_a_merge_is_finite_whatever_the_maps(how: str, scale: float, grid: tuple[int, ...]) -> None:
    maps = [scale * torch.rand(2, *grid), torch.ones(2, *grid), torch.rand(2, *grid)]
    merged = merge(maps, how)
    assert merged.shape == (2, *grid)
    assert merged.isfinite().all()


@pytest.mark.parametrize("how", [ScaledMax(), Winsor(), *map(merge_function, MERGES)])
def test_a_merge_with_options_stands_for_itself(how: object) -> None:
    assert merge_function(how) is how


@pytest.mark.parametrize(
    "make", [lambda: ScaledMax(0), lambda: ScaledMax(deep=-1), lambda: Winsor(101), lambda: Winsor(-1)]
)
def test_a_merges_options_are_checked(make: object) -> None:
    with pytest.raises(
        MethodError, match=r"(gamma must be more than 0, and deep|percentile must be between 0 and 100)"
    ):
        make()


def test_min_max_scales_map_by_map_and_empties_what_differs_by_rounding_alone() -> None:
    maps = torch.tensor([[-2.0, 0.0, 6.0], [3.0, 3.0, 3.0], [-3.0, -3.0 - 5e-7, -3.0]])
    assert min_max(maps).tolist() == [[0, 0.25, 1], [0, 0, 0], [0, 0, 0]]
