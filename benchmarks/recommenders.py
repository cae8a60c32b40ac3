"""``camtool.recommend`` and PnPXAI: ``python -m benchmarks recommenders --photos FOLDER --weights NAME=FILE``.

Each chooses a method for a model on one set of images, in about the same time. What it chose then explains other images
that it has not seen. PnPXAI's recommender names the methods that fit an architecture, in no order. Its optimizer tunes
a method, and how its map is summed over channels and normalized, by AbPC, the metric of its examples. Here it does so
for each method that the recommender named, with the same share of the time, and the best AbPC wins.

Faithfulness correlation is what camtool chooses by, with other masks; insertion minus deletion is close to AbPC, what
PnPXAI chooses by here. On the network of ``benchmarks.truth`` the evidence is known, so the average precision of its
maps is a judge that neither knows. The gains over Grad-CAM are paired, with their standard errors. PnPXAI is not a
dependency: ``pip install pnpxai``.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import camtool
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from benchmarks.photos import read_photos
from benchmarks.truth import Row, choose_rows, compute_average_precision, load_model
from camtool.demo.camnet import prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.trust.metrics import METRICS, ClassScore, MetricInputs

RESULTS = Path(__file__).with_suffix(".json")

_METRICS = ("faithfulness-correlation", "single-deletion", "deletion", "insertion")
_ABPC = "AbPC"
_FIRST_SCENE = UNSEEN + 900_000

Explain = Callable[[Tensor, Tensor], Tensor]
"""``explain(images, classes) -> (N, H, W)``."""


@dataclass(frozen=True)
class Subject:
    """A model and its images.

    Attributes:
        name: Its name.
        model: The classifier.
        seen: The images for the choice, prepared, ``(N, C, H, W)``.
        unseen: The images for the comparison.
        link: How its scores become probabilities.
        rows: The questions of the truth benchmark about ``unseen``; empty without truth.
    """

    name: str
    model: nn.Module
    seen: Tensor
    unseen: Tensor
    link: Any = "softmax"
    rows: Sequence[Row] = ()


def main(
    photos: Annotated[Path, typer.Option(help="Folder with photos and labels.csv, for the choice.")],
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of an architecture; may be repeated.")],
    seconds: Annotated[float, typer.Option(help="Time for each choice.")] = 60,
    most: Annotated[int, typer.Option(help="Images for the choice, and for the comparison.")] = 16,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    only: Annotated[list[str], typer.Option(help="Grad-CAM, occlusion, camtool or PnPXAI; may be repeated.")] = [],  # noqa: B006
    models: Annotated[list[str], typer.Option("--model", help="demo, truth or NAME; may be repeated.")] = [],  # noqa: B006
    slowest: Annotated[float | None, typer.Option(help="Most milliseconds for an image, for camtool.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
) -> None:
    """Measure, print, and write the numbers to a JSON file; rows of other models and choosers are kept."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # those of PnPXAI and its libraries
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"rows": []}
    settings = {"machine": describe_machine(threads), "budget": seconds, "images": most}
    for subject in _iterate_subjects(weights, photos, most):
        reference: dict[str, NDArray[np.float64]] = {}
        for chooser in () if models and subject.name not in models else only or _CHOOSERS:
            start, busy = time.monotonic(), time.process_time()
            chosen, explain, remarks = _CHOOSERS[chooser](subject, seconds, slowest)
            taken = {"seconds": round(time.monotonic() - start, 1), "cpu": round(time.process_time() - busy, 1)}
            name = chooser if slowest is None else f"{chooser}, {slowest:g} ms"
            row = {"model": subject.name, "chooser": name, "chosen": chosen, **taken}
            start = time.perf_counter()
            maps = _map_unseen(subject, explain)
            row["ms"] = round((time.perf_counter() - start) * 1000 / len(maps), 1)
            graded = _grade(subject, maps)
            reference = reference or graded
            row |= {metric: round(float(np.nanmean(values)), 3) for metric, values in graded.items()}
            row["gain"] = {metric: _compute_gain(values - reference[metric]) for metric, values in graded.items()}
            print(row | remarks, flush=True)
            key = subject.name, name, most
            others = [each for each in result["rows"] if (each["model"], each["chooser"], each["images"]) != key]
            result = {"rows": [*others, row | remarks | settings]}
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------------ models


def _iterate_subjects(weights: Sequence[str], photos: Path, most: int) -> Iterator[Subject]:
    yield _load_demo("demo", most)
    yield _load_demo("demo-cheat", most)
    yield _load_truth(most)
    for name, file in (each.split("=", 1) for each in weights):
        yield _load(name, file, photos, most)


def _load(name: str, file: str, photos: Path, most: int) -> Subject:
    loaded = camtool.load(name, file)
    assert loaded.transform is not None
    seen = [image for image, _ in read_photos(loaded, photos)]
    seen = seen[:: max(len(seen) // most, 1)][:most]
    unseen = [loaded.transform(image) for _, image in read_package_photos()]
    spread = np.linspace(0, len(unseen) - 1, min(most, len(unseen))).round().astype(int)
    return Subject(name, loaded.model, torch.stack(seen), torch.stack([unseen[index] for index in spread]))


def _load_demo(name: str, most: int) -> Subject:
    images = np.stack([draw_scene(seed).image for seed in range(_FIRST_SCENE, _FIRST_SCENE + 2 * most)])
    inputs = prepare_images(images)
    return Subject(name, camtool.load(name).model, inputs[:most], inputs[most:])


def _load_truth(most: int) -> Subject:
    """Return the network with planted evidence; only answers that are true, as PnPXAI explains no negated score."""
    model = load_model()
    rows = [row for row in choose_rows(model, most)[0] if row.sign > 0]
    inputs = prepare_images(np.stack([row.scene.image for row in rows]))
    spread = np.linspace(1, len(rows) - 1, most).round().astype(int)
    rest = [index for index in range(len(rows)) if index not in spread]
    seen = inputs[np.asarray(rest)[np.linspace(0, len(rest) - 1, most).round().astype(int)]]
    return Subject("truth", model, seen, inputs[spread], "sigmoid", [rows[index] for index in spread])


# ---------------------------------------------------------------------------------------------------- choosers


def _choose_gradcam(subject: Subject, seconds: float, slowest: float | None) -> tuple[str, Explain, dict[str, Any]]:
    return "gradcam", _explain_with_camtool(subject.model, "gradcam", None), {}


def _choose_occlusion(subject: Subject, seconds: float, slowest: float | None) -> tuple[str, Explain, dict[str, Any]]:
    """What single deletion would choose: it removes the cells of the metric."""
    return "occlusion", _explain_with_camtool(subject.model, "occlusion", None), {}


def _choose_by_camtool(subject: Subject, seconds: float, slowest: float | None) -> tuple[str, Explain, dict[str, Any]]:
    found = camtool.recommend(subject.model, subject.seen, seconds=seconds, slowest=slowest)
    name = f"{found.method} at {found.layer}" if found.layer else found.method
    remarks = {"tried": len(found.tried), "reason": found.reason}
    return name, _explain_with_camtool(subject.model, found.method, found.layer), remarks


def _explain_with_camtool(model: nn.Module, method: str, layer: str | None) -> Explain:
    explainer = camtool.Explainer(model, method, layer)

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        results = explainer(images, [camtool.targets.ClassScore(int(index)) for index in classes])
        return torch.from_numpy(np.stack([each.heatmap for each in results]))

    return explain


def _choose_by_pnpxai(subject: Subject, seconds: float, slowest: float | None) -> tuple[str, Explain, dict[str, Any]]:
    from pnpxai import AutoExplanationForImageClassification

    with torch.no_grad():
        classes = subject.model(subject.seen).argmax(1)
    experiment = AutoExplanationForImageClassification(
        model=subject.model,
        data=DataLoader(TensorDataset(subject.seen, classes), batch_size=len(classes)),
        input_extractor=lambda batch: batch[0],
        label_extractor=lambda batch: batch[1],
        target_extractor=lambda output: output.argmax(-1),
    )
    experiment.predict_batch(range(len(classes)))  # optimize() reads the outputs, and does not compute them
    named = experiment.manager.explainers
    metric = next(i for i, each in enumerate(experiment.manager.metrics) if type(each).__name__ == _ABPC)
    best, failed, trials = None, dict[str, str](), 0
    for index, each in enumerate(named):
        try:
            found = experiment.optimize(
                data_ids=range(len(classes)), explainer_id=index, metric_id=metric, direction="maximize",
                sampler="tpe", timeout=seconds / len(named), seed=0,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 (whatever fails on a model is left out, and named)
            failed[type(each).__name__] = f"{type(error).__name__}: {str(error)[:120]}"
            continue
        trials += len(found.study.trials)
        if best is None or found.study.best_value > best.study.best_value:
            best = found
    assert best is not None
    quality = round(float(best.study.best_value), 3)
    remarks = {"version": version("pnpxai"), "named": len(named), "trials": trials, "failed": failed, "AbPC": quality}

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        parts = [best.postprocessor(best.explainer.attribute(x, y)) for x, y in _iterate(images, classes)]
        return torch.cat(parts).detach().float()

    name = f"{type(best.explainer).__name__}, {type(best.postprocessor.pooling_fn).__name__}"
    return name, explain, remarks


def _iterate(images: Tensor, classes: Tensor) -> Any:
    return zip(images.split(8), classes.split(8), strict=True)


_CHOOSERS = {
    "Grad-CAM": _choose_gradcam,
    "occlusion": _choose_occlusion,
    "camtool": _choose_by_camtool,
    "PnPXAI": _choose_by_pnpxai,
}


# ----------------------------------------------------------------------------------------------------- grading


def _find_classes(subject: Subject) -> Tensor:
    if subject.rows:
        return torch.tensor([row.output for row in subject.rows])
    with torch.no_grad():
        classes: Tensor = subject.model(subject.unseen).argmax(1)
    return classes


def _map_unseen(subject: Subject, explain: Explain) -> Tensor:
    return _scale(explain(subject.unseen, _find_classes(subject)))


def _grade(subject: Subject, maps: Tensor) -> dict[str, NDArray[np.float64]]:
    """Return the metrics on each image that was not seen; the masks are others than those of the choice."""
    classes = _find_classes(subject)
    scores = {
        kind: ClassScore(subject.model, subject.unseen, classes, kind, subject.link)
        for kind in ("probability", "logit")
    }
    asked = MetricInputs(subject.unseen, maps, **scores)
    graded = {}
    for name in _METRICS:
        options = {"seed": 1} if name == "faithfulness-correlation" else {}
        graded[name] = METRICS[name].compute(asked, **options).double().numpy()
    if subject.rows:
        arrays: NDArray[np.float32] = maps.numpy()
        truth = [compute_average_precision(heat, row.evidence) for heat, row in zip(arrays, subject.rows, strict=True)]
        graded["precision"] = np.array(truth, float)
    return graded


def _compute_gain(differences: NDArray[np.float64]) -> list[float]:
    """Return the mean of paired differences and its standard error."""
    known = differences[np.isfinite(differences)]
    return [round(float(known.mean()), 3), round(float(known.std(ddof=1) / np.sqrt(len(known))), 3)]


def _scale(maps: Tensor) -> Tensor:
    """Return maps in [0, 1]; values that are not finite become 0."""
    maps = maps.nan_to_num(0, 0, 0)
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low).clamp_min(1e-12)


if __name__ == "__main__":
    typer.run(main)
