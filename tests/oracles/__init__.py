"""Oracles: slow, literal implementations of every method, without tensors.

An oracle reads one image's numbers from nested lists and follows its paper's equation, term by term. Python's floats
are float64, and nothing here is shared with the package. ``ORACLES`` pairs each with its method by name; a method
without an oracle fails a test.
"""

from __future__ import annotations

from tests.oracles import (
    ablation,
    activation,
    attention,
    averaged_gradient,
    competition,
    eigencam,
    gradient,
    input_gradient,
    opticam,
    polycam,
    rise,
    scorecam,
    single_patches,
    text_tokens,
)
from tests.oracles.base import ORACLES, Case

__all__ = [
    "ORACLES",
    "Case",
    "ablation",
    "activation",
    "attention",
    "averaged_gradient",
    "competition",
    "eigencam",
    "gradient",
    "input_gradient",
    "opticam",
    "polycam",
    "rise",
    "scorecam",
    "single_patches",
    "text_tokens",
]
