"""Models with two towers, one for images and one for texts, such as CLIP and SigLIP.

Such a model is explained by its image tower, which returns embeddings of images. The text tower returns embeddings of
texts. The score of a text is its similarity to the image.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from typing_extensions import Self

from camtool.errors import ModelError
from camtool.hooks.private_torch import convert_tensors_of_module, share_children
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.nested_tensors import map_tensors

# From texts to the input of the text tower: a tensor of tokens, or a mapping of keyword arguments.
Tokenizer: TypeAlias = Callable[[list[str]], Any]

# Name of the method that encodes images → name of the method that encodes texts.
ENCODERS = {
    # transformers
    "get_image_features": "get_text_features",
    # open_clip, and OpenAI's CLIP
    "encode_image": "encode_text",
}


def find_encoders(model: nn.Module) -> tuple[str, str] | None:
    """Return the names of the methods that encode images and texts; None if the model has no two towers."""
    pairs = ENCODERS.items()
    return next((pair for pair in pairs if all(callable(getattr(model, name, None)) for name in pair)), None)


class PartOfModel(nn.Module):
    """A module that runs a part of a model, or prepares its inputs. It has all of its modules, under the same names.

    Args:
        whole: The model.

    Attributes:
        whole: That model.
    """

    whole: nn.Module

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        # The same dictionary, so that a module that is replaced in the model is replaced here too.
        share_children(self, whole)
        # Past nn.Module.__setattr__, which would register the model as one more submodule.
        self.__dict__["whole"] = whole
        self.training = whole.training

    @classmethod
    def of(cls, whole: nn.Module) -> Self:
        """Return the part of a model that the caller keeps alive.

        It is the same part each time, so that what is cached for it is found again. It does not keep the model alive.
        """
        part = remember_for_model(whole, cls.__name__, lambda: cls(cast(nn.Module, weakref.proxy(whole))))
        part.training = whole.training
        return part

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        # So that .to(device) moves all of the model.
        convert_tensors_of_module(self.whole, *args, **kwargs)
        return self


class ImageTower(PartOfModel):
    """The image tower of a model: from images ``(N, C, H, W)`` to their embeddings ``(N, D)``.

    Called with more arguments than images, it runs the whole model.
    """

    def forward(self, pixel_values: Tensor, **others: Any) -> Any:
        """Return the embeddings ``(N, D)``; with other arguments, the output of the whole model."""
        if others:
            return self.whole(pixel_values=pixel_values, **others)
        encode, _ = find_encoders(self.whole) or ("", "")
        return _get_embeddings(getattr(self.whole, encode)(pixel_values))


@dataclass(frozen=True, eq=False)
class TextTower:
    """The text tower of a model: from T texts to their embeddings ``(T, D)``.

    Attributes:
        whole: The model. Its state is preserved.
        tokenize: Its tokenizer.
    """

    whole: nn.Module = field(repr=False)
    tokenize: Tokenizer = field(repr=False)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings ``(T, D)``, without a graph.

        Raises:
            ModelError: The tokenizer cannot be read.
        """
        device = next(self.whole.parameters()).device
        tokens = map_tensors(self.tokenize(list(texts)), lambda tensor: tensor.to(device))
        _, name = find_encoders(self.whole) or ("", "")
        encode = getattr(self.whole, name)
        # Tensors made in inference mode could not take part in a backward pass.
        with torch.no_grad(), guard(self.whole):
            return _get_embeddings(encode(**tokens) if isinstance(tokens, Mapping) else encode(tokens))


def _get_embeddings(output: Any) -> Tensor:
    """Return the embeddings ``(N, D)`` in the output of a tower.

    Depending on the version and the model, transformers returns them as a tensor, or as the pooled output.
    """
    embeddings = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
        got = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(output).__name__
        raise ModelError(
            f"the model's embeddings came as {got}, not as a tensor (N, D); wrap the model so that it returns those."
        )
    return embeddings
