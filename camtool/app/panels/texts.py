"""Texts that a model such as CLIP compares with the photo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
from PIL import Image

import camtool

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.context import COMPUTE, PageContext, Session
from camtool.app.panels.panel import Built, draw_card, draw_hint, get_subject
from camtool.arguments.messages import format_count
from camtool.errors import ModelError, TargetError
from camtool.explaining.explanation import Explanation
from camtool.models import Loaded

_MOST_TEXTS = 8
_LONGEST_TEXT = 300
"""Characters. CLIP reads 77 tokens, which are about as many."""


@dataclass(frozen=True, eq=False)
class TextMatch:
    """One text, and how well it fits the photo.

    Attributes:
        text: The text.
        similarity: The cosine similarity of the embeddings of photo and text, -1 to 1.
        explanation: Where the photo is similar to the text.
    """

    text: str
    similarity: float
    explanation: Explanation


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
) -> tuple[TextMatch, ...]:
    """Return the similarity of a photo to each text, the highest first, with a map for each. One forward pass.

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
    matches = [TextMatch(text, shown.score, shown) for text, shown in zip(texts, explanations, strict=True)]
    return tuple(sorted(matches, key=lambda match: -match.similarity))


# ------------------------------------------------------------------------------------------------------------ page

_HINT = "Write one text per line, e.g. 'a photo of a dog'. The photo is compared with each."


def build(context: PageContext) -> Built:
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
    shown = gr.HTML(draw_hint(_HINT), elem_id="texts-maps")

    @context.guard
    def compare(session: Session, written: str) -> dict[Any, Any]:
        request = session.request
        matches = explain_texts(*get_subject(context, session), written, request.method, layer=request.layer)
        return {shown: _draw_matches(matches), context.status: ""}

    button.click(compare, [context.session, field], [shown, context.status], **COMPUTE)
    return Built({shown: draw_hint(_HINT)})


def _draw_matches(matches: tuple[TextMatch, ...]) -> str:
    """Return a picture for each text, the most similar first."""
    cards = "".join(
        draw_card(Image.fromarray(match.explanation.overlay()), match.text, f"similarity {match.similarity:.3f}")
        for match in matches
    )
    return f'<div class="ct-cards ct-large">{cards}</div>'
