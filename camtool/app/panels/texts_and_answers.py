"""Texts that a model such as CLIP compares with the photo, and the answer of a vision-language model, word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
from PIL import Image

import camtool
from camtool.app.html_fragments import Built, build_hint, draw_card, draw_photo, get_subject, read_asset
from camtool.app.stores import ResultCache
from camtool.app.workbench import COMPUTE, PageContext, Session, count_bytes
from camtool.arguments.message_parts import format_count
from camtool.errors import CamtoolError, ModelError, TargetError
from camtool.explaining.explanation import Explanation
from camtool.models import Loaded, find_text_processor

_MOST_TEXTS = 8
# Characters. CLIP reads 77 tokens, which are about as many.
_LONGEST_TEXT = 300


def split_prompts(written: str) -> tuple[str, ...]:
    """Return the texts of a field, one per line, without empty ones and repetitions.

    Raises:
        TargetError: There is none, or there are too many, or one is too long.
    """
    texts = tuple(dict.fromkeys(line.strip() for line in written.splitlines() if line.strip()))
    if not texts:
        raise TargetError("write a text to compare the photo with, e.g. 'a photo of a dog'; one per line.")
    if len(texts) > _MOST_TEXTS:
        raise TargetError(f"{format_count(len(texts), 'text')} came; at most {_MOST_TEXTS} are compared at once.")
    longest = max(map(len, texts))
    if longest > _LONGEST_TEXT:
        raise TargetError(f"a text has {longest} characters; at most {_LONGEST_TEXT} are allowed.")
    return texts


def explain_texts(
    loaded: Loaded, image: Image.Image, written: str, method: str = "gradcam", *, layer: str | None = None
) -> list[Explanation]:
    """Return where a photo is similar to each text, the most similar one first. One forward pass.

    The scores are the cosine similarities of the embeddings of photo and text, -1 to 1.

    Args:
        loaded: A model that compares images with texts.
        image: The photo.
        written: The texts, one per line.
        method: The method.
        layer: The layer; by default the best one.

    Raises:
        ModelError: The model takes no texts.
        TargetError: There is no text, there are too many, or one is too long.
        CamtoolError: The method or the layer does not fit the model.
    """
    if loaded.text is None:
        raise ModelError("this model takes no texts; it has classes of its own.")
    texts = split_prompts(written)
    explanations = camtool.explain(loaded, image, list(texts), method=method, layer=layer)
    return sorted(explanations, key=lambda shown: -shown.score)


# ------------------------------------------------------------------------------------------------------------ page

_TEXT_HINT = "Write one text per line, e.g. 'a photo of a dog'. The photo is compared with each."


def build_texts(context: PageContext) -> Built:
    """Build the panel: a field for texts, and a map for each of them."""
    with gr.Row(elem_classes="ct-ask"):
        field = gr.Textbox(
            label="Texts, one per line",
            lines=3,
            max_lines=8,
            elem_id="texts-field",
            scale=5,
            placeholder="a photo of a dog",
        )
        button = gr.Button("Compare", variant="primary", elem_id="texts-button", scale=1, min_width=110)
    shown = gr.HTML(build_hint(_TEXT_HINT), elem_id="texts-maps")

    @context.guard
    def compare(session: Session, written: str) -> dict[Any, Any]:
        request = session.request
        matches = explain_texts(*get_subject(context, session), written, request.method, layer=request.layer)
        return {shown: _draw_matches(matches), context.status: ""}

    button.click(compare, [context.session, field], [shown, context.status], **COMPUTE)
    return Built({shown: build_hint(_TEXT_HINT)})


def _draw_matches(matches: Sequence[Explanation]) -> str:
    """Return a picture for each text, the most similar first."""
    cards = "".join(
        draw_card(Image.fromarray(match.overlay()), match.label, f"similarity {match.score:.3f}") for match in matches
    )
    return f'<div class="ct-cards ct-large">{cards}</div>'


# Characters of a question, and tokens up to which the model writes.
_LONGEST_QUESTION, _MOST_TOKENS = 500, 32


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
    loaded: Loaded, processor: Any, image: Image.Image, question: str, answer: str | None = None, method: str = "tam"
) -> Answer:
    """Ask a vision-language model about a photo, and return its answer with a map for each word.

    Args:
        loaded: The model.
        processor: Its processor, which prepares photo and question.
        image: The photo.
        question: The question.
        answer: An answer to explain instead of the model's own.
        method: The method.

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
    maps = camtool.tokens(loaded, processor, image, asked, given, max_new_tokens=_MOST_TOKENS, method=method)
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

_QUESTION_HINT = "Ask a question about the photo. Each word of the answer can be clicked."

# Answers that are kept with the maps of their words, for all users together.
_MOST_ANSWERS = 32

# Text in the list of methods → the method.
_METHODS = {"TAM": "tam", "Grad-CAM": "gradcam", "HiResCAM": "hirescam", "attention": "raw-attention"}


def build_answers(context: PageContext) -> Built:
    """Build the panel: a field for the question, the answer with its words, and the map of one word."""
    kept: ResultCache[Answer] = ResultCache(_MOST_ANSWERS, _count_bytes, context.workbench.max_answers)
    with gr.Row(elem_classes="ct-ask"):
        field = gr.Textbox(label="Question", elem_id="answer-field", scale=5, placeholder="What is shown?")
        method = gr.Dropdown([*_METHODS], value="TAM", label="Method", elem_id="answer-method", scale=1, min_width=120)
        button = gr.Button("Ask", variant="primary", elem_id="answer-button", scale=1, min_width=90)
    words = gr.HTML(build_hint(_QUESTION_HINT), elem_id="answer-words", js_on_load=read_asset("clicks.js"))
    shown = gr.HTML(elem_id="answer-map")

    def answer(session: Session, question: str, name: str) -> Answer:
        loaded, image = get_subject(context, session)
        key = session.request.model, session.request.image, question, name

        def compute() -> Answer:
            return explain_answer(loaded, find_text_processor(loaded.model), image, question, method=_METHODS[name])

        return kept.get(key, compute)

    def show(reply: Answer, number: int) -> dict[Any, Any]:
        word = reply.words[number]
        overlay = draw_photo(Image.fromarray(word.overlay()), f"the map of {word.label}")
        return {words: _draw_words(reply, number), shown: overlay, context.status: ""}

    @context.guard
    def ask(session: Session, question: str, name: str) -> Any:
        yield {words: build_hint("The model writes ..."), shown: "", context.status: ""}
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
    return Built({words: build_hint(_QUESTION_HINT), shown: ""})


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
