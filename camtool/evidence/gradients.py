"""Gradients of the scores of several targets with respect to the outputs of layers.

A row is one target on one image. Rows about different images share a backward pass, as the images of a batch do not
influence each other. Rows about the same image are separated by one batched backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from camtool.errors import LayerError
from camtool.hooks.model_call import differentiate
from camtool.hooks.state.guard import enable_gradients
from camtool.targets import Target

_MOST_ELEMENTS = 2**19
"""Number of elements of the gradients that one batched backward pass returns: 5 rows at the last layer of a ResNet-50,
one at a layer of a language model. More at once take more memory and hardly less time."""


@dataclass(eq=False)
class ScoredTargets:
    """Targets with their scores on one forward pass, and the layer outputs that the scores depend on.

    Attributes:
        targets: One target per row.
        images: The index of each row's image.
        scores: Each row's score, ``(R,)``, on the graph.
        layer_outputs: Layer name to its output ``(N, ...)``, on the graph, in the layer's own layout.
        places: The index of each row's image in ``layer_outputs``.
        find_reason: Runs the model and returns why scores have no graph, if it shows that; ``None`` if they have one.
    """

    targets: list[Target]
    images: list[int]
    scores: Tensor
    layer_outputs: dict[str, Tensor]
    places: list[int]
    _gradients: dict[str, Tensor] = field(default_factory=dict)
    find_reason: Callable[[], str | None] | None = None

    def compute_gradients(self, layer: str) -> Tensor:
        """Return the gradient of each row's score with respect to a layer's output for the row's image, ``(R, ...)``.

        The first call runs one backward pass to all layers; later calls reuse its result.

        Raises:
            LayerError: The scores do not depend on the layers through a gradient.
        """
        if not self._gradients:
            if not self.scores.requires_grad:
                self._raise_no_gradient()
            gradients = compute_row_gradients(self.scores, self.places, list(self.layer_outputs.values()))
            self._gradients.update(zip(self.layer_outputs, gradients, strict=True))
        return self._gradients[layer]

    def select(self, rows: Sequence[int]) -> ScoredTargets:
        """Return some of the rows, with the gradients that are computed already."""
        index = list(rows)
        with enable_gradients():
            scores = self.scores[index]
        return ScoredTargets(
            [self.targets[row] for row in index],
            [self.images[row] for row in index],
            scores,
            self.layer_outputs,
            [self.places[row] for row in index],
            {layer: gradient[index] for layer, gradient in self._gradients.items()},
            self.find_reason,
        )

    def hessian_vector_product(self, layer: str, direction: Tensor) -> Tensor:
        """Return the Hessian of each row's score with respect to a layer's output, times the row's direction.

        Args:
            layer: The layer's name.
            direction: ``(R, ...)``, in the layer's own layout.

        Returns:
            ``(R, ...)``.

        Raises:
            LayerError: The scores do not depend on the layers through a gradient.
            RuntimeError: Torch has no second derivative of an operation after the layer.
        """
        if not self.scores.requires_grad:
            self._raise_no_gradient()
        output, product = self.layer_outputs[layer], torch.zeros_like(direction)
        ranks = _rank_within_image(self.places)
        for rank in set(ranks):
            rows = [row for row, its_rank in enumerate(ranks) if its_rank == rank]
            images = [self.places[row] for row in rows]
            vector = torch.zeros_like(output)
            vector[images] = direction[rows]
            product[rows] = _hessian_vector_product(self.scores[rows].sum(), output, vector)[images]
        return product

    def _raise_no_gradient(self) -> NoReturn:
        reason = None if self.find_reason is None else self.find_reason()
        raise LayerError(
            f"the score does not depend on the layers {list(self.layer_outputs)} through a gradient; "
            f"{reason or 'choose a layer that leads to it, and a target that does not detach the output'}."
        )


def compute_row_gradients(scores: Tensor, images: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of each row's score with respect to its own image's part of each tensor.

    Args:
        scores: ``(R,)``, on the graph.
        images: The index of each row's image.
        tensors: Tensors ``(N, ...)`` on the way to the scores.

    Returns:
        For each tensor ``(R, ...)``.
    """
    # The graph is retained, because other targets may be differentiated on it. It is freed with the forward pass.
    compute = partial(differentiate, scores, tensors, retain_graph=True, materialize_grads=True)
    index = list(images)
    with enable_gradients():
        if len(set(index)) == len(index):
            gradients = compute(grad_outputs=torch.ones_like(scores))
            is_in_order = index == list(range(len(tensors[0])))
            return list(gradients) if is_in_order else [gradient[index] for gradient in gradients]
        # One weighted sum of the scores for each rank: it holds at most one row of every image.
        ranks = _rank_within_image(index)
        weights = scores.new_zeros(max(ranks) + 1, len(ranks))
        weights[ranks, range(len(ranks))] = 1
        at_once = max(1, _MOST_ELEMENTS // max(tensor.numel() for tensor in tensors))
        by_rank = None if at_once == 1 else _differentiate_batches(compute, weights.split(at_once))
        if by_rank is None:
            return _differentiate_one_by_one(compute, weights, ranks, index)
        return [gradient[ranks, index] for gradient in by_rank]


def _differentiate_batches(compute: Callable[..., Sequence[Tensor]], batches: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the gradients of weighted sums, many at once; None if vmap does not support an operation on the way."""
    try:
        parts = [compute(grad_outputs=batch, is_grads_batched=True) for batch in batches]
    except RuntimeError:
        return None
    return [torch.cat(each) for each in zip(*parts, strict=True)]


def _differentiate_one_by_one(
    compute: Callable[..., Sequence[Tensor]], weights: Tensor, ranks: Sequence[int], images: Sequence[int]
) -> list[Tensor]:
    """Return the gradients of the rows, computed sum by sum, each in one copy."""
    rows: list[Tensor] = []
    for rank, weight in enumerate(weights):
        of_rank = [row for row, each in enumerate(ranks) if each == rank]
        gradients = compute(grad_outputs=weight)
        rows = rows or [each.new_empty(len(ranks), *each.shape[1:]) for each in gradients]
        for found, gradient in zip(rows, gradients, strict=True):
            found[of_rank] = gradient[[images[row] for row in of_rank]]
    return rows


def _rank_within_image(images: Sequence[int]) -> list[int]:
    """Return for each row the number of earlier rows about the same image."""
    seen: Counter[int] = Counter()
    ranks = []
    for image in images:
        ranks.append(seen[image])
        seen[image] += 1
    return ranks


def _hessian_vector_product(score: Tensor, tensor: Tensor, vector: Tensor) -> Tensor:
    (gradient,) = differentiate(score, tensor, create_graph=True, materialize_grads=True)
    if not gradient.requires_grad:  # the gradient is constant
        return torch.zeros_like(vector)
    options = {"grad_outputs": vector, "retain_graph": True, "materialize_grads": True}
    # What fails now is an operation without a second derivative.
    (product,) = differentiate(gradient, tensor, hooks_have_run=True, **options)
    return product.detach()
