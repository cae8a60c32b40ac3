"""Contrast: which values of a file are shown black, and which white."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.inputs.formats.reading_options import ReadingOptions

# Values that are computed at once: in float64 and in copies, values of 8 bits take many times their memory.
_PART = 1 << 20

# The VOI LUT functions of DICOM PS3.3 C.11.2.1.
WindowFunction: TypeAlias = Literal["LINEAR", "LINEAR_EXACT", "SIGMOID"]


@dataclass(frozen=True)
class Contrast:
    """Values that become black and white; those between are linear, or on a sigmoid curve.

    Attributes:
        low: The value that becomes black, one for all bands or one for each.
        high: The value that becomes white.
        is_sigmoid: Values follow a sigmoid curve whose middle is halfway between ``low`` and ``high``.
        is_inverted: The low values are white, as in DICOM's MONOCHROME1.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    is_sigmoid: bool = False
    is_inverted: bool = False

    @classmethod
    def from_window(
        cls, center: float, width: float, function: WindowFunction = "LINEAR_EXACT", *, is_inverted: bool = False
    ) -> Contrast:
        """Return the contrast of a window, by the formulas of DICOM PS3.3 C.11.2.1.2 and C.11.2.1.3.

        LINEAR, which is meant for whole numbers, has no formula for a width below 1; LINEAR_EXACT is taken instead.
        """
        if function == "LINEAR" and width >= 1:
            center, width = center - 0.5, width - 1
        return cls((center - width / 2,), (center + width / 2,), function == "SIGMOID", is_inverted)

    def apply(self, values: NDArray[Any], opacity: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return values ``(..., C)`` in [0, 1]: 0 is black. NaN becomes black.

        What is not opaque, by ``(..., 1)`` in [0, 1], is put on white.
        """
        unit = np.empty(values.shape, np.float32)
        for part in cut_parts(values):
            unit[part] = self._apply_to_part(values, opacity, part)
        return unit

    def to_levels(self, values: NDArray[Any], opacity: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        """Return values ``(..., C)`` as the nearest of the levels 0 to 255, on white as :meth:`apply` puts them."""
        levels = np.empty(values.shape, np.uint8)
        for part in cut_parts(values):
            levels[part] = np.rint(self._apply_to_part(values, opacity, part).astype(np.float32) * 255)
        return levels

    def _apply_to_part(
        self, values: NDArray[Any], opacity: NDArray[np.float32] | None, part: tuple[slice, ...]
    ) -> NDArray[np.float64]:
        low, high = np.asarray(self.low), np.asarray(self.high)
        wide = values[part].astype(np.float64)
        with np.errstate(over="ignore"):
            if self.is_sigmoid:
                unit = 1 / (1 + np.exp(-4 * (wide - (low + high) / 2) / (high - low)))
            else:
                # A window of no width is a threshold.
                span = np.where(high > low, high - low, 1)
                unit = np.where(high > low, np.clip((wide - low) / span, 0, 1), wide > low)
        unit = np.where(np.isnan(wide), 0, 1 - unit if self.is_inverted else unit)
        return unit if opacity is None else 1 - opacity[part] * (1 - unit)


def choose_contrast(
    options: ReadingOptions, values: NDArray[Any], valid: NDArray[np.bool_] | None = None, **window: Any
) -> Contrast | None:
    """Return the contrast that the user chose, by a window or by percentiles of each band; ``None`` if none was chosen.

    Args:
        options: The user's.
        values: ``(..., C)``.
        valid: Booleans of the shape of ``values``: those that percentiles count.
        **window: Further arguments of :meth:`Contrast.from_window`.
    """
    if options.window is not None:
        return Contrast.from_window(*options.window, **window)
    if options.percentiles is None:
        return None
    low, high = [], []
    for band in range(values.shape[-1]):
        counted = _select_valid(values[..., band], None if valid is None else valid[..., band])
        bounds = np.percentile(counted, options.percentiles) if counted.size else (0.0, 1.0)
        low.append(float(bounds[0]))
        high.append(float(bounds[1]))
    return Contrast(tuple(low), tuple(high), is_inverted=window.get("is_inverted", False))


def find_range(values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> tuple[float, float]:
    """Return the lowest and the highest of the valid, finite values; (0, 1) if there are none."""
    parts = (_select_valid(values[part], None if valid is None else valid[part]) for part in cut_parts(values))
    ranges = [(float(part.min()), float(part.max())) for part in parts if part.size]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else (0.0, 1.0)


def find_full_range(values: NDArray[Any]) -> Contrast | None:
    """Return the contrast from 0 to the largest value of the type, of uint8, uint16, bool, and floats in [0, 1].

    ``None`` for other types and values, for which nothing says what is black and white.
    """
    if values.dtype in (np.uint8, np.uint16):
        return Contrast((0.0,), (float(np.iinfo(values.dtype).max),))
    low, high = find_range(values)
    is_unit = values.dtype.kind == "b" or (values.dtype.kind == "f" and low >= 0 and high <= 1)
    return Contrast((0.0,), (1.0,)) if is_unit else None


def cut_parts(values: NDArray[Any]) -> Iterator[tuple[slice, ...]]:
    """Yield the parts of an array, along its first two axes, that are computed at once."""
    planes = max(1, _PART // max(1, values[:1].size))
    rows = max(1, _PART // max(1, values[:1, :1].size)) if values.ndim > 1 else 1
    for plane in range(0, len(values), planes):
        for row in range(0, values.shape[1] if values.ndim > 1 else 1, rows):
            yield (slice(plane, plane + planes), slice(row, row + rows))[: values.ndim]


def _select_valid(values: NDArray[Any], valid: NDArray[np.bool_] | None) -> NDArray[Any]:
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        valid = finite if valid is None else valid & finite
    return values.ravel() if valid is None else values[valid]
