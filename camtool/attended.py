"""Attended: the attention of a model as evidence about rows, which are targets on images.

:mod:`camtool.attention` sees what a model's calls of attention were; here they are read as layers over the picture's
tokens, with what each of them means to a row's score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from camtool.attention import Attention, Block, Captured
from camtool.errors import MethodError, format_count
from camtool.guards import with_gradients
from camtool.layouts import Layout, token_layout
from camtool.lazy import cached_property
from camtool.maps import widened

__all__ = ["Attended", "Rescore", "Slopes"]

Slopes = Callable[[Tensor, Sequence[int], Sequence[Tensor]], list[Tensor]]
"""How each row's score depends on its own image's part of some tensors: from the scores ``(R,)``, the rows' images and
the tensors, ``(N, ...)`` each, to ``(R, ...)`` each."""

Rescore = Callable[[Block, Tensor, Sequence[int]], Tensor]
"""The scores ``(M, rows)`` of some rows about one image, were the block's output one of ``(M, ...)``; on the graph."""


class Attended:
    """The attention of all layers, over one common set of tokens, as evidence about rows: targets on images.

    A layer here is a call of attention, in the order in which they ran. In all but the last one the tokens look at each
    other; the last one may be a pooling, whose few queries look at the tokens.

    Args:
        captured: What the forward showed.
        pictures: ``(N, C, H, W)``.
        scores: Each row's score on the forward's output, ``(R,)``, on the graph.
        images: Which image each row is about.
        slopes: How scores depend on tensors.
        rescore: What the scores would be, were a block's output another.

    Raises:
        MethodError: The model runs no attention that can be seen, or not all of it is over the same tokens.
    """

    def __init__(
        self,
        captured: Captured,
        pictures: Tensor,
        scores: Tensor,
        images: Sequence[int],
        slopes: Slopes,
        rescore: Rescore,
    ) -> None:
        self.layout = _common_layout(captured, pictures)
        self._scores, self._images, self._slopes, self._rescore = scores, list(images), slopes, rescore
        self._mutual = sum(map(_is_mutual, captured.calls))
        self._calls, self._blocks = self._read_by_the_head(captured.calls), captured.blocks

    # -------------------------------------------------------------------------------------------------- all layers

    @property
    def matrices(self) -> list[Tensor]:
        """Each layer's attention matrix, ``(R, H, T, S)``; each row sums to 1."""
        return [self._of_rows(call.matrix) for call in self._calls]

    @property
    def logits(self) -> Iterator[Tensor]:
        """Each layer's logits, of which the matrix is the softmax, ``(R, H, T, S)``; made one by one."""
        return (self._of_rows(call.logits()) for call in self._calls)

    @cached_property
    def gradients(self) -> list[Tensor]:
        """How each row's score depends on each layer's attention matrix, ``(R, H, T, S)``.

        Raises:
            MethodError: No gradient passes from the score to the attention.
        """
        return self._towards(self._scores, [call.matrix for call in self._calls])

    @cached_property
    def early_gradients(self) -> list[Tensor]:
        """How each layer's own score depends on its own attention matrix, ``(R, H, T, S)``, but for a pooling.

        A layer's own score is what the row's target would be, were the tokens that its block returned those of the last
        block: the rest of the model, with its pooling and its head, reads them as they are.

        Raises:
            MethodError: The blocks do not return tokens of one shape, or no gradient passes.
        """
        blocks = self._blocks_of_one_shape()
        with with_gradients():
            own = self._own_scores(blocks)
            return [
                self._towards(scores, [call.matrix])[0]
                for scores, call in zip(own, self._calls[: len(blocks)], strict=True)
            ]

    @cached_property
    def readers(self) -> list[Tensor]:
        """For each layer how much of each of its queries the head reads, ``(R, T)``, which sums to 1.

        The gradient tells: the head of a model with a class token depends on that token's row of the last layer alone,
        one that averages depends on all rows. Those it depends on count alike. A token stays in its place, so all
        layers share the answer, but for a pooling, which has queries of its own. Where no gradient comes it is the
        class token, or all tokens of a model that has none.
        """
        calls, count = self._calls, self._mutual
        among_tokens = [self._read(calls[count - 1])] * count if count else []
        return among_tokens + [self._read(call) for call in calls[count:]]

    @property
    def entry(self) -> str:
        """The layer whose output is what the last attention, a pooling apart, is given: a norm as a rule.

        Raises:
            MethodError: No layer returns just that.
        """
        name = self._calls[self._mutual - 1].source if self._mutual else None
        if name is None:
            raise MethodError(
                "no layer of the model returns just what its last attention is given; use method='reciprocam' and name "
                "the layer whose tokens are masked."
            )
        return name

    # ---------------------------------------------------------------------------------------------- the last layer

    @property
    def queries(self) -> Tensor:
        """The last layer's queries, ``(R, H, T, D)``."""
        return self._of_rows(self._calls[-1].queries)

    @property
    def keys(self) -> Tensor:
        """The last layer's keys, ``(R, H, S, D)``."""
        return self._of_rows(self._calls[-1].keys)

    @property
    def values(self) -> Tensor:
        """The last layer's values, ``(R, H, S, D)``."""
        return self._of_rows(self._calls[-1].values)

    @cached_property
    def output_gradients(self) -> Tensor:
        """How each row's score depends on the last layer's output, matrix times values: ``(R, H, T, D)``.

        Raises:
            MethodError: No gradient passes from the score to the attention.
        """
        return self._towards(self._scores, [self._calls[-1].output])[0]

    def on_grid(self, values: Tensor) -> Tensor:
        """Values of the tokens, ``(R, S)``, as maps ``(R, *grid)``, without the class token and its like."""
        return self.layout.to_grid(values[..., None])[:, 0]

    # ---------------------------------------------------------------------------------------------------- its own

    def _read_by_the_head(self, calls: list[Attention]) -> list[Attention]:
        """The calls less a pooling that runs but whose answer the score does not depend on."""
        if not self._mutual or self._mutual == len(calls) or not self._scores.requires_grad:
            return calls
        (slope,) = self._slopes(self._scores, self._images, [calls[-1].output])
        return calls if slope.any() else calls[:-1]

    def _own_scores(self, blocks: Sequence[Block]) -> list[Tensor]:
        """For each layer what the rows' scores would be, were its block's tokens those of the last: ``(R,)`` each."""
        by_row: dict[int, Tensor] = {}
        for image in dict.fromkeys(self._images):
            rows = [row for row, its in enumerate(self._images) if its == image]
            tokens = torch.stack([block.output[image] for block in blocks])
            by_row.update(zip(rows, self._rescore(blocks[-1], tokens, rows).unbind(1), strict=True))
        return list(torch.stack([by_row[row] for row in range(len(self._images))], 1))

    def _of_rows(self, by_image: Tensor) -> Tensor:
        return widened(by_image.detach())[self._images]

    def _towards(self, scores: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        if not scores.requires_grad:
            raise MethodError(
                "no gradient passes from the score to the attention: the model or the target detaches it, or runs "
                "under torch.no_grad. Use method='rollout' or 'vitreciprocam', which need none."
            )
        return [widened(slope) for slope in self._slopes(scores, self._images, tensors)]

    def _read(self, call: Attention) -> Tensor:
        read = torch.zeros_like(self._of_rows(call.matrix)[:, 0, :, 0])
        if self._scores.requires_grad:
            (slope,) = self._slopes(self._scores, self._images, [call.output])
            read = slope.ne(0).any(-1).any(1).to(read)
        likely = torch.zeros_like(read[0])
        likely[: 1 if self.layout.prefix and _is_mutual(call) else None] = 1
        read = torch.where(read.any(1, keepdim=True), read, likely)
        return read / read.sum(1, keepdim=True)

    def _blocks_of_one_shape(self) -> list[Block]:
        blocks = [block for block in self._blocks[: self._mutual] if block is not None]
        shapes = {tuple(block.output.shape) for block in blocks}
        images = len(self._calls[0].matrix)
        if not blocks or len(blocks) < self._mutual or len(shapes) > 1 or any(shape[0] != images for shape in shapes):
            raise MethodError(
                "the blocks around the attention must return tokens (N, tokens, C) of one shape, got "
                f"{shapes or 'none'}; use method='chefer' or 'agcam', which look at the attention alone."
            )
        return blocks


def _is_mutual(call: Attention) -> bool:
    """Whether the tokens look at each other, and not other queries at them."""
    return call.matrix.shape[-2] == call.matrix.shape[-1]


def _is_within_windows(call: Attention, block: Block | None) -> bool:
    """Whether what looked like heads were windows: the block around them returns more tokens than they saw."""
    if block is None or not block.name or block.output.ndim != 3 or len(block.output) != len(call.matrix):
        return False
    return _is_mutual(call) and block.output.shape[1] != call.matrix.shape[-1]


def _common_layout(captured: Captured, pictures: Tensor) -> Layout:
    """How the tokens that all attention is over lie on the picture.

    Raises:
        MethodError: There is no attention, or no such tokens.
    """
    calls = captured.calls
    if not calls:
        raise MethodError(
            "the model runs no attention that can be seen: a convolutional network has none, and compiled or scripted "
            "code hides it. Use method='gradcam' or 'hirescam', which work on any model."
        )
    tokens = calls[-1].matrix.shape[-1]
    layout = token_layout(tokens, tuple(pictures.shape[2:]))
    shapes = [tuple(call.matrix.shape) for call in calls]
    over_them = all(len(shape) == 4 and (shape[0], shape[-1]) == (len(pictures), tokens) for shape in shapes)
    apart = not all(map(_is_mutual, calls[:-1])) or any(map(_is_within_windows, calls, captured.blocks))
    if layout is None or not over_them or apart:
        met, images = ", ".join(map(str, dict.fromkeys(shapes))), format_count(len(pictures), "picture")
        raise MethodError(
            "the model's attention is not over one common set of tokens that covers the picture, but within windows, "
            f"at several scales, or between other things: its matrices are {met} for {images}. "
            "Use method='gradcam' or 'hirescam', which work on any model."
        )
    return layout
