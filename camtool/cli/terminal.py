"""Commands in a terminal: the two streams, escaped text, lines, and signs of life.

While one thing takes its time, a terminal shows a spinner, and elsewhere plain lines come in intervals.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich import markup
from rich.console import Console
from rich.text import Text

from camtool.progress import format_duration
from camtool.runs.text_escapes import escape_hidden

# Standard output: results only, so that it can be piped. Neither console highlights numbers or replaces ":smile:", as
# names of files and labels must be shown unchanged.
out = Console(highlight=False, emoji=False)

# Standard error: progress and errors.
err = Console(stderr=True, highlight=False, emoji=False)

# Time before the first line off a terminal.
SECONDS_BEFORE_FIRST_LINE = 2.0

# Time between two lines off a terminal: no log is silent for longer, and a run of an hour adds 360 lines.
SECONDS_BETWEEN_LINES = 10.0


def escape(text: str) -> str:
    """Return text as rich markup that shows it unchanged.

    Names of files, labels and texts may come from anywhere, and may hold markup or control characters.
    """
    return markup.escape(escape_hidden(text))


def print_line(text: str) -> None:
    """Print one line of rich markup to standard output, however long it is."""
    out.print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output, in ASCII only."""
    out.print_json(json.dumps(value), ensure_ascii=True)


def print_note(text: str) -> None:
    """Print one line of plain text to standard error that the user should know, but need not act on."""
    err.print(f"[dim]Note:[/] {escape(text)}", soft_wrap=True)


@contextmanager
def print_warnings(kind: type[Warning], *, is_quiet: bool) -> Iterator[None]:
    """Print the warnings of the block as notes, all of a kind, and of others those that Python would show."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", kind)
        yield
    for warning in caught if not is_quiet else ():
        print_note(str(warning.message))


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


class Heartbeat(AbstractContextManager[None]):
    """A ``with`` block during which a line is printed to standard error after two seconds and then every ten.

    Args:
        describe: Returns the line, from the seconds since the start. Another thread calls it.
    """

    def __init__(self, describe: Callable[[float], str]) -> None:
        self._describe = describe
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print_lines, name="camtool-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _print_lines(self) -> None:
        started, wait = time.monotonic(), SECONDS_BEFORE_FIRST_LINE
        while not self._ended.wait(wait):
            print_notice(self._describe(time.monotonic() - started))
            wait = SECONDS_BETWEEN_LINES


def show_activity(what: str, *, is_quiet: bool = False) -> AbstractContextManager[object]:
    """Return a block during which standard error shows that something goes on, e.g. ``"Loading resnet50"``."""
    if is_quiet:
        return nullcontext()
    if err.is_terminal:
        return err.status(Text(f"{escape_hidden(what)} ..."))
    return Heartbeat(lambda seconds: f"{what} ... {format_duration(seconds)}")
