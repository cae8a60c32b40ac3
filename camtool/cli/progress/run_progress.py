"""Progress of a run: a bar on a terminal, elsewhere a plain line every ten seconds; nothing if the user wants quiet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from camtool.cli import terminal
from camtool.cli.progress.estimate import Estimate, Passes
from camtool.progress import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from camtool.runs.job_list import Job


class RunProgress:
    """A ``with`` block around a run that shows how far it is.

    Args:
        photos: The number of photos.
        batch_size: The number of photos in a batch.
        is_quiet: Show nothing.
    """

    def __init__(self, photos: int, batch_size: int, *, is_quiet: bool) -> None:
        self._photos, self._done = photos, 0
        self.passes = Passes()
        self._estimate = Estimate(photos, batch_size, self.passes)
        self._seconds: dict[Path | str, float] = {}
        self._told = ""
        self._bar = None if is_quiet or not terminal.err.is_terminal else build_bar(self.describe_detail)
        self._is_plain = not is_quiet and self._bar is None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._stack.enter_context(self._bar)
            self._task = self._bar.add_task("Explaining", total=self._photos)
        if self._is_plain:
            self._stack.enter_context(terminal.Heartbeat(self.describe))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def note_batch(self, jobs: Sequence[Job], seconds: float) -> None:
        """Note that the model is done with a batch; :func:`camtool.runs.executor.run_jobs` calls this."""
        self._seconds.update((job.source, seconds / len(jobs)) for job in jobs)
        self._estimate.add_batch(len(jobs))
        # How long the run will take is told once it is known, if that is long.
        if (self._bar is not None or self._is_plain) and (told := self._take_estimate()):
            terminal.print_notice(told)

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
        parts = [f"Explaining: {self._done:,} of {self._photos:,} photos", self.passes.describe()]
        rest = self._estimate.rest
        parts += [format_duration(seconds), "" if rest is None else f"about {format_duration(rest)} left"]
        told = self._take_estimate()
        return f"{', '.join(part for part in parts if part)}{told and f'. {told}'}"

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

    def _take_estimate(self) -> str:
        """Return the estimate if there is a new one. At most two are told: a lower limit, then the estimate."""
        told = self._estimate.describe()
        if not told or told.split(" ", 1)[0] == self._told:
            return ""
        self._told = told.split(" ", 1)[0]
        return told


class _DetailColumn(TextColumn):
    """The pass inside the current batch, and the time that is left."""

    def __init__(self, describe: Callable[[], str]) -> None:
        super().__init__("")
        self._describe = describe

    def render(self, task: Task) -> Text:
        """Return the text, which changes between two updates of the bar."""
        return Text(self._describe(), "dim")


def build_bar(describe_detail: Callable[[], str]) -> Progress:
    """Return a bar for standard error, of one task whose description is the activity.

    Args:
        describe_detail: Returns what stands after the bar.
    """
    # Without the detail 50 columns, so that all of it fits into 80.
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        _DetailColumn(describe_detail),
        console=terminal.err,
        transient=True,
    )
