"""How scores become probabilities: the link, read from a model and its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from camtool.hooks.structures.nested_tensors import get_named_items
from camtool.outputs.class_scores import Link, find_logits, find_score_field, is_between_zero_and_one

_EMBEDDING_FIELDS = ("image_embeds", "pooler_output", "last_hidden_state")
"""Names of tensors that are embeddings or features, not scores."""

_ROUNDING = 1e-5
"""Largest distance of the sum of probabilities from 1. The rounding errors of a thousand classes in single precision
(steps of 6e-8) stay well below; logits miss 1 by far more."""

_VIEW_NODES = frozenset(
    ["squeeze", "unsqueeze", "view", "unsafeview", "reshapealias", "select", "slice", "t", "permute", "transpose"]
)
_COPY_NODES = frozenset(["clone", "tocopy"])
_AVERAGE_NODES = frozenset(["mean", "adaptiveavgpool2d", "avgpool2d", "upsamplebilinear2d", "upsamplenearest2d"])
_KEEPING_NODES = _VIEW_NODES | _COPY_NODES | _AVERAGE_NODES
"""Operations on the autograd graph after which probabilities are still probabilities, and logits still logits."""

_PROBABILITY_OPERATIONS = frozenset(["sigmoid", "hardsigmoid", "softmax"])
"""Operations whose results are probabilities, by their names on the graph or those of functions."""

_LOGIT_OPERATIONS = frozenset(
    ["linear", "addmm", "mm", "bmm", "baddbmm", "matmul", "einsum", "convolution", "conv1d", "conv2d", "conv3d", "relu"]
)
"""Operations whose results have no upper bound, so they are logits also if they happen to be between 0 and 1."""


class FoundLink(NamedTuple):
    """How scores become probabilities.

    Attributes:
        link: The link; ``None`` if the output is an embedding.
        is_assumed: True if the scores are between 0 and 1, and nothing shows whether they are probabilities.
    """

    link: Link | None
    is_assumed: bool = False


def find_link(
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
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    logits = FoundLink("sigmoid" if problem == "multi_label_classification" else "softmax")
    if output is None:
        return logits
    is_plain = isinstance(output, Tensor) and getattr(model, "num_classes", None) != 0
    if not is_plain and _is_embedding(model, output):
        return FoundLink(None)
    scores = find_logits(output)
    if not is_between_zero_and_one(scores):
        return logits
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
    rounding = max(_ROUNDING, 2 * torch.finfo(scores.dtype).eps)  # half precision has steps of 1e-3
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
