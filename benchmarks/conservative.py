"""Conservative gradients beside plain ones, method by method: ``python -m benchmarks conservative --scenes FOLDER``.

The networks are those of scenes, see :mod:`benchmarks.networks`; nothing was tuned on their questions. The gains of
``conservative:METHOD`` over METHOD are paired. Beside the measures of faithfulness, ``weights`` is 1 less the metric
``cascading-randomization`` on the first questions: how much of the map is lost when the weights are. The cost is the
time of an explanation divided by that of the method alone, in turns, one thread. Without a folder nothing is measured:
the table of ``docs/conservative.md`` is made from the JSON file.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import camtool
from benchmarks.networks import (
    HELD_OUT,
    Explain,
    MapJudge,
    Measured,
    Network,
    Question,
    ScenesOption,
    explain_by,
    format_pairs,
    read_networks,
    summarize,
    write_between,
)
from benchmarks.paired import compute_ratio, describe_machine, measure_in_turns
from camtool.trust.metrics.sanity import compute_cascading_randomization

_OUT = Path(__file__).with_suffix(".json")
_PAGE = Path(__file__).parents[1] / "docs" / "conservative.md"

METHODS = {
    "inputxgradient": {},
    "integrated-gradients": {"steps": 10},
    "fullgrad": {},
    "gradcam": {},
    "hirescam": {},
    "layercam": {},
    "faithcam": {},
    "chefer": {},
    "legrad": {},
}
"""The methods with their options."""

_MEASURES = {
    "cells": "Single deletion",
    "masks": "Masks",
    "insertion": "Insertion",
    "pointing": "Pointing",
    "weights": "Dependence on the weights",
}
_RANDOMIZED = 10
"""The number of questions for which the weights are randomized, in eight steps each."""


def main(
    scenes: ScenesOption = None,
    most: Annotated[int, typer.Option(help="most scenes of each network")] = 60,
    only: Annotated[list[str] | None, typer.Option(help="a network; may be repeated")] = None,
    turns: Annotated[int, typer.Option(help="turns for the cost; 0 measures none")] = 0,
    out: Path = _OUT,
) -> None:
    """Measure, print the rows, and write them to a JSON file; without a folder write the page's tables from it."""
    stored: dict[str, Any] = {"rows": {}, "cost": {}} | (json.loads(out.read_text("utf-8")) if out.exists() else {})
    if scenes is None:
        write_between(_PAGE, "measured", format_methods(stored["rows"]))
        return
    torch.set_num_threads(1)
    for network in read_networks(scenes=scenes):
        if only and network.name not in only:
            continue
        judge = MapJudge(network, HELD_OUT, [*_MEASURES][:4], most=most, most_pointing=most // 2)
        for method, options in METHODS.items():
            for name, entry in _measure_pair(network, judge, method, options).items():
                stored["rows"].setdefault(name, {})[network.name] = entry
                print(network.name, name, json.dumps(entry), flush=True)
        if turns and judge.questions:
            stored["cost"][network.name] = _measure_costs(network, judge.questions[0], turns)
            print(network.name, stored["cost"][network.name], flush=True)
        stored = {"machine": describe_machine(1), **stored}
        out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def _measure_pair(network: Network, judge: MapJudge, method: str, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the numbers of a method and of its wrapped twin; none if one of them does not fit the network."""
    measured: dict[str, Measured] = {}
    for name in (f"conservative:{method}", method):  # a network without such operations is refused at once
        explain = explain_by(name, **options)
        try:
            slow = method == "integrated-gradients"
            measured[name] = judge.measure(explain, ["pointing", "insertion"] if slow else [])
            measured[name] |= {} if slow else {"weights": _measure_dependence(network, judge, explain)}
        except camtool.CamtoolError as error:
            print(network.name, name, "does not fit:", error, flush=True)
            return {}
    counts = {"questions": len(judge.questions), "pointing questions": len(judge.pointing)}
    return {
        name: counts | {key: summarize(values[key], measured[method][key]) for key in values}
        for name, values in reversed(measured.items())
    }


def _measure_dependence(network: Network, judge: MapJudge, explain: Explain) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return 1 less the metric ``cascading-randomization`` for the first questions."""

    def explain_images(question: Question, *_: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(explain(network.model, question)))[None].float()

    kept = []
    for question in judge.questions[:_RANDOMIZED]:
        function = partial(explain_images, question)
        maps = function()
        kept.append(compute_cascading_randomization(network.model, function, question.inputs, maps).item())
    return 1 - np.array(kept)


def _measure_costs(network: Network, question: Question, turns: int) -> dict[str, float]:
    """Return the time of an explanation by the wrapped method, divided by that of the method alone."""
    costs = {}
    for method in ("gradcam", "faithcam", "inputxgradient"):
        names = (method, f"conservative:{method}")
        explainers = {name: camtool.Explainer(network.model, name) for name in names}
        runs = {name: partial(each, question.inputs, [question.target]) for name, each in explainers.items()}
        try:
            costs[method] = compute_ratio(measure_in_turns(runs, turns), names[1], names[0])
        except camtool.MethodError as error:
            print(network.name, names[1], "does not fit:", error, flush=True)
    return costs


def format_methods(rows: dict[str, Any]) -> str:
    """Return the table of the page: each method and its wrapped twin, with marks where that differs."""
    return format_pairs(_OUT.name, rows, {name: f"conservative:{name}" for name in METHODS}, _MEASURES)


if __name__ == "__main__":
    typer.run(main)
