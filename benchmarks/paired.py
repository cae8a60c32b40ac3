"""Measuring things against each other: in one process, in turns, so that a slow moment hits all alike."""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import camtool

Run = Callable[[], object]

_NONE: Mapping[str, AbstractContextManager[Any]] = {}


def in_turns(
    runs: Mapping[str, Run],
    turns: int,
    *,
    warm_up: int = 2,
    inside: Mapping[str, AbstractContextManager[Any]] = _NONE,
    again: bool = False,
) -> dict[str, list[float]]:
    """The seconds that each takes in each turn; every other turn goes in the other order.

    ``inside`` are blocks that some run in; what it takes to enter and to leave them is not measured. With ``again``
    each run follows upon one of its own kind, as in a loop, and not upon another.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-warm_up, turns):  # the first run loads, allocates, and resolves the layer
        for name in list(runs) if turn % 2 else list(runs)[::-1]:
            with inside.get(name, nullcontext()):
                if again:
                    seconds(runs[name])
                times[name].append(seconds(runs[name]))
    return {name: measured[warm_up:] for name, measured in times.items()}


def ratio(times: Mapping[str, list[float]], of: str, to: str) -> float:
    """The median, over the turns, of what one takes in units of another."""
    return round(statistics.median(one / other for one, other in zip(times[of], times[to], strict=True)), 3)


def seconds(run: Run) -> float:
    """How long it takes; its warnings are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        run()
        return time.perf_counter() - started


def forward(model: nn.Module, batch: Tensor) -> Run:
    """The plain forward that all is compared with."""

    def run() -> None:
        with torch.inference_mode():
            model(batch)

    return run


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "camtool": camtool.__version__,
    }
