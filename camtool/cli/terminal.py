"""Commands in a terminal: the two streams, escaped text, lines and errors, signs of life, and how a command stops.

While one thing takes its time, a terminal shows a spinner, and elsewhere plain lines come in intervals. At Ctrl-C and
at SIGTERM a command keeps what is done, and ends with the exit code of the signal.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import typer
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


# --------------------------------------------------------------------------------------------------- how it stops


class Terminated(KeyboardInterrupt):
    """Stop of a run by SIGTERM; it ends as at Ctrl-C."""


@dataclass
class Stop:
    """Stop of a block of work.

    Attributes:
        code: The exit code of the signal that stopped it; 0 if none did.
    """

    code: int = 0


@contextmanager
def catch_stop() -> Iterator[Stop]:
    """End the block at Ctrl-C and at SIGTERM, and go on behind it, where :class:`Stop` says whether that happened."""
    stop = Stop()
    try:
        with stop_at_sigterm():
            yield stop
    except KeyboardInterrupt as interrupt:
        # By convention 128 plus the number of the signal.
        stop.code = 143 if isinstance(interrupt, Terminated) else 130


@contextmanager
def exit_at_stop(notice: str = "") -> Iterator[None]:
    """Leave the command at Ctrl-C and at SIGTERM, after a notice.

    Raises:
        typer.Exit: With the code of the signal.
    """
    with catch_stop() as stop:
        yield
    if stop.code:
        if notice:
            print_notice(notice)
        raise typer.Exit(stop.code)


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
