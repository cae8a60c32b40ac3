"""Random numbers that are equal on all machines and with all releases of NumPy.

NumPy guarantees the raw bits of PCG64, but not what ``Generator`` computes from them. Sines come from the system's
library and differ in their last bits. So all numbers are computed from raw bits by exact arithmetic, and directions are
read from a table whose rounding is far coarser than these differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

# Array of floats, in single precision throughout the demo.
Floats: TypeAlias = NDArray[np.floating[Any]]

T = TypeVar("T")

_DIRECTIONS = [(round(math.cos(angle), 6), round(math.sin(angle), 6)) for angle in map(math.radians, range(360))]


class RandomNumbers:
    """A stream of random numbers that depends on its key only.

    Args:
        *key: Integers of 0 or more; each key has its own stream.
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def draw_unit(self) -> float:
        """Draw a number in [0, 1)."""
        return float(int(self._bits.random_raw()) >> 11) * 2.0**-53

    def draw_between(self, low: float, high: float) -> float:
        """Draw a number in [low, high)."""
        return low + (high - low) * self.draw_unit()

    def draw_bool(self, probability: float) -> bool:
        """Draw True with this probability."""
        return self.draw_unit() < probability

    def draw_below(self, count: int) -> int:
        """Draw an integer in [0, count)."""
        return int(self.draw_unit() * count)

    def choose(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return choices[self.draw_below(len(choices))]

    def shuffle(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order."""
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.draw_below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed

    def draw_direction(self) -> tuple[float, float]:
        """Draw the cosine and the sine of a random angle, of whole degrees."""
        return self.choose(_DIRECTIONS)

    def draw_grid(self, *shape: int) -> Floats:
        """Draw an array of numbers in [0, 1)."""
        raw: NDArray[np.uint64] = self._bits.random_raw(math.prod(shape))
        numbers: Floats = ((raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
        return numbers

    def draw_bytes(self, *shape: int) -> NDArray[np.uint8]:
        """Draw an array of integers from 0 to 255."""
        count = math.prod(shape)
        raw: NDArray[np.uint64] = self._bits.random_raw(-(-count // 8))
        return raw.astype("<u8").view(np.uint8)[:count].reshape(shape)
