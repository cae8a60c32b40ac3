"""The classes of a segmenter: a colored picture, its legend, and the class under a click."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.app.html_fragments import Built, build_hint, draw_photo, get_subject, read_asset

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.workbench import COMPUTE, ModelOutput, PageContext, Session, check_point, read_outputs
from camtool.concept_maps.concept_colors import get_color
from camtool.errors import ModelError, TargetError
from camtool.explaining.explainer import Explainer
from camtool.models import Loaded
from camtool.outputs.class_scores import find_predicted
from camtool.targets.resolving import is_background

# Class of pixels that the model did not see.
UNSEEN = -1

# Class of pixels where the model predicts none of its independent labels.
NOTHING = -2

_BACKGROUND_COLOR, _UNSEEN_COLOR = (128, 128, 128), (60, 60, 60)
_OPACITY = 0.6


@dataclass(frozen=True)
class Segment:
    """One class in the photo.

    Attributes:
        index: The class.
        label: Its name.
        color: Its color in the picture, (red, green, blue).
        share: The share of what the model saw of the photo, 0 to 1.
    """

    index: int
    label: str
    color: tuple[int, int, int]
    share: float


@dataclass(frozen=True, eq=False)
class Segments:
    """The classes of a photo.

    Attributes:
        classes: ``(H, W)``, the class of each pixel of the photo, the smallest one where labels overlap;
            :data:`UNSEEN` where the model did not see the photo, :data:`NOTHING` where it predicts no label.
        legend: The classes in the photo, the largest first, and background last.
        picture: The photo in the colors of the legend.
    """

    classes: NDArray[np.int64]
    legend: tuple[Segment, ...]
    picture: Image.Image

    def find_at(self, x: float, y: float) -> Segment:
        """Return the class at a point of the photo.

        Raises:
            TargetError: The point is outside of the photo, or the model does not see it.
        """
        check_point(self.picture, x, y)
        index = int(self.classes[int(y), int(x)])
        if index == UNSEEN:
            raise TargetError(f"the model never saw the point ({x:g}, {y:g}); click inside the colored part.")
        if index == NOTHING:
            raise TargetError(f"the model predicts no label at the point ({x:g}, {y:g}); click on another color.")
        return next(segment for segment in self.legend if segment.index == index)


def find_segments(loaded: Loaded, image: Image.Image) -> Segments:
    """Return the class of each pixel of a photo, with a legend. Runs one forward pass.

    Raises:
        ModelError: The model is no segmenter.
        CamtoolError: The model does not run on the photo.
    """
    photo = image.convert("RGB")
    output = read_outputs(loaded, [photo])
    if output.scores is None or output.scores.ndim != 4:
        raise ModelError("this model returns no class for each pixel; it is no segmenter.")
    predicted = find_predicted(output.scores[0], output.link).cpu().numpy()
    geometry, (height, width) = Explainer(loaded).prepare(photo).geometry, predicted.shape[1:]
    top, left, bottom, right = geometry.box
    rows = _find_cells(geometry.photo[0], top, bottom, height)
    columns = _find_cells(geometry.photo[1], left, right, width)
    # The number of the photo's rows and columns in each cell: labels are counted without being drawn one by one.
    by_row = np.bincount(rows[rows >= 0], minlength=height)
    by_column = np.bincount(columns[columns >= 0], minlength=width)
    areas = predicted @ by_column @ by_row
    planes = np.full((height, width), NOTHING)
    for index in np.argsort(-areas, kind="stable").tolist():  # the small ones last, as they may be inside of large ones
        planes[predicted[index]] = index
    seen = np.logical_and.outer(rows >= 0, columns >= 0)
    classes = np.where(seen, planes[np.ix_(rows, columns)], UNSEEN)
    legend = _build_legend(areas / seen.sum(), output)
    return Segments(classes, legend, _draw(photo, classes, legend))


def _find_cells(pixels: int, start: float, end: float, cells: int) -> NDArray[np.int64]:
    """Return for each pixel of one axis of the photo the cell that covers its center, -1 if none does."""
    indices = np.floor((np.arange(pixels) + 0.5 - start) / (end - start) * cells).astype(np.int64)
    return np.where((indices >= 0) & (indices < cells), indices, -1)


def _build_legend(by_class: NDArray[np.float64], output: ModelOutput) -> tuple[Segment, ...]:
    """Return the classes in the photo by their shares of it, the largest first, and background last."""
    shares = {index: share for index, share in enumerate(by_class.tolist()) if share}
    background = {index for index in shares if is_background(index, output.labels)}
    order = sorted(shares, key=lambda index: (index in background, -shares[index]))
    colors = [_BACKGROUND_COLOR if index in background else get_color(number) for number, index in enumerate(order)]
    pairs = zip(order, colors, strict=True)
    return tuple(Segment(index, output.get_label(index), color, shares[index]) for index, color in pairs)


def _draw(photo: Image.Image, classes: NDArray[np.int64], legend: tuple[Segment, ...]) -> Image.Image:
    """Return the photo in the colors of the legend; what the model did not see is dark."""
    colors = np.empty((*classes.shape, 3), np.uint8)
    colors[classes == UNSEEN], colors[classes == NOTHING] = _UNSEEN_COLOR, _BACKGROUND_COLOR
    for segment in legend:
        colors[classes == segment.index] = segment.color
    return Image.blend(photo, Image.fromarray(colors), _OPACITY)


# ------------------------------------------------------------------------------------------------------------ page

_HINT = "Click on a class, in the photo or in the legend, to see which parts of the photo speak for it."


def build(context: PageContext) -> Built:
    """Build the panel: the colored photo, the map of the chosen class, and the legend."""
    with gr.Row(elem_classes="ct-split"):
        photo = gr.HTML(elem_id="segments-photo", js_on_load=read_asset("picture.js"), min_width=300)
        shown = gr.HTML(build_hint(_HINT), elem_id="segments-map", min_width=300)
    legend = gr.HTML(elem_id="segments-legend", js_on_load=read_asset("clicks.js"))
    outputs = [legend, shown, context.status]

    def show_map(session: Session, index: int, segments: Segments | None = None) -> dict[Any, Any]:
        segments = find_segments(*get_subject(context, session)) if segments is None else segments
        explanation = context.workbench.explain(replace(session.request, target=index))
        overlay = draw_photo(Image.fromarray(explanation.overlay()), f"the map of {explanation.label}")
        return {legend: _draw_legend(segments, index), shown: overlay, context.status: ""}

    @context.guard
    def click(session: Session, event: gr.EventData) -> dict[Any, Any]:
        segments = find_segments(*get_subject(context, session))
        return show_map(session, segments.find_at(event.x, event.y).index, segments)

    @context.guard
    def choose(session: Session, event: gr.EventData) -> dict[Any, Any]:
        return show_map(session, int(event.value))

    photo.click(click, context.session, outputs, **COMPUTE)
    legend.click(choose, context.session, outputs, **COMPUTE)

    def refresh(session: Session) -> dict[Any, Any]:
        segments = find_segments(*get_subject(context, session))
        return {photo: draw_photo(segments.picture, "the classes in colors"), legend: _draw_legend(segments, None)}

    return Built({photo: "", shown: build_hint(_HINT), legend: ""}, refresh)


def _draw_legend(segments: Segments, chosen: int | None) -> str:
    """Return the classes as buttons with their colors and shares."""
    buttons = "".join(
        f'<button type="button" data-value="{entry.index}" aria-pressed="{str(entry.index == chosen).lower()}">'
        f'<i style="background:rgb{entry.color}"></i>{escape(entry.label)} <span>{entry.share:.1%}</span></button>'
        for entry in segments.legend
    )
    return f'<div class="ct-chips">{buttons}</div>'
