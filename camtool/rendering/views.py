"""Views: how an input and its heatmap are displayed, one class for each kind of input.

A :class:`Photo` may have been cropped and resized for the model. A :class:`Signal`, a :class:`Volume` and a
:class:`Clip` are shown as the model got them. All have the same methods, so an explanation works with any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from camtool import maps
from camtool.errors import CamtoolError
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.origins import Origin
from camtool.geometry.resampling import build_interpolation_matrix
from camtool.hooks.structures.caches import cached_property
from camtool.rendering import contact_sheet, overlay, regions, signal_plots
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.pixel_checks import Pixels

Map: TypeAlias = NDArray[np.float32]

# Longer side, in pixels, that small photos are enlarged to: on one of 32 or 64 pixels no overlay can be seen.
_READABLE_SIDE = 320


class View(ABC):
    """Displayable form of one input, on which heatmaps are drawn.

    A heatmap has the input's shape without the channels: ``(H, W)``, ``(L,)``, ``(D, H, W)`` or ``(T, H, W)``.
    Drawings are ``(H, W, 3)`` uint8.

    Attributes:
        kind: Kind of the input: ``"photo"``, ``"signal"``, ``"volume"`` or ``"clip"``.
        geometry: Crop and resize from the photo to the model's input; ``None`` for other kinds of input.
        origin: Where the pixels lie in the file and in the world; ``None`` if that is unknown.
    """

    kind: ClassVar[str]
    geometry: Geometry | None = None
    origin: Origin | None = None

    @property
    @abstractmethod
    def size(self) -> tuple[int, ...]:
        """Shape of a heatmap."""

    @abstractmethod
    def draw_overlay(
        self, heatmap: Map, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Pixels:
        """Draw the input with a heatmap over it.

        Args:
            heatmap: Values in [0, 1], of this view's ``size``.
            alpha: Opacity of the color at full heat, 0 to 1; the default is that of :func:`camtool.rendering.blend`.
            colormap: Name, or matplotlib color map; see :func:`camtool.rendering.colormaps.get_palette`.
        """

    @abstractmethod
    def draw_masked(self, heatmap: Map) -> Pixels:
        """Draw the input multiplied by the heatmap."""

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Mask of this view's ``size``: the part that reached the model. Only photos may have other parts."""
        return np.ones(self.size, np.bool_)

    def to_heatmap(self, raw: Map, centers: CellCenters | None = None) -> Map:
        """Return a raw map ``(*grid)`` as a heatmap in [0, 1], linear between the centers of the grid's cells.

        Args:
            raw: The values of the cells.
            centers: Where the cells lie in the model's input. By default the grid is stretched over the input.
        """
        limits = maps.find_limits(raw)
        if limits is None:
            return np.zeros(self.size, np.float32)
        return maps.normalize(_stretch_over_input(raw - limits[0], self.size, centers))

    def draw_signs(self, raw: Map, centers: CellCenters | None = None, *, alpha: float | None = None) -> Pixels:
        """Draw a photo with a raw map of both signs over it.

        Raises:
            CamtoolError: The input is not a photo.
        """
        raise self._build_missing_error("signed overlay")

    @property
    def enlargement(self) -> int:
        """Factor by which the input is shown and saved larger: more than 1 for small photos."""
        return 1

    def enlarge(self) -> View:
        """Return the view at the size in which it is shown and saved."""
        return self

    def draw_frames(self, heatmap: Map, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP) -> Pixels:
        """Draw every frame of a clip, or slice of a volume, with its heatmap over it: ``(T, H, W, 3)``.

        Raises:
            CamtoolError: The input is neither a clip nor a volume.
        """
        raise self._build_missing_error("frames")

    def find_boxes(self, heatmap: Map, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
        """Return boxes around the hot regions of a photo, the largest first.

        Raises:
            CamtoolError: The input is not a photo.
        """
        raise self._build_missing_error("boxes")

    def find_contours(self, heatmap: Map, threshold: float | None = None) -> list[Map]:
        """Return outlines of the hot regions of a photo, the longest first.

        Raises:
            CamtoolError: The input is not a photo.
        """
        raise self._build_missing_error("contours")

    @property
    def photo(self) -> Pixels:
        """The photo that the user gave, upright, ``(H, W, 3)`` uint8.

        Raises:
            CamtoolError: The input is not a photo.
        """
        raise self._build_missing_error("photo")

    def for_detector(self, preparation: Any) -> View:
        """Return the view for maps of a detector's layers: detectors resize photos themselves.

        Args:
            preparation: Module of the detector that resizes the photos.

        Raises:
            CamtoolError: The input is not a photo.
        """
        raise self._build_missing_error("layers of a detector")

    def _build_missing_error(self, what: str) -> CamtoolError:
        return CamtoolError(f"a {self.kind} has no {what}; use overlay(), or heatmap, which has the shape {self.size}.")


class Photo(View):
    """Photo that reached the model completely or in part.

    Attributes:
        photo: ``(H, W, 3)`` uint8, upright.
        geometry: Crop and resize from the photo to the model's input.
        origin: Where the photo's pixels lie in its file and in the world; ``None`` if that is unknown.
    """

    kind = "photo"
    geometry: Geometry

    def __init__(self, photo: Pixels | Callable[[], Pixels], geometry: Geometry, origin: Origin | None = None) -> None:
        self._source, self.geometry, self.origin = photo, geometry, origin

    @cached_property
    def photo(self) -> Pixels:
        """``(H, W, 3)`` uint8, upright. A function that was given in its place runs when somebody first looks."""
        if callable(self._source):
            self._source = self._source()
        return self._source

    @property
    def size(self) -> tuple[int, ...]:
        """``(H, W)``."""
        return self.geometry.photo

    @property
    def seen(self) -> NDArray[np.bool_]:
        """``(H, W)`` bool: the part that reached the model."""
        return self.geometry.seen

    def to_heatmap(self, raw: Map, centers: CellCenters | None = None) -> Map:
        """Return a raw map ``(h, w)`` as a heatmap ``(H, W)`` in [0, 1]; 0 in the unseen part."""
        limits = maps.find_limits(raw)
        if limits is None:
            return np.zeros(self.size, np.float32)
        # Beyond the outermost centers values fade to 0, which is the lowest value then.
        placed = self.geometry.place_on_photo(torch.from_numpy(raw - limits[0]), centers).numpy()
        return maps.normalize(placed, None if self.geometry.sees_all else self.geometry.seen, out=placed)

    def draw_overlay(
        self, heatmap: Map, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Pixels:
        """Draw the photo with the heatmap over it; the unseen part is gray."""
        return overlay.blend(self.photo, heatmap, alpha=alpha, colormap=colormap, seen=self.seen)

    def draw_signs(self, raw: Map, centers: CellCenters | None = None, *, alpha: float | None = None) -> Pixels:
        """Draw the photo with a raw map ``(h, w)`` over it, in red above and in blue below 0; the unseen part is gray.

        Args:
            raw: The values of the cells; those of a map that is not finite count as 0.
            centers: As for :meth:`to_heatmap`.
            alpha: Opacity at the largest magnitude.
        """
        values = np.zeros(self.size, np.float32)
        if np.isfinite(raw).all() and raw.any():
            values = self.geometry.place_on_photo(torch.from_numpy(raw / np.abs(raw).max()), centers).numpy()
            values /= np.abs(values).max() or 1
        return overlay.blend_signs(self.photo, values, alpha=alpha, seen=self.seen)

    @property
    def enlargement(self) -> int:
        """Largest whole factor with which the longer side is at most 320 pixels; at least 1."""
        return max(1, _READABLE_SIDE // max(self.size))

    def enlarge(self) -> View:
        """Return the photo with each pixel repeated; maps are interpolated at the new size, so they are smooth."""
        factor, geometry = self.enlargement, self.geometry
        if factor == 1:
            return self
        top, left, bottom, right = (factor * edge for edge in geometry.box)
        size = (factor * geometry.photo[0], factor * geometry.photo[1])
        pixels = self.photo.repeat(factor, axis=0).repeat(factor, axis=1)
        return Photo(pixels, replace(geometry, photo=size, box=(top, left, bottom, right)))

    def for_detector(self, preparation: Any) -> View:
        """Return the photo with the geometry of the detector's layers."""
        return Photo(lambda: self.photo, self.geometry.resize_for_detector(preparation), self.origin)

    def draw_masked(self, heatmap: Map) -> Pixels:
        """Draw the product of photo and heatmap."""
        return overlay.multiply(self.photo, heatmap, seen=self.seen)

    def find_boxes(self, heatmap: Map, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
        """Return boxes around the hot regions; see :func:`camtool.rendering.find_boxes`."""
        return regions.find_boxes(heatmap, threshold=threshold)

    def find_contours(self, heatmap: Map, threshold: float | None = None) -> list[Map]:
        """Return outlines of the hot regions; see :func:`camtool.rendering.find_contours`."""
        return regions.find_contours(heatmap, threshold=threshold)


@dataclass(frozen=True, eq=False)
class Signal(View):
    """Values over time, drawn as lines with one panel per channel.

    Attributes:
        values: ``(C, L)`` float32.
    """

    kind = "signal"
    values: Map

    @property
    def size(self) -> tuple[int, ...]:
        """``(L,)``."""
        return self.values.shape[1:]

    def draw_overlay(
        self, heatmap: Map, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Pixels:
        """Draw the lines in the colors of the heatmap, and the heatmap as a band below them."""
        return signal_plots.draw_signal(self.values, heatmap, alpha=alpha, colormap=colormap)

    def draw_masked(self, heatmap: Map) -> Pixels:
        """Draw the lines; the opacity of each point is its heat."""
        return signal_plots.draw_faded_signal(self.values, heatmap)


@dataclass(frozen=True, eq=False)
class _ImageStack(View):
    """Sequence of images, drawn as a contact sheet.

    Attributes:
        images: ``(T, H, W, 3)`` uint8.
        origin: Where the pixels lie in the file and in the world; ``None`` if that is unknown.
        unit: Name of one image in captions.
        max_tiles: Largest number of images on the sheet.
    """

    images: Pixels
    origin: Origin | None = None
    unit: ClassVar[str]
    max_tiles: ClassVar[int]

    @property
    def size(self) -> tuple[int, ...]:
        """``(T, H, W)``."""
        return self.images.shape[:3]

    def draw_frames(self, heatmap: Map, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP) -> Pixels:
        """Draw every image with its heatmap over it, ``(T, H, W, 3)``; equal heat has equal color in all."""
        return signal_plots.blend_frames(self.images, heatmap, alpha=alpha, colormap=colormap)

    def draw_overlay(
        self, heatmap: Map, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Pixels:
        """Draw a sheet of images evenly spaced from the first to the last, with their heatmaps over them."""
        blend = partial(signal_plots.blend_frames, alpha=alpha, colormap=colormap)
        return contact_sheet.draw_contact_sheet(self._build_tiles(heatmap), blend, colormap=colormap)

    def draw_masked(self, heatmap: Map) -> Pixels:
        """Draw a sheet of images multiplied by their heatmaps."""
        return contact_sheet.draw_contact_sheet(self._build_tiles(heatmap), signal_plots.multiply_frames)

    def _build_tiles(self, heatmap: Map) -> list[contact_sheet.Tile]:
        count = len(self.images)
        parts = min(count, self.max_tiles)
        # The middle of each of so many equal parts: so the first and the last image stand for as many as the others.
        middles = [(2 * part + 1) * count // (2 * parts) for part in range(parts)]
        return [contact_sheet.Tile(self.images[i], heatmap[i], f"{self.unit} {i}") for i in middles]


class Clip(_ImageStack):
    """Frames of a video, ``(T, H, W, 3)``, drawn as a contact sheet."""

    kind, unit, max_tiles = "clip", "frame", 16


class Volume(_ImageStack):
    """Slices of a volume, ``(D, H, W, 3)``, drawn as a contact sheet that begins with a maximum projection."""

    kind, unit, max_tiles = "volume", "slice", 10

    def _build_tiles(self, heatmap: Map) -> list[contact_sheet.Tile]:
        projection = contact_sheet.Tile(self.images.max(0), heatmap.max(0), "maximum of all slices", is_large=True)
        return [projection, *super()._build_tiles(heatmap)]


def _stretch_over_input(raw: Map, size: Sequence[int], centers: CellCenters | None) -> Map:
    """Return a map on a finer grid, interpolated axis by axis as maps on photos are."""
    finer: NDArray[Any] = raw
    axes = [None] * raw.ndim if centers is None else centers.axes
    for axis, (cells, points) in enumerate(zip(raw.shape, size, strict=True)):
        weights = build_interpolation_matrix(cells, 0.0, float(points), points, axes[axis], points).numpy()
        finer = np.moveaxis(np.tensordot(weights, finer, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(finer, np.float32)
