"""Attention methods for transformers: maps from the attention matrices, and one that masks tokens.

``A_l`` is the attention matrix of layer l, ``(R, H, T, S)``: how much each of T queries attends to each of S tokens, in
each of H heads. ``⟨·⟩_h`` is the mean over the heads.

The papers read the row of the class token. Here the rows are read that the model's head reads, see
:meth:`camtool.evidence.attention.AttentionEvidence.compute_query_weights`: the row of the class token, two rows with a
distillation token, or all patches if the head averages them; several rows count equally. A last layer that pools the
tokens by its own query, as in SigLIP, is one more layer, past which no token is carried by a skip connection.

Maps are on the grid of the tokens, without the class token and other prefix tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import normalize

from camtool.arguments.checks import Count, NotNegative, OptionalCount, ShareBelowOne
from camtool.errors import MethodError
from camtool.evidence.attention import AttentionEvidence, capture_attention_evidence
from camtool.evidence.dense_features import capture_dense_features
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import score_activations
from camtool.maps import scale_min_max
from camtool.methods.families.ablation import compute_gaussian_kernel
from camtool.methods.options import Scored, check_choice, prefer_probability
from camtool.methods.registry import Need, method
from camtool.targets import Similarity, Target

# --------------------------------------------------------------------------------------------- product of all layers


@method("rollout", paper="arXiv 2005.00928", needs="attention", ignores_layer=True)
def rollout(evidence: Evidence, *, fusion: str = "mean", discard: ShareBelowOne = 0.0) -> Tensor:
    """Multiply the attention of all layers.

    ``Â_L ⋯ Â_2 Â_1`` with ``Â = (⟨A⟩_h + I) / 2``, where ``I`` represents the skip connection past the attention (Abnar
    and Zuidema 2020, section 3). The map is the same for all classes of an image. With options other than the paper's
    the rows of ``Â`` are also scaled to a sum of 1.

    Args:
        evidence: The model, run again to capture its attention.
        fusion: How the heads are combined: ``"mean"``, as in the paper, ``"max"`` or ``"min"``.
        discard: The fraction of each layer's matrix, its lowest values, that is set to zero; 0, as in the paper, keeps
            all.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: An option is out of range, or the model has no attention over one set of tokens.
    """
    check_choice("fusion", fusion, _FUSIONS)
    attention = capture_attention_evidence(evidence)
    fused = [_zero_lowest(_FUSIONS[fusion](matrix, 1), discard) for matrix in attention.matrices]
    return attention.to_grid(_multiply_layers(attention, [_normalize_rows(_add_skip(matrix)) for matrix in fused]))


@method("chefer", paper="arXiv 2103.15679", needs=("attention", "gradients"), ignores_layer=True)
def chefer(evidence: Evidence) -> Tensor:
    """Follow the class's attention over all layers.

    ``R ← R + Ā R`` layer by layer, from ``R = I``, with ``Ā = ⟨relu(∇A ⊙ A)⟩_h`` and ``∇A`` the gradient of the score
    (Chefer et al. 2021, eq. 5 and 6). A pooling at the end has no skip connection: there the result is ``Ā R``.

    Args:
        evidence: The model, run again to capture its attention.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, or no gradient reaches it.
    """
    attention = capture_attention_evidence(evidence)
    pairs = zip(attention.matrices, attention.compute_gradients(), strict=True)
    relevance = [(g * A).relu().mean(1) for A, g in pairs]
    return attention.to_grid(_multiply_layers(attention, [_add_skip(matrix) for matrix in relevance]))


# ------------------------------------------------------------------------------------------------- sum of all layers


@method("agcam", paper="arXiv 2402.04563", needs=("attention", "gradients"), ignores_layer=True)
def agcam(evidence: Evidence) -> Tensor:
    """Weigh query-key match by positive gradients.

    ``Σ_l Σ_h sigmoid(Z) ⊙ relu(∇A)`` in the row that is read, where ``Z`` are the attention logits with
    ``A = softmax(Z)`` (Leem and Seo 2024, eq. 2 and 7). The paper uses the sigmoid because the softmax is concentrated
    at few tokens.

    ``∇A`` is the gradient through skip connections and MLPs only: the queries, keys and values of every self-attention
    are treated as constants. The authors' code detaches the input of every attention for this. An attention at the end
    that pools the tokens has no skip connection and is not treated so; the authors' models have none.

    Args:
        evidence: The model, run again to capture its attention.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, or no gradient reaches it.
    """
    attention = capture_attention_evidence(evidence, hold_inputs=True)
    pairs = zip(attention.logits, attention.compute_gradients(), strict=True)
    by_layer = [(Z.sigmoid() * g.relu()).sum(1) for Z, g in pairs]
    weights = attention.compute_query_weights()
    read = [(weight[..., None] * layer).sum(1) for weight, layer in zip(weights, by_layer, strict=True)]
    return attention.to_grid(torch.stack(read).sum(0))


@method("legrad", paper="arXiv 2404.03214", needs=("attention", "gradients"), cost="some passes", ignores_layer=True)
def legrad(evidence: Evidence, *, layers: OptionalCount = None) -> Tensor:
    """Average attention gradients over the layers.

    The mean over the layers, heads and queries of ``relu(∂s_l / ∂A_l)``, where ``s_l`` is the score if the model's last
    norm, pooling and head read the tokens that block l returns (Bousselham et al. 2024, section 3). The attention
    itself is not a factor.

    The authors' code averages the tokens of CLIP for ``s_l``; here they are pooled as the model pools them. For a model
    that pools by attention, the authors' code uses the gradient at the matrix of the pooling; here it is that of the
    block, as for all models.

    Args:
        evidence: The model, run again to capture its attention.
        layers: The number of layers that count, the last ones; by default all, as in the paper. The authors' code uses
            the last 2 by default.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, its blocks do not return them, no gradient
            reaches it, or ``layers`` is less than 1 or more than the model has.
    """
    attention = capture_attention_evidence(evidence)
    by_layer = torch.stack([g.relu().mean((1, 2)) for g in attention.compute_early_exit_gradients(layers)])
    return attention.to_grid(by_layer.mean(0))


# ---------------------------------------------------------------------------------------------------- the last layer


@method("gradeclip", paper="arXiv 2502.18816", needs=("attention", "gradients"), ignores_layer=True)
def gradeclip(evidence: Evidence) -> Tensor:
    """Weigh values by gradient and query-key match.

    ``relu(Σ_c w_c λ_j v_jc)`` at token j of the last layer, where ``w`` is the gradient of the score with respect to
    the attention's output for the query that is read, and ``v_j`` are the values. ``λ_j`` is the cosine between that
    query and the key, scaled over the patches to [0, 1]: a loosened attention, less sparse than the softmax (Zhao et
    al. 2024 and 2025, section 3). Channels ``c`` and cosines are taken over all heads together.

    The authors' code computes the last layer with a single head, which changes the model, and sends queries and keys
    through the output projection before it compares them. Here the model keeps its heads, and queries and keys are
    compared directly.

    Args:
        evidence: The model, run again to capture its attention.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: The model has no attention over one set of tokens, or no gradient reaches it.
    """
    attention = capture_attention_evidence(evidence)
    queries, keys, values = (_join_heads(heads) for heads in (attention.queries, attention.keys, attention.values))
    keys, values = (attention.layout.to_grid(tokens).flatten(2).mT for tokens in (keys, values))
    cosines = normalize(queries, dim=-1) @ normalize(keys, dim=-1).mT
    loosened = scale_min_max(cosines.flatten(0, 1)).reshape(cosines.shape)
    # The gradient of a query that is not read is 0, so the sum over all queries is correct.
    by_query = loosened * (_join_heads(attention.compute_output_gradients()) @ values.mT)
    return by_query.sum(1).relu().reshape(-1, *attention.layout.grid)


@method(
    "vitreciprocam", paper="arXiv 2310.02588", needs=("attention", "forwards"), cost="many tails", ignores_layer=True
)
def vitreciprocam(
    evidence: Evidence, *, gaussian: bool = True, score: Scored = "target", chunk: OptionalCount = None
) -> Tensor:
    """Score each token with only neighbors shown.

    ``M(p)`` is the score if the tokens that enter the attention of the last block are multiplied by a 3 x 3 Gaussian
    around ``p`` and are zero elsewhere; the class token and other prefix tokens stay (Byun and Lee 2023). As in the
    paper the tokens are masked after the first norm of the block. The skip connection past the attention is not masked;
    this has no effect on a model with a class token.

    Args:
        evidence: The model and its inputs.
        gaussian: Also show the adjacent tokens; otherwise only ``p`` itself.
        score: The score of a token. ``"target"``: the target's own score, a logit for a class. ``"probability"`` as in
            the authors' code: the probability of the class if the target has one, else the target's own score.
        chunk: The number of tokens in one pass; by default as many as fit into memory.

    Returns:
        Maps of scores ``(R, h, w)``.

    Raises:
        MethodError: The model has no attention over one set of tokens, no layer returns exactly the input of the last
            attention, ``score`` is not one of these, or ``chunk`` is less than 1.
    """
    convert = prefer_probability if score == "probability" else None
    at_input = evidence.at_layer(capture_attention_evidence(evidence).find_input_layer())
    tokens = at_input.activations
    masks = _make_windows(tokens.shape[2:], gaussian=gaussian).to(tokens)
    maps = tokens.new_empty(len(tokens), len(masks))
    for rows in at_input.rows_by_image:
        mask_tokens = partial(_mask_tokens, tokens[rows[0]], masks)
        scores = score_activations(at_input, rows, len(masks), mask_tokens, chunk=chunk, convert_target=convert)
        maps[rows] = scores.T.to(tokens)
    return maps.reshape(len(tokens), *tokens.shape[2:])


def _make_windows(grid: Sequence[int], *, gaussian: bool) -> Tensor:
    """Return for each position a mask ``(h, w)`` that shows it and, with less weight, its neighbors."""
    rows, columns = ((compute_gaussian_kernel if gaussian else torch.eye)(size) for size in grid)
    return torch.einsum("iy,jx->ijyx", rows, columns).flatten(0, 1)


def _mask_tokens(tokens: Tensor, masks: Tensor, part: slice) -> Tensor:
    """Return tokens ``(C, h, w)`` times some of the masks, ``(m, C, h, w)``."""
    return tokens * masks[part, None]


# ------------------------------------------------------------------------------------------- what single patches say

# Texts, or their embeddings, that a map is to have nothing in common with.
Against: TypeAlias = str | Tensor | Similarity | Sequence[str | Tensor | Similarity]

# The needs of methods that read each patch in the way the head reads the class token.
_ON_PATCHES: tuple[Need, ...] = ("one head on all tokens", "attention")


@method("maskclip", paper="arXiv 2112.01071", needs=_ON_PATCHES, cost="some passes", ignores_layer=True)
def maskclip(evidence: Evidence) -> Tensor:
    """Score the values of patches in the last layer.

    The value at each patch is the target's score on the patch's dense feature: for a text, the cosine of their
    embeddings. The dense feature is what the model's last norm and projection make of the patch's token, see
    :mod:`camtool.evidence.dense_features`. The token is ``W_o v_j``, the value of patch j through the output projection
    of the last attention: each patch attends to itself alone, and there is no skip connection and no MLP (Zhou et al.
    2022).

    Args:
        evidence: The model, run again to capture its attention.

    Returns:
        Maps of scores ``(R, h, w)``; cosines in [-1, 1] for texts.

    Raises:
        MethodError: The model has no attention over one set of tokens, or its head does not read single tokens or their
            mean.
    """
    features = capture_dense_features(evidence)
    return features.score(features.project(-1, features.get_values(-1)))


@method("clearclip", paper="arXiv 2407.12442", needs=_ON_PATCHES, cost="some passes", ignores_layer=True)
def clearclip(evidence: Evidence) -> Tensor:
    """Score each patch after attention by similar queries.

    The value at each patch is the target's score on its dense feature, as for :func:`maskclip`. The token of a patch is
    ``W_o softmax(q qᵀ / sqrt(D)) v`` in the last layer, without skip connection and MLP (Lan et al. 2024): each
    patch attends to those that ask for the same.

    Args:
        evidence: The model, run again to capture its attention.

    Returns:
        Maps of scores ``(R, h, w)``; cosines in [-1, 1] for texts.

    Raises:
        MethodError: As for :func:`maskclip`, or the attention has a bias or an unknown scale.
    """
    features = capture_dense_features(evidence)
    queries, scale = features.get_queries(-1), features.find_scale(-1)
    return features.score(features.project(-1, _attend_by_similarity(queries, features.get_values(-1), scale)))


@method("clipsurgery", paper="arXiv 2304.05653", needs=_ON_PATCHES, cost="some passes", ignores_layer=True)
def clipsurgery(
    evidence: Evidence, *, blocks: Count = 6, against: Against | None = None, temperature: NotNegative = 2.0
) -> Tensor:
    """Score each patch by consistent attention, minus what texts share.

    Architecture surgery (Li et al. 2023): the token of a patch is the input of the first of the last
    ``blocks`` blocks, plus ``W_o softmax(v vᵀ / sqrt(D)) v`` of each of them, without their MLPs. The values ``v`` are
    those of the unchanged model. The cosine ``c_t`` of text t is that of its embedding and the patch's dense feature,
    see :func:`maskclip`.

    Feature surgery: the map of text t is ``w_t c_t - mean_s(w_s c_s)`` over all texts s that are the
    targets of this image in the same call, with the weights ``w = p / mean(p)``, ``p = softmax(temperature · C)``, and
    the texts' cosines ``C`` to the whole image. So the maps of texts of one image depend on each other. With
    ``against``, the map is ``c_t - mean_s(c_s)`` over those texts instead. With one text and no ``against``, nothing is
    subtracted, and the explanation has a warning.

    Targets that are no similarities have no feature surgery: their map is the score on each patch's feature.

    Args:
        evidence: The model, run again to capture its attention.
        blocks: The number of last blocks; all of them if the model has fewer. The paper's code has 6 of 12.
        against: A text or several, as strings if the model was loaded with its tokenizer, or embeddings ``(D,)`` or
            ``(S, D)``. The paper's code takes the empty text ``""`` if there is one text only.
        temperature: How strongly texts that fit the whole image outweigh others; 2 as in the paper's code.

    Returns:
        Maps ``(R, h, w)``.

    Raises:
        MethodError: As for :func:`clearclip`, an option is out of range, or ``against`` is no text or embedding.
    """
    redundant = _read_embeddings(against)
    features = capture_dense_features(evidence)
    first = -min(blocks, features.layer_count)
    tokens = features.get_input_tokens(first)
    for layer in range(first, 0):
        values = features.get_values(layer)
        tokens = tokens + features.project(layer, _attend_by_similarity(values, values, features.find_scale(layer)))
    return features.score(tokens, _subtract_redundancy(evidence, redundant, temperature))


def _attend_by_similarity(vectors: Tensor, values: Tensor, scale: float) -> Tensor:
    """Return the output ``(N, H, T, D)`` of an attention whose vectors are both queries and keys."""
    return (vectors @ vectors.mT * scale).softmax(-1) @ values


# From the output of a model to one score per image.
Score: TypeAlias = Callable[[Any], Tensor]


def _subtract_redundancy(evidence: Evidence, redundant: Sequence[Similarity], temperature: float) -> list[Score]:
    """Return for each row the score of its target minus what texts share, see :func:`clipsurgery`.

    Raises:
        MethodError: There are redundant texts, but the target of a row is no similarity.
    """
    scores: list[Score] = list(evidence.targets)
    for rows in evidence.rows_by_image:
        texts = {row: target for row in rows if (target := evidence.targets[row]).traits.is_similarity}
        if redundant and len(texts) < len(rows):
            raise MethodError("against: only the similarity to a text or an embedding can have redundant texts.")
        weights = (temperature * evidence.scores[[*texts]]).softmax(0) * len(texts)
        weighted = [*zip(weights.tolist(), texts.values(), strict=True)]
        for (row, target), weight in zip(texts.items(), weights.tolist(), strict=True):
            if redundant:
                scores[row] = partial(_compute_contrast, (1.0, target), [(1.0, similarity) for similarity in redundant])
            elif len(texts) > 1:
                scores[row] = partial(_compute_contrast, (weight, target), weighted)
            else:
                evidence.add_note(row, _NOTHING_SUBTRACTED)
    return scores


_NOTHING_SUBTRACTED = (
    "The map is not free of what all texts share, as the image has one text only: give several texts, or against=''."
)


def _compute_contrast(own: tuple[float, Score], others: Sequence[tuple[float, Score]], output: Any) -> Tensor:
    """Return a weighted score minus the mean of others, ``(M,)``."""
    shared = torch.stack([weight * score(output) for weight, score in others]).mean(0)
    return own[0] * own[1](output) - shared


def _read_embeddings(against: Against | None) -> list[Similarity]:
    """Return the similarities to the embeddings of the option ``against``.

    Raises:
        MethodError: It is no embedding, or a text that was not encoded, as the model has no text encoder.
    """
    if against is None:
        return []
    is_list = isinstance(against, (list, tuple)) or (isinstance(against, Tensor) and against.ndim > 1)
    items: Sequence[Any] = [*against] if is_list else [against]  # type: ignore[misc]
    for entry in items:
        if not _is_similarity(entry) and not (isinstance(entry, Tensor) and entry.ndim == 1):
            raise MethodError(
                f"against must be embeddings, (D,) or (S, D), got {type(entry).__name__}; texts work with models that "
                "were loaded with their tokenizer."
            )
    return [entry if _is_similarity(entry) else Similarity(entry, "against") for entry in items]


def _is_similarity(given: Any) -> bool:
    return isinstance(given, Target) and given.traits.is_similarity


# ------------------------------------------------------------------------------------------------- shared functions

_FUSIONS: dict[str, Callable[[Tensor, int], Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


def _multiply_layers(attention: AttentionEvidence, matrices: Sequence[Tensor]) -> Tensor:
    """Return the mean of the rows that are read, in the product of the layers' matrices ``(R, T, S)``: ``(R, S)``."""
    # From the last layer backwards, only one row has to be multiplied.
    row = attention.compute_query_weights()[-1][:, None]
    for matrix in reversed(matrices):
        row = row @ matrix
    return row[:, 0]


def _add_skip(matrix: Tensor) -> Tensor:
    """Return a layer's matrix ``(R, T, S)`` plus the identity for its skip connection, which a pooling has not."""
    queries, keys = matrix.shape[1:]
    return matrix + torch.eye(keys, device="cpu").to(matrix) if queries == keys else matrix


def _normalize_rows(matrix: Tensor) -> Tensor:
    """Return the matrix with rows that sum to 1, or to 0."""
    return matrix / matrix.sum(-1, keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)


def _zero_lowest(matrix: Tensor, fraction: float) -> Tensor:
    """Return a matrix ``(R, T, S)`` with the lowest fraction of its values set to zero."""
    count = math.floor(fraction * matrix[0].numel())
    if not count:
        return matrix
    lowest = matrix.flatten(1).kthvalue(count, dim=1).values
    return torch.where(matrix > lowest[:, None, None], matrix, 0)


def _join_heads(tensor: Tensor) -> Tensor:
    """Return ``(R, H, T, D)`` as ``(R, T, H · D)``."""
    return tensor.transpose(1, 2).flatten(2)
