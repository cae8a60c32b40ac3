"""Centers of the cells of a grid in the model's input, and maps resampled from one grid to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.maps import resize

__all__ = ["AxisCenters", "CellCenters", "Placement", "resample", "scale_to_cells"]

Placement: TypeAlias = Literal["centers", "stretch"]
"""Placement of a layer's grid on the model's input: each cell at the center of its receptive field, or stretched."""


@dataclass(frozen=True)
class AxisCenters:
    """The cells of a grid along one axis of the model's input. Pixel ``i`` has its center at ``i + 0.5``.

    Attributes:
        offset: The center of the first cell, in pixels.
        stride: The distance between the centers of neighboring cells, in pixels.
        field: The length of the receptive field of a cell, in pixels; ``nan`` if unknown.
    """

    offset: float
    stride: float
    field: float = float("nan")

    def list_centers(self, cells: int) -> NDArray[np.float64]:
        """Return the centers of the first cells, in pixels of the input."""
        return self.offset + self.stride * np.arange(cells, dtype=np.float64)


@dataclass(frozen=True)
class CellCenters:
    """The centers of a layer's cells in the model's input.

    Attributes:
        size: Size of the model's input in pixels, ``(H, W)`` for images.
        axes: The cells along each axis.
    """

    size: tuple[int, ...]
    axes: tuple[AxisCenters, ...]

    @classmethod
    def stretch(cls, grid: Sequence[int], size: Sequence[int]) -> CellCenters:
        """Return the centers of a grid that is stretched over the input."""
        strides = [pixels / cells for cells, pixels in zip(grid, size, strict=True)]
        return cls(tuple(size), tuple(AxisCenters(stride / 2, stride) for stride in strides))

    def mirror(self, grid: Sequence[int]) -> CellCenters:
        """Return the centers of the cells of a mirrored input, after the map is mirrored back along the last axis."""
        last = self.axes[-1]
        first = self.size[-1] - last.offset - last.stride * (grid[-1] - 1)
        return replace(self, axes=(*self.axes[:-1], replace(last, offset=first)))

    def compute_shift(self, grid: Sequence[int]) -> tuple[float, ...]:
        """Return how far the middle of the grid lies from the middle of the input, in pixels, along each axis.

        Negative numbers are shifts up and to the left.
        """
        return tuple(
            axis.offset + axis.stride * (cells - 1) / 2 - pixels / 2
            for axis, cells, pixels in zip(self.axes, grid, self.size, strict=True)
        )


def scale_to_cells(centers: CellCenters | None, grid: Sequence[int], size: Sequence[int]) -> list[tuple[float, float]]:
    """Return the offset and the stride along each axis, in cells of the grid that is stretched over the input.

    Args:
        centers: The centers; None for a grid that is stretched, whose offset is 0.5 and whose stride is 1.
        grid: Number of cells along each axis.
        size: Size of the model's input in pixels.
    """
    if centers is None:
        return [(0.5, 1.0)] * len(grid)
    return [
        (axis.offset * cells / pixels, axis.stride * cells / pixels)
        for axis, cells, pixels in zip(centers.axes, grid, size, strict=True)
    ]


def resample(maps: Tensor, centers: CellCenters | None, grid: Sequence[int], onto: CellCenters | None) -> Tensor:
    """Return maps on another grid, each of whose cells gets the value at its own place in the input.

    Values are linear between the centers of the old cells, and constant beyond the outermost ones.

    Args:
        maps: ``(N, *old)``, floating.
        centers: Where the old cells lie; None for a grid that covers the input evenly.
        grid: Number of new cells along each axis.
        onto: Where the new cells lie; None likewise.

    Returns:
        ``(N, *grid)``.
    """
    if (centers is None and onto is None) or (centers == onto and maps.shape[1:] == tuple(grid)):
        return resize(maps, grid)
    # Lengths in shares of the input, so that a grid without centers needs no size.
    spans = zip(_scale_to_input(centers, maps.shape[1:]), _scale_to_input(onto, grid), strict=True)
    for axis, ((offset, stride), (new_offset, new_stride)) in enumerate(spans, 1):
        places = new_offset + new_stride * torch.arange(grid[axis - 1], dtype=torch.float64)
        cell = ((places - offset) / stride).clamp(0, maps.shape[axis] - 1)
        weights = (1 - (cell[:, None] - torch.arange(maps.shape[axis])).abs()).clamp_min(0)
        maps = (maps.movedim(axis, -1) @ weights.T.to(maps)).movedim(-1, axis)
    return maps


def _scale_to_input(centers: CellCenters | None, grid: Sequence[int]) -> list[tuple[float, float]]:
    """Return the offset and the stride along each axis, in lengths of the input."""
    if centers is None:
        return [(0.5 / cells, 1 / cells) for cells in grid]
    return [
        (axis.offset / pixels, axis.stride / pixels) for axis, pixels in zip(centers.axes, centers.size, strict=True)
    ]
