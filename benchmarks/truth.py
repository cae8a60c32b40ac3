"""Methods, peers and metrics against known truth: ``python -m benchmarks truth``.

A network answers 14 questions on generated scenes (``benchmarks/truth_scenes.py``). Nothing but the planted evidence
answers them, so a network that answers right must use it. Rows are scenes that it answers right with confidence. That
it uses the evidence and nothing else is checked: without the evidence its answer must change.

The truth score of a map is its average precision: pixels in the order of their heat against the evidence. Chance is the
evidence's share of the image. Beside it: whether the peak is on the evidence (a grid cell of tolerance), and for two
parts whether both are found. Every metric that needs no annotation ranks the same methods; the last table says how well
its ranking agrees with that of the truth (Spearman).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.stats import spearmanr
from skimage.filters import gaussian, sobel
from torch import Tensor, nn

import camtool
from benchmarks.faithcam import PEERS
from benchmarks.paired import describe_machine
from benchmarks.truth_scenes import OUTPUTS, TASKS, PlantedScene, draw_planted_scene, draw_without
from camtool.demo.camnet import build_camnet, prepare_images
from camtool.demo.shapes import LABELS
from camtool.trust.metrics import METRICS, MetricInputs

WEIGHTS = Path(__file__).with_name("truth_model.safetensors")
RESULTS = Path(__file__).with_suffix(".json")

_CONFIDENT = 2.0
"""Logit from which an answer counts as confident: a probability of 88 %."""

UNSEEN = 2_000_000_000
"""The first seed of the test; training uses the seeds from 0."""

_CELL = 8
"""Side of a cell of the network's grid, in pixels."""

_JUDGED = (
    *("average-drop", "increase", "average-gain", "deletion", "insertion", "road", "single-deletion"),
    *("infidelity", "adcc", "arcc", "entropy", "sparsity"),
)
"""Metrics that need neither an annotation nor other classes, whose ranking is compared with that of the truth."""

_FEWER_MASKS = {"rise": {"samples": 1000}}
"""Options with which dear methods take seconds per row."""

_SPECIAL = frozenset({"attention", "text", "a detector"})

Masks = NDArray[np.bool_]
Explain = Callable[[Tensor, list["Row"]], NDArray[np.float32]]


@dataclass(frozen=True)
class Row:
    """One question on one scene.

    Attributes:
        task: The kind of evidence.
        output: The index of the output.
        sign: -1 to explain why the output is false.
        parts: The masks of the evidence.
        scene: The scene.
    """

    task: str
    output: int
    sign: int
    parts: tuple[Masks, ...]
    scene: PlantedScene

    @property
    def evidence(self) -> Masks:
        """All parts together, ``(H, W)``."""
        return np.logical_or.reduce(self.parts)


def main(
    rows: Annotated[int, typer.Option(help="Rows for each kind of evidence.")] = 12,
    judged: Annotated[int, typer.Option(help="Rows for each kind of evidence on which metrics are computed.")] = 2,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    methods: Annotated[str, typer.Option(help="Names, separated by commas; by default all, and the peers.")] = "",
    metrics: Annotated[str, typer.Option(help="Metrics to rank by, separated by commas; by default all.")] = "",
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
) -> None:
    """Measure, print tables, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    model, start = load_model(), time.monotonic()
    chosen, checks = choose_rows(model, rows)
    print(f"{len(chosen)} rows; {checks}")
    inputs = prepare_images(np.stack([row.scene.image for row in chosen]))
    names = methods.split(",") if methods else None
    subset = [index for index, number in _number_in_task(chosen) if number < judged]
    table, refused = [], {}
    for name, explain in iterate_explainers(model, names):
        try:
            entry = grade(name, explain, inputs, chosen)
        except camtool.CamtoolError as error:
            refused[name] = str(error)
            print(f"{name:<26} refused: {error}", flush=True)
            continue
        maps = entry.pop("maps")
        ranked = metrics.split(",") if metrics else _JUDGED
        entry["metrics"] = judge(model, inputs[subset], maps[subset], [chosen[i] for i in subset], ranked)
        table.append(entry)
        print(_format(entry), flush=True)
    agreement = compare_rankings(table)
    for name, value in sorted(agreement.items(), key=lambda item: -item[1]):
        print(f"{name:<20} {value:+.2f}")
    minutes = round((time.monotonic() - start) / 60, 1)
    result = {"machine": describe_machine(threads), "minutes": minutes, "rows": len(chosen), "judged": len(subset)}
    result |= {"checks": checks, "methods": table, "refused": refused, "agreement": agreement}
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------ the model, the rows


def load_model() -> nn.Module:
    """Return the trained network; ``tools/train_truth_model.py`` trains it."""
    model = build_camnet(len(OUTPUTS))
    model.load_state_dict(load_file(WEIGHTS))
    return model.eval().float()


def choose_rows(model: nn.Module, count: int) -> tuple[list[Row], dict[str, float]]:
    """Return rows that the model answers right and with confidence, and how far its answers depend on the evidence.

    The second result says for each kind of evidence in which share of rows the answer changes if the evidence is
    replaced. Rows whose answer does not change are left out.
    """
    rows: list[Row] = []
    asked, changed = dict.fromkeys(TASKS, 0), dict.fromkeys(TASKS, 0)
    for seed in range(UNSEEN, UNSEEN + 100 * count):
        scene = draw_planted_scene(seed)
        logits = _run(model, scene)
        for row in _list_rows(scene):
            if sum(each.task == row.task for each in rows) >= count or row.sign * logits[row.output] < _CONFIDENT:
                continue
            asked[row.task] += 1
            if row.sign * _run(model, draw_without(scene, seed, row.output))[row.output] < 0:
                changed[row.task] += 1
                rows.append(row)
        if len(rows) == count * len(TASKS):
            break
    order = {task: place for place, task in enumerate(TASKS)}
    rows.sort(key=lambda row: order[row.task])
    return rows, {task: round(changed[task] / max(asked[task], 1), 3) for task in TASKS}


def _list_rows(scene: PlantedScene) -> Iterator[Row]:
    """Yield at most one row for each kind of evidence in a scene."""
    tasks = {"watermark": "watermark", "heart and star": "two parts", "red": "color", "no fish": "absence"}
    shapes = [output for output in scene.evidence if output < len(LABELS)]
    for output in [shapes[0], *(each for each in scene.evidence if each >= len(LABELS))]:
        task = tasks.get(OUTPUTS[output], "object")
        yield Row(task, output, -1 if task == "absence" else 1, scene.evidence[output], scene)


@torch.inference_mode()
def _run(model: nn.Module, scene: PlantedScene) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = model(prepare_images(scene.image[None]))[0].numpy()
    return logits


def _number_in_task(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the index of each row, and its number among the rows of its task."""
    seen: dict[str, int] = {}
    numbered = []
    for index, row in enumerate(rows):
        numbered.append((index, seen.get(row.task, 0)))
        seen[row.task] = seen.get(row.task, 0) + 1
    return numbered


# ------------------------------------------------------------------------------------------------------ explainers


def iterate_explainers(model: nn.Module, names: Sequence[str] | None) -> Iterator[tuple[str, Explain]]:
    """Yield camtool's methods, maps that know nothing of the model, and the peers' methods, by name."""
    for name, method in camtool.METHODS.items():
        if not method.needs & _SPECIAL and (names is None or name in names):
            yield name, partial(explain_with_camtool, camtool.Explainer(model, name, **_FEWER_MASKS.get(name, {})))
    for name, draw in {"(edges)": _draw_edges, "(center)": _draw_center}.items():
        if names is None or name in names:
            yield name, draw
    if names is None:
        for peer, kind in _PEER_METHODS:
            yield f"{peer} {kind}", partial(_explain_with_peer, model, peer, kind)


def explain_with_camtool(explainer: Any, inputs: Tensor, rows: Sequence[Row]) -> NDArray[np.float32]:
    """Return the heatmaps of the rows, ``(N, H, W)``."""
    scores = [camtool.targets.ClassScore(row.output) for row in rows]
    asked = [each if row.sign > 0 else camtool.targets.Negated(each) for each, row in zip(scores, rows, strict=True)]
    return np.stack([result.heatmap for result in explainer(inputs, asked)])


def _draw_edges(inputs: Tensor, _: list[Row]) -> NDArray[np.float32]:
    gray = inputs.mean(1).numpy()
    return np.stack([gaussian(sobel(each), 2) for each in gray]).astype(np.float32)


def _draw_center(inputs: Tensor, _: list[Row]) -> NDArray[np.float32]:
    axis = torch.linspace(-1, 1, inputs.shape[-1])
    one = (-(axis[:, None] ** 2 + axis[None] ** 2)).exp()
    return one.expand(len(inputs), -1, -1).numpy()


_PEER_METHODS = (
    *(("grad-cam", kind) for kind in ("GradCAM", "GradCAMPlusPlus", "HiResCAM", "XGradCAM", "LayerCAM", "EigenCAM")),
    *(("torchcam", kind) for kind in ("GradCAM", "GradCAMpp", "XGradCAM", "LayerCAM", "SmoothGradCAMpp")),
    ("captum", "LayerGradCam"),
)


class _Signed(nn.Module):
    """A model with negated outputs, with which peers explain why an output is false."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return -self.model(x)


def _explain_with_peer(model: nn.Module, peer: str, kind: str, inputs: Tensor, rows: list[Row]) -> NDArray[np.float32]:
    layer, maps = [model.features], []
    for image, row in zip(inputs, rows, strict=True):
        asked = model if row.sign > 0 else _Signed(model).eval()
        maps.append(PEERS[peer](kind, asked, layer, image[None], row.output))
    return np.stack(maps)


# --------------------------------------------------------------------------------------------------------- grading


def grade(name: str, explain: Explain, inputs: Tensor, rows: list[Row]) -> dict[str, Any]:
    """Return what the truth says of a method, with its maps ``(N, H, W)``."""
    start = time.perf_counter()
    maps = np.nan_to_num(explain(inputs, rows))
    seconds = time.perf_counter() - start
    precision = [compute_average_precision(heat, row.evidence) for heat, row in zip(maps, rows, strict=True)]
    hits = [is_hit(heat, row.evidence) for heat, row in zip(maps, rows, strict=True)]
    both = [
        all(_find_peak_share(heat, part) > 0.5 for part in row.parts)
        for heat, row in zip(maps, rows, strict=True)
        if row.task == "two parts"
    ]
    by_task = {
        task: round(float(np.mean([p for p, row in zip(precision, rows, strict=True) if row.task == task])), 3)
        for task in dict.fromkeys(row.task for row in rows)
    }
    low, high = bootstrap(precision)
    entry = {"method": name, "truth": round(float(np.mean(precision)), 3), "low": low, "high": high}
    entry |= {"peak": round(float(np.mean(hits)), 3), "both parts": round(float(np.mean(both)), 3) if both else None}
    return entry | {"tasks": by_task, "ms": round(seconds * 1000 / len(rows), 1), "maps": maps}


def compute_average_precision(heat: NDArray[np.float32], evidence: Masks) -> float:
    """Return the average precision of the pixels in the order of their heat; equally hot ones count as one step."""
    order = np.argsort(-heat, axis=None, kind="stable")
    values, hits = heat.reshape(-1)[order], np.cumsum(evidence.reshape(-1)[order])
    ends = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)
    precision, recall = hits[ends] / (ends + 1), hits[ends] / hits[-1]
    return float((np.diff(recall, prepend=0) * precision).sum())


def is_hit(heat: NDArray[np.float32], evidence: Masks) -> bool:
    """Return True if the peak is on the evidence, or at most one grid cell away. A constant map has no peak."""
    if heat.max() <= heat.min():
        return False
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    near = evidence[max(row - _CELL, 0) : row + _CELL + 1, max(column - _CELL, 0) : column + _CELL + 1]
    return bool(near.any())


def _find_peak_share(heat: NDArray[np.float32], part: Masks) -> float:
    """Return the highest heat on a part, as a share of the map's peak."""
    low, high = float(heat.min()), float(heat.max())
    return (float(heat[part].max()) - low) / (high - low) if high > low else 0.0


def bootstrap(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of the mean."""
    generator = np.random.default_rng(0)
    means = np.asarray(values)[generator.integers(0, len(values), (draws, len(values)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return round(float(low), 3), round(float(high), 3)


# --------------------------------------------------------------------------------------------------------- metrics


class _SignedScore:
    """The score of each row's own output, negated where its falsehood is explained.

    Attributes:
        chunk_size: How many images the score takes at once.
    """

    chunk_size = 64

    def __init__(self, model: nn.Module, rows: Sequence[Row], *, is_probability: bool) -> None:
        self._model, self._is_probability = model, is_probability
        self._outputs = torch.tensor([row.output for row in rows])
        self._signs = torch.tensor([row.sign for row in rows])

    @torch.inference_mode()
    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        logits = self._model(images)[torch.arange(len(images)), self._outputs[rows]] * self._signs[rows]
        return logits.sigmoid() if self._is_probability else logits


def judge(
    model: nn.Module, inputs: Tensor, maps: NDArray[np.float32], rows: list[Row], names: Sequence[str]
) -> dict[str, float]:
    """Return the mean of each metric that can be computed from images, maps and scores."""
    spread = maps - maps.min((1, 2), keepdims=True)
    heat = torch.from_numpy(spread / np.maximum(spread.max((1, 2), keepdims=True), 1e-12))
    asked = MetricInputs(
        inputs,
        heat,
        probability=_SignedScore(model, rows, is_probability=True),
        logit=_SignedScore(model, rows, is_probability=False),
    )
    found = {}
    for name in names:
        if not METRICS[name].list_missing(asked):
            found[name] = round(float(METRICS[name].compute(asked).nanmean()), 4)
    return found


def compare_rankings(table: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return for each metric the rank correlation of its order of the methods with that of the truth."""
    truth = [entry["truth"] for entry in table]
    agreement = {}
    for name in table[0]["metrics"]:
        sign = 1 if METRICS[name].higher_is_better else -1
        values = [sign * entry["metrics"][name] for entry in table]
        agreement[name] = round(float(spearmanr(values, truth).statistic), 3)
    return agreement


def _format(entry: dict[str, Any]) -> str:
    numbers = [entry["low"], entry["high"], *entry["tasks"].values(), entry["peak"]]
    columns = "  ".join(f"{value:.2f}" for value in numbers)
    return f"{entry['method']:<26} {entry['truth']:.3f}  {columns} {entry['ms']:8.1f} ms"


if __name__ == "__main__":
    typer.run(main)
