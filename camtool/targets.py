"""What is explained: from the model's output to one score per image.

Every target is a small frozen dataclass that is called with the model's whole output and gives ``(N,)`` scores. A
plain callable serves as well: it is given one image's output and gives one number.

What a person asks for becomes targets by :func:`choose`, image by image. There is settled what depends on the image:
which class the model ranks highest, where it sees a class, which of its detections is meant. A method that asks about
changed images then asks about the same thing throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from camtool.errors import NothingFoundError, TargetError, near
from camtool.geometry import Geometry, averaged
from camtool.outputs import (
    Answer,
    Detections,
    Link,
    class_scores,
    count,
    detections,
    embedding,
    image_of,
    logits,
    probabilities,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "AgainstRest",
    "Box",
    "ClassScore",
    "Contrast",
    "Custom",
    "Detected",
    "Detection",
    "Finer",
    "Negated",
    "Point",
    "Probability",
    "Region",
    "Similarity",
    "Target",
    "Top",
    "Value",
    "Want",
    "box_of",
    "choose",
    "class_of",
    "from_texts",
    "has_a_place",
    "innermost",
    "name_of",
    "probability",
    "score",
]


class Target(Protocol):
    """What the targets of this room have in common: they turn a model's output for N images into N scores."""

    def __call__(self, output: Any, /) -> Tensor:
        """The scores, ``(N,)``."""
        ...


@dataclass(frozen=True)
class ClassScore:
    """The logit of a class: the usual thing to explain. For planes ``(N, K, *size)`` it is summed over all places.

    Where the model has a single logit, class 1 is that logit and class 0 is minus it.

    Attributes:
        index: The class.
        of: How the model's scores become probabilities, which some methods ask for; ``"identity"`` where they are some.
            In :func:`camtool.explain` it is found out.
    """

    index: int
    of: Link = "softmax"

    def __post_init__(self) -> None:
        _check_whole("ClassScore's index", self.index)
        _check_name("ClassScore's of", self.of, _LINKS)

    def __call__(self, output: Any) -> Tensor:
        return _per_image(_of_class(class_scores(output, self.of), self.index)).sum(1)


@dataclass(frozen=True)
class Probability:
    """The probability of a class; of planes ``(N, K, *size)`` the mean over all places.

    Where it nears 1 its gradient vanishes, and with it any map that is made of gradients.

    Attributes:
        index: The class.
        of: ``"softmax"`` over all classes, or the class' own ``"sigmoid"``, for models whose labels do not exclude one
            another. Of a single logit it is the sigmoid in either case. ``"identity"`` where the model returns
            probabilities itself, which :func:`camtool.explain` finds out.
    """

    index: int
    of: Link = "softmax"

    def __post_init__(self) -> None:
        _check_whole("Probability's index", self.index)
        _check_name("Probability's of", self.of, _LINKS)

    def __call__(self, output: Any) -> Tensor:
        return _per_image(_of_class(probabilities(output, self.of), self.index)).mean(1)


@dataclass(frozen=True)
class Contrast:
    """A class against others: ``score(of) - weight * mean(score(against))``.

    With the classes that a model confuses, it shows the details that tell them apart; :class:`Finer` finds these
    classes by itself.

    Attributes:
        of: The class.
        against: The other class, or several.
        weight: How much the others count.
        shares: How much each of the others counts in their mean; by default all alike.
    """

    of: int
    against: int | tuple[int, ...]
    weight: float = 1.0
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for what, index in [("of", self.of), *(("against", rival) for rival in self.rivals)]:
            _check_whole(f"Contrast's {what}", index)
        given, rivals = self.shares, len(self.rivals)
        if not rivals:
            raise TargetError("Contrast's against is empty; name the class, or the classes, to hold against.")
        if given is not None and not (len(given) == rivals and min(given) >= 0 and 0 < sum(given) < float("inf")):
            raise TargetError(f"Contrast's shares {given} do not fit its {rivals} rivals; give each a positive number.")

    def __call__(self, output: Any) -> Tensor:
        scores = torch.stack([ClassScore(rival)(output) for rival in self.rivals])
        shares = scores.new_tensor(self.shares or [1.0] * len(self.rivals))
        return ClassScore(self.of)(output) - self.weight * (shares * scores.T).sum(1) / shares.sum()

    @property
    def rivals(self) -> tuple[int, ...]:
        """The other classes."""
        return tuple(self.against) if isinstance(self.against, (tuple, list)) else (self.against,)


@dataclass(frozen=True)
class Finer:
    """A class against those that the model finds most like it in the very image: Finer-CAM, arXiv 2501.11309.

    The score is ``y_c - weight * Σ_d s_d y_d``, over the rivals ``d``: the classes whose logits are nearest to the
    class' own, above or below it. With the weighting ``"probability"``, that of the authors' code, their shares are
    ``s_d = p_d / Σ p``, with the model's probabilities ``p``; with ``"mean"`` they count alike.

    Rivals and shares are settled once for each image, on what the model says of the image itself, by :func:`choose`:
    a method that asks about changed images compares the same classes throughout. So no gradient flows through the
    shares: the paper explains the differences between logits, of which the shares only make an average. In the
    authors' code it does, and the map shows in part what would change the probabilities.

    Attributes:
        index: The class.
        rivals: How many others it is held against; fewer where the model has fewer.
        weight: How much they count, the paper's γ: 0 is the class alone, and more shows finer details.
        weighting: ``"probability"`` or ``"mean"``.
    """

    index: int
    rivals: int = 3
    weight: float = 1.0
    weighting: Literal["probability", "mean"] = "probability"

    def __post_init__(self) -> None:
        _check_whole("Finer's index", self.index)
        _check_whole("Finer's rivals", self.rivals)
        if self.rivals < 1:
            raise TargetError(f"Finer's rivals is {self.rivals}; it must be 1 or more.")
        _check_name("Finer's weighting", self.weighting, ("probability", "mean"))

    def __call__(self, output: Any) -> Tensor:
        return torch.cat([self.settled(one)(one[None]) for one in class_scores(output)])

    def settled(self, output: Tensor) -> Contrast:
        """The contrast that it comes to for one image.

        Args:
            output: That image's logits, ``(K,)``.

        Raises:
            TargetError: The class does not exist or has no rivals, or the output is not one logit a class.
        """
        if output.ndim != 1 or len(output) < 2:
            raise TargetError(
                f"Finer holds a class against others, but the model's output for an image has shape "
                f"{tuple(output.shape)}, not (K,) with two classes or more; use ClassScore or Contrast."
            )
        values = output.detach()
        nearest = (values - values[_checked(self.index, len(values))]).abs().argsort(stable=True).tolist()
        rivals = [index for index in nearest if index != self.index][: self.rivals]
        # The probabilities' shares in their sum, without a sum that could vanish.
        shares = values[rivals].softmax(0).tolist() if self.weighting == "probability" else [1.0] * len(rivals)
        return Contrast(self.index, tuple(rivals), self.weight, tuple(shares))


@dataclass(frozen=True)
class AgainstRest:
    """A class against all the others at once: DiffGradCAM, arXiv 2506.08514.

    ``y_c - aggregate of the other logits``. A softmax looks at differences between logits alone, and so does this: what
    raises all classes together does not show.

    Attributes:
        index: The class.
        how: What sums up the others: ``"mean"``; ``"max"``, which is the strongest rival; or ``"logsumexp"``, with
            which the score is ``log(p / (1 - p))``, whose gradient does not vanish where the probability nears 1.
    """

    index: int
    how: Literal["mean", "max", "logsumexp"] = "mean"

    def __post_init__(self) -> None:
        _check_whole("AgainstRest's index", self.index)
        _check_name("AgainstRest's how", self.how, _AGGREGATES)

    def __call__(self, output: Any) -> Tensor:
        values = class_scores(output)
        own = _of_class(values, self.index)
        if values.shape[1] < 2:
            raise TargetError("AgainstRest: the model has one class, so there is no rest; use ClassScore.")
        rest = torch.cat([values[:, : self.index], values[:, self.index + 1 :]], 1)
        return _per_image(own - _AGGREGATES[self.how](rest)).sum(1)


_AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rest: rest.mean(1),
    "max": lambda rest: rest.amax(1),
    "logsumexp": lambda rest: rest.logsumexp(1),
}


@dataclass(frozen=True)
class Negated:
    """Minus another target: what speaks against it.

    With a class' score it gives the counterfactual explanations of Grad-CAM, arXiv 1610.02391 (section "Counterfactual
    Explanations"): the regions that, were they gone, would make the model surer of the class.
    """

    target: Target

    def __post_init__(self) -> None:
        if not isinstance(self.target, _TARGETS):
            raise TargetError(
                f"Negated takes a target such as ClassScore(3), or Custom(function), got {type(self.target).__name__}."
            )

    def __call__(self, output: Any) -> Tensor:
        return -self.target(output)


@dataclass(frozen=True)
class Value:
    """One number of a regression's output, ``(N,)`` or ``(N, K)``, as it is.

    It has to be asked for: a single number ``(N, 1)`` is else taken for the logit of two classes.

    Attributes:
        index: Which of the K.
        name: What it is, in a word or two.
    """

    index: int = 0
    name: str | None = None

    def __post_init__(self) -> None:
        _check_whole("Value's index", self.index)

    def __call__(self, output: Any) -> Tensor:
        return _of_class(_per_image(logits(output)), self.index)

    def __str__(self) -> str:
        return f"value {self.index}" if self.name is None else self.name


@dataclass(frozen=True, eq=False)
class Region:
    """A class inside a mask, for segmentation: Seg-Grad-CAM, arXiv 2002.11434.

    The score is the class' logits summed over the places, each by its weight. In :func:`camtool.explain` the mask lies
    over the photo, whatever its own size, and goes the way that the photo went; one of just the size of the planes
    (and not of the photo) lies over those. Called with an output, the mask lies over the planes.

    Methods that give each channel one weight for all positions, as Grad-CAM does, heat all that looks like the thing in
    the mask; those that weigh position by position, as HiResCAM and LayerCAM do, keep to it.

    Attributes:
        class_index: The class, along the second axis of the planes ``(N, K, H, W)``.
        mask: ``(h, w)``, the weight of each place, as a tensor or an array; zeros and ones, or booleans.
        of: As :class:`ClassScore`'s.
    """

    class_index: int
    mask: Tensor | NDArray[Any]
    of: Link = "softmax"

    def __post_init__(self) -> None:
        _check_whole("Region's class_index", self.class_index)
        _check_name("Region's of", self.of, _LINKS)

    @staticmethod
    def at(class_index: int, point: tuple[float, float]) -> Point:
        """The class at one point ``(x, y)`` of the photo."""
        return Point(*point, class_index)

    def __call__(self, output: Any) -> Tensor:
        plane = _of_class(class_scores(output, self.of), self.class_index)
        return _per_image(plane * self.over(plane[0], None)).sum(1)

    def over(self, plane: Tensor, geometry: Geometry | None) -> Tensor:
        """The mask as it lies over a plane ``(*size)`` of scores, of the same size.

        Raises:
            TargetError: It has another number of axes or negative weights, or nothing of it is left on the plane.
        """
        mask = torch.as_tensor(self.mask)
        mask = mask if mask.is_floating_point() else mask.float()
        if mask.ndim != plane.ndim or not plane.ndim or not mask.numel():
            raise TargetError(
                f"Region's mask has shape {tuple(mask.shape)}, but the model's output for an image and a class has "
                f"shape {tuple(plane.shape)}; give a mask with as many axes, of any size."
            )
        if not (mask >= 0).all():
            raise TargetError("Region's mask holds negative weights; a place counts by 0 or more (see Negated).")
        on_photo = geometry is not None and (mask.shape != plane.shape or mask.shape == geometry.photo)
        if geometry is not None and on_photo:
            mask = geometry.shown(mask, (plane.shape[0], plane.shape[1]))
        elif mask.shape != plane.shape:
            mask = averaged(mask, [(0, cells) for cells in mask.shape], plane.shape)
        if not mask.any():
            raise TargetError("Region's mask is empty where the model looks; mark a part of the photo that it sees.")
        return mask.to(plane)

    def __str__(self) -> str:
        return f"Region of class {self.class_index}"


@dataclass(frozen=True)
class Point:
    """A class at one point, for segmentation; which method keeps to the place is told at :class:`Region`.

    Attributes:
        x: From the left; in :func:`camtool.explain` in pixels of the photo, else in those of the planes.
        y: From the top.
        class_index: The class; by default the one that the model sees there.
    """

    x: float
    y: float
    class_index: int | None = None

    def __post_init__(self) -> None:
        _check_numbers("Point's x and y", (self.x, self.y), 2)
        if self.class_index is not None:
            _check_whole("Point's class_index", self.class_index)

    def __call__(self, output: Any) -> Tensor:
        return torch.cat([self.settled(one, None)(one[None]) for one in class_scores(output)])

    def settled(self, planes: Tensor, geometry: Geometry | None) -> Region:
        """The region that it comes to in one image.

        Args:
            planes: That image's planes, ``(K, h, w)``.
            geometry: How the photo became the model's input.

        Raises:
            TargetError: The point is outside of what the model sees, or the output has no planes.
        """
        if planes.ndim != 3:
            raise TargetError(f"Point is about a place, but the model's output for an image is {tuple(planes.shape)}.")
        h, w = planes.shape[1:]
        x, y = self.x / w, self.y / h
        if geometry is not None:
            x, y = geometry.on_input((self.x, self.y, self.x, self.y))[:2]
            x, y = x / geometry.size[1], y / geometry.size[0]
        if not (0 <= x < 1 and 0 <= y < 1):
            raise TargetError(f"Point ({self.x:g}, {self.y:g}) is outside of what the model sees of the photo.")
        row, column = int(y * h), int(x * w)
        mask = torch.zeros(h, w)
        mask[row, column] = 1
        index = int(planes[:, row, column].argmax()) if self.class_index is None else self.class_index
        return Region(_checked(index, len(planes)), mask)


@dataclass(frozen=True)
class Detection:
    """What a detector is ``n``-th most confident of in the image; it counts from 0."""

    n: int = 0

    def __post_init__(self) -> None:
        _check_whole("Detection's n", self.n)

    def __call__(self, output: Any) -> Tensor:
        return torch.cat([self.settled(found, None)(image_of(output, i, keep=True)) for i, found in _found(output)])

    def settled(self, found: Detections, geometry: Geometry | None) -> Detected:
        """The detection that it comes to in one image.

        Raises:
            NothingFoundError: There are not so many.
        """
        if not 0 <= self.n < len(found):
            raise NothingFoundError(
                f"target_class asks for detection {self.n}, counted from 0, but the model found {len(found)} in this "
                f"image.{_LOWER}"
            )
        return _detected(found.surest_first(), self.n, geometry)


@dataclass(frozen=True)
class Box:
    """What a detector found at a place: the most confident detection that overlaps the box.

    Attributes:
        xyxy: ``(x0, y0, x1, y1)``; in :func:`camtool.explain` in pixels of the photo, else as the model gives boxes.
        class_index: Of this class; by default of any.
        iou_threshold: The least intersection over union.
    """

    xyxy: tuple[float, float, float, float]
    class_index: int | None = None
    iou_threshold: float = 0.5

    def __post_init__(self) -> None:
        _check_numbers("Box's xyxy", self.xyxy, 4)
        if self.class_index is not None:
            _check_whole("Box's class_index", self.class_index)
        x0, y0, x1, y1 = self.xyxy
        if not (x0 < x1 and y0 < y1):
            raise TargetError(f"Box {self.xyxy} is empty; give (x0, y0, x1, y1) with x0 < x1 and y0 < y1.")
        if not 0 < self.iou_threshold <= 1:
            raise TargetError(f"Box's iou_threshold is {self.iou_threshold}; it must be above 0 and at most 1.")

    def __call__(self, output: Any) -> Tensor:
        return torch.cat([self.settled(found, None)(image_of(output, i, keep=True)) for i, found in _found(output)])

    def settled(self, found: Detections, geometry: Geometry | None) -> Detected:
        """The detection that it comes to in one image.

        Raises:
            NothingFoundError: None overlaps the box.
        """
        of_class = found if self.class_index is None else found.of_class(self.class_index)
        near_it = of_class.surest_first()
        overlap = near_it.overlap(_as_the_model_gives(self.xyxy, found, geometry))
        if not (overlap >= self.iou_threshold).any():
            best = f"the best overlaps it by {float(overlap.max()):.2f}" if len(overlap) else "there are none at all"
            which = "" if self.class_index is None else f" of class {self.class_index}"
            raise NothingFoundError(
                f"no detection{which} overlaps the box {self.xyxy} by {self.iou_threshold:g} or more; {best}.{_LOWER}"
            )
        return _detected(near_it, int((overlap >= self.iou_threshold).int().argmax()), geometry, self.iou_threshold)


@dataclass(frozen=True)
class Detected:
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
    place: tuple[float, float, float, float]
    xyxy: tuple[float, float, float, float]
    confidence: float
    iou_threshold: float = 0.5
    classes: int | None = None

    def __call__(self, output: Any) -> Tensor:
        return torch.stack([self._one(found.of_class(self.class_index)) for _, found in _found(output, self.classes)])

    def _one(self, found: Detections) -> Tensor:
        overlap = found.overlap(self.place)
        nearest = overlap.max() if len(overlap) else None
        if nearest is None or nearest < self.iou_threshold:
            return found.least_score()
        as_near = overlap >= nearest - _AS_NEAR
        return found.scores[as_near][found.confidences[as_near].argmax()]


_LOWER = (
    " Ask for another, or lower the threshold below which the model drops what it finds (torchvision's score_thresh)."
)


_LINKS = ("softmax", "sigmoid", "identity")


_AS_NEAR = 0.01
"""Boxes whose overlaps differ by less are at one place: queries often agree on a box, and then the surest counts."""


def _found(output: Any, classes: int | None = None) -> Iterable[tuple[int, Detections]]:
    found = detections(output, classes)
    if found is None:
        raise TargetError("the target is about a detection, but the model is no detector; ask for a class.")
    return enumerate(found)


def _detected(found: Detections, which: int, geometry: Geometry | None, iou_threshold: float = 0.5) -> Detected:
    """One of some detections, each with its class."""
    assert found.classes is not None
    place = _four(found.boxes[which].tolist())
    return Detected(
        int(found.classes[which]),
        place,
        _on_the_photo(place, found, geometry),
        float(found.confidences[which]),
        iou_threshold,
        found.known,
    )


def _on_the_photo(place: Sequence[float], found: Detections, geometry: Geometry | None) -> _Corners:
    if geometry is None:
        return _four(place)
    h, w = geometry.size if found.relative else (1, 1)
    return geometry.on_photo(_four([place[0] * w, place[1] * h, place[2] * w, place[3] * h]))


def _as_the_model_gives(box: Sequence[float], found: Detections, geometry: Geometry | None) -> _Corners:
    if geometry is None:
        return _four(box)
    h, w = geometry.size if found.relative else (1, 1)
    x0, y0, x1, y1 = geometry.on_input(_four(box))
    return x0 / w, y0 / h, x1 / w, y1 / h


_Corners: TypeAlias = tuple[float, float, float, float]


def _four(numbers: Sequence[float]) -> _Corners:
    x0, y0, x1, y1 = numbers
    return float(x0), float(y0), float(x1), float(y1)


@dataclass(frozen=True, eq=False)
class Similarity:
    """The cosine similarity to an embedding ``(D,)``, for models that return ``(N, D)`` embeddings.

    Attributes:
        embedding: ``(D,)``.
        name: What it is the embedding of: a text, say.
    """

    embedding: Tensor
    name: str = "similarity"

    def __call__(self, output: Any) -> Tensor:
        vectors = embedding(output)
        if vectors.shape[-1:] != self.embedding.shape:
            raise TargetError(
                f"Similarity's embedding has shape {tuple(self.embedding.shape)}, but the model's embeddings are "
                f"{tuple(vectors.shape[-1:])}; it takes one made by the same model."
            )
        return torch.cosine_similarity(vectors, self.embedding.to(vectors), dim=-1)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Custom:
    """A person's own ``function(output of one image) -> number``, asked image by image."""

    function: Callable[[Any], Tensor]

    def __call__(self, output: Any) -> Tensor:
        return torch.stack([self._one(image_of(output, i)) for i in range(count(output))])

    def _one(self, output: Any) -> Tensor:
        value = self.function(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TargetError(f"target_class: {self} returned {came}; it must return a tensor with one number.")
        return value.reshape(())

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True)
class Top:
    """Not one target but what the model itself ranks highest, as up to ``k`` targets.

    These are classes; of a segmenter the classes that cover most of the picture, background last; of a detector the
    detections that it is surest of.
    """

    k: int = 1


Want: TypeAlias = int | str | Top | Target | Callable[[Any], Tensor] | None
"""What a person may ask of one image: its top class, a class by index or name, the top k, a target, a callable."""

_TARGETS = (
    *(ClassScore, Probability, Contrast, Finer, AgainstRest, Negated, Value, Region, Point, Similarity, Custom),
    *(Box, Detection, Detected),
)

_CLASS_ATTRIBUTES: dict[type, str] = {
    ClassScore: "index",
    Probability: "index",
    Contrast: "of",
    Finer: "index",
    AgainstRest: "index",
    Region: "class_index",
    Detected: "class_index",
}


def choose(
    want: Want,
    answer: Answer,
    labels: Sequence[str] | None,
    geometry: Geometry | None = None,
    link: Link | None = "softmax",
) -> list[Target]:
    """The targets that a person's wish comes to on one image; only :class:`Top` gives more than one.

    What ``None``, an index and a name mean follows from what the model returns:

    * scores ``(K,)``: the class' logit; ``None`` is the highest.
    * a single score: two classes, 1 for the score itself and 0 for minus it; ``None`` is the one that its sign says.
      A regression looks the same, so ask for :class:`Value`. A single probability: 1 for itself and 0 for the rest.
    * an embedding ``(D,)``: one of its dimensions; ``None`` is the highest.
    * planes ``(K, h, w)``: the class where the model sees it; where it sees it nowhere, the class' logits summed over
      the picture. ``None`` is the class that covers most of the picture, the background only where nothing else is
      seen. A class is background if its label says so, and class 0 if there are no labels.
    * detections: the one of that class that the model is surest of; ``None`` is the surest of all.

    Args:
        want: See :data:`Want`.
        answer: What the model said of that image.
        labels: The names of the K classes.
        geometry: How the photo, on which a person points at places, became the model's input.
        link: How scores become probabilities; ``None`` where the answer is an embedding.

    Raises:
        TargetError: The class does not exist, its name is unknown or belongs to several, or no class can be ranked.
        NothingFoundError: The detector found nothing of the kind in this image.
    """
    if isinstance(answer, Tensor):
        if link is None:
            _check_that_it_needs_no_class(want, answer)
        answer = class_scores(answer[None], link or "identity")[0]
    return [_linked(target, link) for target in _chosen(want, answer, labels, geometry)]


def _check_that_it_needs_no_class(want: Want, features: Tensor) -> None:
    """See that what is asked of an embedding ``(D,)``, or of features that have more axes, is not about a class."""
    if class_of(want) is not None:
        raise TargetError(
            f"target_class is {want}, but this model returns an embedding and has no classes; ask for one of its "
            "dimensions, Value(3), or how near it is to another embedding, Similarity(embedding)."
        )
    if features.ndim > 1 and (want is None or isinstance(want, (Integral, Top))):
        raise TargetError(
            f"target_class is {want!r}, but this model has no classes and returns features {tuple(features.shape)} for "
            "an image; pass a callable from these to a number."
        )


def _linked(target: Target, link: Link | None) -> Target:
    """The target with what it needs to know of how the model's scores become probabilities."""
    if isinstance(target, Negated):
        return Negated(_linked(target.target, link))
    if link is None:
        return Value(target.index, f"dimension {target.index}") if isinstance(target, ClassScore) else target
    if isinstance(target, (ClassScore, Region)) or (isinstance(target, Probability) and link == "identity"):
        return replace(target, of=link)
    return target


def _chosen(want: Want, answer: Answer, labels: Sequence[str] | None, geometry: Geometry | None) -> list[Target]:
    if want is None:
        want = Top(1)
    if isinstance(want, Top):
        _check_whole("Top's k", want.k)
        if want.k < 1:
            raise TargetError(f"target_class {want}: k must be 1 or more.")
        return _ranked(want.k, answer, labels, geometry)
    if isinstance(want, str):
        want = _index_of(want, labels)
    if isinstance(want, Tensor) and want.ndim == 0:
        want = want.item()  # type: ignore[assignment]  # a float is refused below
    if isinstance(want, Integral) and not isinstance(want, bool):  # numpy's integers are Integral too
        return [_of_index(int(want), answer, labels, geometry)]
    if isinstance(want, _TARGETS):
        return [_settled(want, answer, labels, geometry)]
    if callable(want):
        return [Custom(want)]
    raise TargetError(
        f"target_class must be None, an index, a class name, a callable or a target, got {type(want).__name__}."
    )


def from_texts(wants: Sequence[Any], encode: Callable[[Sequence[str]], Tensor]) -> list[Any]:
    """What is asked of a model that compares pictures with texts, with each text as its similarity to the picture.

    Args:
        wants: For each image a wish, or a list of them.
        encode: From T texts to their embeddings, ``(T, D)``; it is asked once.

    Raises:
        TargetError: A class is asked for, or nothing, of a model that has no classes.
    """
    rows = [want if isinstance(want, (list, tuple)) else [want] for want in wants]
    for each in (each for row in rows for each in row):
        if each is None or isinstance(each, (Integral, Tensor, Top)) or class_of(each) is not None:
            raise TargetError(
                f"target_class is {each!r}, but this model compares pictures with texts and has no classes; say in "
                "words what to look for: 'a photo of a dog'."
            )
    texts = list(dict.fromkeys(each for row in rows for each in row if isinstance(each, str)))
    embeddings = encode(texts) if texts else ()
    known = {text: Similarity(embedding, text) for text, embedding in zip(texts, embeddings, strict=True)}
    named = [[known[each] if isinstance(each, str) else each for each in row] for row in rows]
    return [row if isinstance(want, (list, tuple)) else row[0] for want, row in zip(wants, named, strict=True)]


def _of_index(index: int, answer: Answer, labels: Sequence[str] | None, geometry: Geometry | None) -> Target:
    """A class on one image: its score, its score where the model sees it, or the surest detection of it."""
    if isinstance(answer, Detections):
        if index < 0 or (labels is not None and index >= len(labels)):
            known = "classes count from 0" if labels is None else f"there are {len(labels)} labels"
            raise TargetError(f"target_class {index} does not exist: {known}.")
        found = answer.of_class(index)
        if not len(found):
            raise NothingFoundError(f"the model found no {_label(index, labels)} in this image.{_LOWER}")
        return Detection().settled(found, geometry)
    _checked(index, len(answer))
    if not _is_planes(answer):
        return ClassScore(index)
    seen = answer.argmax(0) == index
    return Region(index, seen) if seen.any() else ClassScore(index)


def _ranked(k: int, answer: Answer, labels: Sequence[str] | None, geometry: Geometry | None) -> list[Target]:
    if isinstance(answer, Detections):
        if not len(answer):
            raise NothingFoundError(f"the model found nothing in this image.{_LOWER}")
        return [Detection(n).settled(answer, geometry) for n in range(min(k, len(answer)))]
    if _is_planes(answer):
        return [_of_index(index, answer, labels, geometry) for index in _by_cover(answer, labels)[:k]]
    if answer.ndim != 1:
        raise TargetError(
            f"target_class=None asks for the top class, but the model's output for an image has shape "
            f"{tuple(answer.shape)}, not (K,); pass a class index, or a callable from that output to a number."
        )
    return [ClassScore(index) for index in answer.argsort(descending=True).tolist()[:k]]


def _is_planes(answer: Tensor) -> bool:
    return answer.ndim >= 3


def _by_cover(planes: Tensor, labels: Sequence[str] | None) -> list[int]:
    """The classes that the model sees, that which covers most of the picture first, background last."""
    places = planes.argmax(0).flatten().bincount(minlength=len(planes)).tolist()
    seen = [index for index in range(len(planes)) if places[index]]
    return sorted(seen, key=lambda index: (_is_background(index, labels), -places[index]))


def _is_background(index: int, labels: Sequence[str] | None) -> bool:
    if labels is None or index >= len(labels):
        return index == 0
    return "background" in labels[index].casefold()


def _settled(target: Target, answer: Answer, labels: Sequence[str] | None, geometry: Geometry | None) -> Target:
    """The target with all decided that it leaves to what the model said of the image itself."""
    if isinstance(target, Negated):
        return Negated(_settled(target.target, answer, labels, geometry))
    if isinstance(answer, Detections):
        if isinstance(target, (Box, Detection)):
            return target.settled(answer, geometry)
        if isinstance(target, (ClassScore, Probability)):
            return _of_index(target.index, answer, labels, geometry)
        return target
    if isinstance(target, Finer):
        return target.settled(answer)
    if isinstance(target, Point):
        return target.settled(answer, geometry)
    if isinstance(target, Region):
        index = _checked(target.class_index, len(answer))
        return Region(index, target.over(answer[index], geometry))
    return target


def has_a_place(target: Target) -> bool:
    """Whether a target is about a part of the picture, so that it must not be moved or cut."""
    return isinstance(innermost(target), (Region, Point, Box, Detection, Detected))


def box_of(target: Target) -> tuple[float, float, float, float] | None:
    """The box on the photo that a target is about, ``None`` where it is not about a detection."""
    inner = innermost(target)
    return inner.xyxy if isinstance(inner, Detected) else None


def innermost(target: Target) -> Target:
    """The target itself, or what it is the negation of."""
    return innermost(target.target) if isinstance(target, Negated) else target


def class_of(target: Any) -> int | None:
    """The index of the class that a target is about, ``None`` where it is about something else."""
    target = innermost(target)
    attribute = _CLASS_ATTRIBUTES.get(type(target))
    return None if attribute is None else int(getattr(target, attribute))


def name_of(target: Target, labels: Sequence[str] | None) -> str:
    """What a target is about, in a word or two: the label of its class where it has one."""
    if isinstance(target, Negated):
        return f"not {name_of(target.target, labels)}"
    index = class_of(target)
    if index is None:
        return str(target)
    label = _label(index, labels)
    if isinstance(target, Contrast):
        return f"{label} rather than {', '.join(_label(rival, labels) for rival in target.rivals)}"
    if isinstance(target, Finer):
        return f"{label} rather than its like"
    if isinstance(target, AgainstRest):
        return f"{label} rather than the rest"
    return f"probability of {label}" if isinstance(target, Probability) else label


def _label(index: int, labels: Sequence[str] | None) -> str:
    return labels[index] if labels is not None and index < len(labels) else f"class {index}"


def probability(target: Target, value: float, chances: NDArray[Any] | None) -> float | None:
    """How probable the model holds what a target is about, ``None`` where it is about no class.

    Args:
        target: The target, settled by :func:`choose`.
        value: Its score.
        chances: What the model gives each class in the target's image, ``(K, *size)``; ``None`` for a detector.
    """
    inner, index = innermost(target), class_of(target)
    if isinstance(inner, Detected):
        return inner.confidence
    if isinstance(inner, Probability):
        return abs(value)
    if index is None or chances is None:
        return None
    if isinstance(inner, Region):
        weights = torch.as_tensor(inner.mask).cpu().numpy().astype(chances.dtype)
        return float((chances[index] * weights).sum() / weights.sum())
    return float(chances[index].mean())


def score(targets: Sequence[Target], output: Any, images: Sequence[int] | None = None) -> Tensor:
    """Each target on the output of its own image: ``(R,)`` for R targets.

    Args:
        targets: The targets.
        output: The model's whole output.
        images: Which image each target is about; by default one each, in order.
    """
    images = range(len(targets)) if images is None else images
    in_order = list(images) == list(range(count(output)))
    if in_order and all(target is targets[0] or target == targets[0] for target in targets):
        return targets[0](output)  # in one step for all
    return torch.cat([target(image_of(output, i, keep=True)) for i, target in zip(images, targets, strict=True)])


def _of_class(values: Tensor, index: int) -> Tensor:
    return values[:, _checked(index, values.shape[1])]


def _per_image(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1)


def _checked(index: int, classes: int) -> int:
    if not 0 <= index < classes:
        raise TargetError(f"target_class {index} does not exist: the model has {classes} classes, 0 to {classes - 1}.")
    return index


def _check_whole(what: str, value: Any) -> None:
    """See that a number is whole, of Python or numpy, or a tensor with one."""
    try:
        as_index(value)
    except (TypeError, RuntimeError) as error:
        raise TargetError(f"{what} is {value!r}; it must be a whole number.") from error


def _check_numbers(what: str, values: Any, count: int) -> None:
    is_sequence = isinstance(values, Iterable) and not isinstance(values, str)
    if not is_sequence or [isinstance(value, (Real, Tensor)) for value in values] != [True] * count:
        raise TargetError(f"{what} must be {count} numbers, got {values!r}.")


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in (known := list(known)):
        raise TargetError(f"{what} {name!r} is unknown; known are {', '.join(known)}.{near(name, known)}")


def _index_of(name: str, labels: Sequence[str] | None) -> int:
    if labels is None:
        raise TargetError(f"target_class {name!r} is a name, but no labels are known; pass labels=[...] or an index.")
    matches = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    if not matches:
        raise TargetError(f"target_class {name!r} is not among the {len(labels)} labels.{near(name, labels)}")
    if len(matches) > 1:
        raise TargetError(f"target_class {name!r} names the classes {matches}; pass one of these indices.")
    return matches[0]
