"""The accuracy of rivalcam against Grad-CAM.

Run ``python -m benchmarks rivals --photos FOLDER --weights mobilenet_v2=FILE``. The folder holds photos and a
``labels.csv`` (file, imagenet_index). Four photos that the model recognizes with confidence make a mosaic, and each of
the four classes is explained: the score is the share of the map's energy in the right quarter (grid pointing game; 0.25
by chance). On single photos the scores are insertion minus deletion (the mean probability of the class while the
hottest pixels are added to, or removed from, a blurred image), and the share of Grad-CAM's hot cells that stay hot
(holes in the map lower it).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

import camtool
from benchmarks.photos import read_photos

METHODS = ("gradcam", "hirescam", "rivalcam")
_CONFIDENT, _STEPS, _HOT = 0.5, 28, 0.5


def main(
    photos: Annotated[Path, typer.Option(help="Folder with photos and labels.csv.")],
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of a torchvision architecture; may be repeated.")],
    mosaics: Annotated[int, typer.Option(help="Number of mosaics.")] = 40,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    rows = []
    for name, file in (each.split("=", 1) for each in weights):
        loaded = camtool.load(name, file)
        images = read_confident_photos(loaded, photos)
        for method in METHODS:
            row = {"model": name, "method": method, "photos": len(images), "mosaics": mosaics}
            row |= {"pointing": compute_pointing(loaded, images, method, mosaics)} | measure_single_photos(
                loaded, images, method
            )
            rows.append(row)
            print(row)
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def read_confident_photos(loaded: camtool.Loaded, folder: Path) -> list[tuple[Tensor, int]]:
    """Return the prepared photos ``(C, H, W)`` whose class the model predicts with confidence, with the class."""
    images = read_photos(loaded, folder)
    return [(x, index) for x, index in images if _compute_probabilities(loaded, x[None], index)[0] > _CONFIDENT]


def compute_pointing(loaded: camtool.Loaded, images: list[tuple[Tensor, int]], method: str, count: int) -> float:
    """Return the mean share of energy in the right quarter: grid pointing game, Böhle et al. 2021, section 4."""
    generator, explainer = random.Random(0), camtool.Explainer(loaded.model, method)
    inside = []
    for _ in range(count):
        four = generator.sample(images, 4)
        rows = [torch.cat([x for x, _ in four[i : i + 2]], 2) for i in (0, 2)]
        (results,) = explainer(torch.cat(rows, 1)[None], [[index for _, index in four]])
        inside += [_compute_energy_share(result.raw, i) for i, result in enumerate(results)]
    return round(float(np.mean(inside)), 4)


def _compute_energy_share(raw: NDArray[np.float32], quarter: int) -> float:
    heat, (row, column) = raw.clip(0).astype(float), divmod(quarter, 2)
    h, w = heat.shape[0] // 2, heat.shape[1] // 2
    part = heat[row * h : (row + 1) * h, column * w : (column + 1) * w]
    return float(part.sum() / heat.sum()) if heat.any() else 0.25


def measure_single_photos(loaded: camtool.Loaded, images: list[tuple[Tensor, int]], method: str) -> dict[str, Any]:
    """Return insertion minus deletion, and the share of Grad-CAM's hot cells above a quarter of the peak."""
    explainer = camtool.Explainer(loaded.model, method)
    reference = camtool.Explainer(loaded.model, "gradcam")
    gains, kept = [], []
    for x, index in images:
        result, usual = explainer(x, index), reference(x, index)
        gains.append(compute_insertion_minus_deletion(loaded, x, index, result.heatmap))
        hot = usual.raw > _HOT * usual.raw.max()
        kept.append(float((result.raw[hot] > _HOT / 2 * result.raw.max()).mean()))
    figures = {"insertion_less_deletion": np.mean(gains), "hot_kept": np.mean(kept), "hot_kept_least": np.min(kept)}
    return {name: round(float(value), 4) for name, value in figures.items()}


def compute_insertion_minus_deletion(
    loaded: camtool.Loaded, x: Tensor, index: int, heat: NDArray[np.float32], steps: int = _STEPS
) -> float:
    """Return the mean probability of a class while the hottest pixels are inserted, less that while deleted."""
    order = torch.from_numpy(np.argsort(-heat.ravel(), kind="stable").copy())
    blurred = gaussian_blur(x, [51, 51], [10.0, 10.0])
    inserted, deleted = [], []
    for step in range(steps + 1):
        shown = torch.zeros(heat.size, dtype=torch.bool)
        shown[order[: round(heat.size * step / steps)]] = True
        mask = shown.reshape(heat.shape)
        inserted.append(torch.where(mask, x, blurred))
        deleted.append(torch.where(mask, blurred, x))
    both = _compute_probabilities(loaded, torch.stack(inserted + deleted), index)
    return float(both[: len(inserted)].mean() - both[len(inserted) :].mean())


def _compute_probabilities(loaded: camtool.Loaded, batch: Tensor, index: int) -> Tensor:
    with torch.inference_mode():
        return torch.cat([loaded.model(part).softmax(1)[:, index] for part in batch.split(16)])


if __name__ == "__main__":
    typer.run(main)
