"""Transforms from a photo to the model's input: their type, output, normalization, and names in messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

# Function from a PIL image to the model's input, ``(C, H, W)``.
Transform: TypeAlias = Callable[[Image.Image], Any]

# Mean and standard deviation by which a transform normalizes, a number for each channel or one for all.
Statistics: TypeAlias = tuple[Sequence[float], Sequence[float]]

# Advice in errors about transforms whose geometry cannot be found.
REMEDY = (
    "Pass a deterministic transform that only crops, pads, scales or mirrors, "
    "or pass a tensor that is already prepared."
)


def unwrap_image(output: object) -> object:
    """Return the image in a dict, in a list of one, or in both; other outputs are returned unchanged."""
    if isinstance(output, Mapping):
        images = [output[key] for key in ("pixel_values", "image") if key in output] or list(output.values())
        output = images[0] if len(images) == 1 else output
    return output[0] if isinstance(output, (list, tuple)) and len(output) == 1 else output


def describe_transform(transform: Transform) -> str:
    """Return the quoted name of a function, or of an object's class."""
    return repr(getattr(transform, "__name__", type(transform).__name__))


def find_statistics(transform: Any) -> Statistics | None:
    """Return the mean and the standard deviation by which a transform, or the last of its parts that does, normalizes.

    ``None`` if no part does.
    """
    for part in (transform, *reversed(getattr(transform, "transforms", ()))):
        if hasattr(part, "mean") and hasattr(part, "std"):
            # Numbers or tensors, also a single one for all channels.
            return np.ravel(part.mean).tolist(), np.ravel(part.std).tolist()
        # torchvision's preset for detectors only scales to [0, 1]: its detectors normalize by themselves.
        if type(part).__name__ == "ObjectDetection":
            return [0.0] * 3, [1.0] * 3
    return None
