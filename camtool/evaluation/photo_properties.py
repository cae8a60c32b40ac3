"""Global properties of photos, which no heatmap can show: how they are measured, and how they are shifted."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageFilter

Photo = NDArray[np.uint8]

# Pixels that count, ``(H, W)``; None for all.
Counted: TypeAlias = "NDArray[np.bool_] | None"

_LUMA = np.array([0.299, 0.587, 0.114])
_BLOCK = 8

# Parts along each side of a photo, to tell an object with sharp lines from a photo that is sharper all over.
_PARTS = 4

_QUALITIES = (95, 90, 80, 70, 60, 50, 40, 30, 20, 10)
_BLUR_RADII = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


Measure: TypeAlias = Callable[[NDArray[np.float64]], float]


class Shift(Protocol):
    """What changes a property, see :class:`Property`."""

    def __call__(self, photo: Photo, value: float, goal: float, counted: Counted = None, /) -> Photo | None:
        """Return the photo with the property near a goal; None if that is not possible."""


@dataclass(frozen=True)
class Property:
    """A property of a photo.

    Attributes:
        name: Its name, e.g. ``"brightness"``.
        low: The words for less of it, e.g. ``"darker"``.
        high: The words for more of it.
        measure: Returns its value from a photo in float, ``(H, W, 3)`` from 0 to 255, NaN for pixels that do not count.
        shift: ``shift(photo, value, goal, counted)``: the photo with this property near a goal; None if that is not
            possible. Both are values of the pixels that count, ``(H, W)``; by default all.
        is_color: True if it is a mean of colors.
    """

    name: str
    low: str
    high: str
    measure: Measure
    shift: Shift
    is_color: bool = False

    def imitate(self, photo: Photo, other: Photo, random: np.random.Generator) -> Photo | None:
        """Return a photo with this property of another one; None if that is not possible.

        For a color, the mean color of the other photo is taken, by a sum or by factors, drawn at random: what tinted
        the other photo may have been either.
        """
        if not self.is_color:
            return self.shift(photo, self.measure(photo.astype(float)), self.measure(other.astype(float)))
        own, goal = photo.mean((0, 1)), other.mean((0, 1))
        return _to_bytes(photo + (goal - own) if random.random() < 0.5 else photo * (goal / own.clip(1)))


def _to_bytes(values: NDArray[np.float64]) -> Photo:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def leave_out(photo: Photo, counted: Counted) -> NDArray[np.float64]:
    """Return a photo in float, with NaN for pixels that do not count, as :attr:`Property.measure` takes it."""
    return photo.astype(float) if counted is None else np.where(counted[..., None], photo, np.nan)


def _list_known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values that are not NaN, ``(N,)``; a single 0 if there is none."""
    known = values[~np.isnan(values)]
    return known if known.size else np.zeros(1)


def _build_linear(name: str, low: str, high: str, weights: ArrayLike, step: ArrayLike) -> Property:
    """Return the property that is the mean of a weighted sum of red, green and blue.

    Args:
        name: Its name.
        low: The words for less of it.
        high: The words for more of it.
        weights: The weights of the colors.
        step: What is added to the mean color to raise it by 1. That of a tint keeps the luma. The pixels get it by a
            factor for each color, as light, exposure and white balance do: black stays black.
    """

    def measure(photo: NDArray[np.float64]) -> float:
        return float(_list_known(photo @ np.asarray(weights)).mean())

    def shift(photo: Photo, value: float, goal: float, counted: Counted = None, /) -> Photo:
        mean = (photo if counted is None else photo[counted][None]).mean((0, 1)).clip(1)
        return _to_bytes(photo * ((mean + (goal - value) * np.asarray(step)).clip(0) / mean))

    return Property(name, low, high, measure, shift, is_color=True)


def _measure_contrast(photo: NDArray[np.float64]) -> float:
    return float(_list_known(photo @ _LUMA).std())


def _measure_sharpness(photo: NDArray[np.float64]) -> float:
    """Return the logarithm of the mean squared Laplacian of the luma."""
    gray = photo @ _LUMA
    if min(gray.shape) < 3:
        return 0.0
    laplacian = 4 * gray[1:-1, 1:-1] - gray[:-2, 1:-1] - gray[2:, 1:-1] - gray[1:-1, :-2] - gray[1:-1, 2:]
    return math.log(float((_list_known(laplacian) ** 2).mean()) + 1)


def measure_blockiness(photo: NDArray[np.float64]) -> float:
    """Return how much larger steps between pixels are at the edges of the 8 x 8 blocks of JPEG, as a logarithm.

    It is 0 for photos that were never compressed, also if the file is JPEG only by its name.
    """
    gray, ratios = photo @ _LUMA, []
    for plane in (gray, gray.T):
        steps = np.abs(np.diff(plane, 2, axis=1))  # column k: at the pixels k, k + 1, k + 2
        if steps.shape[1] < 2 * _BLOCK:
            return 0.0
        phase = (np.arange(steps.shape[1]) + 1) % _BLOCK
        at_edges = _list_known(steps[:, (phase == _BLOCK - 1) | (phase == 0)]).mean()
        inside = _list_known(steps[:, (phase > 0) & (phase < _BLOCK - 1)]).mean()
        ratios.append(math.log((at_edges + 0.1) / (inside + 0.1)))
    return float(np.mean(ratios))


def _shift_contrast(photo: Photo, value: float, goal: float, counted: Counted = None, /) -> Photo:
    values = photo.astype(float)
    middle = _list_known(leave_out(photo, counted) @ _LUMA).mean()
    return _to_bytes(middle + (values - middle) * (max(goal, 0) / max(value, 1)))


def _shift_sharpness(photo: Photo, value: float, goal: float, counted: Counted = None, /) -> Photo | None:
    """Return the photo blurred until it is as unsharp as the goal; None for a sharper goal."""
    image = Image.fromarray(photo)
    made = (np.asarray(image.filter(ImageFilter.GaussianBlur(radius))) for radius in _BLUR_RADII)
    return _find_nearest(made, _measure_sharpness, goal, counted) if goal < value else None


def compress(photo: Photo, quality: int) -> Photo:
    """Return a photo as it is after JPEG of a quality."""
    stream = io.BytesIO()
    Image.fromarray(photo).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream).convert("RGB"))


def _shift_blockiness(photo: Photo, value: float, goal: float, counted: Counted = None, /) -> Photo | None:
    """Return the photo compressed until it has the blocks of the goal; None for a goal with fewer."""
    if goal < value:
        return None
    return _find_nearest((compress(photo, quality) for quality in _QUALITIES), measure_blockiness, goal, counted)


def _find_nearest(made: Iterable[Photo], measure: Measure, goal: float, counted: Counted) -> Photo:
    return min(made, key=lambda photo: abs(measure(leave_out(photo, counted)) - goal))


# All properties whose effect can be tested. A new one is one row.
PROPERTIES: tuple[Property, ...] = (
    _build_linear("brightness", "darker", "brighter", _LUMA, (1, 1, 1)),
    Property("contrast", "less contrast", "more contrast", _measure_contrast, _shift_contrast),
    _build_linear("red-green tint", "greener", "redder", (1, -1, 0), (0.587 / 0.886, -0.299 / 0.886, 0)),
    _build_linear("blue-yellow tint", "yellower", "bluer", (-0.5, -0.5, 1), (-0.114, -0.114, 0.886)),
    Property("sharpness", "blurred", "sharper", _measure_sharpness, _shift_sharpness),
    Property("JPEG blocks", "less compressed", "more compressed", measure_blockiness, _shift_blockiness),
)


def measure_properties(photo: Photo) -> NDArray[np.float64]:
    """Return the value of each property of a photo ``(H, W, 3)``."""
    return np.array([property_.measure(photo.astype(float)) for property_ in PROPERTIES])


def measure_parts(photo: Photo) -> NDArray[np.float64]:
    """Return the value of each property in 4 x 4 parts of a photo ``(H, W, 3)``, ``(16, properties)``.

    JPEG blocks are those of the whole photo, as a file is compressed as a whole.
    """
    values = photo.astype(float)
    parts = [part for row in np.array_split(values, _PARTS) for part in np.array_split(row, _PARTS, axis=1)]
    columns = [[*map(kind.measure, [values] if kind.measure is measure_blockiness else parts)] for kind in PROPERTIES]
    return np.stack(np.broadcast_arrays(*columns), 1)
