"""What a detector found: the n-th surest, the one at a place, and one detection followed through other images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from camtool.errors import NothingFoundError, TargetError
from camtool.geometry import Geometry
from camtool.outputs import Detections, detections, image_of
from camtool.targets.base import Target
from camtool.targets.checks import check_numbers, check_whole

__all__ = ["Box", "Corners", "Detected", "Detection", "nothing_found"]

Corners: TypeAlias = tuple[float, float, float, float]
"""A box ``(x0, y0, x1, y1)``."""

_UNSURE = 0.1
"""A detection of less confidence is one that most people would not even look at."""

_CERTAIN = 1e-6
"""The distance from 1 below which the confidence of a detection has hardly a digit left that could change."""

_AS_NEAR = 0.01
"""Boxes whose overlaps differ by less are at one place: queries often agree on a box, and then the surest counts."""


@dataclass(frozen=True)
class Detection(Target):
    """What a detector is ``n``-th most confident of in the image; it counts from 0."""

    n: int = 0

    def __post_init__(self) -> None:
        check_whole("Detection's n", self.n)

    def __call__(self, output: Any) -> Tensor:
        return _settled_scores(self, output)

    def has_place(self) -> bool:
        """Return True."""
        return True

    def settled(self, found: Detections, geometry: Geometry | None) -> Detected:
        """The detection that it comes to in one image.

        Args:
            found: What the model found there.
            geometry: How the photo became the model's input; ``None`` where boxes stay as the model gives them.

        Raises:
            NothingFoundError: There are not so many.
        """
        if not 0 <= self.n < len(found):
            raise nothing_found(
                f"target_class asks for detection {self.n}, counted from 0, but the model found {len(found)} in this "
                "image."
            )
        return _detected(found.surest_first(), self.n, geometry)


@dataclass(frozen=True)
class Box(Target):
    """What a detector found at a place: the most confident detection that overlaps the box.

    Attributes:
        xyxy: ``(x0, y0, x1, y1)``; in :func:`camtool.explain` in pixels of the photo, else as the model gives boxes.
        class_index: Of this class; by default of any.
        iou_threshold: The least intersection over union.
    """

    xyxy: Corners
    class_index: int | None = None
    iou_threshold: float = 0.5

    def __post_init__(self) -> None:
        check_numbers("Box's xyxy", self.xyxy, 4)
        check_whole("Box's class_index", self.class_index, optional=True)
        x0, y0, x1, y1 = self.xyxy
        if not (x0 < x1 and y0 < y1):
            raise TargetError(f"Box {self.xyxy} is empty; give (x0, y0, x1, y1) with x0 < x1 and y0 < y1.")
        if not 0 < self.iou_threshold <= 1:
            raise TargetError(f"Box's iou_threshold is {self.iou_threshold}; it must be above 0 and at most 1.")

    def __call__(self, output: Any) -> Tensor:
        return _settled_scores(self, output)

    def has_place(self) -> bool:
        """Return True."""
        return True

    def settled(self, found: Detections, geometry: Geometry | None) -> Detected:
        """The detection that it comes to in one image.

        Args:
            found: What the model found there.
            geometry: How the photo became the model's input; ``None`` where the box is one as the model gives them.

        Raises:
            NothingFoundError: None overlaps the box.
            TargetError: The model has no such class.
        """
        of_class = found if self.class_index is None else found.of_class(self.class_index)
        candidates = of_class.surest_first()
        overlap = candidates.overlap(_as_the_model_gives(self.xyxy, found, geometry))
        enough = overlap >= self.iou_threshold
        if not enough.any():
            raise self._missed(overlap)
        return _detected(candidates, int(enough.int().argmax()), geometry, self.iou_threshold)

    def _missed(self, overlap: Tensor) -> NothingFoundError:
        """What is raised where no overlap, ``(D,)``, is large enough."""
        best = f"the best overlaps it by {float(overlap.max()):.2f}" if len(overlap) else "there are none at all"
        which = "" if self.class_index is None else f" of class {self.class_index}"
        return nothing_found(
            f"no detection{which} overlaps the box {self.xyxy} by {self.iou_threshold:g} or more; {best}."
        )


@dataclass(frozen=True)
class Detected(Target):
    """One detection, of one image: what :class:`Detection`, :class:`Box` and classes come to for a detector.

    The score is that of the detection of its class whose box overlaps this one best: on the image itself the detection,
    with the confidence that non-maximum suppression passed on unchanged. In another image, where none overlaps it by
    the threshold, it is the least that the model could give: no confidence.

    Attributes:
        class_index: Its class.
        place: Its box as the model gives it.
        xyxy: Its box on the photo, in pixels.
        confidence: The model's confidence in it, 0 to 1.
        iou_threshold: The least intersection over union in other images.
        classes: How many classes the model knows, where every box has a score of each.
    """

    class_index: int
    place: Corners
    xyxy: Corners
    confidence: float
    iou_threshold: float = 0.5
    classes: int | None = None

    def __call__(self, output: Any) -> Tensor:
        return torch.stack([self._one(found.of_class(self.class_index)) for found in _found(output, self.classes)])

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.class_index)

    def has_place(self) -> bool:
        """Return True."""
        return True

    def get_warnings(self, score: float) -> Sequence[str]:
        """Return warnings where the model is hardly sure, or so sure that its confidence has no gradient."""
        if self.confidence < _UNSURE:
            return (
                f"The model's confidence in this detection is only {self.confidence:.1%}, so not much speaks for it.",
            )
        if abs(score) == self.confidence > 1 - _CERTAIN:  # and no logit, which does not saturate
            return (
                "The model is all but certain of this detection, so the gradient of its confidence all but vanishes.",
            )
        return ()

    def _one(self, found: Detections) -> Tensor:
        """The score, ``()``, among one image's detections of its class."""
        overlap = found.overlap(self.place)
        nearest = overlap.max() if len(overlap) else None
        if nearest is None or nearest < self.iou_threshold:
            return found.least_score()
        as_near = overlap >= nearest - _AS_NEAR
        return found.scores[as_near][found.confidences[as_near].argmax()]


def nothing_found(what: str) -> NothingFoundError:
    """The error that says what was not found, and what can be done."""
    return NothingFoundError(
        f"{what} Ask for another, or lower the threshold below which the model drops what it finds (torchvision's "
        "score_thresh)."
    )


def _settled_scores(target: Detection | Box, output: Any) -> Tensor:
    """The scores, ``(N,)``, of what a target comes to in each image, boxes being as the model gives them."""
    settled = [target.settled(found, None) for found in _found(output)]
    return torch.cat([each(image_of(output, i, keep=True)) for i, each in enumerate(settled)])


def _found(output: Any, classes: int | None = None) -> Iterable[Detections]:
    """What the model found, image by image; for ``classes`` see :func:`camtool.outputs.detections`.

    Raises:
        TargetError: It is no detector.
    """
    found = detections(output, classes)
    if found is None:
        raise TargetError("the target is about a detection, but the model is no detector; ask for a class.")
    return found


def _detected(found: Detections, which: int, geometry: Geometry | None, iou_threshold: float = 0.5) -> Detected:
    """One of some detections, each with its class."""
    assert found.classes is not None
    place = _corners(found.boxes[which].tolist())
    return Detected(
        class_index=int(found.classes[which]),
        place=place,
        xyxy=_on_the_photo(place, found, geometry),
        confidence=float(found.confidences[which]),
        iou_threshold=iou_threshold,
        classes=found.known,
    )


def _on_the_photo(place: Corners, found: Detections, geometry: Geometry | None) -> Corners:
    """A box, as the model gives it, in pixels of the photo."""
    if geometry is None:
        return place
    across, down = _unit(found, geometry)
    x0, y0, x1, y1 = place
    return geometry.on_photo((x0 * across, y0 * down, x1 * across, y1 * down))


def _as_the_model_gives(box: Corners, found: Detections, geometry: Geometry | None) -> Corners:
    """:func:`_on_the_photo`, undone."""
    if geometry is None:
        return _corners(box)
    across, down = _unit(found, geometry)
    x0, y0, x1, y1 = geometry.on_input(_corners(box))
    return x0 / across, y0 / down, x1 / across, y1 / down


def _unit(found: Detections, geometry: Geometry) -> tuple[int, int]:
    """How many pixels of the input the model counts as 1 in its boxes, across and down."""
    height, width = geometry.size if found.relative else (1, 1)
    return width, height


def _corners(numbers: Sequence[float]) -> Corners:
    """Four numbers, of whatever type, as Python's."""
    x0, y0, x1, y1 = numbers
    return float(x0), float(y0), float(x1), float(y1)
