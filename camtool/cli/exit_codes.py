"""Exit codes of commands, after an error and after a signal.

Exit codes: 0 all fine, 1 some photos could not be explained, ``--fail-on`` of an audit or a diff applies, a repair is
none, or the self-test of ``camtool doctor`` failed, 2 invalid request, 130 interrupted (Ctrl-C), 143 terminated
(SIGTERM). At Ctrl-C and at SIGTERM a command keeps what is done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from camtool.cli import terminal


def exit_with_error(message: str) -> NoReturn:
    """Print an error and exit with code 2.

    Raises:
        SystemExit: Always.
    """
    # The second and later lines are indented, so that a file name with a line break cannot fake a message.
    lines = "\n  ".join(terminal.escape(line) for line in message.split("\n"))
    terminal.err.print(f"[bold red]Error:[/] {lines}", soft_wrap=not terminal.err.is_terminal)
    raise SystemExit(2)


class Terminated(KeyboardInterrupt):
    """Stop of a run by SIGTERM; it ends as at Ctrl-C."""


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
            terminal.print_notice(notice)
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
