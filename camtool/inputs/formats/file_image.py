"""File images: the values of an image or a volume as its file holds them, and how they become an image of 8 bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.errors import ImageError
from camtool.geometry.origins import Origin
from camtool.inputs.formats.contrast import Contrast, find_range
from camtool.warning_codes import MapWarning

# Channels of a gray image and of an RGB image.
_COLORS = (1, 3)


@dataclass(frozen=True, eq=False)
class FileImage:
    """Image or volume of a file, as :func:`camtool.open_image` returns it. ``explain`` takes it as an image.

    Attributes:
        name: The file, for messages.
        values: ``(H, W, C)``, or ``(D, H, W, C)`` of a volume, in the file's own numbers, e.g. Hounsfield units.
        contrast: Which values are black and white; ``None`` if neither the file nor the user says so.
        is_color: The channels are gray or RGB, so the values can be shown as they are.
        is_scaled: The user chose the contrast, so models get values in [0, 1] rather than the file's own numbers.
        slices: What one of the slices is called in messages.
        origin: Where the pixels lie in the world.
        notes: What the user should know about the reading, one sentence each.
        opacity: ``(..., H, W, 1)`` in [0, 1]: what is not opaque is shown on white; ``None`` if all is opaque.
    """

    name: str
    values: NDArray[Any] = field(repr=False)
    contrast: Contrast | None
    is_color: bool = True
    is_scaled: bool = False
    slices: str = "slices"
    origin: Origin | None = field(default=None, repr=False)
    notes: tuple[MapWarning, ...] = ()
    opacity: NDArray[np.float32] | None = field(default=None, repr=False)

    @property
    def is_volume(self) -> bool:
        """True if there are several slices."""
        return self.values.ndim == 4

    @property
    def channels(self) -> int:
        """Number of bands, or of colors."""
        return int(self.values.shape[-1])

    @property
    def size(self) -> tuple[int, int]:
        """``(W, H)`` in pixels, as of PIL images."""
        return int(self.values.shape[-2]), int(self.values.shape[-3])

    def to_unit(self) -> NDArray[np.float32]:
        """Return the values in [0, 1], from black to white.

        Raises:
            ImageError: Nothing says which values are black and white.
        """
        return self._get_contrast().apply(self.values, self.opacity)

    def _get_contrast(self) -> Contrast:
        if self.contrast is None:
            low, high = find_range(self.values)
            raise ImageError(
                f"{self.name} holds {self.values.dtype} from {low:g} to {high:g}, and nothing says which of these are "
                "black and white; pass percentiles=(2, 98) or window=(center, width) to camtool.open_image (on the "
                "command line --percentiles, --window)."
            )
        return self.contrast

    def to_model_values(self) -> NDArray[np.float32]:
        """Return ``(C, H, W)`` or ``(C, D, H, W)`` for a transform: in [0, 1] if the user chose the contrast."""
        values = self.to_unit() if self.is_scaled else self.values.astype(np.float32)
        return np.ascontiguousarray(np.moveaxis(values, -1, 0))

    def to_photo(self) -> Image.Image:
        """Return an RGB image of 8 bits.

        Raises:
            ImageError: There are several slices, bands that are no colors, or nothing says what is black and white.
        """
        if self.is_volume:
            raise ImageError(self._describe_slices())
        if not self.is_color or self.channels not in _COLORS:
            raise ImageError(self._describe_bands())
        levels = self._get_contrast().to_levels(self.values, self.opacity)
        return Image.fromarray(levels[..., 0] if self.channels == 1 else levels).convert("RGB")

    def draw(self) -> NDArray[np.uint8]:
        """Return ``(H, W, 3)`` or ``(D, H, W, 3)`` uint8 for display: colors, or the mean of other bands in gray."""
        contrast = self.contrast
        if contrast is None:
            low, high = find_range(self.values)
            contrast = Contrast((low,), (high,))
        unit = contrast.apply(self.values, self.opacity)
        if not self.is_color or self.channels not in _COLORS:
            unit = unit.mean(-1, keepdims=True)
        return np.rint(np.broadcast_to(unit, (*unit.shape[:-1], 3)) * 255).astype(np.uint8)

    def _describe_slices(self) -> str:
        count = len(self.values)
        return (
            f"{self.name} holds {count} {self.slices}, and the model takes one image; choose one with slice=, from 0 "
            f"to {count - 1}, or slice='middle': camtool.open_image(path, slice={count // 2}), or --slice {count // 2} "
            "on the command line."
        )

    def _describe_bands(self) -> str:
        return (
            f"{self.name} has {self.channels} bands, and an image has 1 (gray) or 3 (red, green, blue). Choose the "
            "bands, from 1: camtool.open_image(path, bands=(4, 3, 2)), or --bands 4,3,2 on the command line. A model "
            "whose first layer takes all bands gets them all. tifffile.imread(path) returns all bands as an array."
        )


def build_assumed_contrast(low: float, high: float, what: str) -> tuple[Contrast, MapWarning]:
    """Return the contrast from the lowest to the highest value of a file that names none, and a note for the user."""
    note = MapWarning(
        f"The file does not say which values are black and white, so its {what} were stretched from {low:g} to "
        f"{high:g}; to choose, pass window=(center, width) or percentiles=(2, 98) to camtool.open_image (on the "
        "command line --window, --percentiles).",
        "assumed-contrast",
    )
    return Contrast((low,), (high,)), note
