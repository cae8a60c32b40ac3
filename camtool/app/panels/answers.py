"""The answer of a vision-language model, each word with its map."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
from PIL import Image

import camtool

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.context import COMPUTE, PageContext, Session
from camtool.app.panels.panel import Built, draw_hint, draw_photo, get_subject, read_asset
from camtool.app.stores import ResultCache
from camtool.app.workbench import count_bytes
from camtool.errors import CamtoolError, TargetError
from camtool.explaining.explanation import Explanation
from camtool.models import Loaded, find_text_processor

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
    """Answer of a vision-language model, with a map for each word.

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
    maps = camtool.tokens(loaded, processor, image, asked, given, max_new_tokens=longest, method=method)
    return Answer(maps.answer, maps.explanations, split_answer(maps.answer, maps.words))


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


# ------------------------------------------------------------------------------------------------------------ page

_HINT = "Ask a question about the photo. Each word of the answer can be clicked."

_MOST_ANSWERS = 32
"""Answers that are kept with the maps of their words, for all users together."""

_METHODS = {"TAM": "tam", "Grad-CAM": "gradcam", "HiResCAM": "hirescam", "attention": "raw-attention"}
"""Text in the list of methods → the method."""


def build(context: PageContext) -> Built:
    """Build the panel: a field for the question, the answer with its words, and the map of one word."""
    kept: ResultCache[Answer] = ResultCache(_MOST_ANSWERS, _count_bytes, context.workbench.max_answers)
    with gr.Row(elem_classes="ct-ask"):
        field = gr.Textbox(label="Question", elem_id="answer-field", scale=5, placeholder="What is shown?")
        method = gr.Dropdown([*_METHODS], value="TAM", label="Method", elem_id="answer-method", scale=1, min_width=120)
        button = gr.Button("Ask", variant="primary", elem_id="answer-button", scale=1, min_width=90)
    words = gr.HTML(draw_hint(_HINT), elem_id="answer-words", js_on_load=read_asset("clicks.js"))
    shown = gr.HTML(elem_id="answer-map")

    def answer(session: Session, question: str, name: str) -> Answer:
        loaded, image = get_subject(context, session)
        key = session.request.model, session.request.image, question, name
        return kept.get(
            key,
            lambda: explain_answer(loaded, find_text_processor(loaded.model), image, question, method=_METHODS[name]),
        )

    def show(reply: Answer, number: int) -> dict[Any, Any]:
        word = reply.words[number]
        overlay = draw_photo(Image.fromarray(word.overlay()), f"the map of {word.label}")
        return {words: _draw_words(reply, number), shown: overlay, context.status: ""}

    @context.guard
    def ask(session: Session, question: str, name: str) -> Any:
        yield {words: draw_hint("The model writes ..."), shown: "", context.status: ""}
        reply = answer(session, question, name)
        # Longer words are more often names of things than short ones.
        yield show(reply, max(range(len(reply.words)), key=lambda number: len(reply.words[number].label)))

    @context.guard
    def choose(session: Session, question: str, name: str, event: gr.EventData) -> dict[Any, Any]:
        reply = answer(session, question, name)
        return show(reply, min(max(int(event.value), 0), len(reply.words) - 1))

    inputs, outputs = [context.session, field, method], [words, shown, context.status]
    button.click(ask, inputs, outputs, **COMPUTE)
    field.submit(ask, inputs, outputs, **COMPUTE)
    words.click(choose, inputs, outputs, **COMPUTE)
    return Built({words: draw_hint(_HINT), shown: ""})


def _count_bytes(answer: Answer) -> int:
    """Return the bytes of an answer. Its words share one photo."""
    return answer.words[0].photo.nbytes + sum(map(count_bytes, answer.words)) if answer.words else 0


def _draw_words(answer: Answer, chosen: int) -> str:
    """Return the answer with a button for each word."""
    pieces = "".join(
        escape(piece.text)
        if piece.word is None
        else f'<button type="button" data-value="{piece.word}" aria-pressed="{str(piece.word == chosen).lower()}">'
        f"{escape(piece.text)}</button>"
        for piece in answer.pieces
    )
    return f'<p class="ct-answer">{pieces}</p>'
