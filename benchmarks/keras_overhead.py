"""What an explanation of a Keras model costs: ``python -m benchmarks keras_overhead``.

Grad-CAM on a prepared batch of one, when the model was explained before, against ``model(images, training=False)`` of
Keras on its torch backend, without a graph, in turns. The numbers are the medians of the turns' ratios. Run nothing
else meanwhile.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import camtool
from benchmarks.paired import compute_ratio, describe_machine, measure_in_turns

NETWORKS = ("MobileNetV2", "ResNet50", "EfficientNetB0")
_SHAPE = (224, 224, 3)
_OUT = Path(__file__).with_suffix(".json")


def main(
    turns: Annotated[int, typer.Option(help="Measurements of each network.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    rows = [measure(name, turns) for name in NETWORKS]
    result = {"turns": turns, "machine": describe_machine(threads, "cpu"), "rows": rows}
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print("| model | forward pass of Keras | Grad-CAM |\n|---|---|---|")
    for row in rows:
        print(f"| {row['model']} | {row['forward_ms']:.0f} ms | {row['ratio']:.2f} x |")


def measure(name: str, turns: int, shape: tuple[int, int, int] = _SHAPE) -> dict[str, Any]:
    """Return the median time of a forward pass of a network, and that of Grad-CAM in these."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, input_shape=shape)
    images = torch.rand(1, *shape)
    batch = images.permute(0, 3, 1, 2)

    def run_forward() -> None:
        with torch.no_grad():
            model(images, training=False)

    times = measure_in_turns({"forward": run_forward, "camtool": lambda: camtool.explain(model, batch, 1)}, turns)
    ratio = compute_ratio(times, "camtool", "forward")
    return {"model": name, "forward_ms": round(1000 * statistics.median(times["forward"]), 1), "ratio": ratio}


if __name__ == "__main__":
    typer.run(main)
