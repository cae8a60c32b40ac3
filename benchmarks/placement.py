"""The faithfulness of maps, stretched or placed by centers.

Run ``python -m benchmarks placement --photos FOLDER --weights mobilenet_v2=FILE``. The folder holds photos and a
``labels.csv`` (file, imagenet_index). Each photo is divided into 4 x 4 cells. Single deletion is Spearman's correlation
of the mean heat of a cell with the drop of the logit when the cell is set to the mean color. In the pointing game,
four photos make a mosaic, and the energy is the share of the heat in the quarter of the class that is explained. On the
demo's scenes it is the share of the heat on the object. Both placements answer the same questions, so their difference
is paired.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

import camtool
from benchmarks.photos import read_photos
from benchmarks.rivals import read_confident_photos
from camtool.demo.camnet import load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.trust.metrics.localization import compute_energy_in_mask

METHODS = (
    "gradcam", "hirescam", "layercam", "gradcam++", "xgradcam", "gradcam-elementwise", "cam", "odam", "shapleycam",
    "liftcam", "integratedgradcam", "smoothgradcam++", "cameras", "guided-gradcam", "fullgrad", "tta:gradcam",
    "sess:gradcam", "zoomcam", "eigencam", "eigengradcam", "segeigencam", "kpcacam", "fem", "reciprocam", "ablationcam",
    "groupcam", "scorecam", "sscam", "iscam", "polycam", "opticam", "rivalcam",
)  # fmt: skip
_FEWER: dict[str, dict[str, Any]] = {
    "scorecam": {"max_channels": 64}, "opticam": {"steps": 20}, "sscam": {"samples": 1}, "iscam": {"samples": 1},
}  # fmt: skip
"""Options of methods with many passes, so that all are measured in half an hour."""

_A_PASS_A_CHANNEL = {"sscam", "iscam", "polycam"}
_SKIPPED = {"single deletion": _A_PASS_A_CHANNEL, "pointing game": _A_PASS_A_CHANNEL | {"cameras", "opticam"}}
"""Methods that take too long for a measure on large models; the demo's small model is explained by all."""

_CELLS = 4

Explain: TypeAlias = Callable[[Tensor, list[int]], "list[tuple[NDArray[np.float32], NDArray[np.float32]]]"]
"""A function of an image and classes: for each class its stretched heatmap, and that by centers."""

Pairs: TypeAlias = NDArray[np.float64]
"""Results of questions ``(Q, 2)``, with stretched maps and with maps placed by centers."""


def main(
    photos: Annotated[Path, typer.Option(help="Folder with photos and labels.csv.")],
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of a torchvision architecture; may be repeated.")],
    method: Annotated[list[str], typer.Option(help="Method; may be repeated.")] = list(METHODS),  # noqa: B006
    mosaics: Annotated[int, typer.Option(help="Number of mosaics of four photos.")] = 10,
    scenes: Annotated[int, typer.Option(help="Number of the demo's scenes.")] = 60,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    rows = []
    for name, file in (each.split("=", 1) for each in weights):
        loaded = camtool.load(name, file)
        images = list(read_photos(loaded, photos))
        drops = [measure_drops(loaded.model, image, index) for image, index in images]
        measures = {
            "single deletion": partial(measure_deletion, images=images, drops=drops),
            "pointing game": partial(measure_pointing, images=read_confident_photos(loaded, photos), mosaics=mosaics),
        }
        rows += _compare_all(name, loaded.model, method, measures)
    if scenes:
        rows += _compare_all(
            "demo", load_honest_model().model, method, {"energy on the object": partial(measure_energy, scenes=scenes)}
        )
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def measure_deletion(explain: Explain, images: Sequence[tuple[Tensor, int]], drops: Sequence[NDArray[Any]]) -> Pairs:
    """Return Spearman's correlation of each photo's heat with the drop of the logit."""
    found = [explain(image, [index]) for image, index in images]
    return np.array(
        [[correlate_cells(heatmap, drop) for heatmap in pair] for (pair,), drop in zip(found, drops, strict=True)]
    )


def measure_pointing(explain: Explain, images: Sequence[tuple[Tensor, int]], mosaics: int) -> Pairs:
    """Return the share of the heat in the right quarter of each mosaic, for each of its four classes."""
    generator, rows = random.Random(0), []
    for _ in range(mosaics):
        four = generator.sample(images, 4)
        mosaic = torch.cat([torch.cat([image for image, _ in four[i : i + 2]], 2) for i in (0, 2)], 1)
        found = explain(mosaic, [index for _, index in four])
        for quarter, pair in enumerate(found):
            mask = np.kron(np.eye(4)[quarter].reshape(2, 2), np.ones(four[0][0].shape[1:])) > 0
            rows.append([compute_energy_in_mask(heatmap, mask) for heatmap in pair])
    return np.array(rows)


def measure_energy(explain: Explain, scenes: int) -> Pairs:
    """Return the share of the heat on each object of the demo's scenes."""
    rows = []
    for seed in range(UNSEEN, UNSEEN + scenes):
        scene = draw_scene(seed, objects=2)
        found = explain(prepare_images(scene.image[None])[0], [item.index for item in scene.objects])
        rows += [
            [compute_energy_in_mask(heatmap, item.mask) for heatmap in pair]
            for item, pair in zip(scene.objects, found, strict=True)
        ]
    return np.array(rows)


def _explain_both_ways(
    model: torch.nn.Module, method: str, image: Tensor, classes: list[int]
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return for each class of an image the heatmap that is stretched, and the one that is placed by centers."""
    options = _FEWER.get(method, {})
    ways = [
        camtool.explain(model, image[None], [classes], method=method, placement=placement, **options)[0]
        for placement in ("stretch", "centers")
    ]
    return [(stretched.heatmap, placed.heatmap) for stretched, placed in zip(*ways, strict=True)]


def correlate_cells(heatmap: NDArray[np.float32], drops: NDArray[Any]) -> float:
    return float(spearmanr(_average_cells(heatmap), drops).statistic) if heatmap.any() else 0.0


def measure_drops(model: torch.nn.Module, image: Tensor, index: int) -> NDArray[Any]:
    """Return by how much the logit drops when a cell is set to the mean color, ``(16,)``."""
    variants = image.repeat(_CELLS**2 + 1, 1, 1, 1)
    height, width = image.shape[1] // _CELLS, image.shape[2] // _CELLS
    for number in range(_CELLS**2):
        row, column = divmod(number, _CELLS)
        variants[number, :, row * height : (row + 1) * height, column * width : (column + 1) * width] = 0
    with torch.inference_mode():
        scores = model(variants)[:, index]
    drops: NDArray[Any] = (scores[-1] - scores[:-1]).numpy()
    return drops


def _average_cells(heatmap: NDArray[np.float32]) -> NDArray[Any]:
    height, width = (side // _CELLS for side in heatmap.shape)
    cells: NDArray[Any] = heatmap.reshape(_CELLS, height, _CELLS, width).mean((1, 3)).ravel()
    return cells


def _compare_all(
    name: str, model: torch.nn.Module, methods: Sequence[str], measures: Mapping[str, Callable[[Explain], Pairs]]
) -> list[dict[str, Any]]:
    """Return a row for each method and measure."""
    return [
        _compare(name, measure, method, partial(run, partial(_explain_both_ways, model, method)))
        for method in methods
        for measure, run in measures.items()
        if method not in _SKIPPED.get(measure, ())
    ]


def _compare(model: str, measure: str, method: str, run: Callable[[], Pairs]) -> dict[str, Any]:
    """Return the row of a model, a measure and a method, and print it."""
    row: dict[str, Any] = {"model": model, "measure": measure, "method": method}
    try:
        values = run()
    except camtool.MethodError:
        print(f"{model:16}{measure:22}{method:20}does not fit", flush=True)
        return row | {"fits": False}
    stretch, centers = values.mean(0)
    gains = values[:, 1] - values[:, 0]
    error = gains.std(ddof=1) / len(gains) ** 0.5
    numbers = f"{stretch:.3f} -> {centers:.3f}  {gains.mean():+.3f} +- {error:.3f}"
    print(f"{model:16}{measure:22}{method:20}{numbers}", flush=True)
    figures = {"stretch": stretch, "centers": centers, "gain": gains.mean(), "standard_error": error}
    return row | {"count": len(gains)} | {key: round(float(value), 4) for key, value in figures.items()}


if __name__ == "__main__":
    typer.run(main)
