"""Names of results, and lines about them, for the commands on videos and slides."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from camtool.cli import terminal
from camtool.cli.progress import run_summary
from camtool.cli.terminal import escape, print_line
from camtool.errors import CamtoolError
from camtool.runs.file_names import make_distinct

__all__ = ["name_results", "print_failure", "print_result", "stop_on_signal"]


def name_results(paths: list[str]) -> list[str]:
    """Return a name for the results of each file: its own without the suffix, and a number if two are alike."""
    return make_distinct([Path(path).stem for path in paths])


def print_result(text: str, started: float, layer: str, saved: Path, warnings: Iterable[str]) -> None:
    """Print what was explained, how long it took, where the results are, and each warning."""
    seconds = time.perf_counter() - started
    where = f", at layer [bold]{escape(layer)}[/]" if layer else ""
    print_line(f"[bold green]{escape(text)}[/] in {seconds:.1f} s{where}.")
    print_line(f"Saved to [bold]{escape(str(saved))}[/]")
    for warning in warnings:
        print_line(f"[yellow]{escape(warning)}[/]")


def print_failure(path: str, error: CamtoolError) -> None:
    """Print why a file could not be explained."""
    text = str(error)
    terminal.err.print(f"[bold red]Failed:[/] {escape(text if path in text else f'{path}: {text}')}", soft_wrap=True)


@contextmanager
def stop_on_signal() -> Iterator[None]:
    """Exit with code 130 at Ctrl-C and 143 at SIGTERM. Files are complete or absent.

    Raises:
        SystemExit: At either.
    """
    try:
        with run_summary.stop_at_sigterm():
            yield
    except KeyboardInterrupt as stop:
        raise SystemExit(143 if isinstance(stop, run_summary.Terminated) else 130) from None
