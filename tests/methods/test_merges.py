"""Merges: one map from the maps of several layers, by hand and against their papers."""

from __future__ import annotations

from math import tanh

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from camtool.errors import MethodError
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.maps import scale_min_max
from camtool.methods.merges import MERGES, Cascade, ScaledMax, Winsor, get_merge, merge_maps

GRIDS = [(7,), (4, 5), (3, 4, 2)]

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("how", [*MERGES, lambda stacked: stacked * NAN])
def test_single_map_is_unchanged(how: object) -> None:
    only = torch.randn(2, 3, 4)
    assert merge_maps([only], how) is only


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
def test_merges_equal_numbers_by_hand(how: object, expected: list[float]) -> None:
    one = torch.tensor([[0.0, -4.0, 4.0]])  # in units of its peak: 0, -1, 1
    two = torch.tensor([[10.0, 5.0, 5.0]])  # 1, 0.5, 0.5
    assert_close(merge_maps([one, two], how), torch.tensor([expected]))


@pytest.mark.parametrize("how", sorted({*MERGES} - {"winsor"}))  # which goes by it
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_of_a_layer_has_no_effect(how: str, scale: float) -> None:
    one, two = torch.rand(2, 3, 4), torch.rand(2, 6, 8)
    assert_close(merge_maps([one * scale, two], how), merge_maps([one, two], how))


@pytest.mark.parametrize("how", MERGES)
def test_merged_batch_equals_single_images(how: str) -> None:
    maps = [torch.randn(3, 2, 2), torch.randn(3, 4, 4) * 100]
    singly = torch.cat([merge_maps([each[i : i + 1] for each in maps], how) for i in range(3)])
    assert_close(merge_maps(maps, how), singly)


@pytest.mark.parametrize("grids", [[(2, 3), (4, 6)], [(4, 6), (2, 3)], [(1, 1), (4, 6), (3, 3)]])
def test_finest_grid_is_chosen_in_any_order(grids: list[tuple[int, int]]) -> None:
    assert merge_maps([torch.rand(2, *grid) for grid in grids]).shape == (2, 4, 6)


def test_empty_map_of_one_layer_keeps_the_others() -> None:
    assert merge_maps([torch.zeros(1, 2), torch.tensor([[1.0, 2.0]])]).tolist() == [[0.25, 0.5]]


def test_function_is_a_merge() -> None:
    def product(stacked: Tensor) -> Tensor:
        assert stacked.shape == (2, 1, 3)
        return stacked.prod(0)

    assert merge_maps([torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[3.0, 3.0, 1.5]])], product).tolist() == [
        [0.25, 0.5, 0.5]
    ]


@pytest.mark.parametrize("ask", [get_merge, lambda how: merge_maps([torch.rand(1, 2)], how)])
def test_unknown_merge_is_rejected_with_known_names(ask: object) -> None:
    with pytest.raises(MethodError, match=r"merge 'meen' is unknown\. Did you mean 'mean'\? Known merges: mean, max, "):
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
    """Twice the cells, linear between their centers: each new one is a quarter of a cell off an old one's."""
    result = []
    for i, value in enumerate(layer):
        before, after = layer[max(0, i - 1)], layer[min(len(layer) - 1, i + 1)]
        result += [0.75 * value + 0.25 * before, 0.75 * value + 0.25 * after]
    return result


def test_polycam_merge_equals_its_oracle() -> None:
    layers = [torch.randn(2, cells, dtype=torch.float64) for cells in (16, 8, 4)]
    expected = [literal_cascade([layer[n].tolist() for layer in layers]) for n in range(2)]
    assert_close(merge_maps(layers, "polycam"), torch.tensor(expected, dtype=torch.float64))


def test_polycam_merge_refines_the_coarse_cell_in_any_order() -> None:
    coarse, fine = torch.tensor([[0.0, 1.0]]), torch.tensor([[9.0, 0.0, 1.0, 3.0]])
    result = merge_maps([fine, coarse], "polycam")
    assert result.argmax() == 3  # not where the fine map itself is highest
    assert_close(result, merge_maps([coarse, fine], "polycam"))
    assert not merge_maps([fine, torch.zeros(1, 2)], "polycam").any()


def test_polycam_merge_looks_up_values_at_the_centers_of_cells() -> None:
    """Cells of 2 and of 4 pixels, both from pixel 0 on: every second fine cell lies between two coarse ones.

    The last fine one lies beyond the last coarse one, at 6.5 of 8 pixels, where half of its heat is left.
    """
    coarse, fine = torch.tensor([[0.0, 1.0]]), torch.ones(1, 4)
    places = [CellCenters((8,), (AxisCenters(0.5, stride, 1),)) for stride in (4, 2)]
    expected = torch.tensor([[0, 0.5, 1, 0.5]])
    assert_close(merge_maps([coarse, fine], "polycam", centers=places), expected)
    assert_close(merge_maps([fine, coarse], "polycam", centers=places[::-1]), expected)
    assert_close(merge_maps([coarse, fine], "polycam"), torch.tensor([[0, 0.25, 0.75, 1]]))


def test_polycam_merge_on_one_grid_keeps_the_deep_map_where_the_shallow_one_is_positive() -> None:
    shallow, deep = torch.tensor([[0.0, 2.0, -1.0, 4.0]]), torch.tensor([[1.0, 0.5, 0.25, 0.125]])
    assert merge_maps([shallow, deep], "polycam").tolist() == [[0, 0.5, 0, 0.125]]
    assert_close(Cascade()(torch.stack([shallow, deep])), merge_maps([shallow, deep], "polycam"))


@pytest.mark.parametrize("deep", [0, 1, 2, 5])
def test_layercam_merge_equals_its_oracle(deep: int) -> None:
    layers = torch.rand(4, 3, 7, dtype=torch.float64) * torch.tensor([1, 1e3, 1e-3, 7.0]).reshape(4, 1, 1)
    expected = [literal_layercam(layers[:, n].tolist(), 2, deep) for n in range(3)]
    assert_close(merge_maps(list(layers), ScaledMax(deep=deep)), torch.tensor(expected, dtype=torch.float64))


def test_refinecam_merge_equals_its_oracle() -> None:
    layers = torch.randn(3, 2, 7, dtype=torch.float64)
    expected = [literal_refinecam(layers[:, n].tolist()) for n in range(2)]
    assert_close(merge_maps(list(layers), "refinecam"), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("percentile", [0, 33, 50, 80, 100])
def test_winsor_merge_equals_its_oracle(percentile: float) -> None:
    layers, importance = torch.rand(6, 3, 7, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    importance[:3], importance[5] = importance[:3].abs(), -1
    expected = [literal_winsor(layers[:, n].tolist(), importance[:, n].tolist(), percentile) for n in range(3)]
    ours = merge_maps(list(layers), Winsor(percentile), lambda: importance)
    assert_close(ours, torch.tensor(expected, dtype=torch.float64))


def test_refinecam_merge_removes_what_only_one_layer_shows() -> None:
    coarse, fine = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    assert merge_maps([coarse, fine], "refinecam").tolist() == [[0, 0, 1, 0]]
    assert not merge_maps([torch.zeros(1, 4), fine], "refinecam").any()


def test_winsor_weights_equal_numbers_by_hand() -> None:
    importance = torch.tensor([[1.0], [2.0], [3.0], [101.0], [-5.0], [0.0]])
    # Percentile 0: all layers that count weigh the same.
    assert_close(Winsor(0).compute_weights(importance)[:, 0], torch.tensor([1.0, 1, 1, 1, 0, 0]))
    assert_close(Winsor(100).compute_weights(importance)[:, 0], torch.tensor([0.1, 0.109, 0.118, 1, 0, 0]))
    # Two thirds of the way from the lowest to the highest is the third of four: 3.
    assert_close(Winsor(200 / 3).compute_weights(importance)[:, 0], torch.tensor([0.1, 0.55, 1, 1, 0, 0]))


def test_winsor_map_is_empty_without_positive_importance() -> None:
    assert not Winsor()(torch.rand(3, 2, 5), -torch.rand(3, 2)).any()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_winsor_weights_are_independent_of_scale(scale: float) -> None:
    importance = torch.rand(5, 2)
    assert_close(Winsor().compute_weights(scale * importance), Winsor().compute_weights(importance))


def test_infinite_importance_counts_as_the_largest() -> None:
    assert_close(Winsor(100).compute_weights(torch.tensor([[1.0], [INF], [NAN]])), torch.tensor([[0.1], [1.0], [0.0]]))


def test_only_winsor_computes_the_importance() -> None:
    def never() -> Tensor:
        raise AssertionError

    maps = [torch.rand(2, 4), torch.rand(2, 4)]
    assert_close(merge_maps(maps, "mean", never), merge_maps(maps, "mean"))
    with pytest.raises(AssertionError):
        merge_maps(maps, Winsor(), never)


def test_winsor_without_importance_uses_the_means_of_the_maps() -> None:
    maps = [torch.rand(2, 4), 9 * torch.rand(2, 4), torch.rand(2, 8)]
    means = torch.stack([each.mean(1) for each in maps])
    assert_close(merge_maps(maps, "winsor"), merge_maps(maps, "winsor", lambda: means))
    stacked = torch.rand(2, 1, 4)
    assert_close(Winsor()(stacked), scale_min_max(stacked[0]) + scale_min_max(stacked[1]))


@pytest.mark.parametrize("how", MERGES)
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e38])
@pytest.mark.parametrize("grid", GRIDS)
def test_merges_are_finite_for_any_maps(how: str, scale: float, grid: tuple[int, ...]) -> None:
    maps = [scale * torch.rand(2, *grid), torch.ones(2, *grid), torch.rand(2, *grid)]
    merged = merge_maps(maps, how)
    assert merged.shape == (2, *grid)
    assert merged.isfinite().all()


@pytest.mark.parametrize("how", [ScaledMax(), Winsor(), *map(get_merge, MERGES)])
def test_merge_object_is_returned_unchanged(how: object) -> None:
    assert get_merge(how) is how


@pytest.mark.parametrize(
    "make", [lambda: ScaledMax(0), lambda: ScaledMax(deep=-1), lambda: Winsor(101), lambda: Winsor(-1)]
)
def test_invalid_options_of_merges_are_rejected(make: object) -> None:
    with pytest.raises(
        MethodError, match=r"(gamma must be more than 0, and deep|percentile must be between 0 and 100)"
    ):
        make()


@pytest.mark.parametrize("merge", ["refinecam", "winsor", "mean"])
def test_a_layer_without_contrast_adds_none_beyond_its_cells(merge: str) -> None:
    """Its cells lie up and to the left, and a map fades to its lowest value, not to 0."""
    places = [CellCenters((56, 56), (AxisCenters(0.5, stride),) * 2) for stride in (4, 8)]
    fine, flat = torch.rand(1, 14, 14, dtype=torch.float64), torch.full((1, 7, 7), 5.0, dtype=torch.float64)
    placed = merge_maps([fine, flat], merge, centers=places)
    assert_close(placed, merge_maps([fine, torch.full((1, 14, 14), 5.0).double()], merge))
