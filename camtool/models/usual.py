"""What can be told of a bare model: how its pictures are prepared, and what its classes are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from camtool.errors import TargetError, format_count
from camtool.models.base import Transform
from camtool.models.hugging_face import hugging_face_labels, hugging_face_transform, is_of_hugging_face
from camtool.models.open_clip_zoo import open_clip_transform
from camtool.models.timm_zoo import is_of_timm, timm_labels, timm_transform
from camtool.models.torchvision_zoo import detection_transform, imagenet_labels, segmentation_transform
from camtool.modules import preparation_of

__all__ = ["labels_for", "own_transform", "usual_labels", "usual_size"]


def labels_for(model: nn.Module, known: Sequence[str] | None, classes: int | None) -> Sequence[str] | None:
    """The names of a model's classes: those that are known, or else the usual ones; ``None`` where there are none.

    A model with a single score tells two classes apart, and may be given one name for both: ``["crack"]``.

    Args:
        model: The model.
        known: The names that are known.
        classes: How many scores there are; ``None`` where that does not show, as in a detector's output.

    Raises:
        TargetError: There are more or fewer names than classes.
    """
    if known is None:
        return None if classes is None else usual_labels(model, classes)
    if classes == 1 and len(known) in (1, 2):
        return known if len(known) == 2 else (f"not {known[0]}", known[0])
    if classes is not None and len(known) != classes:
        raise TargetError(
            f"labels has {format_count(len(known), 'name')}, but the model has {format_count(classes, 'class')}."
        )
    return known


def usual_labels(model: nn.Module, classes: int) -> Sequence[str] | None:
    """The labels that a model's configuration tells, or ImageNet's for one of torchvision's; ``None`` for any other."""
    if is_of_timm(model):
        labels = timm_labels(model)
    elif type(model).__module__.startswith("torchvision."):
        labels = imagenet_labels()
    else:
        labels = hugging_face_labels(model)
    return labels if labels is not None and len(labels) == classes else None


def own_transform(model: nn.Module) -> Transform | None:
    """How a model itself says that its pictures are prepared; ``None`` where it does not say. Nothing is fetched."""
    whole: Any = getattr(model, "whole", model)
    if is_of_timm(whole):
        return timm_transform(whole)
    if preparation_of(whole) is not None:
        return detection_transform()
    if type(whole).__module__.startswith("torchvision.models.segmentation"):
        return segmentation_transform()
    if is_of_hugging_face(whole):
        return hugging_face_transform(whole.name_or_path)
    return open_clip_transform(whole)


def usual_size(model: nn.Module) -> tuple[int, int]:
    """The size (h, w) of pictures that a model was made for, 224 x 224 where it does not say."""
    whole: Any = getattr(model, "whole", model)
    if is_of_timm(whole):
        height, width = whole.pretrained_cfg["input_size"][1:]
        return int(height), int(width)
    config = getattr(whole, "config", None)
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    size = size or getattr(getattr(whole, "visual", None), "image_size", None) or 224
    if isinstance(size, Mapping):
        size = (size["height"], size["width"])
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)
