"""The words of a prompt on a generated image: the cross-attention of a diffusion U-Net, :func:`word_attention`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from camtool.arguments.message_parts import suggest_names
from camtool.errors import LayerError, TargetError
from camtool.explaining.explanation import Explanation
from camtool.geometry.crop_and_resize import Geometry
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.inputs.image_files import read_image
from camtool.maps import upcast
from camtool.rendering.views import Photo


class WordAttention:
    """Cross-attention of all passes of a U-Net in a block of :func:`word_attention`.

    Attributes:
        passes: The number of passes, one for each step of the diffusion.
    """

    def __init__(self) -> None:
        self.passes = 0
        self._size, self._tokens = (0, 0), 0
        self._queries: dict[str, Tensor] = {}
        self._sums: dict[tuple[int, int], Tensor] = {}
        self._counts: dict[tuple[int, int], int] = {}

    def compute_maps(self, row: int = -1) -> Tensor:
        """Return the attention to each token, ``(S, h, w)`` at the size of the latent image.

        It is the mean over heads, layers and steps of the softmax, each upsampled bicubically and not below 0.

        Args:
            row: The row of the U-Net's batch. With classifier-free guidance of one image, the pipelines of diffusers
                put the row without the prompt first, so the last one is that of the prompt.

        Raises:
            LayerError: The U-Net has not run in the block, or no cross-attention was seen.
        """
        if not self._sums:
            ran = f"the U-Net ran {self.passes} times" if self.passes else "the U-Net has not run in the block"
            raise LayerError(
                f"no cross-attention was recorded: {ran}; fused projections hide it, see unfuse_qkv_projections."
            )
        placed = [
            interpolate(total[row][None], self._size, mode="bicubic", align_corners=False)[0]
            for total in self._sums.values()
        ]
        return torch.stack(placed).sum(0).clamp(min=0) / sum(self._counts.values())

    def map(
        self, word: str | Sequence[int], image: Any, prompt: str = "", tokenizer: Any = None, row: int = -1
    ) -> Explanation:
        """Return the map of one word of the prompt on the generated image, the mean over its tokens.

        Args:
            word: A word of the prompt, or the positions of its tokens.
            image: What the pipeline generated, in any form that :func:`camtool.explain` takes for one photo.
            prompt: The prompt.
            tokenizer: The pipeline's tokenizer.
            row: As for :meth:`compute_maps`.

        Raises:
            TargetError: The prompt does not have the word or the token.
            LayerError: As for :meth:`compute_maps`.
        """
        maps = self.compute_maps(row)
        positions = _find_tokens(word, prompt, tokenizer) if isinstance(word, str) else [*word]
        if not positions or min(positions) < 0 or max(positions) >= len(maps):
            raise TargetError(f"word: tokens {positions} are none of the {len(maps)} that the U-Net attends to.")
        raw = maps[positions].mean(0).numpy()
        pixels = np.asarray(read_image(image))
        label = word if isinstance(word, str) else f"tokens {positions}"
        view = Photo(pixels, Geometry.whole(*pixels.shape[:2]))
        return Explanation(raw, view, label, None, float(raw.mean()), None, "word-attention", "")

    def note_inputs(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the sizes of the latent image and of the text. This is a hook of the U-Net."""
        given: Any = dict(zip(("sample", "timestep", "encoder_hidden_states"), args, strict=False)) | kwargs
        sample, text = given["sample"], given["encoder_hidden_states"]
        self._size, self._tokens = tuple(sample.shape[-2:]), text.shape[1]
        self.passes += 1

    def keep_queries(self, name: str, _: nn.Module, output: Tensor) -> None:
        """Keep the queries of an attention until its keys are known. This is a hook of its projection."""
        self._queries[name] = output

    def add_keys(self, name: str, attention: Any, _: nn.Module, output: Tensor) -> None:
        """Add the matrix of an attention to the text. This is a hook of the projection of its keys."""
        queries = self._queries.pop(name, None)
        if queries is None or output.shape[1] != self._tokens:
            return
        # The matrix is computed once more, as fused kernels do not store it; the image does not change.
        q, k = (
            upcast(tensor.detach()).unflatten(2, (attention.heads, -1)).transpose(1, 2) for tensor in (queries, output)
        )
        norms = attention.norm_q, attention.norm_k
        q, k = (tensor if norm is None else norm(tensor) for norm, tensor in zip(norms, (q, k), strict=True))
        shares = (q @ k.mT * attention.scale).softmax(-1).mean(1).mT
        grid = _find_grid(shares.shape[2], self._size)
        summed = shares.unflatten(2, grid).float().cpu()
        self._sums[grid] = self._sums[grid] + summed if grid in self._sums else summed
        self._counts[grid] = self._counts.get(grid, 0) + 1


@contextmanager
def word_attention(unet: nn.Module) -> Iterator[WordAttention]:
    """Record where each word of a prompt acts while a diffusion pipeline runs: its cross-attention, as DAAM reads it.

        with camtool.word_attention(pipeline.unet) as words:
            image = pipeline("a dog on a red chair").images[0]
        words.map("dog", image, "a dog on a red chair", pipeline.tokenizer).save("dog.png")

    The mean is that of arXiv 2210.04885, section 2.2, up to a factor: the softmax over the tokens, upsampled, summed
    over heads, layers and steps. Here heads and steps are averaged before they are upsampled, which is the same but
    for values below 0. The image is bitwise that without the block: hooks read the projections, and replace nothing.

    Args:
        unet: A ``UNet2DConditionModel`` of diffusers, or a module whose cross-attention has ``to_q`` and ``to_k``,
            ``heads`` and ``scale`` in the same way.

    Raises:
        LayerError: It has no cross-attention, e.g. a transformer that joins image and text.
    """
    layers = [(name, module) for name, module in unet.named_modules() if getattr(module, "is_cross_attention", False)]
    if not layers:
        raise LayerError(
            f"unet: {type(unet).__name__} has no cross-attention as diffusers marks it; pass pipeline.unet, a "
            "UNet2DConditionModel. Transformers that join image and text are not read."
        )
    record = WordAttention()
    with Cleanup() as cleanup:
        add_forward_pre_hook(cleanup, unet, record.note_inputs)
        for name, module in layers:
            attention: Any = module
            add_forward_hook(cleanup, attention.to_q, partial(record.keep_queries, name))
            add_forward_hook(cleanup, attention.to_k, partial(record.add_keys, name, attention))
        yield record


def _find_grid(cells: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return the grid of the queries: the latent image at a half, a quarter and so on of its sides.

    Raises:
        LayerError: No such grid has this number of cells.
    """
    rows, columns = size
    while rows * columns > cells:
        rows, columns = -(-rows // 2), -(-columns // 2)
    if rows * columns != cells:
        raise LayerError(f"an attention has {cells} queries, no grid of the latent image {size[0]} x {size[1]}.")
    return rows, columns


def _find_tokens(word: str, prompt: str, tokenizer: Any) -> list[int]:
    """Return the places of a word's tokens in the prompt.

    Raises:
        TargetError: The prompt does not have the word.
    """
    if tokenizer is None:
        raise TargetError(f"word={word!r}: pass the prompt and the pipeline's tokenizer, or the tokens' positions.")
    ids = list(tokenizer(prompt)["input_ids"])
    own = list(tokenizer(word, add_special_tokens=False)["input_ids"])
    starts = [start for start in range(len(ids)) if own and ids[start : start + len(own)] == own]
    if not starts:
        raise TargetError(f"word={word!r} is not in the prompt {prompt!r}.{suggest_names(word, prompt.split())}")
    return [start + offset for start in starts for offset in range(len(own))]
