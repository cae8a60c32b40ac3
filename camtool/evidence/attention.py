"""Attention of a transformer as evidence about rows: attention matrices, their gradients, queries, keys and values.

:mod:`camtool.hooks.attention.capture` records the attention calls of a forward pass. Here they are read as layers over
the tokens of the image, together with the gradients of each row's score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from camtool import targets
from camtool.arguments.message_parts import format_count
from camtool.errors import LayerError, MethodError
from camtool.evidence.evidence import Evidence
from camtool.hooks.attention.capture import AttentionBlock, AttentionCall, CapturedAttention
from camtool.hooks.model_passes import compute_row_gradients
from camtool.hooks.observation import resume
from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.structures.modules import lacks_gradients
from camtool.layers.layouts import Layout, find_token_layout
from camtool.layers.selection import locate_grid
from camtool.maps import upcast
from camtool.outputs import predictions


def capture_attention_evidence(evidence: Evidence, *, hold_inputs: bool = False) -> AttentionEvidence:
    """Run the model again and return its attention at all layers, as evidence about the same rows.

    Args:
        evidence: The evidence. Methods that share its forward pass share the captured one, too.
        hold_inputs: Treat the queries, keys and values of every self-attention as constants, so that gradients pass
            by skip connections and MLPs only.

    Raises:
        MethodError: The model has no attention that can be captured, or not all of it is over the same tokens.
    """
    captured = evidence.forward_pass.capture_attention(hold_inputs=hold_inputs)
    layout = find_common_layout(captured, evidence)
    with enable_gradients():
        output = predictions.to_batch(captured.output, len(evidence.inputs))
        scores = targets.score_targets(evidence.targets, output, evidence.images)
    return AttentionEvidence(evidence, captured, layout, scores)


class AttentionEvidence:
    """The attention of all layers over one common set of tokens, for R rows: targets on images.

    A layer here is one attention call, in the order in which they ran. All but the last are self-attention. The last
    one may be a pooling, whose few queries attend to the tokens.

    Args:
        evidence: Evidence about the same rows.
        captured: The captured forward pass.
        layout: The layout of the tokens on the image.
        scores: Each row's score on the captured forward pass, ``(R,)``, on the graph.

    Attributes:
        layout: As above.
    """

    def __init__(self, evidence: Evidence, captured: CapturedAttention, layout: Layout, scores: Tensor) -> None:
        self.layout = layout
        self._evidence, self._images, self._scores = evidence, evidence.images, scores
        self._self_attention_count = sum(map(is_self_attention, captured.calls))
        self._blocks, self._calls = captured.blocks, captured.calls
        # Some models pool by attention and then return the mean of the tokens: that pooling explains nothing.
        if self._ends_with_unused_pooling():
            self._calls = captured.calls[:-1]

    # -------------------------------------------------------------------------------------------------- all layers

    @property
    def matrices(self) -> list[Tensor]:
        """Each layer's attention matrix, ``(R, H, T, S)``; each row of it sums to 1."""
        return [self._select_rows(call.matrix) for call in self._calls]

    @property
    def logits(self) -> Iterator[Tensor]:
        """Each layer's logits, whose softmax is the matrix, ``(R, H, T, S)``; computed one by one."""
        return (self._select_rows(call.logits()) for call in self._calls)

    def compute_gradients(self) -> list[Tensor]:
        """Return the gradient of each row's score with respect to each layer's attention matrix, ``(R, H, T, S)``.

        Raises:
            MethodError: No gradient passes from the score to the attention.
        """
        return self._compute_gradients(self._scores, [call.matrix for call in self._calls])

    def compute_early_exit_gradients(self, layers: int | None = None) -> list[Tensor]:
        """Return the gradient of each layer's own score with respect to its own attention matrix, ``(R, H, T, S)``.

        A layer's own score is the row's score if the tokens that its block returned were those of the last block. The
        rest of the model, with its pooling and head, runs on them. A pooling has no score of its own.

        Args:
            layers: The number of layers, the last ones; by default all.

        Raises:
            MethodError: The blocks do not return tokens of one shape, there are fewer than ``layers``, or no gradient
                passes.
        """
        blocks = self._get_blocks()
        count = len(blocks) if layers is None else layers
        if count > len(blocks):
            raise MethodError(
                f"layers must be at most {len(blocks)}: the model has {format_count(len(blocks), 'block')} with "
                f"self-attention; got {count}."
            )
        pairs = list(zip(blocks, self._calls[: len(blocks)], strict=True))[-count:]
        with enable_gradients():
            scores = self._score_each_block([block for block, _ in pairs])
            return [
                self._compute_gradients(own, [call.matrix])[0] for own, (_, call) in zip(scores, pairs, strict=True)
            ]

    def compute_query_weights(self) -> list[Tensor]:
        """Return for each layer how much of each of its queries the head reads, ``(R, T)``, which sums to 1.

        The gradient shows it: a head on the class token depends on that token's query in the last layer alone, a head
        on the mean of the tokens depends on all of them. All queries that the head depends on count equally. Tokens
        keep their places, so all layers share the answer, except for a pooling, which has its own queries. Without a
        gradient it is the class token, or all tokens if there is none.
        """
        calls, count = self._calls, self._self_attention_count
        shared = [self._compute_query_weights(calls[count - 1])] * count if count else []
        return shared + [self._compute_query_weights(call) for call in calls[count:]]

    def find_input_layer(self) -> str:
        """Return the layer whose output is the input of the last self-attention, usually a norm.

        Raises:
            MethodError: No layer returns exactly that input.
        """
        name = self._calls[self._self_attention_count - 1].source if self._self_attention_count else None
        if name is None:
            raise MethodError(
                "no layer of the model returns exactly the input of its last attention; use method='reciprocam' and "
                "name the layer whose tokens are masked."
            )
        return name

    # ---------------------------------------------------------------------------------------------- the last layer

    @property
    def queries(self) -> Tensor:
        """The last layer's queries, ``(R, H, T, D)``."""
        return self._select_rows(self._calls[-1].queries)

    @property
    def keys(self) -> Tensor:
        """The last layer's keys, ``(R, H, S, D)``."""
        return self._select_rows(self._calls[-1].keys)

    @property
    def values(self) -> Tensor:
        """The last layer's values, ``(R, H, S, D)``."""
        return self._select_rows(self._calls[-1].values)

    def compute_output_gradients(self) -> Tensor:
        """Return the gradient of each row's score with respect to the last layer's output, ``(R, H, T, D)``.

        The output is the attention matrix times the values.

        Raises:
            MethodError: No gradient passes from the score to the attention.
        """
        return self._compute_gradients(self._scores, [self._calls[-1].output])[0]

    def to_grid(self, values: Tensor) -> Tensor:
        """Return values of the tokens, ``(R, S)``, as maps ``(R, *grid)``, without the prefix tokens."""
        return self.layout.to_grid(values[..., None])[:, 0]

    # ---------------------------------------------------------------------------------------------------- internals

    def _ends_with_unused_pooling(self) -> bool:
        """Return True if the last call is a pooling whose output the scores do not depend on."""
        count = self._self_attention_count
        if not count or count == len(self._calls) or not self._scores.requires_grad:
            return False
        (gradient,) = compute_row_gradients(self._scores, self._images, [self._calls[-1].output])
        return not gradient.any()

    def _select_rows(self, by_image: Tensor) -> Tensor:
        return upcast(by_image.detach())[self._images]

    def _compute_gradients(self, scores: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        if not scores.requires_grad:
            raise MethodError(
                "no gradient passes from the score to the attention: the model or the target detaches it, or runs "
                "under torch.no_grad. Use method='rollout' or 'vitreciprocam', which need none."
            )
        return [upcast(gradient) for gradient in compute_row_gradients(scores, self._images, tensors)]

    def _compute_query_weights(self, call: AttentionCall) -> Tensor:
        is_read = torch.zeros_like(self._select_rows(call.matrix)[:, 0, :, 0])
        if self._scores.requires_grad:
            (gradient,) = compute_row_gradients(self._scores, self._images, [call.output])
            is_read = gradient.ne(0).any(-1).any(1).to(is_read)
        # Without a gradient, guess: the class token comes first, if there are tokens before the last cell.
        likely = torch.zeros_like(is_read[0])
        others = self.layout.others if is_self_attention(call) else []
        likely[others[:1] if others and others[0] <= max(self.layout.cells) else slice(None)] = 1
        weights = torch.where(is_read.any(1, keepdim=True), is_read, likely)
        return weights / weights.sum(1, keepdim=True)

    def _get_blocks(self) -> list[AttentionBlock]:
        """Return the blocks around the self-attention calls.

        Raises:
            MethodError: They do not all return tokens of one shape.
        """
        blocks = [block for block in self._blocks[: self._self_attention_count] if block is not None]
        shapes = {tuple(block.output.shape) for block in blocks}
        images = len(self._calls[0].matrix)
        is_complete = bool(blocks) and len(blocks) == self._self_attention_count
        if not is_complete or len(shapes) > 1 or any(shape[0] != images for shape in shapes):
            raise MethodError(
                "the blocks around the attention must return tokens (N, tokens, C) of one shape, got "
                f"{shapes or 'none'}; use method='chefer' or 'agcam', which need the attention alone."
            )
        return blocks

    def _score_each_block(self, blocks: Sequence[AttentionBlock]) -> list[Tensor]:
        """Return for each block the rows' scores if its tokens were those of the last block: ``(R,)`` each."""
        evidence, by_row = self._evidence, {}
        for rows in evidence.rows_by_image:
            image = self._images[rows[0]]
            tokens = torch.stack([block.output[image] for block in blocks])
            inputs = evidence.forward_pass.select_inputs(image)
            with evidence.forward_pass.restore_autocast():
                last = blocks[-1]
                output = resume(evidence.model, last.name, tokens, inputs, call_index=last.call_index, grad=True)
                output = predictions.to_batch(output, len(tokens))
                by_row.update({row: evidence.targets[row](output) for row in rows})
        return list(torch.stack([by_row[row] for row in range(len(self._images))], 1))


def is_self_attention(call: AttentionCall) -> bool:
    """Return True if the tokens attend to each other: there are as many queries as keys."""
    return call.matrix.shape[-2] == call.matrix.shape[-1]


def _is_within_windows(call: AttentionCall, block: AttentionBlock | None) -> bool:
    """Return True if the block around a call returns more tokens than it attends to: it splits them into windows."""
    if block is None or not block.name or block.output.ndim != 3 or len(block.output) != len(call.matrix):
        return False
    return is_self_attention(call) and block.output.shape[1] != call.matrix.shape[-1]


def find_common_layout(captured: CapturedAttention, evidence: Evidence) -> Layout:
    """Return the layout on the image of the tokens that all attention is over.

    Args:
        captured: The captured forward pass of the evidence's model on its inputs.
        evidence: The evidence.

    Raises:
        MethodError: There is no attention, or no such tokens.
    """
    calls, inputs = captured.calls, evidence.inputs
    # No gradient passes through a quantized model.
    others = "'ablationcam' or 'scorecam'" if lacks_gradients(evidence.model) else "'gradcam' or 'hirescam'"
    if not calls:
        raise MethodError(
            "the model runs no attention that can be captured: a convolutional network has none, and compiled or "
            f"scripted code hides it. Use method={others}, which need none."
        )
    tokens = calls[-1].matrix.shape[-1]
    layout = find_token_layout(tokens, tuple(inputs.shape[2:]))
    shapes = [tuple(call.matrix.shape) for call in calls]
    has_same_tokens = all(len(shape) == 4 and (shape[0], shape[-1]) == (len(inputs), tokens) for shape in shapes)
    # Only the last call may be a pooling. Windows are moved into the batch or the heads, and show in the block's shape.
    is_mixed = not all(map(is_self_attention, calls[:-1])) or any(map(_is_within_windows, calls, captured.blocks))
    if not has_same_tokens or is_mixed or (layout is None and inputs.ndim != 4):
        matrices = ", ".join(map(str, dict.fromkeys(shapes)))
        raise MethodError(
            "the model's attention is not over one common set of tokens that covers the image: it is within windows, "
            f"at several scales, or between other things. Its matrices are {matrices} for "
            f"{format_count(len(inputs), 'image')}. Use method={others}, which need no attention."
        )
    # The number of tokens does not tell where class token and registers are, nor whether queries have places at all.
    try:
        with evidence.forward_pass.restore_autocast():
            return locate_grid(evidence.model, evidence.forward_pass.inputs, tokens, layout)
    except LayerError as error:
        raise MethodError(
            f"the model's attention is over {tokens} tokens, and no layer shows which of them are parts of the image: "
            "learned queries have no places, and registers may lie between the patches. "
            f"Use method={others}, which need no attention."
        ) from error
