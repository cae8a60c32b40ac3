"""Targets for detectors: the n-th most confident detection, the one in a box, one in changed images, and keypoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from camtool.arguments.checks import Share
from camtool.arguments.message_parts import format_count
from camtool.errors import NothingFoundError, TargetError
from camtool.geometry.crop_and_resize import Geometry
from camtool.outputs.class_scores import find_logits
from camtool.outputs.detections import Detections, describe_assumption, find_detections
from camtool.outputs.predictions import Prediction, get_image_output
from camtool.targets.base_target import Corners, ImageOutput, ScoreContext, Target, Traits, get_class_label
from camtool.targets.field_checks import Confidence, Integer, OptionalInteger, check_box, check_number_tuple
from camtool.targets.place_targets import Point
from camtool.warning_codes import MapWarning

# Detections below this confidence get a warning. Detectors are usually shown with thresholds of 0.3 to 0.5, so a
# detection this weak is hardly ever shown to anyone.
_LOW_CONFIDENCE = 0.1

# A confidence closer to 1 than this gets a warning: single precision has steps of 6e-8 there, so the confidence has
# about one digit left that can change, and its gradient is almost zero.
_SATURATED = 1e-6

_HEATMAP_AXES = 4

# Boxes whose overlaps with a given box differ by less than this count as equally near. Several queries often predict
# the same box up to rounding; among these the one with the most similar confidence counts.
_SAME_PLACE = 0.01

# Detections whose boxes have a smaller intersection over union are of different objects.
_OTHER_OBJECT = 0.5


class _DetectionTarget(Target):
    """A target that is another detection in each image."""

    traits = Traits(has_place=True)

    def __call__(self, output: Any) -> Tensor:
        resolved = [self.resolve_on(ImageOutput(detections)) for detections in _read_detections(output)]
        return torch.cat([score(get_image_output(output, i, keep_batch=True)) for i, score in enumerate(resolved)])


@dataclass(frozen=True)
class Detection(_DetectionTarget):
    """The ``n``-th most confident of the detections that the model's own post-processing reports, counted from 0.

    Attributes:
        n: The number.
        confidence: A threshold instead of the model's own; detections with a higher confidence count.
    """

    n: Integer = 0
    confidence: Confidence = None

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return this detection of the image.

        Raises:
            NothingFoundError: There are fewer detections.
        """
        prediction = image.prediction
        if not isinstance(prediction, Detections):
            return self
        reported = prediction.select_reported(self.confidence)
        if not 0 <= self.n < len(reported):
            raise _build_nothing_found_error(
                f"target_class asks for detection {self.n}, counted from 0, but the model found {len(reported)} in "
                f"this image{_describe_threshold(prediction, self.confidence)}."
            )
        return _match(reported, self.n, image.geometry)


@dataclass(frozen=True)
class Box(_DetectionTarget):
    """The most confident detection that overlaps a box; if the model reports none there, the surest candidate.

    Attributes:
        xyxy: ``(x0, y0, x1, y1)``; in :func:`camtool.explain` in pixels of the photo, else in the model's units.
        class_index: The class of the detection; by default any.
        iou_threshold: The smallest intersection over union that counts.
    """

    xyxy: Annotated[Corners, check_box]
    class_index: OptionalInteger = None
    iou_threshold: Share = 0.5

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the detection of the image that overlaps the box.

        Raises:
            NothingFoundError: No detection overlaps the box.
            TargetError: The model does not have the class.
        """
        prediction = image.prediction
        if not isinstance(prediction, Detections):
            return self
        box = _to_model_box(self.xyxy, prediction, image.geometry)
        for is_reported, detections in _iterate_class(prediction, self.class_index):
            overlap = detections.compute_iou(box)
            is_enough = overlap >= self.iou_threshold
            if is_enough.any():
                # argmax returns the first, which is the most confident.
                which = int(is_enough.int().argmax())
                return _match(detections, which, image.geometry, self.iou_threshold, is_reported=is_reported)
        raise self._build_error(overlap)

    def _build_error(self, overlap: Tensor) -> NothingFoundError:
        """Return the error for overlaps ``(D,)`` that are all too small."""
        best = f"the best overlap is {float(overlap.max()):.2f}" if len(overlap) else "the model found none at all"
        which = "" if self.class_index is None else f" of class {self.class_index}"
        return _build_nothing_found_error(
            f"no detection{which} overlaps the box {self.xyxy} by {self.iou_threshold:g} or more; {best}."
        )


@dataclass(frozen=True)
class MatchedDetection(Target):
    """One detection of one image. :class:`Detection`, :class:`Box` and classes resolve to it on a detector's output.

    The score is that of the detection of the same class whose box overlaps this one best: on the image itself the
    detection, with the confidence that non-maximum suppression left unchanged. If no box overlaps it by the threshold,
    as in a changed image, the score is the lowest that the model could give: no confidence.

    Attributes:
        class_index: Its class.
        model_box: Its box as the model gives it.
        xyxy: Its box on the photo, in pixels.
        confidence: The model's confidence, 0 to 1.
        iou_threshold: The smallest intersection over union that counts in other images.
        class_count: The number of classes, if every box has a score for each class.
        is_no_object_assumed: True if it is not known whether the model has a logit for "no object".
        why_not_reported: A sentence that says why the model's own post-processing does not report it; ``None`` if it
            does.
        rotated: Its box ``(x, y, width, height, angle)`` as the model gives it, if boxes are rotated.
    """

    class_index: int
    model_box: Corners
    xyxy: Corners
    confidence: float
    iou_threshold: float = 0.5
    class_count: int | None = None
    is_no_object_assumed: bool = False
    why_not_reported: str | None = None
    rotated: tuple[float, ...] | None = None

    traits = Traits(has_place=True, is_one_detection=True)

    def __call__(self, output: Any) -> Tensor:
        images = _read_detections(output, self.class_count)
        return torch.stack([self._score_image(detections.select_class(self.class_index)) for detections in images])

    def resolve_on(self, image: ImageOutput) -> MatchedDetection:
        """Return the detection itself."""
        return self

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.class_index)

    def get_probability(self, context: ScoreContext) -> float:
        """Return the model's confidence."""
        return self.confidence

    def get_box(self) -> Corners:
        """Return the box on the photo."""
        return self.xyxy

    def get_warnings(self, context: ScoreContext) -> Sequence[str]:
        """Return warnings if the detection is not reported, or its confidence is assumed, very low or saturated."""
        warnings = list[MapWarning]()
        if self.is_no_object_assumed and self.class_count is not None:
            warnings.append(MapWarning(describe_assumption(self.class_count), "assumed-no-object"))
        if self.why_not_reported is not None:
            warnings.append(MapWarning(self.why_not_reported, "not-reported"))
        elif self.confidence < _LOW_CONFIDENCE:
            warning = f"The model's confidence in this detection is only {self.confidence:.1%}."
            warnings.append(MapWarning(warning, "low-confidence"))
        # A score that differs from the confidence is a logit, which does not saturate.
        elif context.score == self.confidence > 1 - _SATURATED:
            warning = (
                "The model's confidence in this detection is saturated close to 1, so its gradient is almost zero."
            )
            warnings.append(MapWarning(warning, "saturated-probability"))
        return warnings

    def find_rivals(self, image: ImageOutput, count: int) -> Sequence[MatchedDetection]:
        """Return the most confident detections of other objects, whose boxes hardly overlap this one."""
        if not isinstance(image.prediction, Detections):
            return ()
        detections, rivals = image.prediction.sort_by_confidence(), list[MatchedDetection]()
        is_elsewhere = detections.compute_iou(self.model_box, self.rotated) < _OTHER_OBJECT
        while len(rivals) < count and is_elsewhere.any():
            which = int(is_elsewhere.int().argmax())
            rivals.append(_match(detections, which, image.geometry, self.iou_threshold))
            # Some models return many boxes of one object, which would compete many times.
            is_elsewhere &= detections.compute_iou(rivals[-1].model_box, rivals[-1].rotated) < _OTHER_OBJECT
            is_elsewhere[which] = False
        return rivals

    def to_similarity(self, prediction: Prediction) -> DetectionSimilarity | None:
        """Return the similarity to this detection, with the class probabilities of its box in the image."""
        if not isinstance(prediction, Detections):
            return None
        similarity = DetectionSimilarity(self.class_index, self.model_box, class_count=self.class_count)
        if prediction.classes is not None:
            return similarity
        which = self._find_nearest(prediction.select_class(self.class_index))
        return None if which is None else replace(similarity, probabilities=prediction.confidences[which])

    def _score_image(self, detections: Detections) -> Tensor:
        """Return the score ``()`` among one image's detections of the same class."""
        which = self._find_nearest(detections)
        # No box of this class is left, or all moved away: the object is not detected in this image.
        return detections.compute_lowest_score() if which is None else detections.scores[which]

    def _find_nearest(self, detections: Detections) -> int | None:
        """Return the position of the box that overlaps this one best, or ``None`` if none overlaps it enough."""
        overlap = detections.compute_iou(self.model_box, self.rotated)
        best = overlap.max() if len(overlap) else None
        if best is None or best < self.iou_threshold:
            return None
        is_near = overlap >= best - _SAME_PLACE
        difference = (detections.confidences.detach() - self.confidence).abs()
        return int(torch.where(is_near, difference, torch.inf).argmin())


@dataclass(frozen=True, eq=False)
class DetectionSimilarity(Target):
    """The largest similarity of an image's detections to a given one; 0 if there are none.

    The similarity of a detection is ``IoU · cosine · objectness`` (Petsiuk et al. 2021, section 3, arXiv 2006.03204):
    the overlap of the boxes, the cosine between the probabilities of the classes, and the objectness. If a box has only
    one class, its class counts as a one-hot vector: the cosine is 1 for the same class, else 0. The confidence of the
    best class counts as the objectness, which no supported model returns by itself.

    Attributes:
        class_index: The class of the given detection.
        model_box: Its box as the model gives it.
        probabilities: Its probabilities ``(K,)``, if every box has a score for each class.
        class_count: The number of classes, if every box has a score for each class.
    """

    class_index: int
    model_box: Corners
    probabilities: Tensor | None = None
    class_count: int | None = None

    def __call__(self, output: Any) -> Tensor:
        return torch.stack([self._score_image(detections) for detections in _read_detections(output, self.class_count)])

    def _score_image(self, detections: Detections) -> Tensor:
        """Return the largest similarity ``()`` among one image's detections."""
        if not len(detections):
            return detections.confidences.sum()  # 0, with the right type and device
        confidences = detections.confidences
        if detections.classes is not None:
            similarity = (detections.classes == self.class_index) * confidences
        else:
            assert self.probabilities is not None
            likeness = torch.cosine_similarity(confidences, self.probabilities.to(confidences), dim=1)
            similarity = likeness * confidences.amax(1)
        return (detections.compute_iou(self.model_box) * similarity).max()


def find_most_confident(index: int | None, image: ImageOutput) -> MatchedDetection:
    """Return the most confident detection of a class, or of all classes for ``None``, in an image's detections.

    If the model's own post-processing reports none, it is the surest candidate, which has a warning.

    Raises:
        TargetError: The class does not exist.
        NothingFoundError: There is no detection of this class.
    """
    assert isinstance(image.prediction, Detections)
    labels = image.labels
    # A detector's output does not show how many classes there are, so the labels must do.
    if index is not None and (index < 0 or (labels is not None and index >= len(labels))):
        classes = "classes count from 0" if labels is None else f"labels has {format_count(len(labels), 'name')}"
        raise TargetError(f"target_class {index} does not exist: {classes}.")
    for is_reported, detections in _iterate_class(image.prediction, index):
        if len(detections):
            return _match(detections, 0, image.geometry, is_reported=is_reported)
    which = "nothing" if index is None else f"no {get_class_label(index, labels)}"
    raise _build_nothing_found_error(f"the model found {which} in this image.")


def _iterate_class(detections: Detections, index: int | None) -> Iterator[tuple[bool, Detections]]:
    """Yield True with the reported detections of a class, False with its candidates; of all classes for ``None``.

    The most confident come first.

    Raises:
        TargetError: The model does not have the class.
    """
    for is_reported, candidates in ((True, detections.select_reported()), (False, detections)):
        yield is_reported, (candidates if index is None else candidates.select_class(index)).sort_by_confidence()


def list_detections(image: ImageOutput, confidence: float | None = None, count: int | None = None) -> list[Target]:
    """Return the detections of an image that the model's own post-processing reports, the most confident first.

    Args:
        image: The model's output for the image.
        confidence: See :class:`Detection`.
        count: The largest number of detections; by default all.

    Raises:
        NothingFoundError: There are none.
    """
    assert isinstance(image.prediction, Detections)
    reported = image.prediction.select_reported(confidence)
    if not len(reported):
        raise _build_nothing_found_error(
            f"the model found nothing in this image{_describe_threshold(image.prediction, confidence)}."
        )
    return [_match(reported, which, image.geometry) for which in range(len(reported))[:count]]


def _describe_threshold(detections: Detections, confidence: float | None) -> str:
    """Return the end of a sentence that says how sure the best candidate is, if a threshold removed candidates."""
    threshold = detections.find_threshold(confidence)
    if threshold is None or not len(detections):
        return ""
    best = float(detections.confidences.max())
    return f" with a confidence above {threshold:g}, and the highest confidence is {best:.2g}"


def _build_nothing_found_error(reason: str) -> NothingFoundError:
    """Return an error that gives the reason and says what the user can do."""
    return NothingFoundError(
        f"{reason} Ask for another target, or lower the model's own threshold (torchvision's score_thresh; that of "
        "other models by Detection(0, confidence=0.05), on the command line by --target detections:0.05)."
    )


def _read_detections(output: Any, class_count: int | None = None) -> Iterable[Detections]:
    """Return the detections of each image.

    Raises:
        TargetError: The model is not a detector.
    """
    detections = find_detections(output, class_count)
    if detections is None:
        raise TargetError("the target is about a detection, but the model is not a detector; pass a class instead.")
    return detections


def _match(
    detections: Detections,
    which: int,
    geometry: Geometry | None,
    iou_threshold: float = 0.5,
    *,
    is_reported: bool = True,
) -> MatchedDetection:
    """Return one of some detections, each of which has a class."""
    assert detections.classes is not None
    model_box = _to_corners(detections.boxes[which].tolist())
    confidence = float(detections.confidences[which])
    return MatchedDetection(
        class_index=int(detections.classes[which]),
        model_box=model_box,
        xyxy=_to_photo_box(model_box, detections, geometry),
        confidence=confidence,
        iou_threshold=iou_threshold,
        class_count=detections.class_count,
        is_no_object_assumed=detections.is_no_object_assumed,
        why_not_reported=None if is_reported else _describe_omission(detections, confidence),
        rotated=None if detections.rotated is None else tuple(detections.rotated[which].tolist()),
    )


def _describe_omission(detections: Detections, confidence: float) -> str | None:
    """Return a sentence that says why a model's own post-processing does not report one of its candidates."""
    rule = detections.post_processing
    if rule is None:
        return None
    if confidence <= rule.threshold:
        why = f"its confidence is {confidence:.2g}, and the threshold is {rule.threshold:g}"
    else:
        why = "another class or detection of the same object is surer"
    return f"The model's own post-processing does not report this detection: {why}."


def _to_photo_box(box: Corners, detections: Detections, geometry: Geometry | None) -> Corners:
    """Return a box of the model in pixels of the photo."""
    if geometry is None:
        return box
    width, height = _get_unit(detections, geometry)
    x0, y0, x1, y1 = box
    return geometry.to_photo_box((x0 * width, y0 * height, x1 * width, y1 * height))


def _to_model_box(box: Corners, detections: Detections, geometry: Geometry | None) -> Corners:
    """Return a box on the photo in the model's units."""
    if geometry is None:
        return _to_corners(box)
    width, height = _get_unit(detections, geometry)
    x0, y0, x1, y1 = geometry.to_input_box(_to_corners(box))
    return x0 / width, y0 / height, x1 / width, y1 / height


def _get_unit(detections: Detections, geometry: Geometry) -> tuple[int, int]:
    """Return the pixels of the input that count as 1 in the model's boxes, in x and in y."""
    # Relative boxes are fractions of the input's size; others are in pixels, so one unit is one pixel.
    height, width = geometry.size if detections.is_relative else (1, 1)
    return width, height


def _to_corners(numbers: Sequence[float]) -> Corners:
    """Convert four numbers of any type to floats."""
    x0, y0, x1, y1 = numbers
    return float(x0), float(y0), float(x1), float(y1)


@dataclass(frozen=True)
class Keypoint(Target):
    """One keypoint of a pose: its score in the heatmap, at its peak or at a given place.

    The model returns heatmaps ``(N, K, h, w)``, or it is a Keypoint R-CNN of torchvision, which returns
    ``keypoints_scores`` for each person. The place is found once, on the image: methods that change the image score the
    same place of the heatmap, or the person whose box overlaps the most; 0 if none overlaps by half.

    Attributes:
        index: The keypoint, 0 to K - 1.
        at: ``(x, y)`` in pixels of the photo; by default the peak. Not for Keypoint R-CNN, which scores peaks alone.
        instance: The person, the most confident first, for Keypoint R-CNN.
        cell: The row and column in the heatmap; the target finds it on the image.
        person: The detection; likewise.
    """

    index: Integer
    at: tuple[float, float] | None = None
    instance: Integer = 0
    cell: tuple[int, int] | None = None
    person: MatchedDetection | None = None

    traits = Traits(has_place=True, reads="scores")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at is not None:
            check_number_tuple("Keypoint's at", self.at, 2)

    def __call__(self, output: Any) -> Tensor:
        if find_detections(output) is not None:
            return torch.stack([self._score_person(of_image) for of_image in output])
        maps = find_logits(output)
        if maps.ndim != _HEATMAP_AXES or not 0 <= self.index < maps.shape[1]:
            raise TargetError(f"{self} needs heatmaps (N, K, h, w) with K > index; the model gave {(*maps.shape,)}.")
        if self.cell is not None:
            return maps[:, self.index, self.cell[0], self.cell[1]]
        return maps[:, self.index].flatten(1).amax(1)

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the keypoint with its place in this image.

        Raises:
            TargetError: The place is outside of what reaches the model, or the model scores peaks alone.
            NothingFoundError: There is no such person.
        """
        prediction = image.prediction
        if isinstance(prediction, Detections):
            if self.at is not None:
                raise TargetError("Keypoint's at: this detector scores keypoints at their peaks alone; leave it out.")
            person = Detection(self.instance, 0.0).resolve_on(image)
            assert isinstance(person, MatchedDetection)
            return replace(self, person=person)
        if prediction.ndim != _HEATMAP_AXES - 1 or not 0 <= self.index < len(prediction):
            return self  # the call says what is wrong
        if self.at is not None:
            return replace(self, cell=Point(*self.at).find_position(prediction.shape[1:], image.geometry))
        both = prediction.sum(0)
        # A single heatmap comes with that of its opposite before it, so that their sum is constant.
        is_single = len(prediction) == 2 and bool(both.max() - both.min() <= 1e-5 * prediction.abs().max())
        plane = prediction[-1 if is_single else self.index]
        row, column = divmod(int(plane.argmax()), plane.shape[1])
        return replace(self, cell=(row, column))

    def get_box(self) -> Corners | None:
        """Return the box of the person, if the model returns one."""
        return None if self.person is None else self.person.xyxy

    def _score_person(self, of_image: Any) -> Tensor:
        """Return the score ``()`` of the keypoint of a person in one image's detections."""
        scores: Tensor | None = of_image.get("keypoints_scores")
        if scores is None or not 0 <= self.index < scores.shape[1]:
            returned = "without keypoints_scores" if scores is None else f"with {scores.shape[1]} keypoints"
            raise TargetError(f"{self} needs a detector of keypoints; the model returned detections {returned}.")
        if self.person is None:
            return scores[self.instance, self.index]
        (detections,) = _read_detections([of_image])
        overlap = detections.compute_iou(self.person.model_box)
        if not len(overlap) or overlap.max() < self.person.iou_threshold:
            return scores.sum() * 0
        return scores[int(overlap.argmax()), self.index]

    def __str__(self) -> str:
        return f"keypoint {self.index}"
