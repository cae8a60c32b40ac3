"""GeoTIFF: the coordinate reference system and the transform of a TIFF, kept and written again with heatmaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from camtool.errors import ImageError
from camtool.geometry.origins import Origin, fit_to_origin
from camtool.inputs.orientation import ORIENTATION_TAG

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Tags of the GeoTIFF 1.1 specification, with the types in which they are written.
_SCALE, _TIEPOINT, _MATRIX, _KEYS, _DOUBLES, _TEXTS = 33550, 33922, 34264, 34735, 34736, 34737
_TAG_TYPES = {_SCALE: "d", _TIEPOINT: "d", _MATRIX: "d", _KEYS: "H", _DOUBLES: "d", _TEXTS: "s"}
# Keys of the GeoTIFF 1.1 specification, section 7.
_RASTER_TYPE, _CITATION = 1025, 1026
_GEODETIC, _GEODETIC_CITATION = 2048, 2049
_PROJECTED, _PROJECTED_CITATION = 3072, 3073
_PIXEL_IS_POINT, _USER_DEFINED = 2, 32767


@dataclass(frozen=True, eq=False)
class TiffOrigin(Origin):
    """Place of a TIFF image in the world.

    Attributes:
        tags: The GeoTIFF tags, by number; empty for a TIFF without.
        crs: The coordinate reference system, ``"EPSG:32633"``, or the name that the file gives; ``None`` without one.
        transform: ``(a, b, c, d, e, f)`` as of rasterio: ``x = a column + b row + c``, ``y = d column + e row + f``
            of the upper left corner of a pixel; ``None`` without one.
    """

    tags: Mapping[int, Any]
    crs: str | None
    transform: tuple[float, float, float, float, float, float] | None

    format: ClassVar[str] = "TIFF"
    unit: ClassVar[str] = "units of the coordinate reference system"
    suffixes: ClassVar[tuple[str, ...]] = (".tif", ".tiff")

    def write_heatmap(self, path: Path, heatmap: NDArray[np.float32]) -> None:
        """Write a heatmap as a float32 TIFF of the file's size, with its GeoTIFF tags.

        Raises:
            ImageError: The heatmap is that of a stack.
        """
        import tifffile

        from camtool.rendering.image_writing import open_atomically

        if heatmap.ndim != len(self.shape):
            raise ImageError(f"{path}: the heatmap is {heatmap.shape}, but the image of {self.name} is {self.shape}.")
        heatmap = fit_to_origin(heatmap, self.shape)
        buffer = BytesIO()
        tags = [(tag, _TAG_TYPES[tag], _count(value), value, True) for tag, value in self.tags.items()]
        tifffile.imwrite(
            buffer, heatmap, photometric="minisblack", compression="zlib", metadata=None, extratags=tags, software=False
        )
        with open_atomically(path) as stream:
            stream.write(buffer.getvalue())


def build_tiff_origin(tags: Mapping[int, Any], name: str, shape: tuple[int, ...]) -> TiffOrigin | None:
    """Return the origin of a TIFF from its tags by number.

    ``None`` if the file asks to be shown rotated: GeoTIFF has no meaning for that, and a heatmap would be misplaced.
    """
    if tags.get(ORIENTATION_TAG, 1) != 1:
        return None
    plain_tags = {tag: _to_plain(tags[tag]) for tag in _TAG_TYPES if tag in tags}
    keys = _parse_keys(plain_tags)
    transform = _find_transform(plain_tags, keys)
    spacing = None
    if transform is not None and len(shape) == 2:
        a, b, _, d, e, _ = transform
        spacing = (float(np.hypot(b, e)), float(np.hypot(a, d)))
    return TiffOrigin(name, shape, spacing, plain_tags, _find_crs(keys), transform)


def _to_plain(value: Any) -> Any:
    """Return the value of a tag as Pillow or tifffile reads it: a text, or a tuple of numbers."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else tuple(value) if hasattr(value, "__len__") else (value,)


def _count(value: Any) -> int:
    return 0 if isinstance(value, str) else len(value)


def _parse_keys(tags: Mapping[int, Any]) -> dict[int, int | str]:
    """Return the whole numbers and texts of the key directory, by key."""
    directory, texts = tags.get(_KEYS, ()), str(tags.get(_TEXTS, ""))
    entries: dict[int, int | str] = {}
    for start in range(4, len(directory) - 3, 4):
        key, location, count, value = (int(number) for number in directory[start : start + 4])
        if location == 0:
            entries[key] = value
        elif location == _TEXTS:
            entries[key] = texts[value : value + count].rstrip("|\0")
    return entries


def _find_crs(keys: Mapping[int, int | str]) -> str | None:
    for key in (_PROJECTED, _GEODETIC):
        code = keys.get(key)
        if isinstance(code, int) and 0 < code < _USER_DEFINED:
            return f"EPSG:{code}"
        if code == _USER_DEFINED:
            break
    names = (keys.get(key) for key in (_PROJECTED_CITATION, _CITATION, _GEODETIC_CITATION))
    return next((str(name) for name in names if name), None)


def _find_transform(
    tags: Mapping[int, Any], keys: Mapping[int, int | str]
) -> tuple[float, float, float, float, float, float] | None:
    if len(tags.get(_MATRIX, ())) == 16:
        matrix = tags[_MATRIX]
        a, b, c, d, e, f = (float(matrix[index]) for index in (0, 1, 3, 4, 5, 7))
    elif len(tags.get(_SCALE, ())) >= 2 and len(tags.get(_TIEPOINT, ())) == 6:
        across, down = (float(scale) for scale in tags[_SCALE][:2])
        column, row, _, x, y, _ = (float(coordinate) for coordinate in tags[_TIEPOINT])
        a, b, c, d, e, f = across, 0.0, x - column * across, 0.0, -down, y + row * down
    else:
        return None
    if keys.get(_RASTER_TYPE) == _PIXEL_IS_POINT:
        # The coordinates are those of the centers of pixels.
        c, f = c - (a + b) / 2, f - (d + e) / 2
    return a, b, c, d, e, f
