"""Geometry of the image processors of Hugging Face, read from their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from camtool.geometry.crop_and_resize import Geometry

# Module of the standard image processors → their methods that move pixels.
_MOVERS = {
    "transformers.image_processing_backends": ("process_image", "_preprocess", "resize", "center_crop", "pad"),
    "transformers.image_processing_utils": ("preprocess", "_preprocess_image_like_inputs"),
}


def is_standard_processor(part: object) -> bool:
    """Check that an image processor inherits all methods that move pixels from the standard ones."""
    return all(
        getattr(getattr(type(part), method, None), "__module__", None) == module
        for module, methods in _MOVERS.items()
        for method in methods
    )


def guess_geometries(whole: Geometry, processor: Any) -> list[Geometry]:
    """Return possible geometries of an image processor with methods of its own, from its settings."""
    if not f"{type(processor).__module__}.".startswith("transformers."):
        return []
    guesses = [apply_processor(whole, processor)]
    edge = _get_size(processor, "size").get("shortest_edge")
    if edge:  # resized larger and cropped: ConvNeXt and PoolFormer by crop_pct, LeViT by 224 / 256
        for share in (getattr(processor, "crop_pct", None) or 1, 224 / 256):
            scaled = whole.resize(int(edge / share))
            guesses += [_crop_center(scaled, edge, edge), _crop_as_set(scaled, processor)]
        guesses.append(whole.resize((edge, edge)))
    return guesses


def are_close(guess: Geometry, probed: Geometry) -> bool:
    """Check that two geometries of one photo differ by no more than the error of a measurement."""
    return guess.size == probed.size and np.allclose(guess.box, probed.box, rtol=0, atol=_LARGEST_BOX_ERROR)


# Largest error of a measured box, in photo pixels: half a pixel of resampling, and a margin.
_LARGEST_BOX_ERROR = 0.75


def apply_processor(geometry: Geometry, processor: Any) -> Geometry:
    """Return the geometry after a processor, which resizes, crops the center, and pads at the bottom and right."""
    if getattr(processor, "do_resize", False):
        geometry = _resize(geometry, _get_size(processor, "size"))
    geometry = _crop_as_set(geometry, processor)
    padded = _get_size(processor, "pad_size") if getattr(processor, "do_pad", False) else {}
    if not padded:
        return geometry
    return geometry.pad(0, 0, padded["width"] - geometry.size[1], padded["height"] - geometry.size[0])


def _get_size(processor: Any, name: str) -> dict[str, int]:
    """Return a size among an image processor's settings, by the names of its parts."""
    size = getattr(processor, name, None)
    return {key: int(value) for key, value in dict(size or {}).items() if value}


def _resize(geometry: Geometry, size: Mapping[str, int]) -> Geometry:
    """Return the geometry after resizing to a size, which Hugging Face gives in one of four ways."""
    height, width = geometry.size
    if "shortest_edge" in size and "longest_edge" in size:
        return geometry.resize(_compute_size_within(height, width, size["shortest_edge"], size["longest_edge"]))
    if "shortest_edge" in size:
        return geometry.resize(size["shortest_edge"])
    if "max_height" in size and "max_width" in size:
        scale = min(size["max_height"] / height, size["max_width"] / width)
        return geometry.resize((int(height * scale), int(width * scale)))
    return geometry.resize((size["height"], size["width"])) if size else geometry


def _compute_size_within(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    """Return the size whose shorter side is ``shortest``, or less if the longer one would exceed ``longest``."""
    short, long = min(height, width), max(height, width)
    # The order of the operations is that of transformers' get_size_with_aspect_ratio.
    exact = longest * short / long if long / short * shortest > longest else shortest
    edge = round(exact)
    if short == edge:
        return height, width
    other = int(exact * long / short)
    return (other, edge) if width < height else (edge, other)


def _crop_as_set(geometry: Geometry, processor: Any) -> Geometry:
    """Crop the center if the processor is set to do so."""
    crop = _get_size(processor, "crop_size") if getattr(processor, "do_center_crop", False) else {}
    backend = getattr(processor, "backend", "")
    return _crop_center(geometry, crop["height"], crop["width"], backend) if crop else geometry


def _crop_center(geometry: Geometry, height: int, width: int, backend: str = "torchvision") -> Geometry:
    """Crop the center with the rounding of an image processor: down for PIL images, else toward zero."""
    spare = geometry.size[0] - height, geometry.size[1] - width
    top, left = (margin // 2 if backend == "pil" else int(margin / 2) for margin in spare)
    return geometry.crop(top, left, height, width)
