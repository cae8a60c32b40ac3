"""The statistics of an audit against literal versions in float64, all arrangements counted, and simulated nulls."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from camtool.errors import MetricError
from camtool.evaluation.audit.statistics import (
    ALPHA,
    average_groups,
    compute_detectable_share,
    compute_q_values,
    compute_share,
    estimate_false_discovery_rate,
    run_control_test,
    run_maximum_test,
    run_sign_flip_test,
)
from camtool.evaluation.leaderboard.table import bootstrap_mean

DIFFERENCES = np.array([0.9, 1.4, -0.3, 0.8, 0.2, 1.1])


def test_signs_are_flipped_as_in_all_arrangements():
    sums = [sum(s * d for s, d in zip(signs, DIFFERENCES, strict=True)) for signs in product((1, -1), repeat=6)]
    exact = sum(total >= DIFFERENCES.sum() - 1e-12 for total in sums) / len(sums)
    drawn = run_sign_flip_test(DIFFERENCES, permutations=20_000)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))


def test_groups_are_flipped_as_one():
    groups = [0, 0, 1, 1, 1, 2]
    means = [1.15, (-0.3 + 0.8 + 0.2) / 3, 1.1]
    assert average_groups(DIFFERENCES, groups).tolist() == pytest.approx(means)
    # All three means are positive, so of eight arrangements one alone reaches their sum.
    assert run_sign_flip_test(DIFFERENCES, groups, permutations=20_000) == pytest.approx(1 / 8, abs=0.01)


def test_the_candidate_changes_places_with_its_controls():
    effects = np.array([[3.0, 1.0, 0.5], [0.7, 0.9, 0.1], [2.0, 0.3, 0.4], [1.0, 0.2, 1.1]])

    def compute_statistic(columns):
        rows = zip(effects, columns, strict=True)
        return sum(row[c] - np.delete(row, c).mean() for row, c in rows)

    observed = compute_statistic([0, 0, 0, 0])
    all_of_them = [compute_statistic(columns) for columns in product(range(3), repeat=4)]
    exact = sum(value >= observed - 1e-12 for value in all_of_them) / len(all_of_them)
    drawn = run_control_test(effects, permutations=20_000)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))


def test_with_one_control_it_is_the_sign_flip_test():
    effects = np.random.default_rng(1).normal(0.4, 1, (15, 2))
    flipped = run_sign_flip_test(effects[:, 0] - effects[:, 1])
    assert run_control_test(effects) == flipped


def test_p_is_never_zero_and_ties_count():
    assert run_control_test(np.eye(1, 20).repeat(30, 0), permutations=199) == 1 / 200
    assert run_control_test(np.ones((9, 4)), permutations=199) == 1


def test_no_controls_are_refused():
    with pytest.raises(MetricError, match=r"effects must be \(images, 1 \+ controls\)"):
        run_control_test(np.ones((4, 1)))


def test_skewed_effects_without_a_cause_keep_the_level():
    """Few images with large effects are what covering a random place looks like; signs of the mean find too little."""
    random = np.random.default_rng(0)
    effects = (random.random((1500, 12, 20)) < 0.05) * random.exponential(3, (1500, 12, 20))
    p = np.array([run_control_test(one, permutations=199, seed=k) for k, one in enumerate(effects)])
    for level in (0.02, 0.05, 0.2):
        # Two thirds of the level as a margin is five standard errors at 0.02.
        assert (p <= level).mean() < level + 5 * math.sqrt(level / len(p))
    signs = [
        run_sign_flip_test(one[:, 0] - one[:, 1:].mean(1), permutations=199, seed=k) for k, one in enumerate(effects)
    ]
    assert (np.array(signs) <= 0.02).mean() < 0.005


def test_the_maximum_is_compared_with_the_maximum_of_all_arrangements():
    values = np.array([[2.0, 0.1], [1.5, 0.4], [0.2, 0.3], [0.1, 0.5], [0.4, 0.2], [0.3, 0.6]])
    count, deviation = len(values), values.std(0)

    def compute_z(rows):
        others = [row for row in range(count) if row not in rows]
        error = deviation * math.sqrt(1 / len(rows) + 1 / len(others))
        return (values[list(rows)].mean(0) - values[others].mean(0)) / error

    observed = compute_z((0, 1))
    largest = [compute_z(rows).max() for rows in combinations(range(count), 2)]
    exact = [np.mean([top >= z - 1e-12 for top in largest]) for z in observed]
    tested = run_maximum_test(values, np.arange(count) < 2, permutations=20_000)
    assert tested.z == pytest.approx(observed)
    assert tested.p == pytest.approx(exact, abs=0.02)


def test_places_without_a_difference_are_found_as_often_as_the_level_says():
    random, is_class = np.random.default_rng(0), np.arange(60) < 12
    least = []
    for trial in range(400):
        values = random.exponential(1, (60, 25))
        tested = run_maximum_test(values, is_class, permutations=99, seed=trial)
        least.append(tested.p.min())
        assert (tested.z > tested.critical).any() <= (tested.p.min() <= ALPHA)
    assert 0.01 < (np.array(least) <= 0.05).mean() < 0.1


def test_a_place_that_is_the_same_everywhere_has_no_difference():
    values = np.stack([np.full(20, 0.1), np.arange(20) < 6], 1).astype(float)
    tested = run_maximum_test(values, np.arange(20) < 6, permutations=99)
    assert (tested.z[0], tested.p[0]) == (0, 1)
    assert tested.p[1] == 1 / 100


def test_one_class_alone_is_refused():
    with pytest.raises(MetricError, match="3 of 3 images are of the class"):
        run_maximum_test(np.ones((3, 2)), np.ones(3, bool))


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    # From the formula by hand; 0 of 10 and 10 of 10 mirror each other.
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (5, 10, 0.23659, 0.76341)],
)
def test_wilson_intervals(successes, count, low, high):
    interval = compute_share(successes, count)
    assert interval == pytest.approx((successes / count, low, high), abs=1e-5)


def test_shares_and_means_of_nothing_are_not_a_number():
    assert np.isnan([*compute_share(0, 0), *bootstrap_mean(np.zeros(0))]).all()


def test_bootstrap_intervals_cover_the_mean():
    random = np.random.default_rng(0)
    intervals = [bootstrap_mean(random.normal(2, 1, 30), seed) for seed in range(300)]
    assert 0.88 < np.mean([low <= 2 <= high for _, low, high in intervals]) < 0.98


def test_q_values_by_hand():
    # 0.01 * 4 / 1, 0.04 * 4 / 3 and 0.03 * 4 / 2 bounded by the one above, 0.5.
    assert compute_q_values([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 4 * 0.04 / 3, 4 * 0.04 / 3, 0.5])
    assert compute_q_values([0.9, 0.9]) == pytest.approx([0.9, 0.9])
    assert compute_q_values([]) == []


def test_the_false_discovery_rate_counts_decoys_and_one_more():
    assert estimate_false_discovery_rate(1, 10) == 0.2
    assert estimate_false_discovery_rate(5, 3) == 1
    assert estimate_false_discovery_rate(0, 0) is None


def test_the_smallest_share_is_found_with_that_power():
    # p <= 0.02 takes 6 flips of 2 (1/64); of 20 columns two suffice (1/400).
    share = compute_detectable_share(20, 0.02)
    power = 1 - sum(math.comb(20, k) * share**k * (1 - share) ** (20 - k) for k in range(6))
    assert power == pytest.approx(0.8, abs=1e-6)
    assert compute_detectable_share(20, 0.02, columns=20) < share
    assert compute_detectable_share(5, 0.02) == math.inf
