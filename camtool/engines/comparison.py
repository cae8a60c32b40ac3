"""Run work by engines, and compare the first results of each with those of the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from camtool.engines.engine_runner import EngineRunner
from camtool.errors import NotCompilableError
from camtool.hooks.fast_repeated_passes import rounds_to_tf32
from camtool.hooks.observation import Runner, run_with_hooks
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.modules import list_weights

_T = TypeVar("_T")

# Of the larger one of 1 and the score, and of the map's peak.
_TOLERANCES = 1e-4, 1e-3

# The same where the model itself rounds the factors of its products to 10 bits.
_TOLERANCES_IN_TF32 = 5e-3, 3e-2


class ComparedMap(Protocol):
    """One map and what it explains, e.g. a :class:`camtool.Explanation`."""

    @property
    def index(self) -> int | None:
        """The index of the explained class; ``None`` for another target."""

    @property
    def label(self) -> str:
        """The label of the target, for messages."""

    @property
    def score(self) -> float:
        """The target's score."""

    @property
    def method(self) -> str:
        """The name of the method."""

    @property
    def raw(self) -> NDArray[Any]:
        """The method's own values."""


@dataclass(frozen=True, eq=False)
class ComparedOutput:
    """The output of a model or an engine, which is compared as a map is.

    Attributes:
        raw: The values.
    """

    raw: NDArray[Any]
    index: None = None
    label: str = ""
    method: str = "forward pass"

    @property
    def score(self) -> float:
        """The largest value."""
        return float(self.raw.max())


def run_by_engines(
    engines: Sequence[str],
    model: nn.Module,
    question: object,
    run: Callable[[Runner], _T],
    list_maps: Callable[[_T], Sequence[ComparedMap]],
) -> _T:
    """Return the results of the first engine that gives the model's own; without one, those of the model as it is.

    Args:
        engines: The engines to try, in order, see :func:`camtool.engines.engine_runner.list_engines`.
        model: The model.
        question: What the results depend on beside the weights and the values of the inputs. For each question, the
            first results are compared.
        run: Does the work with a function that runs the model.
        list_maps: Returns the maps of results, which are compared.
    """
    for engine in engines:
        runner = EngineRunner(engine)
        try:
            results = run(runner)
        except NotCompilableError as error:
            runner.give_up(str(error))
            continue
        if runner.has_agreed(question):
            return results
        expected = _run_eagerly(model, run)
        theirs = list_maps(expected)
        tolerances = _TOLERANCES_IN_TF32 if any(map(rounds_to_tf32, list_weights(model))) else _TOLERANCES
        difference = describe_difference(list_maps(results), theirs, tolerances)
        if difference is not None:
            runner.give_up(difference)
            return expected
        if any(compared.raw.any() for compared in theirs):  # empty maps show nothing
            runner.note_agreement(question)
        # Not the model's own results: those of a run must not depend on where it was interrupted.
        return results
    return _run_eagerly(model, run)


def _run_eagerly(model: nn.Module, run: Callable[[Runner], _T]) -> _T:
    # A backward pass needs the model's state of its forward pass.
    with guard(model):
        return run(run_with_hooks)


def describe_difference(
    ours: Sequence[ComparedMap], expected: Sequence[ComparedMap], tolerances: tuple[float, float] = _TOLERANCES
) -> str | None:
    """Return how maps differ from the expected ones, or ``None`` if they agree up to rounding."""
    of_score, of_map = tolerances
    for our, other in zip(ours, expected, strict=True):
        if our.index != other.index or our.raw.shape != other.raw.shape:
            return f"it explains {our.label!r}, and the model {other.label!r}"
        if not abs(our.score - other.score) <= of_score * max(1, abs(other.score)):
            return f"its score is {our.score:.6g}, and the model's {other.score:.6g}"
        difference, peak = np.abs(our.raw - other.raw).max(), np.abs(other.raw).max()
        if not difference <= of_map * peak:
            return f"its map of {our.method} differs by {difference:.3g}, where the model's peak is {peak:.3g}"
    return None
