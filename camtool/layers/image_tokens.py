"""Positions of an image's tokens in the text of a vision-language model.

The processor of such a model repeats a placeholder in the text, one for each token of the image, and the model replaces
the embeddings of the placeholders by the image's features. So the placeholders in ``input_ids`` are the positions. The
number of tokens alone does not determine the grid: a text may have as many tokens as the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from camtool.errors import LayerError
from camtool.structures.nested_tensors import ModelInputs

__all__ = ["ImageTokens", "find_image_tokens", "find_placeholder"]

_TOKEN_NAMES = ("image_token_id", "image_token_index")
"""Names in configurations of Hugging Face for the placeholder's number in the vocabulary."""

_MASK_NAMES = ("image_embeds_position_mask",)
"""Names of inputs that mark the image's tokens themselves: Kosmos-2."""


@dataclass(frozen=True)
class ImageTokens:
    """The tokens of one image in a text.

    Attributes:
        length: Number T of tokens of the text, those of the image included.
        positions: Which of them are the image's, in order; empty if the model does not say it.
        grid: The grid that they form, if the inputs say it; else None.
    """

    length: int
    positions: tuple[int, ...] = ()
    grid: tuple[int, int] | None = None


def find_image_tokens(model: nn.Module, inputs: ModelInputs) -> ImageTokens | None:
    """Return the tokens of the image in the text; None for a model that is called without a text.

    Args:
        model: Any module.
        inputs: What it is called with.

    Raises:
        LayerError: The texts of a batch have the image at different places, or there are several images.
    """
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        return None
    mask = _find_mask(model, inputs, ids)
    if mask is None or not mask.any():
        return ImageTokens(ids.shape[1])
    if not bool((mask == mask[:1]).all()):
        raise LayerError(
            "the texts of the batch have their image at different places; explain the images one by one, or give all "
            "of them the same text."
        )
    return ImageTokens(ids.shape[1], tuple(mask[0].nonzero().flatten().tolist()), _find_declared_grid(model, inputs))


def _find_mask(model: nn.Module, inputs: Any, ids: Tensor) -> Tensor | None:
    """Return ``(N, T)``, True at the tokens of the image."""
    for name in _MASK_NAMES:
        if isinstance(inputs.get(name), Tensor):
            return inputs[name].bool()  # type: ignore[no-any-return]
    placeholder = find_placeholder(model)
    return None if placeholder is None else ids == placeholder


def find_placeholder(model: nn.Module) -> int | None:
    """Return the number, in the vocabulary, of the token that stands for a part of an image; None if it is unknown."""
    config = getattr(model, "config", None)
    return next((value for name in _TOKEN_NAMES if isinstance(value := getattr(config, name, None), int)), None)


def _find_declared_grid(model: nn.Module, inputs: Any) -> tuple[int, int] | None:
    """Return the grid that ``image_grid_thw`` declares: numbers of patches, of which the model merges neighbors."""
    patches = inputs.get("image_grid_thw")
    if not isinstance(patches, Tensor):
        return None
    if len(torch.unique(patches, dim=0)) != 1:
        raise LayerError("the images of the batch have different grids (image_grid_thw); explain them one by one.")
    frames, height, width = map(int, patches[0])
    merged = int(getattr(getattr(getattr(model, "config", None), "vision_config", None), "spatial_merge_size", 1))
    return (height // merged, width // merged) if frames == 1 else None
