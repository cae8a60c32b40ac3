"""Comparison of maps: rounding passes, and anything more fails, for any range of values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from tests.helpers.comparison import STEPS, assert_same_explanation, assert_same_raw, raw_tolerance

EPS = float(np.finfo(np.float32).eps)
NARROW = np.linspace(0.12577, 0.12601, 64, dtype=np.float32).reshape(8, 8)
"""A raw map of rise: its range is a five-hundredth of its values."""


@pytest.fixture(scope="module")
def narrow() -> camtool.Explanation:
    """An explanation whose raw map has a narrow range."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()
    (result,) = camtool.explain(net, torch.randn(1, 3, 8, 8), 1, method="rise", samples=20)
    return replace(result, raw=NARROW)


@pytest.mark.parametrize("off", [1.5e-8, -3e-8])
def test_rounding_passes_although_a_heatmap_scales_it_up(narrow: camtool.Explanation, off: float) -> None:
    rounded = replace(
        narrow, raw=NARROW + np.float32(off) * np.sign(np.sin(np.arange(64, dtype=np.float32))).reshape(8, 8)
    )
    assert np.abs(rounded.heatmap - narrow.heatmap).max() > 2e-5
    assert_same_raw(rounded.raw, narrow.raw)
    assert_same_explanation(rounded, narrow)


@pytest.mark.parametrize("place", [(0, 0), (3, 4), (7, 7)])
@pytest.mark.parametrize("sign", [1, -1])
def test_one_value_beyond_rounding_fails(narrow: camtool.Explanation, place: tuple[int, int], sign: int) -> None:
    raw = NARROW.copy()
    raw[place] += sign * 2 * STEPS * EPS * NARROW.max()
    assert np.abs(raw - NARROW).max() < 0.02 * np.ptp(NARROW)
    for wrong in (
        lambda: assert_same_raw(raw, NARROW),
        lambda: assert_same_explanation(replace(narrow, raw=raw), narrow),
    ):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            wrong()


@pytest.mark.parametrize("wrong", [NARROW.T, NARROW[::-1], 0 * NARROW, NARROW + 1e-4, np.full_like(NARROW, 0.1259)])
def test_different_map_fails(narrow: camtool.Explanation, wrong: np.ndarray) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_explanation(replace(narrow, raw=wrong), narrow)


def test_small_maps_are_compared_relative_to_their_peak(narrow: camtool.Explanation) -> None:
    small = 1e-6 * (NARROW - NARROW.min()) / np.ptp(NARROW)
    assert raw_tolerance(small) == pytest.approx(STEPS * EPS * 1e-6)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_raw(small + np.float32(1e-9), small)
    of_scores = replace(narrow, raw=100 * small, method="groupcam")
    assert_same_explanation(replace(of_scores, raw=of_scores.raw + np.float32(1e-8)), of_scores)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_explanation(replace(of_scores, raw=2 * of_scores.raw), of_scores)


@pytest.mark.parametrize("changed", [{"label": "another"}, {"method": "gradcam"}])
def test_different_label_or_method_fails(narrow: camtool.Explanation, changed: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=next(iter(changed.values()))):
        assert_same_explanation(replace(narrow, **changed), narrow)
