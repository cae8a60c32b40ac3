"""Answers about any target: its class, its name, its place, and its probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from camtool.targets.base import Target, label_of
from camtool.targets.classes import Probability
from camtool.targets.detections import Corners, Detected
from camtool.targets.places import Region
from camtool.targets.wrappers import innermost

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["box_of", "class_of", "has_a_place", "label_of", "name_of", "probability"]


def class_of(target: Any) -> int | None:
    """Return the index of the class that a target is about, ``None`` where it is about something else.

    Args:
        target: A target, or anything else that the user may ask for, which is about no class yet.
    """
    return target.get_class_index() if isinstance(target, Target) else None


def name_of(target: Target, labels: Sequence[str] | None) -> str:
    """Return what a target is about in a few words; ``labels`` are the names of the K classes."""
    return target.describe(labels)


def has_a_place(target: Target) -> bool:
    """Return True if a target is about a part of the image, so that the image must not be moved or cut."""
    return target.has_place()


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
