"""Measurement of an unknown transform's crop and scale: images of known coordinates are passed through it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from camtool.errors import GeometryError
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import Floats
from camtool.geometry.transform_output import REMEDY, Transform, describe_transform, unwrap_image
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import restore_generators, save_generators, were_generators_used

# Number of times that one image is repeated, to detect a transform with a random generator of its own.
_REPEATS = 4

# Gray levels that a ramp climbs across its direction. They dither the rounding to 8 bits after the resampling.
_CLIMB = 13.0

# Gray levels that a ramp climbs along its direction.
_RAMP = 255.0 - _CLIMB

# Pixels of the coarser grid that the widest common resampling kernel (Lanczos) covers on each side.
_REACH = 3

# Share of the usual response to white minus black from which an output pixel shows the photo alone.
_FULL = 0.96

# Share of white minus black by which the gray of a linear transform may differ: a few levels of rounding.
_NONLINEAR = 0.02

# Share of white minus black that blue may have in the first of three channels to count as none, and red in the last;
# from 1 - this on it counts as all. Gray values have 0.11 of blue and 0.3 of red in each channel.
_PURE = 0.25

# Share of the photo's side by which coordinates may differ from a line: resampling bends them, by a pixel at most for
# photos of up to 200 pixels.
_DRIFT = 1 / 200


def probe_geometry(transform: Transform, photo: tuple[int, int]) -> Geometry:
    """Measure a transform's crop and scale by passing images of known coordinates through it.

    A gray ramp encodes the column (or row) of the photo in its value. Black and white images calibrate the output
    values and show the padding. The difference of a rising and a falling ramp cancels constants. A line is fitted to
    the coordinates. If they do not follow it, the transform is no crop and scale.

    The global random generators (torch, numpy, Python) are restored.

    Args:
        transform: From an RGB PIL image to (C, h, w) or (1, C, h, w), as a tensor or an array, alone, in a
            list of one, or in a dict (as ``pixel_values``, as ``image``, or as its only value).
        photo: Size (H, W) of the photo.

    Returns:
        The geometry. For photos of common sizes the box is mostly accurate to a few hundredths of a pixel. If the scale
        is close to a whole number, resampling bends the coordinates in one slow wave, and the error grows to half a
        pixel of the photo.

    Raises:
        GeometryError: The transform is random, does not return such an image, or is no crop and scale.
    """
    height, width = photo
    dark = np.zeros((height, width))
    down, up = (ramp.T for ramp in _draw_ramps(height, across=width))
    right, left = _draw_ramps(width, across=height)
    black, white, down, up, right, left = _transform_images(transform, [dark, dark + 255, down, up, right, left])

    span = white - black
    seen = _find_reliable_transform_image(span)
    if not seen.any():
        raise GeometryError(
            f"transform {describe_transform(transform)} returns the same for a black and a white photo, "
            f"so its crop cannot be measured. {REMEDY}"
        )
    rows = _find_edges(_compute_coordinates(down - up, span, height).T, seen.T, height)
    columns = _find_edges(_compute_coordinates(right - left, span, width), seen, width)
    if rows is None or columns is None:
        raise GeometryError(
            f"transform {describe_transform(transform)} is not a crop and a scale (it may rotate or distort, or its "
            f"values may not be linear in the photo's), so heatmaps cannot be placed on the photo. {REMEDY}"
        )
    return Geometry((height, width), (span.shape[1], span.shape[2]), (rows[0], columns[0], rows[1], columns[1]))


class ColorResponse(NamedTuple):
    """The values that a transform returns for colors.

    Attributes:
        black: ``(C,)``, the values of a black photo.
        white: ``(C,)``, the values of a white photo.
        is_reversed: True if red is in the last of three channels and blue in the first.
    """

    black: Floats
    white: Floats
    is_reversed: bool


def probe_colors(transform: Transform, photo: tuple[int, int]) -> ColorResponse:
    """Measure a transform's normalization and order of channels by passing photos of one color through it.

    Args:
        transform: As for :func:`probe_geometry`.
        photo: Size (H, W) of the photos.

    Raises:
        GeometryError: The transform is random, returns no image, or its values are not linear in the photo's.
    """
    colors = np.array([[0, 0, 0], [255, 255, 255], [128, 128, 128], [255, 0, 0], [0, 0, 255]])
    outputs = _transform_images(transform, [np.broadcast_to(color, (*photo, 3)) for color in colors])
    # The middle shows the photo in any crop, and no padding.
    black, white, gray, red, blue = (output[:, output.shape[1] // 2, output.shape[2] // 2] for output in outputs)
    span = white - black
    if not np.allclose(gray - black, span * 128 / 255, rtol=0, atol=_NONLINEAR * np.abs(span).max()) or not span.all():
        raise GeometryError(
            f"transform {describe_transform(transform)} returns values that are not linear in the photo's, so its "
            f"normalization cannot be measured. {REMEDY}"
        )
    shares = np.array([(red - black) / span, (blue - black) / span])
    exchanged = len(span) == 3 and np.allclose(shares[:, [0, 2]], [[0, 1], [1, 0]], rtol=0, atol=_PURE)
    return ColorResponse(black, white, exchanged)


def _draw_ramps(n: int, across: int) -> list[Floats]:
    """Return two images (across, n) whose gray rises along n in one and falls in the other.

    Two kinds of dither make the rounding errors average out: noise for the conversion of these images to integers, and
    a slow climb across, which survives any resampling, for the rounding after it. Both ramps reach black and white.
    """
    along = _RAMP * np.linspace(0, 1, n)
    dither = _CLIMB * np.linspace(0, 1, across)[:, None] + np.random.default_rng(0).random((across, n))
    return [along + dither, along[::-1] + dither]


def _compute_coordinates(difference: Floats, span: Floats, n: int) -> Floats:
    """Return the photo coordinate that each output pixel shows.

    Args:
        difference: (C, h, w), output of the rising ramp minus that of the falling one.
        span: (C, h, w), output of white minus that of black.
        n: Number of photo pixels along the ramp.

    Returns:
        (h, w) coordinates; meaningless in padding.
    """
    power = np.square(span).sum(0)
    # Least squares over the channels; a channel that the transform drops has no weight.
    level: Floats = (difference * span).sum(0) / np.where(power > 0, power, 1)
    return 0.5 + (n - 1) * (1 + level * 255 / _RAMP) / 2


def _find_reliable_transform_image(span: Floats) -> NDArray[np.bool_]:
    """Return (h, w) booleans, True where the output shows the photo and no padding."""
    power = np.square(span).sum(0)
    most = power[power > power.max() / 4]
    if not most.size:
        return np.zeros(power.shape, bool)
    # The median, because resampling kernels overshoot next to padding.
    full = power > _FULL * np.median(most)
    # Overshooting values may be clipped, which cannot be calibrated.
    inner: NDArray[np.bool_] = np.pad(full, _REACH, constant_values=True)
    for axis in (0, 1):
        inner = np.logical_and.reduce(sliding_window_view(inner, 2 * _REACH + 1, axis), axis=-1)
    return inner if inner.any() else full


def _find_edges(field: Floats, seen: NDArray[np.bool_], n: int) -> tuple[float, float] | None:
    """Return the output's first and last edge in the photo, along the last axis.

    Args:
        field: (across, along), the photo coordinate that each output pixel shows.
        seen: (across, along), True where it is reliable.
        n: Number of photo pixels along this axis.

    Returns:
        (start, stop) in photo pixels, or None if the coordinates do not follow a line.
    """
    counts = seen.sum(0)
    at = np.flatnonzero(2 * counts >= counts.max())
    # Four points are the least that show whether a line fits.
    if at.size < 4:
        return None
    tolerance = max(1.0, _DRIFT * n)
    slope, start = _fit_line(at + 0.5, (field * seen).sum(0)[at] / counts[at], tolerance)
    length = field.shape[1]
    expected = start + slope * (np.arange(length) + 0.5)
    # Padding that replicates or reflects the edge does not follow the line.
    trusted = seen & (expected > 0) & (expected < n)
    constant = abs(slope) * length < 0.5
    if constant or 2 * trusted.sum() <= seen.sum() or _compute_largest_bias(field - expected, trusted) > tolerance:
        return None
    return float(start), float(start + slope * length)


def _fit_line(x: Floats, y: Floats, tolerance: float) -> tuple[float, float]:
    """Fit a line to most of ``y``, robust to the rest (clamped or mirrored); return slope and intercept."""
    # Each pair of 48 points proposes a line, and the points near it vote. 1128 lines are enough, and fast.
    few = np.linspace(0, x.size - 1, min(x.size, 48)).round().astype(int)
    first, second = (few[indices] for indices in np.triu_indices(few.size, 1))
    slopes = (y[second] - y[first]) / (x[second] - x[first])
    candidates = y[first, None] + slopes[:, None] * (x[few] - x[first, None])
    votes = np.clip(1 - np.square((candidates - y[few]) / tolerance), 0, None).sum(1)
    best = votes.argmax()
    slope, intercept = slopes[best], y[first[best]] - slopes[best] * x[first[best]]

    followers = np.flatnonzero(np.abs(intercept + slope * x - y) <= tolerance)
    # Near the ends a resampling kernel is truncated, or mixes in what is outside.
    reach = min(int(np.ceil(_REACH / min(abs(slope) + 1e-9, 1))), followers.size // 4)
    inner = followers[reach : followers.size - reach]
    # Antialiased coordinates oscillate around the line with a period of many pixels. Weights that fade out
    # prevent a truncated period at the end from tilting the line.
    fade = np.sin(np.pi * (np.arange(inner.size) + 0.5) / inner.size)
    slope, intercept = np.polyfit(x[inner], y[inner], 1, w=np.sqrt(fade))
    return slope, intercept


def _compute_largest_bias(residual: Floats, trusted: NDArray[np.bool_]) -> float:
    """Return the largest mean residual in 8 x 8 blocks: rounding averages out in a block, a distortion does not."""
    part = np.ix_(trusted.any(1), trusted.any(0))
    biases = [0.0]
    for band, is_trusted in zip(np.array_split(residual[part], 8), np.array_split(trusted[part], 8), strict=True):
        for block, mask in zip(np.array_split(band, 8, axis=1), np.array_split(is_trusted, 8, axis=1), strict=True):
            if 4 * mask.sum() > mask.size:
                biases.append(abs(block[mask].mean()))
    return max(biases)


def _transform_images(transform: Transform, images: list[Floats]) -> list[Floats]:
    """Return the outputs for images in 0 .. 255, gray or RGB, and check that the transform is deterministic."""
    with Cleanup() as cleanup:
        generators = save_generators()
        cleanup.push(partial(restore_generators, generators))
        outputs = [_transform_image(transform, pixels) for pixels in images + images[-1:] * _REPEATS]
        drawn = were_generators_used(generators)
    pushed, repeated = outputs[: len(images)], outputs[len(images) :]
    same_size = len({output.shape for output in outputs}) == 1
    if drawn or not same_size or not all(np.array_equal(output, pushed[-1]) for output in repeated):
        raise GeometryError(
            f"transform {describe_transform(transform)} is random, or its crop depends on the photo's content, "
            f"so its crop cannot be measured. {REMEDY}"
        )
    return pushed


def _transform_image(transform: Transform, pixels: Floats) -> Floats:
    """Return the output (C, h, w) for one image, gray (H, W) or RGB (H, W, 3)."""
    colors = pixels if pixels.ndim == 3 else np.stack([pixels] * 3, axis=-1)
    output = transform(Image.fromarray(colors.astype(np.uint8)))
    image = unwrap_image(output)
    array = image.detach().cpu().double().numpy() if isinstance(image, Tensor) else image
    if isinstance(array, np.ndarray) and array.ndim == 4 and len(array) == 1:
        array = array[0]
    if not isinstance(array, np.ndarray) or array.ndim != 3 or not array.size:
        shape = f" with shape {tuple(array.shape)}" if isinstance(array, np.ndarray) else ""
        raise GeometryError(
            f"transform {describe_transform(transform)} must return a tensor (C, h, w) or (1, C, h, w), "
            f"got {type(output).__name__}{shape}. {REMEDY}"
        )
    return array.astype(np.float64)
