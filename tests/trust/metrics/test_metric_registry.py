"""All metrics of the registry: direction, range and chance level on a score whose faithful map is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from camtool.errors import MetricError
from camtool.trust.metrics import METRICS, MetricInputs, metric
from camtool.trust.metrics.metric_registry import draw_random_maps, rank_pixels
from tests.trust.metrics.analytic import SIZE, Analytic, make_masks

# Random maps pass these tests as well as good ones, as the docstrings say.
PASSED_BY_RANDOM_MAPS = {"cascading-randomization", "independent-randomization", "random-agreement"}

# These choose something for all images of a call together.
FOR_ALL_IMAGES = {"max-box-acc-v2", "grid-pointing-game", "difull"}

EVERY = pytest.mark.parametrize("name", METRICS)


def is_better(name: str, one: Tensor, other: Tensor) -> bool:
    difference = float((one - other).mean())
    return difference > 0 if METRICS[name].higher_is_better else difference < 0


@EVERY
def test_the_faithful_map_is_best_and_the_inverse_one_worst(name: str) -> None:
    one, case = METRICS[name], Analytic()
    good, bad, chance = one.compute(case.good()), one.compute(case.bad()), one.compute_chance(case.good())
    for values in (good, bad, chance):
        assert values.shape == (len(case.images),)
        assert ((values >= one.bounds[0]) & (values <= one.bounds[1])).all()
    if name not in PASSED_BY_RANDOM_MAPS:
        assert is_better(name, good, chance)
    assert is_better(name, good, bad)
    assert not is_better(name, bad, chance)


@EVERY
def test_no_random_map_is_better_than_the_faithful_one(name: str) -> None:
    one, case = METRICS[name], Analytic()
    if "maps" not in one.needs or name in PASSED_BY_RANDOM_MAPS | {"class-sensitivity"}:
        pytest.skip("does not depend on the maps alone")
    good = one.compute(case.good())
    for seed in range(8):
        maps = draw_random_maps(case.images, seed=seed)
        values = one.compute(replace(case.good(), maps=maps))
        assert not (values > good if one.higher_is_better else values < good).any()


@pytest.mark.parametrize("name", [name for name, each in METRICS.items() if each.chance is not None])
def test_the_chance_level_is_the_mean_of_random_maps(name: str) -> None:
    inputs = Analytic().good()
    measured = replace(METRICS[name], chance=None).compute_chance(inputs, draws=40, seed=3)
    expected = METRICS[name].compute_chance(inputs)
    assert float((measured - expected).mean()) == pytest.approx(0, abs=0.04)


@EVERY
def test_a_metric_is_deterministic_to_the_bit(name: str) -> None:
    torch.manual_seed(0)
    inputs = Analytic().good()
    state = torch.get_rng_state()
    first = METRICS[name].compute(inputs)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(METRICS[name].compute(inputs), first)
    chance = [METRICS[name].compute_chance(Analytic().bad(), seed=5) for _ in range(2)]
    assert torch.equal(*chance)


@pytest.mark.parametrize("name", [name for name in METRICS if name not in FOR_ALL_IMAGES])
def test_a_batch_equals_its_images_one_by_one(name: str) -> None:
    def take(case: Analytic, chosen: slice) -> MetricInputs:
        noisy = draw_random_maps(Analytic().images, seed=1)[chosen]
        inputs = case.bad() if "randomization" in name else case.good()
        return replace(inputs, maps=noisy, random_maps=torch.stack([noisy.flip(1), noisy.flip(2)]))

    together = METRICS[name].compute(take(Analytic(), slice(None)))
    alone = [METRICS[name].compute(take(Analytic(slice(i, i + 1)), slice(i, i + 1))) for i in range(len(together))]
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, each in METRICS.items() if "chunk" in each.options])
def test_the_chunk_size_does_not_matter(name: str) -> None:
    inputs = replace(Analytic().good(), maps=draw_random_maps(Analytic().images, seed=1))
    values = [METRICS[name].compute(inputs, chunk=chunk) for chunk in (1, 3, 1000)]
    for each in values[1:]:
        torch.testing.assert_close(each, values[0], rtol=1e-4, atol=1e-5)


@EVERY
def test_every_metric_names_its_source_direction_and_needs(name: str) -> None:
    one = METRICS[name]
    words = one.function.__doc__ or ""
    assert one.paper in words
    assert ("Higher is better" in words) == one.higher_is_better
    assert ("Lower is better" in words) != one.higher_is_better
    assert "chance level" in words.lower()
    assert one.summary
    assert one.needs


def test_what_a_metric_needs_are_the_parameters_without_a_default() -> None:
    assert METRICS["adcc"].needs == ("probability", "explain", "images", "maps")
    assert METRICS["single-deletion"].needs == ("logit", "images", "maps")
    assert METRICS["single-deletion"].options == {"cells": 4, "removal": "zero", "chunk": None}


def test_something_missing_is_an_error() -> None:
    inputs = MetricInputs(Analytic().images, make_masks().float())
    assert METRICS["adcc"].list_missing(inputs) == ["probability", "explain"]
    with pytest.raises(MetricError, match="metric 'adcc' needs probability, explain"):
        METRICS["adcc"].compute(inputs)
    assert METRICS["entropy"].list_missing(inputs) == []


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(MetricError, match=r"no option 'step'; it has steps.*Did you mean 'steps'"):
        METRICS["deletion"].compute(Analytic().good(), step=3)


def test_a_metric_that_is_registered_twice_or_needs_unknown_things_is_an_error() -> None:
    def mine(maps: Tensor, thing: Tensor) -> Tensor:
        return maps

    with pytest.raises(MetricError, match=r"'entropy' is registered already, by camtool\.trust\.metrics\.complexity"):
        metric("entropy", higher_is_better=True, bounds=(0, 1))(mine)
    with pytest.raises(MetricError, match="needs 'thing', which MetricInputs does not have"):
        metric("mine", higher_is_better=True, bounds=(0, 1))(mine)
    assert "mine" not in METRICS


def test_wrong_maps_are_errors() -> None:
    good = Analytic().good()
    for maps, words in [
        (good.maps[:2], r"one map per image at the size of the images, \(5, 16, 16\)"),
        (good.maps[:, :8], r"got \(5, 8, 16\)"),
        (good.maps[0], r"must be a floating-point tensor \(N, H, W\)"),
        (good.maps.bool(), "floating-point"),
        (good.maps / 0, "not finite"),
    ]:
        with pytest.raises(MetricError, match=words):
            METRICS["deletion"].compute(replace(good, maps=maps))
    with pytest.raises(MetricError, match=r"must be in \[0, 1\] for this metric; they are in \[0, 2\]"):
        METRICS["average-drop"].compute(replace(good, maps=2 * good.maps))


def test_a_wrong_score_is_an_error() -> None:
    good = Analytic().good()
    with pytest.raises(MetricError, match=r"one number per image, \(\d+,\); got \(\d+, 3, 16, 16\)"):
        METRICS["deletion"].compute(replace(good, probability=lambda images, rows: images))
    with pytest.raises(MetricError, match="not finite"):
        METRICS["deletion"].compute(replace(good, probability=lambda images, rows: rows / 0))
    with pytest.raises(MetricError, match="must be above 0; got -1"):
        METRICS["average-drop"].compute(replace(good, probability=lambda images, rows: -torch.ones(len(rows))))


def test_random_maps_are_in_range_and_differ_by_image_and_seed() -> None:
    images = torch.zeros(3, 3, 20, 24)
    maps = draw_random_maps(images, seed=0)
    assert maps.shape == (3, 20, 24)
    assert maps.amin((1, 2)).eq(0).all()
    assert maps.amax((1, 2)).eq(1).all()
    assert not torch.equal(maps[0], maps[1])
    assert not torch.equal(maps, draw_random_maps(images, seed=1))
    assert torch.equal(maps, draw_random_maps(images, seed=0))
    assert draw_random_maps(images, seed=0, grid=None)[0].unique().numel() > 400


def test_equal_pixels_are_ranked_without_a_preference_for_a_part_of_the_image() -> None:
    maps = torch.zeros(2, SIZE, SIZE)
    maps[1, 3, 4], maps[1, 5, 5] = 2, 1
    ranks = rank_pixels(maps).reshape(2, SIZE, SIZE)
    assert ranks[1, 3, 4] == 0
    assert ranks[1, 5, 5] == 1
    first = ranks[0] < SIZE**2 // 2
    assert 0.35 < first[: SIZE // 2].float().mean() < 0.65
    assert sorted(ranks[0].flatten().tolist()) == [*range(SIZE**2)]
