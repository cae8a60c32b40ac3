"""Random numbers that are the same on every machine and with every release of NumPy.

NumPy promises the raw bits of PCG64 for ever, but not what ``Generator`` makes of them, and sines come from the
system's mathematics library. So everything here is made from raw bits by exact arithmetic, and directions come from a
table rounded far above the differences between libraries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dice", "Floats"]

Floats: TypeAlias = NDArray[np.floating[Any]]
"""Numbers in single precision throughout the demo."""

T = TypeVar("T")

_DIRECTIONS = [
    (round(math.cos(math.radians(degree)), 6), round(math.sin(math.radians(degree)), 6)) for degree in range(360)
]


class Dice:
    """A stream of random numbers of its own: nothing outside of it changes what it gives.

    Args:
        *key: Non-negative integers; each key has its own stream.
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def unit(self) -> float:
        """A number in [0, 1)."""
        return float(int(self._bits.random_raw()) >> 11) * 2.0**-53

    def between(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self.unit()

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.unit() < probability

    def below(self, count: int) -> int:
        """An integer in [0, count)."""
        return int(self.unit() * count)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[self.below(len(choices))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed

    def direction(self) -> tuple[float, float]:
        """Cosine and sine of a random angle."""
        return self.pick(_DIRECTIONS)

    def grid(self, *shape: int) -> Floats:
        """An array of numbers in [0, 1)."""
        raw: NDArray[np.uint64] = self._bits.random_raw(math.prod(shape))
        numbers: Floats = ((raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
        return numbers

    def bytes(self, *shape: int) -> NDArray[np.uint8]:
        """An array of integers from 0 to 255."""
        count = math.prod(shape)
        raw: NDArray[np.uint64] = self._bits.random_raw(-(-count // 8))
        return raw.astype("<u8").view(np.uint8)[:count].reshape(shape)
