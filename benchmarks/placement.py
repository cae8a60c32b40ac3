"""The faithfulness of maps, stretched or placed by centers.

``python -m benchmarks placement --weights NAME=FILE --scenes FOLDER``. Both placements answer the same questions, so
the gains are paired. Networks, photos, scenes and measures are those of :mod:`benchmarks.networks`. Without networks
nothing is measured: the table of ``docs/placement.md`` is made from the JSON file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import camtool
from benchmarks.networks import (
    MapJudge,
    ScenesOption,
    WeightsOption,
    explain_by,
    format_counts,
    read_networks,
    summarize,
    write_between,
)
from benchmarks.paired import describe_machine

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "placement.md"

METHODS = ("gradcam", "layercam", "fullgrad", "rivalcam", "faithcam")

_MEASURES = {"cells": "Single deletion", "masks": "Masks", "pointing": "Pointing"}


def main(
    weights: WeightsOption = [],  # noqa: B006
    scenes: ScenesOption = None,
    method: Annotated[list[str], typer.Option(help="Method; may be repeated.")] = list(METHODS),  # noqa: B006
    most: Annotated[int, typer.Option(help="Most scenes of one object and photos; half as many scenes of two.")] = 40,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; what it holds of other rows is kept.")] = RESULTS,
) -> None:
    """Measure, print the rows, and write them to a JSON file; without networks write the page's tables from it."""
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else {}
    if not weights and scenes is None:
        write_between(PAGE, "measured", count_methods(rows))
        return
    torch.set_num_threads(threads)
    for network in read_networks(weights, None, scenes):
        judge = MapJudge(network, measures=tuple(_MEASURES), most=most, most_pointing=most // 2)
        for asked in method:
            try:
                stretched, placed = (
                    judge.measure(explain_by(asked, placement=placement)) for placement in ("stretch", "centers")
                )
            except camtool.MethodError as error:
                print(network.name, asked, "does not fit:", error, flush=True)
                continue
            for row, measured in ((f"{asked}, stretched", stretched), (asked, placed)):
                entry = {name: summarize(values, stretched[name]) for name, values in measured.items()}
                rows.setdefault(row, {})[network.name] = {"questions": len(judge.questions), **entry}
                print(network.name, row, json.dumps(entry), flush=True)
            result = {"machine": describe_machine(threads), "rows": rows}
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def count_methods(rows: dict[str, Any]) -> str:
    """Return a table with the numbers of networks on which each method gains by centers, and loses."""
    return format_counts(rows, METHODS, _MEASURES)


if __name__ == "__main__":
    typer.run(main)
