"""Slides for tests: pyramids written by tifffile, and one with objects that the demo model knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from camtool.demo.scenes import Box, draw_scene

SCENE = 128
OTHERS = ("heart", "drop", "fish", "square")


def halve(pixels: np.ndarray) -> np.ndarray:
    height, width = (side // 2 * 2 for side in pixels.shape[:2])
    even = pixels[:height, :width].astype(np.uint16)
    return ((even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2] + 2) // 4).astype(np.uint8)


def build_levels(pixels: np.ndarray, count: int) -> list[np.ndarray]:
    levels = [pixels]
    while len(levels) < count:
        levels.append(halve(levels[-1]))
    return levels


def write_slide(
    path: Path, pixels: np.ndarray, *, levels: int = 3, mpp: float | None = 0.5, compression: str | None = None
) -> list[np.ndarray]:
    """Write a tiled TIFF with reduced pages, as OpenSlide reads it; return its levels."""
    built = build_levels(pixels, levels)
    with tifffile.TiffWriter(path) as file:
        for number, level in enumerate(built):
            density = None if mpp is None else 10000 / (mpp * 2**number)
            resolution: dict[str, Any] = (
                {} if density is None else {"resolution": (density, density), "resolutionunit": "CENTIMETER"}
            )
            file.write(
                level,
                tile=(128, 128),
                photometric="rgb",
                subfiletype=int(number > 0),
                metadata=None,
                compression=compression,
                **resolution,
            )
    return built


def write_ome_slide(path: Path, pixels: np.ndarray, *, levels: int = 3, mpp: float | None = 0.5) -> list[np.ndarray]:
    """Write an OME-TIFF whose levels are sub-files, which OpenSlide does not read; return its levels."""
    built = build_levels(pixels, levels)
    size = {} if mpp is None else {"PhysicalSizeX": mpp, "PhysicalSizeY": mpp}
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(
            built[0],
            tile=(128, 128),
            photometric="rgb",
            subifds=levels - 1,
            compression="zlib",
            metadata={"axes": "YXS", **size},
        )
        for level in built[1:]:
            file.write(level, tile=(128, 128), photometric="rgb", subfiletype=1, compression="zlib")
    return built


@dataclass
class Planted:
    """A slide of white glass with a block of tissue, in which some objects are stars."""

    pixels: np.ndarray
    tissue: Box
    stars: list[Box]


def plant_objects(*, width: int = 2560, height: int = 2048, rows: int = 6, columns: int = 8) -> Planted:
    """Draw scenes side by side on glass: stars at three places, other shapes everywhere else."""
    pixels = np.full((height, width, 3), 244, np.uint8)
    left, top = 3 * SCENE + 37, 4 * SCENE + 21
    stars = []
    places = {(1, 1), (2, 6), (4, 3)}
    for row in range(rows):
        for column in range(columns):
            is_star = (row, column) in places
            label = "star" if is_star else OTHERS[(3 * row + column) % len(OTHERS)]
            scene = draw_scene(100 * row + column, classes=[label], size=SCENE)
            x, y = left + SCENE * column, top + SCENE * row
            pixels[y : y + SCENE, x : x + SCENE] = scene.image
            if is_star:
                x0, y0, x1, y1 = scene.objects[0].box
                stars.append((x + x0, y + y0, x + x1, y + y1))
    return Planted(pixels, (left, top, left + SCENE * columns, top + SCENE * rows), stars)
