"""Positions of an image's tokens in the text of a vision-language model.

The processor of such a model repeats a placeholder in the text, one for each token of the image, and the model replaces
the embeddings of the placeholders by the image's features. So the placeholders in ``input_ids`` are the positions. The
number of tokens alone does not determine the grid: a text may have as many tokens as the image.

If the processor cut the image to tiles, :class:`TiledImage` among the inputs tells the positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from camtool.errors import LayerError
from camtool.hooks.structures.nested_tensors import ModelInputs

# Names in configurations of Hugging Face for the placeholder's number in the vocabulary.
_TOKEN_NAMES = ("image_token_id", "image_token_index")

# Names of inputs that mark the image's tokens themselves: Kosmos-2.
_MASK_NAMES = ("image_embeds_position_mask",)

# Types of models whose first token of the image is the mean over all its cells, and no cell.
_POOLED_FIRST = ("florence2",)

# Name of the input that holds a :class:`TiledImage`.
TILED_IMAGE = "tiled_image"


@dataclass(frozen=True)
class ImageTokens:
    """The tokens of one image in a text.

    Attributes:
        length: Number T of tokens of the text, those of the image included.
        positions: Which of them are the image's, row by row of the grid; empty if the model does not say it.
        grid: The grid that they form, if the inputs say it; else None.
        seams: Edges between the tiles of the image, in its pixels: of rows of tiles, and of columns of tiles.
    """

    length: int
    positions: tuple[int, ...] = ()
    grid: tuple[int, int] | None = None
    seams: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


class TiledImage:
    """Arrangement of the tiles that a processor cut an image to, and their tokens in the text.

    It is no data class: functions on nested tensors would look for tensors among thousands of positions.

    Attributes:
        rows: Number of rows of tiles.
        columns: Number of columns of tiles.
        crop: Edges of the image in the joined tiles (top, left, bottom, right), in pixels; the rest is padding.
        thumbnail: Whether a thumbnail of the whole image comes ``"first"``, before the tiles, or ``"last"``; None if
            there is none.
        is_stacked: The model takes ``(N, K, C, H, W)``; else ``(N·K, C, H, W)``.
        tokens: Name of an input → its tokens in the text. Empty for a single tile.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        crop: tuple[int, int, int, int],
        *,
        thumbnail: Literal["first", "last"] | None,
        is_stacked: bool,
        tokens: Mapping[str, ImageTokens],
    ) -> None:
        self.rows, self.columns, self.crop = rows, columns, crop
        self.thumbnail, self.is_stacked, self.tokens = thumbnail, is_stacked, dict(tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TiledImage) and vars(self) == vars(other)


def find_image_tokens(model: nn.Module, inputs: ModelInputs) -> ImageTokens | None:
    """Return the tokens of the image in the text; None for a model that is called without a text.

    Args:
        model: Any module.
        inputs: What it is called with; in a mapping the image comes first.

    Raises:
        LayerError: The texts of a batch have the image at different places, or there are several images.
    """
    if not isinstance(inputs, Mapping):
        return None
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        return None
    tiled = inputs.get(TILED_IMAGE)
    if isinstance(tiled, TiledImage) and tiled.tokens:
        return tiled.tokens.get(next(iter(inputs)), ImageTokens(ids.shape[1]))
    return _locate_image(model, inputs, ids)


def _locate_image(model: nn.Module, inputs: Mapping[Any, Any], ids: Tensor) -> ImageTokens:
    """Return the tokens of the image among those of the texts ``(N, T)``."""
    mask = _find_mask(model, inputs, ids)
    if mask is None or not mask.any():
        return ImageTokens(ids.shape[1])
    if not bool((mask == mask[:1]).all()):
        raise LayerError(
            "the texts of the batch have their image at different places; explain the images one by one, or give all "
            "of them the same text."
        )
    positions = mask[0].nonzero().flatten().tolist()
    if getattr(getattr(model, "config", None), "model_type", None) in _POOLED_FIRST:
        positions = positions[1:]
    return ImageTokens(ids.shape[1], tuple(positions), _find_declared_grid(model, inputs))


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
