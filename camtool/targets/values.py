"""What models without classes are asked: one number of a regression, or how near one embedding is to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.outputs import embedding, logits
from camtool.targets.base import Target, of_class, per_image
from camtool.targets.checks import check_real, check_whole

__all__ = ["Similarity", "Value"]


@dataclass(frozen=True)
class Value(Target):
    """One number of a regression's output, ``(N,)`` or ``(N, K)``, as it is; ``(N, K, *size)`` is laid out in a row.

    It has to be asked for: a single number ``(N, 1)`` is else taken for the logit of two classes.

    Attributes:
        index: Which of the K.
        name: What it is, in a word or two.
    """

    index: int = 0
    name: str | None = None

    def __post_init__(self) -> None:
        check_whole("Value's index", self.index)

    def __call__(self, output: Any) -> Tensor:
        return of_class(per_image(logits(output)), self.index)

    def reads_scores(self) -> bool:
        """Return True."""
        return True

    def __str__(self) -> str:
        return f"value {self.index}" if self.name is None else self.name


@dataclass(frozen=True, eq=False)
class Similarity(Target):
    """The cosine similarity to an embedding ``(D,)``, for models that return ``(N, D)`` embeddings.

    Attributes:
        embedding: ``(D,)``, made by the same model.
        name: What it is the embedding of: a text, say.
    """

    embedding: Tensor
    name: str = "similarity"

    def __post_init__(self) -> None:
        check_real("Similarity's embedding", self.embedding)
        object.__setattr__(self, "embedding", torch.as_tensor(self.embedding))

    def __call__(self, output: Any) -> Tensor:
        vectors = embedding(output)
        if vectors.shape[-1:] != self.embedding.shape:
            raise TargetError(
                f"Similarity's embedding has shape {tuple(self.embedding.shape)}, but the model's embeddings are "
                f"{tuple(vectors.shape[-1:])}; it takes one made by the same model."
            )
        return torch.cosine_similarity(vectors, self.embedding.to(vectors), dim=-1)

    def __str__(self) -> str:
        return self.name
