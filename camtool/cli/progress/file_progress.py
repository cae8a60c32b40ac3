"""Progress of the work on one large file, stage by stage: a bar on a terminal, elsewhere a plain line in intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from camtool.arguments.messages import format_count
from camtool.cli import terminal
from camtool.cli.progress.estimate import Estimate, Passes
from camtool.cli.progress.run_progress import build_bar
from camtool.progress import format_duration

if TYPE_CHECKING:
    from typing_extensions import Self

    from camtool.progress import PassCounter, Stage

_SECONDS_BEFORE_ESTIMATE = 3.0
"""Time of a stage before its estimate is told: a few short steps say little about the others."""


class FileProgress:
    """A ``with`` block around the work on a slide or a video that shows how far it is.

    Args:
        name: The name of the file.
        is_quiet: Show nothing.
        clock: Returns the time in seconds.
    """

    def __init__(self, name: str, *, is_quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._is_quiet = is_quiet
        self.passes = Passes(clock)
        self._stage: _StageCounter | None = None
        self._bar = None if is_quiet or not terminal.err.is_terminal else build_bar(self.describe_detail)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from camtool.progress import send_progress

        self._stack.enter_context(send_progress(self))
        if self._bar is not None:
            self._stack.enter_context(self._bar)
            self._task = self._bar.add_task("Opening", total=None)
        elif not self._is_quiet:
            self._stack.enter_context(terminal.Heartbeat(self.describe))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, count: int, stage: Stage | None = None, /) -> PassCounter:
        """Start to follow a stage, or a loop over passes in it."""
        if stage is None or not stage.unit:
            return self.passes(count, stage)
        self.passes.end_batch()
        self._stage = _StageCounter(count, stage, self.passes, self._clock, self._note_step)
        self._draw()
        return self._stage

    def describe(self, seconds: float) -> str:
        """Return how far the work is, in one line."""
        if self._stage is None:
            return f"Opening {self._name} ... {format_duration(seconds)}"
        rest = self._stage.estimate.rest
        left = "" if rest is None else f"about {format_duration(rest)} left"
        parts = [self._stage.describe(self._name), self.passes.describe(), format_duration(seconds), left]
        told = self._stage.take_estimate()
        return f"{', '.join(part for part in parts if part)}{told and f'. {told}'}"

    def describe_detail(self) -> str:
        """Return what stands after the bar: the pass, and the time that is left."""
        rest = None if self._stage is None else self._stage.estimate.rest
        left = "" if rest is None else f"{format_duration(rest)} left"
        return ", ".join(part for part in (self.passes.describe(), left) if part)

    def _note_step(self, stage: _StageCounter) -> None:
        self._draw()
        if not self._is_quiet and (told := stage.take_estimate()):
            terminal.print_notice(told)

    def _draw(self) -> None:
        stage = self._stage
        if self._bar is not None and stage is not None:
            self._bar.update(self._task, description=stage.activity, total=stage.count, completed=stage.done)


class _StageCounter:
    """One stage of the work."""

    def __init__(
        self,
        count: int,
        stage: Stage,
        passes: Passes,
        clock: Callable[[], float],
        on_step: Callable[[_StageCounter], None],
    ) -> None:
        self.count, self.done, self.activity = count, 0, stage.activity
        self.estimate = Estimate(count, stage.batch_size, passes, clock, stage.unit)
        self._unit, self._clock, self._on_step = stage.unit, clock, on_step
        self._started = clock()
        self._told = ""

    def update(self, steps: int, /) -> None:
        self.done += steps
        self.estimate.add_batch(steps)
        self._on_step(self)

    def close(self) -> None:
        """Keep the last state, which stays true until the next stage begins."""

    def describe(self, name: str) -> str:
        return f"{self.activity} {name}: {self.done:,} of {format_count(self.count, self._unit)}"

    def take_estimate(self) -> str:
        """Return the estimate of a long stage if there is a new one: a lower limit, then the estimate itself."""
        if self._clock() - self._started < _SECONDS_BEFORE_ESTIMATE:
            return ""
        told = self.estimate.describe()
        kind = told.partition(" ")[0]
        if not told or kind == self._told:
            return ""
        self._told = kind
        return told
