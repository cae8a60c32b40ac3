"""Undo the changes of a ``with`` block when it ends, even if Ctrl-C arrives in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from typing_extensions import Self

# A function that undoes one change. It does no harm if there is nothing to undo, or if it runs twice.
Step: TypeAlias = Callable[[], object]


class Cleanup:
    """A ``with`` block that undoes changes at its end, the latest first, wherever an interrupt arrives.

    A signal handler may raise, as Ctrl-C does, between any two instructions: after a hook is registered and before its
    handle is stored, or in the middle of a cleanup. ``contextlib.ExitStack`` then leaves changes behind. Three rules
    prevent that here:

    * The step that undoes a change is pushed before the change is made.
    * A step that an interrupt cuts short runs again.
    * The blocks of one thread share a list of steps. If an interrupt arrives when an inner block ends, before Python
      runs the first line of its ``__exit__``, the block around it runs the inner block's steps.

    Args:
        prepare: A function that makes the changes when the block begins. It is called with this object.
        steps: The list of steps to use. The default is the list of the thread, for blocks that are properly nested.
    """

    def __init__(self, prepare: Callable[[Cleanup], None] | None = None, *, steps: list[Step] | None = None) -> None:
        self._prepare = prepare
        self._steps = _THREAD.steps if steps is None else steps
        # The steps of this block begin with a step of its own, which does nothing.
        self._start, self._mark = 0, partial(bool)

    def push(self, step: Step) -> None:
        """Run ``step`` when the innermost open block ends. Call this before the change that the step undoes."""
        self._steps.append(step)

    def close(self) -> None:
        """Run the steps of this block and of all inner ones. An exception in a step does not stop the others."""
        self.__exit__()

    def __enter__(self) -> Self:
        self._start = len(self._steps)
        try:
            self._steps.append(self._mark)
            if self._prepare is not None:
                self._prepare(self)
            return self
        except BaseException:
            # If __enter__ raises, Python does not call __exit__.
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._undo()
        finally:
            self._undo()  # again, as an interrupt may have cut it short; otherwise nothing is left

    def _undo(self) -> None:
        steps = self._steps
        # A block around this one may have run the steps of this one already.
        if self._mark not in steps[self._start : self._start + 1]:
            return
        while len(steps) > self._start:
            try:
                steps[-1]()
            except Exception:
                try:
                    steps.pop()()  # again, as the exception of an alarm may have cut it short
                finally:
                    self._undo()
                raise
            steps.pop()


class _Thread(threading.local):
    """The steps that this thread has not run yet."""

    def __init__(self) -> None:
        self.steps: list[Step] = []


_THREAD = _Thread()
