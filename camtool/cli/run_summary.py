"""Progress and summary of a run, on a terminal or as JSON."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from camtool.arguments.messages import format_count, format_percent
from camtool.cli import terminal
from camtool.cli.terminal import escape, print_line

if TYPE_CHECKING:
    from camtool.explainer import Explainer
    from camtool.runs.job_list import Plan
    from camtool.runs.report_rows import ManifestLine
    from camtool.runs.result_writer import Failure, Success
    from camtool.runs.save_kinds import OutputSettings

__all__ = ["RunReport", "Terminated", "stop_at_sigterm"]

_MAX_SKIPPED_SHOWN = 5
"""Number of skipped paths that are named; a folder of links may hold thousands."""


class Terminated(KeyboardInterrupt):
    """Stop of a run by SIGTERM; it ends as at Ctrl-C."""


@contextmanager
def stop_at_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` at SIGTERM during the block.

    A process that ignores SIGTERM goes on ignoring it. Outside the main thread, where Python does not allow signal
    handlers, the block runs unchanged.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        yield
        return

    def stop(number: int, frame: object) -> NoReturn:
        raise Terminated

    earlier = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


class _Totals:
    """What the summary says about all explained photos, in little memory.

    Attributes:
        photos: The number of photos.
        files: The number of files.
        layer: The layer of the first explanation.
        warnings: Each kind of warning, with an ellipsis for numbers → how often it came, and its text; ``None`` if the
            texts differ.
    """

    def __init__(self) -> None:
        self.photos, self.files, self.layer = 0, 0, ""
        self.warnings: dict[str, tuple[int, str | None]] = {}

    def add(self, success: Success) -> None:
        """Count a photo."""
        self.layer = self.layer or next((line.layer for line in success.lines), "")
        self.photos += 1
        self.files += sum(len(line.files) for line in success.lines)
        for warning in (warning for line in success.lines for warning in line.warnings):
            kind = re.sub(r"\d+", "…", warning)
            count, example = self.warnings.get(kind, (0, warning))
            self.warnings[kind] = count + 1, example if example == warning else None


class RunReport:
    """Progress bar and summary of a run.

    Args:
        plan: The photos.
        output: What is written where.
        quiet: Print errors only.
        verbose: Print a line for each explanation as well.
        as_json: Print the summary as JSON, and nothing else.
    """

    def __init__(self, plan: Plan, output: OutputSettings, *, quiet: bool, verbose: bool, as_json: bool) -> None:
        self._jobs, self._skipped, self._output = plan.jobs, plan.skipped, output
        self._quiet, self._verbose, self._as_json = quiet, verbose, as_json
        self._totals = _Totals()
        self._lines: list[ManifestLine] = []  # for the summary as JSON; a long run would fill the memory with them
        self._failed: list[Failure] = []

    def follow_run(
        self,
        explainer: Explainer[Any],
        targets: list[Any],
        batch_size: int,
        workers: int | None = None,
        **limits: int,
    ) -> int:
        """Run the plan, show its progress, print the summary, and return the exit code."""
        from camtool.inference import chunks
        from camtool.runs.executor import run_jobs

        started, stop_code = time.perf_counter(), 0
        outcomes = run_jobs(
            explainer, self._jobs, targets, self._output, batch_size=batch_size, workers=workers, **limits
        )
        try:
            # chunks.hide_progress: the bars of single explanations would break the bar of the run.
            with stop_at_sigterm(), closing(outcomes), chunks.hide_progress(), self._build_progress() as progress:
                task = progress.add_task("Explaining", total=len(self._jobs))
                for outcome in outcomes:
                    self._add_outcome(outcome)
                    progress.advance(task)
        except KeyboardInterrupt as stop:
            # By convention 128 plus the number of the signal.
            stop_code = 143 if isinstance(stop, Terminated) else 130
        self._print_summary(time.perf_counter() - started, interrupted=stop_code > 0)
        return stop_code or (1 if self._failed else 0)

    def _build_progress(self) -> Progress:
        return Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=terminal.err,
            transient=True,
            disable=self._quiet or self._as_json or not terminal.err.is_terminal,
        )

    def _add_outcome(self, outcome: Success | Failure) -> None:
        from camtool.runs.result_writer import Success

        if not isinstance(outcome, Success):
            self._failed.append(outcome)
            return
        self._totals.add(outcome)
        if self._as_json:
            self._lines += outcome.lines
        if self._verbose:
            for line in outcome.lines:
                _print_explanation(line)

    def _print_summary(self, seconds: float, *, interrupted: bool) -> None:
        if self._as_json:
            summary = self._build_json_summary(seconds, interrupted=interrupted)
            terminal.out.print_json(json.dumps(summary), ensure_ascii=True)
            return
        if not self._quiet:
            if interrupted:
                print_line(
                    f"[yellow]Stopped[/] after {self._totals.photos} of {format_count(len(self._jobs), 'photo')}."
                )
            if self._totals.photos:
                self._print_explained(seconds)
            self._print_warnings()
            self._print_skipped()
        if self._failed:
            terminal.err.print(f"[bold red]{format_count(len(self._failed), 'photo')} could not be explained:[/]")
            for failure in self._failed:
                terminal.err.print(f"  {escape(failure.reason)}", soft_wrap=True)

    def _print_explained(self, seconds: float) -> None:
        photos, layer = self._totals.photos, self._totals.layer
        layer = f", at layer [bold]{escape(layer)}[/]" if layer else ""
        print_line(
            f"[bold green]{format_count(photos, 'photo')} explained[/] in {seconds:.1f} s "
            f"([bold]{seconds / photos * 1000:.0f} ms[/] each){layer}."
        )
        files = format_count(self._totals.files, "file")
        print_line(f"{files} and explanations.jsonl are in [bold]{escape(str(self._output.folder))}[/]")

    def _print_warnings(self) -> None:
        """Print each kind of warning once. Warnings that differ only in a number are of one kind."""
        for kind, (count, example) in self._totals.warnings.items():
            print_line(f"[yellow]{format_count(count, 'map')}:[/] {escape(kind if example is None else example)}")

    def _print_skipped(self) -> None:
        if self._skipped:
            shown = [f"{escape(str(each.path))} ({each.reason})" for each in self._skipped[:_MAX_SKIPPED_SHOWN]]
            more = len(self._skipped) - len(shown)
            print_line(f"[yellow]Skipped:[/] {', '.join(shown)}" + (f" and {more:,} more" if more else ""))

    def _build_json_summary(self, seconds: float, *, interrupted: bool) -> dict[str, Any]:
        return {
            "out": str(self._output.folder),
            "seconds": round(seconds, 3),
            "interrupted": interrupted,
            "explained": [asdict(line) for line in self._lines],
            "skipped": [{"path": str(each.path), "reason": each.reason} for each in self._skipped],
            "failed": [{"image": str(failure.job.source), "reason": failure.reason} for failure in self._failed],
        }


def _print_explanation(line: ManifestLine) -> None:
    """Print the photo, the label, the probability, the method and the warnings of one explanation."""
    probability = "" if line.probability is None else f" {format_percent(line.probability, 1)}"
    print_line(f"{escape(line.image)}  [bold]{escape(line.label)}[/]{probability}  [dim]{escape(line.method)}[/]")
    for warning in line.warnings:
        print_line(f"  [yellow]{escape(warning)}[/]")
