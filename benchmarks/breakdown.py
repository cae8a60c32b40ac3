"""The time of each stage of one explanation: ``python -m benchmarks breakdown``.

MobileNetV2, one prepared image, Grad-CAM: the smallest job, in which the overhead weighs most. Each stage is timed
right after a forward pass, so that the CPU caches are as in a real call. The numbers are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import cycle
from typing import Annotated

import torch
import torchvision
import typer
from torch import Tensor

import camtool
from camtool.evidence.evidence import gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.hooks.state.guard import guard
from camtool.inputs.input_preparer import InputPreparer
from camtool.layers.selection import find_layers
from camtool.targets import ClassScore


def main(turns: Annotated[int, typer.Option(help="Measurements of each stage.")] = 60) -> None:
    """Measure and print a table."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v2(weights=None).eval()
    batch = torch.randn(1, 3, 224, 224)
    layers, prepare = find_layers(model, batch), InputPreparer(model, None, None)
    view, raw = prepare.prepare(batch[0]).view, torch.rand(7, 7).numpy()

    def forward() -> None:
        with torch.inference_mode():
            model(batch)

    def preserve() -> None:
        with guard(model):
            pass

    # Two classes in turn, because a forward pass keeps the scores and gradients of its latest targets.
    forward_pass, classes = run_forward_pass(model, batch, layers), cycle((281, 282))

    def score_and_run_backward() -> Tensor:
        return gather_evidence(forward_pass, [ClassScore(next(classes))])[0].gradients

    stages: dict[str, Callable[[], object]] = {
        "plain forward pass": forward,
        "the whole of explain": lambda: camtool.explain(model, batch, 281),
        "forward pass with hook, graph of the tail, guards": lambda: run_forward_pass(model, batch, layers),
        "of that: the guards (flags, buffers, random states)": preserve,
        "score and backward pass to the layer": score_and_run_backward,
        "heatmap on the image": lambda: view.to_heatmap(raw),
        "preparation of the tensor": lambda: prepare.prepare(batch[0]),
    }
    for name, stage in stages.items():
        stage()
        print(f"{_measure_median(stage, forward, turns) * 1000:7.2f} ms  {name}")


def _measure_median(stage: Callable[[], object], forward: Callable[[], None], turns: int) -> float:
    times = []
    for _ in range(turns):
        forward()
        started = time.perf_counter()
        stage()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    typer.run(main)
