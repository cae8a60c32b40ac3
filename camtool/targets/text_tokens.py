"""Tokens of a text that a language model has written, or is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from camtool.errors import TargetError
from camtool.outputs.class_scores import find_text_logits
from camtool.targets.base import Target

__all__ = ["TextTokens"]


@dataclass(frozen=True)
class TextTokens(Target):
    """One or more tokens of a text: the sum of their logits, each given the text before it.

    Attributes:
        positions: Where the tokens lie in the text, 1 or more: the model scores a token where it has read the one
            before.
        tokens: Their numbers in the vocabulary.
        text: What they say.
    """

    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str

    def __post_init__(self) -> None:
        if not self.positions or len(self.positions) != len(self.tokens) or min(self.positions) < 1:
            raise TargetError(
                f"TextTokens needs as many tokens as positions, from 1 on; got positions {self.positions} and tokens "
                f"{self.tokens}."
            )

    def __call__(self, output: Any) -> Tensor:
        logits = find_text_logits(output)
        if logits is None or max(self.positions) > logits.shape[1] or max(self.tokens) >= logits.shape[2]:
            came = "no logits of a text (N, T, V)" if logits is None else f"logits {tuple(logits.shape)}"
            raise TargetError(
                f"TextTokens asks for tokens {self.tokens} at positions {self.positions}; the model returned {came}."
            )
        before = [position - 1 for position in self.positions]
        return logits[:, before, [*self.tokens]].sum(1)

    def list_text_positions(self) -> tuple[int, ...]:
        """Return the positions of the tokens."""
        return self.positions

    def __str__(self) -> str:
        return self.text
