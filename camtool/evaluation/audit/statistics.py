"""The statistics of an audit: permutation tests, intervals, false discoveries, and the smallest effect that shows.

All tests are one-sided. Their p-value is ``(1 + #) / (1 + N)``: the observed arrangement counts as one of N + 1, so it
is never 0, and the test is valid for any N (Phipson and Smyth 2010, 10.2202/1544-6115.1585). The independent unit is a
group of images, e.g. a patient: values of one group are averaged first, so that a group is permuted as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from camtool.arguments.checks import check_count
from camtool.errors import MetricError
from camtool.evaluation.leaderboard.table import Interval

# Arrangements that are drawn: p is at least 0.0002, a tenth of what 10 candidates need at q = 0.02.
PERMUTATIONS = 4999

# Level of the maximum statistic of a class.
ALPHA = 0.01

# Values of the arrangements that are in memory at a time: 32 MB.
_VALUES_AT_ONCE = 2**22


class MaximumTest(NamedTuple):
    """The result of :func:`run_maximum_test`.

    Attributes:
        z: ``(C,)``, the standardized difference at each place.
        p: ``(C,)``, its p-value, corrected for all places.
        critical: The value of ``z`` that p = :data:`ALPHA` needs.
    """

    z: NDArray[np.float64]
    p: NDArray[np.float64]
    critical: float


def average_groups(values: NDArray[np.float64], groups: Sequence[int]) -> NDArray[np.float64]:
    """Return the mean of the values ``(N, ...)`` of each group, in the order in which the groups first occur."""
    order = {group: row for row, group in enumerate(dict.fromkeys(groups))}
    rows = np.array([order[group] for group in groups], int)
    means = np.zeros((len(order), *values.shape[1:]))
    np.add.at(means, rows, values)
    counts = np.bincount(rows, minlength=len(order)).reshape(-1, *[1] * (values.ndim - 1))
    return means / counts


def average_units(
    values: NDArray[np.float64], groups: Sequence[int], is_class: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean of the values ``(N, ...)`` of each unit, and True for the units of a class.

    A unit is a group. A group of two classes, e.g. a patient with both, is two units.
    """
    numbers = np.asarray(groups)
    units = [average_groups(values[part], numbers[part].tolist()) for part in (is_class, ~is_class)]
    joined = np.concatenate(units)
    return joined, np.arange(len(joined)) < len(units[0])


def subtract_controls(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first column minus the mean of the others, ``(N,)``."""
    return np.asarray(values[:, 0] - values[:, 1:].mean(1))


def run_sign_flip_test(
    differences: NDArray[np.float64],
    groups: Sequence[int] | None = None,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> float:
    """Return the p-value of a mean difference above 0: the sign of each group is flipped at random.

    It is exact if the difference of a pair is as likely as its negative, e.g. if the two are exchangeable.

    Args:
        differences: ``(N,)``, paired within an image.
        groups: The group of each image; by default each is its own.
        permutations: The number of arrangements.
        seed: The seed of the arrangements.
    """
    pairs = np.stack([differences, np.zeros_like(differences)], 1)
    return run_control_test(pairs, groups, permutations=permutations, seed=seed)


def run_control_test(
    effects: NDArray[np.float64],
    groups: Sequence[int] | None = None,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> float:
    """Return the p-value of an effect that is larger in the first column than in the others.

    The statistic is the mean over groups of the first column minus the mean of the others. In each arrangement every
    group has another column, drawn at random, in the place of the first. It is exact if the columns are exchangeable,
    however skewed the effects are; with a single control it is the sign-flip test of the differences.

    Args:
        effects: ``(N, 1 + K)``: the effect of the candidate in each image, then those of K controls.
        groups: The group of each image; by default each is its own.
        permutations: The number of arrangements.
        seed: The seed of the arrangements.

    Raises:
        MetricError: There are no controls, or no images.
    """
    check_count("permutations", permutations, error=MetricError)
    if effects.ndim != 2 or effects.shape[1] < 2 or not len(effects):
        raise MetricError(f"effects must be (images, 1 + controls) with at least one of each, got {effects.shape}.")
    values = effects if groups is None else average_groups(effects, groups)
    count, columns = values.shape
    # Minus the mean of the others is a positive multiple of the value minus the mean of all.
    centered = (values - values.mean(1, keepdims=True)) * columns / (columns - 1)
    observed, rows, reached = centered[:, 0].sum(), np.arange(count), 0
    random = np.random.default_rng(seed)
    for size in _split(permutations, count):
        sums = centered[rows, random.integers(columns, size=(size, count))].sum(1)
        reached += int((sums >= observed - _compute_slack(centered)).sum())
    return (1 + reached) / (1 + permutations)


def run_maximum_test(
    values: NDArray[np.float64], is_class: NDArray[np.bool_], *, permutations: int = 999, seed: int = 0
) -> MaximumTest:
    """Test at which places the values of a class are larger than those of the others, corrected for all places.

    At each place z is the difference of the two means over its standard error, with the standard deviation of all
    images. The labels are permuted, and the largest z of each arrangement is what the observed ones are compared with
    (Westfall and Young 1993; Nichols and Holmes 2002, 10.1002/hbm.1058).

    Args:
        values: ``(N, C)``: for each image, or group of images, a value at each place.
        is_class: ``(N,)``, True for the class.
        permutations: The number of arrangements.
        seed: The seed of the arrangements.

    Raises:
        MetricError: All images are of the class, or none.
    """
    count, inside = len(values), int(is_class.sum())
    if not 0 < inside < count:
        raise MetricError(f"is_class: {inside} of {count} images are of the class; the test needs both kinds.")
    deviation = values.std(0)
    scale = np.where(deviation > 1e-12 * np.abs(values).max(0, initial=1e-300), deviation, np.inf)
    standard = (values - values.mean(0)) / scale
    # As the values are centered, the mean of the others follows from that of the class.
    factor = 1 / inside * count / (count - inside) / math.sqrt(1 / inside + 1 / (count - inside))
    z = is_class.astype(float) @ standard * factor
    random, largest = np.random.default_rng(seed), list[NDArray[np.float64]]()
    for size in _split(permutations, count + values.shape[1]):
        labels = random.permuted(np.broadcast_to(is_class, (size, count)), axis=1)
        largest.append((labels.astype(float) @ standard * factor).max(1))
    return _compare_with_largest(z, z, np.concatenate(largest))


def run_swap_test(
    differences: NDArray[np.float64], *, floor: float = 0.0, permutations: int = 999, seed: int = 0
) -> MaximumTest:
    """Test at which places paired differences are not 0 on average, in either direction, corrected for all places.

    In each arrangement the two members of every pair are swapped at random, which flips the signs of all its
    differences, and the largest ``|z|`` of all places is what the observed ones are compared with. It is exact if the
    members are exchangeable. z is the sum of the differences over the root of their sum of squares, which no swap
    changes; ``floor`` is added to each square, so that differences far below it count as none (Tusher et al. 2001,
    10.1073/pnas.091062498).

    Args:
        differences: ``(N, C)``: for each image, or group of images, a difference at each place.
        floor: The size of a difference that is small.
        permutations: The number of arrangements.
        seed: The seed of the arrangements.
    """
    squares = (differences**2 + floor**2).sum(0)
    standard = differences / np.sqrt(np.where(squares > 0, squares, np.inf))
    z = standard.sum(0)
    random, largest = np.random.default_rng(seed), list[NDArray[np.float64]]()
    for size in _split(permutations, sum(differences.shape)):
        signs = random.integers(2, size=(size, len(differences))) * 2.0 - 1
        largest.append(np.abs(signs @ standard).max(1))
    return _compare_with_largest(z, np.abs(z), np.concatenate(largest))


def _compare_with_largest(
    z: NDArray[np.float64], heights: NDArray[np.float64], largest: NDArray[np.float64]
) -> MaximumTest:
    """Return the p-value of the height of each z, from the largest heights of all arrangements."""
    count, ordered = len(largest), np.sort(largest)
    reached = count - np.searchsorted(ordered, heights - _compute_slack(z))
    rank = max(0, math.ceil((1 - ALPHA) * (count + 1)) - 1)
    critical = ordered[rank] if rank < count else np.inf
    return MaximumTest(z, (1 + reached) / (1 + count), float(critical))


def _split(permutations: int, width: int) -> list[int]:
    """Return numbers of arrangements of a width that add up to all, each small enough for the memory."""
    size = max(1, _VALUES_AT_ONCE // max(1, width))
    return [min(size, permutations - start) for start in range(0, permutations, size)]


def _compute_slack(values: NDArray[np.float64]) -> float:
    """Return the difference up to which two sums of these values are equal: they differ by rounding alone."""
    return 1e-12 * max(1e-300, float(np.abs(values).sum()))


def compute_share(successes: float, count: int) -> Interval:
    """Return a share and its Wilson score interval (Wilson 1927, 10.1080/01621459.1927.10502953)."""
    if not count:
        return Interval(math.nan, math.nan, math.nan)
    z = 1.959963984540054
    share, square = successes / count, z * z / count
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    # At 0 and 1 an end is exactly there, but for rounding.
    return Interval(share, middle - half if share > 0 else 0.0, middle + half if share < 1 else 1.0)


def compute_q_values(p_values: Sequence[float]) -> list[float]:
    """Return the Benjamini-Hochberg q-value of each p-value: the least over larger ones of ``p m / rank``, at most 1.

    Those with q at most 0.02 hold at most 2 % false ones in expectation, if the tests are independent or positively
    dependent (Benjamini and Hochberg 1995, 10.1111/j.2517-6161.1995.tb02031.x).
    """
    p = np.asarray(p_values, float)
    order = np.argsort(-p, kind="stable")
    q = np.empty(len(p))
    q[order] = np.minimum.accumulate(p[order] * len(p) / np.arange(len(p), 0, -1)).clip(max=1)
    return [float(value) for value in q]


def estimate_false_discovery_rate(surviving_decoys: int, findings: int, decoys: int = 1) -> float | None:
    """Return ``(surviving decoys + 1) / decoys / findings``, at most 1; None without findings.

    With one decoy for each candidate, the decoys that survive are as many as false findings are expected; with several
    the false findings are their share. The 1 makes the estimate an upper bound in expectation with one decoy (Barber
    and Candès 2015, 10.1214/15-AOS1337); with several it is ``(surviving + 1) / decoys`` in the same way.

    Args:
        surviving_decoys: The decoys that passed the tests.
        findings: The candidates that passed them.
        decoys: The decoys of each candidate.
    """
    return min(1.0, (surviving_decoys + 1) / decoys / findings) if findings else None


def compute_detectable_share(groups: int, level: float, columns: int = 2, power: float = 0.8) -> float:
    """Return the smallest share of changed answers that a test finds with this power, if no control changes any.

    If k groups change, all of them by the candidate alone, :func:`run_control_test` has the p-value
    ``columns ** -k``. So k has to be ``log(1 / level) / log(columns)``, and the binomial distribution, whose tail is an
    incomplete beta function, says which share gives that many. 1 or more than 1 (infinity) says that it cannot be found
    with so few groups.

    Args:
        groups: The number of independent groups of images.
        level: The p-value that is needed.
        columns: The candidate and its controls.
        power: The probability with which the effect is found.
    """
    needed = math.ceil(math.log(1 / level) / math.log(columns) - 1e-9)
    if needed > groups:
        return math.inf
    return float(betaincinv(needed, groups - needed + 1, power))
