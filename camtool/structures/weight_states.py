"""States of weights, with which a cached answer notices that they were trained, loaded or replaced."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor

from camtool.private_torch import get_write_count

__all__ = ["WeightStates"]


class WeightStates:
    """The states of some weights at one moment. It does not keep the weights alive.

    Args:
        weights: Parameters or buffers.
    """

    __slots__ = ("_states",)

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._states = [(weakref.ref(weight), _get_state(weight)) for weight in weights]

    def equal_those_of(self, weights: Iterable[Tensor]) -> bool:
        """Return True if these are the same weights in the same states; writes to ``parameter.data`` go unnoticed."""
        now = list(weights)
        return len(now) == len(self._states) and all(
            reference() is weight and _get_state(weight) == state
            for (reference, state), weight in zip(self._states, now, strict=True)
        )


def _get_state(weight: Tensor) -> tuple[int, int]:
    """Return numbers that change when a weight is written to, or gets other memory."""
    return get_write_count(weight), weight.data_ptr()
