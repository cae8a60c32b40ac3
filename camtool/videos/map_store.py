"""Raw maps of the frames of a video, in a temporary file: a long video has more of them than memory."""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Map = NDArray[np.float32]


class MapStore:
    """Maps ``(h, w)`` float32 of any sizes, in the order in which they are added.

    Attributes:
        limits: The lowest and the highest value of all maps.
    """

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115  it is closed, and thereby removed, when the store is freed
        finalize(self, self._file.close)
        self._places: list[tuple[int, tuple[int, ...]]] = []
        self.limits = (float("inf"), float("-inf"))

    def add(self, values: Map) -> int:
        """Add a map; return its number."""
        place = self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(values, np.float32).tobytes())
        self._places.append((place, values.shape))
        low, high = self.limits
        self.limits = min(low, float(values.min())), max(high, float(values.max()))
        return len(self._places) - 1

    def get(self, number: int) -> Map:
        """Return a map by its number."""
        place, shape = self._places[number]
        self._file.seek(place)
        count = int(np.prod(shape))
        values: Map = np.frombuffer(self._file.read(4 * count), np.float32).reshape(shape).copy()
        return values
