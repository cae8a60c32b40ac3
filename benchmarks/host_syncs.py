"""How often an explanation waits for the device: ``python -m benchmarks host_syncs --device cuda``.

The profiler of PyTorch counts, in one call on a batch that is on the device: numbers that Python reads from tensors
(``item``, ``if tensor``), and on a GPU the synchronizations of the stream and the copies to the host. Each is a moment
in which the GPU has nothing to do. On the CPU only the first can be seen.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torchvision
import typer
from torch.profiler import ProfilerActivity, profile

import camtool
from benchmarks.paired import DeviceOption, Run, describe_machine, make_forward, wait_for_device

_MODELS = ("mobilenet_v2", "resnet50")
_OUT = Path(__file__).with_suffix(".json")

_KINDS = {
    "numbers read": ("aten::_local_scalar_dense", "aten::is_nonzero"),
    "synchronizations": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    "copies to the host": ("Memcpy DtoH",),
}
"""What is counted: the beginnings of the names of the profiler's events."""


def main(
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 8,
    device: DeviceOption = "cpu",
) -> None:
    """Count, print, and write the numbers to a JSON file; those of other devices are kept."""
    result = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    rows = {name: _count_in_runs(name, batch_size, device) for name in _MODELS}
    result[device] = {"machine": describe_machine(torch.get_num_threads(), device), "batch size": batch_size} | rows
    print(json.dumps(rows, indent=1))
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _count_in_runs(name: str, batch_size: int, device: str) -> dict[str, dict[str, int]]:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).eval().to(device)
    batch = torch.randn(batch_size, 3, 224, 224).to(device)
    explainer = camtool.Explainer(model)
    classes = [281] * batch_size
    runs: dict[str, Run] = {
        "forward": make_forward(model, batch),
        "explain": partial(explainer, batch, classes),
        "compute_maps": partial(explainer.compute_maps, batch, classes),
        "draw_overlays": partial(explainer.draw_overlays, batch, classes),
    }
    return {kind: count_events(run, device) for kind, run in runs.items()}


def count_events(run: Run, device: str) -> dict[str, int]:
    """Return how often each of :data:`_KINDS` happens in a run."""
    for _ in range(2):  # the first call chooses the layer
        run()
    wait_for_device()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.device(device).type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        run()
    counts = Counter(event.name for event in profiler.events() or ())
    return {
        kind: sum(count for name, count in counts.items() if name.startswith(starts)) for kind, starts in _KINDS.items()
    }


if __name__ == "__main__":
    typer.run(main)
