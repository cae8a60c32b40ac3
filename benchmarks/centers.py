"""Read centers of cells: cost, and agreement with measured ones: ``python -m benchmarks centers``.

The first call for a model, a layer and an input size reads the centers from autograd's graph, which takes a forward
pass and a walk over the graph. The plan of later calls knows them. The cost is the median of paired measurements, with
one image and random weights.

Agreement is measured on the networks of ``python -m benchmarks coverage`` that take one image. In each, the cells next
to the middle of the image are compared with the centroid of the pixels that they depend on (a forward pass, and two
backward passes a cell). Cells near to the border are not compared: their receptive field is cut off there, which moves
the centroid inward. A single network with random weights weighs one side more by chance, so the difference is the mean
over several draws of its weights, each with an image of its own. All this takes half an hour.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torchvision
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.coverage import UNWRAPPED, Model, list_groups
from benchmarks.networks import write_between
from benchmarks.paired import compute_ratio, describe_machine, make_forward, measure_in_turns
from camtool.errors import CamtoolError
from camtool.geometry.cell_centers import CellCenters
from camtool.layers.centers import find_centers
from camtool.layers.layouts import Grid, Layer
from camtool.layers.places.cell_responses import Cell, measure_responses
from camtool.layers.selection import find_layers
from tests.zoo import catalogue

RESULTS = Path(__file__).with_suffix(".json")

MODELS = ("resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", "convnext_tiny", "vit_b_16", "swin_t")

MOST = 0.25
"""Distance in cells, along each axis, up to which read and measured centers agree."""

DRAWS = 4
"""Draws of the weights of each network."""

_NEAREST = 0.1
"""Difference in cells up to which several cells count as nearest to the middle; there are two if it lies between."""

_PIXELS = 224


def main(
    turns: Annotated[int, typer.Option(help="Measurements of each function.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    draws: Annotated[int, typer.Option(help="Draws of the weights of each network.")] = DRAWS,
    only: Annotated[str, typer.Option(help="Only networks whose name contains this; writes no file.")] = "",
    page: Annotated[Path | None, typer.Option(help="Page whose table is written, e.g. docs/placement.md.")] = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Measure only networks that the file lacks.")] = False,
) -> None:
    """Measure, print tables, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    logging.disable(logging.WARNING)
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if resume else measure_costs(turns, threads, only)
    for row in known["rows"]:
        print(f"{row['model']:18}first call {row['first_call_forwards']:.2f} forward passes")
    rows = [*iterate_agreements(draws, only, known.get("networks", []))]
    result = build_result(known, rows, threads, draws)
    text = format_table(result)
    print(text)
    if not only:
        write_results(result)
    if page is not None:
        write_between(page, "agreement", text)


def measure_costs(turns: int, threads: int, only: str = "") -> dict[str, Any]:
    """Return the cost of the first call of each network."""
    rows = [_measure_cost(name, turns) for name in MODELS if only in name]
    return {"machine": describe_machine(threads), "turns": turns, "rows": rows}


def build_result(costs: Mapping[str, Any], rows: list[dict[str, Any]], threads: int, draws: int) -> dict[str, Any]:
    """Return what the file holds; costs that were measured before keep their machine."""
    return {
        **{name: costs[name] for name in ("machine", "turns", "rows")},
        "agreement": summarize(rows),
        "agreement_machine": describe_machine(threads),
        "draws": draws,
        "listed": sum(len(models) for group, models in list_groups().items() if group != UNWRAPPED),
        "networks": rows,
    }


def _measure_cost(name: str, turns: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, image = torchvision.models.get_model(name, weights=None).eval(), torch.randn(1, 3, _PIXELS, _PIXELS)
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


# --------------------------------------------------------------------------------------------------------- agreement


def iterate_agreements(
    draws: int = DRAWS, only: str = "", known: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the agreement of each network of the coverage list that takes one image; new ones are printed.

    A network that does not agree is measured again on an image with sides twice as long, whose border is further away,
    if it takes one: ``larger``.
    """
    by_name = {(row["group"], row["name"]): row for row in known}
    for group, models in list_groups().items():
        for name, model in models.items():
            if group == UNWRAPPED or only not in name:
                continue
            if (group, name) not in by_name:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    row = {"name": name, "group": group, **measure_agreement(model, draws)}
                    if row["kind"] in UNCLEAR:
                        row["larger"] = measure_agreement(model, draws, side=2 * model.size)
                print(json.dumps(row), flush=True)
                by_name[group, name] = row
            yield by_name[group, name]


def measure_agreement(entry: Model, draws: int = DRAWS, *, side: int = 0) -> dict[str, Any]:
    """Return how far the measured centers of middle cells lie from the read ones.

    Args:
        entry: A network of the coverage list.
        draws: Draws of its weights, of which the first one chooses the layer.
        side: The side of the image, by default that of the list.

    Returns:
        ``difference`` and ``error``, the mean over the draws and its standard error along each axis, in cells;
        ``spread`` of the pixels in cells, and ``reach``, the same as a share of the image (0.29 if it is uniform);
        ``kind``, see :func:`_judge`. A network without a measured cell has ``kind`` alone.
    """
    layer, measured = None, list[_Measured]()
    for draw in range(draws):
        model, image = _draw_network(entry, draw), catalogue.picture(100 + draw, *[side or entry.size] * 2)
        try:
            layer = layer or find_layers(model, image)[0]
            measured += _measure_draw(model, image, layer)
        except CamtoolError as error:
            return {"kind": f"not measured: {error}"[:200]}
    if layer is None or len(measured) < 2:
        return {"kind": "not measured: no gradient reaches the image"}
    differences = [one.difference for one in measured]
    row = {
        "layer": layer.name,
        "grid": layer.layout.grid,
        "centers": "read" if measured[0].is_read else "stretched",
        "difference": _round(np.mean(differences, 0)),
        "error": _round(np.std(differences, 0, ddof=1) / math.sqrt(len(differences))),
        "spread": _round(np.mean([one.spread for one in measured], 0)),
        "reach": _round(np.mean([one.reach for one in measured], 0)),
    }
    return row | {"kind": _judge(row)}


class _Measured(NamedTuple):
    """What was measured of one draw, along each axis; see :func:`measure_agreement`."""

    difference: NDArray[np.float64]
    spread: NDArray[np.float64]
    reach: NDArray[np.float64]
    is_read: bool


def _measure_draw(model: nn.Module, image: Tensor, layer: Layer) -> list[_Measured]:
    """Return the numbers of one draw; none if no gradient reaches the image."""
    read, grid = find_centers(model, image, layer), layer.layout.grid
    cells = _list_middle_cells(read or CellCenters.stretch(grid, image.shape[2:]), grid)
    responses = measure_responses(model, image, layer, cells)
    if not responses:
        return []
    size = next(iter(responses.values())).shares.shape  # of a detector, behind its own transform
    centers = read or CellCenters.stretch(grid, size)
    strides = np.array([axis.stride for axis in centers.axes])
    offsets = np.array([axis.offset for axis in centers.axes])
    difference = np.mean([(one.center - offsets) / strides - cell for cell, one in responses.items()], 0)
    spread = np.mean([one.spread for one in responses.values()], 0)
    return [_Measured(difference, spread / np.abs(strides), spread / size, read is not None)]


def _draw_network(entry: Model, draw: int) -> nn.Module:
    """Return the network with other random weights; the list has a seed of its own."""
    set_seed = torch.manual_seed
    with patch.object(torch, "manual_seed", lambda _: set_seed(draw)):
        return entry.build()


def _list_middle_cells(centers: CellCenters, grid: Grid) -> list[Cell]:
    """Return the cells whose centers are nearest to the middle of the image: one, or two along an axis."""
    nearest = []
    for axis, cells, pixels in zip(centers.axes, grid, centers.size, strict=True):
        distances = np.abs((axis.list_centers(cells) - pixels / 2) / axis.stride)
        nearest.append(np.flatnonzero(distances <= distances.min() + _NEAREST).tolist())
    return [*product(*nearest)]


def _round(values: NDArray[np.float64]) -> list[float]:
    return [round(float(value), 3) for value in values]


_WHOLE = 0.25
"""Spread as a share of the image from which the centroid tells nothing: that of the whole image is its middle."""


def _judge(row: Mapping[str, Any]) -> str:
    """Return ``"agree"``, or why the centers cannot be compared, or do not agree."""
    if min(row["reach"]) > _WHOLE:
        return "sees the whole image"
    if max(map(abs, row["difference"])) <= MOST:
        return "agree"
    pairs = zip(row["difference"], row["error"], strict=True)
    within = all(abs(difference) - 2 * error <= MOST for difference, error in pairs)
    return "within two standard errors" if within else "differ"


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for read centers and for stretched grids how many networks are of each kind, and how far they differ."""
    summaries = []
    for name, title in TITLES.items():
        of_kind = [row for row in rows if row.get("centers") == name]
        kinds = Counter(row["kind"] for row in of_kind)
        compared = [row for row in of_kind if row["kind"] != "sees the whole image"]
        largest = [max(map(abs, row["difference"])) for row in compared]
        summary = {"name": title, "networks": len(of_kind)} | {kind: kinds[kind] for kind in KINDS}
        if len(largest) > 1:
            error = float(np.std(largest, ddof=1)) / math.sqrt(len(largest))
            summary |= {"median": round(float(np.median(largest)), 3)}
            summary |= {"mean": round(float(np.mean(largest)), 3), "error": round(error, 3)}
        summaries.append(summary)
    return summaries


TITLES = {"read": "centers read from the graph", "stretched": "no rule reads them: stretched over the image"}
"""Value of ``centers`` → name of the row."""

UNCERTAIN = "within two standard errors"

UNCLEAR = (UNCERTAIN, "differ")
"""What :func:`_judge` returns for a network that does not agree."""

KINDS = ("agree", *UNCLEAR, "sees the whole image")
"""All that it returns."""


def format_table(result: Mapping[str, Any]) -> str:
    """Return the number of networks of each kind, and those that differ or have no places, in Markdown."""
    mark = f"<!-- numbers: benchmarks/{RESULTS.name} -->"
    lines = [mark, f"| centers | networks | {' | '.join(KINDS)} | mean difference |", "|---" * (len(KINDS) + 3) + "|"]
    for row in result["agreement"]:
        cells = [row["name"], row["networks"], *(row[kind] for kind in KINDS)]
        mean = f"{row['mean']:.3f} +- {row['error']:.3f}" if "mean" in row else "-"
        lines.append("| " + " | ".join(map(str, [*cells, mean])) + " |")
    lines += ["", mark, "| network | centers | difference, down | right | spread | why |", "|---" * 6 + "|"]
    for row in result["networks"]:
        if "difference" in row and row["kind"] not in ("agree", UNCERTAIN):
            (down, right), errors = row["difference"], row["error"]
            cells = [f"{down:+.2f} +- {errors[0]:.2f}", f"{right:+.2f} +- {errors[1]:.2f}", f"{max(row['spread']):.2f}"]
            lines.append(f"| {row['name']} | {row['centers']} | {' | '.join(cells)} | {_explain(row)} |")
    return "\n".join(lines)


def _explain(row: Mapping[str, Any]) -> str:
    """Return why a network does not agree, or cannot be compared."""
    if row.get("larger", {}).get("kind") == "agree":
        return "border: agrees on an image twice as large"
    if row["kind"] != "differ":
        return str(row["kind"])
    if row["centers"] == "stretched":
        return "no rule reads its centers"
    exact = json.loads(_EXACT.read_text(encoding="utf-8"))["rows"]
    is_exact = any(row["name"] == one["network"] and abs(one["exact_wide"]) <= MOST for one in exact)
    return "border or chance: exact centers agree" if is_exact else "not explained"


_EXACT = RESULTS.with_stem("centers_exact")
"""Written by ``python -m benchmarks centers_exact``."""


def write_results(result: Mapping[str, Any]) -> None:
    """Write the numbers to the JSON file, with a line for each network."""
    head = json.dumps({**result, "networks": None}, indent=1).removesuffix("null\n}")
    networks = ",\n".join(f"  {json.dumps(row)}" for row in result["networks"])
    RESULTS.write_text(f"{head}[\n{networks}\n ]\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
