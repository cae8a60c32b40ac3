"""``camtool.recommend`` and PnPXAI: ``python -m benchmarks recommenders --weights NAME=FILE --photos FOLDER``.

Each chooses a method for a network on some images. What it chose then explains the questions of
:mod:`benchmarks.networks`, about images that it has not seen, and is compared with Grad-CAM at the last layer: the
gains are paired, with their standard errors. Networks of ImageNet see the photos on which camtool was tuned, those of
``--scenes`` other scenes. A U-Net is left out, as neither recommends for segmenters.

PnPXAI's recommender names the methods that fit an architecture, in no order. Its optimizer tunes a method, and how its
map is summed over channels and normalized, by AbPC, the metric of its examples. Here it does so for each method that
the recommender named, with a few trials each, and the best AbPC wins. It is not a dependency: ``pip install pnpxai``.

Times are those of the processor, as other programs may run meanwhile. Without networks nothing is measured: the table
of ``docs/trust.md`` is made from the JSON file.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import camtool
from benchmarks.networks import (
    HELD_OUT,
    TITLES,
    TUNED,
    Explain,
    Heat,
    MapJudge,
    Network,
    PhotosOption,
    Question,
    ScenesOption,
    WeightsOption,
    explain_by,
    read_networks,
    summarize,
    write_between,
)
from benchmarks.paired import describe_machine
from camtool.targets import Region

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "trust.md"

_MEASURES = {"masks": "masks", "cells": "single deletion", "insertion": "insertion", "pointing": "pointing"}
_ABPC = "AbPC"

_REFERENCE = "Grad-CAM"


def main(
    weights: WeightsOption = [],  # noqa: B006
    scenes: ScenesOption = None,
    photos: PhotosOption = None,
    seconds: Annotated[float, typer.Option(help="Time for each choice of camtool.")] = 30,
    trials: Annotated[int, typer.Option(help="Trials for each method that PnPXAI names.")] = 2,
    seen: Annotated[int, typer.Option(help="Most images for the choice.")] = 16,
    most: Annotated[int, typer.Option(help="Most scenes of one object and photos; half as many scenes of two.")] = 40,
    only: Annotated[list[str], typer.Option(help="Grad-CAM, occlusion, camtool or PnPXAI; may be repeated.")] = [],  # noqa: B006
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; what it holds of other rows is kept.")] = RESULTS,
) -> None:
    """Measure, print the rows, and write them to a JSON file; without networks write the page's table from it."""
    rows: dict[str, dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else {}
    if not weights and scenes is None:
        write_between(PAGE, "recommended", _format_table(rows))
        return
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # those of PnPXAI and its libraries
    for network in read_networks(weights, photos, scenes):
        questions = _list_seen(network, seen, most)
        if not questions or isinstance(questions[0].target, Region):
            continue
        judge = MapJudge(network, measures=tuple(_MEASURES), most=most, most_pointing=most // 2)
        reference = judge.measure(explain_by("gradcam"))
        inputs = torch.cat([question.inputs for question in questions])
        for chooser in [_REFERENCE, *(name for name in _CHOOSERS if not only or name in only)]:
            start, remarks = time.process_time(), dict[str, Any]()
            if chooser == _REFERENCE:
                measured = reference
            else:
                explain, remarks = _CHOOSERS[chooser](network.model, inputs, seconds, trials)
                remarks |= {"seconds": round(time.process_time() - start, 1), "images": len(inputs)}
                measured = judge.measure(explain)
            entry = {name: summarize(values, reference[name]) for name, values in measured.items()}
            rows.setdefault(chooser, {})[network.name] = remarks | {"questions": len(judge.questions), **entry}
            print(network.name, chooser, json.dumps(rows[chooser][network.name]), flush=True)
            result = {"machine": describe_machine(threads), "rows": rows}
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _list_seen(network: Network, count: int, most: int) -> list[Question]:
    """Return questions for the choice: photos on which camtool was tuned, or scenes after those of the comparison."""
    if network.transform is None:
        asked = len(network.list_questions(HELD_OUT, most))
        return network.list_questions(HELD_OUT, most + 2 * count)[asked : asked + count]
    tuned = network.list_questions(TUNED)
    return tuned[:: max(len(tuned) // count, 1)][:count]


# ---------------------------------------------------------------------------------------------------- choosers


def _choose_occlusion(model: nn.Module, inputs: Tensor, seconds: float, trials: int) -> tuple[Explain, dict[str, Any]]:
    """What single deletion would choose: it removes the cells of the metric."""
    return explain_by("occlusion"), {"chosen": "occlusion"}


def _choose_by_camtool(model: nn.Module, inputs: Tensor, seconds: float, trials: int) -> tuple[Explain, dict[str, Any]]:
    with patch.object(time, "monotonic", time.process_time):
        choice = camtool.recommend(model, inputs, seconds=seconds)
    options = {} if choice.layer is None else {"layer": choice.layer}
    return explain_by(choice.method, **options), {"chosen": choice.method, **options, "tried": len(choice.tried)}


def _choose_by_pnpxai(model: nn.Module, inputs: Tensor, seconds: float, trials: int) -> tuple[Explain, dict[str, Any]]:
    from pnpxai import AutoExplanationForImageClassification

    with torch.no_grad():
        classes = model(inputs).argmax(1)
    experiment = AutoExplanationForImageClassification(
        model=model,
        data=DataLoader(TensorDataset(inputs, classes), batch_size=len(classes)),
        input_extractor=lambda batch: batch[0],
        label_extractor=lambda batch: batch[1],
        target_extractor=lambda output: output.argmax(-1),
    )
    experiment.predict_batch(range(len(classes)))  # optimize() reads the outputs, and does not compute them
    named = experiment.manager.explainers
    metric = next(i for i, each in enumerate(experiment.manager.metrics) if type(each).__name__ == _ABPC)
    best, failed = None, dict[str, str]()
    for index, explainer in enumerate(named):
        try:
            tuned = experiment.optimize(
                data_ids=range(len(classes)), explainer_id=index, metric_id=metric, direction="maximize",
                sampler="tpe", n_trials=trials, seed=0,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 (whatever fails on a model is left out, and named)
            failed[type(explainer).__name__] = f"{type(error).__name__}: {str(error)[:120]}"
            continue
        if best is None or tuned.study.best_value > best.study.best_value:
            best = tuned
    assert best is not None

    def explain(model: nn.Module, question: Question) -> Heat:
        maps = best.postprocessor(best.explainer.attribute(question.inputs, torch.tensor([question.index])))
        heat: Heat = _scale(maps.detach()[0].float()).numpy()
        return heat

    remarks = {"version": version("pnpxai"), "tried": len(named) - len(failed), "failed": failed}
    pooled = type(best.postprocessor.pooling_fn).__name__
    return explain, {"chosen": f"{type(best.explainer).__name__}, {pooled}", **remarks}


def _scale(heat: Tensor) -> Tensor:
    """Return a map in [0, 1]; values that are not finite become 0."""
    heat = heat.nan_to_num(0, 0, 0)
    return (heat - heat.min()) / (heat.max() - heat.min()).clamp_min(1e-12)


_CHOOSERS = {"occlusion": _choose_occlusion, "camtool.recommend": _choose_by_camtool, "PnPXAI": _choose_by_pnpxai}


# ------------------------------------------------------------------------------------------------------- table


def _format_table(rows: dict[str, dict[str, Any]]) -> str:
    """Return a table in Markdown with the gains over Grad-CAM, a row for each network and chooser."""
    lines = [
        f"<!-- numbers: benchmarks/{RESULTS.name} -->",
        f"| network | by | chosen | seconds | {' | '.join(_MEASURES.values())} |",
        "|---|---|---|---:|" + "---:|" * len(_MEASURES),
    ]
    for network, title in TITLES.items():
        for chooser in (name for name in rows if name not in ("Grad-CAM", "occlusion") and network in rows[name]):
            entry = rows[chooser][network]
            chosen = f"its {entry['chosen']}" if chooser == "PnPXAI" else f"`{entry['chosen']}`"
            gains = [_format_gain(entry[measure]) if measure in entry else "-" for measure in _MEASURES]
            lines.append(" | ".join([f"| {title}", chooser, chosen, f"{entry['seconds']:.0f}", *gains]) + " |")
    return "\n".join(lines)


def _format_gain(numbers: Sequence[float]) -> str:
    _, _, gain, error = numbers
    text = f"{gain:+.2f} ± {error:.2f}"
    return text if abs(gain) <= 2 * error else f"**{text}**" if gain > 0 else f"*{text}*"


if __name__ == "__main__":
    typer.run(main)
