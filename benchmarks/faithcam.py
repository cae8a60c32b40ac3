"""The accuracy and cost of faithcam, choice by choice.

Run ``python -m benchmarks faithcam --photos FOLDER --weights mobilenet_v2=FILE``. The folder holds photos and a
``labels.csv`` (file, imagenet_index). On photos: single deletion (Spearman's correlation of the heat in 4 x 4 cells
with the drop of the logit when a cell is set to the mean color), and insertion minus deletion (the mean probability of
the class while the hottest pixels are added to, less that while they are removed from, a blurred image). On mosaics of
four photos: the share of the heat in the right quarter. On the demo's scenes: the share of the heat on the object, and
how often the peak is on it. The cost is the time of an explanation divided by that of Grad-CAM, in turns, one thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from unittest import mock

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from benchmarks.paired import compute_ratio, describe_machine, measure_in_turns
from benchmarks.photos import read_photos
from benchmarks.placement import correlate_cells, measure_drops, measure_pointing
from benchmarks.rivals import compute_insertion_minus_deletion, read_confident_photos
from camtool.demo.camnet import load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.evidence import contributions
from camtool.maps import scale_by_peak
from camtool.methods.families import competition
from camtool.trust.metrics.localization import compute_energy_in_mask, is_peak_in_mask

Explain: TypeAlias = Callable[[nn.Module, Tensor, "list[int]"], "list[NDArray[np.float32]]"]
"""A function of a model, an image ``(C, H, W)`` and classes: a heatmap at the image's size for each class."""


_OUT = Path(__file__).with_suffix(".json")

_STEPS = 14
"""Steps in which pixels are inserted and deleted."""


@dataclass(frozen=True)
class Variant:
    """One way to explain.

    Attributes:
        method: The method.
        options: Its options, and settings of :func:`camtool.explain`.
        replaced: Functions of faithcam that are replaced: module, name, and what to call instead.
        layers: For each model the layers, where they are not the default.
        depths: For each model the depths of faithcam by name.
    """

    method: str = "faithcam"
    options: dict[str, Any] = field(default_factory=dict)
    replaced: tuple[tuple[Any, str, Callable[..., Any]], ...] = ()
    layers: dict[str, list[str]] = field(default_factory=dict)
    depths: dict[str, list[str]] = field(default_factory=dict)


def _keep_maps(maps: Any) -> Any:
    return maps


def _scale_each(scale: Callable[[Tensor], Tensor]) -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    return ((competition, "_scale_to_equal_means", lambda maps: [scale(each) for each in maps]),)


def _scale_by_deviation(maps: Tensor) -> Tensor:
    deviation = maps.flatten(1).std(1, correction=0)
    return maps / torch.where(deviation > 0, deviation, 1)[:, None, None]


def _trace_ungated(evidence: Any, _: Tensor) -> Any:
    return contributions.trace_contributions(evidence, evidence.gradients)


def _add_ungated(evidence: Any, maps: Sequence[Tensor], gate: Tensor) -> Tensor:
    return _ADD_DEPTHS(evidence, maps, torch.ones_like(gate))


def _keep_blank(evidence: Any, layer: Any, _: Tensor) -> Tensor:
    output = evidence.forward_pass.layer_outputs[layer.name].detach()
    return evidence.select_rows(layer.layout.to_grid(output))


_ADD_DEPTHS = competition._add_depths

_SLOW = ("integrated-gradients", "ablationcam", "cameras")
"""Methods of many passes, which are not measured on mosaics."""

_STAGES = {
    "mobilenet_v2": ["features.3", "features.6", "features.13", "features"],
    "squeezenet1_1": ["features.4", "features.7", "features"],
}
"""The ends of the last stages, where published merges look."""

_ALL_STAGES = {
    "mobilenet_v2": ["features.1", "features.3", "features.6", "features.10", "features.13", "features.16"],
    "squeezenet1_1": ["features.1", "features.4", "features.7", "features.10", "features.11"],
}
"""One or two depths in each stage, with which faithcam's first prototype was measured."""

_PROTOTYPE = (
    (competition, "trace_contributions", _trace_ungated),
    (contributions, "_subtract_blank", _keep_blank),
    (competition, "_smooth", _keep_maps),
    *_scale_each(_scale_by_deviation),
)

ABLATIONS = {
    "faithcam": Variant(),
    "1 depth, the layer itself": Variant(options={"depths": 1}),
    "2 depths": Variant(options={"depths": 2}),
    "3 depths": Variant(options={"depths": 3}),
    "6 depths": Variant(options={"depths": 6}),
    "8 depths": Variant(options={"depths": 8}),
    "no competition": Variant(options={"rivals": 0}),
    "5 rivals": Variant(options={"rivals": 5}),
    "20 rivals": Variant(options={"rivals": 20}),
    "temperature 0.5": Variant(options={"temperature": 0.5}),
    "temperature 1": Variant(options={"temperature": 1.0}),
    "temperature 4": Variant(options={"temperature": 4.0}),
    "power 1": Variant(options={"power": 1.0}),
    "power 2": Variant(options={"power": 2.0}),
    "power 3": Variant(options={"power": 3.0}),
    "no focus": Variant(options={"focus": 0.0}),
    "focus 0.5": Variant(options={"focus": 0.5}),
    "focus 1": Variant(options={"focus": 1.0}),
    "no kinship": Variant(options={"kinship": 0.0}),
    "gate at the end only": Variant(replaced=((competition, "trace_contributions", _trace_ungated),)),
    "gate before tracing only": Variant(replaced=((competition, "_add_depths", _add_ungated),)),
    "no blank image": Variant(replaced=((contributions, "_subtract_blank", _keep_blank),)),
    "not smoothed": Variant(replaced=((competition, "_smooth", _keep_maps),)),
    "scaled by the peak": Variant(replaced=_scale_each(scale_by_peak)),
    "scaled by the deviation": Variant(replaced=_scale_each(_scale_by_deviation)),
    "not scaled": Variant(replaced=_scale_each(_keep_maps)),
    "stretched, no centers": Variant(options={"placement": "stretch"}),
    "prototype": Variant(
        options={"temperature": 1.0, "power": 2.0, "focus": 0.0}, replaced=_PROTOTYPE, depths=_ALL_STAGES
    ),
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
    "zoomcam, stages, max": Variant("zoomcam", {"merge": "max"}, layers=_STAGES),
    "gradcam, stages, refinecam": Variant("gradcam", {"merge": "refinecam"}, layers=_STAGES),
    "gradcam, stages, winsor": Variant("gradcam", {"merge": "winsor"}, layers=_STAGES),
    "hirescam, stages, mean": Variant("hirescam", {"merge": "mean"}, layers=_STAGES),
}


PEER_ROWS = {
    "grad-cam, GradCAM": Variant("grad-cam:GradCAM"),
    "grad-cam, GradCAMPlusPlus": Variant("grad-cam:GradCAMPlusPlus"),
    "grad-cam, LayerCAM, stages": Variant("grad-cam:LayerCAM", layers=_STAGES),
    "torchcam, GradCAM": Variant("torchcam:GradCAM"),
    "torchcam, LayerCAM, stages": Variant("torchcam:LayerCAM", layers=_STAGES),
    "captum, LayerGradCam": Variant("captum:LayerGradCam"),
}
"""Other libraries, at the last layer or at the ends of the last stages; the part before the colon is the library."""


def main(
    photos: Annotated[Path, typer.Option(help="Folder with photos and labels.csv.")],
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of a torchvision architecture; may be repeated.")],
    only: Annotated[list[str], typer.Option(help="Part of a row's name; may be repeated.")] = [],  # noqa: B006
    mosaics: Annotated[int, typer.Option(help="Number of mosaics of four photos.")] = 12,
    scenes: Annotated[int, typer.Option(help="Number of the demo's scenes.")] = 60,
    turns: Annotated[int, typer.Option(help="Turns in which the cost is measured; 0 for no cost.")] = 15,
    threads: Annotated[int, typer.Option(help="Threads for torch; the cost is measured with one.")] = 2,
    out: Annotated[Path, typer.Option(help="JSON file; what it holds of other rows is kept.")] = _OUT,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file."""
    everything = ABLATIONS | OTHERS | PEER_ROWS
    variants = {name: everything[name] for name in everything if not only or any(part in name for part in only)}
    rows: dict[str, dict[str, Any]] = {name: {} for name in variants}
    torch.set_num_threads(threads)
    for model, file in (each.split("=", 1) for each in weights):
        loaded = camtool.load(model, file)
        images, confident = list(read_photos(loaded, photos)), read_confident_photos(loaded, photos)
        drops = [measure_drops(loaded.model, image, index) for image, index in images]
        for name, variant in _iterate(variants, f"photos, {model}"):
            explain = partial(_explain, variant, model)
            count = 0 if variant.method in _SLOW else mosaics
            rows[name][model] = _measure_photos(explain, loaded, images, drops, confident, count)
            print(f"{name:30}", rows[name][model], flush=True)
    # Variants with named layers are measured where these are known.
    without_layers = {name: each for name, each in variants.items() if scenes and not (each.layers or each.depths)}
    for name, variant in _iterate(without_layers, "scenes"):
        rows[name]["demo"] = _measure_scenes(partial(_explain, variant, "demo"), scenes)
        print(f"{name:30}", rows[name]["demo"], flush=True)
    costs = _measure_costs(turns) if turns else {}
    _update(out, costs, rows)


def _update(out: Path, costs: dict[str, dict[str, float]], rows: dict[str, dict[str, Any]]) -> None:
    """Write the numbers into a JSON file, over older ones of the same rows."""
    old = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"cost": {}, "rows": {}}
    all_rows = old["rows"] | {name: old["rows"].get(name, {}) | row for name, row in rows.items()}
    result = {"machine": describe_machine(1), "cost": old["cost"] | costs, "rows": all_rows}
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _iterate(variants: dict[str, Variant], what: str) -> Iterator[tuple[str, Variant]]:
    """Yield the variants, each with its functions replaced."""
    print(f"\n{what}\n", flush=True)
    for name, variant in variants.items():
        with _replace(variant):
            yield name, variant


@contextmanager
def _replace(variant: Variant) -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, function in variant.replaced:
            stack.enter_context(mock.patch.object(module, name, function))
        yield


def _explain(
    variant: Variant, name: str, model: nn.Module, image: Tensor, classes: list[int]
) -> list[NDArray[np.float32]]:
    library, _, kind = variant.method.rpartition(":")
    if library:
        layers = [model.get_submodule(layer) for layer in variant.layers.get(name, ["features"])]
        return [PEERS[library](kind, model, layers, image[None], index) for index in classes]
    options = dict(variant.options)
    if name in variant.layers:
        options["layer"] = variant.layers[name]
    if name in variant.depths:
        options["depths"] = variant.depths[name]
    (results,) = camtool.explain(model, image[None], [classes], method=variant.method, **options)
    return [result.heatmap for result in results]


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


def _measure_photos(
    explain: Explain,
    loaded: camtool.Loaded,
    images: Sequence[tuple[Tensor, int]],
    drops: Sequence[NDArray[Any]],
    confident: Sequence[tuple[Tensor, int]],
    mosaics: int,
) -> dict[str, float]:
    """Return the numbers of a variant on photos and mosaics, with the standard error of single deletion."""
    heatmaps = [explain(loaded.model, image, [index])[0] for image, index in images]
    single = np.array([correlate_cells(heatmap, drop) for heatmap, drop in zip(heatmaps, drops, strict=True)])
    curves = [
        compute_insertion_minus_deletion(loaded, image, index, heatmap, _STEPS)
        for (image, index), heatmap in zip(images, heatmaps, strict=True)
    ]

    def explain_pairs(image: Tensor, classes: list[int]) -> list[tuple[Any, Any]]:
        return [(heatmap, heatmap) for heatmap in explain(loaded.model, image, classes)]

    figures = {
        "single_deletion": single.mean(),
        "standard_error": single.std(ddof=1) / len(single) ** 0.5,
        "insertion_minus_deletion": np.mean(curves),
    }
    if mosaics:
        figures["pointing"] = measure_pointing(explain_pairs, confident, mosaics)[:, 0].mean()
    return {name: round(float(value), 4) for name, value in figures.items()}


def _measure_scenes(explain: Explain, scenes: int) -> dict[str, float]:
    """Return the share of the heat on the objects of the demo's scenes, and how often the peak is on them."""
    model, energies, peaks = load_honest_model().model, [], []
    for seed in range(UNSEEN, UNSEEN + scenes):
        scene = draw_scene(seed, objects=2)
        heatmaps = explain(model, prepare_images(scene.image[None])[0], [item.index for item in scene.objects])
        energies += [compute_energy_in_mask(h, item.mask) for h, item in zip(heatmaps, scene.objects, strict=True)]
        peaks += [is_peak_in_mask(h, item.mask) for h, item in zip(heatmaps, scene.objects, strict=True)]
    return {"energy": round(float(np.mean(energies)), 4), "peak": round(float(np.mean(peaks)), 4)}


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


if __name__ == "__main__":
    typer.run(main)
