"""A model together with its preprocessing, its class names and its text encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from camtool.geometry.transform_output import Transform

# From T texts to their embeddings ``(T, D)``, in the same space as the model's embeddings of images.
TextEncoder: TypeAlias = Callable[[Sequence[str]], Tensor]


@dataclass(frozen=True, repr=False)
class Loaded:
    """A model with its preprocessing and its class names.

    It behaves like its model: ``loaded(batch)`` runs a forward pass, and every function of camtool that takes a model
    accepts it.

    Attributes:
        model: The model, in evaluation mode.
        transform: From a PIL image to the model's input; None if unknown.
        labels: The class names; None if unknown, or if the model has no classes.
        name: The name that it was loaded by.
        text: The text encoder of a model that compares images with texts; ``model`` then returns embeddings of images,
            ``(N, D)``. None for other models.
        transform_file: The file beside the weights that the transform was read from; None for other transforms.
    """

    model: nn.Module
    transform: Transform | None = None
    labels: Sequence[str] | None = None
    name: str = ""
    text: TextEncoder | None = None
    transform_file: Path | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass, and return the output of the model."""
        return self.model(*args, **kwargs)

    def __repr__(self) -> str:
        name = f"{self.name!r}: " if self.name else ""
        facts = [type(self.model).__name__, _describe_classes(self), _describe_transform(self.transform)]
        return f"<Loaded {name}{', '.join(facts)}>"


def _describe_classes(loaded: Loaded) -> str:
    if loaded.text is not None:
        return "targets are texts"
    if loaded.labels is None:
        return "no labels"
    return f"{len(loaded.labels)} label{'s' * (len(loaded.labels) != 1)}"


def _describe_transform(transform: Transform | None) -> str:
    if transform is None:
        return "no transform"
    parts: list[Any] = list(getattr(transform, "transforms", [transform]))
    names = [getattr(part, "__name__", type(part).__name__) for part in parts]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "nothing"
    sizes = [size for size in map(_describe_size, parts) if size]
    return f"transform {listed}" + (f" to {sizes[-1]}" if sizes else "")


def _describe_size(part: Any) -> str:
    """Return the height and the width that a step of a transform produces; empty if its attributes do not fix both."""
    size = getattr(part, "crop_size", None) or getattr(part, "size", None)
    if not isinstance(size, (list, tuple)) or len(size) not in (1, 2):
        return ""
    return f"{size[0]} x {size[-1]}"
