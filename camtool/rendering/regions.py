"""Regions of a photo: hot ones, whose boxes and outlines are found and drawn, and those that the user names.

Every photo is ``(H, W, 3)`` uint8 RGB, every heatmap ``(H, W)`` float in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.arguments.checks import check_count, check_number
from camtool.arguments.message_parts import suggest_names
from camtool.errors import OverlayError
from camtool.rendering import pixel_checks
from camtool.rendering.pixel_checks import Bools, Color, Floats, Pixels, Points
from camtool.rendering.text_drawing import load_font_for, shorten_text
from camtool.warning_codes import HeatPlaces

# A line of 1/320 of the shorter side is 1 px on a thumbnail and 3 px on a photo of 1000 px: as easy to see on both.
_WIDTHS_PER_SIDE = 320

_SUBPIXEL_BITS = 4  # OpenCV draws to a sixteenth of a pixel

# Colors darker than this (luma, 0 to 255) get a white halo, others a black one.
_DARK = 64

# Weights of red, green and blue in the brightness of a color (ITU-R BT.601).
_LUMA = (0.299, 0.587, 0.114)

# Subtracted from the threshold of contours: scikit-image looks for more than its level, regions for the level itself.
_HAIR = 1e-9

_WHITE, _BLACK, _INK = (255, 255, 255), (0, 0, 0), (20, 22, 26)


# Name → box of a place in percent of width and height. ``"border"`` is all that lies outside of its box.
PLACES: dict[str, tuple[float, float, float, float]] = {
    "top-left": (0, 0, 25, 25),
    "top-right": (75, 0, 100, 25),
    "bottom-left": (0, 75, 25, 100),
    "bottom-right": (75, 75, 100, 100),
    "center": (25, 25, 75, 75),
    "border": (10, 10, 90, 90),
}


@dataclass(frozen=True)
class PhotoRegion:
    """A box on photos of any size, or all that lies outside of it.

    Attributes:
        box: ``(x0, y0, x1, y1)``.
        in_percent: The numbers are percent of the photo's width and height; otherwise pixels.
        is_outside: The region is what lies outside of the box.
    """

    box: tuple[float, float, float, float]
    in_percent: bool
    is_outside: bool = False

    @classmethod
    def parse(cls, text: str) -> PhotoRegion:
        """Return the region of a text: a name in :data:`PLACES`, ``"10,20,300,200"`` or ``"0%,80%,30%,100%"``.

        Raises:
            OverlayError: The text is none of these, or the box is empty.
        """
        name = text.strip().lower()
        if name in PLACES:
            return cls(PLACES[name], in_percent=True, is_outside=name == "border")
        parts = [part.strip() for part in name.split(",")]
        kinds = {part.endswith("%") for part in parts}
        try:
            x0, y0, x1, y1 = (float(part.removesuffix("%")) for part in parts)
        except ValueError:
            kinds = set()
        most = 100.0 if kinds == {True} else np.inf
        if len(kinds) != 1 or not (0 <= x0 < x1 <= most and 0 <= y0 < y1 <= most):
            raise OverlayError(
                f"region {text!r} is unknown.{suggest_names(name, PLACES)} Give one of {', '.join(PLACES)}; or a box "
                "x0,y0,x1,y1 in pixels, or in percent of the photo, e.g. 0%,80%,30%,100%."
            )
        return cls((x0, y0, x1, y1), in_percent=kinds == {True})

    def to_mask(self, height: int, width: int) -> Bools:
        """Return the region on a photo, ``(H, W)``.

        Raises:
            OverlayError: No pixel of the photo is in the region.
        """
        scale = np.array([width, height] * 2) / 100 if self.in_percent else 1.0
        x0, y0, x1, y1 = np.rint(np.array(self.box) * scale).astype(int)
        mask = np.full((height, width), self.is_outside)
        mask[y0:y1, x0:x1] = not self.is_outside
        if not mask.any():
            raise OverlayError(f"region {self.box} has no pixel of the photo of {width} x {height}.")
        return mask


def compute_heat_share(heatmap: NDArray[Any], region: str | Sequence[float] | NDArray[Any]) -> float:
    """Return the share of the heat that lies in a region, from 0 to 1; NaN for a heatmap of zeros.

    Args:
        heatmap: ``(H, W)`` float in [0, 1]; with a mask any shape.
        region: A name in :data:`PLACES`; a box ``(x0, y0, x1, y1)`` in pixels, half-open; a text that
            :meth:`PhotoRegion.parse` reads; or a mask of the heatmap's shape, True in the region.

    Raises:
        OverlayError: The region is none of these, or has no pixel.
    """
    mask, total = to_mask(region, heatmap.shape), float(heatmap.sum(dtype=np.float64))
    return float(heatmap[mask].sum(dtype=np.float64)) / total if total else float("nan")


def to_mask(region: str | Sequence[float] | NDArray[Any], shape: tuple[int, ...]) -> Bools:
    """Return a region as :func:`compute_heat_share` takes it as a mask of a heatmap's shape.

    Raises:
        OverlayError: The region is none of these, or has no pixel.
    """
    if not isinstance(region, np.ndarray):
        if len(shape) != 2:
            raise OverlayError(f"region must be a mask of the shape {shape} here: the input is no photo.")
        parsed = PhotoRegion.parse(region if isinstance(region, str) else ",".join(map(str, region)))
        region = parsed.to_mask(shape[0], shape[1])
    if region.shape != shape or region.dtype != bool:
        raise OverlayError(f"region must be a boolean mask {shape}, as the heatmap; got {region.dtype} {region.shape}.")
    return region


def find_boxes(heatmap: NDArray[Any], *, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
    """Return the bounding box of each connected region with heat at or above a threshold.

    Pixels that touch at a corner are connected.

    Args:
        heatmap: (H, W) float in [0, 1].
        threshold: Lowest heat of a region, in [0, 1]; None takes Otsu's threshold of this heatmap.

    Returns:
        ``(x0, y0, x1, y1)`` in pixels, half-open (``heatmap[y0:y1, x0:x1]`` is the box). The region with most pixels
        comes first. Empty for a constant heatmap, which has no regions.

    Raises:
        OverlayError: ``heatmap`` is not (H, W) float in [0, 1], or ``threshold`` is not in [0, 1].
    """
    import cv2

    heat, level = _find_level(heatmap, threshold)
    if level is None:
        return []
    _, _, stats, _ = cv2.connectedComponentsWithStats((heat >= level).astype(np.uint8), connectivity=8)
    regions = sorted(stats[1:].tolist(), key=lambda region: (-region[4], region[1], region[0]))
    return [(x, y, x + width, y + height) for x, y, width, height, _ in regions]


def find_contours(heatmap: NDArray[Any], *, threshold: float | None = None) -> list[Points]:
    """Return the outline of each connected region with heat at or above a threshold, to parts of a pixel.

    The regions are those of `find_boxes`. A hole in a region has its own outline. A region that touches the border of
    the heatmap is closed along it.

    Args:
        heatmap: (H, W) float in [0, 1].
        threshold: Lowest heat of a region, in [0, 1]; None takes Otsu's threshold of this heatmap.

    Returns:
        (K, 2) float32 closed polygons of ``(x, y)``; the last point equals the first. The longest outline comes first.
        ``(0, 0)`` is the center of the first pixel, as in matplotlib's ``imshow``. Empty for a constant heatmap.

    Raises:
        OverlayError: ``heatmap`` is not (H, W) float in [0, 1], or ``threshold`` is not in [0, 1].
    """
    from skimage.measure import find_contours as trace_contours

    heat, level = _find_level(heatmap, threshold)
    if level is None:
        return []
    rows_columns = trace_contours(np.pad(heat, 1, constant_values=-1), level - _HAIR, fully_connected="high")  # type: ignore[no-untyped-call]
    last = np.subtract(heat.shape[::-1], 1)
    outlines = [np.clip(line[:, ::-1] - 1, 0, last).astype(np.float32) for line in rows_columns]
    return sorted(outlines, key=lambda outline: float(np.hypot(*np.diff(outline, axis=0).T).sum()), reverse=True)


def draw_boxes(
    photo: NDArray[Any],
    boxes: Sequence[Sequence[float]],
    *,
    color: Color = _WHITE,
    width: int | None = None,
    labels: Sequence[str] | None = None,
) -> Pixels:
    """Draw boxes on a copy of the photo, with a halo that makes them visible on any background.

    Args:
        photo: (H, W, 3) uint8 RGB.
        boxes: ``(x0, y0, x1, y1)`` in pixels, half-open, as `find_boxes` returns them.
        color: (red, green, blue), each 0 to 255. The halo is black, or white around a dark color.
        width: Width of the line, in pixels; None fits it to the photo.
        labels: Text for each box, drawn beside it. Labels that are too long are shortened before their last word.
            A photo too small for letters gets none.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        OverlayError: ``photo``, a box, ``color``, ``width`` or ``labels`` is not as described.
    """
    drawn = _draw_outlines(photo, [_get_corners(box) for box in boxes], color, width)
    if labels is None:
        return drawn
    if isinstance(labels, str) or len(labels) != len(boxes):
        raise OverlayError(f"labels must be {len(boxes)} strings, one for each box; got {labels!r}.")
    corners = [(float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in boxes]
    return _draw_labels(drawn, corners, labels, paper=_WHITE, ink=_INK)


def grow_to_one_pixel(box: tuple[float, float, float, float], times: int = 1) -> tuple[float, float, float, float]:
    """Return the box, ``times`` as large, and of one pixel where it is empty, as boxes of detectors may be."""
    x0, y0, x1, y1 = (times * edge for edge in box)
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def draw_contours(
    photo: NDArray[Any], contours: Sequence[NDArray[Any]], *, color: Color = _WHITE, width: int | None = None
) -> Pixels:
    """Draw polygons on a copy of the photo, with a halo that makes them visible on any background.

    Args:
        photo: (H, W, 3) uint8 RGB.
        contours: (K, 2) polygons of ``(x, y)``, as `find_contours` returns them.
        color: (red, green, blue), each 0 to 255. The halo is black, or white around a dark color.
        width: Width of the line, in pixels; None fits it to the photo.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        OverlayError: ``photo``, a polygon, ``color`` or ``width`` is not as described.
    """
    return _draw_outlines(photo, [_check_polygon(points) for points in contours], color, width)


def _find_level(heatmap: NDArray[Any], threshold: float | None) -> tuple[Floats, float | None]:
    """Return the heat, clipped, and the lowest of regions; None for a constant heatmap, which has no regions."""
    heat = pixel_checks.clip_heatmap(pixel_checks.check_heatmap(heatmap))
    check_number("threshold", threshold, least=0, most=1, optional=True, error=OverlayError)
    if pixel_checks.is_constant_heat(heat):
        return heat, None
    if threshold is not None:
        return heat, float(threshold)
    from skimage.filters import threshold_otsu

    return heat, float(threshold_otsu(heat))  # type: ignore[no-untyped-call]


def choose_line_width(photo: Pixels, per_side: int = _WIDTHS_PER_SIDE) -> int:
    """Return a width in pixels for lines on a photo, in proportion to its shorter side."""
    shorter_side: int = min(photo.shape[:2])
    return max(1, round(shorter_side / per_side))


def _get_corners(box: Sequence[float]) -> Floats:
    """Return the corners of the outermost pixels of a half-open box, as (4, 2) points."""
    x0, y0, x1, y1 = pixel_checks.to_finite_array(box, (4,), "each of boxes", "four numbers (x0, y0, x1, y1)")
    if x1 <= x0 or y1 <= y0:
        raise OverlayError(f"boxes holds {tuple(box)}, which is empty; pass (x0, y0, x1, y1) with x0 < x1 and y0 < y1.")
    right, bottom = max(x0, x1 - 1), max(y0, y1 - 1)
    return np.array([(x0, y0), (right, y0), (right, bottom), (x0, bottom)], dtype=np.float64)


def _check_polygon(points: NDArray[Any]) -> Floats:
    return pixel_checks.to_finite_array(points, (*np.shape(points)[:1], 2), "each of contours", "(K, 2) points (x, y)")


def _draw_outlines(photo: NDArray[Any], lines: Sequence[Floats], color: Color, width: int | None) -> Pixels:
    """Draw closed lines on a copy of the photo; all halos first, so that no halo covers a line."""
    import cv2

    canvas = np.array(pixel_checks.check_photo(photo), order="C")
    check_count("width", width, optional=True, error=OverlayError)
    width = choose_line_width(canvas) if width is None else int(width)
    color = pixel_checks.check_color(color)
    halo_color = _BLACK if np.dot(color, _LUMA) > _DARK else _WHITE
    full_width = width + 2 * max(1, width // 2)
    # Half of a line along the border would be outside the photo. It is moved inside.
    last = np.subtract(canvas.shape[1::-1], 1)
    margin = np.minimum(full_width / 2, last / 2)
    fixed = [np.rint(np.clip(line, margin, last - margin) * 2**_SUBPIXEL_BITS).astype(np.int32) for line in lines]
    for shade, thickness in ((halo_color, full_width), (color, width)):
        for points in fixed:
            cv2.polylines(canvas, [points], True, shade, thickness, cv2.LINE_AA, _SUBPIXEL_BITS)
    return canvas


# Colors of a ring and of a cross. Neither is in the default color map, whose heat lies below them.
_DRAWN_COLOR, _MEASURED_COLOR = _WHITE, (0, 224, 255)

# Shorter side of a photo in radii of a mark, and the smallest radius in pixels.
_SIDE_PER_MARK, _SMALLEST_MARK = 28, 6


def choose_mark_radius(photo: Pixels) -> float:
    """Return a radius in pixels for marks on a photo, in proportion to its shorter side."""
    return max(_SMALLEST_MARK, float(min(photo.shape[:2])) / _SIDE_PER_MARK)


def draw_places(photo: NDArray[Any], places: HeatPlaces) -> Pixels:
    """Draw a ring where heat is drawn, a cross where it was measured, and an arrow between, on a copy of the photo.

    Args:
        photo: (H, W, 3) uint8 RGB.
        places: Both points in pixels. One that lies in the padding around the photo is moved to its edge.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    canvas = np.array(pixel_checks.check_photo(photo), order="C")
    radius = choose_mark_radius(canvas)
    last = np.array(canvas.shape[1::-1], np.float64)
    margin = np.minimum(radius * 1.3, last / 2)
    start, end = (np.clip(np.array(point), margin, last - margin) for point in places)
    step, distance = end - start, float(np.linalg.norm(end - start))
    if distance > 4 * radius:  # else the marks themselves tell the direction
        way = step / distance
        _draw_arrow(canvas, start + 1.3 * radius * way, end - 1.7 * radius * way, radius)
    draw_ring(canvas, start, radius)
    draw_cross(canvas, end, radius)
    return canvas


def draw_ring(canvas: Pixels, center: Floats, radius: float) -> None:
    """Draw the mark of the place where heat is drawn, in place."""
    import cv2

    for shade, width in ((_INK, max(5, 0.54 * radius)), (_DRAWN_COLOR, max(2, 0.24 * radius))):
        cv2.circle(canvas, _to_fixed(center), round(radius * 2**_SUBPIXEL_BITS), shade, *_fit_stroke(width))


def draw_cross(canvas: Pixels, center: Floats, radius: float) -> None:
    """Draw the mark of the pixels on which a cell depends, in place."""
    import cv2

    arms = [0.8 * radius * np.array(arm) for arm in ((1, 1), (1, -1))]
    for shade, thickness in ((_INK, 0.72), (_MEASURED_COLOR, 0.36)):
        for arm in arms:
            cv2.line(canvas, _to_fixed(center - arm), _to_fixed(center + arm), shade, *_fit_stroke(radius * thickness))


def _draw_arrow(canvas: Pixels, start: Floats, end: Floats, radius: float) -> None:
    import cv2

    tip = radius / np.linalg.norm(end - start)
    for shade, thickness in ((_INK, 0.46), (_DRAWN_COLOR, 0.18)):
        stroke = _fit_stroke(radius * thickness)
        cv2.arrowedLine(canvas, _to_fixed(start), _to_fixed(end), shade, *stroke, float(tip))


def _to_fixed(point: Floats) -> tuple[int, int]:
    """Return a point as OpenCV takes it, whose pixels have their centers at whole numbers."""
    x, y = np.rint((point - 0.5) * 2**_SUBPIXEL_BITS).astype(int).tolist()
    return x, y


def _fit_stroke(width: float) -> tuple[int, int, int]:
    """Return the last arguments of OpenCV's functions that draw a smooth line: width, type and subpixel bits."""
    import cv2

    return max(1, round(width)), cv2.LINE_AA, _SUBPIXEL_BITS


# ``(x0, y0, x1, y1)`` in pixels.
Box: TypeAlias = tuple[float, float, float, float]

# The height of letters is this part of the shorter side of the image, within these limits in pixels.
_LETTERS_PER_SIDE, _MIN_LETTERS, _MAX_LETTERS = 28, 11, 36

# A tag that would cover more of the image's height hides more than it explains: it is left out.
_MAX_PART_OF_HEIGHT = 1 / 3

# Pixels between the line of a box and its tag.
_GAP = 2


def _draw_labels(image: Pixels, boxes: Sequence[Box], labels: Sequence[str], *, paper: Color, ink: Color) -> Pixels:
    """Write labels beside boxes, on a copy of an image.

    A tag is above its box, below it if there is no space above, or else inside. It never leaves the image. Labels that
    are too long are shortened before their last word. An image too small for letters gets none.

    Args:
        image: ``(H, W, 3)`` uint8 RGB.
        boxes: ``(x0, y0, x1, y1)`` in pixels.
        labels: Text for each box.
        paper: Color of the tags.
        ink: Color of letters and edges.

    Returns:
        ``(H, W, 3)`` uint8 RGB.
    """
    canvas = Image.fromarray(image)
    size = min(_MAX_LETTERS, max(_MIN_LETTERS, round(min(image.shape[:2]) / _LETTERS_PER_SIDE)))
    for box, label in zip(boxes, labels, strict=True):
        _draw_label(canvas, load_font_for(label, size), box, label, (paper, ink))
    return np.array(canvas)


def _draw_label(canvas: Image.Image, font: Any, box: Box, label: str, colors: tuple[Color, Color]) -> None:
    from PIL import ImageDraw

    image_width, image_height = canvas.size
    padding = max(2, round(font.size / 4))
    label = shorten_text(label, font, image_width - 2 * padding - 1, keep_last_word=True)
    width, height = round(font.getlength(label)) + 2 * padding, sum(font.getmetrics()) + padding
    if not label or height > _MAX_PART_OF_HEIGHT * image_height:
        return
    left = min(max(0, round(box[0])), image_width - width - 1)
    top = _choose_top(box, height, image_height)
    pen = ImageDraw.Draw(canvas)
    pen.rectangle((left, top, left + width, top + height), fill=colors[0], outline=colors[1])
    pen.text((left + padding, top + height / 2), label, fill=colors[1], font=font, anchor="lm")


def _choose_top(box: Box, height: int, image_height: int) -> int:
    """Return the top of a tag: above the box, below it, or inside."""
    above, below = round(box[1]) - _GAP - height - 1, round(box[3]) + _GAP
    if above >= 0:
        return above
    return below if below + height < image_height else min(max(0, round(box[1]) + _GAP), image_height - height - 1)
