"""Explanations on a GPU: ``python -m benchmarks gpu``.

On each GPU of the machine, CUDA or MPS, with random weights and a batch that is on the device:

* **images a second** of the plain forward pass, of ``Explainer.compute_maps``, of ``explain`` and of ``faithcam``, in
  float32, under autocast to float16 or bfloat16, and with a model that ``torch.compile`` made; medians of runs in
  turns in one process;
* **waits**: how often an explanation waits for the device, as :mod:`benchmarks.host_syncs` counts them;
* **peak memory** of an explanation divided by that of the forward pass, by PyTorch's allocator (CUDA alone);
* **distance** to the maps of the CPU in float32, as a share of the peak, the largest of all cells.

``--device cpu`` tries the script where there is no GPU; such rows say nothing about a GPU, and are not stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool
from benchmarks.host_syncs import count_events
from benchmarks.paired import Run, describe_machine, make_forward, measure_in_turns, wait_for_device

_OUT = Path(__file__).with_suffix(".json")
_CLASS = 281
PRECISIONS = ("float32", "float16", "bfloat16", "compiled")


def main(
    device: Annotated[list[str], typer.Option(help="Device; may be repeated. By default all GPUs.")] = [],  # noqa: B006
    model: Annotated[list[str], typer.Option(help="Model of torchvision; may be repeated.")] = [],  # noqa: B006
    batch_size: Annotated[list[int], typer.Option(help="Images in a batch; may be repeated.")] = [],  # noqa: B006
    precision: Annotated[list[str], typer.Option(help="One of the rows; may be repeated. By default all.")] = [],  # noqa: B006
    turns: Annotated[int, typer.Option(help="Runs of each, in turns.")] = 15,
) -> None:
    """Measure, print, and write the numbers to a JSON file; those of other devices are kept."""
    devices = device or list_gpus()
    if not devices:
        raise SystemExit("There is no GPU here (neither CUDA nor MPS); --device cpu tries the script without one.")
    for one in devices:
        rows = {
            f"{name}, {size}, {kind}": measure(name, size, kind, one, turns)
            for name in model or ["resnet50", "mobilenet_v2", "vit_b_16"]
            for size in batch_size or [1, 32]
            for kind in precision or PRECISIONS
        }
        print(json.dumps({one: rows}, indent=1))
        if one != "cpu":
            stored = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
            stored[one] = {"machine": describe_machine(torch.get_num_threads(), one)} | rows
            _OUT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def list_gpus() -> list[str]:
    """Return the kinds of GPUs of this machine."""
    is_there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [name for name, there in is_there.items() if there]


def measure(name: str, batch_size: int, precision: str, device: str, turns: int) -> dict[str, Any]:
    """Return all numbers of a model."""
    torch.manual_seed(0)
    plain = torchvision.models.get_model(name, weights=None).eval()
    batch = torch.randn(batch_size, 3, 224, 224)
    expected = camtool.Explainer(plain).compute_maps(batch, [_CLASS] * batch_size)
    model, batch = plain.to(device), batch.to(device)
    if precision == "compiled":
        model = torch.compile(model)
    runs = dict(_list_runs(model, batch))
    with _choose_precision(precision, device):
        times = measure_in_turns(runs, turns, warm_up=3)
        waits = count_events(runs["explain"], device)
        found = camtool.Explainer(model).compute_maps(batch, [_CLASS] * batch_size).float().cpu()
        memory = _measure_memory(runs, device)
    return {
        "images a second": {kind: round(batch_size / median(values), 1) for kind, values in times.items()},
        "waits": waits,
        "peak memory": memory,
        "distance": float(np.format_float_positional(_find_distance(found, expected), 3, fractional=False)),
    }


def _list_runs(model: nn.Module, batch: Tensor) -> Iterator[tuple[str, Run]]:
    explainer, classes = camtool.Explainer(model), [_CLASS] * len(batch)
    yield "forward", make_forward(model, batch)
    yield "compute_maps", partial(explainer.compute_maps, batch, classes)
    yield "explain", partial(explainer, batch, classes)
    yield "faithcam", partial(camtool.Explainer(model, method="faithcam"), batch, classes)


def _choose_precision(precision: str, device: str) -> AbstractContextManager[object]:
    if precision not in ("float16", "bfloat16"):
        return nullcontext()
    return torch.autocast(torch.device(device).type, getattr(torch, precision))


def _measure_memory(runs: dict[str, Run], device: str) -> dict[str, float] | None:
    """Return the peak of each run over that of the forward pass; ``None`` where no allocator tells of it."""
    if torch.device(device).type != "cuda":
        return None
    peaks = {}
    for kind, run in runs.items():
        wait_for_device()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        peaks[kind] = torch.cuda.max_memory_allocated() - before
    return {kind: round(peak / max(1, peaks["forward"]), 2) for kind, peak in peaks.items()}


def _find_distance(found: Tensor, expected: Tensor) -> float:
    peaks = expected.flatten(1).abs().amax(1).clamp(min=torch.finfo(expected.dtype).tiny)
    return float(((found - expected).flatten(1).abs().amax(1) / peaks).max())


if __name__ == "__main__":
    typer.run(main)
