"""The cost of explanations in the user's own forward pass: ``python -m benchmarks observing``.

A forward pass alone, then with Grad-CAM of it: by ``camtool.observe``, and by ``camtool.explain``, which runs the model
a second time. Three kinds of passes: one that records a graph, one of a training step with its backward pass, and one
in ``torch.no_grad``. Everything runs in turns on one thread. Ratios of the time of the processor, to which other
processes add little, are medians over the turns, with standard errors. Inputs and weights are random: no time changes.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool
from benchmarks.paired import Run, describe_machine

_MODELS = {"mobilenet_v2": 1, "resnet18": 1}
"""Name to the number of images."""

_WARM_UP = 2
_CLASS = 281
_OUT = Path(__file__).with_suffix(".json")


def main(
    turns: Annotated[int, typer.Option(help="Measurements of each.")] = 20,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [_measure(name, batch, kind, turns) for name, batch in _MODELS.items() for kind in _KINDS]
    result = {"turns": turns, "machine": describe_machine(1), "rows": rows}
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print("| model | batch | pass | alone | observe | explain |\n|---|---|---|---|---|---|")
    for row in rows:
        ratios = " | ".join(f"{row[key]['ratio']:.2f} ± {row[key]['error']:.2f} x" for key in ("observe", "explain"))
        print(f"| {row['model']} | {row['batch']} | {row['pass']} | {row['alone_ms']:.0f} ms | {ratios} |")


def _measure(name: str, batch: int, kind: str, turns: int) -> dict[str, Any]:
    model = torchvision.models.get_model(name, weights=None).eval()
    images = torch.randn(batch, 3, 224, 224)
    runs = _KINDS[kind](model, images)
    times: dict[str, list[float]] = {key: [] for key in runs}
    for turn in range(-_WARM_UP, turns):  # the first ones find the layer
        for key in list(runs) if turn % 2 else list(runs)[::-1]:
            started = time.process_time()
            runs[key]()
            times[key] += [time.process_time() - started] if turn >= 0 else []
    alone = times["alone"]
    row = {"model": name, "batch": batch, "pass": kind, "alone_ms": round(1000 * statistics.median(alone), 1)}
    return row | {key: _compute_ratio(times[key], alone) for key in ("observe", "explain")}


def _compute_ratio(ours: list[float], alone: list[float]) -> dict[str, float]:
    """Return the median ratio, and the standard error of a median: 1.25 times that of a mean."""
    ratios = [one / other for one, other in zip(ours, alone, strict=True)]
    error = 1.2533 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return {"ratio": round(statistics.median(ratios), 3), "error": round(error, 3)}


def _make_passes(
    model: nn.Module, images: Tensor, *, mode: Callable[[], Any] = nullcontext, trains: bool = False
) -> dict[str, Run]:
    def finish(output: Tensor) -> None:
        if trains:
            output.logsumexp(1).sum().backward()

    def run_alone() -> None:
        with mode():
            finish(model(images))

    def run_observed() -> None:
        with mode():
            with camtool.observe(model, start_graph=mode is torch.no_grad) as cam:
                output = model(images)
            cam.explain(_CLASS)
            finish(output)

    def run_explained() -> None:
        with mode():
            output = model(images)
            camtool.explain(model, images, _CLASS)
            finish(output)

    return {"alone": run_alone, "observe": run_observed, "explain": run_explained}


_KINDS = {
    "with a graph": _make_passes,
    "training step": partial(_make_passes, trains=True),
    "no_grad": partial(_make_passes, mode=torch.no_grad),
}


if __name__ == "__main__":
    typer.run(main)
