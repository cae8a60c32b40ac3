"""Reducers: results that do not depend on the batch size, and that equal those of torch."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from camtool.errors import CamtoolError
from camtool.recorder.reducers import Counts, Fold, Histogram, Max, Mean, Reducer


def reduced(reducer: Reducer, tensors: list[Tensor]) -> object:
    for tensor in tensors:
        reducer.update(tensor)
    return reducer.result()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(10, 3, 4, 5)


SPLITS = [[10], [1] * 10, [3, 7], [4, 0, 6]]


@pytest.mark.parametrize("large", [1, 10**9])
@pytest.mark.parametrize("split", SPLITS)
def test_the_mean_equals_that_of_all_images_at_once(split, large, images, monkeypatch) -> None:
    monkeypatch.setattr("camtool.recorder.reducers._LARGE", large)
    batches = list(images.split(split))
    torch.testing.assert_close(reduced(Mean(), batches), images.double().mean(0).float(), rtol=1e-7, atol=0)
    channels = reduced(Mean(per=1), batches)
    torch.testing.assert_close(channels, images.double().mean((0, 2, 3)).float(), rtol=1e-7, atol=0)
    torch.testing.assert_close(reduced(Mean(per=-1), batches), images.mean((0, 1, 2)))


@pytest.mark.parametrize("split", SPLITS)
def test_the_maximum_equals_that_of_all_images_at_once(split, images) -> None:
    batches = list(images.split(split))
    assert torch.equal(reduced(Max(), batches), images.amax(0))
    assert torch.equal(reduced(Max(per=1), batches), images.amax((0, 2, 3)))
    assert torch.equal(reduced(Max(per=0), [images]), images.amax((1, 2, 3)))


def test_sums_use_double_precision() -> None:
    tensors = [torch.full((1, 1), 1e8), *[torch.full((1, 1), 1.0)] * 10, torch.full((1, 1), -1e8)]
    assert reduced(Mean(), tensors).item() == pytest.approx(10 / 12, rel=1e-6)
    half = [torch.full((1000, 2), 300.0, dtype=torch.float16)] * 3
    assert reduced(Mean(), half).tolist() == [300, 300]
    assert reduced(Mean(), half).dtype == torch.float32


@pytest.mark.parametrize("reducer", [Mean(), Max()])
def test_scalars_and_integers_are_reduced(reducer) -> None:
    scalars = [torch.tensor(2), torch.tensor(2), torch.tensor(2)]
    assert reduced(reducer, scalars).item() == 2


def test_the_result_is_none_before_the_first_tensor() -> None:
    for reducer in (Mean(), Max(), Histogram(), Histogram(range=(0, 1)), Fold(lambda so_far, tensor: tensor)):
        assert reducer.result() is None
        assert isinstance(reducer, Reducer)
    for reducer in (Mean(), Max(), Histogram()):
        assert reduced(reducer, [torch.ones(0, 3)]) is None


@pytest.mark.parametrize("reducer", [Mean(), Max()])
def test_images_of_different_sizes_need_per_channel_results(reducer) -> None:
    batches = [torch.ones(1, 2, 3, 3), 3 * torch.ones(2, 2, 4, 4)]
    name = type(reducer).__name__
    with pytest.raises(
        CamtoolError, match=rf"{name}: a tensor gives \(2, 4, 4\) values, but those before gave .*\(2, 3, 3\)"
    ):
        reduced(reducer, batches)
    assert reduced(type(reducer)(per=1), batches).shape == (2,)


# --------------------------------------------------------------------------------------------------------- histograms


@pytest.mark.parametrize("split", SPLITS)
def test_a_histogram_counts_as_torch_does(split, images) -> None:
    counts, edges, missed = reduced(Histogram(20, (-1, 1.5)), list(images.split(split)))
    expected = torch.histogram(images.double().flatten(), bins=20, range=(-1, 1.5))
    assert torch.equal(counts, expected.hist.long())
    torch.testing.assert_close(edges, expected.bin_edges, rtol=1e-12, atol=1e-12)
    assert missed == images.numel() - counts.sum() > 0


@pytest.mark.parametrize("split", SPLITS)
def test_each_channel_can_have_its_own_counts_in_the_same_bins(split, images) -> None:
    images[:, 2] += 5
    counts, edges, _ = reduced(Histogram(16, per=1), list(images.split(split)))
    assert counts.shape == (3, len(edges) - 1)
    for channel in range(3):
        assert torch.equal(counts[channel], torch.histogram(images[:, channel].double().flatten(), edges).hist.long())


@pytest.mark.parametrize("bins", [4, 5, 10, 64])
@pytest.mark.parametrize("factor", [1e-30, 1, 1e30])
@pytest.mark.parametrize("shift", [0, 1000])
def test_adaptive_bins_count_every_number_in_its_bin(bins, factor, shift, images) -> None:
    values = factor * (images.double() + shift)
    for tensors in ([values], list(values), list(values.flip(0)), list(values.flatten().sort().values.split(7))):
        counts, edges, missed = reduced(Histogram(bins), tensors)
        assert missed == 0
        assert torch.equal(counts, torch.histogram(values.flatten(), edges).hist.long())
        assert bins / 2 - 1 <= len(counts) <= bins
        assert counts[0] > 0
        assert counts[-1] > 0
        assert math.frexp(edges[1] - edges[0])[0] == 0.5  # a power of two


def test_adaptive_bins_do_not_depend_on_the_order(images) -> None:
    results = [reduced(Histogram(12), list(images[order])) for order in map(torch.randperm, [10] * 5)]
    assert all(map(torch.equal, results[0][:2], result[:2]) for result in results)
    assert len({tuple(result.edges.tolist()) for result in results}) == 1
    assert len({tuple(result.counts.tolist()) for result in results}) == 1


def test_a_constant_has_one_bin_and_later_values_get_theirs() -> None:
    zeros = torch.zeros(4)
    counts, edges, _ = reduced(Histogram(8), [zeros])
    assert (counts.tolist(), edges[0]) == ([4], 0)
    counts, edges, _ = reduced(Histogram(8), [zeros, torch.tensor([0.5, 1.0])])
    assert edges.tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25]
    assert counts.tolist() == [4, 0, 1, 0, 1]


def test_the_smallest_and_the_largest_numbers_are_counted() -> None:
    values = torch.tensor([-1.7e308, 5e-324, 1.7e308], dtype=torch.float64)
    for tensors in ([values], list(values[:, None]), list(values.flip(0)[:, None])):
        counts, _, missed = reduced(Histogram(4), tensors)
        assert (counts.tolist(), missed) == ([1, 0, 1, 1], 0)


@pytest.mark.parametrize("histogram", [Histogram(4), Histogram(4, (0, 4))])
def test_nan_and_infinity_count_as_missed(histogram) -> None:
    counts, _, missed = reduced(histogram, [torch.tensor([math.nan]), torch.tensor([1.0, 3.0, math.inf, -math.inf])])
    assert (counts.sum(), missed) == (2, 3)


def test_integers_and_booleans_are_counted() -> None:
    assert reduced(Histogram(2, (0, 2)), [torch.tensor([True, False, True])]).counts.tolist() == [1, 2]
    assert isinstance(reduced(Histogram(), [torch.arange(5)]), Counts)


def test_many_numbers_are_counted_in_chunks(monkeypatch, images) -> None:
    whole = reduced(Histogram(5, (-2, 2), per=1), [images])
    monkeypatch.setattr("camtool.recorder.reducers._CHUNK", 7)
    assert torch.equal(reduced(Histogram(5, (-2, 2), per=1), [images]).counts, whole.counts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 0, "range": (0, 1)}, "bins is 0; it must be 1 or more"),
        ({"bins": 3}, "bins is 3; it must be 4 or more"),
        ({"range": (1, 1)}, r"range is \(1, 1\); it must go from a finite number to a larger one"),
        ({"range": (0, math.inf)}, "must go from a finite number"),
        ({"range": (math.nan, 1)}, "must go from a finite number"),
    ],
)
def test_invalid_bins_raise_an_error(options, message) -> None:
    with pytest.raises(CamtoolError, match=message):
        Histogram(**options)


def test_extreme_numbers_are_counted_in_any_order() -> None:
    histogram = Histogram(4)
    reduced(histogram, [torch.tensor([value], dtype=torch.float64) for value in (5e-324, 1e-300, 1.7e308, -1.7e308)])
    assert (histogram.result().counts.tolist(), histogram.result().missed) == ([1, 0, 2, 1], 0)


def test_complex_numbers_have_a_mean_but_no_maximum() -> None:
    batches = [torch.tensor([[1 + 2j]]), torch.tensor([[3 - 4j]])]
    assert reduced(Mean(), batches).tolist() == reduced(Mean(per=1), batches).tolist() == [2 - 1j]
    assert reduced(Mean(), batches).dtype == torch.complex64
    for reducer in (Max(), Histogram()):
        with pytest.raises(CamtoolError, match=f"{type(reducer).__name__}: complex numbers have no order"):
            reducer.update(batches[0])


def test_a_changed_number_of_channels_raises_an_error() -> None:
    with pytest.raises(CamtoolError, match=r"Histogram: a tensor gives \(3, 4\) values"):
        reduced(Histogram(4, (0, 1), per=1), [torch.rand(1, 2), torch.rand(1, 3)])


@pytest.mark.parametrize("reducer", [Mean(), Mean(per=1), Max(), Histogram(), Histogram(4, (-1, 1))])
@pytest.mark.parametrize("modes", [(True, False), (False, True)])
def test_tensors_made_in_inference_mode_and_outside_of_it_are_reduced_together(reducer, modes, images) -> None:
    reducer, wanted = copy.deepcopy(reducer), copy.deepcopy(reducer)
    for is_inference, batch in zip(modes, images.split(5), strict=True):
        with torch.inference_mode(is_inference):
            reducer.update(batch + 0)
    torch.testing.assert_close(reducer.result(), reduced(wanted, [images]))


@pytest.mark.parametrize("reducer", [Mean, Max])
def test_reducers_keep_no_graph(reducer, images) -> None:
    assert not reduced(reducer(), [images.requires_grad_()]).requires_grad


@pytest.mark.parametrize("large", [1, 10**9])
def test_the_mean_does_not_depend_on_the_batch_size_to_the_last_bit(large, images, monkeypatch) -> None:
    monkeypatch.setattr("camtool.recorder.reducers._LARGE", large)
    means = [reduced(Mean(), list(images.split(split))) for split in SPLITS]
    assert all(torch.equal(mean, means[0]) for mean in means)


@pytest.mark.parametrize("reducer", [Mean(per=2), Max(per=2), Histogram(per=2), Mean(per=-3)])
def test_a_missing_dimension_raises_an_error_that_names_it(reducer) -> None:
    with pytest.raises(CamtoolError, match=r"per is -?\d, but a tensor of shape \(4, 3\) has no such dimension"):
        reducer.update(torch.ones(4, 3))
