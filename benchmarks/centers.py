"""The cost of the centers of cells, in forward passes: ``python -m benchmarks centers``.

The first call for a model, a layer and an input size reads the centers from autograd's graph, which takes a forward
pass and a walk over the graph. The plan of later calls knows them. Medians of paired measurements, one image, random
weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import nn

from benchmarks.paired import compute_ratio, describe_machine, make_forward, measure_in_turns
from camtool.layers.centers import find_centers
from camtool.layers.selection import find_layers

MODELS = ("resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", "convnext_tiny", "vit_b_16", "swin_t")


def main(
    turns: Annotated[int, typer.Option(help="Measurements of each function.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    rows = [_measure(name, turns) for name in MODELS]
    for row in rows:
        print(f"{row['model']:18}first call {row['first_call_forwards']:.2f} forward passes")
    result = {"machine": describe_machine(threads), "turns": turns, "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _measure(name: str, turns: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, image = torchvision.models.get_model(name, weights=None).eval(), torch.randn(1, 3, 224, 224)
    for parameter in model.parameters():
        if not parameter.any():  # a head of zeros has no gradient, so no layer would be found
            nn.init.normal_(parameter, std=0.01)
    (layer,) = find_layers(model, image)

    def find_first() -> None:
        find_centers(model, image, layer)

    runs = {"forward": make_forward(model, image), "first": find_first}
    times = measure_in_turns(runs, turns)
    return {
        "model": name,
        "layer": layer.name,
        "first_call_forwards": compute_ratio(times, "first", "forward"),
    }


if __name__ == "__main__":
    typer.run(main)
