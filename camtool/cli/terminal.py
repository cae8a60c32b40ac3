"""Output of the command line: the two streams, escaped text, lines and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from rich import markup
from rich.console import Console

from camtool.runs.text_escapes import escape_hidden

# Neither console highlights numbers or replaces ":smile:", as names of files and labels must be shown unchanged.
out = Console(highlight=False, emoji=False)
"""Standard output: results only, so that it can be piped."""

err = Console(stderr=True, highlight=False, emoji=False)
"""Standard error: progress and errors."""


def escape(text: str) -> str:
    """Return text as rich markup that shows it unchanged.

    Names of files, labels and texts may come from anywhere, and may hold markup or control characters.
    """
    return markup.escape(escape_hidden(text))


def exit_with_error(message: str) -> NoReturn:
    """Print an error and exit with code 2.

    Raises:
        SystemExit: Always.
    """
    # The second and later lines are indented, so that a file name with a line break cannot fake a message.
    lines = "\n  ".join(escape(line) for line in message.split("\n"))
    err.print(f"[bold red]Error:[/] {lines}", soft_wrap=not err.is_terminal)
    raise SystemExit(2)


def print_line(text: str) -> None:
    """Print one line of rich markup to standard output, however long it is."""
    out.print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output, in ASCII only."""
    out.print_json(json.dumps(value), ensure_ascii=True)


def print_note(text: str) -> None:
    """Print one line of plain text to standard error that the user should know, but need not act on."""
    err.print(f"[dim]Note:[/] {escape(text)}", soft_wrap=True)


def print_notice(text: str) -> None:
    """Print one line of plain text to standard error, above a progress bar if there is one."""
    err.print(escape(text), soft_wrap=True)


def print_styled(lines: Iterable[tuple[str, str]]) -> None:
    """Print pairs of a line and its rich style: never wrapped, and without markup."""
    for line, style in lines:
        out.print(escape_hidden(line), style=style or None, markup=False, emoji=False, soft_wrap=True)


def get_screen_width() -> int | None:
    """Return the number of characters on a line of the terminal; None if standard output is not a terminal."""
    return out.width if out.is_terminal else None
