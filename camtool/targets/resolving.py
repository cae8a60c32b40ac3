"""From what the user asks for to targets, resolved on the model's output for the image."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from types import CellType
from typing import Any, TypeAlias

from torch import Tensor

from camtool.arguments.explain_arguments import check_class_index, to_list
from camtool.errors import Forgive, TargetError
from camtool.geometry.crop_and_resize import Geometry
from camtool.outputs.class_scores import Link, compute_class_scores, find_predicted
from camtool.outputs.detections import Detections
from camtool.outputs.predictions import Prediction, get_predictions
from camtool.targets.base_target import ImageOutput, Target
from camtool.targets.class_targets import ClassScore
from camtool.targets.classes_by_name import find_label
from camtool.targets.detection_targets import find_most_confident, list_detections
from camtool.targets.field_checks import check_confidence, check_integer
from camtool.targets.function_targets import Custom
from camtool.targets.group_targets import parse_group
from camtool.targets.place_targets import Region
from camtool.targets.value_targets import Similarity, Value


@dataclass(frozen=True)
class Top:
    """The ``k`` highest-ranked classes or detections of the image, or all of them if there are fewer.

    For a classifier these are classes. For a segmenter they are the classes that cover most of the image, with
    background last. For a detector they are the most confident detections among :class:`AllDetections`.
    """

    k: int = 1


@dataclass(frozen=True)
class AllDetections:
    """All detections that the model's own post-processing reports in the image, the most confident first.

    These are those of ``predict()`` of Ultralytics, of the image processors of Hugging Face, and of torchvision's
    detectors, with their thresholds and their non-maximum suppression. It is a request for several targets, as
    :class:`Top`.

    Attributes:
        confidence: A threshold instead of the model's own; detections with a higher confidence count.
    """

    confidence: float | None = None

    def __post_init__(self) -> None:
        check_confidence("AllDetections' confidence", self.confidence)


# A request for one image: a class by index or label, a text about groups of classes (see
# :func:`camtool.targets.group_targets.parse_group`), a target, a function, the top k, all detections; ``None`` is the
# top class.
TargetLike: TypeAlias = int | str | Top | AllDetections | Target | Callable[[Any], Tensor] | None


def asks_for_several(request: Any) -> bool:
    """Return True if a request for one image leads to a list of results."""
    return isinstance(request, (list, tuple, Top, AllDetections))


def resolve_targets(
    request: TargetLike,
    prediction: Prediction,
    labels: Sequence[str] | None,
    geometry: Geometry | None = None,
    link: Link | None = "softmax",
    find_class_vectors: Callable[[], Tensor | None] | None = None,
) -> list[Target]:
    """Turn what the user asks for in one image into targets. :class:`Top` and :class:`AllDetections` give several.

    The meaning of ``None``, an index and a label depends on the model's output:

    * scores ``(K,)``: the logit of the class; ``None`` is the highest.
    * a single score: two classes, 1 for the score itself and 0 for its negative; ``None`` is the one given by the sign.
      A regression looks the same, so ask for :class:`camtool.targets.Value`. A single probability ``p``: 1 for ``p``
      and 0 for ``1 - p``.
    * an embedding ``(D,)``: one of its dimensions; ``None`` is the highest.
    * score planes ``(K, h, w)``: the class where the model predicts it; if it predicts it nowhere, the sum of its
      logits over the image. ``None`` is the class that covers most of the image, and the background only if nothing
      else is predicted. A class is background if its label says so; without labels it is class 0. Independent labels
      (sigmoids) are predicted where their probability is above 1/2, so they may overlap.
    * detections: of those that the model's own post-processing reports, the most confident one of the class; if it
      reports none, the surest candidate, with a warning. ``None`` is the most confident of all that are reported.

    Args:
        request: See :data:`TargetLike`.
        prediction: The model's output for the image.
        labels: The names of the K classes.
        geometry: How the photo became the model's input. The user gives places in pixels of the photo.
        link: The link from scores to probabilities; ``None`` if the prediction is an embedding.
        find_class_vectors: See :class:`camtool.targets.base_target.ImageOutput`.

    Raises:
        TargetError: The class does not exist, its label is unknown or ambiguous, or the output has no top class.
        NothingFoundError: The detector found nothing of the kind in this image.
    """
    if isinstance(prediction, Tensor):
        if link is None:
            _check_needs_no_class(request, prediction)
        # A single score becomes two classes here, so that all that follows sees (K, ...) with K >= 2.
        prediction = compute_class_scores(prediction[None], link or "identity")[0]
    image = ImageOutput(prediction, labels, geometry, link, find_class_vectors)
    if request is None:
        return _rank(Top(1), image)
    if isinstance(request, Top):
        return _rank(request, image)
    if isinstance(request, AllDetections):
        if not isinstance(prediction, Detections):
            raise TargetError("target_class asks for all detections, but the model is not a detector; pass a class.")
        return list_detections(image, request.confidence)
    return [_resolve_one(request, image)]


def _resolve_one(request: Any, image: ImageOutput) -> Target:
    """Return the target that an index, a name, a function or a target asks for."""
    if isinstance(request, str):
        group = parse_group(request, image.labels)
        request = find_label(request, image.labels) if group is None else group
    if isinstance(request, Tensor) and request.ndim == 0:
        request = request.item()  # a float is refused below
    # Integral covers numpy's integers. bool is an int in Python, but True is no class that a user would mean.
    if isinstance(request, Integral) and not isinstance(request, bool):
        return _resolve_index(int(request), image)
    if isinstance(request, Target):
        return request.resolve_on(image)
    if callable(request):
        return Custom(request)
    kind = type(request).__name__
    raise TargetError(f"target_class must be None, an index, a name, a callable or a target, got {kind}.")


def score_request(request: Any, labels: Sequence[str] | None, output: Any) -> Tensor | None:
    """Return the score ``()`` of a request on a model's output for one image; ``None`` if it has none there.

    Of several requests the first counts.
    """
    # A function of the user may raise anything. Then it does so again when it is explained, with a better message.
    with Forgive(Exception):
        first, prediction = _get_first(request), get_predictions(output)[0]
        if first is None and isinstance(prediction, Detections):  # a layer is chosen by candidates, too
            return find_most_confident(None, ImageOutput(prediction, labels))(output)[0]
        return resolve_targets(first, prediction, labels)[0](output)[0]
    return None


def get_score_key(request: Any) -> Hashable:
    """Return what tells the first of some requests from others that may need another layer; ``None`` for classes."""
    first = _get_first(request)
    if isinstance(first, Target) and not isinstance(first, Custom):
        return None if first.traits.reads == "scores" or first.list_text_positions() else type(first)
    function: Any = first.function if isinstance(first, Custom) else first
    return _describe_function(function) if callable(function) else None


def _describe_function(function: Any) -> Hashable:
    """Return the code of a function, as a lambda in a loop is another one each time, and the plain values in it.

    Such values may choose an output of the model. Those of objects in it, e.g. of masks, are taken to be of no matter.
    """
    if isinstance(function, partial):
        return _describe_function(function.func), _list_plain(function.args), _list_plain(function.keywords.values())
    owner = getattr(function, "__self__", None if hasattr(function, "__code__") else function)
    cells = getattr(function, "__closure__", None) or ()
    return (
        getattr(function, "__code__", type(function).__qualname__),
        _list_plain(getattr(function, "__defaults__", None) or ()),
        _list_plain((getattr(function, "__kwdefaults__", None) or {}).values()),
        _list_plain(cell.cell_contents for cell in cells if cell != CellType()),
        _list_plain(getattr(owner, "__dict__", {}).values()),
    )


def _list_plain(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value if isinstance(value, (str, int, float, type(None))) else ... for value in values)


def _get_first(request: Any) -> Any:
    while isinstance(request, (list, tuple)) or (isinstance(request, Tensor) and request.ndim):
        if not len(request):
            return None
        request = request[0]
    return request


def _check_no_class(target: Any) -> None:
    is_class = target is None or isinstance(target, (Integral, Tensor)) or _is_about_a_class(target)
    if is_class or asks_for_several(target):
        raise TargetError(
            f"target_class is {target!r}, but this model compares images with texts and has no classes; pass a "
            "text, e.g. 'a photo of a dog'."
        )


def encode_texts(requests: Sequence[Any], encode: Callable[[Sequence[str]], Tensor]) -> list[Any]:
    """Replace each text by its similarity to the image, for models that compare images with texts.

    Args:
        requests: For each image a request, or a list of them.
        encode: Returns the embeddings ``(T, D)`` of T texts; called once.

    Returns:
        The requests, in the same order and nesting.

    Raises:
        TargetError: A request is for a class, or for the top class, but the model has no classes.
    """
    flat = [target for request in requests for target in to_list(request)]
    for target in flat:
        _check_no_class(target)
    texts = list(dict.fromkeys(target for target in flat if isinstance(target, str)))  # without duplicates, in order
    embeddings = encode(texts) if texts else ()
    by_text = {text: Similarity(embedding, text) for text, embedding in zip(texts, embeddings, strict=True)}

    def replace_text(target: Any) -> Any:
        return by_text[target] if isinstance(target, str) else target

    return [
        list(map(replace_text, request)) if isinstance(request, (list, tuple)) else replace_text(request)
        for request in requests
    ]


def _check_needs_no_class(request: TargetLike, features: Tensor) -> None:
    """Check that a request on an embedding ``(D,)``, or on features with more axes, is not about a class."""
    if _is_about_a_class(request):
        raise TargetError(
            f"target_class is {request}, but this model returns an embedding and has no classes; ask for one of its "
            "dimensions, Value(3), or for the similarity to another embedding, Similarity(embedding)."
        )
    if features.ndim > 1 and (request is None or isinstance(request, (Integral, Top))):
        raise TargetError(
            f"target_class is {request!r}, but this model has no classes and returns features {tuple(features.shape)} "
            "for an image; pass a function from these to a number."
        )


def _is_about_a_class(request: Any) -> bool:
    """Return True if the request is a target about a class or a group of classes."""
    return isinstance(request, Target) and (request.get_class_index() is not None or request.traits.is_group)


def _resolve_index(index: int, image: ImageOutput) -> Target:
    """Return the target for a class: its score, a dimension of an embedding, a region of planes, or a detection."""
    scores = image.prediction
    if isinstance(scores, Detections):
        return find_most_confident(index, image)
    check_class_index(index, len(scores))
    if image.link is None:
        return Value(index, f"dimension {index}")
    # Without a mask the whole image would count, and the map would show all places that raise the class's score
    # instead of the object. If the class is predicted nowhere, there is no better choice.
    if scores.ndim >= 3:
        is_predicted = find_predicted(scores, image.link)[index]
        if is_predicted.any():
            return Region(index, is_predicted, image.link)
    return ClassScore(index, image.link)


# ---------------------------------------------------------------------------------------------------- the top k


def _rank(top: Top, image: ImageOutput) -> list[Target]:
    """Return what the model ranks highest, in that order."""
    check_integer("Top's k", top.k)
    if top.k < 1:
        raise TargetError(f"target_class {top}: k must be 1 or more.")
    scores = image.prediction
    if isinstance(scores, Detections):
        return list_detections(image, count=top.k)
    if scores.ndim >= 3:
        return [_resolve_index(index, image) for index in _sort_by_area(scores, image)[: top.k]]
    if scores.ndim != 1:
        raise TargetError(
            f"target_class=None asks for the top class, but the model's output for an image has shape "
            f"{tuple(scores.shape)}, not (K,); pass a class index, or a function from that output to a number."
        )
    return [_resolve_index(index, image) for index in scores.topk(min(top.k, len(scores))).indices.tolist()]


def _sort_by_area(planes: Tensor, image: ImageOutput) -> list[int]:
    """Return the predicted classes, the one that covers most of the image first, background last.

    If none of independent labels is predicted anywhere, it is the one with the highest mean.
    """
    areas = find_predicted(planes, image.link).flatten(1).sum(1).tolist()
    is_any = any(areas)
    heights = areas if is_any else planes.flatten(1).mean(1).tolist()
    ranked = sorted(range(len(planes)), key=lambda index: (is_background(index, image.labels), -heights[index]))
    return [index for index in ranked if areas[index]] if is_any else ranked[:1]


def is_background(index: int, labels: Sequence[str] | None) -> bool:
    """Return True if the label of a class says background; without labels if it is class 0, as in most data sets."""
    if labels is None or index >= len(labels):
        return index == 0
    return "background" in labels[index].casefold()
