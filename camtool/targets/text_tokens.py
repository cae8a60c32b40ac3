"""Tokens of a text that a language model has written, or is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from camtool.errors import TargetError
from camtool.outputs.class_scores import find_text_logits
from camtool.targets.base import Target


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
        skipped = 0 if logits is None or self.length is None else self.length - logits.shape[1]
        before = [position - 1 - skipped for position in self.positions]
        if (
            logits is None
            or skipped < 0
            or min(before) < 0
            or max(before) >= logits.shape[1]
            or max(self.tokens) >= logits.shape[2]
        ):
            came = "no logits of a text (N, T, V)" if logits is None else f"logits {tuple(logits.shape)}"
            raise TargetError(
                f"TextTokens asks for tokens {self.tokens} at positions {self.positions}; the model returned {came}."
            )
        return logits[:, before, [*self.tokens]].sum(1)

    def list_text_positions(self) -> tuple[int, ...]:
        """Return the positions of the tokens."""
        return self.positions

    def __str__(self) -> str:
        return self.text
