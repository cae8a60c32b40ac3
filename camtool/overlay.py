"""uint8 pixels: colour a heatmap, lay it on a photo, cut its regions out and draw them.

Every photo here is (H, W, 3) uint8 RGB, every heatmap (H, W) float in [0, 1], ``seen`` (H, W) bool: where the
model looked. Every picture returned is a new (H, W, 3) uint8 RGB array. Arithmetic is done in floats and
rounded once, so nothing wraps; no picture is stretched to its own maximum, so two overlays can be compared.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from camtool.colormaps import COLORMAPS, Colormap, default_alpha, palette, rise
from camtool.errors import OverlayError, add_article
from camtool.tags import draw_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "COLORMAPS",
    "Colormap",
    "at_least_a_pixel",
    "blend",
    "boxes",
    "colorize",
    "contours",
    "default_alpha",
    "draw_boxes",
    "draw_contours",
    "multiply",
    "palette",
    "quantize",
]

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Points = NDArray[np.float32]
Color = tuple[int, int, int]

_ROUNDING = 1e-6  # what resizing in float32 adds to a value: neither out of range nor a difference
_VEIL, _VEIL_GREY = 0.55, 112.0  # how much of an unseen pixel gives way to which grey
_BAND = 2**14  # so many pixels are computed at a time
_SEAM = 230  # the grey of the line around what was seen
_WIDTHS_PER_SIDE = 320  # how many default lines fit side by side into a photo
_SEAMS_PER_SIDE = 180  # how many lines around what was seen
_SUBPIXEL_BITS = 4  # lines are drawn to a sixteenth of a pixel
_WHITE, _BLACK, _INK = (255, 255, 255), (0, 0, 0), (20, 22, 26)


def colorize(heatmap: NDArray[Any], colormap: Colormap = "heat") -> Pixels:
    """Return the color of every heat.

    Args:
        heatmap: (H, W) float in [0, 1].
        colormap: As for :func:`camtool.colormaps.palette`: a name, or a color map of matplotlib.

    Returns:
        (H, W, 3) uint8 RGB: entry ``round(255 * heat)`` of the colormap, at every pixel.

    Raises:
        ColormapError: ``colormap`` is unknown.
        OverlayError: ``heatmap`` is no heatmap.
    """
    heat, colors = _as_heat(heatmap), palette(colormap)
    return _in_bands(heat.shape, lambda rows: colors[_levels(heat[rows])])


def quantize(values: NDArray[Any], *, scale: Sequence[float], shift: Sequence[float]) -> Pixels:
    """Turn planes of numbers into a picture: ``round(255 * (scale * values + shift))``, kept within 0 to 255.

    Args:
        values: (3, H, W) or, for grey, (1, H, W) float32.
        scale: A factor a plane.
        shift: A summand a plane.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    import cv2

    planes = [
        cv2.addWeighted(plane, 255 * factor, plane, 0, 255 * summand, dtype=cv2.CV_8U)
        for plane, factor, summand in zip(values, scale, shift, strict=True)
    ]
    picture: Pixels = cv2.merge(planes if len(planes) == 3 else planes * 3)
    return picture


def blend(
    photo: NDArray[Any],
    heatmap: NDArray[Any],
    *,
    alpha: float | None = None,
    colormap: Colormap = "heat",
    seen: NDArray[Any] | None = None,
) -> Pixels:
    """Lay the heatmap in color over the photo: the overlay.

    Each pixel is ``round((1 - a) * photo + a * color)``. With the default color map the opacity is
    ``a = alpha * heat**1.5``: the hotter, the more is covered, and the hottest place stands out most. With other color
    maps it is done rising at a heat of one half, so that from there on the tint depends on the color alone::

        t = min(1, 2 * heat)
        a = alpha * t**2 * (3 - 2 * t)

    Cold parts stay the crisp photo instead of drowning in the color map's first color.

    A map that is constant (over what was seen) points nowhere, at any value: it adds no color. What
    the model never saw carries no heat: it is gray, with little contrast, behind a thin light line.

    Args:
        photo: (H, W, 3) uint8 RGB.
        heatmap: (H, W) float in [0, 1], lying on the photo.
        alpha: How opaque the color is at full heat: 0 gives the photo, 1 the bare color. By default 0.7, and 0.5 with
            another color map than "heat".
        colormap: As for :func:`camtool.colormaps.palette`: a name, or a color map of matplotlib.
        seen: (H, W) bool, True where the model looked; None means everywhere.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        ColormapError: ``colormap`` is unknown.
        OverlayError: ``photo``, ``heatmap``, ``alpha`` or ``seen`` is not as described, or the sizes differ.
    """
    photo, heat, seen = _as_layers(photo, heatmap, seen)
    colors = palette(colormap)
    most = _as_fraction(default_alpha(colormap) if alpha is None else alpha, "alpha")
    if _is_constant(heat, seen):
        most = 0.0
    veil = None if seen is None else _Veil(photo, seen)

    def blended(rows: slice) -> Pixels:
        band = _as_floats(heat[rows])
        overlay = _mix(photo[rows], colors[_levels(band)], most * rise(band, colormap))
        return overlay if veil is None else veil.drawn(overlay, rows)

    return _in_bands(heat.shape, blended)


def multiply(photo: NDArray[Any], heatmap: NDArray[Any], *, seen: NDArray[Any] | None = None) -> Pixels:
    """Keep of the photo what counted: ``round(photo * heat)``.

    This is the plain product, for constant maps too: a map of zeros leaves nothing, a map of ones the photo.

    Args:
        photo: (H, W, 3) uint8 RGB.
        heatmap: (H, W) float in [0, 1], lying on the photo.
        seen: (H, W) bool, True where the model looked; the rest becomes black. None means everywhere.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        OverlayError: ``photo``, ``heatmap`` or ``seen`` is not as described, or the sizes differ.
    """
    photo, heat, seen = _as_layers(photo, heatmap, seen)

    def multiplied(rows: slice) -> Pixels:
        kept = _as_floats(heat[rows]) if seen is None else _as_floats(heat[rows]) * seen[rows]
        product: Pixels = np.rint(photo[rows] * kept[..., None]).astype(np.uint8)
        return product

    return _in_bands(heat.shape, multiplied)


def boxes(heatmap: NDArray[Any], *, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
    """Frame each connected region of heat at or above a threshold.

    Pixels that touch at a corner are connected.

    Args:
        heatmap: (H, W) float in [0, 1].
        threshold: The least heat of a region, in [0, 1]; None takes Otsu's threshold of this heatmap.

    Returns:
        ``(x0, y0, x1, y1)`` in pixels, half-open (``heatmap[y0:y1, x0:x1]`` is the box), the region of most
        pixels first. Empty for a constant map, whatever the threshold: it has no regions.

    Raises:
        OverlayError: ``heatmap`` is no heatmap or ``threshold`` is not in [0, 1].
    """
    import cv2

    heat = _as_floats(_as_heat(heatmap))
    level = _level(heat, threshold)
    if level is None:
        return []
    _, _, stats, _ = cv2.connectedComponentsWithStats((heat >= level).astype(np.uint8), connectivity=8)
    regions = sorted(stats[1:].tolist(), key=lambda region: (-region[4], region[1], region[0]))
    return [(x, y, x + width, y + height) for x, y, width, height, _ in regions]


def contours(heatmap: NDArray[Any], *, threshold: float | None = None) -> list[Points]:
    """Trace the outline of each connected region of heat at or above a threshold, finer than a pixel.

    The regions are those of `boxes`; a hole in one has an outline of its own. A region that is cut off by the
    border of the map is closed along it.

    Args:
        heatmap: (H, W) float in [0, 1].
        threshold: The least heat of a region, in [0, 1]; None takes Otsu's threshold of this heatmap.

    Returns:
        (K, 2) float32 closed polygons of ``(x, y)`` (the first point comes again at the end), the longest
        outline first. ``(0, 0)`` is the centre of the first pixel, as in matplotlib's ``imshow``. Empty for a
        constant map, whatever the threshold.

    Raises:
        OverlayError: ``heatmap`` is no heatmap or ``threshold`` is not in [0, 1].
    """
    from skimage.measure import find_contours

    heat = _as_floats(_as_heat(heatmap))
    level = _level(heat, threshold)
    if level is None:
        return []
    # find_contours asks for more than the level, a region for no less: a hair lower makes the two the same.
    rows_columns = find_contours(np.pad(heat, 1, constant_values=-1), level - 1e-9, fully_connected="high")  # type: ignore[no-untyped-call]
    last = np.subtract(heat.shape[::-1], 1)
    outlines = [np.clip(line[:, ::-1] - 1, 0, last).astype(np.float32) for line in rows_columns]
    return sorted(outlines, key=_length, reverse=True)


def draw_boxes(
    photo: NDArray[Any],
    boxes: Sequence[Sequence[float]],
    *,
    color: Color = _WHITE,
    width: int | None = None,
    labels: Sequence[str] | None = None,
) -> Pixels:
    """Draw boxes on a copy of the photo, with a halo that sets them off from any ground.

    Args:
        photo: (H, W, 3) uint8 RGB.
        boxes: ``(x0, y0, x1, y1)`` in pixels, half-open, as `boxes` returns them.
        color: (red, green, blue), each 0 to 255. The halo is black, but white around a dark colour.
        width: Of the line, in pixels; None fits it to the picture.
        labels: Words for each box. They stand on a tag beside it, inside of the picture; the last word is kept where
            the others have to be shortened. A picture too small for letters gets none.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        OverlayError: ``photo``, a box, ``color``, ``width`` or ``labels`` is not as described.
    """
    drawn = _stroke(photo, [_corners(box) for box in boxes], color, width)
    if labels is None:
        return drawn
    if isinstance(labels, str) or len(labels) != len(boxes):
        raise OverlayError(f"labels must be {len(boxes)} strings, one for each box; got {labels!r}.")
    places = [(float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in boxes]
    return draw_tags(drawn, places, labels, paper=_WHITE, ink=_INK)


def at_least_a_pixel(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """A box that may be empty, as a detector's may, so that it can be drawn."""
    x0, y0, x1, y1 = box
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def draw_contours(
    photo: NDArray[Any],
    contours: Sequence[NDArray[Any]],
    *,
    color: Color = _WHITE,
    width: int | None = None,
) -> Pixels:
    """Draw polygons on a copy of the photo, with a halo that sets them off from any ground.

    Args:
        photo: (H, W, 3) uint8 RGB.
        contours: (K, 2) polygons of ``(x, y)``, as `contours` returns them.
        color: (red, green, blue), each 0 to 255. The halo is black, but white around a dark colour.
        width: Of the line, in pixels; None fits it to the picture.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        OverlayError: ``photo``, a polygon, ``color`` or ``width`` is not as described.
    """
    return _stroke(photo, [_polygon(points) for points in contours], color, width)


# ----------------------------------------------------------------------------------------- colour and opacity


def _in_bands(size: tuple[int, ...], draw: Callable[[slice], Pixels]) -> Pixels:
    """Draw a picture of this size (H, W), some rows at a time: the floats of a whole large photo would be heavy."""
    height, width = size
    picture = np.empty((height, width, 3), np.uint8)
    step = max(1, _BAND // width)
    for top in range(0, height, step):
        rows = slice(top, min(top + step, height))
        picture[rows] = draw(rows)
    return picture


def _levels(heat: NDArray[Any]) -> Pixels:
    """Return the nearest of 256 levels for each heat."""
    return np.rint(255 * _as_floats(heat)).astype(np.uint8)


def _mix(photo: Pixels, colors: Pixels, opacity: Floats) -> Pixels:
    """Return ``round((1 - a) * photo + a * color)``, computed one channel at a time."""
    clarity = 1 - opacity
    mixed = np.empty(photo.shape, np.uint8)
    for channel in range(3):
        mixed[..., channel] = np.rint(clarity * photo[..., channel] + opacity * colors[..., channel])
    return mixed


def _is_constant(heat: NDArray[Any], seen: Bools | None = None) -> bool:
    """Check that a map is the same everywhere, or everywhere that was seen."""
    among: Any = True if seen is None else seen
    low, high = (float(pick(heat, where=among, initial=start)) for pick, start in ((np.min, 1), (np.max, 0)))
    return high - low <= _ROUNDING


class _Veil:
    """The photo as it is drawn where the model did not look: gray, pale, with a line along what was seen."""

    def __init__(self, photo: Pixels, seen: Bools) -> None:
        self._photo, self._seen = photo, seen
        self._reach = max(1, _line_width(photo, _SEAMS_PER_SIDE) // 2)

    def drawn(self, picture: Pixels, rows: slice) -> Pixels:
        """Return some rows of a picture, with the veil where the model did not look."""
        if self._seen[rows].all():
            return picture
        return np.where(self._seen[rows, :, None], picture, self._gray(rows)[..., None])

    def _gray(self, rows: slice) -> Pixels:
        import cv2

        # Towards a middle gray, not darker or lighter: that shows on dark, bright and gray photos alike.
        photo = np.ascontiguousarray(self._photo[rows])
        gray = (1 - _VEIL) * cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY) + _VEIL * _VEIL_GREY
        return np.where(self._near_seen(rows), _SEAM, np.rint(gray)).astype(np.uint8)

    def _near_seen(self, rows: slice) -> Bools:
        """Return where the line lies: on all that is within reach of what was seen."""
        import cv2

        first = max(0, rows.start - self._reach)
        around = np.ascontiguousarray(self._seen[first : rows.stop + self._reach], np.uint8)
        side = 1 + 2 * self._reach
        near = cv2.dilate(around, np.ones((side, side), np.uint8)) > 0
        found: Bools = near[rows.start - first :][: rows.stop - rows.start]
        return found


# ------------------------------------------------------------------------------------------ regions and lines


def _level(heat: Floats, threshold: float | None) -> float | None:
    """The heat where regions begin; None for a constant map, which has none."""
    level = None if threshold is None else _as_fraction(threshold, "threshold")
    if _is_constant(heat):
        return None
    if level is not None:
        return level
    from skimage.filters import threshold_otsu

    return float(threshold_otsu(heat))  # type: ignore[no-untyped-call]


def _length(outline: Points) -> float:
    return float(np.hypot(*np.diff(outline, axis=0).T).sum())


def _line_width(photo: Pixels, per_side: int = _WIDTHS_PER_SIDE) -> int:
    """Return the width of a line that is as easy to see, and no heavier, on a thumbnail and on a poster."""
    shorter_side: int = min(photo.shape[:2])
    return max(1, round(shorter_side / per_side))


def _corners(box: Sequence[float]) -> Floats:
    """The closed line through the outermost pixels of a half-open box, as (4, 2) points."""
    x0, y0, x1, y1 = _as_numbers(box, (4,), "each of boxes", "four numbers (x0, y0, x1, y1)")
    if x1 <= x0 or y1 <= y0:
        raise OverlayError(f"boxes holds {tuple(box)}, which is empty; give (x0, y0, x1, y1) with x0 < x1 and y0 < y1.")
    right, bottom = max(x0, x1 - 1), max(y0, y1 - 1)
    return np.array([(x0, y0), (right, y0), (right, bottom), (x0, bottom)], dtype=np.float64)


def _polygon(points: NDArray[Any]) -> Floats:
    return _as_numbers(points, (*np.shape(points)[:1], 2), "each of contours", "(K, 2) points (x, y)")


def _stroke(photo: NDArray[Any], lines: Sequence[Floats], color: Color, width: int | None) -> Pixels:
    """Closed, smooth lines on a copy of the photo; all halos first, so that none cuts through a line."""
    import cv2

    canvas = np.array(_as_photo(photo), order="C")
    width = _line_width(canvas) if width is None else _as_width(width)
    color = _as_color(color)
    halo_color = _BLACK if np.dot(color, (0.299, 0.587, 0.114)) > 64 else _WHITE
    full_width = width + 2 * max(1, width // 2)
    # A line along the border would lose its outer half: move it in until all of it lies on the picture.
    last = np.subtract(canvas.shape[1::-1], 1)
    margin = np.minimum(full_width / 2, last / 2)
    fixed = [np.rint(np.clip(line, margin, last - margin) * 2**_SUBPIXEL_BITS).astype(np.int32) for line in lines]
    for shade, thickness in ((halo_color, full_width), (color, width)):
        for points in fixed:
            cv2.polylines(
                canvas,
                [points],
                isClosed=True,
                color=shade,
                thickness=thickness,
                lineType=cv2.LINE_AA,
                shift=_SUBPIXEL_BITS,
            )
    return canvas


# ----------------------------------------------------------------------------------------------- what came in


def _as_layers(
    photo: NDArray[Any], heatmap: NDArray[Any], seen: NDArray[Any] | None
) -> tuple[Pixels, NDArray[np.floating[Any]], Bools | None]:
    """The three that lie on one another, checked, and of one size."""
    photo, heat = _as_photo(photo), _as_heat(heatmap)
    if heat.shape != photo.shape[:2]:
        raise OverlayError(
            f"heatmap is {_told(heatmap)}, photo is {_told(photo)}; resize the heatmap to {photo.shape[:2]}."
        )
    if seen is None or (isinstance(seen, np.ndarray) and seen.dtype == np.bool_ and seen.shape == heat.shape):
        return photo, heat, seen
    raise OverlayError(f"seen must be a {heat.shape} bool array, as large as the photo, or None; got {_told(seen)}.")


def _as_photo(photo: NDArray[Any]) -> Pixels:
    fits = isinstance(photo, np.ndarray) and photo.ndim == 3 and photo.shape[2] == 3 and photo.size
    if fits and photo.dtype == np.uint8:
        return photo
    is_float = fits and np.issubdtype(photo.dtype, np.floating)
    advice = "; if it lies in [0, 1], give (photo * 255).round().astype('uint8')" if is_float else ""
    raise OverlayError(f"photo must be a (H, W, 3) uint8 RGB array, got {_told(photo)}{advice}.")


def _as_heat(heatmap: NDArray[Any]) -> NDArray[np.floating[Any]]:
    """Return the heatmap as it came, after checking that it is one."""
    fits = isinstance(heatmap, np.ndarray) and heatmap.ndim == 2 and heatmap.size
    if not fits or not np.issubdtype(heatmap.dtype, np.floating):
        raise OverlayError(f"heatmap must be a (H, W) float array in [0, 1], got {_told(heatmap)}.")
    low, high = float(heatmap.min()), float(heatmap.max())
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):  # NaN compares false with everything
        found = "NaN" if np.isnan(low) else f"values from {low:g} to {high:g}"
        raise OverlayError(f"heatmap must lie in [0, 1] but holds {found}; normalise it first.")
    return heatmap


def _as_floats(heat: NDArray[Any]) -> Floats:
    """Return a heatmap in float64, with what rounding left outside [0, 1] put back."""
    return np.clip(heat.astype(np.float64), 0, 1)


def _as_fraction(value: float, name: str) -> float:
    if isinstance(value, Real) and 0 <= value <= 1:
        return float(value)
    raise OverlayError(f"{name} must be a number in [0, 1], got {value!r}.")


def _as_width(width: int) -> int:
    if isinstance(width, int | np.integer) and width >= 1:
        return int(width)
    raise OverlayError(f"width must be a whole number of pixels, 1 or more, or None; got {width!r}.")


def _as_color(color: Color) -> Color:
    red, green, blue = _as_numbers(color, (3,), "color", "three numbers (red, green, blue) from 0 to 255")
    if min(red, green, blue) < 0 or max(red, green, blue) > 255:
        raise OverlayError(f"color must be three numbers (red, green, blue) from 0 to 255, got {color!r}.")
    return round(red), round(green), round(blue)


def _as_numbers(values: object, shape: tuple[int, ...], name: str, wanted: str) -> Floats:
    """Any sequence of finite numbers of that shape, as an array."""
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise OverlayError(f"{name} must be {wanted}, got {values!r}.")
    return array.astype(np.float64)


def _told(value: object) -> str:
    """What came, in a few words: an array by dtype and shape, anything else by its type."""
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else add_article(type(value).__name__)
