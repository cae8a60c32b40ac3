"""The faithfulness of maps, stretched or placed by centers.

Run ``python -m benchmarks placement --photos FOLDER --weights mobilenet_v2=FILE``. The folder holds photos and a
``labels.csv`` (file, imagenet_index). Each photo is divided into 4 x 4 cells. Single deletion is Spearman's correlation
of the mean heat of a cell with the drop of the logit when the cell is set to the mean color. The same maps are placed
both ways, so the difference is paired. On the demo's scenes, the energy is the share of the heat that lies on the
object that is explained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

import camtool
from benchmarks.photos import read_photos
from camtool.demo.bundled import load_honest_model
from camtool.demo.camnet import prepare_images
from camtool.demo.measure import UNSEEN
from camtool.demo.scenes import draw_scene
from camtool.trust.metrics.localization import compute_energy_in_mask

METHODS = (
    "gradcam", "hirescam", "layercam", "gradcam++", "xgradcam", "gradcam-elementwise", "cam", "odam", "shapleycam",
    "liftcam", "integratedgradcam", "eigencam", "eigengradcam", "kpcacam", "fem", "reciprocam", "ablationcam",
    "groupcam", "rivalcam",
)  # fmt: skip
_CELLS = 4


def main(
    photos: Annotated[Path, typer.Option(help="Folder with photos and labels.csv.")],
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of a torchvision architecture; may be repeated.")],
    method: Annotated[list[str], typer.Option(help="Method; may be repeated.")] = list(METHODS),  # noqa: B006
    scenes: Annotated[int, typer.Option(help="Number of the demo's scenes.")] = 100,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    rows = []
    for name, file in (each.split("=", 1) for each in weights):
        loaded = camtool.load(name, file)
        images = list(read_photos(loaded, photos))
        drops = [_measure_drops(loaded.model, image, index) for image, index in images]
        rows += [_compare(name, each, measure_deletion(loaded, images, drops, each)) for each in method]
    if scenes:
        rows += [_compare("demo, energy on the object", each, measure_energy(each, scenes)) for each in method]
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def measure_deletion(
    loaded: camtool.Loaded, images: Sequence[tuple[Tensor, int]], drops: Sequence[NDArray[Any]], method: str
) -> NDArray[np.float64] | None:
    """Return the correlations of each photo, stretched and by centers: ``(P, 2)``; None if the method does not fit."""
    try:
        found = [
            camtool.explain(loaded.model, image[None], index, method=method, placement="centers")[0]
            for image, index in images
        ]
    except camtool.MethodError:
        return None
    both = [(replace(each, centers=None).heatmap, each.heatmap) for each in found]
    return np.array(
        [
            [spearmanr(_average_cells(heatmap), drop).statistic if heatmap.any() else 0.0 for heatmap in pair]
            for pair, drop in zip(both, drops, strict=True)
        ]
    )


def measure_energy(method: str, scenes: int) -> NDArray[np.float64] | None:
    """Return the energy on the object in each of the demo's scenes, stretched and by centers: ``(S, 2)``."""
    model = load_honest_model().model
    rows = []
    for seed in range(UNSEEN, UNSEEN + scenes):
        scene = draw_scene(seed, objects=2)
        for item in scene.objects:
            try:
                (found,) = camtool.explain(
                    model, prepare_images(scene.image[None]), item.index, method=method, placement="centers"
                )
            except camtool.MethodError:
                return None
            pair = (replace(found, centers=None).heatmap, found.heatmap)
            rows.append([compute_energy_in_mask(heatmap, item.mask) for heatmap in pair])
    return np.array(rows)


def _measure_drops(model: torch.nn.Module, image: Tensor, index: int) -> NDArray[Any]:
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


def _compare(name: str, method: str, values: NDArray[np.float64] | None) -> dict[str, Any]:
    """Return the row of a model and a method, and print it."""
    row: dict[str, Any] = {"model": name, "method": method}
    if values is None:
        print(f"{name:28}{method:22}does not fit")
        return row | {"fits": False}
    stretch, centers = values.mean(0)
    gains = values[:, 1] - values[:, 0]
    error = gains.std(ddof=1) / len(gains) ** 0.5
    print(f"{name:28}{method:22}{stretch:.3f} -> {centers:.3f}   gain {gains.mean():+.3f} +- {error:.3f}")
    numbers = {"stretch": stretch, "centers": centers, "gain": gains.mean(), "standard_error": error}
    return row | {"count": len(gains)} | {key: round(float(value), 4) for key, value in numbers.items()}


if __name__ == "__main__":
    typer.run(main)
