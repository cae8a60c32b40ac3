"""Heat at the border, stretched or placed by centers: ``python -m benchmarks border``.

In ``benchmarks.truth`` the watermark is always in the lower right corner. Here each of its scenes is rotated by quarter
turns, so that the watermark is in each corner once; the network was trained with such turns. ``inward`` says how far
the heat lies from the evidence toward the middle of the image, in pixels, as the mean over both axes. It is measured
for Grad-CAM in both placements, and for the pixels whose removal lowers the score, which no layer's grid can move. In
the last table the watermark is moved along the diagonal, and nothing else of the scene changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from benchmarks.paired import describe_machine
from benchmarks.truth import UNSEEN, Row, choose_rows, compute_average_precision, explain_with_camtool, load_model
from benchmarks.truth_scenes import OUTPUTS, TASKS, PlantedScene, draw_planted_scene, draw_without
from camtool.demo.camnet import prepare_images

RESULTS = Path(__file__).with_suffix(".json")

_CORNERS = ("lower right", "upper right", "upper left", "lower left")
"""The corner of the watermark after 0, 1, 2 and 3 quarter turns."""

_WITH_REMOVAL = ("watermark", "object")
"""Kinds of evidence that are looked at in each corner."""
_BOX, _STEP = 8, 4
"""Side of the removed boxes, and distance between them, in pixels."""

_PLACES = (0, 4, 8, 102, 106, 109)
"""Left and upper edge of the watermark when it is moved, in pixels."""

_SIDE = 19
"""Side in pixels of the watermark when it is moved; some are a pixel larger."""

_MARK = OUTPUTS.index("watermark")

Maps = NDArray[np.float32]
Masks = NDArray[np.bool_]
Explain = Callable[[Tensor, Sequence[Row]], Maps]


def main(
    rows: Annotated[int, typer.Option(help="Rows for each kind of evidence.")] = 24,
    removed: Annotated[int, typer.Option(help="Rows for each kind of evidence from which pixels are removed.")] = 12,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
) -> None:
    """Measure, print tables, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    model = load_model()
    chosen = choose_rows(model, rows)[0]
    placements: dict[str, Explain] = {
        name: partial(explain_with_camtool, camtool.Explainer(model, "gradcam", placement=name))
        for name in ("stretch", "centers")
    }
    gains = [_compare(task, placements, [row for row in chosen if row.task == task]) for task in TASKS]
    marked = list(islice(_iterate_marked(), rows))
    moved = [_move(place, model, placements["centers"], marked) for place in _PLACES]
    corners = list[dict[str, Any]]()
    for turns, corner in enumerate(_CORNERS):
        for task in _WITH_REMOVAL:
            asked = [row for row in chosen if row.task == task]
            for name, explain in (placements | {"pixels removed": partial(_remove_pixels, model)}).items():
                few = asked[:removed] if name == "pixels removed" else asked
                corners.append({"corner": corner, "evidence": task, "placement": name, **_grade(explain, few, turns)})
    for each in [*gains, *moved, *corners]:
        print("  ".join(f"{name} {value}" for name, value in each.items()), flush=True)
    result = {"machine": describe_machine(threads), "rows": rows, "removed": removed, "gains": gains, "moved": moved}
    out.write_text(json.dumps(result | {"corners": corners}, indent=1) + "\n", encoding="utf-8")


def _compare(task: str, placements: Mapping[str, Explain], rows: Sequence[Row]) -> dict[str, Any]:
    """Return the mean average precision over all turns, and the paired difference with its standard error."""
    found = {
        name: np.mean([_grade_precision(explain, rows, turns)[0] for turns in range(len(_CORNERS))], 0)
        for name, explain in placements.items()
    }
    gain = found["centers"] - found["stretch"]
    numbers = {name: float(values.mean()) for name, values in found.items()}
    numbers |= {"gain": float(gain.mean()), "error": float(gain.std(ddof=1) / np.sqrt(len(gain)))}
    return {"evidence": task} | {name: round(value, 3) for name, value in numbers.items()}


@torch.inference_mode()
def _remove_pixels(model: nn.Module, inputs: Tensor, asked: Sequence[Row]) -> Maps:
    """Return how far the score falls without each pixel: the mean over the boxes with the mean color that cover it."""
    rows, outputs, side = torch.arange(len(inputs)), [row.output for row in asked], inputs.shape[-1]
    drops, covered = torch.zeros(len(inputs), side, side), torch.zeros(side, side)
    scores, mean = model(inputs)[rows, outputs], inputs.mean((2, 3), keepdim=True)
    for top in range(_STEP - _BOX, side, _STEP):
        for left in range(_STEP - _BOX, side, _STEP):
            box = np.s_[..., max(top, 0) : top + _BOX, max(left, 0) : left + _BOX]
            changed = inputs.clone()
            changed[box] = mean
            drops[box] += (scores - model(changed)[rows, outputs])[:, None, None]
            covered[box] += 1
    result: Maps = (drops / covered).numpy()
    return result


def _grade(explain: Explain, rows: Sequence[Row], turns: int) -> dict[str, float]:
    """Return the mean average precision of rotated scenes, and how far inward of the evidence the heat lies."""
    precision, maps, evidence = _grade_precision(explain, rows, turns)
    inward = np.mean([_measure_inward(heat, mask) for heat, mask in zip(maps, evidence, strict=True)])
    return {"precision": round(float(precision.mean()), 3), "inward": round(float(inward), 2)}


def _grade_precision(
    explain: Explain, rows: Sequence[Row], turns: int
) -> tuple[NDArray[np.float64], Maps, list[Masks]]:
    """Return the average precision of each rotated scene, its map, and its evidence."""
    images = np.stack([np.rot90(row.scene.image, turns) for row in rows])
    evidence = [np.rot90(row.evidence, turns) for row in rows]
    maps = explain(prepare_images(images), rows)
    values = [compute_average_precision(heat, mask) for heat, mask in zip(maps, evidence, strict=True)]
    return np.asarray(values), maps, evidence


def _measure_inward(heat: Maps, mask: Masks) -> float:
    """Return how far the heat lies from the evidence toward the middle of the image, in pixels."""
    center = find_center(mask)
    toward = np.sign(np.asarray(mask.shape) / 2 - center)
    return float((toward * (find_center(keep_hot(heat)) - center)).mean())


def keep_hot(heat: Maps) -> Maps:
    """Return a map with zeros where it has less than half of its highest value."""
    hot: Maps = np.where(heat >= heat.max() / 2, heat, 0)
    return hot


def find_center(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the center of mass ``(y, x)`` of values that are not negative, in pixels."""
    axes = (np.arange(length) + 0.5 for length in values.shape)
    moments = [float(values.sum(1 - axis) @ place) for axis, place in enumerate(axes)]
    return np.array(moments) / float(values.sum())


def _iterate_marked() -> Iterator[tuple[PlantedScene, PlantedScene]]:
    """Yield scenes with a watermark, each with the same scene without it."""
    for seed in count(UNSEEN):
        scene = draw_planted_scene(seed)
        if scene.is_marked:
            yield scene, draw_without(scene, seed, _MARK)


def _move(
    place: int, model: nn.Module, explain: Explain, scenes: Sequence[tuple[PlantedScene, PlantedScene]]
) -> dict[str, float]:
    """Return where the heat of the watermark lies when the watermark is elsewhere, along both axes."""
    inputs = prepare_images(np.stack([_paste_mark(*pair, place) for pair in scenes]))
    with torch.inference_mode():
        is_seen = (model(inputs)[:, _MARK] > 0).numpy()
    maps = explain(inputs, [Row("watermark", _MARK, 1, (), scene) for scene, _ in scenes])[is_seen]
    heat = np.mean([find_center(keep_hot(each)).mean() for each in maps])
    return {"watermark": place + _SIDE / 2, "heat": round(float(heat), 1), "seen": round(float(is_seen.mean()), 3)}


def _paste_mark(marked: PlantedScene, clean: PlantedScene, place: int) -> NDArray[np.uint8]:
    """Return the scene with its watermark at another place and nothing at the old one."""
    top, left = (int(each.min()) for each in np.nonzero(marked.evidence[_MARK][0]))
    image: NDArray[np.uint8] = clean.image.copy()
    image[place : place + _SIDE, place : place + _SIDE] = marked.image[top : top + _SIDE, left : left + _SIDE]
    return image


if __name__ == "__main__":
    typer.run(main)
