"""From an image file to the model's input, at the size that the results need."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from camtool.errors import ImageError
from camtool.runs.process_settings import release_memory
from camtool.runs.result_writer import describe_error

if TYPE_CHECKING:
    from camtool.explaining.explainer import Explainer
    from camtool.inputs.image_files import ImageSource
    from camtool.inputs.prepared_inputs import PreparedInput


def prepare_photo(
    explainer: Explainer[Any], source: ImageSource, name: str, max_side: int | None
) -> PreparedInput | str:
    """Read a photo, reduced to ``max_side`` or to what the model needs if that is more, and prepare it.

    Args:
        explainer: The explainer.
        source: The photo.
        name: Its name in messages.
        max_side: The longest side in pixels; None for all of the photo.

    Returns:
        The model's input, or the reason why there is none.
    """
    try:
        image = explainer.read(source, max_side=max_side)
    except Exception as error:  # noqa: BLE001  a decoder may raise anything
        return describe_failure(name, error)
    size = image.size
    release_memory(size)
    # Bands and volumes are not reduced.
    may_be_reduced = max_side is not None and isinstance(image, Image) and max(image.size) >= max_side
    try:
        prepared: PreparedInput = explainer.prepare(image)
    except Exception as error:  # noqa: BLE001  a user's transform may raise anything
        if may_be_reduced:  # and then be too small for it
            return prepare_photo(explainer, source, name, None)
        return describe_failure(name, error)
    if may_be_reduced and (scale := prepared.geometry.compute_scale()) > 1:
        # The model would see an enlarged picture of a reduced one.
        return prepare_photo(explainer, source, name, math.ceil(max(image.size) * scale))
    del image
    release_memory(size)
    return prepared


def describe_failure(name: str, error: Exception) -> str:
    """Return why a photo failed, with its name. Errors about a file have it already."""
    reason = str(error) if isinstance(error, ImageError) else describe_error(error)
    return reason if name in reason else f"{name}: {reason}"
