"""Phrases of a prompt: the classes of detectors that compare each box with each token of a text (Grounding DINO).

The prompt lists what to look for, ``"a cat. a remote control."``. The score of a box and a phrase is the highest logit
of the phrase's tokens, as the authors' inference takes it: arXiv 2303.05499, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor

# The numbers of a phrase's tokens in the vocabulary; empty if the output does not tell them.
Phrase: TypeAlias = tuple[int, ...]

# [CLS], [SEP], "." and "?" in the vocabulary of BERT, the text encoder of these models. The models themselves let only
# the tokens between two of these attend to one another.
_SEPARATORS = frozenset({101, 102, 1012, 1029})


@dataclass(frozen=True, eq=False)
class PhraseScores:
    """The scores of one image's boxes.

    Attributes:
        logits: ``(Q, P)``, one for each box and phrase.
        phrases: The P phrases, in the order of the prompt.
    """

    logits: Tensor
    phrases: tuple[Phrase, ...]


def find_phrase_scores(named: Mapping[Any, Any], logits: Tensor) -> list[PhraseScores] | None:
    """Return the scores of the phrases for each image; ``None`` if the logits are not those of tokens.

    Padded tokens, the last ones, have a logit of minus infinity, which no class has. If the output does not hold the
    tokens of the prompt, as that of the authors' own code, the whole prompt is one phrase.

    Args:
        named: The items of the model's output.
        logits: ``(N, Q, T)``, one for each box and token.
    """
    is_token = ~logits.detach().isneginf().all(1)  # (N, T)
    tokens: Any = named.get("input_ids")
    has_prompts = isinstance(tokens, Tensor) and tokens.ndim == 2 and len(tokens) == len(logits)
    if has_prompts and tokens.shape[1] <= logits.shape[2]:
        prompts: Sequence[Sequence[int]] = tokens.tolist()
        return [_read_prompt(*per_image) for per_image in zip(logits, is_token.tolist(), prompts, strict=True)]
    comes_behind_padding = is_token[:, 1:] & ~is_token[:, :-1]
    if bool(is_token.all()) or bool(comes_behind_padding.any()):
        return None
    return [*map(_join_tokens, logits, is_token)]


def _join_tokens(logits: Tensor, is_token: Tensor) -> PhraseScores:
    """Return the scores of one image whose prompt is not known as those of a single phrase."""
    if not is_token.any():
        return PhraseScores(logits[:, :0], ())
    return PhraseScores(logits[:, is_token].amax(1, keepdim=True), ((),))


def _read_prompt(logits: Tensor, is_token: Sequence[bool], prompt: Sequence[int]) -> PhraseScores:
    """Return the scores of one image with logits ``(Q, T)``, of which those of the prompt's own tokens come first."""
    kept = [index for index, number in enumerate(prompt[: len(is_token)]) if is_token[index] or number in _SEPARATORS]
    runs = groupby(kept, key=lambda index: prompt[index] in _SEPARATORS)
    runs_of_tokens = [[*run] for is_separator, run in runs if not is_separator]
    scores = [logits[:, own].amax(1) for own in runs_of_tokens]
    phrases = tuple(tuple(prompt[index] for index in own) for own in runs_of_tokens)
    return PhraseScores(torch.stack(scores, 1) if scores else logits[:, :0], phrases)
