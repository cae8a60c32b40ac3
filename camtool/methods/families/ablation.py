"""Ablation methods: change the activations of a layer, and measure the change of the score.

They need no gradient and run only the tail, the part of the model after the layer. If the tail is global average
pooling and one linear layer, nothing runs: the score of other activations follows from the weights exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from camtool.arguments.checks import OptionalCount
from camtool.evidence.evidence import Evidence
from camtool.evidence.linear_head import LinearHead, find_scoring_head
from camtool.evidence.rescoring import score_activations, score_logits
from camtool.maps import unsqueeze_like
from camtool.methods.options import Scored, prefer_probability
from camtool.methods.registry import method, weighting
from camtool.targets import Target


@weighting("ablationcam", paper="10.1109/WACV45572.2020.9093360", needs="forwards", cost="many tails")
def ablationcam(evidence: Evidence, *, chunk: OptionalCount = None) -> Tensor:
    """Weigh channels by the score lost without them.

    ``w_k = ± (y - y_k) / |y|``, where ``y_k`` is the score ``y`` with channel ``k`` set to zero (Desai and Ramaswamy
    2020). The paper divides by ``y`` and assumes that it is positive; dividing by a negative score would invert the map
    and show what speaks against the target. If ``|y|`` is smaller than the rounding error of the largest drop, that
    error is the divisor.

    After a pooled linear head, ``y_k`` follows from the logits minus the head's weights times the channel's mean, for
    all channels at once: equal to running the tail, without its cost. Channels that are zero everywhere are not run. A
    transformer's prefix tokens are not changed.

    The paper has activations behind a ReLU. At layers that have negative ones (ConvNeXt, Swin, ViT) the drop without a
    channel whose sum is negative would weigh it the wrong way round: what it adds to the score is its weight times its
    activations. So the drop has the sign of ``Σ A`` there.

    Args:
        evidence: The activations, and the tail to run on variants of them.
        chunk: The number of channels in one pass; by default as many as fit into memory.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: ``chunk`` is less than 1.
    """
    A = evidence.activations
    drops, y = A.new_zeros(A.shape[:2]), evidence.scores.to(A)[:, None]
    head = find_scoring_head(evidence)
    for rows in evidence.rows_by_image:
        drops[rows] = _compute_drops(evidence, rows, head, chunk).to(A)
    smallest = torch.finfo(A.dtype).eps * drops.abs().amax(1, keepdim=True)
    scale = torch.maximum(y.abs(), smallest)
    signed = torch.where(A.flatten(2).sum(2) < 0, -drops, drops)
    return unsqueeze_like(signed / torch.where(scale > 0, scale, 1), A)


def _compute_drops(evidence: Evidence, rows: Sequence[int], head: LinearHead | None, chunk: int | None) -> Tensor:
    """Return the drop of the scores of one image's rows without each channel, ``(rows, C)``."""
    A = evidence.activations[rows[0]]
    if head is not None:
        logits = evidence.logits[evidence.images[rows[0]]].to(head.weight)
        without = logits - (head.weight * head.maps[rows[0]].flatten(1).mean(1)).T
        return (score_logits(evidence, rows, logits[None]) - score_logits(evidence, rows, without)).T

    active = A.flatten(1).any(1).nonzero()[:, 0]

    def remove_channels(part: slice) -> Tensor:
        channels = active[part]
        variants = A.repeat(len(channels), *[1] * A.ndim)
        variants[range(len(channels)), channels] = 0
        return variants

    drops = A.new_zeros(len(rows), len(A))
    if len(active):
        remaining = score_activations(evidence, rows, len(active), remove_channels, chunk=chunk).to(A)
        drops[:, active] = evidence.scores.to(A)[rows, None] - remaining.T
    return drops


@method("reciprocam", paper="arXiv 2209.14074", needs="forwards", cost="many tails")
def reciprocam(
    evidence: Evidence, *, gaussian: bool = False, score: Scored = "target", chunk: OptionalCount = None
) -> Tensor:
    """Score each position with all others silenced.

    ``M(p)`` is the score of ``A ⊙ 1_p``: the activations with all positions except ``p`` set to zero, in every channel
    (Byun and Lee 2022). The paper scales the map to [0, 1]; here the raw map holds the scores, and scaling is the last
    step, as for every method.

    After a pooled linear head the scores follow from the weights without running the tail. A transformer's prefix
    tokens are not changed.

    Args:
        evidence: The activations, and the tail to run on variants of them.
        gaussian: Spread the activations at ``p`` over the adjacent positions by a Gaussian kernel: 1/2 at the position
            itself and 1/4 at the next ones along each axis, 3 x 3 positions on an image. The authors' code has this
            kernel, switched off.
        score: The score of a position. ``"target"``: the target's own score, a logit for a class. ``"probability"`` as
            in the authors' code: the probability of the class if the target has one, else the target's own score. It
            shows few positions if one position is enough for a probability near 1.
        chunk: The number of positions in one pass; by default as many as fit into memory.

    Returns:
        Maps of scores ``(R, *grid)``.

    Raises:
        MethodError: ``score`` is not one of these, or ``chunk`` is less than 1.
    """
    convert = prefer_probability if score == "probability" else None
    A = evidence.activations
    kernels = [
        (compute_gaussian_kernel(size) if gaussian else torch.eye(size, device="cpu")).to(A) for size in A.shape[2:]
    ]
    maps, head = A.new_empty(len(A), A[0, 0].numel()), find_scoring_head(evidence)
    for rows in evidence.rows_by_image:
        maps[rows] = _score_single_positions(evidence, rows, head, kernels, chunk, convert).T.to(A)
    return maps.reshape(len(A), *A.shape[2:])


def _score_single_positions(
    evidence: Evidence,
    rows: Sequence[int],
    head: LinearHead | None,
    kernels: list[Tensor],
    chunk: int | None,
    convert_target: Callable[[Target], Target] | None,
) -> Tensor:
    """Return the scores of one image's rows with only one position shown, ``(positions, rows)``.

    The kernels ``(n, n)``, one per axis, give the weights over which the activations of each position are spread.
    """
    A = evidence.activations[rows[0]]
    if head is not None:
        mass = _multiply_outer([kernel.sum(1) for kernel in kernels]) / A[0].numel()
        pooled = (head.maps[rows[0]] * mass).flatten(1).T
        logits = pooled.to(head.weight) @ head.weight.T + head.bias
        return score_logits(evidence, rows, logits, convert_target=convert_target)

    values, positions = A.flatten(1).T, torch.arange(A[0].numel(), device=A.device)

    def show_positions(part: slice) -> Tensor:
        indices = torch.unravel_index(positions[part], A.shape[1:])
        spread = _multiply_outer([kernel[index] for kernel, index in zip(kernels, indices, strict=True)])
        return values[part].reshape(*values[part].shape, *[1] * len(indices)) * spread[:, None]

    return score_activations(evidence, rows, len(positions), show_positions, chunk=chunk, convert_target=convert_target)


def compute_gaussian_kernel(size: int) -> Tensor:
    """Return the kernel ``(size, size)`` along one axis: 1/2 at the position itself, 1/4 at the adjacent ones."""
    return (torch.eye(size, device="cpu") + torch.ones(size, size, device="cpu").tril(1).triu(-1)) / 4


def _multiply_outer(factors: list[Tensor]) -> Tensor:
    """Return the outer product ``(..., *grid)`` of one factor ``(..., n)`` per axis of the grid."""
    result = factors[0]
    for number, factor in enumerate(factors[1:], 1):
        result = result[..., None] * factor.reshape(*factor.shape[:-1], *[1] * number, factor.shape[-1])
    return result
