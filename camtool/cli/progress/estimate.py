"""Estimate of the time that a run takes, from its first batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from camtool.arguments.messages import format_count
from camtool.progress import format_duration

if TYPE_CHECKING:
    from camtool.progress import PassCounter, Stage

_LONG_RUN = 60.0
"""Seconds from which on the time of a run is told before it ends."""

_SECONDS_BEFORE_GUESS = 5.0
"""Time after which a slow first batch is judged by its passes."""


class Passes:
    """Loops over passes inside the explanations of a batch: the innermost last.

    Methods may loop more than once in a batch, and a loop may have loops inside.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loops: list[_Loop] = []
        self._steps: list[_Step] = []
        self._finished = 0
        self._started: float | None = None

    def __call__(self, count: int, stage: Stage | None = None, /) -> PassCounter:
        """Start to follow a loop or a step; :func:`camtool.progress.send_progress` calls this."""
        if stage is not None and not stage.unit:
            return _Step(stage.activity, self._steps)
        if self._started is None:
            self._started = self._clock()
        loop = _Loop(self, count)
        self._loops.append(loop)
        return loop

    def end_batch(self) -> None:
        """Forget the loops of a batch."""
        self._loops, self._finished, self._started = [], 0, None

    def end_loop(self, loop: _Loop) -> None:
        """Forget a loop, and count it if it is not inside another one."""
        if loop in self._loops:
            self._finished += self._loops.index(loop) == 0
            self._loops = [other for other in self._loops if other is not loop]

    @property
    def seconds(self) -> float:
        """Time since the first loop of the batch."""
        return 0.0 if self._started is None else self._clock() - self._started

    @property
    def done(self) -> float:
        """Loops of the batch that are done, the current one by its part."""
        part = 0.0
        for loop in reversed([*self._loops]):
            part = min(1.0, (loop.done + part) / max(1, loop.count))
        return self._finished + part

    def describe(self) -> str:
        """Return where the loops are, e.g. ``"pass 1,200 of 8,000"``, or the step that goes on; empty between them."""
        for step in self._steps[-1:]:
            return step.activity[0].lower() + step.activity[1:]
        loops = [loop for loop in self._loops if loop.count > 1]
        if not loops:
            return ""
        outer = "".join(f"part {min(loop.done + 1, loop.count):,} of {loop.count:,}, " for loop in loops[:-1])
        return f"{outer}pass {loops[-1].done:,} of {loops[-1].count:,}"


class _Loop:
    """One loop over passes."""

    def __init__(self, owner: Passes, count: int) -> None:
        self._owner = owner
        self.count, self.done = count, 0

    def update(self, passes: int, /) -> None:
        self.done += passes

    def close(self) -> None:
        self._owner.end_loop(self)


class _Step:
    """A step that has no parts, such as compiling."""

    def __init__(self, activity: str, steps: list[_Step]) -> None:
        self.activity, self._steps = activity, steps
        steps.append(self)

    def update(self, passes: int, /) -> None:
        """Do nothing: there are no parts."""

    def close(self) -> None:
        if self in self._steps:
            self._steps.remove(self)


class Estimate:
    """Estimate of the time that a run over photos, tiles or frames takes.

    The first batch is slower than the others, as the layer is chosen and engines compile, so the estimate is made from
    the second one on. If the first takes long, its passes give a lower limit.

    Args:
        photos: The number of photos.
        batch_size: The number of photos in a batch.
        passes: The loops of the current batch.
        clock: Returns the time in seconds.
        unit: What is counted, in the singular.
    """

    def __init__(
        self,
        photos: int,
        batch_size: int,
        passes: Passes,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "photo",
    ) -> None:
        self._photos, self._batch_size, self._passes, self._clock = photos, batch_size, passes, clock
        self._unit = unit
        self._started = clock()
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def add_batch(self, photos: int) -> None:
        """Note that a batch is done."""
        now = self._clock() - self._started
        self._last = ((self._last[0] if self._last else 0) + photos, now)
        self._first = self._first or self._last
        self._passes.end_batch()

    def leave_out(self, photos: int) -> None:
        """Note that photos are not explained, as an earlier run did."""
        self._photos -= photos

    @property
    def total(self) -> float | None:
        """Seconds that the whole run takes; ``None`` before the second batch is done."""
        if self._first is None or self._last is None or self._last[0] == self._first[0]:
            return None
        per_photo = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        return self._first[1] + per_photo * (self._photos - self._first[0])

    @property
    def rest(self) -> float | None:
        """Seconds that the rest takes; ``None`` if that is not known."""
        return None if self.total is None else max(0.0, self.total - (self._clock() - self._started))

    @property
    def least(self) -> float | None:
        """Seconds that the run takes at least, judged by the passes of the first batch; ``None`` if not known."""
        seconds, done = self._passes.seconds, self._passes.done
        if self._first is not None or seconds < _SECONDS_BEFORE_GUESS or not done:
            return None
        batches = -(-self._photos // self._batch_size)
        # Each batch loops at least as often as the first one has until now.
        return seconds / done * math.ceil(done) * batches

    def describe(self) -> str:
        """Return the time that a long run takes, e.g. ``"About 7 min for 1,200 photos."``; empty for a short one."""
        for words, seconds in (("About", self.total), ("At least", self.least)):
            if seconds is not None:
                photos = format_count(self._photos, self._unit)
                return f"{words} {format_duration(seconds)} for {photos}." if seconds > _LONG_RUN else ""
        return ""
