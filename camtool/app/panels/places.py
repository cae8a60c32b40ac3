"""Evidence at a place of the photo: of each class, and of each channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import camtool
from camtool.app.html_fragments import Built, build_hint, draw_card, draw_photo, get_subject, read_asset
from camtool.app.panels.trust import draw_bars

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.workbench import COMPUTE, PageContext, Session, check_point
from camtool.errors import ModelError, TargetError
from camtool.evidence.evidence import Evidence
from camtool.evidence.linear_head import find_linear_head
from camtool.explaining.explanation import Explanation
from camtool.geometry.cell_centers import CellCenters
from camtool.models import Loaded, resolve_labels
from camtool.rendering import blend, draw_boxes
from camtool.rendering.regions import Box
from camtool.targets import get_class_label

# Share of the strongest cell's evidence below which a place counts as silent. Bars this short can hardly be seen.
_FAINT = 0.05

# Classes that are ranked at a place if the model has no linear head, as each takes a backward pass. Those returned.
_RANKED_CLASSES, _MOST_CLASSES, _MOST_CHANNELS = 10, 8, 6


@dataclass(frozen=True)
class PlaceClass:
    """The evidence for one class at one place.

    Attributes:
        index: The class.
        label: Its name.
        evidence: What the place adds to the score of the class, see :func:`look_at_place`.
    """

    index: int | None
    label: str
    evidence: float


@dataclass(frozen=True, eq=False)
class PlaceChannel:
    """One channel of the layer at one place.

    Attributes:
        index: The channel.
        activation: Its activation at the place.
        contribution: What this activation adds to the score of the shown class.
        picture: The photo with the channel's activation over it.
    """

    index: int
    activation: float
    contribution: float
    picture: Image.Image


@dataclass(frozen=True, eq=False)
class Place:
    """Evidence of classes and channels at one cell of a layer's grid.

    Attributes:
        cell: Row and column of the cell.
        grid: Number of rows and columns.
        box: The cell's square ``(x0, y0, x1, y1)`` on the photo, in pixels.
        picture: The photo with this square.
        layer: The layer's dotted name.
        label: The name of the class whose channels are listed.
        classes: The classes, the strongest evidence first.
        channels: The channels, the strongest contribution to the class first, by absolute value.
        is_exact: True if the contributions of all cells and the bias add up to the class's score.
        strongest: The largest absolute evidence for the class whose channels are listed, at any cell.
    """

    cell: tuple[int, int]
    grid: tuple[int, int]
    box: Box
    picture: Image.Image
    layer: str
    label: str
    classes: tuple[PlaceClass, ...]
    channels: tuple[PlaceChannel, ...]
    is_exact: bool
    strongest: float

    @property
    def is_faint(self) -> bool:
        """True if no class has evidence here to speak of, compared with the strongest cell."""
        return all(abs(ranked.evidence) < _FAINT * self.strongest for ranked in self.classes)

    def describe(self) -> str:
        """Return one sentence that says what the numbers are."""
        where = f"cell {self.cell[0] + 1}, {self.cell[1] + 1} of {self.grid[0]} x {self.grid[1]} at {self.layer}"
        if self.is_exact:
            return f"What the {where} adds to the score of each class; all cells and the bias add up to the score."
        return f"Gradient times activation in the {where}, for the highest classes: a linear estimate of what it adds."


@dataclass(frozen=True, eq=False)
class _CellEvidence:
    """Evidence at one cell, as a method reads it.

    Attributes:
        cell: Row and column.
        by_row: Evidence of each requested target, ``(R,)``.
        by_class: Evidence of each class, ``(K,)``; None without a linear head.
        by_channel: Contributions of the channels to the first target, ``(C,)``.
        activations: ``(C, h, w)``.
        centers: Where the cells lie in the model's input; None for a grid that is stretched over it.
    """

    cell: tuple[int, int]
    by_row: list[float]
    by_class: Tensor | None
    by_channel: Tensor
    activations: Tensor
    centers: CellCenters | None


def look_at_place(
    loaded: Loaded, image: Image.Image, x: float, y: float, target: Any = None, *, layer: str | None = None
) -> Place:
    """Return which classes and which channels speak at a place of a photo.

    The evidence of a class in the cell p of the layer is ``Σ_c ∂S/∂A_c(p) · A_c(p)``: gradient times activation, summed
    over the channels c. Each term of the sum is the contribution of a channel. If the model ends in global average
    pooling and a linear layer right after the layer, this is the class activation map at p divided by the number of
    cells, so that all cells and the bias add up to the class's score, and all classes are ranked. Otherwise it is a
    linear estimate, and the classes are the ten with the highest scores, and the shown one.

    Args:
        loaded: A classifier.
        image: The photo.
        x: Distance of the place from the left edge, in pixels of the photo.
        y: Distance from the top edge.
        target: The class whose channels are listed; by default the highest.
        layer: The layer's dotted name; by default that of an explanation.

    Raises:
        TargetError: The place is outside of the photo, or the model does not see it.
        LayerError: The model has no layer with a grid, or the named one has none.
        ModelError: The model is no classifier.
        CamtoolError: Another argument does not fit the model.
    """
    check_point(image, x, y)
    request = [target, camtool.targets.Top(_RANKED_CLASSES)]
    point = _find_input_point(loaded, image, x, y)
    cells: list[_CellEvidence] = []

    def read(evidence: Evidence) -> Tensor:
        cells.append(_read_cell(evidence, point))
        # The map of gradient times activation; its values are those that are read at the cell.
        return (evidence.gradients * evidence.activations).sum(1)

    explanations = camtool.explain(loaded, image, request, method=read, layer=layer)
    return _describe_place(loaded, explanations, cells[0])


def _find_input_point(loaded: Loaded, image: Image.Image, x: float, y: float) -> tuple[float, float]:
    """Return a point of the photo in pixels of the model's input, as row and column.

    Raises:
        TargetError: The model does not see the point.
    """
    geometry = camtool.Explainer(loaded).prepare(image).geometry
    column, row = geometry.to_input_box((x, y, x, y))[:2]
    height, width = geometry.size
    if not (0 <= row < height and 0 <= column < width):
        raise TargetError(
            f"the model never saw the point ({x:g}, {y:g}): the photo is cropped before it reaches the model. Click "
            "inside the part that is not gray."
        )
    return row, column


def _read_cell(evidence: Evidence, point: tuple[float, float]) -> _CellEvidence:
    """Return the evidence at the cell whose center is nearest to a point of the model's input."""
    if not isinstance(evidence.forward_pass.predictions, Tensor) or evidence.forward_pass.predictions.ndim != 2:
        raise ModelError("this model returns no single score for each class, so no classes are ranked at a place.")
    activations, gradients = evidence.activations, evidence.gradients
    grid, size = activations.shape[2:], evidence.inputs.shape[2:]
    centers = evidence.find_centers()
    row, column = (_find_cell(centers, axis, point[axis], grid[axis], size[axis]) for axis in (0, 1))
    products = (activations * gradients)[:, :, row, column]
    head = find_linear_head(evidence) if evidence.forward_pass.find_link().link is not None else None
    return _CellEvidence(
        cell=(row, column),
        by_row=products.sum(1).tolist(),
        by_class=None if head is None else head.weight @ head.maps[0, :, row, column] / grid.numel(),
        by_channel=products[0],
        activations=activations[0],
        centers=centers,
    )


def _find_cell(centers: CellCenters | None, axis: int, position: float, cells: int, pixels: int) -> int:
    """Return the cell of one axis whose center is nearest to a place in the input."""
    if centers is None:
        return min(int(position * cells / pixels), cells - 1)
    along = centers.axes[axis]
    return min(max(round((position - along.offset) / along.stride), 0), cells - 1)


# ---------------------------------------------------------------------------------------------------------- results


def _describe_place(loaded: Loaded, explanations: Sequence[Explanation], cell: _CellEvidence) -> Place:
    """Return the evidence at a cell with the names of the classes, and with pictures."""
    shown = explanations[0]
    box = _find_cell_box(shown, cell)
    strongest = cell.by_channel.abs().topk(min(_MOST_CHANNELS, len(cell.by_channel))).indices.tolist()
    return Place(
        cell=cell.cell,
        grid=(shown.raw.shape[0], shown.raw.shape[1]),
        box=box,
        picture=Image.fromarray(draw_boxes(shown.photo, [box])),
        layer=shown.layer,
        label=shown.label,
        classes=tuple(_rank_classes(loaded, explanations, cell)[:_MOST_CLASSES]),
        channels=tuple(_draw_channel(shown, cell, box, channel) for channel in strongest),
        is_exact=cell.by_class is not None,
        strongest=float(np.abs(shown.raw).max()),
    )


def _rank_classes(loaded: Loaded, explanations: Sequence[Explanation], cell: _CellEvidence) -> list[PlaceClass]:
    """Return the classes with the strongest evidence first."""
    if cell.by_class is None:
        rows = zip(explanations, cell.by_row, strict=True)
        ranked = {(one.index, one.label): PlaceClass(one.index, one.label, value) for one, value in rows}
        return sorted(ranked.values(), key=lambda entry: -entry.evidence)
    values = cell.by_class.tolist()
    labels = resolve_labels(loaded.model, loaded.labels, len(values))
    order = sorted(range(len(values)), key=lambda index: -values[index])
    return [PlaceClass(index, get_class_label(index, labels), values[index]) for index in order]


def _find_cell_box(shown: Explanation, cell: _CellEvidence) -> Box:
    """Return the square of a cell on the photo, ``(x0, y0, x1, y1)`` in pixels."""
    geometry = shown.geometry
    assert geometry is not None  # the input was a photo
    edges = []
    for axis in (1, 0):  # x, then y
        cells, pixels, at = shown.raw.shape[axis], geometry.size[axis], cell.cell[axis]
        stride = pixels / cells if cell.centers is None else cell.centers.axes[axis].stride
        center = stride * (at + 0.5) if cell.centers is None else cell.centers.axes[axis].list_centers(at + 1)[-1]
        edges.append((float(center - stride / 2), float(center + stride / 2)))
    x0, y0, x1, y1 = geometry.to_photo_box((edges[0][0], edges[1][0], edges[0][1], edges[1][1]))
    height, width = geometry.photo
    return max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height))


def _draw_channel(shown: Explanation, cell: _CellEvidence, box: Box, channel: int) -> PlaceChannel:
    """Return a channel at the cell, with its activation on the photo."""
    values: NDArray[np.float32] = cell.activations[channel].float().cpu().numpy()
    heatmap = shown.view.to_heatmap(values, cell.centers)
    return PlaceChannel(
        index=channel,
        activation=float(values[cell.cell]),
        contribution=float(cell.by_channel[channel]),
        picture=Image.fromarray(draw_boxes(blend(shown.photo, heatmap, seen=shown.seen), [box])),
    )


# ------------------------------------------------------------------------------------------------------------ page

_HINT = "Click on the photo: which classes speak at this place, and which channels of the layer?"


def build(context: PageContext) -> Built:
    """Build the panel: the photo to click on, the classes beside it, and the channels below."""
    with gr.Row(elem_classes="ct-split"):
        photo = gr.HTML(elem_id="place-photo", js_on_load=read_asset("picture.js"), min_width=300)
        classes = gr.HTML(build_hint(_HINT), elem_id="place-classes", min_width=280)
    channels = gr.HTML(elem_id="place-channels")

    @context.guard
    def look(session: Session, event: gr.EventData) -> dict[Any, Any]:
        request = session.request
        x, y = event.x + 0.5, event.y + 0.5  # a click on a pixel means its center
        place = look_at_place(*get_subject(context, session), x, y, request.target, layer=request.layer)
        return {
            photo: draw_photo(place.picture, "the cell that was clicked on"),
            classes: _draw_classes(place),
            channels: _draw_channels(place),
            context.status: "",
        }

    @context.guard
    def look_from_map(session: Session, event: gr.EventData) -> dict[Any, Any]:
        if context.workbench.find_kind(session.request.model, session.request.image) != "classes":
            return {context.status: ""}
        # The guard of the other handler answers errors as well; then the map stays in view, with the sentence above.
        shown = look(session, event)
        return {**shown, context.tabs: gr.update(selected="place")} if photo in shown else shown

    outputs = [photo, classes, channels, context.status]
    photo.click(look, context.session, outputs, **COMPUTE)
    context.picture.click(look_from_map, context.session, [*outputs, context.tabs], **COMPUTE)

    def refresh(session: Session) -> dict[Any, Any]:
        return {photo: draw_photo(get_subject(context, session)[1], "the photo; click on a place")}

    return Built({photo: "", classes: build_hint(_HINT), channels: ""}, refresh)


def _draw_classes(place: Place) -> str:
    """Return the classes as bars, and what the numbers are."""
    rows = [(ranked.label, ranked.evidence, f"{ranked.evidence:+.2g}") for ranked in place.classes]
    faint = build_hint("Hardly any class speaks here.") if place.is_faint else ""
    bars = draw_bars(rows, place.strongest)
    return f"<h3>Classes that speak here</h3>{faint}{bars}{build_hint(place.describe())}"


def _draw_channels(place: Place) -> str:
    """Return the channels as small pictures."""
    cards = "".join(
        draw_card(channel.picture, f"channel {channel.index}", f"{channel.contribution:+.2g} to {place.label}")
        for channel in place.channels
    )
    return f'<h3>Channels that speak here</h3><div class="ct-cards">{cards}</div>'
