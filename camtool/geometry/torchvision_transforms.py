"""Geometry of a transform: read exactly from its attributes if its class is known, measured otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

from PIL import Image

from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.hugging_face_processors import apply_processor, are_close, guess_geometries, is_standard_processor
from camtool.geometry.measured_transforms import probe_geometry
from camtool.geometry.transform_output import Transform


def read_geometry(
    transform: Transform, photo: Image.Image | tuple[int, int], *, run: Transform | None = None
) -> Geometry:
    """Find the part of a photo that a transform passes to the model.

    The common transforms of torchvision, timm and open_clip, also composed, and the standard image processors of
    Hugging Face are read exactly, from their attributes. For other processors a geometry is guessed from their
    settings, and used if a measurement confirms it. All other transforms are measured, see
    :func:`camtool.geometry.measured_transforms.probe_geometry`.

    Args:
        transform: Function from a PIL image to the model's input.
        photo: The photo, or its size (H, W).
        run: What is called with photos if the transform has to be measured and does not take photos itself.

    Raises:
        GeometryError: The transform is random, or is no crop and scale.
    """
    height, width = (photo.height, photo.width) if isinstance(photo, Image.Image) else photo
    whole = Geometry.whole(height, width)
    geometry = _read(whole, transform)
    if geometry is not None:
        return geometry
    # A guess is exact where it is right, a measurement is not.
    probed = probe_geometry(run or transform, (height, width))
    guesses = guess_geometries(whole, getattr(transform, "processor", transform))
    return next((guess for guess in guesses if are_close(guess, probed)), probed)


def _read(geometry: Geometry | None, part: object) -> Geometry | None:
    """Return the geometry after a part of a transform, or None if its attributes do not determine it."""
    kind = type(part)
    # A class of another package may do anything under the same name.
    if geometry is None or not f"{kind.__module__}.".startswith(_KNOWN_MODULES):
        return None
    if kind.__name__ in _KEEP_POSITIONS:
        return geometry
    if is_standard_processor(part):
        return apply_processor(geometry, part)
    reader = _READERS.get(kind.__name__)
    return reader(geometry, part) if reader else None


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of a padding that is given as one, two or four numbers."""
    sides = list(padding) if isinstance(padding, Iterable) else [padding]
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


def _letterbox(geometry: Geometry, part: Any) -> Geometry:
    """Return the geometry after the preparation of YOLO models."""
    size, padding = part.plan(*geometry.size)
    return geometry.resize(size).pad(*padding)


def _read_all(geometry: Geometry | None, parts: Sequence[object]) -> Geometry | None:
    """Return the geometry after all parts of a composed transform."""
    return reduce(_read, parts, geometry)


def _resize_keeping_ratio(geometry: Geometry, part: Any) -> Geometry | None:
    """Return the geometry after ``ResizeKeepRatio`` of timm and open_clip, or None if it is random."""
    if part.random_scale_prob or part.random_aspect_prob:
        return None
    ratios = [old / new for old, new in zip(geometry.size, part.size, strict=True)]
    ratio = max(ratios) * part.longest + min(ratios) * (1 - part.longest)
    height, width = (round(side / ratio) for side in geometry.size)
    return geometry.resize((height, width))


def _trim_border(geometry: Geometry, border: int) -> Geometry:
    """Return the geometry after timm's ``TrimBorder``."""
    top, left = (min(border, side) for side in geometry.size)
    height, width = (max(0, side - 2 * border) for side in geometry.size)
    return geometry.crop(top, left, height, width)


# Packages whose transforms are recognized by the names of their classes.
_KNOWN_MODULES = (
    *("torchvision.transforms.", "timm.data.transforms.", "open_clip.transform.", "transformers."),
    *("camtool.models.", "camtool.geometry."),
)

# Classes that change values or types, but move no pixel.
_KEEP_POSITIONS = frozenset(
    (
        *("ConvertImageDtype", "Grayscale", "Identity", "MaybeConvertMode", "MaybePILToTensor", "MaybeToTensor"),
        *("Normalize", "ObjectDetection", "PILToTensor", "RGB", "ToDtype", "ToImage", "ToPILImage", "ToPureTensor"),
        "ToTensor",
    )
)

# Class name → geometry after a transform of that class, or None if it is random.
_READERS: dict[str, Callable[[Geometry, Any], Geometry | None]] = {
    "CenterCrop": lambda geometry, part: geometry.center_crop(part.size),
    "CenterCropOrPad": lambda geometry, part: geometry.center_crop(part.size),
    "Compose": lambda geometry, part: _read_all(geometry, part.transforms),
    "ImageClassification": lambda geometry, part: geometry.resize(part.resize_size).center_crop(part.crop_size),
    "Letterbox": _letterbox,
    "Pad": lambda geometry, part: geometry.pad(*_sides(part.padding)),
    "PlainTransform": lambda geometry, part: part.resize(geometry).center_crop(part.crop),
    "Preprocessing": lambda geometry, part: geometry.resize(part.compute_scaled_size(*geometry.size)).center_crop(
        part.size
    ),
    "ProcessorTransform": lambda geometry, part: _read(geometry, part.processor),
    "RandomHorizontalFlip": lambda geometry, part: {0.0: geometry, 1.0: geometry.flip()}.get(float(part.p)),
    "Renormalized": lambda geometry, part: _read(geometry, part.base),
    "Resize": lambda geometry, part: geometry.resize(part.size, part.max_size),
    "ResizeKeepRatio": _resize_keeping_ratio,
    "SemanticSegmentation": lambda geometry, part: (
        geometry if part.resize_size is None else geometry.resize(part.resize_size)
    ),
    "TrimBorder": lambda geometry, part: _trim_border(geometry, part.border_size),
}
