"""States of weights, with which a cached answer notices that they were trained, loaded or replaced."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from operator import is_

from torch import Tensor

from camtool.hooks.private_torch import get_write_counts


class WeightStates:
    """The states of some weights at one moment. It does not keep the weights alive.

    Args:
        weights: Parameters or buffers.
        places: The indices of the weights whose values are compared, by default all. The others must only be the same
            tensors.
    """

    __slots__ = ("_places", "_pointers", "_weights", "_write_counts")

    def __init__(self, weights: Iterable[Tensor], places: Sequence[int] | None = None) -> None:
        now = list(weights)
        self._weights, self._places = [weakref.ref(weight) for weight in now], places
        self._write_counts, self._pointers = self._read(now)

    def equal_those_of(self, weights: Iterable[Tensor]) -> bool:
        """Return True if these are the same weights in the same states; writes to ``parameter.data`` go unnoticed."""
        # Whole lists are compared, as every explanation compares hundreds of weights.
        now = list(weights)
        return (
            len(now) == len(self._weights)
            and all(map(is_, now, [reference() for reference in self._weights]))
            and self._read(now) == (self._write_counts, self._pointers)
        )

    def _read(self, weights: list[Tensor]) -> tuple[list[int], list[int]]:
        """Return numbers that change when weights are written to, and those that change when they get other memory."""
        chosen = weights if self._places is None else [weights[place] for place in self._places]
        return get_write_counts(chosen), [*map(Tensor.data_ptr, chosen)]
