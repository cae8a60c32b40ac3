"""Models of two towers, one for pictures and one for texts: CLIP, SigLIP and their kin.

Such a model is explained by its tower for pictures, which makes an embedding of each; the other makes embeddings of
texts, and what is explained is how near the two are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from camtool.errors import ModelError
from camtool.guards import left_as_found
from camtool.model_cache import remembered
from camtool.structures import map_tensors

__all__ = ["ImageTower", "TextTower", "Tokenizer", "has_two_towers", "image_tower"]

Tokenizer: TypeAlias = Callable[[list[str]], Any]
"""From texts to what the tower for texts is called with: a tensor of tokens, or keyword arguments."""

_ENCODERS = {"get_image_features": "get_text_features", "encode_image": "encode_text"}
"""What makes embeddings of pictures → what makes those of texts: at Hugging Face; in open_clip and OpenAI's CLIP."""


def has_two_towers(model: nn.Module) -> bool:
    """Whether a model makes embeddings of pictures and of texts."""
    return _encoders(model) is not None


class ImageTower(nn.Module):
    """The tower for pictures: from pictures ``(N, C, h, w)`` to their embeddings ``(N, D)``.

    Its modules are the whole model's, under the same names. Called with more than pictures it is the whole model.

    Args:
        whole: A model of two towers.

    Attributes:
        whole: That model.
    """

    whole: nn.Module

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.__dict__["_modules"] = whole._modules  # the very same, so a module that is replaced there is replaced here
        self.__dict__["whole"] = whole  # beside the modules, which are known by their names in it already
        self.training = whole.training

    def forward(self, pixel_values: Tensor, **others: Any) -> Any:
        """The embeddings ``(N, D)``; with other arguments, what the whole model returns."""
        if others:
            return self.whole(pixel_values=pixel_values, **others)
        encode, _ = _encoders(self.whole) or ("", "")
        return _embeddings(getattr(self.whole, encode)(pixel_values))

    def _apply(self, *args: Any, **kwargs: Any) -> ImageTower:
        self.whole._apply(*args, **kwargs)  # so that both towers move to another device together
        return self


def image_tower(whole: nn.Module) -> ImageTower:
    """Return the tower for pictures of a model that the caller keeps, the same one each time.

    So what is remembered of the tower is found again. It does not keep the model alive.
    """
    tower = remembered(whole, "image tower", lambda: ImageTower(cast(nn.Module, weakref.proxy(whole))))
    tower.training = whole.training
    return tower


@dataclass(frozen=True, eq=False)
class TextTower:
    """The tower for texts: from T texts to their embeddings ``(T, D)``.

    Attributes:
        whole: The model; it is left as it was found.
        tokenize: Its tokenizer.
    """

    whole: nn.Module = field(repr=False)
    tokenize: Tokenizer = field(repr=False)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """The embeddings, ``(T, D)``, without a graph.

        Raises:
            ModelError: The tokenizer cannot be had.
        """
        device = next(self.whole.parameters()).device
        tokens = map_tensors(self.tokenize(list(texts)), lambda tensor: tensor.to(device))
        _, name = _encoders(self.whole) or ("", "")
        encode = getattr(self.whole, name)
        with torch.inference_mode(False), torch.no_grad(), left_as_found(self.whole):
            return _embeddings(encode(**tokens) if isinstance(tokens, Mapping) else encode(tokens))


def _encoders(model: nn.Module) -> tuple[str, str] | None:
    pairs = _ENCODERS.items()
    return next((pair for pair in pairs if all(callable(getattr(model, name, None)) for name in pair)), None)


def _embeddings(output: Any) -> Tensor:
    """The embeddings themselves, ``(N, D)``: transformers hands them out bare, or as what its towers have pooled."""
    found = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
    if not isinstance(found, Tensor) or found.ndim != 2:
        came = tuple(found.shape) if isinstance(found, Tensor) else type(output).__name__
        raise ModelError(
            f"the model's embeddings came as {came}, not as a tensor (N, D); wrap the model so that it returns those."
        )
    return found
