"""Memory that stays: tensors that live on, and the resident memory of the process."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor

from tests.helpers.proc_files import read_resident_mib


def live_tensors() -> int:
    kinds = Counter(map(type, gc.get_objects()))
    return sum(count for kind, count in kinds.items() if issubclass(kind, Tensor))


def assert_memory_stays(run: Callable[[], object]) -> None:
    """Check that memory does not grow with the number of calls of a function."""

    def measure(calls: int) -> tuple[int, float]:
        for _ in range(calls):
            run()
        gc.collect()
        return live_tensors(), read_resident_mib()

    states = [measure(calls) for calls in (100, 500, 500)]
    assert states[-1][0] <= states[0][0]
    # What a call keeps adds up in every round. The allocator grows once, in a process that has run other tests.
    assert min(later[1] - earlier[1] for earlier, later in pairwise(states)) < 2
