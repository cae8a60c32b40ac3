"""Methods for transformers, made of their attention, and one that masks their tokens.

``A_l`` is the attention matrix of layer l, ``(R, H, T, S)``: how much of each of S tokens each of T queries takes, in
each of H heads. ``⟨·⟩_h`` is the mean over the heads. The papers look at the class token's row. Here a row is looked at
if the model's head reads that token (see :attr:`camtool.attended.Attended.readers`): the class token's, both rows
where there is a distillation token, all patches' where the head averages them; several rows count alike. A last layer
that pools the tokens by a query of its own, as in SigLIP, is one more layer, into which no token carries over.

Maps are on the grid of the tokens, without the class token and its like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from camtool.attended import Attended
from camtool.evidence import Evidence
from camtool.maps import min_max
from camtool.methods.options import check_choice, check_count, check_number
from camtool.methods.registry import method

__all__ = ["agcam", "chefer", "gradeclip", "legrad", "rollout", "vitreciprocam"]


# ------------------------------------------------------------------------------------------------- through all layers


@method("rollout", paper="arXiv 2005.00928", needs="attention", at_input=True)
def rollout(evidence: Evidence, *, fusion: str = "mean", discard: float = 0.0) -> Tensor:
    """Multiply the attention of all layers.

    ``Â_L ⋯ Â_2 Â_1`` with ``Â = (⟨A⟩_h + I) / 2``, where ``I`` is what the skip connection carries past the attention
    (Abnar and Zuidema 2020, section 3). It knows no class: all classes of a picture have the same map. With other
    options than the paper's the rows of ``Â`` are scaled to sum to 1, too.

    Args:
        evidence: What the model showed.
        fusion: How the heads become one: ``"mean"``, as in the paper, ``"max"`` or ``"min"``.
        discard: The part of each layer's matrix, the weakest attention in it, that is taken for zero; 0, as in the
            paper, keeps all.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: An option is out of range, or the model has no attention over one set of tokens.
    """
    check_choice("fusion", fusion, _FUSIONS)
    check_number("discard", discard, least=0, below=1)
    seen = evidence.attention
    fused = [_without_weakest(_FUSIONS[fusion](matrix, 1), discard) for matrix in seen.matrices]
    return seen.on_grid(_followed_back(seen, [_scaled(_with_skip(matrix)) for matrix in fused]))


@method("chefer", paper="arXiv 2103.15679", needs="attention, gradients", at_input=True)
def chefer(evidence: Evidence) -> Tensor:
    """Follow the class's attention over all layers.

    ``R ← R + Ā R`` layer by layer, from ``R = I``, with ``Ā = ⟨relu(∇A ⊙ A)⟩_h`` and ``∇A`` the gradient of the score
    (Chefer et al. 2021, eq. 5 and 6). A pooling at the end has no ``R`` of its own to add to: there it is ``Ā R``.

    Args:
        evidence: What the model showed.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, or no gradient reaches it.
    """
    seen = evidence.attention
    speaks = [(g * A).relu().mean(1) for A, g in zip(seen.matrices, seen.gradients, strict=True)]
    return seen.on_grid(_followed_back(seen, [_with_skip(matrix) for matrix in speaks]))


# ---------------------------------------------------------------------------------------------- layer by layer, summed


@method("agcam", paper="arXiv 2402.04563", needs="attention, gradients", at_input=True)
def agcam(evidence: Evidence) -> Tensor:
    """Weigh query-key match by positive gradients.

    ``Σ_l Σ_h sigmoid(Z) ⊙ relu(∇A)`` in the row that is read, with ``Z`` the logits of which ``A`` is the softmax (Leem
    and Seo 2024, eq. 2 and 7). The sigmoid replaces the softmax because that leaves peaks at a few tokens.

    ``∇A`` is the gradient that passes by skip connections and MLPs only: the queries, keys and values of every
    self-attention count as constants, as the authors' program detaches the input of every attention. An attention at
    the end that pools the tokens has no skip connection and is not held; the authors' models have none.

    Args:
        evidence: What the model showed.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, or no gradient reaches it.
    """
    seen = evidence.held_attention
    guided = [(Z.sigmoid() * g.relu()).sum(1) for Z, g in zip(seen.logits, seen.gradients, strict=True)]
    in_rows = [(read[..., None] * each).sum(1) for read, each in zip(seen.readers, guided, strict=True)]
    return seen.on_grid(torch.stack(in_rows).sum(0))


@method("legrad", paper="arXiv 2404.03214", needs="attention, gradients", cost="some passes", at_input=True)
def legrad(evidence: Evidence) -> Tensor:
    """Average attention gradients over all layers.

    The mean over the layers, heads and queries of ``relu(∂s_l / ∂A_l)``, where ``s_l`` is the score if the model's last
    norm, pooling and head were to read the tokens that block l returns (Bousselham et al. 2024, section 3). The
    attention itself is no factor.

    The authors' program averages the tokens of CLIP for ``s_l``; here they are pooled as the model does it. For a model
    that pools by attention it takes the gradient at the pooling's matrix, here it is the block's as for all models.

    Args:
        evidence: What the model showed.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, its blocks do not return them, or no gradient
            reaches it.
    """
    seen = evidence.attention
    by_layer = torch.stack([g.relu().mean((1, 2)) for g in seen.early_gradients])
    return seen.on_grid(by_layer.mean(0))


# -------------------------------------------------------------------------------------------------- at the last layer


@method("gradeclip", paper="arXiv 2502.18816", needs="attention, gradients", at_input=True)
def gradeclip(evidence: Evidence) -> Tensor:
    """Weigh values by gradient and query-key match.

    ``relu(Σ_c w_c λ_j v_jc)`` at token j of the last layer, with ``w`` the gradient of the score towards what the
    attention returns for the query that is read, ``v_j`` the values, and ``λ_j`` the cosine between that query and the
    key, scaled over the patches into [0, 1]: a loosened attention, less sparse than the softmax (Zhao et al. 2024 and
    2025, section 3). Channels ``c`` and cosines are over all heads together.

    The authors' program computes the last layer with a single head, which makes it another model, and sends queries
    and keys through the output projection before it compares them. Here the model keeps its heads, and queries and keys
    are compared as they are.

    Args:
        evidence: What the model showed.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, or no gradient reaches it.
    """
    seen = evidence.attention
    queries, keys, values = (_heads_joined(each) for each in (seen.queries, seen.keys, seen.values))
    keys, values = keys[:, seen.layout.prefix :], values[:, seen.layout.prefix :]
    cosines = normalize(queries, dim=-1) @ normalize(keys, dim=-1).mT
    loosened = min_max(cosines.flatten(0, 1)).reshape(cosines.shape)
    # A query that is not read has no gradient, so all of them may be summed up.
    added = loosened * (_heads_joined(seen.output_gradients) @ values.mT)
    return added.sum(1).relu().reshape(-1, *seen.layout.grid)


# ---------------------------------------------------------------------------------------------- each token by itself


@method("vitreciprocam", paper="arXiv 2310.02588", needs="attention, forwards", cost="many tails", at_input=True)
def vitreciprocam(evidence: Evidence, *, gaussian: bool = True, chunk: int | None = None) -> Tensor:
    """Score each token with only neighbors shown.

    ``M(p)`` is the score with all tokens that enter the attention of the last block set to zero but those around ``p``,
    which are weighed by a Gaussian of 3 x 3; the class token and its like stay (Byun and Lee 2023). Attention only
    tells where that is: behind the block's first norm, as in the paper. What goes past the attention is not masked,
    which a model with a class token does not notice.

    Args:
        evidence: The model and its pictures.
        gaussian: Keep the neighbours; without it only ``p`` itself.
        chunk: How many tokens are tried at once; by default as many as fit into memory.

    Returns:
        Maps of scores ``(R, h, w)``.

    Raises:
        MethodError: The model has no attention over one set of tokens, no layer returns just what the last attention is
            given, or ``chunk`` is less than 1.
    """
    check_count("chunk", chunk, optional=True)
    seen = evidence.at(evidence.attention.entry)
    tokens = seen.activations
    masks = _windows(tokens.shape[2:], gaussian=gaussian).to(tokens)
    maps = tokens.new_empty(len(tokens), len(masks))
    for rows in seen.by_image:
        own = tokens[rows[0]]
        maps[rows] = seen.tails(rows, len(masks), partial(_masked, own, masks), chunk=chunk).T.to(tokens)
    return maps.reshape(len(tokens), *tokens.shape[2:])


def _windows(grid: Sequence[int], *, gaussian: bool) -> Tensor:
    """For each position a mask ``(h, w)`` that shows it, and its neighbours less: ``(h · w, h, w)``."""
    rows, columns = ((_gaussian if gaussian else torch.eye)(size) for size in grid)
    return torch.einsum("iy,jx->ijyx", rows, columns).flatten(0, 1)


def _gaussian(size: int) -> Tensor:
    """Along one axis: 1/2 at the place itself, 1/4 at those next to it."""
    return (torch.eye(size) + torch.ones(size, size).tril(1).triu(-1)) / 4


def _masked(tokens: Tensor, masks: Tensor, part: slice) -> Tensor:
    """Tokens ``(C, h, w)`` behind some of the masks, ``(m, C, h, w)``."""
    return tokens * masks[part, None]


# ---------------------------------------------------------------------------------------------------- what they share

_FUSIONS: dict[str, Callable[[Tensor, int], Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


def _followed_back(seen: Attended, mixings: Sequence[Tensor]) -> Tensor:
    """What the tokens that are read are made of, if each layer mixes them so, ``(R, T, S)``: ``(R, S)``."""
    made_of = seen.readers[-1][:, None]
    for mixing in reversed(mixings):
        made_of = made_of @ mixing
    return made_of[:, 0]


def _with_skip(matrix: Tensor) -> Tensor:
    """A layer's matrix ``(R, T, S)`` and what goes past it; a pooling has other queries, so nothing does."""
    queries, keys = matrix.shape[1:]
    return matrix + torch.eye(keys).to(matrix) if queries == keys else matrix


def _scaled(matrix: Tensor) -> Tensor:
    """Rows that sum to 1, or to 0."""
    return matrix / matrix.sum(-1, keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)


def _without_weakest(matrix: Tensor, part: float) -> Tensor:
    """A matrix ``(R, T, S)`` less the weakest part of its numbers."""
    count = math.floor(part * matrix[0].numel())
    if not count:
        return matrix
    weakest = matrix.flatten(1).kthvalue(count, dim=1).values
    return torch.where(matrix > weakest[:, None, None], matrix, 0)


def _heads_joined(tensor: Tensor) -> Tensor:
    """``(R, H, T, D)`` as ``(R, T, H · D)``."""
    return tensor.transpose(1, 2).flatten(2)
