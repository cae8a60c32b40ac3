"""Localization metrics: whether a heatmap is on the object that it explains.

They need a mask of the object. They measure agreement with the object, not with what the model uses: a faithful map
of a model that uses the background scores low.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv2d

from camtool.arguments.checks import Count, check_number
from camtool.errors import MetricError
from camtool.outputs.post_processing import compute_box_iou
from camtool.rendering.regions import find_boxes
from camtool.trust.metrics.metric_registry import metric
from camtool.trust.metrics.scores import check_maps

# The overlaps with a box from which MaxBoxAccV2 counts a hit.
_OVERLAPS = (0.3, 0.5, 0.7)


# ------------------------------------------------------------------------------------------------ one numpy heatmap


def compute_energy_in_mask(heatmap: NDArray[np.float32], mask: NDArray[np.bool_]) -> float:
    """Compute the share of a heatmap's sum that is inside a mask. Higher is better, from 0 to 1.

    A constant map scores the mask's share of the image, which is the chance level. A map of zeros scores 0.

    Source: the energy-based pointing game of Score-CAM, arXiv 1910.01279, section 4.3.

    Args:
        heatmap: ``(H, W)``, not negative.
        mask: ``(H, W)``, true on the object.
    """
    total = float(heatmap.sum(dtype="float64"))
    return float(heatmap[mask].sum(dtype="float64")) / total if total > 0 else 0.0


def is_peak_in_mask(heatmap: NDArray[np.float32], mask: NDArray[np.bool_]) -> bool:
    """Check that the highest pixel of a heatmap is inside a mask: the pointing game without a tolerance.

    A random pixel is inside with the mask's share of the image, which is the chance level.

    Source: arXiv 1608.00507, section 4.2, where a distance of 15 pixels still counts as a hit.

    Args:
        heatmap: ``(H, W)``.
        mask: ``(H, W)``, true on the object.
    """
    return bool(mask.flat[heatmap.argmax()])


# ------------------------------------------------------------------------------------------------- a batch of maps


def _compute_hit_share(maps: Tensor, masks: Tensor, *, tolerance: float = 0) -> Tensor:
    return _grow_masks(masks, tolerance).to(maps).mean((1, 2))


def _compute_mask_share(maps: Tensor, masks: Tensor) -> Tensor:
    return masks.to(maps).mean((1, 2))


@metric("pointing-game", higher_is_better=True, bounds=(0, 1), chance=_compute_hit_share, paper="arXiv 1608.00507")
def compute_pointing(maps: Tensor, masks: Tensor, *, tolerance: float = 0) -> Tensor:
    """Check whether the hottest pixel is in the mask, or near it: 1 or 0. Higher is better.

    If several pixels are equally hot, the share of them that are hits, so that a constant map has the chance level: the
    share of the image that is a hit.

    Source: arXiv 1608.00507, where a distance of 15 pixels still counts as a hit.

    Args:
        maps: ``(N, H, W)``.
        masks: ``(N, H, W)``, true on the object.
        tolerance: The distance from the mask that still counts, in pixels.
    """
    _check_masks(masks, maps)
    hits, peaks = _grow_masks(masks, tolerance), maps == maps.amax((1, 2), keepdim=True)
    return (hits & peaks).sum((1, 2)) / peaks.sum((1, 2)).to(maps)


@metric("energy-in-mask", higher_is_better=True, bounds=(0, 1), chance=_compute_mask_share, paper="arXiv 1910.01279")
def compute_energy(maps: Tensor, masks: Tensor) -> Tensor:
    """Measure the share of the heat that is in the mask. Higher is better, from 0 to 1.

    The chance level is the mask's share of the image, which is the value of a constant map. A map of zeros scores 0.

    Source: the energy-based pointing game of Score-CAM, arXiv 1910.01279.

    Args:
        maps: ``(N, H, W)``, not negative.
        masks: ``(N, H, W)``, true on the object.
    """
    _check_masks(masks, maps, least=0)
    total = maps.sum((1, 2))
    return (maps * masks).sum((1, 2)) / torch.where(total > 0, total, 1)


@metric("best-iou", higher_is_better=True, bounds=(0, 1), paper="arXiv 2007.04178")
def compute_best_iou(maps: Tensor, masks: Tensor) -> Tensor:
    """Measure the overlap of the mask with the hottest pixels, at the best threshold. Higher is better, from 0 to 1.

    ``max over t of |map ≥ t and mask| / |map ≥ t or mask|``, the intersection over union, over all thresholds. The
    lowest threshold takes the whole image, so the value is never below the mask's share of it. Chance level: measured.

    The threshold is chosen for each image with the help of its mask. This is an upper limit for a fixed threshold.

    Source: PxAP of arXiv 2007.04178 also looks at all thresholds, but for all images together.

    Args:
        maps: ``(N, H, W)``.
        masks: ``(N, H, W)``, true on the object.
    """
    _check_masks(masks, maps)
    values, order = maps.flatten(1).sort(1, descending=True)
    hits = masks.flatten(1).gather(1, order).cumsum(1)
    taken = torch.arange(1, values.shape[1] + 1, device=maps.device)
    ious = hits / (taken + hits[:, -1:] - hits).to(maps)
    # A threshold takes all pixels of one value or none.
    is_last = torch.cat([values[:, :-1] != values[:, 1:], torch.ones_like(hits[:, :1], dtype=torch.bool)], 1)
    return torch.where(is_last, ious, 0).amax(1)


@metric("max-box-acc-v2", higher_is_better=True, bounds=(0, 1), paper="arXiv 2007.04178")
def compute_box_accuracy(
    maps: Tensor, boxes: Sequence[Tensor], *, overlaps: Sequence[float] = _OVERLAPS, steps: Count = 100
) -> Tensor:
    """Measure how many of three demands on the overlap the best box of the map's regions meets. Higher is better.

    MaxBoxAccV2, from 0 to 1: the mean over ``overlaps`` of 1 or 0, whether the box of a connected region ``map ≥ t``
    has this intersection over union with an object's box. The threshold t is chosen for each overlap over all images of
    the call, so a batch is not its images one by one, and the mean over the images is the number of the source.
    Chance level: measured.

    Source: arXiv 2007.04178, with 1000 thresholds in the released code.

    Args:
        maps: ``(N, H, W)``, in [0, 1].
        boxes: For each image the boxes ``(B, 4)`` of its objects: ``x0, y0, x1, y1`` in pixels, half-open.
        overlaps: The intersections over union, each in [0, 1].
        steps: The number of thresholds, evenly spaced from 0 to just below 1.
    """
    check_maps(maps, least=0, most=1)
    for overlap in overlaps:
        check_number("each of overlaps", overlap, least=0, most=1, error=MetricError)
    truths = _check_boxes(boxes, maps)
    best = torch.stack([_find_overlaps(heat, truth, steps) for heat, truth in zip(maps, truths, strict=True)])
    hits = best[:, :, None] >= torch.tensor(overlaps, device="cpu")
    chosen = hits.sum(0).argmax(0)
    return hits[:, chosen, torch.arange(len(overlaps), device="cpu")].float().mean(1).to(maps)


def _find_overlaps(heat: Tensor, truth: Tensor, steps: int) -> Tensor:
    """Return for each threshold the best overlap of a region's box with an object's box, ``(steps,)``."""
    heatmap = heat.float().cpu().numpy()
    best = torch.zeros(steps, device="cpu")
    for step in range(steps):
        boxes = find_boxes(heatmap, threshold=step / steps)
        if boxes:
            found = torch.tensor(boxes, dtype=torch.float32, device="cpu")
            best[step] = max(compute_box_iou(found, box).max() for box in truth)
    return best


def _grow_masks(masks: Tensor, distance: float) -> Tensor:
    """Return masks ``(N, H, W)`` with all pixels up to a distance from them."""
    check_number("tolerance", distance, least=0, error=MetricError)
    reach = int(distance)
    if reach == 0:
        return masks
    steps = torch.arange(-reach, reach + 1, device=masks.device)
    disc = (steps[:, None] ** 2 + steps**2 <= distance**2).float()
    # Counts of pixels are exact in float32; half a pixel excludes what a fast convolution rounds.
    return conv2d(masks[:, None].float(), disc[None, None], padding=reach)[:, 0] > 0.5


def _check_masks(masks: Tensor, maps: Tensor, *, least: float = -float("inf")) -> None:
    check_maps(maps, least=least)
    if not isinstance(masks, Tensor) or masks.dtype != torch.bool or masks.shape != maps.shape:
        got = f"{masks.dtype} {tuple(masks.shape)}" if isinstance(masks, Tensor) else type(masks).__name__
        raise MetricError(f"masks must be a boolean tensor with one mask per map, {tuple(maps.shape)}; got {got}.")
    if masks.device != maps.device:
        raise MetricError(f"masks is on {masks.device}, maps on {maps.device}; move one of them.")
    if not masks.flatten(1).any(1).all():
        raise MetricError("each of masks must be true somewhere; leave out images without the object.")


def _check_boxes(boxes: Sequence[Tensor], maps: Tensor) -> list[Tensor]:
    if isinstance(boxes, Tensor) or len(boxes) != len(maps):
        raise MetricError(f"boxes must be a list of one tensor (B, 4) per map, {len(maps)} of them.")
    truths = [torch.as_tensor(of_image).float().cpu() for of_image in boxes]
    for truth in truths:
        if truth.ndim != 2 or truth.shape[1] != 4 or len(truth) == 0 or not (truth[:, 2:] > truth[:, :2]).all():
            raise MetricError(f"each of boxes must be (B, 4) with x0 < x1 and y0 < y1, got {truth.tolist()}.")
    return truths
