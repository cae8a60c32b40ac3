"""A line for each photo of a run, in the form that users of Ultralytics know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from camtool.arguments.messages import format_percent
from camtool.cli import terminal
from camtool.cli.terminal import escape
from camtool.runs.text_escapes import escape_hidden

if TYPE_CHECKING:
    from camtool.runs.report_rows import ManifestLine
    from camtool.runs.result_writer import Failure, Success

_SHORTEST_PATH = 16
"""Characters of a path that are always shown."""


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
        ", ".join(f"[bold]{escape(each)}[/]" for each in targets),
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


def build_warning_lines(lines: Sequence[ManifestLine]) -> list[str]:
    """Return the warnings of a photo's explanations as rich markup, each once."""
    warnings = dict.fromkeys(warning for line in lines for warning in line.warnings)
    return [f"  [yellow]{escape(warning)}[/]" for warning in warnings]


def _describe_target(line: ManifestLine) -> str:
    return line.label if line.probability is None else f"{line.label} {format_percent(line.probability, 1)}"


def _describe_verdict(success: Success) -> str:
    if success.correct is not False:
        return "[green]right[/]" if success.correct else ""
    line = success.lines[0]
    is_shown = line.predicted_label in {each.label for each in success.lines}
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
