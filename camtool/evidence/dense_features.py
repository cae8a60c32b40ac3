"""Dense features: what a transformer's head says of each patch token alone.

A head that reads the class token, or the mean of the tokens, can read any token. The dense feature of a patch is the
output of the model if every token that the last block returns is the token of this patch. For CLIP this is the last
norm and the projection of the token, in the space of the texts. With the tokens as the model has them, most patches
show what the class token shows; so methods change the last blocks first, see :class:`DenseFeatures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from camtool.errors import MethodError, TargetError, raise_interrupt
from camtool.evidence.attention import find_common_layout, is_self_attention
from camtool.evidence.evidence import Evidence
from camtool.hooks.attention.branches import AttentionBranch, CapturedBranches
from camtool.hooks.attention.capture import AttentionBlock
from camtool.hooks.chunks import get_most_rows
from camtool.hooks.observation import resume
from camtool.layers.layouts import Layout
from camtool.maps import upcast
from camtool.outputs import predictions

_OTHER_METHODS = "use method='gradeclip', 'chefer' or 'gradcam', which need no features of single patches."

# Largest difference between what the head should return and what it does, relative to the norm: above the rounding of
# half precision, below the difference between the features of two tokens.
_HEAD_ERROR = 0.05


def capture_dense_features(evidence: Evidence) -> DenseFeatures:
    """Run the model again and return the parts of its last blocks, as evidence about the same rows.

    Raises:
        MethodError: The model has no attention over one set of tokens, it pools them by attention, its last block does
            not add the attention to its input, or its output is not a vector ``(N, K)`` per image.
    """
    captured = evidence.forward_pass.capture_branches()
    layout = find_common_layout(captured.attention, evidence)
    if not is_self_attention(captured.attention.calls[-1]):
        raise MethodError(
            "the model pools its tokens by attention, as SigLIP does, so its last block has no class token or mean "
            f"whose place a patch could take; {_OTHER_METHODS}"
        )
    block, embeddings = captured.attention.blocks[-1], evidence.forward_pass.predictions
    if block is None or captured.branches[-1] is None:
        raise MethodError(
            "the last block of the model does not add the output of its attention to its own input, as pre-norm "
            f"transformers do; {_OTHER_METHODS}"
        )
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
        raise MethodError(f"the model must return one vector per image, (N, K); {_OTHER_METHODS}")
    return DenseFeatures(evidence, captured, block, layout, embeddings)


class DenseFeatures:
    """The last blocks of a transformer, whose parts can be run with another attention.

    A layer here is one attention call, in the order in which they ran. Negative numbers count from the last one.

    Args:
        evidence: Evidence about the rows.
        captured: The captured forward pass. Its last attention is self-attention, with a branch.
        block: The block around the last attention.
        layout: The layout of the tokens on the image.
        embeddings: ``(N, K)``, the output of the model for each image.
    """

    def __init__(
        self, evidence: Evidence, captured: CapturedBranches, block: AttentionBlock, layout: Layout, embeddings: Tensor
    ) -> None:
        self._evidence, self._block, self._layout, self._embeddings = evidence, block, layout, upcast(embeddings)
        self._calls, self._blocks = captured.attention.calls, captured.attention.blocks
        self._branches = captured.branches
        self._token_axis = self._find_token_axis()

    @property
    def layer_count(self) -> int:
        """The number of layers."""
        return len(self._calls)

    def get_values(self, layer: int) -> Tensor:
        """Return the values of a layer, ``(N, H, T, D)``, in float32 or wider."""
        return upcast(self._calls[layer].values)

    def get_queries(self, layer: int) -> Tensor:
        """Return the queries of a layer, ``(N, H, T, D)``, in float32 or wider; for products see :meth:`find_scale`."""
        return upcast(self._calls[layer].queries)

    def find_scale(self, layer: int) -> float:
        """Return the factor of the products of queries and keys in a layer, ``1 / sqrt(D)``.

        Raises:
            MethodError: The logits are not these products times this factor: there is a bias or a mask, or the queries
                come scaled, so that it is not known what other products would have to be scaled by.
        """
        call = self._calls[layer]
        logits, scale = upcast(call.logits()), 1 / math.sqrt(call.queries.shape[-1])
        products = upcast(call.queries) @ upcast(call.keys).mT * scale
        if float((logits - products).norm()) > _HEAD_ERROR * float(logits.norm()):
            raise MethodError(
                f"the attention {call.name!r} does not scale the products of queries and keys by 1 / sqrt(D) alone: it "
                "has a bias or a mask, or scales the queries before. Use method='maskclip', which needs no products, "
                "or method='gradeclip'."
            )
        return scale

    def project(self, layer: int, output: Tensor) -> Tensor:
        """Return what a layer would add to its input tokens, for another output of its attention.

        Args:
            layer: The layer.
            output: ``(N, H, T, D)``, in the place of the attention's output.

        Returns:
            ``(N, T, C)``.

        Raises:
            MethodError: The output of the attention could not be followed to a skip connection.
        """
        with self._evidence.forward_pass.restore_autocast():
            return self._to_batch_first(self._get_branch(layer).project(output))

    def get_input_tokens(self, layer: int) -> Tensor:
        """Return the tokens that the skip connection carries past the attention of a layer, ``(N, T, C)``.

        Raises:
            MethodError: There is no such skip connection, or the blocks that follow do not just add to these tokens.
        """
        index = layer % len(self._calls)
        for later in range(index + 1, len(self._calls)):
            block = self._blocks[later - 1]
            if block is None or not torch.equal(block.output, self._get_branch(later).skip):
                raise MethodError(
                    f"the tokens change between the blocks around {self._calls[later - 1].name!r} and "
                    f"{self._calls[later].name!r}, so what earlier blocks add does not reach the last one unchanged; "
                    "use method='clearclip' or 'maskclip', which change the last block alone."
                )
        return self._to_batch_first(self._get_branch(index).skip)

    def score(self, tokens: Tensor, scores: Sequence[Callable[[Any], Tensor]] | None = None) -> Tensor:
        """Return each row's score on the dense feature of each patch, ``(R, *grid)``.

        Args:
            tokens: ``(N, T, C)``, in the place of the tokens that the last block returns. Only patches are read.
            scores: One function for each row, from the model's output to scores ``(N,)``; by default its target.

        Raises:
            MethodError: The head does not read single tokens or their mean.
        """
        evidence, by_row = self._evidence, {}
        scores = evidence.targets if scores is None else scores
        patches = self._select_patches(tokens)
        for rows in evidence.rows_by_image:
            image = evidence.images[rows[0]]
            outputs, count = self._run_head(image, patches[image]), patches.shape[1]
            by_row.update({row: upcast(torch.cat([*map(scores[row], outputs)]))[:count] for row in rows})
        maps = torch.stack([by_row[row] for row in range(len(evidence.images))])
        return maps.reshape(-1, *self._layout.grid)

    # ---------------------------------------------------------------------------------------------------- internals

    def _find_token_axis(self) -> int:
        """Return 1 for tokens ``(N, T, C)``, 0 for ``(T, N, C)``.

        Raises:
            MethodError: The tokens of the last block have neither shape.
        """
        images, tokens = len(self._evidence.inputs), self._layout.token_count
        skip = self._get_branch(-1).skip
        for axis, shape in ((1, (images, tokens)), (0, (tokens, images))):
            if skip.ndim == 3 and tuple(skip.shape[:2]) == shape:
                return axis
        raise MethodError(
            f"the last block of the model must get tokens (N, {tokens}, C), got {tuple(skip.shape)}; {_OTHER_METHODS}"
        )

    def _get_branch(self, layer: int) -> AttentionBranch:
        branch = self._branches[layer]
        if branch is None:
            raise MethodError(
                f"the output of the attention {self._calls[layer].name!r} is not added to the tokens of a skip "
                f"connection; {_OTHER_METHODS}"
            )
        return branch

    def _to_batch_first(self, tokens: Tensor) -> Tensor:
        return tokens if self._token_axis else tokens.transpose(0, 1)

    def _select_patches(self, tokens: Tensor) -> Tensor:
        """Return the tokens of the patches, ``(N, h·w, C)``."""
        return self._layout.to_grid(tokens).flatten(2).transpose(1, 2)

    def _run_head(self, image: int, patches: Tensor) -> list[Any]:
        """Return the outputs of the model for the patches ``(P, C)`` of an image, and for tokens that check the head.

        Raises:
            MethodError: The head does not read single tokens or their mean.
        """
        own = self._to_batch_first(self._block.output)[image]
        checks, combine = _build_checks(own, self._layout, self._select_patches(own[None])[0])
        variants = torch.cat([patches.to(own.dtype), checks])
        outputs = [self._resume(image, part) for part in variants.split(min(len(variants), get_most_rows()))]
        predicted = (predictions.get_predictions(output, self._evidence.model) for output in outputs)
        vectors: list[Any] = [rows for rows in predicted if isinstance(rows, Tensor)]
        checked = upcast(torch.cat(vectors))[len(patches) :] if vectors else None
        if checked is None or not _is_any_close(combine(checked), self._embeddings[image]):
            raise MethodError(
                "the head of the model does not read its class token alone, or the mean of its tokens, so it cannot "
                f"be run on a single patch; {_OTHER_METHODS}"
            )
        return outputs

    def _resume(self, image: int, variants: Tensor) -> Any:
        """Return the output of the model for each variant ``(M, C)``, in the place of all tokens of the last block.

        Raises:
            MethodError: What follows the last block needs its own number of tokens.
        """
        forward_pass, block = self._evidence.forward_pass, self._block
        # All tokens of a variant are equal, so few are enough, unless a head reads one between those of the grid.
        count = self._layout.token_count if self._layout.positions else len(self._layout.others) + 1
        tokens = variants[:, None].expand(-1, count, -1)
        tokens = tokens if self._token_axis else tokens.transpose(0, 1)
        inputs = forward_pass.select_inputs(image)
        try:
            with forward_pass.restore_autocast():
                output = resume(forward_pass.model, block.name, tokens, inputs, call_index=block.call_index)
            return predictions.to_batch(output, len(variants))
        except (RuntimeError, ValueError, TargetError) as error:
            raise_interrupt(error, torch.OutOfMemoryError)
            raise MethodError(f"its head cannot be run on single patches ({error}); {_OTHER_METHODS}") from error


def _build_checks(tokens: Tensor, layout: Layout, patches: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """Return tokens whose outputs show what a head reads, and a function from these outputs to what it might return.

    A head that reads the class token returns the output for it. A head that reads a mean returns the output for the
    mean token, or the mean of the outputs, depending on whether its norm comes after or before.

    Args:
        tokens: ``(T, C)``, the tokens of the last block.
        layout: The layout of these tokens. A class token may be the first or the last of those beside the patches, or
            any one between them.
        patches: Those of them that are patches.
    """
    inner = [tokens[[i]] for i in layout.others if layout.prefix <= i < len(tokens) - layout.suffix]
    beside = [part for part in (tokens[: layout.prefix], *inner, tokens[len(tokens) - layout.suffix :]) if len(part)]
    sets = [*(token_set for part in beside for token_set in (part[:1], part[-1:], part)), patches, tokens]
    sizes = [len(token_set) + 1 for token_set in sets]

    def combine(outputs: Tensor) -> list[Tensor]:
        return [output for part in outputs.split(sizes) for output in (part[0], part[1:].mean(0))]

    return torch.cat([rows for part in sets for rows in (part.mean(0, keepdim=True), part)]), combine


def _is_any_close(candidates: Sequence[Tensor], expected: Tensor) -> bool:
    return any(float((candidate - expected).norm()) <= _HEAD_ERROR * float(expected.norm()) for candidate in candidates)
