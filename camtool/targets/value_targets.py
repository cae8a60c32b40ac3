"""Targets for models without classes: a number of a regression, an action, a similarity, tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from camtool.arguments.checks import check_real_tensor
from camtool.errors import TargetError
from camtool.hooks.structures.nested_tensors import find_main_tensor, get_named_items
from camtool.outputs.class_scores import find_embedding, find_logits, find_text_logits
from camtool.targets.base_target import ScoreContext, Target, Traits, flatten_positions, select_class
from camtool.targets.field_checks import Integer, Label, OptionalInteger, check_label
from camtool.warning_codes import MapWarning


@dataclass(frozen=True)
class Value(Target):
    """One number of a regression's output ``(N,)`` or ``(N, K)``; ``(N, K, *size)`` is flattened first.

    Regressions need this target: without it a single number ``(N, 1)`` counts as the logit of two classes.

    Attributes:
        index: The position of the number, 0 to K - 1.
        name: A label for it.
    """

    index: Integer = 0
    name: Label = None

    traits = Traits(reads="scores")

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


@dataclass(frozen=True)
class Action(Target):
    """One dimension of a policy's action ``(N, A)``, or of one step of a chunk of actions ``(N, T, A)``.

    The action is the output, its field ``action`` or ``actions``, or the first tensor in it.

    Attributes:
        index: The dimension, 0 to A - 1.
        step: The step of a chunk, 0 to T - 1; ``None`` for an action without steps.
        sign: -1 for what lowers the dimension, 1 for what raises it. With ``None``, :func:`camtool.explain_policy`
            takes the direction in which the inputs moved it, and :func:`camtool.explain` what raises it.
    """

    index: Integer
    step: OptionalInteger = None
    sign: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sign not in (None, -1, 1):
            raise TargetError(f"Action's sign must be 1, -1 or None, got {self.sign!r}.")

    def __call__(self, output: Any) -> Tensor:
        named = get_named_items(output)
        actions = find_main_tensor(named.get("action", named.get("actions", output)))
        index = (self.index,) if self.step is None else (self.step, self.index)
        shape = () if actions is None else tuple(actions.shape)
        if actions is None or len(shape) != len(index) + 1:
            need = "(N, A); for a chunk (N, T, A) give step=" if self.step is None else "(N, T, A); for (N, A) no step"
            raise TargetError(f"{self} needs actions {need}; the model returned {shape or type(output).__name__}.")
        if any(not 0 <= at < size for at, size in zip(index, shape[1:], strict=True)):
            raise TargetError(f"{self} does not exist: the model returned actions {shape}, and both count from 0.")
        of_all_images = slice(None), *index
        return actions[of_all_images] * (self.sign or 1)

    def with_sign(self, sign: int) -> Action:
        """Return the same action, for what raises it (1) or lowers it (-1)."""
        return replace(self, sign=sign)

    def __str__(self) -> str:
        return f"action {self.index}" if self.step is None else f"action {self.index} at step {self.step}"


@dataclass(frozen=True, eq=False)
class Similarity(Target):
    """The cosine similarity to an embedding ``(D,)``, for models that return embeddings ``(N, D)``.

    Attributes:
        embedding: ``(D,)``, made by the same model.
        name: A label, e.g. the text that the embedding was made of.
    """

    embedding: Annotated[Tensor, check_real_tensor]
    name: Annotated[str, check_label] = "similarity"

    traits = Traits(is_similarity=True, reads="embedding")

    def __post_init__(self) -> None:
        super().__post_init__()
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


@dataclass(frozen=True)
class TextTokens(Target):
    """One or more tokens of a text: the sum of their logits, each given the text before it.

    Attributes:
        positions: Where the tokens lie in the text, 1 or more: the model scores a token where it has read the one
            before.
        tokens: Their numbers in the vocabulary.
        text: What they say.
        length: The number of tokens of the text. With it, the model may return the logits of the last tokens alone, as
            it does with ``logits_to_keep``.
    """

    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    length: int | None = None

    def __post_init__(self) -> None:
        if not self.positions or len(self.positions) != len(self.tokens) or min(self.positions) < 1:
            raise TargetError(
                f"TextTokens needs as many tokens as positions, from 1 on; got positions {self.positions} and tokens "
                f"{self.tokens}."
            )

    def __call__(self, output: Any) -> Tensor:
        logits = find_text_logits(output)
        if logits is None:
            raise self._build_error("no logits of a text (N, T, V)")
        skipped = 0 if self.length is None else self.length - logits.shape[1]
        before = [position - 1 - skipped for position in self.positions]
        has_positions = skipped >= 0 and min(before) >= 0 and max(before) < logits.shape[1]
        if not has_positions or max(self.tokens) >= logits.shape[2]:
            raise self._build_error(f"logits {tuple(logits.shape)}")
        return logits[:, before, [*self.tokens]].sum(1)

    def _build_error(self, given: str) -> TargetError:
        asked = f"tokens {self.tokens} at positions {self.positions}"
        return TargetError(f"TextTokens asks for {asked}; the model returned {given}.")

    def list_text_positions(self) -> tuple[int, ...]:
        """Return the positions of the tokens."""
        return self.positions

    def __str__(self) -> str:
        return self.text
