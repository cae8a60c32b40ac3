"""What a person sees of one input, and how a map lies on it: one small class for each kind of input.

A :class:`Photo` may have been cut and scaled on its way to the model; a :class:`Signal`, a :class:`Volume` and a
:class:`Clip` are shown as the model got them. All have the same few methods, so an explanation need not know which it
has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from camtool import maps, overlay, plots
from camtool.errors import CamtoolError
from camtool.geometry import Geometry, interpolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.overlay import Colormap

    Pixels = NDArray[np.uint8]
    Floats = NDArray[np.float32]

__all__ = ["Clip", "Photo", "Signal", "View", "Volume"]

_READABLE = 320
"""Up to so many pixels a side, photos are enlarged to be looked at."""


class View(ABC):
    """What a person sees of one input, and how a map lies on it.

    A heatmap has the input's own shape, without the channels: ``(H, W)``, ``(L,)``, ``(D, H, W)`` or ``(T, H, W)``.
    What is drawn is always ``(H, W, 3)`` uint8.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> tuple[int, ...]:
        """The shape of a heatmap."""

    @abstractmethod
    def overlay(self, heatmap: Floats, *, alpha: float | None = None, colormap: Colormap = "heat") -> Pixels:
        """The input with a heatmap over it.

        Args:
            heatmap: In [0, 1], of this view's ``size``.
            alpha: How much the colors cover where the map is hot, 0 to 1; by default as in
                :func:`camtool.overlay.blend`.
            colormap: A name or a color map of matplotlib; see :func:`camtool.overlay.palette`.
        """

    @abstractmethod
    def masked(self, heatmap: Floats) -> Pixels:
        """What is left of the input where it is multiplied by the heatmap."""

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Booleans of this view's ``size``: the part of the input that reached the model; all of it, but of a photo."""
        return np.ones(self.size, np.bool_)

    def heatmap(self, raw: Floats) -> Floats:
        """A raw map ``(*grid)`` as a heatmap in [0, 1], linear between the centres of the grid's cells."""
        return maps.normalise(_spread(raw, self.size))

    @property
    def enlargement(self) -> int:
        """The factor by which it is shown and saved larger: more than 1 for a small photo."""
        return 1

    def enlarged(self) -> View:
        """Return the same, as large as it is shown and saved."""
        return self

    def frames(self, heatmap: Floats, *, alpha: float | None = None, colormap: Colormap = "heat") -> Pixels:
        """Every frame of a clip, or slice of a volume, with its heatmap over it: ``(T, H, W, 3)``.

        Raises:
            CamtoolError: It is no clip and no volume.
        """
        raise self._lacks("frames")

    def boxes(self, heatmap: Floats, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
        """Boxes around the hot regions of a photo, the largest first.

        Raises:
            CamtoolError: It is no photo.
        """
        raise self._lacks("boxes")

    def contours(self, heatmap: Floats, threshold: float | None = None) -> list[Floats]:
        """Outlines of the hot regions of a photo, the longest first.

        Raises:
            CamtoolError: It is no photo.
        """
        raise self._lacks("contours")

    @property
    def photo(self) -> Pixels:
        """``(H, W, 3)``, the photo as it was given, upright.

        Raises:
            CamtoolError: It is no photo.
        """
        raise self._lacks("photo")

    @property
    def geometry(self) -> Geometry | None:
        """How the photo became the model's input; ``None`` for what is no photo."""
        return None

    def inside(self, preparation: Any) -> View:
        """The same for maps of the layers of a detector, which prepares its photos itself.

        Args:
            preparation: :func:`camtool.modules.preparation_of` the detector.

        Raises:
            CamtoolError: It is no photo.
        """
        raise self._lacks("place in a detector")

    def _lacks(self, what: str) -> CamtoolError:
        return CamtoolError(
            f"a {self.kind} has no {what}; overlay() and heatmap, of shape {self.size}, show where the model looked."
        )


class Photo(View):
    """A photo, of which the model saw the whole or a part.

    Attributes:
        photo: ``(H, W, 3)`` uint8, upright.
        geometry: How it became the model's input.
    """

    kind = "photo"

    def __init__(self, photo: Pixels, geometry: Geometry) -> None:
        self._photo, self._geometry = photo, geometry

    @property
    def photo(self) -> Pixels:
        """``(H, W, 3)``, as it was given, upright."""
        return self._photo

    @property
    def geometry(self) -> Geometry:
        """How it became the model's input."""
        return self._geometry

    @property
    def size(self) -> tuple[int, ...]:
        """``(H, W)``."""
        return self._geometry.photo

    @property
    def seen(self) -> NDArray[np.bool_]:
        """``(H, W)`` booleans: the part that reached the model."""
        return self._geometry.seen

    def heatmap(self, raw: Floats) -> Floats:
        """Return a raw map ``(h, w)`` as a heatmap ``(H, W)`` in [0, 1]; 0 where the model did not look."""
        placed = self._geometry.place(torch.from_numpy(raw)).numpy()
        return maps.normalise(placed, None if self._geometry.sees_all else self._geometry.seen, out=placed)

    def overlay(self, heatmap: Floats, *, alpha: float | None = None, colormap: Colormap = "heat") -> Pixels:
        """The photo with the heatmap over it; what the model did not see is grey."""
        return overlay.blend(self._photo, heatmap, alpha=alpha, colormap=colormap, seen=self.seen)

    @property
    def enlargement(self) -> int:
        """So many times as large that the longer side comes near 320 pixels, but never beyond; a whole number."""
        return max(1, _READABLE // max(self.size))

    def enlarged(self) -> View:
        """Return the photo with each pixel repeated; maps are laid on it anew, so that they are smooth."""
        times, whole = self.enlargement, self._geometry
        if times == 1:
            return self
        top, left, bottom, right = (times * edge for edge in whole.box)
        size = (times * whole.photo[0], times * whole.photo[1])
        pixels = self._photo.repeat(times, axis=0).repeat(times, axis=1)
        return Photo(pixels, replace(whole, photo=size, box=(top, left, bottom, right)))

    def inside(self, preparation: Any) -> View:
        """The photo with the geometry that the detector's layers see."""
        return Photo(self._photo, self._geometry.inside(preparation))

    def masked(self, heatmap: Floats) -> Pixels:
        """The photo times the heatmap."""
        return overlay.multiply(self._photo, heatmap, seen=self.seen)

    def boxes(self, heatmap: Floats, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
        """Boxes around the hot regions; see :func:`camtool.overlay.boxes`."""
        return overlay.boxes(heatmap, threshold=threshold)

    def contours(self, heatmap: Floats, threshold: float | None = None) -> list[Floats]:
        """Outlines of the hot regions; see :func:`camtool.overlay.contours`."""
        return overlay.contours(heatmap, threshold=threshold)


@dataclass(frozen=True, eq=False)
class Signal(View):
    """Values over time, shown as lines, one panel a channel.

    Attributes:
        values: ``(C, L)`` float32.
    """

    kind = "signal"
    values: Floats

    @property
    def size(self) -> tuple[int, ...]:
        """``(L,)``."""
        return self.values.shape[1:]

    def overlay(self, heatmap: Floats, *, alpha: float | None = None, colormap: Colormap = "heat") -> Pixels:
        """The lines in the colours of the heatmap, and below them the heatmap as a band."""
        return plots.lines(self.values, heatmap, alpha=alpha, colormap=colormap)

    def masked(self, heatmap: Floats) -> Pixels:
        """The lines, as strong as the heatmap is: what is left is what counted."""
        return plots.faded_lines(self.values, heatmap)


@dataclass(frozen=True, eq=False)
class _Stack(View):
    """Pictures behind or after one another.

    Attributes:
        pictures: ``(T, H, W, 3)`` uint8.
    """

    pictures: Pixels
    unit: ClassVar[str]
    most_tiles: ClassVar[int]

    @property
    def size(self) -> tuple[int, ...]:
        """``(T, H, W)``."""
        return self.pictures.shape[:3]

    def frames(self, heatmap: Floats, *, alpha: float | None = None, colormap: Colormap = "heat") -> Pixels:
        """Every picture with its heatmap over it, ``(T, H, W, 3)``; one heat has one colour throughout."""
        return plots.blended(self.pictures, heatmap, alpha=alpha, colormap=colormap)

    def overlay(self, heatmap: Floats, *, alpha: float | None = None, colormap: Colormap = "heat") -> Pixels:
        """A sheet of pictures from the first to the last, each with its heatmap over it."""
        finish = partial(plots.blended, alpha=alpha, colormap=colormap)
        return plots.sheet(self._tiles(heatmap), finish, colormap=colormap)

    def masked(self, heatmap: Floats) -> Pixels:
        """The same sheet with each picture multiplied by its heatmap."""
        return plots.sheet(self._tiles(heatmap), plots.multiplied)

    def _tiles(self, heatmap: Floats) -> list[plots.Tile]:
        count = len(self.pictures)
        parts = min(count, self.most_tiles)
        middles = [(2 * part + 1) * count // (2 * parts) for part in range(parts)]
        return [plots.Tile(self.pictures[i], heatmap[i], f"{self.unit} {i}") for i in middles]


class Clip(_Stack):
    """Frames of a video, ``(T, H, W, 3)``, shown as a contact sheet."""

    kind, unit, most_tiles = "clip", "frame", 16


class Volume(_Stack):
    """Slices of a volume, ``(D, H, W, 3)``, shown as a sheet that begins with what is brightest and hottest of all."""

    kind, unit, most_tiles = "volume", "slice", 10

    def _tiles(self, heatmap: Floats) -> list[plots.Tile]:
        projection = plots.Tile(self.pictures.max(0), heatmap.max(0), "maximum of all slices", is_large=True)
        return [projection, *super()._tiles(heatmap)]


def _spread(raw: Floats, size: Sequence[int]) -> Floats:
    """A map on a finer grid, axis by axis, with the weights that lay a map on a photo."""
    spread: NDArray[Any] = raw
    for axis, (cells, points) in enumerate(zip(raw.shape, size, strict=True)):
        weights = interpolation(cells, 0.0, float(points), points).numpy()
        spread = np.moveaxis(np.tensordot(weights, spread, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(spread, np.float32)
