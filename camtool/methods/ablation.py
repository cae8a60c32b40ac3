"""Methods that take a part of the activations away, or leave nothing else, and see what becomes of the score.

They need no gradient, and of the model they run only what follows the layer. Where that is global average pooling and
one linear layer they run nothing at all: what such a head gives for other activations is arithmetic, and exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from camtool.evidence import Evidence
from camtool.maps import per_row
from camtool.methods.options import check_count
from camtool.methods.registry import method, weighting

__all__ = ["ablationcam", "reciprocam"]


# ------------------------------------------------------------------------------------------------- channels removed


@weighting("ablationcam", paper="10.1109/WACV45572.2020.9093360", needs="forwards", cost="many tails")
def ablationcam(evidence: Evidence, *, chunk: int | None = None) -> Tensor:
    """Weigh channels by the score lost without them.

    ``w_k = (y - y_k) / |y|``, the part of the score ``y`` that is lost when channel ``k`` is set to zero (Desai and
    Ramaswamy 2020). The paper, for which the score of the class is positive, divides by ``y``; a negative
    one would turn the map over and show what speaks against the target. Where ``y`` is next to nothing beside the
    drops, a rounding of the largest of them takes its place.

    Behind a pooled linear head ``y_k`` follows from the logits less the head's weights times the channel's mean, for
    all channels at once: equal to running the tail, and free. Channels that are zero already are not run. Of a
    transformer's tokens those that are no part of the grid stay.

    Args:
        evidence: The activations, and the tail that is run on variants of them.
        chunk: How many channels are tried at once; by default as many as fit into memory.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: ``chunk`` is less than 1.
    """
    check_count("chunk", chunk, optional=True)
    A = evidence.activations
    drops, y = A.new_zeros(A.shape[:2]), evidence.scores.to(A)[:, None]
    for rows in evidence.by_image:
        drops[rows] = _drops(evidence, rows, chunk).to(A)
    least = torch.finfo(A.dtype).eps * drops.abs().amax(1, keepdim=True)
    scale = torch.maximum(y.abs(), least)
    return per_row(drops / torch.where(scale > 0, scale, 1), A)


def _drops(evidence: Evidence, rows: Sequence[int], chunk: int | None) -> Tensor:
    """How far the scores of one image's rows fall without each channel, ``(rows, C)``."""
    A, head = evidence.activations[rows[0]], evidence.shortcut
    if head is not None:
        logits = evidence.logits[evidence.images[rows[0]]].to(head.weight)
        without = logits - (head.weight * head.maps[rows[0]].flatten(1).mean(1)).T
        return (evidence.of_logits(rows, logits[None]) - evidence.of_logits(rows, without)).T

    fires = A.flatten(1).any(1).nonzero()[:, 0]

    def without_one(part: slice) -> Tensor:
        channels = fires[part]
        variants = A.repeat(len(channels), *[1] * A.ndim)
        variants[range(len(channels)), channels] = 0
        return variants

    drops = A.new_zeros(len(rows), len(A))
    if len(fires):
        left = evidence.tails(rows, len(fires), without_one, chunk=chunk).to(A)
        drops[:, fires] = evidence.scores.to(A)[rows, None] - left.T
    return drops


# -------------------------------------------------------------------------------------------------- positions alone


@method("reciprocam", paper="arXiv 2209.14074", needs="forwards", cost="many tails")
def reciprocam(evidence: Evidence, *, gaussian: bool = False, chunk: int | None = None) -> Tensor:
    """Score each position with all others silenced.

    ``M(p)`` is the score of ``A ⊙ 1_p``, the activations with all positions but ``p`` set to zero, in every channel
    (Byun and Lee 2022). The score is the target's own, a logit for a class; the authors' program takes the softmax
    probability. The paper scales the map into [0, 1] at once; here that is done last, as for every method, so the raw
    map holds the scores. Behind a pooled linear head they are arithmetic. Of a transformer's tokens
    those that are no part of the grid stay.

    Args:
        evidence: The activations, and the tail that is run on variants of them.
        gaussian: Spread the activations at ``p`` over its neighbors by a Gaussian kernel: 1/2 for the position itself
            and 1/4 for the next ones along each axis, so 3 x 3 positions on an image. The authors' program has this
            kernel and calls it switched off.
        chunk: How many positions are tried at once; by default as many as fit into memory.

    Returns:
        Maps of scores ``(R, *grid)``.

    Raises:
        MethodError: ``chunk`` is less than 1.
    """
    check_count("chunk", chunk, optional=True)
    A = evidence.activations
    kernels = [(_gaussian if gaussian else torch.eye)(size).to(A) for size in A.shape[2:]]
    maps = A.new_empty(len(A), A[0, 0].numel())
    for rows in evidence.by_image:
        maps[rows] = _alone(evidence, rows, kernels, chunk).T.to(A)
    return maps.reshape(len(A), *A.shape[2:])


def _alone(evidence: Evidence, rows: Sequence[int], kernels: list[Tensor], chunk: int | None) -> Tensor:
    """The scores of one image's rows with each position alone, ``(positions, rows)``.

    The kernels tell for each axis, ``(n, n)``, how what stands at one place is spread over all of them.
    """
    A, head = evidence.activations[rows[0]], evidence.shortcut
    if head is not None:
        mass = _product([kernel.sum(1) for kernel in kernels]) / A[0].numel()
        pooled = (head.maps[rows[0]] * mass).flatten(1).T
        return evidence.of_logits(rows, pooled.to(head.weight) @ head.weight.T + head.bias)

    values, places = A.flatten(1).T, torch.arange(A[0].numel(), device=A.device)

    def alone(part: slice) -> Tensor:
        at = torch.unravel_index(places[part], A.shape[1:])
        spread = _product([kernel[index] for kernel, index in zip(kernels, at, strict=True)])
        return values[part].reshape(*values[part].shape, *[1] * len(at)) * spread[:, None]

    return evidence.tails(rows, len(places), alone, chunk=chunk)


def _gaussian(size: int) -> Tensor:
    return (torch.eye(size) + torch.ones(size, size).tril(1).triu(-1)) / 4


def _product(factors: list[Tensor]) -> Tensor:
    """From one ``(..., n)`` an axis their outer product over the axes, ``(..., *grid)``."""
    result = factors[0]
    for number, factor in enumerate(factors[1:], 1):
        result = result[..., None] * factor.reshape(*factor.shape[:-1], *[1] * number, factor.shape[-1])
    return result
