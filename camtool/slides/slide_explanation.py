"""The result on a slide: one heatmap, a row for each tile, and the files that viewers open.

They are pyramids: an image in halves of its size down to a small one, as a tiled TIFF.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.checks import check_count
from camtool.arguments.libraries import import_library
from camtool.arguments.message_parts import count_warnings, format_count
from camtool.errors import ImageError
from camtool.progress import Stage, follow_each
from camtool.rendering import image_writing, overlay
from camtool.rendering.colormaps import DEFAULT_COLORMAP, Colormap
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.written_files import replace_files, replace_infinite
from camtool.slides.readers import Pixels, SlideReader, open_slide, read_scaled
from camtool.slides.tiling import allocate_on_disk

_TILE = 256
# Rows of a level that are halved at once.
_ROWS = 512

# Bytes without compression from which the offsets of 64 bits of BigTIFF are used.
_LARGEST_CLASSIC = 2**31

_MICROMETERS_PER_CENTIMETER = 10000


def build_levels(pixels: Pixels, max_side: int = 2 * _TILE) -> list[Pixels]:
    """Return an image and its halves, down to one whose longer side is at most ``max_side``. They are on disk.

    Args:
        pixels: ``(H, W)`` or ``(H, W, 3)`` uint8.
        max_side: In pixels.
    """
    levels = [pixels]
    while max(levels[-1].shape[:2]) > max_side and min(levels[-1].shape[:2]) > 1:
        levels.append(_halve(levels[-1]))
    return levels


def _halve(pixels: Pixels) -> Pixels:
    """Return the means of 2 x 2 pixels; an odd last row or column is left out."""
    height, width = (side // 2 for side in pixels.shape[:2])
    half = allocate_on_disk((height, width, *pixels.shape[2:]), np.uint8)
    for top in range(0, height, _ROWS):
        part = pixels[2 * top : 2 * min(top + _ROWS, height), : 2 * width].astype(np.uint16)
        total = part[::2, ::2] + part[1::2, ::2] + part[::2, 1::2] + part[1::2, 1::2]
        half[top : top + _ROWS] = (total + 2) // 4
    return half  # type: ignore[no-any-return]


def write_pyramid(path: Path, levels: Sequence[Pixels], mpp: float | None, description: str) -> None:
    """Write levels as a tiled TIFF, completely or not at all.

    Args:
        path: The file.
        levels: Each ``(H, W)`` or ``(H, W, 3)`` uint8, half as large as the one before.
        mpp: Micrometers per pixel of the first one; ``None`` if unknown.
        description: What the image is.

    Raises:
        ImageError: tifffile is not installed.
        OSError: The file cannot be written.
    """
    tifffile = import_library("tifffile", f"{path} is a TIFF, which needs", "'camtool[slides]'", ImageError)
    size = sum(level.size for level in levels)
    with open_atomically(path) as stream, tifffile.TiffWriter(stream, bigtiff=size > _LARGEST_CLASSIC) as file:
        for number, level in enumerate(follow_each(levels, Stage("Writing", "level"))):
            file.write(
                level,
                tile=(_TILE, _TILE),
                photometric="rgb" if level.ndim == 3 else "minisblack",
                compression="adobe_deflate",
                subfiletype=int(number > 0),  # 1: a reduced image of the first one
                description=description.encode("ascii", "backslashreplace").decode("ascii"),
                metadata=None,
                software="camtool",
                **_describe_resolution(mpp, 2**number),
            )


def _describe_resolution(mpp: float | None, factor: int) -> dict[str, Any]:
    if mpp is None:
        return {}
    density = _MICROMETERS_PER_CENTIMETER / (mpp * factor)
    return {"resolution": (density, density), "resolutionunit": "CENTIMETER"}


# The files of a slide.
NAMES = ("heat.tif", "overlay.tif", "preview.png", "tiles.jsonl", "slide.json")

# Longest side of the preview in pixels.
_PREVIEW_SIDE = 1600

# Side of the squares in which overlays are drawn.
_BLOCK = 512


@dataclass(frozen=True)
class TileRow:
    """One tile that was explained.

    Attributes:
        x: The left edge in pixels of level 0.
        y: The upper edge.
        side: The side in pixels of level 0.
        label: What is explained.
        index: The class's index; ``None`` for a target that is not about a class.
        score: The target's score in this tile.
        probability: The class's probability in this tile; ``None`` if unknown.
        warnings: Reasons not to trust the map of this tile.
        warning_codes: Their codes, in the same order.
    """

    x: int
    y: int
    side: int
    label: str
    index: int | None
    score: float
    probability: float | None
    warnings: tuple[str, ...]
    warning_codes: tuple[str, ...]


@dataclass(frozen=True)
class TileFailure:
    """One tile that could not be read or explained, at (x, y) in pixels of level 0, and why."""

    x: int
    y: int
    side: int
    reason: str


@dataclass(frozen=True, eq=False)
class SlideExplanation(image_writing.Displayable):
    """Explanation of one target on a whole slide.

    Attributes:
        path: The slide.
        label: What is explained: the class's label, or the target's.
        index: The class's index; ``None`` for a target that is not about a class.
        method: The method's name.
        layer: The layer's name; empty for a method at the input.
        heatmap: ``(h, w)`` float32 in [0, 1], on one scale for the whole slide; 0 where nothing was explained. It is on
            disk, in a temporary file.
        explained: ``(h, w)`` bool: False for background, for tiles that failed, and for what the model's preparation
            cuts off at the slide's border.
        limits: The method's own values that became 0 and 1.
        scale: Pixels of level 0 along the side of one pixel of the heatmap. The left upper corners agree.
        mpp: Micrometers per pixel of the heatmap; ``None`` if the slide does not say how large its pixels are.
        tiles: The tiles that were explained, row by row.
        skipped: The number of tiles that are background.
        failures: The tiles that could not be read or explained.
        warnings: Reasons not to trust the heatmap, with the number of tiles that each concerns.
    """

    path: str
    label: str
    index: int | None
    method: str
    layer: str
    heatmap: NDArray[np.float32]
    explained: NDArray[np.bool_] = field(repr=False)
    limits: tuple[float, float]
    scale: float
    mpp: float | None
    tiles: Sequence[TileRow] = field(repr=False)
    skipped: int
    failures: Sequence[TileFailure] = field(repr=False)
    warnings: tuple[str, ...]

    def overlay(
        self, max_side: int = _PREVIEW_SIDE, *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Pixels:
        """Return the slide, reduced, with the heatmap over it, ``(H, W, 3)`` uint8.

        Args:
            max_side: The longest side in pixels. The heatmap is halved until it fits.
            alpha: The opacity of the colors where the heatmap is 1, from 0 to 1.
            colormap: A name or a color map of matplotlib.

        Raises:
            ImageError: The slide is not there any more.
        """
        check_count("max_side", max_side, least=16)
        levels = build_levels(self._to_bytes(), max_side)
        with open_slide(self.path) as reader:
            pixels = np.empty((*levels[-1].shape, 3), np.uint8)
            self._draw(reader, levels[-1], self.scale * 2 ** (len(levels) - 1), pixels, alpha, colormap)
        return pixels

    def save(
        self, path: str | PathLike[str], *, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> Path:
        """Write the results to a folder, or the overlay to an image file; each file completely or not at all.

        A path with the suffix png, jpg or webp is that of an image, at most 1600 pixels long. A folder has no suffix,
        or exists already. In it are:

        * ``heat.tif``: the heatmap as a tiled pyramid in gray, 255 for 1. Its pixel size is stored.
        * ``overlay.tif``: the slide with the heatmap over it, as a tiled pyramid in colors.
        * ``preview.png``: the overlay, at most 1600 pixels long.
        * ``tiles.jsonl``: a line for each tile.
        * ``slide.json``: everything else.

        Args:
            path: The folder, which is created, or the image file.
            alpha: As for :meth:`overlay`.
            colormap: As for :meth:`overlay`.

        Raises:
            ImageError: The suffix is unknown, or the slide is not there any more.
            CamtoolError: A file in the folder is not as camtool wrote it, or a link leads out of it.
            OSError: A file cannot be written.
        """
        folder = Path(path)
        if folder.suffix and not folder.is_dir():
            image_writing.check_suffix(folder)
            return image_writing.write_image(folder, self.overlay(alpha=alpha, colormap=colormap))
        with replace_files(folder, NAMES):
            self._write_files(folder, alpha, colormap)
        return folder

    def _write_files(self, folder: Path, alpha: float | None, colormap: Colormap) -> None:
        about = f"camtool: {self.method} for {self.label!r}"
        heat = self._to_bytes()
        write_pyramid(folder / "heat.tif", build_levels(heat), self.mpp, about)
        pixels = allocate_on_disk((*heat.shape, 3), np.uint8)
        with open_slide(self.path) as reader:
            self._draw(reader, heat, self.scale, pixels, alpha, colormap)
        levels = build_levels(pixels)
        write_pyramid(folder / "overlay.tif", levels, self.mpp, about)
        preview = next((level for level in levels if max(level.shape) <= _PREVIEW_SIDE), levels[-1])
        image_writing.write_image(folder / "preview.png", np.asarray(preview))
        _write_text(folder / "tiles.jsonl", (_to_json(asdict(row)) for row in self.tiles))
        _write_text(folder / "slide.json", [_to_json(self._describe(), indent=2)])

    def _describe(self) -> dict[str, Any]:
        names = ("path", "label", "index", "method", "layer", "limits", "scale", "mpp", "skipped", "warnings")
        return {
            **{name: getattr(self, name) for name in names},
            "heatmap_size": self.heatmap.shape,
            "explained_tiles": len(self.tiles),
            "failures": [asdict(failure) for failure in self.failures],
        }

    def _to_bytes(self) -> Pixels:
        """Return the heatmap in steps of 1 / 255, on disk."""
        heat = allocate_on_disk(self.heatmap.shape, np.uint8)
        for top in range(0, len(heat), _BLOCK):
            heat[top : top + _BLOCK] = np.rint(255 * self.heatmap[top : top + _BLOCK])
        return heat  # type: ignore[no-any-return]

    def _draw(
        self, reader: SlideReader, heat: Pixels, scale: float, pixels: Pixels, alpha: float | None, colormap: Colormap
    ) -> None:
        """Draw the overlay into ``pixels``, square by square.

        Args:
            reader: The slide.
            heat: ``(h, w)`` uint8, the heatmap or a reduced one.
            scale: Pixels of level 0 along the side of one of its pixels.
            pixels: ``(h, w, 3)`` uint8.
            alpha: As for :meth:`overlay`.
            colormap: As for :meth:`overlay`.
        """
        height, width = heat.shape
        corners = [(top, left) for top in range(0, height, _BLOCK) for left in range(0, width, _BLOCK)]
        for top, left in follow_each(corners, Stage("Drawing", "part")):
            part = (slice(top, top + _BLOCK), slice(left, left + _BLOCK))
            values = heat[part].astype(np.float32) / 255
            photo = read_scaled(reader, scale, left, top, values.shape[1], values.shape[0])
            pixels[part] = overlay.blend(photo, values, alpha=alpha, colormap=colormap, is_part=True)

    def to_pixels(self) -> Pixels:
        """Return the overlay, which notebooks show."""
        return self.overlay()

    def __repr__(self) -> str:
        failed = f", {len(self.failures):,} failed" if self.failures else ""
        warned = f", {count_warnings(self.warnings)}" if self.warnings else ""
        return (
            f"<SlideExplanation of {self.label!r}: {self.method}, {format_count(len(self.tiles), 'tile')}, "
            f"{self.skipped:,} skipped{failed}{warned}>"
        )


def _to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON in ASCII, in which control characters are escaped; infinity and NaN become null."""
    return json.dumps(replace_infinite(value), indent=indent)


def _write_text(path: Path, lines: Iterator[str] | Sequence[str]) -> None:
    with image_writing.open_atomically(path) as stream:
        stream.writelines(f"{line}\n".encode() for line in lines)
