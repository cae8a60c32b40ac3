"""Other shapes of faithcam: ``python -m benchmarks shape --weights NAME=FILE --scenes FOLDER``.

Faithcam often shrinks to one spot. Would more depths, a floor under its gate, a softer gate, competition at each depth
or FullGrad, whose heat is on whole objects, make it more faithful? Would detail of guided gradients within the cells of
the layer? (Its constants were chosen on the photos of ``--photos`` of other benchmarks and on other scenes, among 40
combinations.) Each variant is compared with faithcam on the same
questions: gains are paired, with their standard errors. Networks, photos, scenes and measures are those of
:mod:`benchmarks.networks`. Without networks nothing is measured: the table of ``docs/faithcam.md`` is made from the
JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import camtool
from benchmarks.networks import (
    MEASURES,
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
from camtool.evidence.contributions import trace_contributions
from camtool.evidence.evidence import Evidence
from camtool.geometry.resampling import draw_heat, resample
from camtool.hooks.structures.graph_nodes import list_nodes
from camtool.maps import scale_by_peak
from camtool.methods.families.competition import (
    _add_depths,
    _find_rivals,
    _find_shares,
    _scale_to_equal_means,
    _smooth,
    faithcam,
)
from camtool.methods.families.input_gradient import fullgrad

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "faithcam.md"

_TITLES = {
    "cells": "Single deletion",
    "fine": "49 blurred cells",
    "masks": "Masks",
    "insertion": "Insertion",
    "pointing": "Pointing",
}


def main(
    weights: WeightsOption = [],  # noqa: B006
    scenes: ScenesOption = None,
    most: Annotated[int, typer.Option(help="Most scenes of one object and photos; half as many scenes of two.")] = 40,
    only: Annotated[list[str], typer.Option(help="Name of a variant; may be repeated.")] = [],  # noqa: B006
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; what it holds of other rows is kept.")] = RESULTS,
) -> None:
    """Measure, print the rows, and write them to a JSON file; without networks write the page's tables from it."""
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else {}
    if not weights and scenes is None:
        write_between(PAGE, "shape", count_variants(rows))
        return
    torch.set_num_threads(threads)
    for network in read_networks(weights, None, scenes):
        judge = MapJudge(network, measures=tuple(MEASURES), most=most, most_pointing=most // 2)
        reference = judge.measure(explain_by(faithcam))
        for variant in [name for name in VARIANTS if not only or name in only]:
            method = VARIANTS[variant]
            try:
                measured = reference if method is faithcam else judge.measure(explain_by(method))
            except camtool.MethodError as error:
                print(network.name, variant, "does not fit:", error, flush=True)
                continue
            entry = {name: summarize(values, reference[name]) for name, values in measured.items()}
            rows.setdefault(variant, {})[network.name] = {"questions": len(judge.questions), **entry}
            print(network.name, variant, json.dumps(entry), flush=True)
            result = {"machine": describe_machine(threads), "rows": rows}
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def count_variants(rows: dict[str, Any]) -> str:
    """Return a table with the numbers of networks on which each variant is ahead of faithcam, and behind it."""
    return format_counts(rows, [name for name in VARIANTS if name != "faithcam"], _TITLES)


# ---------------------------------------------------------------------------------------------------------- variants


def _vary(
    evidence: Evidence,
    *,
    depths: int = 4,
    floor: float = 0.0,
    power: float = 1.5,
    focus: float = 0.25,
    competition: float = 0.0,
) -> Tensor:
    """Return maps as of faithcam with a floor under the gate, another power of the share, or competition at each depth.

    Competition multiplies each depth by a power of the share of the class in its evidence and that of its rivals.
    """
    share = _find_shares(evidence, 10, 2.0, 3.0)
    contributions = (evidence.gradients * evidence.activations).sum(1).relu()
    won = (share**1.5 * (contributions > 0))[:, None] * evidence.gradients
    traced = [depth_maps.relu() for depth_maps in trace_contributions(evidence, won)]
    if competition:
        rivals = [depth_maps.relu() for depth_maps in trace_contributions(evidence, _weigh_rivals(evidence))]
        own, other = ([_smooth(depth_maps) for depth_maps in maps] for maps in (traced, rivals))
        parts = zip(traced, own, other, strict=True)
        traced = [maps * (mine / (mine + theirs).clamp_min(1e-12)) ** competition for maps, mine, theirs in parts]
    gate = floor + (1 - floor) * share**power * scale_by_peak(contributions) ** focus
    return _add_depths(evidence, _scale_to_equal_means(traced), gate)


def _weigh_rivals(evidence: Evidence) -> Tensor:
    """Return the gradients of the ten strongest rivals at the positions where each has evidence, by its share."""
    weights = torch.zeros_like(evidence.gradients)
    for row, target in enumerate(evidence.targets):
        contestants = [target, *_find_rivals(evidence, row, 10)]
        by_class = evidence.for_targets(contestants, [evidence.images[row]] * len(contestants))
        evidence_of = (by_class.gradients * by_class.activations).sum(1)
        local = evidence_of.flatten(1) * evidence_of[0].numel()
        local = local + (by_class.scores - evidence_of.flatten(1).sum(1))[:, None]
        spread = 2.0 * local[0].std(correction=0).clamp_min(1e-12)
        shares = ((local - local[:1]) / spread).softmax(0).reshape(evidence_of.shape)
        weights[row] = ((shares * (evidence_of > 0))[1:, None] * by_class.gradients[1:]).sum(0)
    return weights


_ACTIVATIONS = ("ReluBackward", "HardtanhBackward", "GeluBackward", "SiluBackward", "HardswishBackward")

_SMOOTHINGS = 4
"""What is around a position is smoothed so often: the deviation is two cells of the depth, about one of the layer."""


def _add_detail(evidence: Evidence, *, depths: int = 4, is_gated: bool = False, floor: float = 0.05) -> Tensor:
    """Return faithcam's map times the evidence of guided gradients at the shallowest depth over that around it.

    With ``(d / smooth(d))^0.75``, where both are raised by ``floor`` times the mean of d, heat moves within the cells
    of the layer. Guided gradients are those that activation functions pass back if they are positive.
    """
    del depths
    maps = faithcam(evidence)
    if not evidence.depths:
        return maps
    layers = [evidence.depths[0], evidence.get_layer()]
    ours, of_layer = (evidence.forward_pass.find_place(layer).centers for layer in layers)
    share = _find_shares(evidence, 10, 2.0, 3.0) ** 1.5
    contributions = (evidence.gradients * evidence.activations).sum(1).relu()
    with _guide_activations(evidence.forward_pass.layer_outputs[layers[1].name]):
        traced = trace_contributions(evidence, (share * (contributions > 0))[:, None] * evidence.gradients)
    fine = traced[0].relu()
    if is_gated:
        fine = fine * resample(share * scale_by_peak(contributions) ** 0.25, of_layer, fine.shape[1:], ours)
    (fine,) = _scale_to_equal_means([fine])
    around = fine
    for _ in range(_SMOOTHINGS):
        around = _smooth(around)
    detail = ((fine + floor) / (around + floor)) ** 0.75
    return maps * resample(detail, ours, maps.shape[1:], evidence.find_centers(maps, at_depths=True))


@contextmanager
def _guide_activations(output: Tensor) -> Iterator[None]:
    """Let activation functions before a layer's output pass positive gradients only, within the block."""
    nodes = [node for node in list_nodes(output) if node.name().startswith(_ACTIVATIONS)]
    handles = [node.register_prehook(lambda gradients: tuple(map(torch.relu, gradients))) for node in nodes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gate_fullgrad(evidence: Evidence, *, depths: int = 4, own: float = 0.0) -> Tensor:
    """Return FullGrad times the gate of faithcam, at the size of the input; with ``own`` the mean with faithcam."""
    del depths  # with this option the depths of faithcam are observed
    full = fullgrad(evidence)
    size, place = full.shape[1:], evidence.forward_pass.find_place(evidence.get_layer()).centers
    contributions = (evidence.gradients * evidence.activations).sum(1).relu()
    gate = _find_shares(evidence, 10, 2.0, 3.0) ** 1.5 * scale_by_peak(contributions) ** 0.25
    gated = full * draw_heat(gate, place, size)
    if not own:
        return gated
    traced = faithcam(evidence)
    drawn = draw_heat(traced, evidence.find_centers(traced, at_depths=True), size)
    first, second = (maps / maps.mean((1, 2), keepdim=True).clamp_min(1e-12) for maps in (drawn, gated))
    return own * first + (1 - own) * second


VARIANTS: dict[str, Callable[..., Tensor] | str] = {
    "faithcam": faithcam,
    "gradcam": "gradcam",
    "fullgrad": "fullgrad",
    "6 depths": partial(_vary, depths=6),
    "8 depths": partial(_vary, depths=8),
    "floor of 0.1": partial(_vary, floor=0.1),
    "softer gate": partial(_vary, power=0.75, focus=0.125),
    "competition at each depth": partial(_vary, power=1.0, competition=1.0),
    "some competition, softer gate": partial(_vary, power=0.75, competition=0.5),
    "fullgrad, gated": _gate_fullgrad,
    "detail in cells": _add_detail,
    "detail in cells, gated": partial(_add_detail, is_gated=True, floor=0.2),
    "mean of both": partial(_gate_fullgrad, own=0.5),
}
"""Names, and methods of camtool or functions of evidence."""


if __name__ == "__main__":
    typer.run(main)
