"""Detections of YOLO models: a row of numbers for each anchor, or the best rows, as the many versions return them.

===========================================  =========================================================================
output                                       models
===========================================  =========================================================================
``(N, 4 + K + extras, A)`` and a dictionary  Ultralytics 8.4: YOLOv3 to v12 and YOLO26; detect, segment, pose, obb
``(N, 4 + K + extras, A)`` and maps          earlier versions of Ultralytics
``(N, A, 5 + K)`` and maps                   YOLOv5 and YOLOv7 of their own repositories
``(N, D, 6 + extras)``                       models without non-maximum suppression: YOLOv10, YOLO26
``(N, D, 6)``, boxes in fractions            wrappers of RT-DETR, without anything beside it
``N`` tensors ``(D, 6 + extras)``            the results of non-maximum suppression
``(N, Q, ...)`` and decoded queries          RT-DETR of Ultralytics
===========================================  =========================================================================

The same tensors without anything beside them, as a wrapper of the user may return them, are recognized by their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.hooks.structures.nested_tensors import find_tensors
from camtool.outputs.post_processing import ULTRALYTICS, ULTRALYTICS_RTDETR, YOLOV5, PostProcessing

# Pixels between the anchors of the finest of three levels. The next two have strides of 16 and 32.
_FINEST_STRIDE = 8

# Positions of these levels, as multiples of those of the coarsest.
_FINEST_TO_COARSEST = (16, 4, 1)

# Largest difference between confidences and those of a head's logits, by which the two are known to be the same. It
# allows for half precision.
_SAME_CONFIDENCE = 1e-3

# Columns of a row after selection: the corners of the box, the confidence and the class.
_BEST_COLUMNS = 6


@dataclass(frozen=True, eq=False)
class Anchors:
    """The anchors of a batch.

    Attributes:
        boxes: ``(N, A, 4)``, each ``(x0, y0, x1, y1)`` in pixels of the input.
        scores: ``(N, A, K)`` logits if the model returns them, else the confidences.
        confidences: ``(N, A, K)``.
        level_scores: What the model computes from each feature level, ``(N, ...)``, fine to coarse.
        post_processing: What the model's own post-processing does with them.
        rotated: ``(N, A, 5)``, each ``(x, y, width, height, angle)``, if the boxes are rotated.
    """

    boxes: Tensor
    scores: Tensor
    confidences: Tensor
    level_scores: Sequence[Tensor]
    post_processing: PostProcessing = ULTRALYTICS
    rotated: Tensor | None = None


def find_anchors(output: Any, class_count: int | None = None) -> Anchors | None:
    """Return the anchors in a model's output, or ``None`` if there are none.

    Args:
        output: The model's whole output.
        class_count: The number of classes, if known. Mask coefficients, keypoints or an angle may follow the classes.
    """
    table, beside = _split(output)
    if table is None:
        return None
    heads = find_heads(output)
    if heads:
        return _read_heads(table, heads)
    return _read_columns(table, beside, class_count) or _read_rows(table, beside)


def find_best_rows(output: Any) -> Sequence[Tensor] | None:
    """Return the rows ``(D, 6 + extras)`` of each image that a model selected itself; ``None`` if it selected none.

    A row has the corners of the box, the confidence and the class, see also :func:`has_relative_rows`.

    Raises:
        TargetError: Rows of a bare table have confidences and classes, but their first numbers are no corners.
    """
    if isinstance(output, (tuple, list)) and output and all(map(_are_best_rows, output)):
        return output
    table, beside = _split(output)
    if table is None or table.shape[2] < _BEST_COLUMNS:
        return None
    # With a dictionary beside it the format is certain; random weights may return boxes of any kind.
    is_certain = any(table.shape[2] != head["scores"].shape[2] for head in find_heads(output))
    if is_certain or all(map(_are_best_rows, table)):
        return [*table]
    if not beside and _has_classes(table):
        raise TargetError(
            f"the model returned a table {tuple(table.shape)} whose rows have a confidence and a class, but do not "
            "begin with the corners of a box; wrap the model so that it returns rows (x0, y0, x1, y1, confidence, "
            "class) with x0 <= x1 and y0 <= y1, all in pixels of the input or all as fractions of it."
        )
    return None


def has_relative_rows(output: Any) -> bool:
    """Return True if the rows of :func:`find_best_rows` have boxes in fractions of the input, as of RT-DETR's wrappers.

    Boxes whose corners reach beyond the image by up to half of it are fractions, too.
    """
    rows = find_best_rows(output)
    if rows is None or find_heads(output):
        return False
    return any(map(len, rows)) and all(_are_fractions(image_rows[:, :4].detach()) for image_rows in rows)


def find_decoded_queries(output: Any) -> tuple[Tensor, Tensor, PostProcessing] | None:
    """Return the boxes ``(N, Q, 4)`` and the logits ``(N, Q, K)`` of Ultralytics' RT-DETR, and what becomes of them.

    Boxes are centers, widths and heights, as fractions of the input. The result is ``None`` for other outputs.
    """
    table, beside = _split(output)
    tensors = find_tensors(beside)[:2]
    if table is None or [tensor.ndim for tensor in tensors] != [4, 4]:
        return None
    boxes, scores = tensors  # (decoder layers, N, Q, 4) and (decoder layers, N, Q, K)
    # Earlier versions return a row for each query with all its classes, later ones the best pairs of query and class.
    is_by_query = table.shape[1:] == (boxes.shape[2], 4 + scores.shape[3])
    is_match = boxes.shape[1:3] == scores.shape[1:3] and boxes.shape[3] == 4 and len(table) == boxes.shape[1]
    if not is_match or not (is_by_query or table.shape[2] == _BEST_COLUMNS):
        return None
    return boxes[-1], scores[-1], replace(ULTRALYTICS_RTDETR, has_many_classes=not is_by_query)


def _split(output: Any) -> tuple[Tensor | None, Sequence[Any]]:
    """Return the table ``(N, rows, columns)`` that an output begins with, ``None`` if there is none, and the rest."""
    beside: Sequence[Any] = ()
    if isinstance(output, (tuple, list)) and output:
        output, *beside = output
        if isinstance(output, (tuple, list)) and output:  # models that segment return masks with the table
            output = output[0]
    is_table = isinstance(output, Tensor) and output.ndim == 3 and output.is_floating_point() and output.numel() > 0
    return (output if is_table else None), beside


# --------------------------------------------------------------------------------------- the dictionary of Ultralytics


def find_heads(output: Any) -> list[Mapping[str, Any]]:
    """Return what heads of Ultralytics computed: logits ``scores`` ``(N, K, A)`` and feature maps ``feats``.

    Models that need no non-maximum suppression have two heads. The rows that they select are those of ``one2one``.
    """
    mappings = [part for part in _split(output)[1] if isinstance(part, Mapping)]
    heads = [mapping.get(name) for mapping in mappings for name in ("one2one", "one2many")] + mappings
    return [
        head
        for head in heads
        if isinstance(head, Mapping)
        and isinstance(head.get("scores"), Tensor)
        and isinstance(head.get("feats"), (list, tuple))
    ]


def _read_heads(table: Tensor, heads: Sequence[Mapping[str, Any]]) -> Anchors | None:
    """Read a table ``(N, 4 + K + extras, A)`` with the logits of the head that it was computed by."""
    anchors = None
    for head in heads:
        logits, classes = head["scores"], head["scores"].shape[1]
        confidences = table[:, 4 : 4 + classes]
        if confidences.shape != logits.shape:
            continue
        is_source = torch.allclose(confidences.detach(), logits.detach().sigmoid(), atol=_SAME_CONFIDENCE)
        if is_source or anchors is None:
            # Confidences that a wrapper changed, e.g. by a temperature, have no logits.
            scores = logits.mT if is_source else confidences.mT
            anchors = _build_anchors(table, scores, confidences.mT, _split_head(head), has_angle="angle" in head)
        if is_source:
            break
    return anchors


def _build_anchors(
    table: Tensor, scores: Tensor, confidences: Tensor, levels: Sequence[Tensor], *, has_angle: bool
) -> Anchors:
    """Return the anchors of a table ``(N, 4 + K + extras, A)``, whose last row may be the angle of rotated boxes."""
    if not has_angle:
        return Anchors(to_corners(table[:, :4].mT), scores, confidences, levels)
    rotated = torch.cat([table[:, :4], table[:, -1:]], 1).mT
    return Anchors(to_corners(table[:, :4].mT, table[:, -1]), scores, confidences, levels, rotated=rotated)


def _split_head(head: Mapping[str, Any]) -> Sequence[Tensor]:
    """Return a head's logits of each feature level, ``(N, K, positions)``."""
    sizes = [level.shape[2:].numel() for level in head["feats"]]
    return list(head["scores"].split(sizes, 2))


def find_level_scores(output: Any) -> Sequence[Tensor]:
    """Return what a YOLO model computes from each feature level, ``(N, ...)``; nothing for other models.

    A layer that serves every detection influences all of them. Of rows that the model selected, which do not tell
    their level, these are the confidences of small to large boxes.
    """
    anchors, rows = find_anchors(output), find_best_rows(output)
    if anchors is not None:
        return anchors.level_scores
    if rows is None:
        return ()
    heads = find_heads(output)
    return _split_head(heads[0]) if heads else _pick_sizes(rows[0])


def _pick_sizes(rows: Tensor) -> Sequence[Tensor]:
    """Return the confidences ``(1, 1)`` of some rows, from the smallest box to the largest."""
    width, height = (rows[:, 2:4] - rows[:, :2]).detach().unbind(1)
    order = (width * height).argsort()
    picked = order[torch.linspace(0, len(order) - 1, min(len(order), 8), device=order.device).long()]
    return [rows[row, 4].reshape(1, 1) for row in picked]


# ------------------------------------------------------------------------------------------------ maps beside a table


def _read_columns(table: Tensor, beside: Sequence[Any], class_count: int | None) -> Anchors | None:
    """Read a table ``(N, 4 + K + extras, A)``, in which each anchor is a column."""
    if table.shape[1] <= 4:
        return None
    levels: Sequence[Tensor] = _find_maps(table, beside)
    if not levels and not beside and _has_values_of_anchors(table.mT, 1):
        levels = _split_levels(table[:, 4:], 2)
    if not levels:
        return None
    confidences = table[:, 4 : None if class_count is None else 4 + class_count].mT
    # Masks and keypoints add several numbers, a rotated box adds one.
    has_angle = table.shape[1] - 4 - confidences.shape[2] == 1
    return _build_anchors(table, confidences, confidences, levels, has_angle=has_angle)


def _find_maps(table: Tensor, beside: Sequence[Any]) -> list[Tensor]:
    """Return the feature maps ``(N, C, h, w)``, fine to coarse, whose positions are the columns of a table.

    The table's shape alone could mean anything, but only anchors are as many as the positions of all maps together.
    """
    maps = [tensor for tensor in find_tensors(beside) if tensor.ndim == 4 and len(tensor) == len(table)]
    # A set, as several maps may have one size, e.g. those of boxes and of classes: their positions count once.
    positions = sum(height * width for height, width in {tuple(feature_map.shape[2:]) for feature_map in maps})
    return maps if table.shape[2] == positions > 0 else []


def _read_rows(table: Tensor, beside: Sequence[Any]) -> Anchors | None:
    """Read a table ``(N, A, 5 + K)``, in which each anchor is a row: box, objectness, and a share for each class."""
    if table.shape[2] <= 5:
        return None
    maps = [tensor for tensor in find_tensors(beside) if tensor.ndim == 5 and tensor.shape[-1] == table.shape[2]]
    levels: Sequence[Tensor] = maps if sum(level.shape[1:4].numel() for level in maps) == table.shape[1] else ()
    if not levels and not beside and _has_values_of_anchors(table, 3):
        levels = _split_levels(table[..., 4:], 1)
    if not levels:
        return None
    confidences = table[..., 4:5] * table[..., 5:]
    return Anchors(to_corners(table[..., :4]), confidences, confidences, levels, YOLOV5)


# ------------------------------------------------------------------------------------------ a table without anything


def _has_values_of_anchors(rows: Tensor, anchors_per_position: int) -> bool:
    """Check that rows ``(N, A, columns)`` can only be anchors: their number, boxes in pixels, and confidences."""
    period = anchors_per_position * sum(_FINEST_TO_COARSEST)
    if rows.shape[1] % period:
        return False
    boxes, shares = rows.detach()[..., :4], rows.detach()[..., 4:]
    are_pixels = bool((boxes[..., 2:] >= 0).all()) and bool(boxes.amax() > _FINEST_STRIDE)
    return are_pixels and bool(((shares >= 0) & (shares <= 1)).all())


def _split_levels(values: Tensor, axis: int) -> Sequence[Tensor]:
    """Return the parts of a table that belong to the three levels."""
    unit = values.shape[axis] // sum(_FINEST_TO_COARSEST)
    return list(values.split([unit * share for share in _FINEST_TO_COARSEST], axis))


def _are_best_rows(rows: Any) -> bool:
    """Check that rows ``(D, 6 + extras)`` can only be detections: ordered corners, confidences and whole classes."""
    if not isinstance(rows, Tensor) or rows.ndim != 2 or rows.shape[1] != _BEST_COLUMNS:
        return False
    x0, y0, x1, y1, confidences, classes = rows.detach().unbind(1)
    are_boxes = bool(((x0 <= x1) & (y0 <= y1)).all()) and (not len(rows) or _have_known_unit(rows.detach()))
    return are_boxes and _are_whole(classes) and bool(((confidences >= 0) & (confidences <= 1)).all())


def _have_known_unit(rows: Tensor) -> bool:
    """Check that boxes are in pixels, or beyond doubt in fractions: next to whole classes, nothing else is whole."""
    boxes = rows[:, :4]
    return bool(boxes.amax() > _BEYOND) or (_are_fractions(boxes) and _has_classes(rows))


# Boxes with a corner beyond this are in pixels.
_BEYOND = 2


def _are_fractions(boxes: Tensor) -> bool:
    """Check that boxes lie in the image, or reach beyond it by up to half of it."""
    return bool(((boxes >= -0.5) & (boxes <= 1.5)).all())


def _has_classes(table: Tensor) -> bool:
    """Check that the columns of ``(..., 6)`` before the last two are fractional, then come a confidence and a class."""
    values = table.detach()
    if values.shape[-1] != _BEST_COLUMNS or not values.numel():
        return False
    boxes, confidences, classes = values[..., :4], values[..., 4], values[..., 5]
    are_confidences = bool(((confidences >= 0) & (confidences <= 1)).all())
    return are_confidences and _are_whole(classes) and bool(((boxes % 1 != 0).any(-1) & (confidences % 1 != 0)).any())


def _are_whole(values: Tensor) -> bool:
    """Check that values are indices of classes."""
    return bool(((values >= 0) & (values == values.round())).all())


# --------------------------------------------------------------------------------------------------------------- boxes


def to_corners(boxes: Tensor, angle: Tensor | None = None) -> Tensor:
    """Convert boxes ``(..., 4)`` from center, width and height to corners.

    Args:
        boxes: The boxes.
        angle: ``(...)`` in radians, for boxes that are rotated: the corners are those of the upright box around each.
    """
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    if angle is not None:
        cosine, sine = angle.cos().abs(), angle.sin().abs()
        width, height = half.unbind(-1)
        half = torch.stack([width * cosine + height * sine, width * sine + height * cosine], -1)
    return torch.cat([center - half, center + half], -1)
