"""Array types of this package, and checks of the arrays that users give."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.message_parts import add_article
from camtool.errors import OverlayError

# ``(H, W, 3)`` RGB.
Pixels: TypeAlias = NDArray[np.uint8]

# Heatmap or other values, of any float type.
Heat: TypeAlias = NDArray[np.floating[Any]]

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

# ``(K, 2)``: x and y.
Points: TypeAlias = NDArray[np.float32]

# Red, green and blue, each from 0 to 255.
Color: TypeAlias = tuple[int, int, int]

# Resizing in float32 changes values by about this much. It makes no value invalid, and no map less constant.
_PIXEL_ROUNDING = 1e-6


def is_constant_heat(heat: NDArray[Any], seen: Bools | None = None) -> bool:
    """Check that a heatmap has one value everywhere, or everywhere in ``seen``."""
    where: Any = True if seen is None else seen
    low, high = float(np.min(heat, where=where, initial=1)), float(np.max(heat, where=where, initial=0))
    return high - low <= _PIXEL_ROUNDING


def check_layers(
    photo: NDArray[Any], heatmap: NDArray[Any], seen: NDArray[Any] | None
) -> tuple[Pixels, Heat, Bools | None]:
    """Return a photo, a heatmap and a mask after checking them and that their sizes are equal."""
    photo, heat = check_photo(photo), check_heatmap(heatmap)
    if heat.shape != photo.shape[:2]:
        raise OverlayError(
            f"heatmap is {describe_value(heatmap)}, photo is {describe_value(photo)}; resize the heatmap to "
            f"{photo.shape[:2]}."
        )
    if seen is None or (isinstance(seen, np.ndarray) and seen.dtype == np.bool_ and seen.shape == heat.shape):
        return photo, heat, seen
    raise OverlayError(f"seen must be a {heat.shape} bool array, as the photo, or None; got {describe_value(seen)}.")


def check_photo(photo: NDArray[Any]) -> Pixels:
    """Return the photo after checking that it is (H, W, 3) uint8."""
    fits = isinstance(photo, np.ndarray) and photo.ndim == 3 and photo.shape[2] == 3 and photo.size
    if fits and photo.dtype == np.uint8:
        return photo
    is_float = fits and np.issubdtype(photo.dtype, np.floating)
    advice = "; if its values are in [0, 1], pass (photo * 255).round().astype('uint8')" if is_float else ""
    raise OverlayError(f"photo must be a (H, W, 3) uint8 RGB array, got {describe_value(photo)}{advice}.")


def check_heatmap(heatmap: NDArray[Any]) -> Heat:
    """Return the heatmap, unchanged, after checking that it is (H, W) float in [0, 1]."""
    fits = isinstance(heatmap, np.ndarray) and heatmap.ndim == 2 and heatmap.size
    if not fits or not np.issubdtype(heatmap.dtype, np.floating):
        raise OverlayError(f"heatmap must be a (H, W) float array in [0, 1], got {describe_value(heatmap)}.")
    low, high = float(heatmap.min()), float(heatmap.max())
    if not (low >= -_PIXEL_ROUNDING and high <= 1 + _PIXEL_ROUNDING):  # NaN compares false with everything
        found = "NaN" if np.isnan(low) else f"values from {low:g} to {high:g}"
        raise OverlayError(f"heatmap must lie in [0, 1] but holds {found}; normalize it first.")
    return heatmap


def clip_heatmap(heat: NDArray[Any]) -> Floats:
    """Return a heatmap with rounding errors outside [0, 1] removed, as float64 if it has that type, else as float32."""
    clipped: Floats = np.clip(heat if heat.dtype == np.float64 else heat.astype(np.float32, copy=False), 0, 1)
    return clipped


def check_color(color: Color) -> Color:
    """Return a color as three rounded numbers after checking that each is from 0 to 255."""
    red, green, blue = to_finite_array(color, (3,), "color", "three numbers (red, green, blue) from 0 to 255")
    if min(red, green, blue) < 0 or max(red, green, blue) > 255:
        raise OverlayError(f"color must be three numbers (red, green, blue) from 0 to 255, got {color!r}.")
    return round(red), round(green), round(blue)


def to_finite_array(values: object, shape: tuple[int, ...], name: str, wanted: str) -> Floats:
    """Return finite numbers as an array after checking its shape; ``wanted`` describes them in the error."""
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise OverlayError(f"{name} must be {wanted}, got {values!r}.")
    return array.astype(np.float64)


def describe_value(value: object) -> str:
    """Return a short description for errors: dtype and shape of an array, type of anything else."""
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else add_article(type(value).__name__)
