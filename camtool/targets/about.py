"""What a target is about: its class, its name, its place, and how probable the model holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from camtool.targets.base import Target
from camtool.targets.classes import ClassScore, Probability
from camtool.targets.contrasts import AgainstRest, Contrast, Finer
from camtool.targets.detections import Box, Corners, Detected, Detection
from camtool.targets.places import Point, Region
from camtool.targets.wrappers import Negated, innermost

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["box_of", "class_of", "has_a_place", "label_of", "name_of", "probability"]


def class_of(target: Any) -> int | None:
    """The index of the class that a target is about, ``None`` where it is about something else.

    Args:
        target: A target, or whatever a person asks for; without a target there is no class yet.
    """
    match innermost(target):
        case (
            ClassScore(index=index)
            | Probability(index=index)
            | Contrast(of=index)
            | Finer(index=index)
            | AgainstRest(index=index)
            | Region(class_index=index)
            | Detected(class_index=index)
        ):
            return int(index)
    return None


def name_of(target: Target, labels: Sequence[str] | None) -> str:
    """What a target is about, in a word or two: the label of its class where it has one.

    Args:
        target: The target.
        labels: The names of the K classes.
    """
    if isinstance(target, Negated):
        return f"not {name_of(target.target, labels)}"
    index = class_of(target)
    if index is None:
        return str(target)
    label = label_of(index, labels)
    match target:
        case Probability():
            return f"probability of {label}"
        case Contrast():
            return f"{label} rather than {', '.join(label_of(rival, labels) for rival in target.rivals)}"
        case Finer():
            return f"{label} rather than its like"
        case AgainstRest():
            return f"{label} rather than the rest"
    return label


def label_of(index: int, labels: Sequence[str] | None) -> str:
    """A class' label, or its number where it has none."""
    return labels[index] if labels is not None and index < len(labels) else f"class {index}"


def has_a_place(target: Target) -> bool:
    """Whether a target is about a part of the picture, so that it must not be moved or cut."""
    return isinstance(innermost(target), (Region, Point, Box, Detection, Detected))


def box_of(target: Target) -> Corners | None:
    """The box on the photo, in pixels, that a target is about, ``None`` where it is not about a detection."""
    inner = innermost(target)
    return inner.xyxy if isinstance(inner, Detected) else None


def probability(target: Target, value: float, chances: NDArray[Any] | None) -> float | None:
    """How probable the model holds what a target is about, ``None`` where it is about no class.

    Args:
        target: The target, settled by :func:`camtool.targets.choose`.
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
