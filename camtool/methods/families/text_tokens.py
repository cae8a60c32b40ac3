"""Methods for the words that a vision-language model writes: which of the image's tokens speak for a token of the text.

The targets are :class:`camtool.targets.TextTokens`. The image's tokens are among those of the text, so the language
model scores the next token behind each of them as well. Where they are, and the grid that they form, is known from the
explained layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral

import torch
from torch import Tensor
from torch.nn import functional

from camtool.arguments.checks import Count, OptionalCount
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.hooks.attention.capture import AttentionCall
from camtool.layers.image_tokens_in_text import find_image_tokens
from camtool.layers.layouts import Layout
from camtool.maps import upcast
from camtool.methods.registry import method
from camtool.outputs.class_scores import find_text_logits

# Names in configurations of Hugging Face for tokens that are no words.
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "image_token_index")


@method("tam", paper="arXiv 2506.23270", needs="text")
def tam(
    evidence: Evidence, *, context: Sequence[int] | None = None, answer_start: OptionalCount = None, window: Count = 3
) -> Tensor:
    """Read a word's logit at each image token.

    ``A_t = relu(logits of token t at the image's tokens)``. From it the part is removed that the words before explain:
    ``relu(A_t - s E)``, with ``E = Σ_j r_j A_j / Σ_j r_j`` over the words j before t that are other words, ``r_j`` the
    positive part of the logit of t at j, and ``s = ⟨A_t, E⟩ / ⟨E, E⟩`` (Li et al. 2025, eq. 1 to 5). The result is
    filtered: each cell is a mean of its window, sorted by value, with Gaussian weights of the distance from the median;
    the width is the window's coefficient of variation (eq. 6 and 7). A target of several tokens is the sum of their
    maps.

    As in the authors' code, a word of the prompt is read at its own token, and one of the answer at the token before,
    where it is predicted. The first word of a prompt is treated like the others; in their code its map is that of the
    likeliest next token.

    Args:
        evidence: The layer's grid, and the output of the model.
        context: Positions, in the text, of the words of prompt and answer. By default all tokens that are neither of
            the image nor special ones of the model's configuration.
        answer_start: The position at which the answer begins. By default the first target's token.
        window: Side of the filter's window, odd; 1 for no filter.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: A target is no token of a text, the image's tokens are not among the text's, or an option is out of
            range.
    """
    _check_options(context, answer_start, window)
    by_row, layout = _list_positions_of_targets(evidence), _find_text_layout(evidence)
    logits = _get_logits(evidence, layout)
    words = _find_words(evidence, layout) if context is None else sorted(context)
    ids = _get_ids(evidence)
    start = min(map(min, by_row)) if answer_start is None else answer_start
    maps = []
    for positions, image in zip(by_row, evidence.images, strict=True):
        reader = _TextReader(logits[image], ids[image], layout, start)
        own = [_filter_by_rank(reader.explain(position, words), window) for position in positions]
        maps.append(torch.stack(own).sum(0))
    return torch.stack(maps)


@method("raw-attention", paper="arXiv 1502.03044", needs=("text", "attention"))
def raw_attention(evidence: Evidence) -> Tensor:
    """Average a word's attention to the image.

    The mean over the heads and layers of the language model, in the rows of the tokens before the target's tokens; of a
    decoder that has no tokens of the image in its own text, the mean of its cross-attention to them. Xu et al. 2015
    show attention in this way, for each word of a caption. This is a baseline: attention shows where the model looked,
    and not what it concluded.

    Args:
        evidence: The model, run again to capture its attention.

    Returns:
        Maps ``(R, h, w)``, not negative.

    Raises:
        MethodError: A target is no token of a text, the image's tokens are not among the text's, or no attention over
            the text can be captured.
    """
    by_row, layout = _list_positions_of_targets(evidence), evidence.get_layer().layout
    shape = _find_shape_of_attention(evidence, layout)
    by_call: list[Tensor] = []

    def read_rows(call: AttentionCall) -> None:
        if tuple(call.matrix.shape[-2:]) == shape:
            mean = upcast(call.matrix).mean(1)
            rows = zip(by_row, evidence.images, strict=True)
            read = [mean[image, [position - 1 for position in positions]].mean(0) for positions, image in rows]
            by_call.append(torch.stack(read))

    evidence.forward_pass.visit_attention(read_rows)
    if not by_call:
        raise MethodError(
            f"no attention of {shape[0]} tokens of the text to {shape[1]} tokens can be captured; use "
            "method='gradcam' or 'tam'."
        )
    return layout.to_grid(torch.stack(by_call).mean(0)[..., None])[:, 0]


class _TextReader:
    """The logits of one text, read at the image's tokens and at words.

    Args:
        logits: ``(T, V)``, the scores of the next token behind each token.
        ids: ``(T,)``, the tokens.
        layout: Where the image's tokens are.
        start: The position at which the answer begins.
    """

    def __init__(self, logits: Tensor, ids: Tensor, layout: Layout, start: int) -> None:
        self._logits, self._ids, self._layout, self._start = logits, ids, layout, start

    def explain(self, position: int, words: Sequence[int]) -> Tensor:
        """Return the map ``(h, w)`` of the token at a position, less what other words before it explain."""
        own, token = self._read_image(position), self._ids[position]
        before = [word for word in words if word < position and self._ids[word] != token]
        positions = [word - 1 if word >= self._start else word for word in before]
        relevance = self._logits[positions, token].relu()
        if not before or not bool(relevance.any()):
            return own
        expected = torch.stack([self._read_image(word) for word in before])
        expected = (relevance[:, None, None] * expected).sum(0) / relevance.sum()
        scale = (own * expected).sum() / (expected * expected).sum().clamp_min(torch.finfo(own.dtype).tiny)
        return (own - scale * expected).relu()

    def _read_image(self, position: int) -> Tensor:
        """Return the positive logits, at the image's tokens, of the token at a position."""
        return self._layout.to_grid(self._logits[None, :, self._ids[position], None])[0, 0].relu()


def _filter_by_rank(plane: Tensor, window: int) -> Tensor:
    """Return a plane ``(h, w)``, not negative, with each cell as a weighted mean of its window, sorted by value."""
    margin = window // 2
    if window == 1 or min(plane.shape) <= margin:  # a border cannot be mirrored
        return plane
    padded = functional.pad(plane[None, None], [margin] * 4, mode="reflect")
    cells = functional.unfold(padded, window)[0].sort(0).values
    mean = cells.mean(0)
    width = cells.std(0, correction=0) / mean.clamp_min(torch.finfo(cells.dtype).tiny)
    ranks = torch.arange(len(cells), device=cells.device, dtype=cells.dtype)[:, None] - window**2 // 2
    # Where the width is 0, all cells of the window are equal, and so is their mean.
    weights = (-(ranks**2) / (2 * width**2).clamp_min(torch.finfo(cells.dtype).tiny)).exp()
    return ((weights * cells).sum(0) / weights.sum(0)).reshape(plane.shape)


def _check_options(context: object, answer_start: object, window: int) -> None:
    if window % 2 == 0:
        raise MethodError(f"window must be odd, so that it has a middle; got {window}.")
    is_list = isinstance(context, (list, tuple, range)) and all(isinstance(position, Integral) for position in context)
    if context is not None and not is_list:
        raise MethodError(f"context must be a list of positions in the text, or None; got {context!r}.")


def _list_positions_of_targets(evidence: Evidence) -> list[tuple[int, ...]]:
    """Return for each row the positions of its tokens in the text.

    Raises:
        MethodError: A target is about no token of a text.
    """
    positions = [target.list_text_positions() for target in evidence.targets]
    if not all(positions):
        others = {type(target).__name__ for target in evidence.targets if not target.list_text_positions()}
        raise MethodError(
            "this method explains words that a vision-language model writes, and target_class is "
            f"{', '.join(sorted(others))}; use camtool.tokens(model, processor, img, prompt, method=...), or "
            "camtool.targets.TextTokens; for other models method='gradcam'."
        )
    return positions


def _find_shape_of_attention(evidence: Evidence, layout: Layout) -> tuple[int, int]:
    """Return the numbers of rows and columns of attention from the text with the answer to the image.

    Raises:
        MethodError: The layer does not return the tokens that the text attends to, or the numbers are not certain.
    """
    text, ids = find_image_tokens(evidence.model, evidence.forward_pass.inputs), _get_ids(evidence)
    is_in_text = text is not None and bool(text.positions)
    decoded = evidence.forward_pass.inputs.get("decoder_input_ids")  # type: ignore[union-attr]
    if is_in_text:
        _find_text_layout(evidence)
    rows = decoded.shape[1] if isinstance(decoded, Tensor) else ids.shape[1]
    is_cross = isinstance(decoded, Tensor) or not is_in_text
    if layout.kind != "tokens" or (is_cross and rows == layout.token_count):
        raise MethodError(
            f"layer {evidence.layer!r}: it is not certain which attention leads from the {rows} tokens of the text to "
            "its cells; leave layer= out, give a longer or shorter answer, or use method='gradcam'."
        )
    return rows, layout.token_count


def _find_text_layout(evidence: Evidence) -> Layout:
    layout, text = evidence.get_layer().layout, find_image_tokens(evidence.model, evidence.forward_pass.inputs)
    is_in_text = layout.kind == "tokens" and text is not None and layout.token_count == text.length
    if not is_in_text or sorted(layout.cells) != sorted(text.positions):  # type: ignore[union-attr]
        raise MethodError(
            f"layer {evidence.layer!r} does not return the tokens of a text with those of the image among them, which "
            "this method needs; leave layer= out, or name a layer of the language model. If the text reads queries "
            "instead of the image's cells, as in BLIP-2 and Kosmos-2, use method='gradcam'."
        )
    return layout


def _get_ids(evidence: Evidence) -> Tensor:
    inputs = evidence.forward_pass.inputs
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise MethodError("this method reads words of a text in 'input_ids', and there is none; use method='gradcam'.")
    return ids


def _get_logits(evidence: Evidence, layout: Layout) -> Tensor:
    logits = find_text_logits(evidence.forward_pass.output)
    if logits is None or logits.shape[1] != layout.token_count:
        returned = "none" if logits is None else f"{tuple(logits.shape)}"
        raise MethodError(
            f"the model must return the logits (N, {layout.token_count}, V) of the text with the image; got "
            f"{returned}. An encoder with a decoder has none at the image's tokens; use method='gradcam' or "
            "'raw-attention'."
        )
    return upcast(logits.detach())


def _find_words(evidence: Evidence, layout: Layout) -> list[int]:
    """Return the positions of all tokens that are neither the image's nor special ones of the configuration."""
    ids, config = _get_ids(evidence)[0].tolist(), getattr(evidence.model, "config", None)
    parts = [config, getattr(config, "text_config", None)]
    special = {getattr(part, name, None) for part in parts for name in _SPECIAL}
    of_image = set(layout.cells)
    return [index for index, token in enumerate(ids) if index not in of_image and token not in special]
