"""Class scores and score planes in a model's output, and how they become probabilities."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard, get_args

import torch
from torch import Tensor, nn

from camtool.errors import TargetError
from camtool.hooks.structures.nested_tensors import find_tensors, get_named_items, locate_tensors
from camtool.maps import upcast
from camtool.outputs.detections import find_detections
from camtool.warning_codes import MapWarning

# Names of scores, or of the image's embedding if there are none, in order of preference. Hugging Face's classifiers
# return ``logits``, CLIP ``logits_per_image``, torchvision's segmenters ``out``, DETR's own code ``pred_logits``, and
# models without a head ``image_embeds`` or ``pooler_output``. ``out`` comes before ``aux``, a second set of planes.
_SCORE_FIELDS = ("logits", "logits_per_image", "out", "pred_logits", "image_embeds", "pooler_output")

# Names in outputs of Hugging Face's models that show which tensor is meant, although none of them is in
# ``_SCORE_FIELDS``: the features of a model without a head, and the masks of MaskFormer.
_UNAMBIGUOUS_FIELDS = frozenset({"last_hidden_state", "masks_queries_logits"})


def find_score_field(named: Mapping[str, Any]) -> str | None:
    """Return the first name in ``_SCORE_FIELDS`` under which an output has a value, or ``None``."""
    return next((name for name in _SCORE_FIELDS if named.get(name) is not None), None)


# Function from scores to probabilities: ``"softmax"`` over classes that exclude one another, ``"sigmoid"`` of
# independent labels, or ``"identity"`` if the scores are probabilities. The term is that of generalized linear models.
Link: TypeAlias = Literal["softmax", "sigmoid", "identity"]

# All links.
LINKS: tuple[Link, ...] = get_args(Link)

# The number of tensors of an output that a warning names. It keeps the warning to two lines, and the user needs only
# one name to see how to choose.
_MAX_NAMED = 4

# Rounding errors of probabilities, and of the sum of those of a thousand classes. In single precision (steps of 6e-8),
# sigmoids and softmax stay well below; the sums of logits miss 1 by far more.
_PROBABILITY_ROUNDING = 1e-5

# Largest difference from 1 of the sum of probabilities of classes that exclude one another. Half precision (steps of
# 8e-3 in bfloat16) stays below, also after a cast; independent labels miss 1 by far more at some position.
_PLANE_SUM_ROUNDING = 1e-2

# Names of Hugging Face's outputs whose logits are those of a language model.
_IS_TEXT = re.compile("CausalLM|Seq2SeqLM|ConditionalGeneration")


@dataclass(frozen=True)
class UserScore:
    """The score that the user wants to explain, as the choice of a layer needs it.

    Attributes:
        compute: From a model's output for one image, with a batch axis, to the score ``()``; ``None`` if it has none.
        key: Tells scores apart that need other layers; ``None`` for all scores of classes. It must not hold the model.
    """

    compute: Callable[[Any], Tensor | None]
    key: Hashable = None


# -------------------------------------------------------------------------------------------------------- scores


def is_score_table(output: Any) -> TypeGuard[Tensor]:
    """Return True for the usual output of a classifier, floating scores ``(N, K)``."""
    return isinstance(output, Tensor) and output.ndim == 2 and output.is_floating_point()


def find_logits(output: Any) -> Tensor:
    """Return the tensor of scores in a model's output: the output, a field named ``logits`` or ``out``, or the first.

    Fields are those of mappings, data classes and named tuples. A single number is a loss, not a score. Planes of one
    position are class scores, as returned by fully convolutional classifiers. A language model scores the next token.

    Returns:
        ``(N, K)`` or ``(N, K, *size)``.

    Raises:
        TargetError: There is no such tensor, or the model is a detector.
    """
    return output if is_score_table(output) else _find_logits_inside(output)


def _find_logits_inside(output: Any) -> Tensor:
    if find_detections(output) is not None:
        raise TargetError(
            "the model returned detections, which have no single score per class; explain one of them: by None, a "
            "class, Detection(n) or Box(xyxy)."
        )
    named = get_named_items(output)
    # MaskFormer and Mask2Former return no planes; they follow from a class and a mask per query.
    if {"class_queries_logits", "masks_queries_logits"} <= named.keys():
        return _compute_planes_of_queries(named["class_queries_logits"], named["masks_queries_logits"])
    field = find_score_field(named)
    tensor = _find_score_tensor(output if field is None else named[field])
    if tensor is None:
        raise TargetError(
            f"the model returned {type(output).__name__} without a tensor of scores (N, K); wrap the model so that it "
            "returns one."
        )
    if tensor.ndim == 3 and _IS_TEXT.search(type(output).__name__):
        return tensor[:, -1]  # the next token
    if tensor.ndim == 1:  # one score per image, as regressions and binary classifiers often return
        return tensor[:, None]
    is_one_position = tensor.ndim > 2 and tensor.shape[2:].numel() == 1
    return tensor.flatten(1) if is_one_position else tensor


def _find_score_tensor(output: Any) -> Tensor | None:
    """Return the first floating tensor, or the logits behind it if it holds their probabilities."""
    floating = [tensor for tensor in find_tensors(output) if tensor.is_floating_point() and tensor.ndim]
    return floating[_has_logits_second(floating)] if floating else None


def find_text_logits(output: Any) -> Tensor | None:
    """Return the scores ``(N, T, V)`` of the next token behind each token of a text; None if there are none."""
    logits = get_named_items(output).get("logits")
    is_text = isinstance(logits, Tensor) and logits.ndim == 3 and _IS_TEXT.search(type(output).__name__) is not None
    return logits if is_text else None


def _has_logits_second(tensors: Sequence[Tensor]) -> bool:
    """Return True for two tensors of which the first is the softmax of the second, as YOLO's classifiers return."""
    if len(tensors) != 2 or tensors[0].ndim != 2 or tensors[0].shape != tensors[1].shape:
        return False
    probabilities, logits = (tensor.detach() for tensor in tensors)
    return is_between_zero_and_one(probabilities) and torch.allclose(probabilities, logits.softmax(1), atol=1e-5)


def find_embedding(output: Any) -> Tensor:
    """Return the embeddings ``(N, D)`` of the images, also if the output holds their similarities to texts as well.

    Raises:
        TargetError: There is no tensor that could be an embedding.
    """
    embedding = get_named_items(output).get("image_embeds")
    return embedding if isinstance(embedding, Tensor) else find_logits(output)


def describe_chosen_tensor(output: Any) -> MapWarning | None:
    """Return a sentence that says which of several tensors :func:`find_logits` returns.

    Return ``None`` if the choice is certain: there is one tensor, a name says that it holds the scores, or the model is
    a detector.
    """
    if isinstance(output, Tensor) or find_detections(output) is not None:
        return None
    named = get_named_items(output)
    if find_score_field(named) is not None or not _UNAMBIGUOUS_FIELDS.isdisjoint(named):
        return None
    located = [pair for pair in locate_tensors(output) if pair[1].is_floating_point() and pair[1].ndim]
    if len(located) < 2 or _has_logits_second([tensor for _, tensor in located]):
        return None
    first, *others = (key for key, _ in located)
    more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
    return MapWarning(
        f"The model returned several tensors, and {first} was used as scores instead of "
        f"{', '.join(others[:_MAX_NAMED])}{more}; to choose, pass a function to a number, e.g. "
        f"target_class=lambda output: {others[0]}.max().",
        "several-outputs",
    )


def compute_class_scores(output: Any, of: Link = "softmax") -> Tensor:
    """Return the score of each class, ``(N, K, *size)``.

    A single logit ``z`` becomes two classes, ``-z`` for 0 and ``z`` for 1; a single probability ``p`` becomes ``1 - p``
    and ``p``.
    """
    values = find_logits(output)
    if values.shape[1] > 1:
        return values
    # Binary classifiers define the probability of class 1 as sigmoid(z), so z itself is the logit of class 1.
    return torch.cat([1 - values if of == "identity" else -values, values], 1)


def compute_top_score(output: Any) -> Tensor | None:
    """Return the highest score in the first image, ``()`` on the graph, or ``None`` if the model returned no scores.

    It is the score of the highest class; of score planes that of the class with the highest mean over all positions; of
    detections that of the most confident one.
    """
    detections = find_detections(output)
    if detections is not None:
        best = detections[0].pick_best_classes()
        return best.scores[best.confidences.argmax()] if len(best) else None
    try:
        values = compute_class_scores(output)[0]
    except TargetError:  # an output without scores, e.g. a dictionary of strings
        return None
    return values.reshape(len(values), -1).mean(1).amax() if values.numel() else None


def _compute_planes_of_queries(classes: Tensor, masks: Tensor) -> Tensor:
    """Return score planes ``(N, K, h, w)`` of a model with a class and a mask per query: MaskFormer, arXiv 2107.06278.

    The share of a class at a position is the sum over queries of class probability times mask. Its logarithm is a
    logit, as softmax turns logarithms back into shares.
    """
    shares = torch.einsum("nqk,nqhw->nkhw", classes.softmax(2)[..., :-1], masks.sigmoid())
    return shares.clamp_min(torch.finfo(shares.dtype).tiny).log()  # the logarithm of 0 would be infinite


# --------------------------------------------------------------------------------------------------------- links

# Names of tensors that are embeddings or features, not scores.
_EMBEDDING_FIELDS = ("image_embeds", "pooler_output", "last_hidden_state")

_VIEW_NODES = frozenset(
    ["squeeze", "unsqueeze", "view", "unsafeview", "reshapealias", "select", "slice", "t", "permute", "transpose"]
)
_COPY_NODES = frozenset(["clone", "tocopy"])
_AVERAGE_NODES = frozenset(["mean", "adaptiveavgpool2d", "avgpool2d", "upsamplebilinear2d", "upsamplenearest2d"])
# Operations on the autograd graph after which probabilities are still probabilities, and logits still logits.
_KEEPING_NODES = _VIEW_NODES | _COPY_NODES | _AVERAGE_NODES

# Operations whose results are probabilities, by their names on the graph or those of functions.
_PROBABILITY_OPERATIONS = frozenset(["sigmoid", "hardsigmoid", "softmax"])

# Operations whose results have no upper bound, so they are logits also if they happen to be between 0 and 1.
_LOGIT_OPERATIONS = frozenset(
    ["linear", "addmm", "mm", "bmm", "baddbmm", "matmul", "einsum", "convolution", "conv1d", "conv2d", "conv3d", "relu"]
)


class FoundLink(NamedTuple):
    """The link from scores to probabilities, and whether it is certain.

    Attributes:
        link: The link; ``None`` if the output is an embedding.
        is_assumed: True if the scores are between 0 and 1, and nothing shows whether they are probabilities.
        notes: What a user should know of it.
    """

    link: Link | None
    is_assumed: bool = False
    notes: tuple[MapWarning, ...] = ()


def infer_link(
    model: nn.Module, output: Any = None, find_final_operation: Callable[[], str | None] | None = None
) -> FoundLink:
    """Return how a model's scores become probabilities.

    Labels are independent (``"sigmoid"``) if the model's ``config`` says that it is multi-label. Scores are
    probabilities (``"identity"``) if they sum to 1 in each image and position, or if they are between 0 and 1 and come
    out of a sigmoid or a softmax. (Alone, values between 0 and 1 may be logits as well.) The output is an embedding by
    its field's name, or if the model declares 0 classes and returns as many numbers as it has features.

    Args:
        model: The model.
        output: Its whole output, preferably on the graph; without it only the model is examined.
        find_final_operation: Returns the name of the function that computed the scores. It is called if scores between
            0 and 1 have no graph.
    """
    has_labels = getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"
    logits: FoundLink = getattr(model, "known_link", FoundLink("sigmoid" if has_labels else "softmax"))
    if output is None:
        return logits
    is_plain = isinstance(output, Tensor) and getattr(model, "num_classes", None) != 0
    if not is_plain and _is_embedding(model, output):
        return FoundLink(None)
    scores = find_logits(output)
    if not is_between_zero_and_one(scores):
        return logits
    return _find_link_of_shares(scores, logits, find_final_operation)


def _find_link_of_shares(
    scores: Tensor, logits: FoundLink, find_final_operation: Callable[[], str | None] | None
) -> FoundLink:
    """Return the link of scores between 0 and 1, which may be probabilities or ``logits``."""
    if _sum_to_one(scores):
        return FoundLink("identity")
    operation = _find_graph_operation(scores)
    if operation is None and find_final_operation is not None:
        operation = find_final_operation()
    if operation in _PROBABILITY_OPERATIONS:
        return FoundLink("identity")
    return logits._replace(is_assumed=operation not in _LOGIT_OPERATIONS)


def _is_embedding(model: nn.Module, output: Any) -> bool:
    """Return True if an output is an embedding by its field's name, or by what the model (e.g. of timm) declares."""
    named = {} if isinstance(output, Tensor) else get_named_items(output)
    if named:
        field = find_score_field(named)
        is_headless = field is None and "last_hidden_state" in named and "masks_queries_logits" not in named
        return field in _EMBEDDING_FIELDS or is_headless
    if getattr(model, "num_classes", None) != 0:
        return False
    # The user may have added a head to a model that was built without one. Then the width of the output is another one.
    width = find_logits(output).shape[1]
    widths = [getattr(model, name, None) for name in ("num_features", "head_hidden_size")]
    return not any(widths) or width in widths


def _sum_to_one(scores: Tensor) -> bool:
    """Return True if positive scores ``(N, K, *size)`` sum to 1 in each image and position."""
    sums = scores.detach().float().sum(1)
    rounding = max(_PROBABILITY_ROUNDING, 2 * torch.finfo(scores.dtype).eps)  # half precision has steps of 1e-3
    return scores.shape[1] > 1 and bool((sums - 1).abs().amax() <= rounding)


def _find_graph_operation(values: Tensor) -> str | None:
    """Return the last operation on the autograd graph that computes values, e.g. ``"sigmoid"``; ``None`` without graph.

    Operations that only move or average values do not count.
    """
    node = values.grad_fn
    while node is not None:
        # The number after "Backward" tells overloads of one operation apart, so it does not count.
        name = node.name().partition("Backward")[0].lower()
        if name not in _KEEPING_NODES:
            return name
        node = node.next_functions[0][0]
    return None


# ------------------------------------------------------------------------------------------------- probabilities


def compute_probabilities(output: Any, of: Link = "softmax") -> Tensor:
    """Return the probability of each class, ``(N, K, *size)``. A single logit gives those of two classes."""
    if of == "identity":
        return compute_class_scores(output, of)
    values = find_logits(output)
    if values.shape[1] == 1:
        return compute_class_scores(output).sigmoid()
    return values.softmax(1) if of == "softmax" else values.sigmoid()


def find_predicted(planes: Tensor, link: Link | None) -> Tensor:
    """Return where the model predicts each class: booleans ``(K, *size)`` for the score planes of one image.

    Of classes that exclude one another it predicts the highest at each position. Labels are independent if the link is
    ``"sigmoid"``, or if they are probabilities that do not sum to 1: then each is predicted where its probability is
    above 1/2, so that they overlap, or none is there.

    Args:
        planes: ``(K, *size)``, with two classes for a single score: see :func:`compute_class_scores`.
        link: The link of the planes.
    """
    if link == "sigmoid":
        return planes > 0
    if link == "identity" and bool(((planes.detach().float().sum(0) - 1).abs() > _PLANE_SUM_ROUNDING).any()):
        return planes > 0.5
    classes = torch.arange(len(planes), device=planes.device)
    return planes.argmax(0) == classes.reshape(-1, *[1] * (planes.ndim - 1))


def is_between_zero_and_one(values: Tensor) -> bool:
    """Return True if all values are between 0 and 1, up to rounding."""
    if not values.numel():
        return False
    if values.device.type == "cpu":
        own = upcast(values.detach()).numpy()  # an array is read several times faster than a tensor
        return bool(own.min() >= 0) and bool(own.max() <= 1 + _PROBABILITY_ROUNDING)
    lowest, highest = values.detach().aminmax()  # one pass over the values, and two numbers to transfer
    return bool(lowest >= 0) and bool(highest <= 1 + _PROBABILITY_ROUNDING)


def weigh_chosen_class(logits: Tensor, classes: Tensor) -> Tensor:
    """Return weights whose sum with the logits is the score of one class of each image, by operations on tensors alone.

    Args:
        logits: ``(N, K)``.
        classes: ``(N,)`` integers; -1 for the class with the highest score.

    Returns:
        ``(N, K)``: one-hot rows, zeros for a class that does not exist; for a single output z, which stands for two
        classes of scores -z and z, -1 or 1.
    """
    if logits.shape[1] == 1:
        wanted = torch.where(classes == -1, (logits[:, 0] > 0).to(classes.dtype), classes)
        return (2 * wanted[:, None] - 1).to(logits.dtype)
    wanted = torch.where(classes == -1, logits.argmax(1), classes)
    return (wanted[:, None] == torch.arange(logits.shape[1], device=logits.device)).to(logits.dtype)


def is_known_class(logits: Tensor, classes: Tensor) -> Tensor:
    """Return where the classes ``(N,)`` of :func:`weigh_chosen_class` exist, by operations on tensors alone."""
    return (classes >= -1) & (classes < max(logits.shape[1], 2))
