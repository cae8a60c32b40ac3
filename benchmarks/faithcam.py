"""The accuracy and cost of faithcam, choice by choice.

``python -m benchmarks faithcam --weights mobilenet_v2=FILE --scenes FOLDER`` measures the rows on networks of ImageNet
(photos of installed packages) and of scenes, see :mod:`benchmarks.networks`; with ``--photos`` it measures the first
rows on the photos on which the defaults were tuned, too. The gains are paired: of choices over faithcam, of other
methods over Grad-CAM. The cost is the time of an explanation divided by that of Grad-CAM, in turns, one thread. Without
networks nothing is measured: the tables of README and ``docs/trust.md`` are made from the JSON
file; ``python -m tools.note`` makes those of the choices and of the tuned photos.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from benchmarks.networks import (
    HELD_OUT,
    TUNED,
    Heat,
    MapJudge,
    Measured,
    Network,
    PhotosOption,
    Question,
    ScenesOption,
    WeightsOption,
    format_counts,
    format_table,
    read_networks,
    summarize,
    write_between,
)
from benchmarks.paired import compute_ratio, describe_machine, measure_in_turns
from camtool.evidence import contributions
from camtool.methods.families import competition

_OUT = Path(__file__).with_suffix(".json")
_ROOT = Path(__file__).parents[1]
README = _ROOT / "README.md"
_TRUST = _ROOT / "docs" / "trust.md"

_MEASURES = {
    "cells": "Single deletion",
    "masks": "Masks",
    "insertion": "Insertion",
    "pointing": "Pointing",
}


@dataclass(frozen=True)
class Variant:
    """One way to explain.

    Attributes:
        method: The method.
        options: Its options, and settings of :func:`camtool.explain`.
        replaced: Functions of faithcam that are replaced: module, name, and what to call instead.
        layers: For each network the layers, where they are not the default; others are not measured.
    """

    method: str = "faithcam"
    options: dict[str, Any] = field(default_factory=dict)
    replaced: tuple[tuple[Any, str, Callable[..., Any]], ...] = ()
    layers: dict[str, list[str]] = field(default_factory=dict)


def _keep_maps(maps: Any) -> Any:
    return maps


def _scale_each(scale: Callable[[Tensor], Tensor]) -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    return ((competition, "_scale_to_equal_means", lambda maps: [scale(each) for each in maps]),)


def _trace_ungated(evidence: Any, _: Tensor) -> Any:
    return contributions.trace_contributions(evidence, evidence.gradients)


def _add_ungated(evidence: Any, maps: Sequence[Tensor], gate: Tensor) -> Tensor:
    return _ADD_DEPTHS(evidence, maps, torch.ones_like(gate))


def _keep_blank(evidence: Any, layer: Any, _: Tensor) -> Tensor:
    output = evidence.forward_pass.layer_outputs[layer.name].detach()
    return evidence.select_rows(layer.layout.to_grid(output))


_ADD_DEPTHS = competition._add_depths

_SLOW = ("integrated-gradients", "ablationcam", "cameras")
"""Methods of many passes, for which neither insertion nor pointing is measured."""

_STAGES = {
    "mobilenet_v2": ["features.3", "features.6", "features.13", "features"],
    "squeezenet1_1": ["features.4", "features.7", "features"],
    "timm:tf_efficientnet_lite0": ["blocks.1", "blocks.2", "blocks.4", "bn2"],
}
"""The ends of the last stages, where published merges look."""

ABLATIONS = {
    "faithcam": Variant(),
    "1 depth, the layer itself": Variant(options={"depths": 1}),
    "2 depths": Variant(options={"depths": 2}),
    "8 depths": Variant(options={"depths": 8}),
    "no competition": Variant(options={"rivals": 0}),
    "5 rivals": Variant(options={"rivals": 5}),
    "temperature 1": Variant(options={"temperature": 1.0}),
    "power 1": Variant(options={"power": 1.0}),
    "power 3": Variant(options={"power": 3.0}),
    "no focus": Variant(options={"focus": 0.0}),
    "no kinship": Variant(options={"kinship": 0.0}),
    "gate at the end only": Variant(replaced=((competition, "trace_contributions", _trace_ungated),)),
    "gate before tracing only": Variant(replaced=((competition, "_add_depths", _add_ungated),)),
    "no blank image": Variant(replaced=((contributions, "_subtract_blank", _keep_blank),)),
    "not smoothed": Variant(replaced=((competition, "_smooth", _keep_maps),)),
    "not scaled": Variant(replaced=_scale_each(_keep_maps)),
    "stretched, no centers": Variant(options={"placement": "stretch"}),
}

OTHERS = {
    "gradcam, stretched": Variant("gradcam", {"placement": "stretch"}),
    "gradcam": Variant("gradcam"),
    "gradcam++": Variant("gradcam++"),
    "hirescam": Variant("hirescam"),
    "layercam": Variant("layercam"),
    "rivalcam": Variant("rivalcam"),
    "fullgrad": Variant("fullgrad"),
    "inputxgradient": Variant("inputxgradient"),
    "integrated-gradients": Variant("integrated-gradients"),
    "ablationcam": Variant("ablationcam"),
    "cameras": Variant("cameras"),
    "layercam, stages, its merge": Variant("layercam", {"merge": "layercam"}, layers=_STAGES),
    "hirescam, stages, mean": Variant("hirescam", {"merge": "mean"}, layers=_STAGES),
}


_LAST = {"mobilenet_v2": ["features"], "squeezenet1_1": ["features"], "timm:tf_efficientnet_lite0": ["bn2"]}

PEER_ROWS = {
    "grad-cam, GradCAM": Variant("grad-cam:GradCAM", layers=_LAST),
    "grad-cam, GradCAMPlusPlus": Variant("grad-cam:GradCAMPlusPlus", layers=_LAST),
    "grad-cam, LayerCAM, stages": Variant("grad-cam:LayerCAM", layers=_STAGES),
    "torchcam, GradCAM": Variant("torchcam:GradCAM", layers=_LAST),
    "torchcam, LayerCAM, stages": Variant("torchcam:LayerCAM", layers=_STAGES),
    "captum, LayerGradCam": Variant("captum:LayerGradCam", layers=_LAST),
}
"""Other libraries, at the last layer or at the ends of the last stages; the part before the colon is the library."""


def main(
    weights: WeightsOption = [],  # noqa: B006
    scenes: ScenesOption = None,
    photos: PhotosOption = None,
    only: Annotated[list[str], typer.Option(help="Part of a row's name; may be repeated.")] = [],  # noqa: B006
    most: Annotated[int, typer.Option(help="Most scenes of one object and photos; half as many scenes of two.")] = 40,
    turns: Annotated[int, typer.Option(help="Turns in which the cost is measured; 0 for no cost.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads for torch; the cost is measured with one.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; what it holds of other rows is kept.")] = _OUT,
) -> None:
    """Measure, print the rows, and write them to a JSON file; without networks write the page's tables from it."""
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"cost": {}, "rows": {}}
    if not weights and scenes is None and not turns:
        _write_pages(stored["rows"])
        return
    torch.set_num_threads(threads)
    for network in read_networks(weights, photos, scenes):
        for place in (HELD_OUT, TUNED) if photos is not None else (HELD_OUT,):
            rows = ("gradcam", "faithcam") if place == TUNED else [*OTHERS, *ABLATIONS, *PEER_ROWS]
            chosen = [row for row in rows if not only or any(part in row for part in only)]
            for row, entry in _measure_rows(network, place, chosen, most):
                stored["rows"].setdefault(row, {})[network.name if place == HELD_OUT else f"{network.name}, tuned"] = (
                    entry
                )
                print(network.name, place, row, json.dumps(entry), flush=True)
                result = {"machine": describe_machine(threads), **stored}
                out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if turns:
        result = {"machine": describe_machine(1), **stored, "cost": _measure_costs(turns)}
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _measure_rows(network: Network, place: str, rows: Sequence[str], most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the numbers of each row that fits the network, with the gains over Grad-CAM or over faithcam."""
    judge = MapJudge(network, place, tuple(_MEASURES), most=most, most_pointing=most // 2)
    references: dict[str, Measured] = {}
    for row in dict.fromkeys(["gradcam", "faithcam", *rows] if judge.questions else []):
        variant = (ABLATIONS | OTHERS | PEER_ROWS)[row]
        if variant.layers and network.name not in variant.layers:
            continue
        with _replace(variant):
            try:
                measured = judge.measure(partial(_explain, variant, network.name), _list_left_out(row))
            except camtool.MethodError as error:
                print(network.name, row, "does not fit:", error, flush=True)
                continue
        if row in ("gradcam", "faithcam"):
            references[row] = measured
        reference = references["faithcam" if row in ABLATIONS and row != "faithcam" else "gradcam"]
        entry: dict[str, Any] = {"questions": len(judge.questions), "pointing questions": len(judge.pointing)}
        yield row, entry | {name: summarize(values, reference[name]) for name, values in measured.items()}


def _list_left_out(row: str) -> list[str]:
    """Return the measures that take too long for a row."""
    is_choice = row in ABLATIONS and row != "faithcam"
    return ["pointing"] * (row in _SLOW) + ["insertion"] * (is_choice or row in _SLOW)


@contextmanager
def _replace(variant: Variant) -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, function in variant.replaced:
            stack.enter_context(mock.patch.object(module, name, function))
        yield


def _explain(variant: Variant, name: str, model: nn.Module, question: Question) -> Heat:
    library, _, kind = variant.method.rpartition(":")
    if library:
        layers = [model.get_submodule(layer) for layer in variant.layers[name]]
        return PEERS[library](kind, model, layers, question.inputs, question.index)
    options = dict(variant.options)
    if name in variant.layers:
        options["layer"] = variant.layers[name]
    (result,) = camtool.explain(model, question.inputs, [question.target], method=variant.method, **options)
    return result.heatmap


def _explain_with_grad_cam(
    kind: str, model: nn.Module, layers: list[nn.Module], batch: Tensor, index: int
) -> NDArray[np.float32]:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    with getattr(pytorch_grad_cam, kind)(model, layers) as cam:
        heatmap: NDArray[np.float32] = cam(batch, [ClassifierOutputTarget(index)])[0]
    return heatmap


def _explain_with_torchcam(
    kind: str, model: nn.Module, layers: list[nn.Module], batch: Tensor, index: int
) -> NDArray[np.float32]:
    from torchcam import methods

    with getattr(methods, kind)(model, layers) as extractor:
        maps = extractor(index, model(batch.clone().requires_grad_()))
        map_ = extractor.fuse_cams(maps) if len(maps) > 1 else maps[0]
    return _stretch(map_, batch)


def _explain_with_captum(
    kind: str, model: nn.Module, layers: list[nn.Module], batch: Tensor, index: int
) -> NDArray[np.float32]:
    from captum import attr

    return _stretch(getattr(attr, kind)(model, layers[-1]).attribute(batch, index)[0].relu(), batch)


def _stretch(maps: Tensor, batch: Tensor) -> NDArray[np.float32]:
    """Return a map ``(1, h, w)`` at the size of the images, as these libraries advise to resize it."""
    sizes = tuple(batch.shape[2:])
    resized = nn.functional.interpolate(maps[None].detach(), sizes, mode="bilinear", align_corners=False)
    heatmap: NDArray[np.float32] = resized[0, 0].numpy()
    return heatmap


PEERS = {"grad-cam": _explain_with_grad_cam, "torchcam": _explain_with_torchcam, "captum": _explain_with_captum}


def _measure_costs(turns: int) -> dict[str, dict[str, float]]:
    """Return the time of an explanation of one image, divided by that of Grad-CAM, for each model and method."""
    import torchvision

    torch.set_num_threads(1)
    costs = {}
    for name in ("mobilenet_v2", "resnet50"):
        model, image = torchvision.models.get_model(name, weights=None).eval(), torch.rand(1, 3, 224, 224)
        ways = {"gradcam": ("gradcam", {}), "rivalcam": ("rivalcam", {})}
        ways |= {f"faithcam, {depths} depths": ("faithcam", {"depths": depths}) for depths in (1, 2, 3, 4, 6)}
        explainers = {key: camtool.Explainer(model, method, **options) for key, (method, options) in ways.items()}
        times = measure_in_turns({key: partial(each, image, 3) for key, each in explainers.items()}, turns)
        costs[name] = {key: compute_ratio(times, key, "gradcam") for key in ways}
        print(name, costs[name], flush=True)
    return costs


def _write_pages(rows: dict[str, Any]) -> None:
    """Write the tables of README and of the page on trust."""
    file = _OUT.name
    few = ("gradcam, stretched", "gradcam", "rivalcam", "faithcam")
    write_between(README, "measured", format_table(file, rows, few, "pointing"))
    write_between(_TRUST, "counted", count_networks(rows))


def count_networks(rows: dict[str, Any]) -> str:
    """Return a table with the numbers of networks on which each method is ahead of Grad-CAM, and behind it."""
    # The page says of the other libraries' Grad-CAM that it is the stretched one of camtool.
    stretched = rows["gradcam, stretched"]
    peers = [name for name in PEER_ROWS if any(rows[name][key] != stretched[key] for key in rows[name])]
    names = ["faithcam", *(name for name in OTHERS if name != "gradcam"), *peers]
    return format_counts(rows, names, _MEASURES)


if __name__ == "__main__":
    typer.run(main)
