"""The ``with`` block of a recorder: nested use, the thread that may use it, and an exit that survives interrupts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from camtool.errors import CamtoolError
from camtool.hooks.state.cleanup import Cleanup


class RecorderBlock:
    """The open blocks of a recorder. Only one thread at a time can have any, and blocks may be nested.

    Args:
        start: Registers the hooks when the outermost block opens; the cleanup undoes it.
        pause: Forgets the running forward pass when any block closes.
        stop: Completes the records when the outermost block closes.

    Attributes:
        depth: The number of open blocks.
        statements: For each depth, the exit method that a ``with`` statement holds, see :class:`SafeExit`.
    """

    def __init__(self, start: Callable[[Cleanup], None], pause: Callable[[], None], stop: Callable[[], None]) -> None:
        self.depth = 0
        self.statements: dict[int, weakref.ref[partial[None]]] = {}
        self._owner = 0
        self._start, self._pause, self._stop = start, pause, stop
        self._cleanup = Cleanup(steps=[])

    def check_thread(self) -> None:
        """Check that no other thread has an open block.

        Raises:
            CamtoolError: Another thread has.
        """
        if self.depth and self._owner != threading.get_ident():
            raise CamtoolError("another thread is in this recorder's block; give each thread a Recorder of its own.")

    def enter(self) -> None:
        """Open a block."""
        if not self.depth:
            self._owner = threading.get_ident()
            self._cleanup.__enter__()
            self._start(self._cleanup)
        self.depth += 1

    def leave(self, depth: int) -> None:
        """Close all blocks but ``depth``. A second call does no harm."""
        self.depth = depth
        self._pause()
        self.statements.pop(depth, None)
        if not depth:
            try:
                self._stop()
            finally:
                self._cleanup.close()


class SafeExit:
    """An ``__exit__`` method that runs even if an interrupt arrives before its first line.

    Python checks for interrupts when a function begins. So an interrupt that arrives while the last tensors of a block
    are freed skips ``__exit__``. But a ``with`` statement looks ``__exit__`` up when it begins, and drops the method
    when it ends. If the block is still open when the method is dropped, the block is closed then.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, recorder: Any, owner: type) -> Callable[..., None]:
        if recorder is None:
            return self._function
        block: RecorderBlock = recorder._block
        bound, depth = partial(self._function, recorder), block.depth
        block.statements[depth] = weakref.ref(bound, partial(_leave_dropped_block, weakref.ref(block), depth))
        return bound


def _leave_dropped_block(reference: weakref.ref[RecorderBlock], depth: int, _: object) -> None:
    block = reference()
    if block is not None and block.depth > depth:
        block.leave(depth)
