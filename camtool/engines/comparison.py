"""Compare the results of an engine with those of the model itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from camtool.explanation import Explanation

__all__ = ["describe_difference"]

_SCORE_TOLERANCE = 1e-4
"""Of the larger one of 1 and the score."""

_MAP_TOLERANCE = 1e-3
"""Of the map's peak."""


def describe_difference(ours: Sequence[Explanation], expected: Sequence[Explanation]) -> str | None:
    """Return how explanations differ from the expected ones, or ``None`` if they agree up to rounding."""
    for our, other in zip(ours, expected, strict=True):
        if our.index != other.index or our.raw.shape != other.raw.shape:
            return f"it explains {our.label!r}, and the model {other.label!r}"
        if not abs(our.score - other.score) <= _SCORE_TOLERANCE * max(1, abs(other.score)):
            return f"its score is {our.score:.6g}, and the model's {other.score:.6g}"
        difference, peak = np.abs(our.raw - other.raw).max(), np.abs(other.raw).max()
        if not difference <= _MAP_TOLERANCE * peak:
            return f"its map of {our.method} differs by {difference:.3g}, where the model's peak is {peak:.3g}"
    return None
