"""Geometry of a model's input: the rectangle of the photo that it shows, and the way back for heatmaps and boxes.

The rectangle is a box in continuous photo coordinates: pixel edges are at 0, 1, ..., W, and pixel ``i`` has its center
at ``i + 0.5``. A box that exceeds the photo means padding. A box whose left is greater than its right means a
horizontal flip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.errors import GeometryError
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import average_cells, build_interpolation_matrix, find_pixels_inside
from camtool.hooks.structures.caches import cached_property


@dataclass(frozen=True)
class Geometry:
    """The part of a photo that the model's input shows.

    Start with ``Geometry.whole(H, W)``. The methods ``resize``, ``crop``, ``pad``, ``center_crop`` and ``flip`` each
    return a new geometry with one more step. Sizes are (height, width).

    Attributes:
        photo: Size (H, W) of the photo in pixels.
        size: Size (h, w) of the model's input.
        box: Edges of the input (top, left, bottom, right) in pixels of the photo.
    """

    photo: tuple[int, int]
    size: tuple[int, int]
    box: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        """Check that a heatmap can be placed."""
        if min(*self.photo, *self.size) < 1:
            raise GeometryError(f"photo and size must be at least 1 x 1 pixel, got {self.photo} and {self.size}.")
        top, left, bottom, right = self.box
        if not np.isfinite(self.box).all() or top == bottom or left == right:
            raise GeometryError(f"box must be finite and not empty, got {self.box}.")

    @classmethod
    @lru_cache(maxsize=32)
    def whole(cls, height: int, width: int) -> Geometry:
        """Return the geometry of an input that is the photo itself."""
        return cls((height, width), (height, width), (0.0, 0.0, float(height), float(width)))

    def resize(self, size: int | Sequence[int] | None, max_size: int | None = None) -> Geometry:
        """Scale the input to a size, with the rule of torchvision's ``Resize``.

        Args:
            size: (h, w), or one number for the shorter side (the longer one is truncated to an integer), or None:
                the longer side becomes ``max_size``.
            max_size: Largest length of the longer side. Not together with (h, w).

        Raises:
            GeometryError: ``size`` and ``max_size`` contradict each other.
        """
        return replace(self, size=_compute_resized(self.size, size, max_size))

    def crop(self, top: int, left: int, height: int, width: int) -> Geometry:
        """Crop to a rectangle in pixels of the current input. The parts beyond the input are padding."""
        first_column, first_row = self.to_photo_point(left, top)
        last_column, last_row = self.to_photo_point(left + width, top + height)
        return replace(self, size=(height, width), box=(first_row, first_column, last_row, last_column))

    def pad(self, left: int, top: int, right: int, bottom: int) -> Geometry:
        """Pad each side by a number of pixels of the current input; negative numbers crop."""
        height, width = self.size
        # A crop that exceeds the input pads it.
        return self.crop(-top, -left, height + top + bottom, width + left + right)

    def center_crop(self, size: int | Sequence[int]) -> Geometry:
        """Crop (h, w), or a square, from the center, with rounding and padding as in torchvision's ``CenterCrop``."""
        height, width = _to_pair(size)
        # torchvision pads the left and the top by the smaller half, and rounds half pixels to even.
        down, across = max(height - self.size[0], 0), max(width - self.size[1], 0)
        padded = self.pad(across // 2, down // 2, (across + 1) // 2, (down + 1) // 2)
        top = round((padded.size[0] - height) / 2)
        left = round((padded.size[1] - width) / 2)
        return padded.crop(top, left, height, width)

    def flip(self) -> Geometry:
        """Flip left and right."""
        top, left, bottom, right = self.box
        return replace(self, box=(top, right, bottom, left))

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """(H, W), True where the center of a photo pixel is inside the box. Read-only, because it is computed once."""
        top, left, bottom, right = self.box
        height, width = self.photo
        seen = np.logical_and.outer(find_pixels_inside(top, bottom, height), find_pixels_inside(left, right, width))
        seen.flags.writeable = False
        return seen

    @property
    def sees_all(self) -> bool:
        """Check that the input shows the whole photo: the centers of the outermost pixels are inside the box."""
        top, left, bottom, right = self.box
        spans = (top, bottom, self.photo[0]), (left, right, self.photo[1])
        return all(min(start, stop) <= 0.5 and max(start, stop) >= pixels - 0.5 for start, stop, pixels in spans)

    def compute_scale(self) -> float:
        """Return how many pixels of the input a pixel of the photo becomes, along the axis that has more of them."""
        top, left, bottom, right = self.box
        return max(self.size[0] / abs(bottom - top), self.size[1] / abs(right - left))

    def resize_for_detector(self, transform: Any) -> Geometry:
        """Resize and pad as a detector of torchvision does inside the model.

        Args:
            transform: The detector's own transform, from
                :func:`camtool.hooks.structures.modules.find_detector_transform`.
        """
        if transform.fixed_size is not None:
            width, height = transform.fixed_size
        else:
            shorter, longer = min(self.size), max(self.size)
            scale = min(transform.min_size[-1] / shorter, transform.max_size / longer)
            height, width = (int(side * scale) for side in self.size)
        # Detectors pad their batches to a multiple of 32 pixels, so that all strides divide them.
        below, beside = (-side % transform.size_divisible for side in (height, width))
        return self.resize((height, width)).pad(0, 0, beside, below)

    def to_photo_point(self, x: float, y: float) -> tuple[float, float]:
        """Convert a point from pixels of the input to ``(x, y)`` in pixels of the photo."""
        top, left, bottom, right = self.box
        return left + (right - left) / self.size[1] * x, top + (bottom - top) / self.size[0] * y

    def to_photo_box(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """Convert a box ``(x0, y0, x1, y1)`` from pixels of the input to pixels of the photo."""
        corners = self.to_photo_point(*box[:2]), self.to_photo_point(*box[2:])
        # Sorted, because a flipped input swaps left and right.
        (x0, x1), (y0, y1) = (sorted(along_axis) for along_axis in zip(*corners, strict=True))
        return x0, y0, x1, y1

    def to_input_box(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """Convert a box ``(x0, y0, x1, y1)`` from pixels of the photo to pixels of the input."""
        top, left, bottom, right = self.box
        across, down = self.size[1] / (right - left), self.size[0] / (bottom - top)
        x0, x1 = sorted(across * (x - left) for x in box[::2])
        y0, y1 = sorted(down * (y - top) for y in box[1::2])
        return x0, y0, x1, y1

    def to_input_mask(self, mask: Tensor, size: tuple[int, int]) -> Tensor:
        """Resample a mask over the photo to a grid over the input.

        Args:
            mask: ``(mh, mw)``, floating, of any size, stretched over the photo.
            size: Size of the grid, which is stretched over the input.

        Returns:
            ``(*size)``, the mean of the mask in each cell. Padding counts as 0.
        """
        top, left, bottom, right = self.box
        down, across = mask.shape[0] / self.photo[0], mask.shape[1] / self.photo[1]
        return average_cells(mask, [(down * top, down * bottom), (across * left, across * right)], size)

    def place_on_photo(self, maps: Tensor, centers: CellCenters | None = None, *, holds: bool = False) -> Tensor:
        """Resize maps from the layer's grid onto the photo, by bilinear interpolation. The result is differentiable.

        Args:
            maps: (..., gh, gw) of any floating dtype, finite.
            centers: Where the cells lie in the input. By default the grid covers the input evenly.
            holds: As for :func:`camtool.geometry.resampling.weigh_cells`.

        Returns:
            (..., H, W) of the same dtype, on the same device; 0 at pixels that the model did not see.

        Raises:
            GeometryError: ``maps`` is no floating tensor with at least two dimensions.
        """
        if maps.ndim < 2 or not maps.is_floating_point():
            raise GeometryError(f"maps must be floating and (..., gh, gw), got {maps.dtype} {tuple(maps.shape)}.")
        top, left, bottom, right = self.box
        # At least float32, even under autocast: half precision shows as bands in the heatmap.
        with torch.autocast(maps.device.type, enabled=False):
            wide = maps if maps.dtype == torch.float64 else maps.float()
            (h, w), (height, width), (y, x) = self.size, self.photo, (None, None) if centers is None else centers.axes
            down = build_interpolation_matrix(maps.shape[-2], top, bottom, height, y, h, holds=holds).to(wide)
            across = build_interpolation_matrix(maps.shape[-1], left, right, width, x, w, holds=holds).to(wide)
            return (down @ wide @ across.T).to(maps.dtype)


def _to_pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return (h, w) of a size that may be one number, alone or in a list."""
    sides = tuple(size) if isinstance(size, Iterable) else (size,)
    if len(sides) not in (1, 2):
        raise GeometryError(f"size must be one number or (h, w), got {size!r}.")
    return int(sides[0]), int(sides[-1])


def _compute_resized(old: tuple[int, int], size: int | Sequence[int] | None, max_size: int | None) -> tuple[int, int]:
    """Return the size (h, w) after torchvision's ``resize``."""
    # The order of the integer operations is torchvision's: another one is off by a pixel for some sizes.
    short, long = min(old), max(old)
    if size is None:
        if max_size is None:
            raise GeometryError("size and max_size are both None; give one of them.")
        new_short, new_long = int(max_size * short / long), max_size
    elif isinstance(size, Sized) and len(size) == 2:
        if max_size is not None:
            raise GeometryError(f"max_size={max_size} requires one number as size, got size={size!r}.")
        return _to_pair(size)
    else:
        new_short = _to_pair(size)[0]
        new_long = int(new_short * long / short)
        if max_size is not None and max_size <= new_short:
            raise GeometryError(f"max_size must be greater than size, got max_size={max_size} and size={size!r}.")
        if max_size is not None and new_long > max_size:
            new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_long, new_short) if old[1] <= old[0] else (new_short, new_long)
