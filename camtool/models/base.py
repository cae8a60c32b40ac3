"""What belongs to a model: the words that all sources of models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Loaded", "TextEncoder", "Transform"]

Transform: TypeAlias = "Callable[[Image.Image], Any]"
"""From a PIL picture to the model's input, ``(C, h, w)``."""

TextEncoder: TypeAlias = Callable[[Sequence[str]], Tensor]
"""From T texts to their embeddings ``(T, D)``, in the space of the model's embeddings of pictures."""


@dataclass(frozen=True)
class Loaded:
    """A model and what belongs to it.

    Attributes:
        model: The model, in evaluation mode.
        transform: From a PIL picture to its input; ``None`` where it is not known.
        labels: The names of its classes; ``None`` where they are not known, or it has none.
        name: What it was asked for by.
        text: For a model that compares pictures with texts, what makes embeddings of texts; ``model`` gives those of
            pictures then, ``(N, D)``. ``None`` for any other.
    """

    model: nn.Module
    transform: Transform | None = None
    labels: Sequence[str] | None = None
    name: str = ""
    text: TextEncoder | None = None
