"""Checks of the arguments of :func:`camtool.explain`: its settings, and targets that match the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from camtool.arguments.checks import check_count
from camtool.arguments.messages import format_count
from camtool.arguments.other_libraries import describe_foreign_argument
from camtool.errors import CamtoolError, MethodError, TargetError


def check_settings(transform: object, labels: object, batch_size: object, image: object, call_index: object) -> None:
    """Check the types of settings whose misuse would be noticed late, and far from here.

    Raises:
        TargetError: ``labels`` is no list of names.
        MethodError: ``image`` is an image, as in libraries that name their first argument so.
        CamtoolError: Another setting has the wrong type.
    """
    if transform is not None and not callable(transform):
        raise CamtoolError(f"transform={transform!r} cannot be called; give a function from PIL image to tensor.")
    if labels is not None and (isinstance(labels, (str, Mapping)) or not hasattr(labels, "__getitem__")):
        raise TargetError(f"labels={labels!r} is no list of names; give one name for each class, in their order.")
    check_count("batch_size", batch_size)
    if image is not None and not isinstance(image, (int, str)):
        raise MethodError(str(describe_foreign_argument("image")))
    is_integer = isinstance(call_index, (int, np.integer)) and not isinstance(call_index, bool)
    if call_index is not None and not is_integer:
        raise CamtoolError(f"call_index={call_index!r} is no integer; 0 is a layer's first call, -1 its last.")


def match_targets(target_class: Any, count: int | None) -> list[Any]:
    """Return the targets that the user requested for each image.

    Args:
        target_class: The user's argument.
        count: The number of images; ``None`` for a single one, for which a list means several targets.

    Raises:
        TargetError: A list has another length than there are images, or is empty.
    """
    # Loaders give the classes of a batch as a tensor or an array.
    requests = target_class.tolist() if isinstance(target_class, (Tensor, np.ndarray)) else target_class
    is_list = isinstance(requests, (list, tuple))
    if count is None:
        if is_list and not requests:
            raise TargetError("target_class is empty; give a class, or None for the model's own top class.")
        return [requests]
    if not is_list:
        return [requests] * count
    if len(requests) != count:
        raise TargetError(
            f"target_class has {format_count(len(requests), 'entry')} for {format_count(count, 'image')}; give one "
            "entry per image (a list of classes for several targets on an image), or a single target for all."
        )
    for position, request in enumerate(requests):
        if isinstance(request, (list, tuple)) and not request:
            raise TargetError(
                f"target_class: entry {position} is empty; give a class, or None for the model's own top class."
            )
    return list(requests)
