"""Peak memory of an explanation over that of a plain forward pass: ``python -m benchmarks memory``.

Each runs three times in a process of its own. The peak is the largest resident memory of the process, less what it had
before the first run, when torch, the model and the batch were loaded already: the worst comparison for an explanation.
The peak of the whole process is given as well.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torchvision
import typer

import camtool
from benchmarks.paired import describe_machine, make_forward

_MODELS = ("resnet50", "mobilenet_v2")
_ENGINES = ("eager", "onnxruntime", "openvino")
_OUT = Path(__file__).with_suffix(".json")


def main(
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 8,
    threads: Annotated[int, typer.Option(help="Threads for torch and the engines.")] = 2,
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure, print, and write the numbers to a JSON file."""
    if one:
        _run_once(*one.split(","), batch_size=batch_size, threads=threads)
        return
    rows = {}
    for model in _MODELS:
        found = {
            kind: _measure_process(f"{model},{kind}", batch_size, threads)
            for kind in ("forward", "overlays", *_ENGINES)
        }
        forward = found["forward"]
        rows[model] = {
            kind: {
                "MiB": round(peak),
                "process MiB": round(whole),
                "/ forward": round(peak / forward[0], 3),
                "process / forward": round(whole / forward[1], 3),
            }
            for kind, (peak, whole) in found.items()
        }
        print(model, json.dumps(rows[model], indent=1), flush=True)
    result = {"machine": describe_machine(threads), "batch size": batch_size, "rows": rows}
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _measure_process(what: str, batch_size: int, threads: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks", "memory", "--one", what]
    command += ["--batch-size", str(batch_size), "--threads", str(threads)]
    # The first process may compile; its peak is not that of an explanation.
    for _ in range(2):
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, peak = json.loads(text)
    return peak - before, peak


def _run_once(name: str, kind: str, *, batch_size: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).eval()
    batch = torch.randn(batch_size, 3, 224, 224)
    run: Callable[[], object] = make_forward(model, batch)
    if kind == "overlays":
        run = partial(camtool.Explainer(model).draw_overlays, batch)
    elif kind != "forward":
        run = partial(camtool.Explainer(model, engine=kind), batch, [281] * batch_size)  # type: ignore[call-overload]
    before = _read_memory("VmRSS")
    for _ in range(3):
        run()
    print(json.dumps([before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def _read_memory(name: str) -> float:
    """Return a number of the kernel about this process, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


if __name__ == "__main__":
    typer.run(main)
