"""The base class of all targets, the scoring of several targets, and what their scores are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.arguments.checks import find_checks
from camtool.arguments.explain_arguments import check_class_index
from camtool.errors import TargetError
from camtool.geometry.crop_and_resize import Geometry
from camtool.outputs.class_scores import Link, compute_class_scores
from camtool.outputs.predictions import Prediction, count_images, split_images
from camtool.targets.field_checks import Integer

# A box ``(x0, y0, x1, y1)``.
Corners: TypeAlias = tuple[float, float, float, float]


# eq=False here and below: tensors and arrays have no single truth value, so == on the fields would fail.
@dataclass(frozen=True, eq=False)
class ImageOutput:
    """The model's output for one image, and what is known about the image. :meth:`Target.resolve_on` takes it.

    Attributes:
        prediction: Class scores ``(K,)``, score planes ``(K, *size)``, or detections.
        labels: The names of the K classes.
        geometry: How the photo became the model's input. With it, points and boxes of the user are in pixels of the
            photo; without it, they are in the coordinates of the model's output.
        link: The link from scores to probabilities; ``None`` if the prediction is an embedding.
        find_class_vectors: A function that returns the weights ``(K, C)`` of the model's linear head, or ``None`` if
            the model has none. It may run a forward pass, so call it only if you need it.
    """

    prediction: Prediction
    labels: Sequence[str] | None = None
    geometry: Geometry | None = None
    link: Link | None = "softmax"
    find_class_vectors: Callable[[], Tensor | None] | None = None


@dataclass(frozen=True, eq=False)
class ScoreContext:
    """The score of a target on its image, with the model's probabilities for that image.

    Attributes:
        score: The target's score.
        probabilities: The probabilities of the classes in this image, ``(K,)`` or ``(K, *size)``; ``None`` for
            detectors and embeddings.
        link: How the model's scores become probabilities; ``None`` if the model returns an embedding.
    """

    score: float
    probabilities: NDArray[Any] | None = None
    link: Link | None = "softmax"


@dataclass(frozen=True)
class Traits:
    """Properties of a target that decide how it is explained.

    Attributes:
        has_place: Whether the target is about a part of the image, so that methods must not flip or crop the image.
        is_class_score: Whether the score is the logit of the target's class alone, comparable with those of others.
        is_similarity: Whether the score is the similarity of the image to a text or to another embedding.
        is_one_detection: Whether the score is that of one detection, read from one of a detector's feature levels.
        is_group: Whether the score is that of several classes together, or against others, which
            :meth:`Target.list_groups` names.
        opposes_class: Whether a higher score speaks against the target's class; otherwise a low rank gets a warning.
        reads: The part of an output that the target reads. ``"scores"``: what ``find_logits`` of :mod:`camtool.outputs`
            returns; if the model returned several tensors, a warning names the one that was used. ``"embedding"``: what
            ``find_embedding`` returns. ``"output"``: possibly more, so the scores of changed activations are never
            computed from the logits alone, which would save forward passes.
    """

    has_place: bool = False
    is_class_score: bool = False
    is_similarity: bool = False
    is_one_detection: bool = False
    is_group: bool = False
    opposes_class: bool = False
    reads: Literal["output", "scores", "embedding"] = "output"


# Once for each class, as targets are made for each image.
_find_checks = cache(find_checks)

# Methods of targets up to version 0.1 that :class:`Traits` replaces.
_FORMER_METHODS = {"favors_class", "reads_scores", "needs_whole_output", *Traits.__dataclass_fields__} - {"reads"}


class Target(ABC):
    """The base class of targets. A target is called with a model's output for N images and returns N scores.

    For most own targets a plain function is enough: it takes one image's output and returns a number, see
    :class:`camtool.targets.Custom`. Derive from this class to score all images in one step, or to answer more of the
    questions below. Make it a frozen dataclass: then :func:`score_targets` recognizes equal targets and scores them
    together.

    A target answers all questions about itself. Override the methods whose default does not fit. By default a target
    is about no class and no part of the image, and its label is its ``str``.

    >>> from dataclasses import dataclass
    >>> from camtool.outputs.class_scores import find_logits
    >>> @dataclass(frozen=True)
    ... class Lead(Target):
    ...     def __call__(self, output):
    ...         first, second = find_logits(output).topk(2).values.T
    ...         return first - second
    >>> Lead()(torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]]))
    tensor([3., 1.])

    A class in a part of the image has a place, so methods do not flip or crop the image:

    >>> @dataclass(frozen=True)
    ... class UpperHalf(Target):
    ...     index: int
    ...     traits = Traits(has_place=True)
    ...     def __call__(self, output):
    ...         planes = find_logits(output)[:, self.index]
    ...         return planes[:, : planes.shape[1] // 2].sum((1, 2))
    ...     def get_class_index(self):
    ...         return self.index
    ...     def describe(self, labels):
    ...         return f"{super().describe(labels)} in the upper half"
    >>> UpperHalf(1).describe(["sky", "road"])
    'road in the upper half'

    A target that fits no model raises :class:`camtool.TargetError` in its ``__init__``. A target that does not fit this
    model raises it in :meth:`resolve_on`, or when it is called.
    """

    def __init_subclass__(cls) -> None:
        """Refuse methods that nothing calls: an image would be flipped although the target has a place.

        Raises:
            TargetError: The class defines one of them.
        """
        for name in sorted(_FORMER_METHODS & vars(cls).keys()):
            raise TargetError(f"{cls.__name__}.{name} is no method of a target any more; set traits = Traits(...).")

    def __post_init__(self) -> None:
        """Check the fields of a dataclass by their annotations, e.g. :data:`camtool.targets.field_checks.Integer`."""
        for name, check in _find_checks(type(self)).items():
            check(f"{type(self).__name__}'s {name}", getattr(self, name), error=TargetError)

    @property
    def traits(self) -> Traits:
        """The properties of the target that decide how it is explained. A class may set the attribute."""
        return Traits()

    @abstractmethod
    def __call__(self, output: Any, /) -> Tensor:
        """Return the scores ``(N,)``, on the graph of the model's whole output.

        Raises:
            TargetError: The output does not hold what the target is about.
        """

    @classmethod
    def score_rows(cls, targets: Sequence[Target], output: Any, images: Sequence[int]) -> Tensor | None:
        """Return the scores ``(R,)`` of several targets of this class in one step, which is faster than one by one.

        By default it returns ``None``: each target is called with the output of its image.

        Args:
            targets: R targets, all of exactly this class.
            output: The model's whole output.
            images: The image of each target.
        """
        return None

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the target with everything decided that depends on the image.

        This runs once for each image, before any method. A method that scores changed images then explains the same
        thing throughout. By default it checks that the class exists and returns the target itself.

        Args:
            image: The model's output for the image.

        Raises:
            TargetError: The target does not fit the output.
            NothingFoundError: The detector found nothing of the kind in this image.
        """
        index = self.get_class_index()
        # A detector's classes are known only from its labels, if at all, so nothing is checked there.
        if index is not None and isinstance(image.prediction, Tensor):
            check_class_index(index, len(image.prediction))
        return self

    def get_class_index(self) -> int | None:
        """Return the index of the class that the target is about, or ``None`` if it is not about a class."""
        return None

    def list_groups(self, labels: Sequence[str] | None) -> tuple[Mapping[int, str], ...]:
        """Return the classes that count together, index → label: those that the target is for, then those against.

        Args:
            labels: The names of the K classes, ``None`` if they are not known.
        """
        return ()

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return a short label: by default that of the target's class, or the target's ``str`` if it has no class.

        Args:
            labels: The names of the K classes, ``None`` if they are not known.
        """
        index = self.get_class_index()
        return str(self) if index is None else get_class_label(index, labels)

    def get_probability(self, context: ScoreContext) -> float | None:
        """Return the probability of what the target is about, or ``None`` if it has none.

        By default it is the probability of the target's class, on average over all positions of score planes.

        Args:
            context: The target's score and the probabilities of the classes.
        """
        index = self.get_class_index()
        if index is None or context.probabilities is None:
            return None
        return float(context.probabilities[index].mean())

    def get_box(self) -> Corners | None:
        """Return the box on the photo, in pixels, that the target is about, or ``None`` if it is not about a box."""
        return None

    def get_warnings(self, context: ScoreContext) -> Sequence[str]:
        """Return reasons not to trust a map of this target, one sentence each.

        The package adds warnings that any target may get, e.g. on a map that is constant.

        Args:
            context: The target's score and the probabilities of the classes.
        """
        return ()

    def list_text_positions(self) -> tuple[int, ...]:
        """Return where in a text the tokens are that the score is about; nothing if it is about no written text."""
        return ()

    def find_rivals(self, image: ImageOutput, count: int) -> Sequence[Target]:
        """Return up to ``count`` targets of the same kind that compete with this one, the strongest first.

        A class competes with other classes, a detection with other detections. By default there are none.

        Args:
            image: The model's output for the image.
            count: The largest number of rivals.
        """
        return ()

    def to_probability(self) -> Target | None:
        """Return a target whose score is the probability of this target's class.

        Return ``None`` if the score is neither the logit nor the probability of a class. A contrast of two classes, for
        example, is about a class but scores a difference.
        """
        return None

    def to_similarity(self, prediction: Prediction) -> Target | None:
        """Return a target that scores how similar the detections in a changed image are to this target's detection.

        Args:
            prediction: The model's output for the image that is explained.

        Returns:
            The target, or ``None`` if this target is not one detection of a detector.
        """
        return None


@dataclass(frozen=True)
class ClassTarget(Target):
    """A target about one class.

    Attributes:
        index: The class.
    """

    index: Integer

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.index)


class ResolvedTarget(Target):
    """A target that is another one for each image, which :meth:`Target.resolve_on` returns."""

    def __call__(self, output: Any) -> Tensor:
        """Return the scores, each of the target for its image."""
        by_image = compute_class_scores(output)
        return torch.cat([self.resolve_on(ImageOutput(scores))(scores[None]) for scores in by_image])


def score_targets(targets: Sequence[Target], output: Any, images: Sequence[int] | None = None) -> Tensor:
    """Score each target on the output of its own image.

    Args:
        targets: R targets.
        output: The model's whole output.
        images: The image of each target; by default there is one target per image, in order.

    Returns:
        The scores ``(R,)``.

    Raises:
        TargetError: A target does not fit the output.
    """
    images = range(len(targets)) if images is None else images
    # One call is faster than N, but the targets must be equal, and each image must be asked for once, in order.
    image_count = len(output) if isinstance(output, Tensor) and output.ndim == 2 else count_images(output)
    in_order = list(images) == list(range(image_count))
    if in_order and list(targets).count(targets[0]) == len(targets):
        return targets[0](output)
    return _score_apart(targets, output, images)


def _score_apart(targets: Sequence[Target], output: Any, images: Sequence[int]) -> Tensor:
    kinds: set[type[Target]] = {type(target) for target in targets}
    together = kinds.pop().score_rows(targets, output, images) if len(kinds) == 1 else None
    if together is not None:
        return together
    # A target takes a batch, so each image keeps a batch axis of length 1.
    parts = split_images(output, images)
    return torch.cat([target(part) for target, part in zip(targets, parts, strict=True)])


def get_class_label(index: int, labels: Sequence[str] | None) -> str:
    """Return the label of a class, or e.g. ``"class 7"`` if it has none."""
    return str(labels[index]) if labels is not None and index < len(labels) else f"class {index}"


def select_class(values: Tensor, index: int) -> Tensor:
    """Return the part ``(N, *size)`` of values ``(N, K, *size)`` that belongs to one class.

    Raises:
        TargetError: The class does not exist.
    """
    check_class_index(index, values.shape[1])
    return values[:, index]


def flatten_positions(values: Tensor) -> Tensor:
    """Flatten values ``(N, *size)`` to ``(N, positions)``; without a size there is one position."""
    return values.reshape(len(values), -1)
