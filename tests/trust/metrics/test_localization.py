"""Localization metrics on heatmaps whose numbers are computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from camtool.errors import MetricError
from camtool.trust.metrics import METRICS, MetricInputs
from camtool.trust.metrics.localization import (
    compute_best_iou,
    compute_box_accuracy,
    compute_energy,
    compute_energy_in_mask,
    compute_pointing,
    is_peak_in_mask,
)
from tests.oracles.metrics import best_iou

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


# -------------------------------------------------------------------------------------------------- a batch of maps

MAPS = torch.rand(4, 7, 9, generator=torch.Generator().manual_seed(0))
MASKS = torch.zeros(4, 7, 9, dtype=torch.bool)
MASKS[:, 2:5, 3:6] = True
MASKS[3, 0, 0] = True


def test_the_metrics_of_a_batch_are_those_of_single_heatmaps() -> None:
    for maps, masks in [(MAPS, MASKS), (MAPS * MASKS, MASKS)]:
        pairs = list(zip(maps.numpy(), masks.numpy(), strict=True))
        energies = torch.tensor([compute_energy_in_mask(*pair) for pair in pairs])
        torch.testing.assert_close(compute_energy(maps, masks), energies)
        assert compute_pointing(maps, masks).tolist() == [is_peak_in_mask(*pair) for pair in pairs]


def test_a_peak_within_the_tolerance_is_a_hit() -> None:
    maps = torch.zeros(1, 20, 20)
    maps[0, 10, 10] = 1
    masks = torch.zeros(1, 20, 20, dtype=torch.bool)
    masks[0, 13, 14] = True  # at a distance of 5
    assert compute_pointing(maps, masks, tolerance=5).tolist() == [1]
    assert compute_pointing(maps, masks, tolerance=4.9).tolist() == [0]
    # The disc with a radius of 5 has 81 pixels, all of them in the image.
    inputs = MetricInputs(torch.zeros(1, 3, 20, 20), maps, masks=masks)
    chance = METRICS["pointing-game"].compute_chance(inputs, tolerance=5)
    torch.testing.assert_close(chance, torch.tensor([81 / 400]))


def test_several_peaks_count_by_their_share() -> None:
    maps = torch.zeros(1, 7, 9)
    maps[0, 2, 3] = maps[0, 0, 0] = maps[0, 6, 6] = maps[0, 6, 7] = 2
    assert compute_pointing(maps, MASKS[:1]).tolist() == [0.25]
    torch.testing.assert_close(compute_pointing(torch.ones(1, 7, 9), MASKS[:1]), torch.tensor([1 / 7]))


def test_the_best_overlap_is_that_of_the_best_threshold() -> None:
    steps = (MAPS * 4).round() / 4  # with ties
    for maps in (MAPS, steps, -MAPS):
        pairs = zip(maps.double().tolist(), MASKS.tolist(), strict=True)
        expected = torch.tensor([best_iou(*pair) for pair in pairs])
        torch.testing.assert_close(compute_best_iou(maps, MASKS), expected)
    torch.testing.assert_close(compute_best_iou(torch.ones(1, 7, 9), MASKS[:1]), torch.tensor([1 / 7]))


def test_the_accuracy_of_boxes_is_computed_at_the_best_threshold_of_all_images() -> None:
    maps, truth = torch.zeros(2, 10, 10), torch.tensor([[2.0, 2.0, 8.0, 8.0]])
    # The first map is right at thresholds up to 0.3, the second one above 0.6, so no threshold suits both.
    maps[0, 2:8, 2:8], maps[0, 4, 4] = 0.3, 1
    maps[1], maps[1, 2:8, 2:8] = 0.6, 1
    assert compute_box_accuracy(maps[:1], [truth]).tolist() == [1]
    assert compute_box_accuracy(maps[1:], [truth]).tolist() == [1]
    both = compute_box_accuracy(maps, [truth, truth])
    # The whole image overlaps by 0.36, which is enough for 0.3 only: up to 0.3 the second map gets this one hit.
    assert both.sort().values.tolist() == pytest.approx([1 / 3, 1])
    # With a demand of 0.3 alone the thresholds up to 0.3 are right for both.
    assert compute_box_accuracy(maps, [truth, truth], overlaps=[0.3]).tolist() == [1, 1]


def test_any_region_and_any_object_may_match() -> None:
    maps = torch.zeros(1, 10, 10)
    maps[0, :3, :3], maps[0, 6:, 6:] = 1, 1
    assert compute_box_accuracy(maps, [torch.tensor([[0, 7, 2, 9], [6, 6, 10, 10]])]).tolist() == [1]
    assert compute_box_accuracy(maps, [torch.tensor([[3, 3, 6, 6]])]).tolist() == [0]
    # Half of the object: an overlap of exactly 0.5.
    assert compute_box_accuracy(maps, [torch.tensor([[6, 6, 10, 14]])]).tolist() == pytest.approx([2 / 3])


def test_wrong_masks_and_boxes_are_errors() -> None:
    with pytest.raises(MetricError, match=r"masks must be a boolean tensor with one mask per map, \(4, 7, 9\)"):
        compute_energy(MAPS, MASKS.float())
    with pytest.raises(MetricError, match="each of masks must be true somewhere"):
        compute_best_iou(MAPS, MASKS & False)
    with pytest.raises(MetricError, match=r"maps must be in \[0, inf\]"):
        compute_energy(-MAPS, MASKS)
    with pytest.raises(MetricError, match=r"list of one tensor \(B, 4\) per map, 4 of them"):
        compute_box_accuracy(MAPS, [torch.ones(1, 4)])
    with pytest.raises(MetricError, match="x0 < x1"):
        compute_box_accuracy(MAPS[:1], [torch.tensor([[3, 3, 3, 5]])])
    with pytest.raises(MetricError, match="tolerance must be a finite number at least 0"):
        compute_pointing(MAPS, MASKS, tolerance=-1)
