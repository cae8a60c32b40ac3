"""The answer of a vision-language model, each word with its map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

import camtool
from camtool.errors import CamtoolError, TargetError
from camtool.explanation import Explanation
from camtool.models import Loaded

__all__ = ["Answer", "Piece", "explain_answer"]

_LONGEST_QUESTION = 500
"""Characters."""


@dataclass(frozen=True)
class Piece:
    """A piece of the answer's text.

    Attributes:
        text: The text.
        word: The number of the word that it is; None for what is between the words.
    """

    text: str
    word: int | None


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model answers, and where it looks for each word.

    Attributes:
        text: The answer.
        words: The explanation of each word, in order.
        pieces: The answer in pieces: the words, and what is between them.
    """

    text: str
    words: tuple[Explanation, ...]
    pieces: tuple[Piece, ...]


def explain_answer(
    loaded: Loaded,
    processor: Any,
    image: Image.Image,
    question: str,
    answer: str | None = None,
    method: str = "tam",
    *,
    longest: int = 32,
) -> Answer:
    """Ask a vision-language model about a photo, and return its answer with a map for each word.

    Args:
        loaded: The model.
        processor: Its processor, which prepares photo and question.
        image: The photo.
        question: The question.
        answer: An answer to explain instead of the model's own.
        method: The method.
        longest: The number of tokens up to which the model writes.

    Raises:
        TargetError: There is no question, or it is too long.
        CamtoolError: The model does not answer questions, or the method does not fit it.
    """
    asked = question.strip()
    if not asked:
        raise TargetError("write a question about the photo, e.g. 'What is shown?'.")
    if len(asked) > _LONGEST_QUESTION:
        raise TargetError(f"the question has {len(asked)} characters; at most {_LONGEST_QUESTION} are allowed.")
    if processor is None:
        raise CamtoolError(
            "the model has no processor, which prepares photo and question; load it from a folder that also holds "
            "the files of its processor."
        )
    given = None if answer is None or not answer.strip() else answer.strip()
    found = camtool.tokens(loaded, processor, image, asked, given, max_new_tokens=longest, method=method)
    return Answer(found.answer, found.explanations, split_answer(found.answer, found.words))


def split_answer(text: str, words: tuple[str, ...]) -> tuple[Piece, ...]:
    """Return an answer in pieces: its words in order, and what is between them.

    A word that is not found in the text, as a tokenizer may write it differently, is a piece of its own at its place.
    """
    pieces: list[Piece] = []
    position = 0
    for number, word in enumerate(words):
        start = text.find(word, position)
        if start > position:
            pieces.append(Piece(text[position:start], None))
        pieces.append(Piece(word, number))
        position = max(start, position) + (len(word) if start >= 0 else 0)
    if position < len(text):
        pieces.append(Piece(text[position:], None))
    return tuple(pieces)
