"""Targets for models without classes: a number of a regression, or the similarity to an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.outputs.class_scores import find_embedding, find_logits
from camtool.targets.base import ScoreContext, Target, Traits, flatten_positions, select_class
from camtool.targets.checks import check_integer, check_real_tensor
from camtool.warning_codes import MapWarning


@dataclass(frozen=True)
class Value(Target):
    """One number of a regression's output ``(N,)`` or ``(N, K)``; ``(N, K, *size)`` is flattened first.

    Regressions need this target: without it a single number ``(N, 1)`` counts as the logit of two classes.

    Attributes:
        index: The position of the number, 0 to K - 1.
        name: A label for it.
    """

    index: int = 0
    name: str | None = None

    traits = Traits(reads="scores")

    def __post_init__(self) -> None:
        check_integer("Value's index", self.index)

    def __call__(self, output: Any) -> Tensor:
        return select_class(flatten_positions(find_logits(output)), self.index)

    def get_warnings(self, context: ScoreContext) -> Sequence[str]:
        """Return a warning if the number is one dimension of an embedding, which has no meaning of its own."""
        if context.link is not None:
            return ()
        warning = (
            "The model returns an embedding and has no classes, so the map is of one of its dimensions; Similarity "
            "shows what makes one image like another."
        )
        return (MapWarning(warning, "embedding-dimension"),)

    def __str__(self) -> str:
        return f"value {self.index}" if self.name is None else self.name


@dataclass(frozen=True, eq=False)
class Similarity(Target):
    """The cosine similarity to an embedding ``(D,)``, for models that return embeddings ``(N, D)``.

    Attributes:
        embedding: ``(D,)``, made by the same model.
        name: A label, e.g. the text that the embedding was made of.
    """

    embedding: Tensor
    name: str = "similarity"

    traits = Traits(is_similarity=True, reads="embedding")

    def __post_init__(self) -> None:
        check_real_tensor("Similarity's embedding", self.embedding)
        # A frozen dataclass allows no plain assignment; arrays and lists become tensors here once.
        object.__setattr__(self, "embedding", torch.as_tensor(self.embedding))

    def __call__(self, output: Any) -> Tensor:
        vectors = find_embedding(output)
        if vectors.shape[-1:] != self.embedding.shape:
            raise TargetError(
                f"Similarity's embedding has shape {tuple(self.embedding.shape)}, but the model's embeddings have "
                f"shape {tuple(vectors.shape[-1:])}; pass an embedding made by the same model."
            )
        return torch.cosine_similarity(vectors, self.embedding.to(vectors), dim=-1)

    def __str__(self) -> str:
        return self.name
