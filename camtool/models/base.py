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


@dataclass(frozen=True, repr=False)
class Loaded:
    """A model and what belongs to it.

    It stands for its model: ``loaded(batch)`` runs the forward pass, and everything that takes a model takes it.

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        return self.model(*args, **kwargs)

    def __repr__(self) -> str:
        name = f"{self.name!r}: " if self.name else ""
        facts = [type(self.model).__name__, _describe_classes(self), _describe_transform(self.transform)]
        return f"<Loaded {name}{', '.join(facts)}>"


def _describe_classes(loaded: Loaded) -> str:
    if loaded.text is not None:
        return "asked in words"
    if loaded.labels is None:
        return "classes without names"
    return f"{len(loaded.labels)} class{'es' * (len(loaded.labels) != 1)}"


def _describe_transform(transform: Transform | None) -> str:
    if transform is None:
        return "no preparation of its own"
    parts: list[Any] = list(getattr(transform, "transforms", [transform]))
    names = [getattr(part, "__name__", type(part).__name__) for part in parts]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "nothing"
    sizes = [size for size in map(_size_made_by, parts) if size]
    return f"prepared by {listed}" + (f" to {sizes[-1]}" if sizes else "")


def _size_made_by(part: Any) -> str:
    """Return the height and the width that a step of a transform makes; empty where its attributes do not fix both."""
    size = getattr(part, "crop_size", None) or getattr(part, "size", None)
    if not isinstance(size, (list, tuple)) or len(size) not in (1, 2):
        return ""
    return f"{size[0]} x {size[-1]}"
