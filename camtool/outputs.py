"""What a model returned, whatever its structure: scores of classes, planes of such scores, or detections.

This is the one room that reads outputs. Three kinds are told apart:

* **scores** ``(N, K)``, of classes, of labels that do not exclude one another, or of a regression's values;
* **planes** ``(N, K, *size)``, a score of each class at each place: semantic segmentation;
* **detections**, boxes with a class and a confidence each: torchvision's lists of dictionaries, the queries of DETR and
  its kin (``logits`` and ``pred_boxes``), the anchors of Ultralytics' models ``(N, 4 + K, anchors)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from camtool.errors import TargetError, format_count
from camtool.structures import by_name, located_tensors, map_tensors, tensors_in

__all__ = [
    "Answer",
    "Detections",
    "Link",
    "answers",
    "check_class",
    "class_count",
    "class_scores",
    "could_be_probabilities",
    "count",
    "describe_choice",
    "detections",
    "embedding",
    "image_of",
    "levels",
    "link_of",
    "logits",
    "of_images",
    "probabilities",
    "query_count",
    "top_score",
]

Link: TypeAlias = Literal["softmax", "sigmoid", "identity"]
"""How scores become probabilities: classes exclude one another, each label stands for itself, or they are some."""

_SCORES = ("logits", "logits_per_image", "out", "pred_logits", "image_embeds", "pooler_output")
"""The names under which models return their scores, or the picture's embedding, among other things."""

_EMBEDDINGS = ("image_embeds", "pooler_output", "last_hidden_state")
"""Those that are no scores."""

_CERTAIN = frozenset({"last_hidden_state", "masks_queries_logits"})
"""Names in outputs of Hugging Face's models that tell where the scores, or features in their place, are."""

_MOST_NAMED = 4
"""The most tensors of an output that a message names."""

_ROUNDING = 1e-5
"""How far from 1 probabilities in single precision may sum up to; a thousand of them stay well below."""

_SIGMOID = "SigmoidBackward0"
_VIEWS = frozenset(
    ["Squeeze", "Unsqueeze", "View", "UnsafeView", "ReshapeAlias", "Select", "Slice", "T", "Clone", "ToCopy"]
)
"""Nodes of a graph that hand a tensor's values on as they are; those of an operation's other forms end in 1, 2, ..."""


# --------------------------------------------------------------------------------------------------- detections


@dataclass(frozen=True, eq=False)
class Detections:
    """What a detector found in one image.

    Attributes:
        boxes: ``(D, 4)``, each ``(x0, y0, x1, y1)``.
        scores: ``(D,)``, one a box; or ``(D, K)``, of each class at each box. A confidence where the model returns
            confidences, else a logit.
        confidences: The same as probabilities.
        classes: ``(D,)``, each box' class; ``None`` where ``scores`` are of each class.
        relative: The boxes are in parts of the input's width and height, rather than in its pixels.
        known: How many classes there are, where each box has a score of each.
    """

    boxes: Tensor
    scores: Tensor
    confidences: Tensor
    classes: Tensor | None
    relative: bool = False
    known: int | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.boxes.device

    def of_class(self, index: int) -> Detections:
        """Those of one class: ``scores`` are ``(D,)``.

        Raises:
            TargetError: The model has no such class.
        """
        if self.classes is None:
            check_class(index, self.scores.shape[1])
            classes = torch.full_like(self.boxes[:, 0], index, dtype=torch.long)
            return self._scored(lambda values: values[:, index], classes=classes)
        return self._some(self.classes == index, self.classes)

    def each_with_its_class(self) -> Detections:
        """Every box with the class that it is most confidently of: ``scores`` are ``(D,)``."""
        if self.classes is not None:
            return self
        classes = self.confidences.argmax(1)
        rows = torch.arange(len(self), device=classes.device)
        return self._scored(lambda values: values[rows, classes], classes=classes)

    def surest_first(self) -> Detections:
        """Every box with its class, the most confident first."""
        each = self.each_with_its_class()
        assert each.classes is not None
        return each._some(each.confidences.argsort(descending=True, stable=True), each.classes)

    def overlap(self, box: Sequence[float]) -> Tensor:
        """Each box' intersection over union with another, ``(D,)``; an empty box is at least at its own place."""
        boxes, other = self.boxes.detach(), self.boxes.new_tensor(box)
        shared = (torch.minimum(boxes[:, 2:], other[2:]) - torch.maximum(boxes[:, :2], other[:2])).clamp_min(0).prod(1)
        total = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (other[2:] - other[:2]).prod() - shared
        return torch.where((boxes == other).all(1), 1, shared / total.where(total > 0, 1))

    def least_score(self) -> Tensor:
        """What a box scores that is not there, on the graph: no confidence at all, or the lowest of the logits."""
        if self.scores is self.confidences or not self.scores.numel():
            return self.scores.sum() * 0
        return self.scores.min()

    def _some(self, which: Tensor, classes: Tensor) -> Detections:
        return self._scored(lambda values: values[which], boxes=self.boxes[which], classes=classes[which])

    def _scored(self, pick: Callable[[Tensor], Tensor], **others: Tensor) -> Detections:
        """With some of the scores, and of the confidences, which may be the same and then stay so."""
        confidences = pick(self.confidences)
        scores = confidences if self.scores is self.confidences else pick(self.scores)
        return replace(self, scores=scores, confidences=confidences, **others)  # type: ignore[arg-type]


def detections(output: Any, classes: int | None = None) -> list[Detections] | None:
    """What a detector found, image by image; ``None`` where the output is no detector's.

    Args:
        output: The model's whole output.
        classes: How many classes the model knows, where that is known. With queries it tells whether their logits end
            in one for "no object", and so exclude one another; where it is not known, they are taken to.
    """
    if isinstance(output, Tensor):
        return None
    listed = _listed(output)
    if listed is not None:
        return [_as_listed(each) for each in listed]
    named = by_name(output)
    boxes, scores = named.get("pred_boxes"), named.get("logits", named.get("pred_logits"))
    if isinstance(boxes, Tensor) and isinstance(scores, Tensor) and _is_queries(scores, boxes):
        if "text_embeds" in named:  # OWL-ViT compares each query with each text, and knows no "no object"
            classes = scores.shape[2]
        return list(map(_as_query, boxes, *_without_nothing(scores, classes)))
    anchors = _anchors(output)
    return None if anchors is None else [_as_anchors(each, classes) for each in anchors]


def _listed(output: Any) -> Sequence[Mapping[str, Tensor]] | None:
    """The dictionaries, one an image, of boxes, their labels and scores; alone or, as in scripts, behind the losses."""
    candidates = [output, *output] if isinstance(output, tuple) else [output]
    for candidate in candidates:
        if isinstance(candidate, (list, tuple)) and candidate and all(map(_is_found, candidate)):
            return candidate
    return None


def _is_found(item: Any) -> bool:
    return isinstance(item, Mapping) and {"boxes", "labels", "scores"} <= set(item)


def _as_listed(found: Mapping[str, Tensor]) -> Detections:
    return Detections(found["boxes"], found["scores"], found["scores"], found["labels"])


def _is_queries(scores: Tensor, boxes: Tensor) -> bool:
    """Whether these are ``(N, Q, K)`` and ``(N, Q, 4)``."""
    return scores.ndim == boxes.ndim == 3 and scores.shape[:2] == boxes.shape[:2] and boxes.shape[2] == 4


def _without_nothing(scores: Tensor, classes: int | None) -> tuple[Tensor, Tensor]:
    """The classes' logits and their probabilities, ``(N, Q, K)`` both, without those of "no object"."""
    if scores.shape[2] in (1, classes):  # a single one leaves no class beside "no object"
        return scores, scores.sigmoid()
    return scores[..., :-1], scores.softmax(2)[..., :-1]


def query_count(output: Any) -> int:
    """How many queries, each for one thing, a detector or segmenter of DETR's kind has; 0 for others."""
    named = by_name(output)
    scores = named.get("class_queries_logits", named.get("logits", named.get("pred_logits")))
    with_each = named.get("masks_queries_logits", named.get("pred_boxes"))
    is_queried = isinstance(scores, Tensor) and isinstance(with_each, Tensor) and scores.ndim == 3
    return scores.shape[1] if is_queried and scores.shape[:2] == with_each.shape[:2] else 0


def _as_query(boxes: Tensor, scores: Tensor, confidences: Tensor) -> Detections:
    return Detections(_corners(boxes), scores, confidences, None, relative=True, known=scores.shape[1])


def _anchors(output: Any) -> Tensor | None:
    """A tensor ``(N, 4 + K, anchors)`` that stands before the maps which it was read from, as Ultralytics' models do.

    So many numbers could mean anything; that there are as many anchors as the maps have positions, all together, could
    not.
    """
    maps = levels(output)
    return output[0] if maps else None


def levels(output: Any) -> list[Tensor]:
    """The maps, fine to coarse, that a tensor of anchors before them was read from; none in another kind of output."""
    if not isinstance(output, (tuple, list)) or len(output) < 2 or not isinstance(output[0], Tensor):
        return []
    anchors = output[0]
    maps = [each for each in tensors_in(output[1:]) if each.ndim == 4 and len(each) == len(anchors)]
    positions = sum(height * width for height, width in {tuple(each.shape[2:]) for each in maps})
    is_read_from_them = anchors.ndim == 3 and anchors.shape[1] > 4 and anchors.shape[2] == positions > 0
    return maps if is_read_from_them else []


def _as_anchors(found: Tensor, classes: int | None) -> Detections:
    """One image's ``(4 + K, anchors)``; behind the classes there may be more, coefficients of masks say."""
    confidences = found[4 : None if classes is None else 4 + classes].T
    return Detections(_corners(found[:4].T), confidences, confidences, None, known=confidences.shape[1])


def _corners(boxes: Tensor) -> Tensor:
    """Boxes ``(D, 4)`` given as centre, width and height by their corners."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return torch.cat([centre - half, centre + half], 1)


# ------------------------------------------------------------------------------------------------------- scores


def logits(output: Any) -> Tensor:
    """The tensor of scores in a model's output: itself, what is named ``logits`` or ``out``, or the first one inside.

    Names are those of mappings, data classes and named tuples. A single number, as a loss is, is no score. Planes of
    one place are scores, as those of a classifier that is convolutional throughout.

    Returns:
        ``(N, K)`` or ``(N, K, *size)``.

    Raises:
        TargetError: There is none, or the model is a detector.
    """
    if detections(output) is not None:
        raise TargetError(
            "the model returned detections, which have no one score a class; explain one of them: by None, a class, "
            "Detection(n) or Box(xyxy)."
        )
    named = by_name(output)
    if {"class_queries_logits", "masks_queries_logits"} <= named.keys():
        return _planes_of_queries(named["class_queries_logits"], named["masks_queries_logits"])
    inside = named.get(_name_of_scores(named), output)
    tensor = next((each for each in tensors_in(inside) if each.is_floating_point() and each.ndim), None)
    if tensor is None:
        raise TargetError(
            f"the model returned {type(output).__name__} without a tensor of scores (N, K); wrap the model so that it "
            "returns one."
        )
    if tensor.ndim == 1:
        return tensor[:, None]
    is_one_place = tensor.ndim > 2 and tensor.shape[2:].numel() == 1
    return tensor.flatten(1) if is_one_place else tensor


def _name_of_scores(named: Mapping[str, Any]) -> str:
    """Under which name the scores are; empty where none of the names is known."""
    return next((key for key in _SCORES if named.get(key) is not None), "")


def describe_choice(output: Any) -> str | None:
    """Return a sentence on which of several tensors :func:`logits` takes, None where the choice is certain.

    It is certain where there is one, where a name says that it holds the scores, and for detectors.
    """
    if isinstance(output, Tensor) or detections(output) is not None:
        return None
    named = by_name(output)
    if _name_of_scores(named) or not _CERTAIN.isdisjoint(named):
        return None
    places = [place for place, each in located_tensors(output) if each.is_floating_point() and each.ndim]
    if len(places) < 2:
        return None
    first, *others = places
    more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    return (
        f"The model returned several tensors, and {first} was taken for the scores instead of "
        f"{', '.join(others[:_MOST_NAMED])}{more}; to choose, pass a function to a number, e.g. "
        f"target_class=lambda output: {others[0]}.max()."
    )


def embedding(output: Any) -> Tensor:
    """The pictures' embeddings, ``(N, D)``: also where a model compares them with texts' and returns both.

    Raises:
        TargetError: There is no tensor that could be one.
    """
    found = by_name(output).get("image_embeds")
    return found if isinstance(found, Tensor) else logits(output)


def _planes_of_queries(classes: Tensor, masks: Tensor) -> Tensor:
    """The planes ``(N, K, h, w)`` of a segmenter with a class and a mask for each query: MaskFormer, arXiv 2107.06278.

    A class counts at a place as much as the queries of that class cover it. The logarithm of that is what softmax makes
    the class' share of it.
    """
    shares = torch.einsum("nqk,nqhw->nkhw", classes.softmax(2)[..., :-1], masks.sigmoid())
    return shares.clamp_min(torch.finfo(shares.dtype).tiny).log()


def class_scores(output: Any, of: Link = "softmax") -> Tensor:
    """The score of each class, ``(N, K, *size)``.

    A single logit ``z`` is that of two classes, ``-z`` for 0 and ``z`` for 1; a single probability ``p`` is ``1 - p``
    and ``p``.
    """
    values = logits(output)
    if values.shape[1] > 1:
        return values
    return torch.cat([1 - values if of == "identity" else -values, values], 1)


def probabilities(output: Any, of: Link = "softmax") -> Tensor:
    """The probability of each class, ``(N, K, *size)``: softmax, or each label's sigmoid; of a single logit, of two."""
    if of == "identity":
        return class_scores(output, of)
    values = logits(output)
    if values.shape[1] == 1:
        return class_scores(output).sigmoid()
    return values.softmax(1) if of == "softmax" else values.sigmoid()


def check_class(index: int, classes: int) -> None:
    """See that a model of so many classes has this one.

    Raises:
        TargetError: It has not.
    """
    if not 0 <= index < classes:
        raise TargetError(
            f"target_class {index} does not exist: the model has {format_count(classes, 'class')}, 0 to {classes - 1}."
        )


def class_count(model: nn.Module) -> int | None:
    """How many classes a model says that it knows: in its ``config``, as Hugging Face's do, or by their ``names``."""
    classes = getattr(getattr(model, "config", None), "num_labels", None)
    names = getattr(model, "names", None)
    if isinstance(classes, int):
        return classes
    return len(names) if isinstance(names, (dict, list, tuple)) else None


def link_of(model: nn.Module, output: Any = None) -> Link | None:
    """How a model's scores become probabilities; ``None`` where they are no scores but an embedding.

    Each does by itself where the model's ``config`` says that it is multi-label. They are probabilities already where
    they sum up to 1 in each image and place, or where the graph shows that they come out of a sigmoid. (One value
    between 0 and 1 may be a logit as well.) It is an embedding by its name, or where the model says that it has 0
    classes and gives as many numbers as it has features.

    Args:
        model: The model.
        output: Its whole output, best on the graph; without it the model alone is asked.
    """
    if output is not None and _is_embedding(model, output):
        return None
    if output is not None and _are_probabilities(logits(output)):
        return "identity"
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    return "sigmoid" if problem == "multi_label_classification" else "softmax"


def _is_embedding(model: nn.Module, output: Any) -> bool:
    named = by_name(output)
    if named:
        found = _name_of_scores(named)
        return found in _EMBEDDINGS or (not found and "last_hidden_state" in named)
    if getattr(model, "num_classes", None) != 0:
        return False
    width = logits(output).shape[1]  # a head of a person's own may stand where the model has none of its own
    widths = [getattr(model, name, None) for name in ("num_features", "head_hidden_size")]
    return not any(widths) or width in widths


def _are_probabilities(values: Tensor) -> bool:
    if not could_be_probabilities(values):
        return False
    sums = values.detach().float().sum(1)
    rounding = max(_ROUNDING, 2 * torch.finfo(values.dtype).eps)
    adds_up = values.shape[1] > 1 and bool((sums - 1).abs().amax() <= rounding)
    return adds_up or _is_of_sigmoid(values)


def could_be_probabilities(values: Tensor) -> bool:
    """Whether all of them lie between 0 and 1."""
    if not values.numel():
        return False
    least, most = values.detach().aminmax()
    return bool(least >= 0) and bool(most <= 1 + _ROUNDING)


def _is_of_sigmoid(values: Tensor) -> bool:
    """Whether the last operation on the graph that changes any value is a sigmoid."""
    node = values.grad_fn
    while node is not None and node.name().partition("Backward")[0] in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and node.name() == _SIGMOID


def top_score(output: Any) -> Tensor | None:
    """What the model is surest of in the first image, as one number on the graph; ``None`` where it scores nothing.

    It is the highest class' score; of planes the class' with the highest mean, over all places; of detections the one
    of the most confident.
    """
    found = detections(output)
    if found is not None:
        each = found[0].each_with_its_class()
        return each.scores[each.confidences.argmax()] if len(each) else None
    try:
        values = class_scores(output)[0]
    except TargetError:
        return None
    return values.reshape(len(values), -1).mean(1).amax() if values.numel() else None


# -------------------------------------------------------------------------------------------------- image by image

Answer: TypeAlias = Tensor | Detections
"""What a model said of one image: scores ``(K,)``, planes ``(K, *size)``, or detections."""


def answers(output: Any, classes: int | None = None) -> Sequence[Answer]:
    """What the model said, image by image, without a graph.

    Args:
        output: The model's whole output.
        classes: See :func:`detections`.

    Raises:
        TargetError: There is nothing in it that could be explained.
    """
    still = map_tensors(output, Tensor.detach)
    found = detections(still, classes)
    return logits(still) if found is None else found  # type: ignore[return-value]  # a tensor is a sequence of its rows


def of_images(output: Any, images: int) -> Any:
    """Return the output about so many images, with an axis for them.

    A model that squeezes leaves that out for one image, and one may return a list with a mapping for each image.

    Raises:
        TargetError: It is about another number of images, or holds no scores.
    """
    if images == 1 and isinstance(output, Tensor) and (output.ndim == 0 or len(output) != 1):
        output = output[None]
    if _is_mapping_for_each(output, images):
        with torch.enable_grad():  # the output may be on a graph where nothing else is recorded
            output = _joined(output)
    values = logits(output) if detections(output) is None else None
    is_whole = count(output) == images and (values is None or values.numel() > 0)
    if not is_whole:
        came = f"detections in {count(output)}" if values is None else f"scores {tuple(values.shape)}"
        raise TargetError(
            f"the model returned {came} for {format_count(images, 'image')}; wrap it so that it returns scores (N, K), "
            "a row an image."
        )
    return output


def _is_mapping_for_each(output: Any, images: int) -> bool:
    """Check whether an output is a list of mappings with the same keys, one an image, and no detector's."""
    if not isinstance(output, list) or len(output) != images or detections(output) is not None:
        return False
    return all(isinstance(each, Mapping) and each.keys() == output[0].keys() for each in output)


def _joined(output: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """A mapping for each image as one mapping, whose tensors have an axis for the images.

    Raises:
        TargetError: The tensors of one key differ in shape.
    """
    joined: dict[Any, Any] = {}
    for key, first in output[0].items():
        values = [each[key] for each in output]
        if not isinstance(first, Tensor):
            joined[key] = values
        elif len({value.shape for value in values}) == 1:
            joined[key] = torch.stack(values)
        else:
            raise TargetError(
                f"the model returned a mapping for each image, with {key!r} in several shapes; pass batch_size=1."
            )
    return joined


def count(output: Any) -> int:
    """How many images the output is about."""
    found = detections(output)
    return len(logits(output)) if found is None else len(found)


def image_of(output: Any, index: int, *, keep: bool = False) -> Any:
    """One image's part of a batch's output, in the same structure; ``keep`` leaves the batch dimension in place.

    A tensor that does not have one entry an image, a temperature or the texts' embeddings say, is handed on whole.
    """
    listed = _listed(output)
    if listed is not None:
        return [listed[index]] if keep else listed[index]
    images = count(output)

    def part(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) != images:
            return tensor
        return tensor[index : index + 1] if keep else tensor[index]

    return map_tensors(output, part)
