"""Detections in a model's output: boxes, each with a class and a confidence.

These outputs are supported: torchvision's lists of dictionaries; the queries of DETR and its relatives (``logits`` and
``pred_boxes``), also with a logit for each token of a text, see :mod:`camtool.outputs.phrases`; the anchors of YOLO
models, see :mod:`camtool.outputs.anchors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from camtool.arguments.explain_arguments import check_class_index
from camtool.errors import TargetError
from camtool.hooks.structures.nested_tensors import get_named_items
from camtool.outputs.anchors import (
    Anchors,
    find_anchors,
    find_best_rows,
    find_decoded_queries,
    find_heads,
    has_relative_rows,
    to_corners,
)
from camtool.outputs.phrases import Phrase, PhraseScores, find_phrase_scores
from camtool.outputs.post_processing import (
    DETR,
    GROUNDING_DINO,
    OWL_VIT,
    SIGMOID_DETR,
    ULTRALYTICS_SELECTED,
    PostProcessing,
    compute_box_iou,
    compute_rotated_iou,
    suppress_overlaps,
)


@dataclass(frozen=True, eq=False)
class Detections:
    """The detections in one image, or the candidates of which the model's own post-processing reports some.

    Attributes:
        boxes: ``(D, 4)``, each ``(x0, y0, x1, y1)``.
        scores: ``(D,)``, one per box; or ``(D, K)``, one per box and class. They are confidences if the model returns
            confidences, else logits.
        confidences: The same as probabilities.
        classes: ``(D,)``, the class of each box; ``None`` if there is a score per box and class.
        is_relative: True if boxes are fractions of the input's width and height, False if they are in pixels.
        class_count: The number of classes, if there is a score per box and class.
        phrases: If the classes are phrases of a text, their tokens.
        is_no_object_assumed: True if it is not known whether the last logit of each query is "no object", see
            :func:`describe_assumption`.
        post_processing: What follows in the model's own library; ``None`` if these are the detections that it reports.
        rotated: ``(D, 5)``, each ``(x, y, width, height, angle)`` in radians, if the boxes are rotated.
    """

    boxes: Tensor
    scores: Tensor
    confidences: Tensor
    classes: Tensor | None
    is_relative: bool = False
    class_count: int | None = None
    phrases: tuple[Phrase, ...] | None = None
    is_no_object_assumed: bool = False
    post_processing: PostProcessing | None = None
    rotated: Tensor | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.boxes.device

    def select_class(self, index: int) -> Detections:
        """Return the detections of one class, with ``scores`` of shape ``(D,)``.

        Raises:
            TargetError: The model does not have the class.
        """
        if self.classes is None:
            check_class_index(index, self.scores.shape[1])
            classes = torch.full_like(self.boxes[:, 0], index, dtype=torch.long)
            return self._select_scores(lambda values: values[:, index], classes=classes)
        return self._select_boxes(self.classes == index)

    def pick_best_classes(self) -> Detections:
        """Return every box with its most confident class, with ``scores`` of shape ``(D,)``."""
        if self.classes is not None:
            return self
        classes = self.scores.argmax(1)  # logits differ where confidences are both rounded to 1
        rows = torch.arange(len(self), device=classes.device)
        return self._select_scores(lambda values: values[rows, classes], classes=classes)

    def sort_by_confidence(self) -> Detections:
        """Return every box with its most confident class, the most confident box first."""
        best = self.pick_best_classes()
        return best._select_boxes(best.confidences.argsort(descending=True, stable=True))

    def select_reported(self, confidence: float | None = None) -> Detections:
        """Return what the model's own post-processing reports, the most confident first, ``scores`` ``(D,)``.

        Args:
            confidence: A threshold instead of the model's own. It cannot bring back what the model itself has removed.
        """
        rule = self.post_processing
        if rule is not None and rule.has_many_classes and self.classes is None:
            reported = self._pick_best_pairs(rule.limit or len(self))
        else:
            reported = self.sort_by_confidence()
        threshold = self.find_threshold(confidence)
        if threshold is not None:
            reported = reported._select_boxes(reported.confidences > threshold)
        if rule is not None and rule.iou_threshold is not None:
            assert reported.classes is not None
            kept = suppress_overlaps(reported.boxes, reported.rotated, reported.classes, rule.iou_threshold, rule.limit)
            reported = reported._select_boxes(torch.tensor(kept, dtype=torch.long, device=reported.device))
        return reported

    def find_threshold(self, confidence: float | None) -> float | None:
        """Return the threshold above which candidates are reported: ``confidence``, else the model's own, if any."""
        rule = self.post_processing
        return rule.threshold if confidence is None and rule is not None else confidence

    def compute_iou(self, box: Sequence[float], rotated: Sequence[float] | None = None) -> Tensor:
        """Return the intersection over union ``(D,)`` of each box with a given one, of rotated boxes if both are."""
        if self.rotated is not None and rotated is not None:
            boxes = self.rotated.detach().cpu()
            return compute_rotated_iou(boxes, boxes.new_tensor(rotated)).to(self.boxes)
        boxes = self.boxes.detach()
        return compute_box_iou(boxes, boxes.new_tensor(box))

    def compute_lowest_score(self) -> Tensor:
        """Return the score ``()`` of a missing box, on the graph: a confidence of 0, or the lowest of the logits."""
        if self.scores is self.confidences or not self.scores.numel():
            return self.scores.sum() * 0  # the sum keeps the graph, so that a gradient exists
        return self.scores.min()

    def _select_boxes(self, which: Tensor) -> Detections:
        """Return some of the boxes, given by booleans or indices."""
        by_box = {"boxes": self.boxes, "classes": self.classes, "rotated": self.rotated}
        others = {name: values[which] for name, values in by_box.items() if values is not None}
        return self._select_scores(lambda values: values[which], **others)

    def _pick_best_pairs(self, count: int) -> Detections:
        """Return the most confident pairs of a box and a class."""
        order = self.confidences.flatten().argsort(descending=True, stable=True)[:count]
        width = self.confidences.shape[1]
        return self._select_scores(
            lambda values: values.flatten()[order], boxes=self.boxes[order // width], classes=order % width
        )

    def _select_scores(self, select: Callable[[Tensor], Tensor], **others: Tensor) -> Detections:
        """Select from the scores and the confidences, and replace other attributes."""
        confidences = select(self.confidences)
        # compute_lowest_score compares the two by identity, so one tensor must stay one tensor.
        scores = confidences if self.scores is self.confidences else select(self.scores)
        return replace(self, scores=scores, confidences=confidences, **others)  # type: ignore[arg-type]


def find_detections(output: Any, class_count: int | None = None) -> list[Detections] | None:
    """Return the detections of each image, or ``None`` if the output is not that of a detector.

    Args:
        output: The model's whole output.
        class_count: The number of classes, if known. With queries it shows whether the last logit is "no object", so
            that a softmax gives the confidences. If it is not known, the last logit counts as "no object", and the
            detections say that this is assumed.
    """
    if isinstance(output, Tensor):
        return _find_yolo_detections(output, class_count) if output.ndim == 3 else None
    dicts = find_detection_dicts(output)
    if dicts is not None:
        return [Detections(answer["boxes"], answer["scores"], answer["scores"], answer["labels"]) for answer in dicts]
    queries = _find_queries(output)
    if queries is not None:
        return _read_all_queries(*queries, get_named_items(output), class_count)
    return _find_yolo_detections(output, class_count)


def count_queries(output: Any) -> int:
    """Return the number of queries of a detector or segmenter like DETR, each for one object; 0 for other models."""
    named = get_named_items(output)
    scores = named.get("class_queries_logits", named.get("logits", named.get("pred_logits")))
    shapes = named.get("masks_queries_logits", named.get("pred_boxes"))
    if isinstance(scores, Tensor) and isinstance(shapes, Tensor) and scores.ndim == 3:
        return scores.shape[1] if scores.shape[:2] == shapes.shape[:2] else 0
    decoded = find_decoded_queries(output)
    if decoded is not None:
        return decoded[0].shape[1]
    return output.shape[1] if isinstance(output, Tensor) and has_relative_rows(output) else 0


def count_query_logits(output: Any) -> int | None:
    """Return the number of logits of each query; ``None`` if the output is not that of a detector like DETR."""
    queries = _find_queries(output)
    return None if queries is None else queries[0].shape[2]


def describe_assumption(class_count: int) -> str:
    """Return a sentence for :attr:`Detections.is_no_object_assumed`.

    Args:
        class_count: The number of classes beside "no object".
    """
    width = class_count + 1
    return (
        f'The model does not say how many classes it has, so the last of its {width} logits was taken for "no object" '
        f"and the confidence is a softmax: set model.num_classes = {width} if all are classes with a sigmoid each, or "
        f"{class_count} if this is right."
    )


class QueryTokens(NamedTuple):
    """Numbers of queries that a model may put before the tokens of the image, and behind them."""

    before: int = 0
    behind: int = 0


def find_query_tokens(output: Any) -> QueryTokens:
    """Return where the queries of a model are among the tokens of the image, if it appends them to these.

    Segmenters (EoMT) put them first, detectors (YOLOS) last.
    """
    queries = count_queries(output)
    has_masks = "masks_queries_logits" in get_named_items(output)
    return QueryTokens(before=queries) if has_masks else QueryTokens(behind=queries)


# ------------------------------------------------------------------------------- dictionaries, as in torchvision


def find_detection_dicts(output: Any) -> Sequence[Mapping[str, Tensor]] | None:
    """Return the dictionaries of boxes, labels and scores, one per image, or ``None`` if there are none.

    TorchScript models of torchvision return them in a tuple, after the losses.
    """
    # The tuple may itself be the list of dictionaries, so it is a candidate as well as its items.
    candidates = [output, *output] if isinstance(output, tuple) else [output]
    for candidate in candidates:
        if isinstance(candidate, (list, tuple)) and candidate and all(map(_is_detection_dict, candidate)):
            return candidate
    return None


def _is_detection_dict(item: Any) -> bool:
    """Return True for a dictionary of boxes, labels and scores."""
    return isinstance(item, Mapping) and {"boxes", "labels", "scores"} <= set(item)


# ------------------------------------------------------------------------------------------- queries, as in DETR


def _find_queries(output: Any) -> tuple[Tensor, Tensor] | None:
    """Return the scores ``(N, Q, K)`` and the boxes ``(N, Q, 4)`` of the queries; ``None`` if there are none."""
    if isinstance(output, Tensor):
        return None
    named = get_named_items(output)
    boxes, scores = named.get("pred_boxes"), named.get("logits", named.get("pred_logits"))
    if not isinstance(boxes, Tensor) or not isinstance(scores, Tensor) or not scores.ndim == boxes.ndim == 3:
        return None
    return (scores, boxes) if scores.shape[:2] == boxes.shape[:2] and boxes.shape[2] == 4 else None


def _read_all_queries(
    scores: Tensor, boxes: Tensor, named: Mapping[str, Any], class_count: int | None
) -> list[Detections]:
    """Return the detections of each image, with or without "no object"."""
    phrases = find_phrase_scores(named, scores)
    if phrases is not None:
        return list(map(_read_phrases, boxes, phrases))
    is_open = "text_embeds" in named  # OWL-ViT compares each query with each text
    width = scores.shape[2]
    # A single logit leaves no class next to "no object".
    if width in (1, class_count) or is_open:
        rule = OWL_VIT if is_open else SIGMOID_DETR
        return [_read_queries(*per_image, rule) for per_image in zip(boxes, scores, scores.sigmoid(), strict=True)]
    pairs = zip(boxes, scores[..., :-1], scores.softmax(2)[..., :-1], strict=True)
    return [replace(_read_queries(*image, DETR), is_no_object_assumed=class_count != width - 1) for image in pairs]


def _read_queries(boxes: Tensor, scores: Tensor, confidences: Tensor, rule: PostProcessing) -> Detections:
    """Return the detections in one image's queries."""
    of_all = Detections(to_corners(boxes), scores, confidences, None)
    return replace(of_all, is_relative=True, class_count=scores.shape[1], post_processing=rule)


def _read_phrases(boxes: Tensor, scores: PhraseScores) -> Detections:
    """Return the detections in one image's queries, each with a logit for each phrase of a text.

    Raises:
        TargetError: The text has no phrase.
    """
    if not scores.phrases:
        raise TargetError("the prompt names nothing to look for; pass one with phrases, e.g. 'a cat. a dog.'.")
    return replace(_read_queries(boxes, scores.logits, scores.logits.sigmoid(), GROUNDING_DINO), phrases=scores.phrases)


# ----------------------------------------------------------------------------------------- anchors and rows, as in YOLO


def _find_yolo_detections(output: Any, class_count: int | None) -> list[Detections] | None:
    """Return the detections of each image of a YOLO model, or ``None`` for other models."""
    queries = find_decoded_queries(output)
    if queries is not None:
        boxes, logits, rule = queries
        return [_read_queries(*per_image, rule) for per_image in zip(boxes, logits, logits.sigmoid(), strict=True)]
    anchors = find_anchors(output, class_count)
    if anchors is not None:
        return [_read_anchors(anchors, image) for image in range(len(anchors.boxes))]
    rows = find_best_rows(output)
    if rows is None:
        return None
    # A head of Ultralytics returns its best rows, however low their confidence. Other rows come from the user's module.
    heads, is_relative = find_heads(output), has_relative_rows(output)
    selected = ULTRALYTICS_SELECTED if heads else None
    by_image = [_read_rows(image_rows, has_angle=any("angle" in head for head in heads)) for image_rows in rows]
    return [replace(detections, is_relative=is_relative, post_processing=selected) for detections in by_image]


def _read_anchors(anchors: Anchors, image: int) -> Detections:
    """Return the detections in one image's anchors."""
    boxes, confidences = anchors.boxes[image], anchors.confidences[image]
    scores = confidences if anchors.scores is anchors.confidences else anchors.scores[image]
    rotated = None if anchors.rotated is None else anchors.rotated[image]
    count, rule = confidences.shape[1], anchors.post_processing
    return Detections(boxes, scores, confidences, None, class_count=count, post_processing=rule, rotated=rotated)


def _read_rows(rows: Tensor, *, has_angle: bool) -> Detections:
    """Return the detections in one image's rows ``(D, 6 + extras)``; boxes with an angle begin with their center."""
    confidences, classes = rows[:, 4], rows[:, 5].detach().long()
    boxes, rotated = rows[:, :4], None
    if has_angle:
        boxes, rotated = to_corners(boxes, rows[:, -1]), torch.cat([boxes, rows[:, -1:]], 1)
    return Detections(boxes, confidences, confidences, classes, rotated=rotated)
