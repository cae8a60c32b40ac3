"""A bar on a terminal that tells the time that is left, for work whose steps take equally long."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from camtool.cli import terminal


def build_countdown(*, is_quiet: bool) -> Progress:
    """Return a bar for standard error; it is hidden where there is no terminal.

    Args:
        is_quiet: Hide it on a terminal, too.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=terminal.err, transient=True, disable=is_quiet or not terminal.err.is_terminal)
