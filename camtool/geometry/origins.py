"""Origins: where the pixels of an image lie in its file and in the world, so that a heatmap can be stored beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from camtool.errors import ImageError

# Suffixes of files that hold a heatmap as numbers, with the place of its pixels in the world.
HEATMAP_SUFFIXES: tuple[str, ...] = (".nii", ".nii.gz", ".tif", ".tiff")


@dataclass(frozen=True, eq=False)
class Origin:
    """Place of an image's pixels in the file that it was read from, and in the world.

    A subclass for a format that can hold a heatmap overrides :meth:`write_heatmap` and names its ``suffixes``.

    Attributes:
        name: The file, for messages.
        shape: ``(H, W)`` or ``(D, H, W)``, the size of the image as it was read.
        spacing: The distance between neighboring pixels along each axis of ``shape``, in ``unit``; ``None`` if the file
            does not say.
    """

    name: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...] | None

    format: ClassVar[str]
    unit: ClassVar[str] = "mm"
    suffixes: ClassVar[tuple[str, ...]] = ()

    def write_heatmap(self, path: Path, heatmap: NDArray[np.float32]) -> None:
        """Write a heatmap of this image's ``shape`` to a file with one of the ``suffixes``.

        Raises:
            ImageError: The format holds no heatmaps, or the size is another.
        """
        raise ImageError(f"{path}: a heatmap cannot be stored as {self.format}; give a name that ends in .png.")


def fit_to_origin(heatmap: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return a heatmap at the size of its image; that of a photo which was reduced while it was read is enlarged."""
    if heatmap.ndim != 2 or len(shape) != 2 or heatmap.shape == shape:
        return heatmap
    import numpy as np
    from PIL import Image

    return np.asarray(Image.fromarray(heatmap).resize((shape[1], shape[0]), Image.Resampling.BILINEAR))


def find_heatmap_suffix(path: Path) -> str | None:
    """Return which of :data:`HEATMAP_SUFFIXES` a file name ends with, in lower case; ``None`` for others."""
    return next((suffix for suffix in reversed(HEATMAP_SUFFIXES) if path.name.lower().endswith(suffix)), None)
