"""Sufficient regions: ``python -m benchmarks sufficient``.

How much of a photo alone keeps 90 % of the probability, the rest blurred (``result.sufficient()``), with 60 and 180
forward passes. Photos are those of installed packages, with the class that the network is surest of: 13 on which
nothing was tried. The search was chosen on 39 others of them and on 12 photos with labels, with MobileNetV2.

Each claim is checked again, one image at a time, by the model itself and by masks that are drawn here: **refuted**
counts regions alone with less than 90 % of the probability, or with other numbers than the result says; **wrongly**
those that are said to be minimal with a cell that can be dropped. **With the mean color** is what the same regions give
if the rest has the mean color of the photo, which the sentence of the result says, too: the claim is about its fill.

**Area** is the mean share of the input, beside that of the smallest region that other orders of the cells find with as
many passes: bisection along the map of Grad-CAM, of RISE and of Score-CAM, whose passes count, and along a random
order; and the same search as that of ``sufficient()``, from a random order in place of the map. Differences are paired
by photo, with standard errors.

**Scenes** of :mod:`camtool.demo.scenes`, one object on a background, and the network of the demo that recognizes it:
the share of the pixels of each region on the object, and of its cells that hold some of the object. A shape is known by
its outline, so a cell of the outline, 8 x 8 pixels, is half on the object and half beside it. **Needs what is around**
shows that this is the network's: how often the object alone, to the pixel, keeps 90 %, and how often with 2 pixels
around. **Pixels** divides each region further, into cells of 4 and 2 pixels, with as many passes as it takes.

Without ``--weights`` nothing is measured: the table of ``docs/sufficient.md`` is made from the JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from benchmarks.networks import (
    HELD_OUT,
    TITLES,
    Network,
    Question,
    WeightsOption,
    read_networks,
    summarize,
    write_between,
)
from benchmarks.paired import describe_machine
from camtool.demo.camnet import load_honest_model
from camtool.hooks.fast_repeated_passes import FoldedModel
from camtool.trust.metrics.removal import blur_images
from camtool.trust.sufficiency import find_part

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "sufficient.md"

PASSES = (60, 180)
KEEP = 0.9
_CELLS = 16
_BISECTION = 20
"""Passes of a bisection along an order; a map of masks has the others."""

_FINER_SCENES, _FINER_PASSES = 20, 2000
"""Scenes whose regions are divided further, and most passes for each size of the cells."""

_OURS = "sufficient()"
ROWS = {
    _OURS: "`sufficient()`, from Grad-CAM",
    "random, searched": "the same search, from a random order",
    "gradcam": "bisection along Grad-CAM",
    "rise": "bisection along RISE",
    "scorecam": "bisection along Score-CAM",
    "random": "bisection along a random order",
}
"""Name of each row, and what it is called in the table."""

Cells = NDArray[np.bool_]


def main(
    weights: WeightsOption = [],  # noqa: B006
    scenes: Annotated[int, typer.Option(help="Scenes of the demo.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file; what it holds of other rows is kept.")] = RESULTS,
) -> None:
    """Measure and write the numbers to a JSON file; without weights and scenes, write the page from it."""
    torch.set_num_threads(threads)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else {}
    if not weights and not scenes:
        write_between(PAGE, "measured", write_tables(rows))
        return
    for network in read_networks(weights):
        for row in _measure_network(network):
            rows[f"{network.name}, {HELD_OUT}"] = row
            _write(out, rows, threads)
    if scenes:
        rows["scenes"] = _measure_scenes(Network("demo", load_honest_model().model), scenes)
        _write(out, rows, threads)


def _write(out: Path, rows: dict[str, Any], threads: int) -> None:
    out.write_text(json.dumps({"machine": describe_machine(threads), "rows": rows}, indent=1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------- measuring


_UNTOUCHED = tuple(number for number in range(20, 40) if number % 3)
"""Photos on which nothing was tried, of those that MobileNetV2 recognizes."""


def _measure_network(network: Network) -> Iterator[dict[str, Any]]:
    """Yield what was measured after each photo."""
    questions = [one for number, one in enumerate(network.list_questions(HELD_OUT)) if number in _UNTOUCHED]
    areas: dict[str, list[float]] = {}
    checks: dict[str, list[list[float]]] = {}
    kept_with_mean: dict[str, list[float]] = {}
    for number, question in enumerate(questions):
        trial = _Trial(network, question)
        for passes in PASSES:
            region = trial.result.sufficient(KEEP, passes)
            areas.setdefault(f"{_OURS}, {passes}", []).append(region.share)
            checks.setdefault(f"{_OURS}, {passes}", []).append(trial.check(region))
            kept_with_mean.setdefault(f"{_OURS}, {passes}", []).append(region.other_fill[1] / region.score)
            for name, area in trial.search_otherwise(passes, seed=number):
                areas.setdefault(f"{name}, {passes}", []).append(area)
        print(question.index, {name: round(values[-1], 3) for name, values in areas.items()}, flush=True)
        yield _summarize(areas, checks) | {
            "kept with the mean color": {
                name: [round(float(np.quantile(values, share)), 3) for share in (0, 0.5, 1)]
                for name, values in kept_with_mean.items()
            }
        }


def _summarize(areas: dict[str, list[float]], checks: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Return the means of areas with their standard errors, the differences to ours, and the sums of the checks."""
    ours = {passes: np.array(areas[f"{_OURS}, {passes}"]) for passes in PASSES}
    return {
        "photos": len(ours[PASSES[-1]]),
        "area": {
            name: summarize(np.array(values), ours[int(name.rpartition(", ")[2])]) for name, values in areas.items()
        },
        "median": {name: round(float(np.median(values)), 3) for name, values in areas.items()},
        "checks": {
            name: dict(zip(_CHECKS, np.array(rows).sum(0).astype(int).tolist(), strict=True))
            for name, rows in checks.items()
        },
        "most passes": {name: int(max(row[-1] for row in rows)) for name, rows in checks.items()},
    }


_CHECKS = ("refuted", "minimal", "not minimal after all", "empty", "passes")


class _Trial:
    """A photo with a class, and the parts of it alone on the blurred photo."""

    def __init__(self, network: Network, question: Question) -> None:
        self._model, self._folded, self.question = network.model, network.folded, question
        (self.result,) = camtool.explain(network.model, question.inputs, [question.index])
        self._fills = {
            "blur": blur_images(question.inputs),
            "mean": question.inputs.mean((2, 3), keepdim=True).expand_as(question.inputs),
        }

    def score(self, kept: Cells, fill: str = "blur", model: nn.Module | FoldedModel | None = None) -> float:
        """Return the probability of the class with all but some cells replaced, of one image alone."""
        height, width = self.question.inputs.shape[2:]
        rows, columns = np.arange(height) * len(kept) // height, np.arange(width) * kept.shape[1] // width
        shown = torch.from_numpy(kept[rows][:, columns])
        image = torch.where(shown, self.question.inputs, self._fills[fill])
        with torch.inference_mode():
            output: Tensor = (self._model if model is None else model)(image)
        return float(output[0].softmax(0)[self.question.index])

    def check(self, region: Any) -> list[float]:
        """Return 1 or 0 for each of :data:`_CHECKS`, and the passes."""
        whole = self.score(np.ones((_CELLS, _CELLS), bool))
        is_refuted = is_larger = False
        for fill, (alone, without) in region.by_fill.items():
            again = self.score(region.cells, fill), self.score(~region.cells, fill)
            is_refuted |= again[0] < KEEP * whole or not np.allclose(again, (alone, without), rtol=1e-3, atol=1e-6)
        is_refuted |= not np.allclose(self.score(region.cells, "mean"), region.other_fill[1], rtol=1e-3, atol=1e-6)
        if region.is_minimal:
            for cell in np.argwhere(region.cells):
                fewer = region.cells.copy()
                fewer[tuple(cell)] = False
                # A copy that rounds differently may be just on the other side.
                goal = KEEP * whole * (1 + 2e-4)
                is_larger |= all(self.score(fewer, fill) >= goal for fill in region.by_fill)
        return [is_refuted, region.is_minimal, is_larger, not region.cells.any(), region.passes]

    def search_otherwise(self, passes: int, seed: int) -> Iterator[tuple[str, float]]:
        """Yield the name of each other order and the area of the region that it leads to."""
        whole = self.score(np.ones((_CELLS, _CELLS), bool))

        def measure(parts: Cells) -> NDArray[np.float64]:
            return np.array([self.score(part, model=self._folded) / whole for part in parts])

        random = np.random.default_rng(seed).random((_CELLS, _CELLS))
        found = find_part(measure, random, KEEP, passes)
        yield "random, searched", 1.0 if found is None else float(found[0].mean())
        yield "random", _bisect(measure, random)
        yield "gradcam", _bisect(measure, self._average(self.result.heatmap))
        for name, options in (("rise", {"samples": passes - _BISECTION}), ("scorecam", {"max_channels": passes - 20})):
            question = self.question
            (result,) = camtool.explain(self._model, question.inputs, [question.index], method=name, **options)
            yield name, _bisect(measure, self._average(result.heatmap))

    def _average(self, heatmap: NDArray[Any]) -> NDArray[np.float64]:
        pooled = nn.functional.adaptive_avg_pool2d(torch.from_numpy(heatmap.copy())[None].double(), _CELLS)
        return pooled[0].numpy()


def _bisect(measure: Any, heat: NDArray[np.float64]) -> float:
    """Return the share of the hottest cells that hold, the fewest that a bisection of 20 passes finds."""
    order = np.argsort(-heat, axis=None, kind="stable")
    lowest, highest, left = 0, heat.size, _BISECTION
    while highest - lowest > 1 and left:
        middle = (lowest + highest) // 2
        kept = np.zeros(heat.size, bool)
        kept[order[:middle]] = True
        lowest, highest = (lowest, middle) if measure(kept.reshape(1, *heat.shape))[0] >= KEEP else (middle, highest)
        left -= 1
    return highest / heat.size


def _measure_scenes(network: Network, count: int) -> dict[str, Any]:
    """Return how much of the regions lies on the object of scenes."""
    on_object, touching, shares, alone, finer = [], [], [], [], []
    for question in network.list_questions(HELD_OUT, count):
        trial = _Trial(network, question)
        region = trial.result.sufficient(KEEP, PASSES[-1])
        assert question.mask is not None
        whole = trial.score(np.ones((_CELLS, _CELLS), bool))
        alone.append([trial.score(part) >= KEEP * whole for part in (question.mask, _widen(question.mask, 2))])
        if region.cells.any():
            on_object.append(float(question.mask[region.mask].mean()))
            blocks = question.mask.reshape(_CELLS, -1, _CELLS, question.mask.shape[1] // _CELLS)
            touching.append(float(blocks.any((1, 3))[region.cells].mean()))
            if len(finer) < _FINER_SCENES:
                finer.append(_divide_further(trial, region.cells))
        shares.append(region.share)
        print(len(shares), round(shares[-1], 3), on_object[-1:], touching[-1:], flush=True)
    values = np.array(touching)
    error = float(np.sqrt((values >= 0.8).mean() * (values < 0.8).mean() / len(values)))
    return {
        "scenes": len(shares),
        "share": summarize(np.array(shares)),
        "pixels on the object": summarize(np.array(on_object)),
        "cells on the object": summarize(values),
        "pixels of finer regions": [summarize(np.array(sizes)) for sizes in zip(*finer, strict=True)],
        "object alone": np.mean(alone, 0).round(3).tolist(),
        "at least 80 % of the cells": [round(float((values >= 0.8).mean()), 3), round(error, 3)],
    }


def _widen(mask: Cells, pixels: int) -> Cells:
    """Return the pixels of a mask and those up to so many rows and columns beside them."""
    wide = torch.nn.functional.max_pool2d(torch.from_numpy(mask)[None].float(), 2 * pixels + 1, 1, pixels)
    return wide[0].numpy() > 0


def _divide_further(trial: _Trial, part: Cells) -> list[float]:
    """Return the share of pixels on the object for cells of the region, and of those within it of half the size, ..."""
    whole, mask, shares = trial.score(np.ones((_CELLS, _CELLS), bool)), trial.question.mask, []
    assert mask is not None

    def measure(parts: Cells) -> NDArray[np.float64]:
        return np.array([trial.score(one) / whole for one in parts])

    while True:
        side = len(mask) // len(part)
        shares.append(float(mask[np.kron(part, np.ones((side, side), bool))].mean()))
        if side == 2:
            return shares
        part = np.kron(part, np.ones((2, 2), bool))
        heat = nn.functional.adaptive_avg_pool2d(torch.from_numpy(trial.result.heatmap.copy())[None], len(part))[0]
        found = find_part(measure, heat.double().numpy(), KEEP, _FINER_PASSES, part)
        assert found is not None
        part = found[0]


# ------------------------------------------------------------------------------------------------------------- the page


def write_tables(rows: dict[str, Any]) -> str:
    """Return the tables of the page."""
    networks = {name: rows[f"{name}, {HELD_OUT}"] for name in TITLES if f"{name}, {HELD_OUT}" in rows}
    asked = [(name, row, passes) for name, row in networks.items() for passes in PASSES]
    heads = [f"{TITLES[name]}, {row['photos']} photos, {passes} passes" for name, row, passes in asked]
    mark = f"<!-- numbers: benchmarks/{RESULTS.name} -->"
    lines = [mark, f"| area | {' | '.join(heads)} |", "|---" * (len(asked) + 1) + "|"]
    for name, title in ROWS.items():
        entries = [(passes, row["area"].get(f"{name}, {passes}")) for _, row, passes in asked]
        if all(entry for _, entry in entries):
            cells = [f"{e[0]:.3f} ± {e[1]:.3f}{_format_gain(name, passes, e)}" for passes, e in entries]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    cells = []
    for _, row, passes in asked:
        name = f"{_OURS}, {passes}"
        check, median = row["checks"][name], row["median"][name]
        cells.append(
            f"{check['refuted']} of {row['photos']} refuted, {check['minimal']} minimal "
            f"({check['not minimal after all']} wrongly), median area {median:.2f}"
        )
    lines.append(f"| `sufficient()`, checked one image at a time | {' | '.join(cells)} |")
    kept = [row["kept with the mean color"][f"{_OURS}, {passes}"] for _, row, passes in asked]
    cells = [f"median {median:.0%} ({low:.0%} to {high:.0%})" for low, median, high in kept]
    lines.append(f"| what its regions keep with the rest in its mean color | {' | '.join(cells)} |")
    scenes = rows.get("scenes")
    if scenes is not None:
        (share, error), (mean, its_error) = scenes["at least 80 % of the cells"], scenes["cells on the object"]
        pixels, area, (alone, around) = scenes["pixels on the object"], scenes["share"], scenes["object alone"]
        finer = ", ".join(f"{of_size[0]:.0%}" for of_size in scenes["pixels of finer regions"])
        text = (
            f"Of {scenes['scenes']} scenes, {share:.0%} ± {error:.0%} have a region of which at least 80 % of the cells"
            f" hold some of the object; on average {mean:.1%} ± {its_error:.1%} of the cells do, and {pixels[0]:.0%} ± "
            f"{pixels[1]:.0%} of the pixels lie on it. The region is {area[0]:.1%} of the scene. The object alone, to "
            f"the pixel, keeps 90 % in {alone:.0%} of the scenes, and with 2 pixels around in {around:.0%}. In regions "
            f"of cells of 8, 4 and 2 pixels, {finer} of the pixels lie on the object ({_FINER_SCENES} scenes)."
        )
        lines += ["", text]
    return "\n".join(lines)


def _format_gain(name: str, passes: int, entry: list[float]) -> str:
    return "" if name == _OURS else f" ({entry[2]:+.3f} ± {entry[3]:.3f})"


if __name__ == "__main__":
    typer.run(main)
