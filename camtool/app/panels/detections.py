"""The boxes of a detector: a list, the one under a click, and a map for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

import camtool
from camtool.app.panels.outputs import check_point
from camtool.errors import ModelError, NothingFoundError
from camtool.evidence.evidence import Evidence
from camtool.explanation import Explanation
from camtool.methods import Method
from camtool.models import Loaded
from camtool.rendering import draw_boxes
from camtool.rendering.regions import grow_to_one_pixel
from camtool.targets import Detection, Top

__all__ = ["BoxOnPhoto", "describe_click", "draw_all_boxes", "explain_box", "find_box_at", "list_boxes"]

_MOST_BOXES = 100
"""Detectors of torchvision return at most this many boxes by default."""

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
    """Return the detections of a photo, the most confident first; none if the model finds nothing.

    Args:
        loaded: A detector.
        image: The photo.
        least: The lowest confidence.

    Raises:
        ModelError: The model is no detector.
        CamtoolError: The model does not run on the photo.
    """

    def compute_nothing(evidence: Evidence) -> Tensor:
        if isinstance(evidence.forward_pass.predictions, Tensor):
            raise ModelError("this model returns no boxes; it is no detector.")
        return evidence.inputs.new_zeros(len(evidence.images), *evidence.inputs.shape[2:])

    # No map is computed, so there is one forward pass without a graph.
    method: Any = Method("boxes", compute_nothing, ignores_layer=True)
    try:
        found = camtool.explain(loaded, image, Top(_MOST_BOXES), method=method)
    except NothingFoundError:
        return ()
    boxes = (
        BoxOnPhoto(number, each.label, each.probability or 0.0, each.box)
        for number, each in enumerate(found)
        if each.box is not None
    )
    return tuple(each for each in boxes if each.confidence >= least)


def find_box_at(boxes: Sequence[BoxOnPhoto], x: float, y: float) -> BoxOnPhoto | None:
    """Return the smallest box that contains a point of the photo; None if there is none.

    Among boxes of one area the most confident one counts.
    """
    hit = [each for each in boxes if each.contains(x, y)]
    return min(hit, key=lambda each: (each.area, each.number), default=None)


def draw_all_boxes(image: Image.Image, boxes: Sequence[BoxOnPhoto], chosen: int | None = None) -> Image.Image:
    """Return the photo with the boxes, the one with the number ``chosen`` in another color and on top."""
    photo = np.asarray(image.convert("RGB"))
    for color, own in (
        (_SHOWN_COLOR, [each for each in boxes if each.number != chosen]),
        (_CHOSEN_COLOR, [each for each in boxes if each.number == chosen]),
    ):
        corners = [grow_to_one_pixel(each.xyxy) for each in own]
        photo = draw_boxes(photo, corners, color=color, labels=[each.caption for each in own])
    return Image.fromarray(photo)


def explain_box(
    loaded: Loaded, image: Image.Image, number: int, method: str = "odam", *, layer: str | None = None
) -> Explanation:
    """Return the explanation of one detection.

    Args:
        loaded: A detector.
        image: The photo.
        number: See :attr:`BoxOnPhoto.number`.
        method: The method. The default weighs each position by itself, so its map shows one object.
        layer: The layer; by default the one that the detection is read from.

    Raises:
        NothingFoundError: There are fewer detections.
        CamtoolError: The method or the layer does not fit the model.
    """
    return camtool.explain(loaded, image, Detection(number), method=method, layer=layer)


def describe_click(image: Image.Image, boxes: Sequence[BoxOnPhoto], x: float, y: float) -> str:
    """Return one sentence about what is under a click.

    Raises:
        TargetError: The point is outside of the photo.
    """
    check_point(image, x, y)
    hit = find_box_at(boxes, x, y)
    if not boxes:
        return "The model finds nothing in this photo."
    return "No box is here; click inside of one." if hit is None else f"{hit.caption}, box {hit.number + 1}."
