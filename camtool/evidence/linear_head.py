"""Linear heads: global average pooling and one linear layer, right after the observed layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from camtool import targets
from camtool.errors import MethodError
from camtool.evidence.class_vectors import find_linear_layers, is_same_up_to_rounding
from camtool.evidence.evidence import Evidence
from camtool.hooks.model_passes import compute_row_gradients
from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.structures.modules import lacks_gradients


@dataclass(frozen=True)
class LinearHead:
    """A head that averages maps over the positions and weighs them linearly: ``output = weight @ mean(maps) + bias``.

    Attributes:
        weight: ``(K, C)``, for K classes.
        bias: ``(K,)``.
        maps: ``(R, C, *grid)``, what is averaged: the layer's activations, or their positive part.
    """

    weight: Tensor
    bias: Tensor
    maps: Tensor


def find_linear_head(evidence: Evidence) -> LinearHead | None:
    """Return the linear head right after the layer, or ``None`` if the model has no such head.

    It is found by arithmetic, not by name: the linear layer (or 1 x 1 convolution) that gives exactly the model's
    output for the mean of the activations, or for the mean of their positive part.
    """
    predictions = evidence.forward_pass.predictions
    if not isinstance(predictions, Tensor) or predictions.ndim != 2:
        return None
    logits, activations = evidence.select_rows(predictions), evidence.activations
    layers = find_linear_layers(evidence.model, channels=activations.shape[1], classes=logits.shape[1])
    # Some models apply a ReLU after the layer, e.g. DenseNet.
    for maps in (activations, activations.relu()):
        pooled = maps.flatten(2).mean(2)
        for weight, bias in layers.values():
            if is_same_up_to_rounding((pooled @ weight.T + bias).to(logits.dtype), logits):
                return LinearHead(weight, bias, maps)
    return None


def get_linear_head(evidence: Evidence) -> LinearHead:
    """Return the linear head right after the layer.

    Raises:
        MethodError: The model has no such head.
    """
    head = find_linear_head(evidence)
    if head is None:
        # A quantized head rounds its output, so it is not found, and no gradient passes through it.
        others = "'ablationcam' or 'scorecam'" if lacks_gradients(evidence.model) else "'gradcam' or 'layercam'"
        raise MethodError(
            "this needs a model that ends in global average pooling and one linear layer, right after the observed "
            f"layer (from its {evidence.activations.shape[1]} channels to the classes); this model does not. Use "
            f"method={others}, which work on any head."
        )
    return head


def find_scoring_head(evidence: Evidence) -> LinearHead | None:
    """Return the linear head if each row's score follows from its logits alone, else ``None``.

    With such a head other activations are scored by arithmetic, without a forward pass: see
    :func:`camtool.evidence.rescoring.score_logits`.
    """
    return find_linear_head(evidence) if _scores_follow_from_logits(evidence) else None


def compute_class_weights(evidence: Evidence, head: LinearHead) -> Tensor:
    """Return the gradient of each row's score with respect to the pooled channels, ``(R, C)``.

    For the score of a class this is the row of the head's weights for the class.

    Raises:
        MethodError: A target reads more of the model's output than its logits.
    """
    if not _scores_follow_from_logits(evidence):
        raise MethodError(
            "method 'cam' weighs channels by the logits, and target_class is a function of the model's whole "
            "output; use method='gradcam', which works on any target."
        )
    with enable_gradients():
        logits = evidence.logits.clone().requires_grad_()
        scores = targets.score_targets(evidence.targets, logits, evidence.images)
        (by_class,) = compute_row_gradients(scores, evidence.images, [logits])
    return by_class.to(head.weight) @ head.weight


def _scores_follow_from_logits(evidence: Evidence) -> bool:
    """Return True unless a target may read more of the output than the logits."""
    output = evidence.forward_pass.output
    is_plain = isinstance(output, Tensor) and output.ndim == 2
    return is_plain or not any(target.traits.reads == "output" for target in evidence.targets)
