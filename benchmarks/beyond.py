"""Heat beyond the outermost cells, kept or fading: ``python -m benchmarks beyond``.

Where the cells of a layer lie up and to the left of where a stretched grid has them, the last ones are far from the
border. Kept, their heat covers more pixels than that of other cells. Fading, each cell covers half a stride beyond its
center, see :func:`camtool.geometry.resampling.weigh_cells`. Both rules draw the heat of the same methods on the same
photos, so the differences are paired.

Single deletion is Spearman's correlation of the heat in 4 x 4 cells with the drop of the logit when a cell is set to
the mean color; ``down`` and ``right`` say how far the center of the heat lies from the center of the drops, in 8 x 8
cells, in pixels.

The photos of ``--photos`` are those on which the rule was chosen; those of installed packages were not looked at. Crops
put the cell whose removal counts most at each edge: fading takes heat from the edges, so it must not suit photos in
the middle alone; a photo has up to two crops for an edge, which count as independent. On scenes, the share of the heat
on the object is measured, with the demo's network and those of ``--scenes``, which stand on its first convolutions. The
centers of the Swin transformer's cells are not known, so only its depths before a merge of patches can differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image, ImageOps
from scipy.stats import spearmanr
from torch import Tensor, nn

import camtool
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from benchmarks.photos import read_labels
from camtool.demo.camnet import SIZE, load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.geometry import resampling
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.image_writing import write_image
from camtool.trust.metrics.localization import compute_energy_in_mask
from tools.train_scene_models import build

RESULTS = Path(__file__).with_suffix(".json")

_EDGES = {"top": (0.1, 0.5), "bottom": (0.9, 0.5), "left": (0.5, 0.1), "right": (0.5, 0.9)}
"""Where a crop has the evidence, in shares of its height and width."""

_CROPS = (0.65, 0.5)
"""Sides of the crops, in shares of the photo's shorter side."""

_LEAST = 0.1, 0.3
"""The least probability of the class on a whole photo, and on a crop of it."""

_SCENES = 150
"""Scenes of one object, of which those count that the network recognizes."""

_PRINTABLE = ("skimage/", "sklearn/", "matplotlib/")
_NO_PHOTOS = ("skimage/microaneurysms.png", "skimage/hubble_deep_field.jpg", "skimage/ihc.png")
"""Packages whose photos are drawn, and what of them is left out, so that there are 20."""

_MEASURES = ("single deletion", "down", "right")

Maps = NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """A prepared photo, a class, and what removing parts of it does.

    Attributes:
        inputs: ``(1, C, H, W)``.
        index: The class.
        coarse: The drops of the logit without each of 4 x 4 cells.
        fine: Those without each of 8 x 8 cells.
    """

    inputs: Tensor
    index: int
    coarse: Maps
    fine: Maps


def main(
    photos: Annotated[Path, typer.Option(help="Folder with photos and labels.csv.")],
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of a torchvision architecture; may be repeated.")],
    method: Annotated[list[str], typer.Option(help="Method; may be repeated.")] = ["gradcam", "layercam", "faithcam"],  # noqa: B006
    scenes: Annotated[Path | None, typer.Option(help="Folder with networks of tools/train_scene_models.py.")] = None,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
    sheet: Annotated[Path | None, typer.Option(help="Only draw faithcam by both rules on unseen photos, here.")] = None,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    if sheet is not None:
        _draw_sheet(camtool.load(*weights[0].split("=", 1)), sheet)
        return
    rows = []
    networks = {"demo": load_honest_model().model}
    networks |= {file.stem: build(file.stem, file) for file in sorted(scenes.glob("*.safetensors"))} if scenes else {}
    for (name, model), asked in product(networks.items(), method):
        rows.append({"network": name, "photos": "scenes", "method": asked, **_compare_scenes(model, asked)})
        print(json.dumps(rows[-1]), flush=True)
    for name, file in (pair.split("=", 1) for pair in weights):
        loaded = camtool.load(name, file)
        for place, questions in _ask(loaded, photos).items():
            for asked in method if len(questions) > 2 else ():
                kept, fading = (_measure(loaded.model, asked, questions, rule) for rule in (_keep_heat, nullcontext))
                rows.append({"network": name, "photos": place, "method": asked, **_compare(kept, fading)})
                print(json.dumps(rows[-1]), flush=True)
    out.write_text(json.dumps({"machine": describe_machine(threads), "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _draw_sheet(loaded: camtool.Loaded, path: Path) -> None:
    """Draw photos of packages that allow to print them, and faithcam with heat that is kept and that fades on each."""
    images, captions = [], []
    for name, image in read_package_photos():
        if not name.startswith(_PRINTABLE) or name in _NO_PHOTOS:
            continue
        overlays = []
        for rule in (_keep_heat, nullcontext):
            with rule():
                overlays.append(camtool.explain(loaded, image, method="faithcam"))
                pixels = overlays[-1].overlay()
            resampling.build_interpolation_matrix.cache_clear()
            images += [np.asarray(image), pixels] if rule is _keep_heat else [pixels]
        captions += [overlays[0].label or "", "before", "now"]
    squares = [np.asarray(ImageOps.fit(Image.fromarray(pixels), (300, 300))) for pixels in images]
    write_image(path, draw_captioned_images(squares, captions, columns=6, width=150), quality=80)


def _compare_scenes(model: nn.Module, method: str) -> dict[str, Any]:
    """Return the share of the heat on the objects of scenes, by both rules, and the paired gain with its error."""
    drawn = (draw_scene(seed, size=SIZE) for seed in range(UNSEEN, UNSEEN + _SCENES))
    shares = []
    for scene in drawn:
        inputs, item = prepare_images(scene.image[None]), scene.objects[0]
        with torch.inference_mode():
            if int(model(inputs).argmax()) != item.index:
                continue
        both = []
        for rule in (_keep_heat, nullcontext):
            with rule():
                (result,) = camtool.explain(model, inputs, [item.index], method=method)
                both.append(compute_energy_in_mask(result.heatmap, item.mask))
            resampling.build_interpolation_matrix.cache_clear()
        shares.append(both)
    kept, fading = np.array(shares).T
    gain = fading - kept
    numbers = {"kept": kept.mean(), "fading": fading.mean(), "gain": gain.mean()}
    numbers["error"] = gain.std(ddof=1) / np.sqrt(len(gain))
    return {"count": len(gain), "on the object": {key: round(float(number), 3) for key, number in numbers.items()}}


def _keep_heat() -> AbstractContextManager[Any]:
    """Draw as before: the outermost cells hold their values up to the border, in maps and in what they are made of."""
    resampling.build_interpolation_matrix.cache_clear()
    weigh_cells = resampling.weigh_cells
    return patch.object(resampling, "weigh_cells", lambda *args, **_: weigh_cells(*args, holds=True))


def _measure(
    model: nn.Module, method: str, questions: Sequence[Question], rule: Callable[[], AbstractContextManager[Any]]
) -> Maps:
    """Return the measures of each question, ``(Q, measures)``."""
    rows = []
    with rule():
        for question in questions:
            (result,) = camtool.explain(model, question.inputs, [question.index], method=method)
            rows.append(_judge(result.heatmap.astype(np.float64), question))
    resampling.build_interpolation_matrix.cache_clear()
    return np.array(rows)


def _judge(heat: Maps, question: Question) -> list[float]:
    return [
        float(spearmanr(_average(heat, 4).ravel(), question.coarse.ravel())[0]),
        *(_find_center(heat) - _find_center(question.fine.clip(0))),
    ]


def _compare(kept: Maps, fading: Maps) -> dict[str, Any]:
    """Return the means of both rules, and for the first measures the paired gain with its standard error."""
    valid = np.isfinite(kept).all(1) & np.isfinite(fading).all(1)
    gains, entry = (fading - kept)[valid], {"count": int(valid.sum())}
    errors = gains.std(0, ddof=1) / np.sqrt(len(gains))
    spread = fading[valid].std(0, ddof=1) / np.sqrt(len(gains))
    numbers: dict[str, Any] = {}
    for at, measure in enumerate(_MEASURES):
        numbers[measure] = {"kept": kept[valid, at].mean(), "fading": fading[valid, at].mean()}
        numbers[measure] |= {"gain": gains[:, at].mean(), "error": errors[at]} if at == 0 else {"error": spread[at]}
    return entry | {
        name: {key: round(float(number), 3) for key, number in row.items()} for name, row in numbers.items()
    }


# --------------------------------------------------------------------------------------------------------- questions


def _ask(loaded: camtool.Loaded, folder: Path) -> dict[str, list[Question]]:
    """Return the questions about the labeled photos, about those of packages, and about crops of both by edge."""
    labeled = [(Image.open(path).convert("RGB"), index) for path, index in read_labels(folder)]
    unseen = [(image, None) for _, image in read_package_photos()]
    questions: dict[str, list[Question]] = {}
    for place, photos in (("chosen on", labeled), ("unseen", unseen)):
        for image, index in photos:
            question = _ask_photo(loaded, image, index)
            if question is None:
                continue
            questions.setdefault(place, []).append(question)
            for edge, crop in _iterate_crops(image, question):
                at_edge = _ask_photo(loaded, crop, question.index, _LEAST[1])
                if at_edge is not None:
                    questions.setdefault(f"{place}, at the {edge} edge", []).append(at_edge)
    return questions


def _ask_photo(
    loaded: camtool.Loaded, image: Image.Image, index: int | None, least: float = _LEAST[0]
) -> Question | None:
    """Return the question about a photo and its class, by default the top one; None if the network does not see it."""
    assert loaded.transform is not None
    inputs = torch.as_tensor(loaded.transform(image))[None]
    with torch.inference_mode():
        probabilities = loaded.model(inputs)[0].softmax(0)
    index = int(probabilities.argmax()) if index is None else index
    if probabilities[index] < least:
        return None
    coarse, fine = (_remove(loaded.model, inputs, index, cells) for cells in (4, 8))
    return Question(inputs.clone(), index, coarse, fine)


@torch.inference_mode()
def _remove(model: nn.Module, inputs: Tensor, index: int, cells: int) -> Maps:
    """Return the drop of the logit without each cell, ``(cells, cells)``."""
    side, drops = inputs.shape[-1] // cells, []
    masks = torch.eye(cells * cells).reshape(-1, 1, cells, cells)
    for part in masks.split(16):
        large = part.repeat_interleave(side, 2).repeat_interleave(side, 3)
        drops.append(model(inputs)[0, index] - model(inputs * (1 - large))[:, index])
    return torch.cat(drops).double().reshape(cells, cells).numpy()


def _iterate_crops(image: Image.Image, question: Question) -> Iterator[tuple[str, Image.Image]]:
    """Yield crops that have the cell whose removal counts most at each edge, as far as the photo allows."""
    row, column = np.unravel_index(int(question.coarse.argmax()), question.coarse.shape)
    width, height = image.size
    shorter = min(width, height)
    # As most transforms do: 7/8 of the shorter side, from the middle.
    seen = shorter * 7 / 8
    y, x = ((length - seen) / 2 + (at + 0.5) / 4 * seen for length, at in ((height, row), (width, column)))
    for share in _CROPS:
        side = share * shorter
        for edge, (down, across) in _EDGES.items():
            top, left = y - down * side, x - across * side
            # Along the edge the crop may slide.
            if edge in ("top", "bottom"):
                left = min(max(left, 0), width - side)
            else:
                top = min(max(top, 0), height - side)
            if min(top, left) >= 0 and top + side <= height and left + side <= width:
                # The transform cuts off an eighth, so the crop is given a margin of mirrored pixels.
                crop = image.crop((int(left), int(top), int(left + side), int(top + side)))
                yield edge, _add_margin(crop)


def _add_margin(crop: Image.Image) -> Image.Image:
    """Return a crop with mirrored pixels around it, which the usual transform cuts off again."""
    pixels = np.asarray(crop)
    margin = round(len(pixels) / 14)
    return Image.fromarray(np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)), mode="symmetric"))


def _average(heat: Maps, cells: int) -> Maps:
    """Return the mean heat of each cell."""
    side = heat.shape[0] // cells
    means: Maps = heat[: side * cells, : side * cells].reshape(cells, side, cells, side).mean((1, 3))
    return means


def _find_center(values: Maps, size: int = 224) -> Maps:
    """Return the center of mass ``(y, x)`` of values that are not negative, in pixels of an input of ``size``."""
    places = (np.arange(len(values)) + 0.5) * size / len(values)
    total = values.sum()
    return np.array([values.sum(1) @ places, values.sum(0) @ places]) / total if total > 0 else np.full(2, size / 2)


if __name__ == "__main__":
    typer.run(main)
