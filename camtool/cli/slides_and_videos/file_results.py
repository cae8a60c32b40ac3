"""The loop over the files of ``camtool video`` and ``camtool slide``: progress, names of results, lines about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from camtool.cli import terminal
from camtool.cli.options.output_options import PrintOptions
from camtool.cli.progress import run_summary
from camtool.cli.progress.file_progress import FileProgress
from camtool.cli.terminal import escape, print_line
from camtool.errors import ImageError
from camtool.runs.file_names import make_distinct


@dataclass(frozen=True)
class FileResult:
    """Result for one file.

    Attributes:
        text: What was explained.
        layer: The layer; empty for methods at the input.
        saved: Where the results are.
        warnings: The warnings.
    """

    text: str
    layer: str
    saved: Path
    warnings: Sequence[str]


def explain_files(paths: list[str], printed: PrintOptions, explain: Callable[[str, str], FileResult]) -> None:
    """Explain each file, and print what was explained, how long it took, where the results are, and each warning.

    Args:
        paths: The files.
        printed: Options of what is printed.
        explain: Explains a file, given its path and the name for its results, and saves them.

    Raises:
        typer.Exit: Always: with 0, 1 if a file could not be explained, 130 at Ctrl-C and 143 at SIGTERM. Files are
            complete or absent.
    """
    lines: list[dict[str, Any]] = []
    # The name of a file without its suffix, and a number if two are alike.
    names = make_distinct([Path(path).stem for path in paths])
    try:
        with run_summary.stop_at_sigterm():
            for path, name in zip(paths, names, strict=True):
                started = time.perf_counter()
                try:
                    with FileProgress(Path(path).name, is_quiet=printed.hides_progress):
                        result = explain(path, name)
                except ImageError as error:
                    lines.append({"path": path, "failure": str(error)})
                    text = str(error) if path in str(error) else f"{path}: {error}"
                    terminal.err.print(f"[bold red]Failed:[/] {escape(text)}", soft_wrap=True)
                    continue
                seconds = time.perf_counter() - started
                lines.append({"path": path, **vars(result), "saved": str(result.saved), "seconds": round(seconds, 2)})
                if not printed.hides_progress:
                    _print_result(result, seconds)
    except KeyboardInterrupt as stop:
        raise typer.Exit(143 if isinstance(stop, run_summary.Terminated) else 130) from None
    if printed.as_json:
        terminal.print_json(lines)
    raise typer.Exit(1 if any("failure" in line for line in lines) else 0)


def _print_result(result: FileResult, seconds: float) -> None:
    where = f", at layer [bold]{escape(result.layer)}[/]" if result.layer else ""
    print_line(f"[bold green]{escape(result.text)}[/] in {seconds:.1f} s{where}.")
    print_line(f"Saved to [bold]{escape(str(result.saved))}[/]")
    for warning in result.warnings:
        print_line(f"[yellow]{escape(warning)}[/]")
