"""Classes that the model predicts for a concept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from camtool import targets
from camtool.arguments.messages import format_percent
from camtool.evidence.forward_pass import ForwardPass
from camtool.hooks.observation import observe, resume
from camtool.layers.selection import Layer
from camtool.outputs import class_scores

__all__ = ["Vote", "compute_probabilities", "rank_classes"]

_MAX_VOTES = 3
"""Number of classes that are named for a concept."""


@dataclass(frozen=True)
class Vote:
    """Class that the model predicts for a concept.

    Attributes:
        label: Name of the class, or ``"class 281"`` if names are unknown.
        index: Index of the class.
        probability: Probability of the class where the layer's output is the concept's vector at all positions.
    """

    label: str
    index: int
    probability: float

    def __str__(self) -> str:
        return f"{self.label} {format_percent(self.probability)}"


def compute_probabilities(model: nn.Module, inputs: Tensor, layer: Layer, vectors: Tensor) -> Tensor:
    """Return class probabilities ``(n, K)`` for concept vectors ``(n, C)``.

    A vector is put at all positions of the layer's output, and the part of the model after the layer runs on that.
    """
    calls = observe(model, [layer.name], inputs, grad=False).calls[layer.name]
    like = calls[-1].detach()
    filled = vectors[:, :, None, None].expand(-1, -1, *layer.layout.grid)
    variants = layer.layout.from_grid(filled.to(like.dtype), like)
    output = resume(model, layer.name, variants, inputs, call_index=len(calls) - 1)
    # The pass above has no graph, which may be needed to see a sigmoid at the model's end.
    link = ForwardPass(model, inputs, []).find_link()
    probabilities = class_scores.compute_probabilities(class_scores.find_logits(output).float(), link or "softmax")
    # Segmentation models give a probability for each position.
    return probabilities.flatten(2).mean(2) if probabilities.ndim > 2 else probabilities


def rank_classes(probabilities: Tensor, names: Sequence[str] | None) -> tuple[tuple[Vote, ...], ...]:
    """Return the most probable classes of each concept, for probabilities ``(n, K)``."""
    values, indices = probabilities.topk(min(_MAX_VOTES, probabilities.shape[1]))

    def build_vote(index: int, probability: float) -> Vote:
        return Vote(targets.get_class_label(index, names), index, probability)

    return tuple(tuple(map(build_vote, *each)) for each in zip(indices.tolist(), values.tolist(), strict=True))
