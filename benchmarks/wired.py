"""Networks with a known answer, and who finds it: ``python -m benchmarks wired``.

The weights of these networks are set by hand (``benchmarks/wired_networks.py``), so what their scores depend on is
known, and forward passes with every subset of the squares prove it. Each method gets a verdict on each network, by
limits that are the same for all: found, partly, fooled, nothing, or refused. No data, and no training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table
from scipy.ndimage import binary_dilation

import camtool
from benchmarks.faithcam import PEERS
from benchmarks.paired import describe_machine
from benchmarks.wired_networks import CELL, SIDE, TARGET, WiredNetwork, compute_shapley, list_networks
from camtool.rendering import blend
from camtool.rendering.contact_sheet import RIGHT, WRONG
from camtool.rendering.image_writing import write_image
from camtool.rendering.text_drawing import INK, MUTED, PAPER, draw_text

RESULTS = Path(__file__).with_suffix(".json")

# The limits of the verdicts, chosen before anything was measured.
_AS_HOT = 1.1
"""The hottest square of the evidence must have more than this many times the heat of anything else, else fooled."""
_CLEARLY = 2.0
"""From this many times on the evidence stands out clearly."""
_WEAKEST = 0.25
"""Each square of the evidence must have this share of the heat of the hottest one."""
_PEAK = 0.99
"""Share of the highest heat that must be reached on the evidence, or at most one cell away."""

Verdict: TypeAlias = Literal["found", "partly", "fooled", "nothing", "refused"]
Heat: TypeAlias = "NDArray[np.float32]"


class Answer(NamedTuple):
    """What a method says.

    Attributes:
        heat: The heatmap ``(SIDE, SIDE)``; None if the method refuses.
        warnings: The codes of the warnings on the map, and the names of errors.
        check: The codes that ``result.check()`` adds to them.
    """

    heat: Heat | None
    warnings: Sequence[str] = ()
    check: Sequence[str] = ()


Explain: TypeAlias = "Callable[[WiredNetwork], Answer]"

_MARKS: Mapping[str, str] = {"found": "●", "partly": "◐", "fooled": "✗", "nothing": "○", "refused": "."}
_WARNED, _CHECKED = "!", "?"
_LEGEND = "! the map has a warning, or camtool wants the layer named; ? result.check() finds out"

_SEEDS = 64
"""Seeds of the random weights that say what is found by chance."""

_SPECIAL = frozenset({"text", "a detector"})
"""Needs that none of the networks meets."""

_PEER_METHODS = (
    *("grad-cam GradCAM", "grad-cam GradCAMPlusPlus", "grad-cam HiResCAM", "grad-cam XGradCAM", "grad-cam LayerCAM"),
    *("grad-cam EigenCAM", "grad-cam AblationCAM", "torchcam GradCAM", "torchcam GradCAMpp", "torchcam XGradCAM"),
    *("torchcam LayerCAM", "torchcam SmoothGradCAMpp", "torchcam ScoreCAM", "captum LayerGradCam"),
)

_DRAWN = ("gradcam", "layercam", "scorecam", "integrated-gradients", "rise")
"""Methods of the figure."""


def main(
    methods: Annotated[str, typer.Option(help="Names, separated by commas; by default all, and the peers.")] = "",
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
    figure: Annotated[Path | None, typer.Option(help="Draw a figure of a few methods to this file, and stop.")] = None,
    page: Annotated[Path | None, typer.Option(help="A page whose table is written anew.")] = None,
) -> None:
    """Judge all methods, print a table, and write the verdicts to a JSON file."""
    torch.set_num_threads(threads)
    if figure:
        write_image(figure, _draw_figure(), quality=80)
        return
    explainers = dict(iterate_explainers(methods.split(",") if methods else None))
    rows = [{"method": name, "verdicts": _judge_all(explain)} for name, explain in explainers.items()]
    limits = {"as hot": _AS_HOT, "clearly": _CLEARLY, "weakest": _WEAKEST, "peak": _PEAK}
    result: dict[str, Any] = {"machine": describe_machine(threads), "limits": limits}
    result |= {"networks": [_describe(network) for network in list_networks()], "chance": _count_by_chance()}
    head = json.dumps(result, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    out.write_text(f'{head},\n "methods": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    _print_table(rows)
    if page:
        text = page.read_text(encoding="utf-8")
        page.write_text(replace_table(text, format_table(rows)), encoding="utf-8")


# ------------------------------------------------------------------------------------------------------ explainers


def iterate_explainers(names: Sequence[str] | None = None) -> Iterator[tuple[str, Explain]]:
    """Yield camtool's methods and those of the peers, by name."""
    for name, method in camtool.METHODS.items():
        if not method.needs & _SPECIAL and (names is None or name in names):
            yield name, partial(explain_with_camtool, name)
    for name in _PEER_METHODS:
        if names is None or name in names:
            library, kind = name.split()
            yield name, partial(_explain_with_peer, library, kind)


def explain_with_camtool(method: str, network: WiredNetwork, **options: Any) -> Answer:
    """Return the answer of a method at the layer that camtool chooses.

    Where camtool finds no layer, e.g. because no gradient reaches any, it is told the layer as the peers are, and the
    warnings begin with ``LayerError``.
    """
    codes = list[str]()
    for layer in (None, network.layer):
        model = network.build().eval()
        try:
            result = camtool.explain(model, network.inputs, TARGET, method=method, layer=layer, **options)[0]
        except camtool.CamtoolError as error:
            codes.append(type(error).__name__)
            if not isinstance(error, camtool.errors.LayerError):
                break
        else:
            codes += [warning.code for warning in result.warnings]
            return Answer(result.heatmap, codes, [code for code in result.check().codes if code not in codes])
    return Answer(None, codes)


def _explain_with_peer(library: str, kind: str, network: WiredNetwork) -> Answer:
    """Return the answer of a peer; none of them has warnings."""
    torch.manual_seed(0)
    model = network.build().eval()
    heat = PEERS[library](kind, model, [model.get_submodule(network.layer)], network.inputs, TARGET)
    return Answer(np.nan_to_num(heat))


# --------------------------------------------------------------------------------------------------------- verdicts


def judge(heat: Heat | None, network: WiredNetwork) -> Verdict:
    """Return the verdict on a heatmap ``(SIDE, SIDE)`` by the limits above; heat is averaged over each square."""
    if heat is None:
        return "refused"
    heat = heat.clip(0)
    if heat.max() <= heat.min():
        return "nothing"
    squares = [*network.evidence, *network.distractors]
    parts = [float(heat[mask].mean()) for mask in network.evidence]
    other = max(float(heat[mask].mean()) for mask in [*network.distractors, ~np.logical_or.reduce(squares)])
    near = binary_dilation(np.logical_or.reduce(network.evidence), np.ones((2 * CELL + 1,) * 2))
    if max(parts) <= _AS_HOT * other or heat[near].max() < _PEAK * heat.max():
        return "fooled"
    return "found" if max(parts) >= _CLEARLY * other and min(parts) >= _WEAKEST * max(parts) else "partly"


def _judge_all(explain: Explain) -> dict[str, dict[str, Any]]:
    """Return the verdict on each network, with the mean heat of each square and the codes."""
    verdicts = {}
    for network in list_networks():
        heat, warnings, check = explain(network)
        means = [] if heat is None else [float(heat.clip(0)[square.mask].mean()) for square in network.squares]
        verdicts[network.name] = {
            "verdict": judge(heat, network),
            "heat": [round(mean, 3) for mean in means],
            "warnings": [*warnings],
            "check": [*check],
        }
    return verdicts


def _count_by_chance() -> float:
    """Return how many networks random weights of the channels find, the mean over seeds."""
    found = [
        judge(explain_with_camtool("random", network, seed=seed).heat, network) == "found"
        for network in list_networks()
        for seed in range(_SEEDS)
    ]
    return round(sum(found) / _SEEDS, 1)


def _describe(network: WiredNetwork) -> dict[str, Any]:
    """Return what interventions say of a network."""
    scores, players = network.play(), range(len(network.squares))
    shapley = [round(compute_shapley(scores, player), 4) for player in players]
    kept = {" ".join(map(str, sorted(subset))): round(score, 4) for subset, score in scores.items()}
    roles = [square.role for square in network.squares]
    return {"name": network.name, "question": network.question, "roles": roles, "scores": kept, "shapley": shapley}


# ----------------------------------------------------------------------------------------------------------- tables


def mark(entry: Mapping[str, Any]) -> str:
    """Return the verdict as one sign, and one for a warning if the map is not right."""
    hint = _WARNED if entry["warnings"] else _CHECKED if entry["check"] else ""
    return _MARKS[entry["verdict"]] + (hint if entry["verdict"] not in ("found", "refused") else "")


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of 80 columns; networks have numbers."""
    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("method", no_wrap=True, max_width=24)
    networks = list_networks()
    for number in range(len(networks)):
        table.add_column(f"{number + 1}", min_width=2)
    for row in rows:
        table.add_row(row["method"], *(mark(entry) for entry in row["verdicts"].values()))
    console = Console(width=80, highlight=False)
    console.print(table)
    console.print("\n" + ", ".join(f"{number} {network.name}" for number, network in enumerate(networks, 1)))
    console.print(", ".join(f"{sign} {word}" for word, sign in _MARKS.items()) + "; " + _LEGEND)


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page: methods with equal verdicts share a row, those that find most come first."""
    networks = [network.name for network in list_networks()]
    same: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        same.setdefault(tuple(mark(row["verdicts"][name]) for name in networks), []).append(row["method"])
    lines = ["| method | found | " + " | ".join(networks) + " |", "|---" * (len(networks) + 2) + "|"]
    for marks, names in sorted(same.items(), key=lambda item: -item[0].count(_MARKS["found"])):
        methods = ", ".join(name if " " in name else f"`{name}`" for name in names)
        lines.append(f"| {methods} | {marks.count(_MARKS['found'])} | " + " | ".join(marks) + " |")
    return "\n".join([*lines, "", _summarize(rows)])


def _summarize(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many wrong maps of camtool's methods have a warning."""
    marks = [mark(entry) for row in rows if " " not in row["method"] for entry in row["verdicts"].values()]
    wrong = [sign[1:] for sign in marks if sign[0] in (_MARKS["fooled"], _MARKS["partly"])]
    empty = [sign[1:] for sign in marks if sign[0] == _MARKS["nothing"]]
    return (
        f"Of the {len(wrong)} maps of camtool's methods that are fooled or partly right, {wrong.count(_WARNED)} have a "
        f"warning, `check()` finds out {wrong.count(_CHECKED)} more, and {wrong.count('')} are silent. Of "
        f"{len(empty)} that say nothing, {len(empty) - empty.count('')} have a warning."
    )


def replace_table(text: str, table: str) -> str:
    """Return the text of a page with another table between the comments ``<!-- wired -->`` and ``<!-- /wired -->``."""
    return re.sub(
        r"(<!-- wired -->\n).*?(\n<!-- /wired -->)", lambda found: found[1] + table + found[2], text, flags=re.DOTALL
    )


# ----------------------------------------------------------------------------------------------------------- figure


_TILE, _GAP, _LABEL, _TEXT, _HEAD = 104, 8, 120, 20, 72
"""Side of a tile, gap, width of the labels, size of letters and height of the head, in pixels: legible at half size."""

_COLORS: Mapping[str, tuple[int, int, int]] = {
    "found": RIGHT,
    "partly": (150, 90, 0),
    "fooled": WRONG,
    "nothing": MUTED,
    "refused": MUTED,
}


def _draw_figure() -> NDArray[np.uint8]:
    """Draw a row for each network: the input with the evidence outlined, and the maps of a few methods."""
    networks, step = list_networks(), _TILE + _TEXT + 2 * _GAP
    width = _LABEL + (1 + len(_DRAWN)) * (_TILE + _GAP)
    page = Image.new("RGB", (width, _HEAD + len(networks) * step), PAPER)
    lefts = [_LABEL + column * (_TILE + _GAP) for column in range(1 + len(_DRAWN))]
    for left, name in zip(lefts, ("input,|truth boxed", *_DRAWN), strict=True):
        for line, text in enumerate(name.replace("-", "|").split("|")):
            draw_text(page, (left + _TILE / 2, 22 + line * 26), text, _TEXT, INK, anchor="mm", max_width=_TILE + _GAP)
    for top, network in zip(range(_HEAD, page.height, step), networks, strict=True):
        draw_text(page, (_GAP, top + _TILE / 2), network.name, _TEXT, INK, anchor="lm", max_width=_LABEL)
        page.paste(_draw_truth(network), (lefts[0], top))
        for left, name in zip(lefts[1:], _DRAWN, strict=True):
            heat = explain_with_camtool(name, network).heat
            page.paste(_draw_heat(network, heat), (left, top))
            verdict = judge(heat, network)
            at = left + _TILE / 2, top + _TILE + _GAP / 2 + _TEXT / 2
            draw_text(page, at, verdict, _TEXT, _COLORS[verdict], anchor="mm", max_width=_TILE)
    return np.asarray(page)


def _draw_truth(network: WiredNetwork) -> Image.Image:
    pixels = (network.inputs[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    tile = Image.fromarray(pixels).resize((_TILE, _TILE), Image.Resampling.NEAREST)
    for mask in network.evidence:
        rows, columns = (np.flatnonzero(mask.any(axis)) * _TILE / SIDE for axis in (1, 0))
        cell = _TILE / SIDE
        box = columns[0] - 3, rows[0] - 3, columns[-1] + cell + 2, rows[-1] + cell + 2
        ImageDraw.Draw(tile).rectangle(box, outline=(255, 255, 255), width=2)
    return tile


def _draw_heat(network: WiredNetwork, heat: Heat | None) -> Image.Image:
    """Draw a heatmap over the input in gray."""
    heat = np.zeros((SIDE, SIDE), np.float32) if heat is None else heat
    gray = (network.inputs[0].amax(0).numpy() * 110).astype(np.uint8)
    pixels = blend(np.repeat(gray[..., None], 3, 2), heat)
    return Image.fromarray(pixels).resize((_TILE, _TILE), Image.Resampling.BILINEAR)


if __name__ == "__main__":
    typer.run(main)
