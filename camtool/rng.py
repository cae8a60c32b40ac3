"""The global random generators of torch, numpy and Python, and how to leave them as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["generators_kept"]


@contextmanager
def generators_kept() -> Iterator[Callable[[], bool]]:
    """Put the global random generators back at the end of the block.

    Yields:
        A function that tells whether any of them has been used since the block began.
    """
    before = _states()
    try:
        yield lambda: not _same(_states(), before)
    finally:
        torch.set_rng_state(before["torch"])
        random.setstate(before["python"])
        if "cuda" in before:
            torch.cuda.set_rng_state_all(before["cuda"])
        if "numpy" in before:
            sys.modules["numpy"].random.set_state(before["numpy"])


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)
