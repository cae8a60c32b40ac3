"""Heat on two objects for groups and contrasts of their classes: ``python -m benchmarks groups``.

Scenes of the demo's generator that its model was not trained on, with two objects A and B; those count whose two most
probable classes are A and B. The share of the heat that lies on each object is measured for A alone, for the group of
A and B, and for A against B. ``least`` is the smaller one of both shares in each scene, so it is high only if both
objects are shown. The errors are standard errors over the scenes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

import camtool
from benchmarks.paired import describe_machine
from camtool.demo.scenes import UNSEEN, Scene, draw_scene
from camtool.targets import Group, Target
from camtool.trust.metrics.localization import compute_energy_in_mask

RESULTS = Path(__file__).with_suffix(".json")
METHODS = ("gradcam", "hirescam", "layercam", "faithcam")

_FIRST = UNSEEN + 700_000


def main(
    scenes: Annotated[int, typer.Option(help="Scenes of two objects.")] = 300,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
) -> None:
    """Measure, print tables, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    model = camtool.load("demo")
    chosen = list(islice(_iterate_recognized(model), scenes))
    areas = np.array([[thing.mask.mean() for thing in scene.objects] for scene in chosen])
    rows = [row for method in METHODS for row in _measure(model, method, chosen)]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    result = {
        "machine": describe_machine(threads),
        "scenes": scenes,
        "area": round(float(areas.mean()), 4),
        "rows": rows,
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _iterate_recognized(model: camtool.Loaded) -> Iterator[Scene]:
    """Yield scenes whose objects are the two most probable classes."""
    for number in count():
        scene = draw_scene(_FIRST + number, objects=2)
        top = camtool.predict(model, scene.image, camtool.targets.Top(2))
        if {entry.index for entry in top} == {thing.index for thing in scene.objects}:
            yield scene


def _measure(model: camtool.Loaded, method: str, scenes: list[Scene]) -> Iterator[dict[str, Any]]:
    """Yield a row for each question: the shares of the heat on both objects with their standard errors."""
    explainer = camtool.Explainer(model, method)
    shares: dict[str, list[list[float]]] = {"A": [], "group of A and B": [], "A vs B": []}
    for scene in scenes:
        one, other = scene.objects
        wanted: list[int | Target] = [one.index, Group([one.index, other.index]), Group(one.index, against=other.index)]
        for name, result in zip(shares, explainer(scene.image, wanted), strict=True):
            shares[name].append([compute_energy_in_mask(result.heatmap, thing.mask) for thing in scene.objects])
    for name, values in shares.items():
        on_both = np.array(values)
        columns = {"on A": on_both[:, 0], "on B": on_both[:, 1], "least": on_both.min(1)}
        row: dict[str, Any] = {"question": f"{method}: {name}"}
        for column, numbers in columns.items():
            row |= {column: round(float(numbers.mean()), 4), f"{column}, error": _compute_error(numbers)}
        yield row


def _compute_error(numbers: NDArray[np.float64]) -> float:
    return round(float(numbers.std(ddof=1) / np.sqrt(len(numbers))), 4)


if __name__ == "__main__":
    typer.run(main)
