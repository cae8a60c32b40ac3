"""Undo changes: what a block of code changed is taken back when it ends, even if Ctrl-C arrives in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Cleanup", "Step"]

Step: TypeAlias = Callable[[], object]
"""Takes one change back. It does no harm where there is nothing to take back, or when it runs twice."""


class Cleanup:
    """A ``with`` block that takes changes back at its end, the latest first, wherever an interrupt arrives.

    A signal handler may raise, as Ctrl-C does, between any two instructions: after a hook is registered and before its
    handle is stored, or in the middle of a cleanup. ``contextlib.ExitStack`` then leaves changes behind. Three rules
    prevent that here:

    * The step that takes a change back is pushed before the change is made.
    * A step that an interrupt cuts short runs again.
    * The blocks of one thread share a list of steps. If an interrupt arrives when an inner block ends, before Python
      runs the first line of its ``__exit__``, the block around it runs the inner block's steps.

    Args:
        prepare: Makes the changes of a block, as the block begins; it is called with this object.
        steps: The list that the steps go to; by default the thread's own, for blocks that are properly nested.
    """

    def __init__(self, prepare: Callable[[Cleanup], None] | None = None, *, steps: list[Step] | None = None) -> None:
        self._prepare = prepare
        self._steps = _THREAD.steps if steps is None else steps
        self._start, self._mark = 0, _Mark()

    def push(self, step: Step) -> None:
        """Run ``step`` when the innermost open block ends. Call this before the change that the step takes back."""
        self._steps.append(step)

    def close(self) -> None:
        """Run the steps of this block and of all inner ones; the exceptions of steps do not stop the others."""
        self.__exit__()

    def __enter__(self) -> Self:
        self._start = len(self._steps)
        try:
            self._steps.append(self._mark)
            if self._prepare is not None:
                self._prepare(self)
            return self
        except BaseException:  # without an __enter__ that returned there will be no __exit__
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._undo()
        finally:
            self._undo()  # what an interrupt cut short; else there is nothing left

    def _undo(self) -> None:
        steps = self._steps
        if self._mark not in steps[self._start : self._start + 1]:  # a block around this one has closed it already
            return
        while len(steps) > self._start:
            try:
                steps[-1]()
            except Exception:
                try:
                    steps.pop()()  # again: it may be an alarm's exception that cut it short
                finally:
                    self._undo()
                raise
            steps.pop()


class _Mark:
    """Stands in a list of steps where those of a block begin."""

    def __call__(self) -> None:
        """Do nothing: there is nothing to take back."""


class _Thread(threading.local):
    """The steps that this thread has yet to run."""

    def __init__(self) -> None:
        self.steps: list[Step] = []


_THREAD = _Thread()
