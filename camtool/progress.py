"""Progress of all work that may take over two seconds: loops over passes, compiling, the first look at a model.

Code that works tells what it does by :func:`follow_loop` and :func:`follow_step`. A caller that shows progress itself,
such as the command line, listens by :func:`send_progress`. Otherwise a display appears after two seconds, if standard
error is a terminal or a notebook, or if :func:`show_progress` asks for it.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TextIO, TypeVar

_T = TypeVar("_T")

# A display for a shorter wait would only flicker.
_SECONDS_BEFORE_PROGRESS = 2.0

_SECONDS_BETWEEN_FRAMES = 0.5

# As in the logs of the command line: an hour adds 360 lines.
_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Stage:
    """A long part of the work, such as explaining the tiles of a slide.

    Attributes:
        activity: What is done, with a capital: ``"Explaining"``.
        unit: What is counted, in the singular: ``"tile"``. Empty for a step that has no parts.
        batch_size: How many are done at once.
    """

    activity: str
    unit: str = ""
    batch_size: int = 1


class PassCounter(Protocol):
    """Receiver of the progress of one loop."""

    def update(self, passes: int, /) -> object:
        """Note that further passes are done."""

    def close(self) -> object:
        """Note that the loop has ended, also before its last pass."""


class ProgressListener(Protocol):
    """Function that is called at the start of each loop over passes, with their number. Loops may be nested.

    A loop that is a stage of the work comes with a second argument.
    """

    def __call__(self, count: int, stage: Stage = ..., /) -> PassCounter:
        """Return what follows the loop."""


_listener: ContextVar[ProgressListener | None] = ContextVar("progress_listener", default=None)

# True to show a display everywhere, False for nowhere; ``None`` for terminals and notebooks alone.
_visible: ContextVar[bool | None] = ContextVar("progress_visible", default=None)


@contextmanager
def show_progress(visible: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002  a switch reads well by position
    """Show the progress of all that takes over two seconds within a ``with`` block, or hide it.

    By default it is shown on a terminal and in a notebook, and not if standard error is a file or a pipe::

        with camtool.show_progress(False):
            results = camtool.explain(model, photos, method="scorecam")

    Args:
        visible: ``False`` shows nothing. ``True`` shows it everywhere; a file gets a line every ten seconds.
    """
    token = _visible.set(visible)
    try:
        yield
    finally:
        _visible.reset(token)


@contextmanager
def send_progress(listener: ProgressListener) -> Iterator[None]:
    """Send the progress of all loops in the block to a listener, which is called in the thread of the loop."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def follow_loop(count: int, stage: Stage | None = None) -> PassCounter:
    """Return what the caller tells the progress of a loop: ``update(n)`` for each part, ``close()`` at the end.

    Args:
        count: The number of passes.
        stage: What the loop does, if it is no loop of a method over passes.
    """
    listener = _listener.get()
    if listener is not None:
        return listener(count) if stage is None else listener(count, stage)
    return _Loop(count, stage or Stage("Explaining", "pass"))


def follow_each(items: Sequence[_T], stage: Stage) -> Iterator[_T]:
    """Yield the items of a loop, and show how many are done."""
    with closing(follow_loop(len(items), stage)) as loop:
        for item in items:
            yield item
            loop.update(1)


@contextmanager
def follow_step(activity: str) -> Iterator[None]:
    """Show that a step goes on which has no parts to count, e.g. ``"Compiling for onnxruntime"``."""
    with closing(follow_loop(1, Stage(activity))):
        yield


def follow_images(count: int) -> AbstractContextManager[PassCounter | None]:
    """Show how many images of a call are done. A caller that listens follows its own images: then this is ``None``."""
    if _listener.get() is not None:
        return nullcontext()
    return closing(_Loop(count, Stage("Explaining", "image")))


class _Loop:
    """A loop that is shown on the display of its thread."""

    def __init__(self, count: int, stage: Stage) -> None:
        self._count, self._done, self._stage = count, 0, stage
        self._started = time.monotonic()
        self._display = _Display.open(self)

    def update(self, passes: int, /) -> None:
        self._done += passes

    def close(self) -> None:
        if self._display is not None:
            self._display.close(self)

    @property
    def has_parts(self) -> bool:
        """True if the loop counts something."""
        return bool(self._stage.unit)

    def describe(self) -> str:
        """Return how far the loop is, e.g. ``"Explaining: pass 1,200 of 8,000, about 2 min left"``."""
        if not self.has_parts:
            return self._stage.activity
        text = f"{self._stage.activity}: {self._stage.unit} {self._done:,} of {self._count:,}"
        if not self._done:
            return text
        rest = (time.monotonic() - self._started) * (self._count - self._done) / self._done
        return f"{text}, about {format_duration(rest)} left"


class _Display:
    """A line about the nested loops of one thread. A thread of its own draws it after two seconds.

    That thread only reads the loops, so the work waits for no lock, and it imports nothing, so a process that is forked
    meanwhile inherits no locked module.
    """

    _of_thread = threading.local()

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._loops: list[_Loop] = []
        self._started, self._ended = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._draw, name="camtool-progress", daemon=True)

    @classmethod
    def open(cls, loop: _Loop) -> _Display | None:
        """Return the display of this thread, with a further loop on it; ``None`` if nothing is shown."""
        is_asked = _visible.get()
        if is_asked is False or not (is_asked or _can_redraw(sys.stderr)):
            return None
        display: _Display | None = getattr(cls._of_thread, "display", None)
        if display is not None and not display._ended.is_set():
            display._loops.append(loop)
            return display
        display = cls._of_thread.display = cls()
        display._loops.append(loop)
        display._thread.start()
        return display

    def close(self, loop: _Loop) -> None:
        """Remove a loop; the last one ends the display."""
        if loop in self._loops:
            self._loops.remove(loop)
        if not self._loops and not self._ended.is_set():
            self._ended.set()
            self._thread.join()

    def _draw(self) -> None:
        is_redrawn = _can_redraw(self._stream)
        wait, width = _SECONDS_BEFORE_PROGRESS, shutil.get_terminal_size().columns - 1
        while not self._ended.wait(wait):
            loops = list(self._loops)
            # Of steps inside steps, the innermost says most.
            texts = [loop.describe() for loop in loops if loop.has_parts or loop is loops[-1]]
            line = f"{', '.join(texts)}, {format_duration(time.monotonic() - self._started)}"
            wait = _SECONDS_BETWEEN_FRAMES if is_redrawn else _SECONDS_BETWEEN_LINES
            # The line is padded, as an older one may have been longer.
            self._write(f"\r{line[:width]:<{width}}" if is_redrawn else f"{line}\n")
        if is_redrawn and wait != _SECONDS_BEFORE_PROGRESS:
            self._write(f"\r{'':<{width}}\r")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the user closed the stream
            self._stream.write(text)
            self._stream.flush()


def _can_redraw(stream: TextIO | None) -> bool:
    """Return True for a terminal and for the output of a notebook's cell, where a line can be written over."""
    # The standard error of a notebook is a stream of ipykernel.
    return stream is not None and (stream.isatty() or type(stream).__module__ == "ipykernel.iostream")


def format_duration(seconds: float) -> str:
    """Return a duration as the user would say it: ``"45 s"``, ``"7 min"``, ``"2.5 h"``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
