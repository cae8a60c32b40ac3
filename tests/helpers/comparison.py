"""Comparison of maps that must be equal up to rounding: raw values, in units of their own rounding.

A heatmap is scaled to [0, 1], which scales its rounding up too, for a raw map between 0.1257 and 0.1260 three thousand
times. A fixed tolerance there passes on one CPU and fails on another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import camtool

STEPS = 128
"""Rounding errors that add up on the way to a map, in units of the last place of its largest value."""

OPTIMIZER_STEPS = 8192
"""The same for ``opticam``: each step of its optimizer makes more of the rounding of those before it."""

SCORE_DIFFERENCES = ("ablationcam", "groupcam", "polycam")
"""Methods that subtract scores: however small their maps are, these carry the rounding of scores of about 1."""


def raw_tolerance(raw: Any, *, scale: float = 0.0, steps: int = STEPS) -> float:
    """Return the rounding of a raw map: ``steps`` units in the last place of its largest value, or of ``scale``."""
    values = np.asarray(raw)
    return steps * float(np.finfo(values.dtype).eps) * max(scale, float(np.abs(values).max()))


def assert_same_raw(one: Any, other: Any, *, scale: float = 0.0, steps: int = STEPS) -> None:
    """Check that two raw maps are equal up to :func:`raw_tolerance`."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype
    np.testing.assert_allclose(one, other, rtol=0, atol=raw_tolerance(other, scale=scale, steps=steps))


def assert_same_explanation(one: camtool.Explanation, other: camtool.Explanation) -> None:
    """Check that label, raw map and heatmap are equal; the heatmap up to the scaled rounding of the raw map."""
    names, expected = (one.label, one.method), (other.label, other.method)
    assert names == expected, f"{names} is not {expected}"
    scale = 1.0 if other.method in SCORE_DIFFERENCES else 0.0
    steps = OPTIMIZER_STEPS if other.method == "opticam" else STEPS
    assert_same_raw(one.raw, other.raw, scale=scale, steps=steps)
    span = float(np.ptp(other.raw)) or 1.0
    on_the_heatmap = 1e-5 + 4 * raw_tolerance(other.raw, scale=scale, steps=steps) / span
    np.testing.assert_allclose(one.heatmap, other.heatmap, rtol=0, atol=on_the_heatmap)
