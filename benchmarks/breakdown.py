"""Where the time of one explanation goes: ``python benchmarks/breakdown.py``.

MobileNetV2, one prepared picture, Grad-CAM: the smallest job, where everything beside the forward weighs most. Each
stage is timed right after a forward, with the caches as they are in a real call; the figure is the median.
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

import camtool
from camtool.evidence import Scene
from camtool.guards import left_as_found
from camtool.layers import resolve
from camtool.pictures import Preparer
from camtool.targets import ClassScore


def main(turns: Annotated[int, typer.Option(help="How often each is measured.")] = 60) -> None:
    """Measure and print a table."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v2(weights=None).eval()
    batch = torch.randn(1, 3, 224, 224)
    layers, prepare = resolve(model, batch), Preparer(model, None, None)
    view, raw = prepare(batch[0]).view, torch.rand(7, 7).numpy()

    def forward() -> None:
        with torch.inference_mode():
            model(batch)

    def guard() -> None:
        with left_as_found(model):
            pass

    scene, classes = Scene(model, batch, layers), cycle((281, 282))  # the latest question is not asked again
    stages: dict[str, Callable[[], object]] = {
        "plain forward": forward,
        "explain, all of it": lambda: camtool.explain(model, batch, 281),
        "forward with hook, graph of the tail, guards": lambda: Scene(model, batch, layers),
        "of that: the guards (flags, buffers, random states)": guard,
        "score and backward pass to the layer": lambda: scene.evidence([ClassScore(next(classes))])[0].gradients,
        "heatmap on the picture, when first asked for": lambda: view.heatmap(raw),
        "picture of the tensor": lambda: prepare(batch[0]),
    }
    for name, stage in stages.items():
        stage()
        print(f"{_median(stage, forward, turns) * 1000:7.2f} ms  {name}")


def _median(stage: Callable[[], object], forward: Callable[[], None], turns: int) -> float:
    times = []
    for _ in range(turns):
        forward()
        started = time.perf_counter()
        stage()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    typer.run(main)
