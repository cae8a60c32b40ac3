"""The global random generators of torch, numpy and Python, and how to leave them as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from camtool.cleanup import Cleanup

__all__ = ["keep_generators", "noisy"]


def keep_generators(cleanup: Cleanup) -> Callable[[], bool]:
    """Put the global random generators back at the end of the cleanup's block.

    Returns:
        A function that tells whether any of them has been used since.
    """
    before = _states()
    cleanup.push(partial(_restore, before))
    return lambda: not _same(_states(), before)


def noisy(pictures: Tensor, samples: int, level: float, seed: int) -> Iterator[Tensor]:
    """Pictures ``(N, C, *size)`` with normal noise added, again and again; no global generator is used.

    Args:
        pictures: What it is added to.
        samples: How often.
        level: The noise's standard deviation, as a part of the range ``max x - min x`` of each picture.
        seed: Of the noise, which is the same for every picture, device and type but for that range.
    """
    values, dice = pictures.flatten(1), torch.Generator().manual_seed(seed)
    deviation = level * (values.amax(1) - values.amin(1)).reshape(-1, *[1] * (pictures.ndim - 1))
    for _ in range(samples):
        drawn = torch.randn(pictures.shape[1:], generator=dice, dtype=torch.float32)
        yield pictures + deviation * drawn.to(pictures)


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _restore(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)
