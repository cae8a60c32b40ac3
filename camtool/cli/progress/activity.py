"""Signs of life while one thing takes its time: a spinner on a terminal, elsewhere plain lines in intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.text import Text

from camtool.cli import terminal
from camtool.progress import format_duration
from camtool.runs.text_escapes import escape_hidden

SECONDS_BEFORE_FIRST_LINE = 2.0
"""Time before the first line off a terminal."""

SECONDS_BETWEEN_LINES = 10.0
"""Time between two lines off a terminal: no log is silent for longer, and a run of an hour adds 360 lines."""


class Heartbeat:
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
            terminal.print_notice(self._describe(time.monotonic() - started))
            wait = SECONDS_BETWEEN_LINES


@contextmanager
def show_activity(what: str, *, is_quiet: bool = False) -> Iterator[None]:
    """Show on standard error that something goes on, e.g. ``"Loading resnet50"``."""
    if is_quiet:
        yield
        return
    if terminal.err.is_terminal:
        sign = terminal.err.status(Text(f"{escape_hidden(what)} ..."))
        with sign:
            yield
        return
    with Heartbeat(lambda seconds: f"{what} ... {format_duration(seconds)}"):
        yield
