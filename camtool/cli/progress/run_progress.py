"""Progress of runs and of the work on one large file, and estimates of their time.

On a terminal it is a bar, elsewhere a plain line in intervals; nothing if the user wants quiet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias

from rich import progress
from rich.text import Text

from camtool.arguments.message_parts import format_count
from camtool.cli import terminal
from camtool.progress import PassCounter, Stage, format_duration, send_progress

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from camtool.runs.job_list import Job


# Returns seconds since some moment.
Clock: TypeAlias = "Callable[[], float]"

# Seconds from which on the time of a run is told before it ends.
_LONG_RUN = 60.0

# Time after which a slow first batch is judged by its passes.
_SECONDS_BEFORE_GUESS = 5.0


class Passes:
    """Loops over passes inside the explanations of a batch: the innermost last.

    Methods may loop more than once in a batch, and a loop may have loops inside.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._loops: list[_Loop] = []
        self._steps: list[_Step] = []
        self._finished = 0
        self._started: float | None = None

    def __call__(self, count: int, stage: Stage | None = None, /) -> PassCounter:
        """Start to follow a loop or a step; :func:`camtool.progress.send_progress` calls this."""
        if stage is not None and not stage.unit:
            return _Step(stage.activity, self._steps)
        if self._started is None:
            self._started = self._clock()
        loop = _Loop(self, count)
        self._loops.append(loop)
        return loop

    def end_batch(self) -> None:
        """Forget the loops of a batch."""
        self._loops, self._finished, self._started = [], 0, None

    def end_loop(self, loop: _Loop) -> None:
        """Forget a loop, and count it if it is not inside another one."""
        if loop in self._loops:
            self._finished += self._loops.index(loop) == 0
            self._loops = [other for other in self._loops if other is not loop]

    @property
    def seconds(self) -> float:
        """Time since the first loop of the batch."""
        return 0.0 if self._started is None else self._clock() - self._started

    @property
    def done(self) -> float:
        """Loops of the batch that are done, the current one by its part."""
        part = 0.0
        for loop in reversed([*self._loops]):
            part = min(1.0, (loop.done + part) / max(1, loop.count))
        return self._finished + part

    def describe(self) -> str:
        """Return where the loops are, e.g. ``"pass 1,200 of 8,000"``, or the step that goes on; empty between them."""
        for step in self._steps[-1:]:
            return step.activity[0].lower() + step.activity[1:]
        loops = [loop for loop in self._loops if loop.count > 1]
        if not loops:
            return ""
        outer = "".join(f"part {min(loop.done + 1, loop.count):,} of {loop.count:,}, " for loop in loops[:-1])
        return f"{outer}pass {loops[-1].done:,} of {loops[-1].count:,}"


class _Loop:
    """One loop over passes."""

    def __init__(self, owner: Passes, count: int) -> None:
        self._owner = owner
        self.count, self.done = count, 0

    def update(self, passes: int, /) -> None:
        self.done += passes

    def close(self) -> None:
        self._owner.end_loop(self)


class _Step:
    """A step that has no parts, such as compiling."""

    def __init__(self, activity: str, steps: list[_Step]) -> None:
        self.activity, self._steps = activity, steps
        steps.append(self)

    def update(self, passes: int, /) -> None:
        """Do nothing: there are no parts."""

    def close(self) -> None:
        if self in self._steps:
            self._steps.remove(self)


class Estimate:
    """Estimate of the time that a run over photos, tiles or frames takes.

    The first batch is slower than the others, as the layer is chosen and engines compile, so the estimate is made from
    the second one on. If the first takes long, its passes give a lower limit.

    Args:
        photos: The number of photos.
        batch_size: The number of photos in a batch.
        passes: The loops of the current batch.
        clock: Returns the time in seconds.
        unit: What is counted, in the singular.
    """

    def __init__(
        self, photos: int, batch_size: int, passes: Passes, clock: Clock = time.monotonic, unit: str = "photo"
    ) -> None:
        self._photos, self._batch_size, self._passes, self._clock = photos, batch_size, passes, clock
        self._unit = unit
        self._started = clock()
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        self._told = ""

    def add_batch(self, photos: int) -> None:
        """Note that a batch is done."""
        now = self._clock() - self._started
        self._last = ((self._last[0] if self._last else 0) + photos, now)
        self._first = self._first or self._last
        self._passes.end_batch()

    def leave_out(self, photos: int) -> None:
        """Note that photos are not explained, as an earlier run did."""
        self._photos -= photos

    @property
    def total(self) -> float | None:
        """Seconds that the whole run takes; ``None`` before the second batch is done."""
        if self._first is None or self._last is None or self._last[0] == self._first[0]:
            return None
        per_photo = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        return self._first[1] + per_photo * (self._photos - self._first[0])

    @property
    def rest(self) -> float | None:
        """Seconds that the rest takes; ``None`` if that is not known."""
        return None if self.total is None else max(0.0, self.total - (self._clock() - self._started))

    @property
    def least(self) -> float | None:
        """Seconds that the run takes at least, judged by the passes of the first batch; ``None`` if not known."""
        seconds, done = self._passes.seconds, self._passes.done
        if self._first is not None or seconds < _SECONDS_BEFORE_GUESS or not done:
            return None
        batches = -(-self._photos // self._batch_size)
        # Each batch loops at least as often as the first one has until now.
        return seconds / done * math.ceil(done) * batches

    def describe(self) -> str:
        """Return the time that a long run takes, e.g. ``"About 7 min for 1,200 photos."``; empty for a short one."""
        for words, seconds in (("About", self.total), ("At least", self.least)):
            if seconds is not None:
                photos = format_count(self._photos, self._unit)
                return f"{words} {format_duration(seconds)} for {photos}." if seconds > _LONG_RUN else ""
        return ""

    def take(self) -> str:
        """Return what :meth:`describe` does if it is new. At most two are told: a lower limit, then the estimate."""
        told = self.describe()
        kind = told.partition(" ")[0]
        if not told or kind == self._told:
            return ""
        self._told = kind
        return told


class _Progress:
    """A ``with`` block around work that shows how far it is: a bar on a terminal, elsewhere lines in intervals."""

    def __init__(self, activity: str, total: int | None, clock: Clock, *, is_quiet: bool) -> None:
        self._activity, self._total, self._is_quiet = activity, total, is_quiet
        self.passes = Passes(clock)
        self._bar = None if is_quiet or not terminal.err.is_terminal else build_bar(self.describe_detail)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._stack.enter_context(self._bar)
            self._task = self._bar.add_task(self._activity, total=self._total)
        elif not self._is_quiet:
            self._stack.enter_context(terminal.Heartbeat(self.describe))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def describe(self, seconds: float) -> str:
        """Return how far the work is after these seconds, in one line."""
        raise NotImplementedError

    def describe_detail(self) -> str:
        """Return what stands after the bar: the pass, and the time that is left."""
        raise NotImplementedError

    def _join_parts(self, done: str, seconds: float, rest: float | None, told: str) -> str:
        """Return the line of :meth:`describe`, with the estimate at its end if it is new."""
        left = "" if rest is None else f"about {format_duration(rest)} left"
        parts = [done, self.passes.describe(), format_duration(seconds), left]
        return f"{', '.join(filter(None, parts))}{told and f'. {told}'}"

    def _print_estimate(self, told: str) -> None:
        """Print how long the work takes; it is told once it is known, if that is long."""
        if told and not self._is_quiet:
            terminal.print_notice(told)


class RunProgress(_Progress):
    """A ``with`` block around a run that shows how far it is.

    Args:
        photos: The number of photos.
        batch_size: The number of photos in a batch.
        is_quiet: Show nothing.
    """

    def __init__(self, photos: int, batch_size: int, *, is_quiet: bool) -> None:
        super().__init__("Explaining", photos, time.monotonic, is_quiet=is_quiet)
        self._photos, self._done = photos, 0
        self._estimate = Estimate(photos, batch_size, self.passes)
        self._seconds: dict[Path | str, float] = {}

    def note_batch(self, jobs: Sequence[Job], seconds: float) -> None:
        """Note that the model is done with a batch; :func:`camtool.runs.executor.run_jobs` calls this."""
        self._seconds.update((job.source, seconds / len(jobs)) for job in jobs)
        self._estimate.add_batch(len(jobs))
        self._print_estimate(self._estimate.take())

    def advance(self, job: Job) -> float | None:
        """Note that a photo is done; return the seconds of the model, or None if an earlier run explained it."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        seconds = self._seconds.pop(job.source, None)
        if seconds is None:
            self._estimate.leave_out(1)
        return seconds

    def describe(self, seconds: float) -> str:
        """Return how far the run is, in one line."""
        done = f"Explaining: {self._done:,} of {self._photos:,} photos"
        return self._join_parts(done, seconds, self._estimate.rest, self._estimate.take())

    def describe_detail(self) -> str:
        """Return what stands after the bar: the pass, and the time that is left."""
        rest, least = self._estimate.rest, self._estimate.least
        time = f"{format_duration(rest)} left" if rest is not None else ""
        if least is not None:
            time = f"at least {format_duration(least)}"
        return ", ".join(part for part in (self.passes.describe(), time) if part)

    def print_line(self, text: str) -> None:
        """Print a line of rich markup to standard output; on a terminal it stands above the bar."""
        if self._bar is not None and terminal.out.is_terminal:
            # Only the console of the bar can print above it. On a terminal the user sees no difference.
            terminal.err.print(text, soft_wrap=True)
        else:
            terminal.print_line(text)


class _DetailColumn(progress.TextColumn):
    """The pass inside the current batch, and the time that is left."""

    def __init__(self, describe: Callable[[], str]) -> None:
        super().__init__("")
        self._describe = describe

    def render(self, task: progress.Task) -> Text:
        """Return the text, which changes between two updates of the bar."""
        return Text(self._describe(), "dim")


def build_bar(describe_detail: Callable[[], str]) -> progress.Progress:
    """Return a bar for standard error, of one task whose description is the activity.

    Args:
        describe_detail: Returns what stands after the bar.
    """
    # Without the detail 50 columns, so that all of it fits into 80.
    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=14),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        _DetailColumn(describe_detail),
        console=terminal.err,
        transient=True,
    )


# Time of a stage before its estimate is told: a few short steps say little about the others.
_SECONDS_BEFORE_ESTIMATE = 3.0


class FileProgress(_Progress):
    """A ``with`` block around the work on a slide or a video that shows how far it is.

    Args:
        name: The name of the file.
        is_quiet: Show nothing.
        clock: Returns the time in seconds.
    """

    def __init__(self, name: str, *, is_quiet: bool, clock: Clock = time.monotonic) -> None:
        super().__init__("Opening", None, clock, is_quiet=is_quiet)
        self._name, self._clock = name, clock
        self._stage: _StageCounter | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(send_progress(self))
        return super().__enter__()

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
        stage = self._stage
        return self._join_parts(stage.describe(self._name), seconds, stage.estimate.rest, stage.take_estimate())

    def describe_detail(self) -> str:
        """Return what stands after the bar: the pass, and the time that is left."""
        rest = None if self._stage is None else self._stage.estimate.rest
        left = "" if rest is None else f"{format_duration(rest)} left"
        return ", ".join(part for part in (self.passes.describe(), left) if part)

    def _note_step(self, stage: _StageCounter) -> None:
        self._draw()
        self._print_estimate(stage.take_estimate())

    def _draw(self) -> None:
        stage = self._stage
        if self._bar is not None and stage is not None:
            self._bar.update(self._task, description=stage.activity, total=stage.count, completed=stage.done)


class _StageCounter:
    """One stage of the work."""

    def __init__(
        self, count: int, stage: Stage, passes: Passes, clock: Clock, on_step: Callable[[_StageCounter], None]
    ) -> None:
        self.count, self.done, self.activity = count, 0, stage.activity
        self.estimate = Estimate(count, stage.batch_size, passes, clock, stage.unit)
        self._unit, self._clock, self._on_step = stage.unit, clock, on_step
        self._started = clock()

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
        is_early = self._clock() - self._started < _SECONDS_BEFORE_ESTIMATE
        return "" if is_early else self.estimate.take()


def build_countdown(*, is_quiet: bool) -> progress.Progress:
    """Return a bar for standard error; it is hidden where there is no terminal.

    Args:
        is_quiet: Hide it on a terminal, too.
    """
    is_hidden, text = is_quiet or not terminal.err.is_terminal, progress.TextColumn("{task.description}")
    columns = text, progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    return progress.Progress(*columns, console=terminal.err, transient=True, disable=is_hidden)
