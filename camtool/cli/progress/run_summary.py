"""Following a run with a line for each photo, and its summary as text or as JSON.

The lines have the form that users of Ultralytics know. The summary is made of the manifest and not of what this process
did, so it also counts results of an earlier run that this one continues.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from camtool.arguments.message_parts import format_count, format_percent, merge_texts
from camtool.cli import exit_codes, terminal
from camtool.cli.progress.run_progress import RunProgress
from camtool.cli.terminal import escape, print_line
from camtool.runs.text_escapes import escape_hidden

if TYPE_CHECKING:
    from pathlib import Path

    from camtool.cli.options.result_options import PrintOptions
    from camtool.explaining.explainer import Explainer
    from camtool.runs.job_list import Plan
    from camtool.runs.result_writer import Failure, Success
    from camtool.runs.run_folder.resumable_folder import RunStart
    from camtool.runs.save_kinds import OutputSettings
    from camtool.runs.stored_files import ManifestLine


# Number of skipped paths that are named; a folder of links may hold thousands.
_MAX_SKIPPED_SHOWN = 5

# Characters of a path that are always shown.
_SHORTEST_PATH = 16


class _Totals:
    """Counts of all explained photos for the summary, in little memory.

    Attributes:
        photos: The number of photos with explanations.
        recorded: How many of them were explained in earlier starts of the run.
        files: The number of files.
        layer: The layer of the first explanation.
        warnings: The words of a warning without its numbers → how often it came, and its text with ranges of numbers.
        right: The number of photos that are classified right.
        wrong: The number of photos that are classified wrongly.
    """

    def __init__(self) -> None:
        self.photos, self.recorded, self.files, self.layer = 0, 0, 0, ""
        self.right, self.wrong = 0, 0
        self.warnings: dict[str, tuple[int, str]] = {}
        self._images: set[str] = set()

    def add(self, line: Mapping[str, Any]) -> None:
        """Count a line of the manifest."""
        self.layer = self.layer or str(line.get("layer", ""))
        self.files += len(line.get("files", ()))
        if line["image"] not in self._images:
            self._images.add(line["image"])
            self.photos += 1
            self.right += line.get("correct") is True
            self.wrong += line.get("correct") is False
        for warning in line.get("warnings", ()):
            kind = re.sub(r"\d+(?:\.\d+)?", "#", warning)
            count, text = self.warnings.get(kind, (0, warning))
            self.warnings[kind] = count + 1, merge_texts([text, warning])


class RunReport:
    """Progress and summary of a run.

    Args:
        plan: The photos.
        output: What is written where.
        printed: What is printed.
        verbose: Print a line for each photo as well; None for a terminal alone, where the user watches.
        has_sheet: Draw the overlays on contact sheets at the end.
        notes: What to tell about the request, e.g. photos without a true class.
    """

    def __init__(
        self,
        plan: Plan,
        output: OutputSettings,
        printed: PrintOptions,
        *,
        verbose: bool | None,
        has_sheet: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self._jobs, self._skipped, self._output = plan.jobs, plan.skipped, output
        self._printed = printed
        by_default = terminal.out.is_terminal and not printed.quiet
        self._verbose = not printed.as_json and (by_default if verbose is None else verbose)
        self._has_sheet, self._notes = has_sheet, notes
        self._failed: list[Failure] = []
        self._recorded = 0
        self._removed = 0
        self._without_lines = 0
        self._sheets: list[Path] = []

    def follow_run(
        self, explainer: Explainer[Any], targets: list[Any], batch_size: int, workers: int | None, start: RunStart
    ) -> int:
        """Run the plan, show its progress, print the summary, and return the exit code."""
        from camtool.progress import send_progress
        from camtool.runs.executor import run_jobs
        from camtool.runs.result_writer import Success

        started = time.perf_counter()
        progress = RunProgress(len(self._jobs), batch_size, is_quiet=self._printed.hides_progress)
        outcomes = run_jobs(
            explainer,
            self._jobs,
            targets,
            self._output,
            batch_size=batch_size,
            workers=workers,
            start=start,
            on_batch=progress.note_batch,
        )
        # Results keep the names of their first start, so a job may differ from the planned one in its stem.
        numbers = {job.source: number for number, job in enumerate(self._jobs, 1)}
        with exit_codes.catch_stop() as stop:
            with closing(outcomes), send_progress(progress.passes), progress:
                for outcome in outcomes:
                    number = numbers.get(outcome.job.source)
                    if number is None:
                        self._removed += outcome.is_recorded or isinstance(outcome, Success)
                    else:
                        self._add_outcome(outcome, progress, f"image {number}/{len(self._jobs)}")
            self._draw_sheets()
        self._print_summary(time.perf_counter() - started, interrupted=stop.code > 0)
        return stop.code or (1 if self._failed else 0)

    def _add_outcome(self, outcome: Success | Failure, progress: RunProgress, place: str) -> None:
        from camtool.runs.result_writer import Success

        seconds = progress.advance(outcome.job)
        if isinstance(outcome, Success):
            self._recorded += outcome.is_recorded
            self._without_lines += not outcome.lines
            lines = [build_success_line(outcome, place, seconds)]
            warnings = dict.fromkeys(warning for line in outcome.lines for warning in line.warnings)
            lines += [f"  [yellow]{escape(warning)}[/]" for warning in warnings]
        else:
            self._failed.append(outcome)
            lines = [build_failure_line(outcome, place)]
        if self._verbose and not outcome.is_recorded:
            for line in lines:
                progress.print_line(line)

    def _draw_sheets(self) -> None:
        if not self._has_sheet:
            return
        from camtool.runs.run_folder.sheets import write_sheets

        with terminal.show_activity("Drawing the contact sheet", is_quiet=self._printed.hides_progress):
            images = (str(job.source) for job in self._jobs)
            self._sheets = write_sheets(self._output.folder, images, has_captions=self._output.has_captions)

    def _iterate_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the manifest about the photos of this run that did not fail."""
        from camtool.runs.run_folder.sheets import read_manifest

        failed = {failure.job.source for failure in self._failed}
        images = {str(job.source) for job in self._jobs if job.source not in failed}
        yield from (line for line in read_manifest(self._output.folder) if line.get("image") in images)

    def _sum_up(self) -> _Totals:
        totals = _Totals()
        for line in self._iterate_lines():
            totals.add(line)
        if self._output.only_wrong:
            # Photos that are classified right are explained but have no lines.
            totals.right = self._without_lines
            totals.photos = totals.right + totals.wrong
        totals.recorded = self._recorded
        return totals

    def _print_summary(self, seconds: float, *, interrupted: bool) -> None:
        totals = self._sum_up()
        if self._printed.as_json:
            summary = self._build_json_summary(totals, seconds, interrupted=interrupted)
            terminal.print_json(summary)
            return
        if not self._printed.quiet:
            self._print_results(totals, seconds, interrupted=interrupted)
        print_failures(len(self._failed), [failure.reason for failure in self._failed])
        if any(failure.is_recorded for failure in self._failed) and not self._printed.quiet:
            terminal.err.print("Those of earlier starts were not tried again; --retry-failed does.", soft_wrap=True)

    def _print_results(self, totals: _Totals, seconds: float, *, interrupted: bool) -> None:
        if interrupted:
            print_stopped(totals.photos, len(self._jobs), "photo")
        if totals.photos:
            self._print_explained(totals, seconds, interrupted=interrupted)
        if self._output.true_classes:
            print_accuracy(totals.right, totals.wrong, only_wrong=self._output.only_wrong)
        print_notes(self._notes)
        for count, text in totals.warnings.values():
            print_line(f"[yellow]{format_count(count, 'map')}:[/] {escape(text)}")
        if self._removed:
            gone = format_count(self._removed, "photo")
            print_line(f"[yellow]Kept:[/] the results of {gone} of earlier starts, which are not chosen now.")
        self._print_skipped()

    def _print_explained(self, totals: _Totals, seconds: float, *, interrupted: bool) -> None:
        layer = f", at layer [bold]{escape(totals.layer)}[/]" if totals.layer else ""
        photos = totals.photos - totals.recorded
        if photos > 0:
            print_line(
                f"[bold green]{format_count(photos, 'photo')} explained[/] in {seconds:.1f} s "
                f"([bold]{seconds / photos * 1000:.0f} ms[/] each){layer}."
            )
        elif not interrupted:
            print_line("[bold green]Nothing to do:[/] the run is finished. --overwrite starts it anew.")
        if totals.recorded:
            print_line(f"{format_count(totals.recorded, 'photo')} had been explained before.")
        folder = escape(str(self._output.folder))
        print_line(f"{format_count(totals.files, 'file')} and explanations.jsonl are in [bold]{folder}[/]")
        if self._sheets:
            more = f" to {escape(self._sheets[-1].name)}" if len(self._sheets) > 1 else ""
            print_line(f"Contact sheet: [bold]{escape(str(self._sheets[0]))}[/]{more}")

    def _print_skipped(self) -> None:
        if self._skipped:
            shown = [f"{escape(str(entry.path))} ({entry.reason})" for entry in self._skipped[:_MAX_SKIPPED_SHOWN]]
            more = len(self._skipped) - len(shown)
            print_line(f"[yellow]Skipped:[/] {', '.join(shown)}" + (f" and {more:,} more" if more else ""))

    def _build_json_summary(self, totals: _Totals, seconds: float, *, interrupted: bool) -> dict[str, Any]:
        return {
            "out": str(self._output.folder),
            "seconds": round(seconds, 3),
            "interrupted": interrupted,
            "explained": [*self._iterate_lines()],
            "removed": self._removed,
            "skipped": [{"path": str(entry.path), "reason": entry.reason} for entry in self._skipped],
            "failed": [{"image": str(failure.job.source), "reason": failure.reason} for failure in self._failed],
            "right": totals.right if self._output.true_classes else None,
            "wrong": totals.wrong if self._output.true_classes else None,
            "sheets": [str(path) for path in self._sheets],
            "notes": [*self._notes],
        }


def print_stopped(done: int, total: int, unit: str) -> None:
    """Print that the user stopped a run, and how to go on."""
    print_line(f"[yellow]Stopped[/] after {done} of {format_count(total, unit)}. The same command continues.")


def print_notes(notes: Iterable[str]) -> None:
    """Print what to tell about the request."""
    for note in notes:
        print_line(f"[yellow]{escape(note)}[/]")


def print_failures(count: int, reasons: Sequence[str]) -> None:
    """Print how many photos could not be explained, and why; of some the reasons may be left out."""
    if count:
        terminal.err.print(f"[bold red]{format_count(count, 'photo')} could not be explained:[/]")
    for reason in reasons:
        terminal.err.print(f"  {escape(reason)}", soft_wrap=True)
    if count > len(reasons):
        terminal.err.print(f"  and {count - len(reasons)} more, in the column failure")


def print_accuracy(right: int, wrong: int, *, only_wrong: bool) -> None:
    """Print how many photos are classified right, and that they have no results if only the others have."""
    total = right + wrong
    if total:
        photos = format_count(total, "photo")
        print_line(f"Accuracy [bold]{format_percent(right / total, 1)}[/]: {right:,} of {photos} right.")
    else:
        print_line("Accuracy is unknown: the model predicts no class, or no photo has a label.")
    if only_wrong:
        print_line(f"{format_count(right, 'photo')} right, without results, as of --only-wrong.")


def print_machine_changes(changes: list[str]) -> None:
    """Warn that a run is continued on another machine."""
    if changes:
        terminal.err.print("[yellow]The run was started on another machine; the last bits of results may differ:[/]")
    for change in changes:
        terminal.err.print(f"  {escape(change)}", soft_wrap=True)


def build_success_line(success: Success, place: str, seconds: float | None) -> str:
    """Return the line of a photo as rich markup.

    For example ``image 3/120 photos/dog.jpg: 375x500 boxer 94.1%, gradcam, 12.3ms``: the size is height x width, the
    time is the model's.

    Args:
        success: The photo and its lines of the manifest.
        place: The number of the photo, and how many there are.
        seconds: Time that the model took; None if it is not known.
    """
    targets = dict.fromkeys(_describe_target(line) for line in success.lines)
    methods = dict.fromkeys(line.method for line in success.lines)
    parts = [
        ", ".join(f"[bold]{escape(target)}[/]" for target in targets),
        ", ".join(map(escape, methods)),
        _describe_verdict(success),
        "" if seconds is None else f"{1000 * seconds:.1f}ms",
    ]
    size = "" if success.size is None else f"{success.size[0]}x{success.size[1]} "
    return _fit(place, str(success.job.source), f"{size}{', '.join(part for part in parts if part)}")


def build_failure_line(failure: Failure, place: str) -> str:
    """Return the line of a photo that could not be explained, as rich markup."""
    reason = failure.reason.removeprefix(f"{failure.job.source}: ")
    return _fit(place, str(failure.job.source), f"[red]failed:[/] {escape(reason)}")


def _describe_target(line: ManifestLine) -> str:
    return line.label if line.probability is None else f"{line.label} {format_percent(line.probability, 1)}"


def _describe_verdict(success: Success) -> str:
    if success.correct is not False:
        return "[green]right[/]" if success.correct else ""
    line = success.lines[0]
    is_shown = line.predicted_label in {other.label for other in success.lines}
    more = "" if is_shown else f", predicted: {line.predicted_label}"
    return f"[red]wrong, true: {escape(f'{line.true_label}{more}')}[/]"


def _fit(place: str, path: str, rest: str) -> str:
    """Return the line; on a terminal the start of a long path is left out, so that the line fits."""
    from rich.text import Text

    path, width = escape_hidden(path), terminal.get_screen_width()
    if width is not None:
        excess = Text.from_markup(rest).cell_len + cell_len(f"{place} {path}: ") - width
        kept = max(_SHORTEST_PATH, len(path) - excess - 1)
        path = path if excess <= 0 or kept >= len(path) else f"…{path[-kept:]}"
    return f"{place} {escape(path)}: {rest}"
