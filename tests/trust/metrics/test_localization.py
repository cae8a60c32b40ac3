"""Localization metrics on heatmaps whose numbers are computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from camtool.trust.metrics.localization import compute_energy_in_mask, is_peak_in_mask

HEATMAP = np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)


def test_energy_is_the_share_of_the_sum_inside_the_mask() -> None:
    assert compute_energy_in_mask(HEATMAP, HEATMAP > 0.25) == pytest.approx(0.7)
    assert compute_energy_in_mask(HEATMAP, HEATMAP > 1) == 0
    assert compute_energy_in_mask(HEATMAP, HEATMAP > 0) == 1


def test_a_constant_map_has_the_share_of_the_mask() -> None:
    mask = np.zeros((10, 10), bool)
    mask[:3, :4] = True
    assert compute_energy_in_mask(np.full((10, 10), 0.37, np.float32), mask) == pytest.approx(0.12)


def test_a_map_of_zeros_has_no_energy() -> None:
    assert compute_energy_in_mask(np.zeros((2, 2), np.float32), np.ones((2, 2), bool)) == 0


def test_the_sum_of_a_large_map_is_exact() -> None:
    heatmap = np.full((4_000, 4_000), 0.1, np.float32)
    mask = np.zeros(heatmap.shape, bool)
    mask[:1_000] = True
    assert compute_energy_in_mask(heatmap, mask) == pytest.approx(0.25, abs=1e-9)


def test_the_peak_is_a_hit_only_inside_the_mask() -> None:
    assert is_peak_in_mask(HEATMAP, HEATMAP > 0.35)
    assert not is_peak_in_mask(HEATMAP, HEATMAP < 0.35)
