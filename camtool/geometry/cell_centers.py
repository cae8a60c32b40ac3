"""Centers of the cells of a grid in the model's input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Placement of a layer's grid on the model's input: each cell at the center of its receptive field, or stretched.
Placement: TypeAlias = Literal["centers", "stretch"]


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
    field: float = dataclasses.field(default=math.nan, compare=False)

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

    def agree_with(self, other: CellCenters, grid: Sequence[int]) -> bool:
        """Return whether the outermost cells of a grid lie at most a stride, along each axis, from where others say."""
        return all(
            abs(first.offset + first.stride * cell - second.offset - second.stride * cell) <= abs(first.stride)
            for first, second, cells in zip(self.axes, other.axes, grid, strict=True)
            for cell in (0, cells - 1)
        )

    def covers_input(self, grid: Sequence[int]) -> bool:
        """Return whether the cells of a grid lie where those of a grid that is stretched over the input do."""
        return self.agree_with(CellCenters.stretch(grid, self.size), grid)

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
