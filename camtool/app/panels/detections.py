"""The boxes of a detector: a list, the one under a click, and a map for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

import camtool
from camtool.app.html_fragments import Built, build_hint, describe_heat, draw_photo, get_subject, read_asset

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.workbench import COMPUTE, PageContext, Session, check_point
from camtool.errors import ModelError, NothingFoundError
from camtool.models import Loaded
from camtool.rendering import draw_boxes
from camtool.rendering.regions import grow_to_one_pixel
from camtool.targets import Detection, Top

# Detectors of torchvision return at most 100 boxes by default, those of Ultralytics and Hugging Face 300.
_MOST_BOXES = 300

_SHOWN_COLOR = (255, 255, 255)
_CHOSEN_COLOR = (255, 140, 0)


@dataclass(frozen=True)
class BoxOnPhoto:
    """One detection.

    Attributes:
        number: Its place among the detections of the photo, 0 for the most confident one. It is the ``n`` of
            :class:`camtool.targets.Detection`.
        label: The name of its class.
        confidence: The model's confidence, 0 to 1.
        xyxy: The box ``(x0, y0, x1, y1)`` in pixels of the photo.
    """

    number: int
    label: str
    confidence: float
    xyxy: tuple[float, float, float, float]

    @property
    def caption(self) -> str:
        """The label and the confidence."""
        return f"{self.label} {self.confidence:.0%}"

    @property
    def area(self) -> float:
        """The area in pixels of the photo."""
        x0, y0, x1, y1 = self.xyxy
        return (x1 - x0) * (y1 - y0)

    def contains(self, x: float, y: float) -> bool:
        """Check that a point is inside of the box."""
        x0, y0, x1, y1 = self.xyxy
        return x0 <= x < x1 and y0 <= y < y1


def list_boxes(loaded: Loaded, image: Image.Image, least: float = 0.0) -> tuple[BoxOnPhoto, ...]:
    """Return the detections of a photo that the model reports, the most confident first; none if it finds nothing.

    Args:
        loaded: A detector.
        image: The photo.
        least: The lowest confidence.

    Raises:
        ModelError: The model is no detector.
        CamtoolError: The model does not run on the photo.
    """
    try:
        predictions = camtool.predict(loaded, image, Top(_MOST_BOXES))
    except NothingFoundError:
        return ()
    if any(prediction.box is None for prediction in predictions):
        raise ModelError("this model returns no boxes; it is no detector.")
    boxes = (
        BoxOnPhoto(number, prediction.label, prediction.probability or 0.0, prediction.box)
        for number, prediction in enumerate(predictions)
        if prediction.box is not None
    )
    return tuple(box for box in boxes if box.confidence >= least)


def find_box_at(boxes: Sequence[BoxOnPhoto], x: float, y: float) -> BoxOnPhoto | None:
    """Return the smallest box that contains a point of the photo; None if there is none.

    Among boxes of one area the most confident one counts.
    """
    hit = [box for box in boxes if box.contains(x, y)]
    return min(hit, key=lambda box: (box.area, box.number), default=None)


def draw_all_boxes(image: Image.Image, boxes: Sequence[BoxOnPhoto], chosen: int | None = None) -> Image.Image:
    """Return the photo with the boxes, the one with the number ``chosen`` in another color and on top."""
    photo = np.asarray(image.convert("RGB"))
    for color, own in (
        (_SHOWN_COLOR, [box for box in boxes if box.number != chosen]),
        (_CHOSEN_COLOR, [box for box in boxes if box.number == chosen]),
    ):
        corners = [grow_to_one_pixel(box.xyxy) for box in own]
        photo = draw_boxes(photo, corners, color=color, labels=[box.caption for box in own])
    return Image.fromarray(photo)


def describe_miss(image: Image.Image, boxes: Sequence[BoxOnPhoto], x: float, y: float) -> str:
    """Return one sentence about a click on no box.

    Raises:
        TargetError: The point is outside of the photo.
    """
    check_point(image, x, y)
    return "No box is here; click inside of one." if boxes else "The model finds nothing in this photo."


# ------------------------------------------------------------------------------------------------------------ page

# Detectors are usually shown from about this confidence on.
_LEAST_CONFIDENCE = 0.3

# Boxes that are drawn and listed; more would cover the photo.
_MOST_LISTED = 30

_HINT = "Click on a box, in the photo or in the list, to see where the model looked for this object."


def build(context: PageContext) -> Built:
    """Build the panel: the photo with the boxes, the map of the chosen one, and a list."""
    least = gr.Slider(0, 1, value=_LEAST_CONFIDENCE, step=0.05, label="Lowest confidence", elem_id="objects-least")
    with gr.Row(elem_classes="ct-split"):
        photo = gr.HTML(elem_id="objects-photo", js_on_load=read_asset("picture.js"), min_width=300)
        shown = gr.HTML(build_hint(_HINT), elem_id="objects-map", min_width=300)
    names = gr.HTML(elem_id="objects-list", js_on_load=read_asset("clicks.js"))
    outputs = [photo, shown, names, context.status]

    def show(session: Session, lowest: float, chosen: int | None) -> dict[Any, Any]:
        loaded, image = get_subject(context, session)
        boxes = list_boxes(loaded, image, lowest)[:_MOST_LISTED]
        picture = draw_all_boxes(image, boxes, chosen)
        return {photo: draw_photo(picture, "the boxes"), names: _draw_list(boxes, chosen), context.status: ""}

    def show_map(session: Session, lowest: float, number: int) -> dict[Any, Any]:
        loaded, image = get_subject(context, session)
        # ODAM weighs each position by itself, so its map shows one object.
        method = session.request.method if session.request.method != "gradcam" else "odam"
        explanation = camtool.explain(loaded, image, Detection(number), method=method, layer=session.request.layer)
        overlay = draw_photo(Image.fromarray(explanation.overlay()), f"the map of {explanation.label}")
        most = np.array([*image.size, *image.size]) - (1, 1, 0, 0)
        corners = grow_to_one_pixel(tuple(np.rint(np.clip(explanation.box or most, 0, most)).tolist()))
        heat = build_hint(describe_heat(explanation, corners, "in the box"))
        return {**show(session, lowest, number), shown: overlay + heat}

    @context.guard
    def filter_boxes(session: Session, lowest: float) -> dict[Any, Any]:
        return {**show(session, lowest, None), shown: build_hint(_HINT)}

    @context.guard
    def click(session: Session, lowest: float, event: gr.EventData) -> dict[Any, Any]:
        loaded, image = get_subject(context, session)
        boxes = list_boxes(loaded, image, lowest)[:_MOST_LISTED]
        hit = find_box_at(boxes, event.x + 0.5, event.y + 0.5)
        if hit is None:
            return {shown: build_hint(describe_miss(image, boxes, event.x, event.y)), context.status: ""}
        return show_map(session, lowest, hit.number)

    @context.guard
    def choose(session: Session, lowest: float, event: gr.EventData) -> dict[Any, Any]:
        return show_map(session, lowest, int(event.value))

    inputs = [context.session, least]
    least.release(filter_boxes, inputs, outputs, **COMPUTE)
    photo.click(click, inputs, outputs, **COMPUTE)
    names.click(choose, inputs, outputs, **COMPUTE)

    def refresh(session: Session) -> dict[Any, Any]:
        return {**show(session, _LEAST_CONFIDENCE, None), least: _LEAST_CONFIDENCE}

    return Built({photo: "", shown: build_hint(_HINT), names: "", least: _LEAST_CONFIDENCE}, refresh)


def _draw_list(boxes: Sequence[BoxOnPhoto], chosen: int | None) -> str:
    """Return the boxes as buttons."""
    if not boxes:
        return build_hint("No object is this sure; lower the confidence.")
    buttons = "".join(
        f'<button type="button" data-value="{box.number}" aria-pressed="{str(box.number == chosen).lower()}">'
        f"{escape(box.label)} <span>{box.confidence:.0%}</span></button>"
        for box in boxes
    )
    return f'<div class="ct-chips">{buttons}</div>'
