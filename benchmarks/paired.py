"""Paired timing: several functions run in one process and in turns, so that a slow moment affects all of them."""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool

Run = Callable[[], object]

DeviceOption: TypeAlias = Annotated[str, typer.Option("--device", help="Device of model and batch: cpu or cuda.")]
"""The device of a benchmark. The numbers of a GPU stand beside those of the CPU, in rows of their own."""

_NONE: Mapping[str, AbstractContextManager[Any]] = {}


def measure_in_turns(
    runs: Mapping[str, Run],
    turns: int,
    *,
    warm_up: int = 2,
    inside: Mapping[str, AbstractContextManager[Any]] = _NONE,
    again: bool = False,
) -> dict[str, list[float]]:
    """Return the seconds that each function takes in each turn. Every second turn runs in reverse order.

    Args:
        runs: Name to function.
        turns: The number of turns.
        warm_up: The number of turns before, which are not counted.
        inside: Name to the context in which the function runs. Entering and leaving it is not measured.
        again: Run each function twice in a row and measure the second run, as in a loop.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-warm_up, turns):  # the first run loads, allocates and finds the layer
        for name in list(runs) if turn % 2 else list(runs)[::-1]:
            with inside.get(name, nullcontext()):
                if again:
                    time_run(runs[name])
                times[name].append(time_run(runs[name]))
    return {name: measured[warm_up:] for name, measured in times.items()}


def compute_ratio(times: Mapping[str, list[float]], of: str, to: str) -> float:
    """Return the median over the turns of the time of one function divided by that of another."""
    return round(statistics.median(one / other for one, other in zip(times[of], times[to], strict=True)), 3)


def time_run(run: Run) -> float:
    """Return the seconds that a function takes; its warnings are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        run()
        wait_for_device()
        return time.perf_counter() - started


def wait_for_device() -> None:
    """Wait until a GPU has done all that was asked of it; without one do nothing."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if torch.backends.mps.is_available():
        torch.mps.synchronize()


def make_forward(model: nn.Module, batch: Tensor) -> Run:
    """Return the plain forward pass, which everything is compared with."""

    def run() -> None:
        with torch.inference_mode():
            model(batch)

    return run


def describe_machine(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return the processors and the versions that the numbers were measured with."""
    return {
        "processor": _read_processor(),
        "threads": threads,
        **({"device": torch.cuda.get_device_name(device)} if torch.device(device).type == "cuda" else {}),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "camtool": camtool.__version__,
    }


def _read_processor() -> str:
    """Return the name of the processor; Linux has it in a file."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
