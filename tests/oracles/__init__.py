"""Every method once more: slow, literal, and without a tensor.

An oracle reads one image's numbers from nested lists and follows its paper's equation, term by term. Python's floats
are float64, and nothing here is shared with the package. ``ORACLES`` pairs each with its method by name; a method
without an oracle fails a test.
"""

from __future__ import annotations

from oracles import ablation, activation, attention, gradient, masking, optimised, paths, pixels, rival
from oracles.base import ORACLES, Case

__all__ = [
    "ORACLES",
    "Case",
    "ablation",
    "activation",
    "attention",
    "gradient",
    "masking",
    "optimised",
    "paths",
    "pixels",
    "rival",
]
