"""States of weights, with which a cached answer notices that they were trained, loaded or replaced."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from operator import is_

from torch import Tensor

from camtool.private_torch import get_write_counts

__all__ = ["WeightStates"]


class WeightStates:
    """The states of some weights at one moment. It does not keep the weights alive.

    Args:
        weights: Parameters or buffers.
    """

    __slots__ = ("_pointers", "_weights", "_write_counts")

    def __init__(self, weights: Iterable[Tensor]) -> None:
        now = list(weights)
        self._weights = [weakref.ref(weight) for weight in now]
        self._write_counts, self._pointers = get_write_counts(now), _get_pointers(now)

    def equal_those_of(self, weights: Iterable[Tensor]) -> bool:
        """Return True if these are the same weights in the same states; writes to ``parameter.data`` go unnoticed."""
        # Whole lists are compared, as every explanation compares hundreds of weights.
        now = list(weights)
        return (
            len(now) == len(self._weights)
            and all(map(is_, now, [reference() for reference in self._weights]))
            and get_write_counts(now) == self._write_counts
            and _get_pointers(now) == self._pointers
        )


def _get_pointers(weights: Iterable[Tensor]) -> list[int]:
    """Return numbers that change when weights get other memory."""
    return [*map(Tensor.data_ptr, weights)]
