"""The candidates that a detector's own post-processing reports: thresholds, and non-maximum suppression by class.

The numbers are the defaults of the libraries: ``predict()`` of Ultralytics, ``detect.py`` of YOLOv5 and YOLOv7,
``post_process_object_detection`` and ``post_process_grounded_object_detection`` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class PostProcessing:
    """Rules by which a detector's candidates are reported.

    Attributes:
        threshold: Candidates with a higher confidence are reported.
        iou_threshold: Intersection over union with a surer detection of the same class above which a candidate is not
            reported; ``None`` without non-maximum suppression.
        limit: The largest number of detections; ``None`` for the number of boxes.
        has_many_classes: True if a box is reported for each class above the threshold, False for its best class alone.
    """

    threshold: float
    iou_threshold: float | None = None
    limit: int | None = None
    has_many_classes: bool = False


ULTRALYTICS = PostProcessing(0.25, 0.7, limit=300)
ULTRALYTICS_SELECTED = PostProcessing(0.25)  # the head has no need of a suppression, and returns at most 300 rows
ULTRALYTICS_RTDETR = PostProcessing(0.25, limit=300, has_many_classes=True)
YOLOV5 = PostProcessing(0.25, 0.45, limit=1000)
DETR = PostProcessing(0.5)
SIGMOID_DETR = replace(DETR, has_many_classes=True)
OWL_VIT = PostProcessing(0.1)
GROUNDING_DINO = PostProcessing(0.25)


def suppress_overlaps(
    boxes: Tensor, rotated: Tensor | None, classes: Tensor, iou_threshold: float, limit: int | None
) -> list[int]:
    """Return the numbers of the boxes that non-maximum suppression keeps.

    Args:
        boxes: ``(D, 4)`` corners, the surest box first.
        rotated: The same as :func:`compute_rotated_iou` takes them; ``None`` for upright boxes.
        classes: ``(D,)``; a box suppresses those of its own class only.
        iou_threshold: See :class:`PostProcessing`.
        limit: See :class:`PostProcessing`.
    """
    boxes, classes = boxes.detach().cpu(), classes.cpu()
    rotated = None if rotated is None else rotated.detach().cpu()
    kept, is_suppressed = list[int](), torch.zeros(len(boxes), dtype=torch.bool, device="cpu")
    for number in range(len(boxes)):
        if len(kept) == limit:
            break
        if not is_suppressed[number]:
            kept.append(number)
        elif rotated is None:
            continue
        # Ultralytics lets rotated boxes suppress others even if they are suppressed themselves ("fast NMS").
        rest = slice(number + 1, None)
        if rotated is None:
            iou = compute_box_iou(boxes[rest], boxes[number])
        else:
            iou = compute_rotated_iou(rotated[rest], rotated[number])
        is_suppressed[rest] |= (iou > iou_threshold) & (classes[rest] == classes[number])
    return kept


def compute_box_iou(boxes: Tensor, box: Tensor) -> Tensor:
    """Return the intersection over union ``(D,)`` of boxes ``(D, 4)`` with one ``(4,)``, all as corners.

    Equal boxes have an IoU of 1, also if they are empty.
    """
    # Boxes that do not touch have a negative width or height, which must not become a positive area.
    shared = (torch.minimum(boxes[:, 2:], box[2:]) - torch.maximum(boxes[:, :2], box[:2])).clamp_min(0).prod(1)
    total = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (box[2:] - box[:2]).prod() - shared
    return torch.where((boxes == box).all(1), 1, shared / total.where(total > 0, 1))


def compute_rotated_iou(boxes: Tensor, box: Tensor) -> Tensor:
    """Return the probabilistic IoU ``(D,)`` of rotated boxes ``(D, 5)`` with one ``(5,)``: arXiv 2106.06072.

    A box ``(x, y, width, height, angle)``, the angle in radians, counts as a normal distribution, and the IoU is 1
    minus the Hellinger distance of two of them.
    """
    boxes, box = boxes.double(), box.double()
    difference, first, second = boxes[:, :2] - box[:2], _to_covariance(boxes), _to_covariance(box)
    total = first + second
    determinants = first.det() * second.det()
    # A box without an area overlaps nothing.
    is_flat = (determinants <= 0) | (total.det() <= 0)
    total = torch.where(is_flat[:, None, None], torch.eye(2, dtype=total.dtype, device=total.device), total)
    mahalanobis = (difference[:, None] @ total.inverse() @ difference[:, :, None]).flatten() / 4
    spread = (total.det() / (4 * determinants.where(~is_flat, 1).sqrt())).log() / 2
    bhattacharyya = (mahalanobis + spread).clamp_min(0)
    return torch.where(is_flat, 0, 1 - (1 - (-bhattacharyya).exp()).clamp_min(0).sqrt())


def _to_covariance(boxes: Tensor) -> Tensor:
    """Return the covariance ``(..., 2, 2)`` of rotated boxes ``(..., 5)``: that of a uniform density in the box."""
    cosine, sine = boxes[..., 4].cos(), boxes[..., 4].sin()
    rotation = torch.stack([cosine, -sine, sine, cosine], -1).reshape(*cosine.shape, 2, 2)
    return rotation @ (boxes[..., 2:4] ** 2 / 12).diag_embed() @ rotation.mT
