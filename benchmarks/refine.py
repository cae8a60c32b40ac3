"""Faithfulness against forward passes: ``python -m benchmarks refine``.

Maps of one pass that masks correct (:func:`camtool.refine`), from ``faithcam``, from ``gradcam`` and from no map,
beside RISE, Score-CAM, occlusion, KernelSHAP (captum) and a greedy search like LiMA's, each with at most as many
passes. Photos are those of installed packages, on which nothing was chosen, and of ``--photos`` those on which the
constants were.

Measures, each a mean over photos with its standard error. **Single deletion**: Spearman's correlation of the heat in
4 x 4 cells with the drop of the logit when a cell is set to 0, the mean color. **49 cells**: the same in 7 x 7 cells
that show the blurred photo. **Masks**: 40 random masks of 5 x 5, 6 x 6, 9 x 9 or 11 x 11 cells, 10 for each of four
shares of the photo, each with both fills; the heat under a mask is correlated with the drop among masks of one share
and fill, as the size alone predicts most of the drop. **Sizes**: the same among all 40 masks. **Insertion**: the mean
probability while the hottest pixels are shown on the blurred photo. No pass of a method is one of a measure: grids,
shapes and positions of the masks differ.

The row ``ceiling`` is a sum over cells fitted to 640 passes of masks of the measures' kind, drawn anew.

A gain is that over the map of one pass, paired by photo. **Coverage** is the share of the measures' drops (16, 49, and
80 under masks) that lie in the intervals of 90 %, **width** that of these intervals in deviations of the drops, the
median over photos. ``--intervals`` measures no more than these. Without ``--weights`` nothing is measured: the tables
of ``docs/refine.md``, ``assets/refine.png`` and ``assets/refine_intervals.png`` are made from the JSON file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

import camtool
from benchmarks.networks import (
    HELD_OUT,
    TITLES,
    TUNED,
    Network,
    PhotosOption,
    ScenesOption,
    WeightsOption,
    read_networks,
)
from benchmarks.paired import describe_machine
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.hooks.state.guard import guard
from camtool.methods.refinement import RefinedMaps, correct_maps, measure_drops, regress
from camtool.targets import ClassScore
from camtool.trust.metrics.faithfulness import compute_insertion
from camtool.trust.metrics.removal import blur_images
from camtool.trust.metrics.sanity import compute_cascading_randomization
from camtool.trust.metrics.scores import ClassScore as ClassProbability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).with_suffix(".json")
_ROOT = Path(__file__).parents[1]
PAGE, FIGURE = _ROOT / "docs" / "refine.md", _ROOT / "assets" / "refine.png"
START, END = "<!-- measured -->", "<!-- /measured -->"

PASSES = (16, 32, 64, 128)

MEASURES = ("single deletion", "49 cells", "masks", "sizes", "insertion")

_SHARES, _GRIDS = (0.06, 0.12, 0.25, 0.5), (5, 6, 9, 11)
_KINDS = [(share, _GRIDS[number % 4]) for share in _SHARES for number in range(10)]

_CEILING = "ceiling, 640"
"""The map that a regression over cells finds with 640 passes, of masks like those of the measures, not the same."""

LEVELS = {0.5: 0.6745, 0.6: 0.8416, 0.7: 1.0364, 0.8: 1.2816, 0.9: 1.6449, 0.95: 1.96}
"""Half of an interval in standard deviations, by the share of drops that should lie in it."""

_REGIONS = ("16 cells", "49 cells", "masks")
"""What intervals are of."""

Heat = NDArray[np.float64]


@dataclass(frozen=True)
class Removals:
    """What a measure removes from a photo, and what the logit loses.

    Attributes:
        masks: ``(M, H, W)`` booleans.
        drops: ``(M,)``.
    """

    masks: Tensor
    drops: Heat


@dataclass(frozen=True, eq=False)
class Question:
    """A prepared photo ``(1, C, H, W)``, a class, and what removing parts of it does, by measure and fill."""

    inputs: Tensor
    index: int
    cells: Removals
    fine: Removals
    masks: tuple[Removals, Removals]


def main(
    weights: WeightsOption = [],  # noqa: B006
    photos: PhotosOption = None,
    scenes: ScenesOption = None,
    only: Annotated[list[str], typer.Option(help="Part of a row's name; may be repeated.")] = [],  # noqa: B006
    limit: Annotated[int, typer.Option(help="The largest number of photos.")] = 1000,
    intervals: Annotated[bool, typer.Option(help="Measure the intervals alone.")] = False,  # noqa: FBT002
    randomized: Annotated[int, typer.Option(help="Randomize the weights, on so many photos, and measure no more.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; what it holds of other rows is kept.")] = RESULTS,
) -> None:
    """Measure, print the rows, and write them to a JSON file; without weights, write page and figure from it."""
    if not weights and scenes is None:
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
        before, _, after = PAGE.read_text(encoding="utf-8").partition(START)
        PAGE.write_text(before + write_tables(rows) + after.partition(END)[2], encoding="utf-8")
        draw_curves(rows).savefig(FIGURE, dpi=150)
        if any(", intervals faithcam, 64" in row for row in rows):
            draw_calibration(rows).savefig(FIGURE.with_stem("refine_intervals"), dpi=150)
        return
    torch.set_num_threads(threads)
    old = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else {}
    for network in read_networks(weights, photos, scenes):
        place = f"{network.name}, {_SCENES if network.transform is None else _UNSEEN if photos is None else _CHOSEN}"
        numbers: dict[str, list[Any]] = {}
        for question in islice(_ask(network, HELD_OUT if photos is None else TUNED), randomized or limit):
            if randomized:
                for row, value in _randomize(network.model, question):
                    numbers.setdefault(f"randomized, {row}", []).append([value])
                continue
            for row, values in _measure(network.model, question, only, intervals=intervals):
                numbers.setdefault(row, []).append(values)
        for row, measured in numbers.items():
            prior = numbers.get(_name_prior(row))
            if randomized:
                old[f"{place}, {row}"] = {"photos": len(measured), "correlation": _average(np.array(measured)[:, 0])}
            elif row.startswith("intervals"):
                old[f"{place}, {row}"] = _summarize_intervals(np.array(measured))
            else:
                old[f"{place}, {row}"] = _summarize(np.array(measured), None if prior is None else np.array(prior))
            print(f"{place}, {row}", json.dumps(old[f"{place}, {row}"]), flush=True)
        result = {"machine": describe_machine(threads), "rows": old}
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _name_prior(row: str) -> str:
    """Return the row of one pass that a row is compared with."""
    return "gradcam, 1" if row.startswith("refine gradcam") or row == "gradcam, 1" else "faithcam, 1"


def _summarize(measured: Heat, prior: Heat | None) -> dict[str, Any]:
    """Return mean and standard error of each measure, and the paired gain with its own."""
    entry: dict[str, Any] = {"photos": len(measured)}
    for at, measure in enumerate(MEASURES):
        entry[measure] = _average(measured[:, at])
        if prior is not None:
            entry[measure] += _average(measured[:, at] - prior[:, at])
    return entry


def _summarize_intervals(measured: Heat) -> dict[str, Any]:
    """Return what :func:`measure_intervals` returned for photos: coverage by level, with errors at 90 %, and width."""
    shares, at_90 = measured[..., :-1], [*LEVELS].index(0.9)
    return {
        "photos": len(measured),
        "coverage": [_average(shares[:, kind, at_90]) for kind in range(len(_REGIONS))],
        "by level": shares.mean(0).round(3).tolist(),
        "width": np.median(measured[..., -1], 0).round(2).tolist(),
    }


def _average(values: Heat) -> list[float]:
    """Return the mean and its standard error."""
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return [round(float(values.mean()), 4), round(float(error), 4)]


# ------------------------------------------------------------------------------------------------------ page, figure

NETWORKS = {name: TITLES[name] for name in ("mobilenet_v2", "squeezenet1_1")}
"""Networks on which all methods are measured; the others have the rows of refine only."""

_UNSEEN, _SCENES, _CHOSEN = "photos of packages", "scenes", "photos the constants were chosen on"

_SHOWN = {_UNSEEN: "unseen", _SCENES: "scenes", _CHOSEN: "tuned on"}

_LINES = {
    "refine faithcam": ("refine, from faithcam", "#c2410c", 2.4),
    "refine gradcam": ("refine, from gradcam", "#2563eb", 2.4),
    "no prior": ("refine, from no map", "#0f766e", 1.6),
    "occlusion": ("occlusion", "#7c3aed", 1.2),
    "rise": ("RISE", "#6b7280", 1.2),
    "scorecam": ("Score-CAM", "#a16207", 1.2),
    "kernelshap": ("KernelSHAP (captum)", "#db2777", 1.2),
    "greedy": ("greedy search", "#9ca3af", 1.2),
}
"""For each method its name, the color and the width of its line."""


def write_tables(rows: dict[str, Any]) -> str:
    """Return the tables of the page, between their markers."""
    mark = f"<!-- numbers: benchmarks/{RESULTS.name} -->"
    titles = ["network, photos, prior, passes", *MEASURES, "coverage; width: 16, 49, masks"]
    lines = [START, mark, f"| {' | '.join(titles)} |"]
    lines.append("|---" * (len(MEASURES) + 2) + "|")
    for (network, name), place, prior in product(TITLES.items(), (_UNSEEN, _SCENES, _CHOSEN), ("faithcam", "gradcam")):
        by_passes = {passes: rows.get(f"{network}, {place}, refine {prior}, {passes}") for passes in PASSES}
        found = {passes: row for passes, row in by_passes.items() if row is not None}
        # Of the other networks the best map alone was refined.
        if found and (network in NETWORKS or prior == "faithcam"):
            last = found[max(found)]
            shown = f"{name}, {last['photos']} {_SHOWN[place]}, `{prior}`, {', '.join(map(str, found))}"
            gains = [_join_gains([row[measure] for row in found.values()]) for measure in MEASURES]
            of_last = rows.get(f"{network}, {place}, intervals {prior}, {max(found)}")
            lines.append(f"| {shown} | {' | '.join(gains)} | {_join_intervals(of_last)} |")
    shown_measures = [measure for measure in MEASURES if measure != "sizes"]
    lines += ["", mark, "| unseen photos: 16, 32, 64, 128 passes | " + " | ".join(shown_measures) + " |"]
    lines.append("|---" * (len(shown_measures) + 1) + "|")
    for network, name in NETWORKS.items():
        for method in ("faithcam", "gradcam"):
            row = rows[f"{network}, {_UNSEEN}, {method}, 1"]
            means = [f"{row[measure][0]:.3f} ± {row[measure][1]:.3f}" for measure in shown_measures]
            lines.append(f"| {name}, `{method}`, one pass | {' | '.join(means)} |")
        for method, (label, _, _) in _LINES.items():
            of_method = [rows[f"{network}, {_UNSEEN}, {method}, {passes}"] for passes in PASSES]
            means = [", ".join(f"{row[measure][0]:.3f}" for row in of_method) for measure in shown_measures]
            lines.append(f"| {name}, {label} | {' | '.join(means)} |")
    return "\n".join([*lines, END])


def _join_gains(entries: Sequence[Sequence[float]]) -> str:
    """Return gains in one cell, bold beyond two standard errors, italic below; the last with its standard error."""
    cells = []
    for _, _, gain, error in entries:
        text = f"{gain:+.3f}"
        cells.append(text if abs(gain) <= 2 * error else f"**{text}**" if gain > 0 else f"*{text}*")
    return f"{', '.join(cells)} ± {entries[-1][3]:.3f}"


def _join_intervals(entry: dict[str, Any] | None) -> str:
    """Return coverage with the largest standard error, and width, where today's intervals were measured."""
    if entry is None:
        return "not measured"
    coverage, width = ", ".join(f"{share:.2f}" for share, _ in entry["coverage"]), ", ".join(map(str, entry["width"]))
    return f"{coverage} ± {max(error for _, error in entry['coverage']):.2f}; {width}"


def draw_calibration(rows: dict[str, Any]) -> Figure:
    """Return the figure: how many drops intervals hold, by how many they should, in a plot for each network."""
    from matplotlib.figure import Figure

    found = [(name, rows.get(f"{key}, {_UNSEEN}, intervals faithcam, 64")) for key, name in TITLES.items()]
    shown = [(name, entry) for name, entry in found if entry is not None]
    figure = Figure(figsize=(3.2 * len(shown), 3.4))
    plots = figure.subplots(1, len(shown), squeeze=False)[0]
    for (name, entry), plot in zip(shown, plots, strict=True):
        plot.plot((0.45, 1), (0.45, 1), color="#9ca3af", lw=1, ls=(0, (4, 3)), label="exact")
        for region, shares, color in zip(_REGIONS, entry["by level"], ("#c2410c", "#2563eb", "#0f766e"), strict=True):
            plot.plot([*LEVELS], shares, color=color, lw=2, marker="o", ms=3, label=region)
        plot.set_title(f"{name}, {entry['photos']} photos", fontsize=10, loc="left", pad=8)
        plot.set(xlim=(0.45, 1), ylim=(0.45, 1.01), xlabel="share that intervals should hold", aspect="equal")
        plot.spines[["top", "right"]].set_visible(False)
        plot.tick_params(labelsize=8, length=2)
        plot.grid(color="#e5e7eb", lw=0.6)
    plots[0].set_ylabel("share that they hold")
    plots[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    return figure


def draw_curves(rows: dict[str, Any]) -> Figure:
    """Return the figure: each measure against the passes, a row of plots for each network."""
    from matplotlib.figure import Figure

    shown = [measure for measure in MEASURES if measure != "sizes"]
    figure = Figure(figsize=(11, 5.8))
    plots = figure.subplots(len(NETWORKS), len(shown), sharex=True)
    for at, ((network, name), line) in enumerate(zip(NETWORKS.items(), plots, strict=True)):
        for measure, plot in zip(shown, line, strict=True):
            for method, (label, color, width) in _LINES.items():
                values = np.array([rows[f"{network}, {_UNSEEN}, {method}, {p}"][measure][:2] for p in PASSES])
                plot.plot(PASSES, values[:, 0], color=color, lw=width, label=label, zorder=width, marker="o", ms=3)
            for method in ("faithcam", "gradcam"):
                level = rows[f"{network}, {_UNSEEN}, {method}, 1"][measure][0]
                color = _LINES[f"refine {method}"][1]
                plot.axhline(level, color=color, lw=1, ls=(0, (4, 3)), label=f"{method}, one pass")
            plot.set_xscale("log", base=2)
            plot.set_xticks(PASSES, [str(passes) for passes in PASSES])
            plot.spines[["top", "right"]].set_visible(False)
            plot.tick_params(labelsize=8, length=2)
            plot.grid(axis="y", color="#e5e7eb", lw=0.6)
            if at == 0:
                plot.set_title(measure.capitalize(), fontsize=10, loc="left", pad=8)
            else:
                plot.set_xlabel("forward passes", fontsize=9)
        line[0].set_ylabel(f"{name}, higher is better", fontsize=9)
    handles, labels = plots[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    return figure


# --------------------------------------------------------------------------------------------------------- questions


def _ask(network: Network, place: str) -> Iterator[Question]:
    """Yield the questions of a network with what removals do; a segmenter, whose class has a region, has none."""
    for asked in network.list_questions(place):
        if asked.region is None:
            inputs, wanted = asked.inputs, asked.index
            gray, blurred = torch.zeros_like(inputs), blur_images(inputs)
            remove = partial(_remove, network.folded, inputs, wanted)
            masks = _draw_random_masks(inputs.shape[-1], _KINDS, seed=999)
            yield Question(
                inputs,
                wanted,
                remove(_draw_cells(4, inputs.shape[-1]), gray),
                remove(_draw_cells(7, inputs.shape[-1]), blurred),
                (remove(masks, gray), remove(masks, blurred)),
            )


@torch.inference_mode()
def _remove(model: Callable[[Tensor], Any], inputs: Tensor, index: int, masks: Tensor, fill: Tensor) -> Removals:
    """Return what the logit loses without the parts under masks."""
    parts = [model(torch.where(part[:, None], fill, inputs))[:, index] for part in masks.split(16)]
    return Removals(masks, (model(inputs)[0, index] - torch.cat(parts)).double().numpy())


def _draw_cells(cells: int, size: int) -> Tensor:
    """Return a mask for each cell of a grid."""
    return _enlarge(torch.eye(cells * cells).reshape(-1, cells, cells), size)


def _draw_random_masks(size: int, kinds: Sequence[tuple[float, int]], seed: int) -> Tensor:
    """Return a random mask for each share of the photo and number of cells along an axis."""
    generator, masks = torch.Generator().manual_seed(seed), []
    for share, cells in kinds:
        order = torch.rand(cells * cells, generator=generator).argsort()
        chosen = (order < max(1, round(share * cells * cells))).float()
        masks.append(_enlarge(chosen.reshape(1, cells, cells), size))
    return torch.cat(masks)


def _enlarge(masks: Tensor, size: int) -> Tensor:
    return nn.functional.interpolate(masks[:, None], (size, size), mode="nearest")[:, 0] > 0.5


# ---------------------------------------------------------------------------------------------------------- measures


def _measure(
    model: nn.Module, question: Question, only: Sequence[str], *, intervals: bool
) -> Iterator[tuple[str, list[float] | Heat]]:
    """Yield the name of each row and its measures, and those of intervals, if there are any; or no more than these."""
    for row, explain in _list_rows().items():
        if (only and not any(part in row for part in only)) or (intervals and not row.startswith("refine")):
            continue
        heat, refined = explain(model, question)
        if not intervals:
            yield row, _judge(model, question, heat)
        if refined is not None and row.startswith("refine"):
            yield row.replace("refine", "intervals"), measure_intervals(question, refined)


def _judge(model: nn.Module, question: Question, heat: NDArray[np.floating[Any]]) -> list[float]:
    """Return the measures of a heatmap at the size of the input."""
    wide = torch.from_numpy(np.ascontiguousarray(heat)).double()

    def sum_heat(removals: Removals) -> Heat:
        sums: Heat = (removals.masks.flatten(1).double() @ wide.flatten()).numpy()
        return sums

    among_all, among_one = [], []
    for of_fill in question.masks:
        under = sum_heat(of_fill)
        among_all.append(_correlate(under, of_fill.drops))
        among_one += [_correlate(under[at : at + 10], of_fill.drops[at : at + 10]) for at in range(0, 40, 10)]
    score = ClassProbability(model, question.inputs, question.index)
    inserted = compute_insertion(score, question.inputs, wide[None].float(), steps=10)
    cells = (_correlate(sum_heat(of_cells), of_cells.drops) for of_cells in (question.cells, question.fine))
    return [*cells, float(np.mean(among_one)), float(np.mean(among_all)), float(inserted[0])]


def _correlate(heat: Heat, drops: Heat) -> float:
    """Return Spearman's correlation; 0 for constant heat."""
    return float(spearmanr(heat, drops)[0]) if np.ptp(heat) > 0 and np.ptp(drops) > 0 else 0.0


def _randomize(model: nn.Module, question: Question) -> Iterator[tuple[str, float]]:
    """Yield for each method the mean absolute rank correlation of its map with those of a randomized model.

    The last quarter of the layers has random weights, then the last half, and so on, as in Adebayo et al. 2018.
    """
    for row, options in (("faithcam, 1", {}), ("faithcam, 64", {"passes": 64}), ("refine gradcam, 64", None)):

        def explain(images: Tensor, _: Tensor, options: dict[str, Any] | None = options) -> Tensor:
            method = "gradcam" if options is None else "faithcam"
            (result,) = camtool.explain(model, images, [question.index], method=method, **(options or {}))
            return torch.from_numpy((camtool.refine(result) if options is None else result).heatmap)[None]

        maps = explain(question.inputs, torch.zeros(1))
        yield row, float(compute_cascading_randomization(model, explain, question.inputs, maps, groups=4)[0])


def measure_intervals(question: Question, refined: RefinedMaps) -> Heat:
    """Return shares of drops in their intervals, and the width of those of 90 %: ``(regions, levels + 1)``.

    The width is the mean one, in standard deviations of the drops: 3.3 for an interval that knows only these.
    """
    (posterior,) = refined.posteriors
    assert posterior is not None
    gray, blurred = question.masks
    found = []
    for removals in ([(question.cells, False)], [(question.fine, True)], [(gray, False), (blurred, True)]):
        errors, widths = [], []
        for of_fill, is_blurred in removals:
            cover = nn.functional.adaptive_avg_pool2d(of_fill.masks.double(), 14).flatten(1)
            mean, deviation = (each.numpy() for each in posterior.predict(cover, blurred=is_blurred))
            errors.append(np.abs(of_fill.drops - mean) / deviation)
            widths.append(2 * LEVELS[0.9] * deviation.mean() / of_fill.drops.std())
        found.append([*(float(np.mean(np.array(errors) <= half)) for half in LEVELS.values()), float(np.mean(widths))])
    return np.array(found)


# -------------------------------------------------------------------------------------------------------------- rows

Explain = Callable[[nn.Module, Question], "tuple[NDArray[Any], RefinedMaps | None]"]


def _list_rows() -> dict[str, Explain]:
    """Return the functions from a model and a question to a heatmap, by name."""
    rows: dict[str, Explain] = {f"{name}, 1": partial(_explain, name, {}) for name in ("faithcam", "gradcam")}
    rows[_CEILING] = _fit_sum
    for passes in PASSES:
        rows |= {f"refine {name}, {passes}": partial(_refine, name, passes) for name in ("faithcam", "gradcam")}
        rows[f"no prior, {passes}"] = partial(_refine, "none", passes)
        rows[f"rise, {passes}"] = partial(_explain, "rise", {"samples": passes})
        rows[f"scorecam, {passes}"] = partial(_explain, "scorecam", {"max_channels": passes})
        # Windows that overlap by half, as many along each axis as fit; one pass is that of the whole photo.
        side = math.isqrt(passes - 1)
        windows = {"window": 2 / (side + 1), "stride": 1 / (side + 1)}
        rows[f"occlusion, {passes}"] = partial(_explain, "occlusion", windows)
        rows[f"kernelshap, {passes}"] = partial(_explain_by_kernel_shap, passes)
        rows[f"greedy, {passes}"] = partial(_search_greedily, passes)
    return rows


def _explain(method: str, options: dict[str, Any], model: nn.Module, question: Question) -> tuple[NDArray[Any], None]:
    return camtool.explain(model, question.inputs, [question.index], method=method, **options)[0].heatmap, None


def _refine(method: str, passes: int, model: nn.Module, question: Question) -> tuple[NDArray[Any], RefinedMaps]:
    """Return what :func:`camtool.refine` draws, with what it knows of the cells."""
    name = "gradcam" if method == "none" else method
    (result,) = camtool.explain(model, question.inputs, [question.index], method=name)
    raw = torch.from_numpy(result.raw)[None] * (method != "none")
    # The first masks of many are those of fewer, as these numbers of passes are whole rounds.
    evidence, cover, drops = _hide_parts(model, question)
    refined = correct_maps(evidence, raw, result.centers, cover[:passes], drops[:passes])
    return replace(result, raw=refined.maps[0].numpy(), centers=refined.centers).heatmap, refined


def _fit_sum(model: nn.Module, question: Question) -> tuple[NDArray[Any], None]:
    """Return the cells that best explain 320 random masks of the measures' kind, drawn anew, with both fills each."""
    inputs, kinds = question.inputs, [(_SHARES[at % 4], _GRIDS[at // 4 % 4]) for at in range(320)]
    masks = _draw_random_masks(inputs.shape[-1], kinds, seed=5)
    fills = (blur_images(inputs), torch.zeros_like(inputs))  # in the order that regress() expects
    drops = [_remove(model, inputs, question.index, masks, fill).drops for fill in fills]
    cover = nn.functional.adaptive_avg_pool2d(masks.double(), 14).flatten(1).repeat_interleave(2, 0)
    (result,) = camtool.explain(model, inputs, [question.index], method="faithcam")
    heat = nn.functional.adaptive_avg_pool2d(torch.from_numpy(result.heatmap)[None].double(), 14).flatten()
    posterior = regress(cover, torch.from_numpy(np.stack(drops, 1)).flatten(), heat / heat.sum(), (14, 14))
    assert posterior is not None
    raw = posterior.mean[:-3].relu().reshape(14, 14).numpy().astype(np.float32)
    return replace(result, raw=raw, centers=None).heatmap, None


@lru_cache(maxsize=1)
def _hide_parts(model: nn.Module, question: Question) -> tuple[Evidence, Tensor, Tensor]:
    """Return the evidence of a question and what the largest number of masks covers and takes."""
    with guard(model), torch.no_grad():
        forward_pass = run_forward_pass(model, question.inputs, [])
        (evidence,) = gather_evidence(forward_pass, [ClassScore(question.index)], [0], at_input=True)
        return evidence, *measure_drops(evidence, PASSES[-1])


def _explain_by_kernel_shap(passes: int, model: nn.Module, question: Question) -> tuple[NDArray[Any], None]:
    from captum.attr import KernelShap

    torch.manual_seed(0)
    parts = torch.arange(36.0).reshape(1, 1, 6, 6)
    numbers = nn.functional.interpolate(parts, question.inputs.shape[2:], mode="nearest").long()
    with torch.no_grad():
        values = KernelShap(model).attribute(
            question.inputs, target=question.index, feature_mask=numbers, n_samples=passes, perturbations_per_eval=16
        )
    return values[0, 0].numpy(), None


@torch.inference_mode()
def _search_greedily(passes: int, model: nn.Module, question: Question) -> tuple[NDArray[Any], None]:
    """Return the order in which parts raise the logit most when the blurred photo gets them back.

    Each round scores every part that is still blurred, and gives back a quarter of them, the best ones, as long as
    passes are left. The parts are 4 x 4 or 6 x 6 cells. Those that are never given back follow by their last gain.
    """
    cells = 4 if passes < 36 else 6
    parts, blurred = _draw_cells(cells, question.inputs.shape[-1]), blur_images(question.inputs)
    order: list[int] = []
    left, gains = [*range(len(parts))], torch.zeros(len(parts))
    shown = torch.zeros_like(parts[0])
    while left and len(left) <= passes:
        passes -= len(left)
        masks = parts[left] | shown
        scores = [model(torch.where(part[:, None], question.inputs, blurred)) for part in masks.split(16)]
        gains[left] = torch.cat(scores)[:, question.index]
        best = sorted(left, key=lambda part: -float(gains[part]))[: math.ceil(len(left) / 4)]
        order += best
        left = [part for part in left if part not in best]
        shown = parts[order].any(0)
    order += sorted(left, key=lambda part: -float(gains[part]))
    ranks = torch.empty(len(parts))
    ranks[order] = torch.arange(len(parts), 0, -1.0)
    return (parts * ranks[:, None, None]).sum(0).numpy(), None


if __name__ == "__main__":
    typer.run(main)
