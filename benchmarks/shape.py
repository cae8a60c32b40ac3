"""Other shapes of faithcam: ``python -m benchmarks shape --photos FOLDER --weights NAME=FILE``.

Faithcam often shrinks to one spot. Would more depths, a floor under its gate, a softer gate, competition at each depth
or FullGrad, whose heat is on whole objects, make it more faithful? Each variant is compared with faithcam on the same
photos: gains are paired, with their standard errors.

``cells`` is single deletion: Spearman's correlation of the heat in 4 x 4 cells with the drop of the logit without the
cell; ``fine`` the same with 7 x 7 cells that are blurred; ``masks`` the metric ``faithfulness-correlation``;
``insertion`` the area under the probability while the hottest pixels are inserted, less that while they are deleted;
``pointing`` the share of the heat on the right photo of mosaics of four. The photos of ``--photos`` are those on which
faithcam was tuned; those of installed packages were not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import camtool
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from benchmarks.photos import read_labels
from camtool.evidence.contributions import trace_contributions
from camtool.evidence.evidence import Evidence
from camtool.geometry.resampling import draw_heat
from camtool.hooks.folded_model import FoldedModel
from camtool.maps import scale_by_peak
from camtool.methods.families.competition import (
    _add_depths,
    _find_rivals,
    _find_shares,
    _scale_to_equal_means,
    _smooth,
    faithcam,
)
from camtool.methods.families.fullgrad import fullgrad
from camtool.trust.metrics import ClassScore, faithfulness
from camtool.trust.metrics.mosaics import compute_grid_pointing

RESULTS = Path(__file__).with_suffix(".json")

_LEAST = 0.1
"""The least probability of the class on a photo."""

_CONFIDENT = 0.5
"""The least probability of photos in mosaics."""

_MOSAICS = 16
"""Most photos in mosaics, each in one as the photo that is explained."""

_STEPS = 10
"""Steps of insertion and deletion."""

Maps = NDArray[np.float64]
Method = Callable[..., Tensor]


def main(
    photos: Annotated[Path, typer.Option(help="Folder with photos and labels.csv, on which faithcam was tuned.")],
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of a torchvision architecture; may be repeated.")],
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    most: Annotated[int, typer.Option(help="Most photos of each kind.")] = 40,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
) -> None:
    """Measure, print, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    rows = []
    for name, file in (pair.split("=", 1) for pair in weights):
        loaded = camtool.load(name, file)
        labeled = [(Image.open(path).convert("RGB"), index) for path, index in read_labels(photos)]
        for place, images in (("tuned", labeled), ("unseen", [(image, None) for _, image in read_package_photos()])):
            bench = Bench(loaded, images[:most])
            reference = bench.measure(faithcam)
            for variant, method in VARIANTS.items():
                measured = reference if method is faithcam else bench.measure(method)
                rows.append({"network": name, "photos": place, "variant": variant, **_compare(measured, reference)})
                print(json.dumps(rows[-1]), flush=True)
    out.write_text(json.dumps({"machine": describe_machine(threads), "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _compare(measured: dict[str, Maps], reference: dict[str, Maps]) -> dict[str, Any]:
    """Return for each measure the mean, the mean of the paired gains, and its standard error."""
    entry: dict[str, Any] = {"count": len(measured["cells"])}
    for measure, values in measured.items():
        gains = values - reference[measure]
        error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
        entry[measure] = [round(float(number), 3) for number in (values.mean(), gains.mean(), error)]
    return entry


# ---------------------------------------------------------------------------------------------------------- variants


def _vary(
    evidence: Evidence,
    *,
    depths: int = 4,
    floor: float = 0.0,
    power: float = 1.5,
    focus: float = 0.25,
    competition: float = 0.0,
) -> Tensor:
    """Return maps as of faithcam with a floor under the gate, another power of the share, or competition at each depth.

    Competition multiplies each depth by a power of the share of the class in its evidence and that of its rivals.
    """
    share = _find_shares(evidence, 10, 2.0, 3.0)
    contributions = (evidence.gradients * evidence.activations).sum(1).relu()
    won = (share**1.5 * (contributions > 0))[:, None] * evidence.gradients
    traced = [depth_maps.relu() for depth_maps in trace_contributions(evidence, won)]
    if competition:
        rivals = [depth_maps.relu() for depth_maps in trace_contributions(evidence, _weigh_rivals(evidence))]
        own, other = ([_smooth(depth_maps) for depth_maps in maps] for maps in (traced, rivals))
        parts = zip(traced, own, other, strict=True)
        traced = [maps * (mine / (mine + theirs).clamp_min(1e-12)) ** competition for maps, mine, theirs in parts]
    gate = floor + (1 - floor) * share**power * scale_by_peak(contributions) ** focus
    return _add_depths(evidence, _scale_to_equal_means(traced), gate)


def _weigh_rivals(evidence: Evidence) -> Tensor:
    """Return the gradients of the ten strongest rivals at the positions where each has evidence, by its share."""
    weights = torch.zeros_like(evidence.gradients)
    for row, target in enumerate(evidence.targets):
        contestants = [target, *_find_rivals(evidence, row, 10)]
        by_class = evidence.for_targets(contestants, [evidence.images[row]] * len(contestants))
        evidence_of = (by_class.gradients * by_class.activations).sum(1)
        local = evidence_of.flatten(1) * evidence_of[0].numel()
        local = local + (by_class.scores - evidence_of.flatten(1).sum(1))[:, None]
        spread = 2.0 * local[0].std(correction=0).clamp_min(1e-12)
        shares = ((local - local[:1]) / spread).softmax(0).reshape(evidence_of.shape)
        weights[row] = ((shares * (evidence_of > 0))[1:, None] * by_class.gradients[1:]).sum(0)
    return weights


def _gate_fullgrad(evidence: Evidence, *, depths: int = 4, own: float = 0.0) -> Tensor:
    """Return FullGrad times the gate of faithcam, at the size of the input; with ``own`` the mean with faithcam."""
    del depths  # with this option the depths of faithcam are observed
    full = fullgrad(evidence)
    size, place = full.shape[1:], evidence.forward_pass.find_place(evidence.get_layer()).centers
    contributions = (evidence.gradients * evidence.activations).sum(1).relu()
    gate = _find_shares(evidence, 10, 2.0, 3.0) ** 1.5 * scale_by_peak(contributions) ** 0.25
    gated = full * draw_heat(gate, place, size)
    if not own:
        return gated
    traced = faithcam(evidence)
    drawn = draw_heat(traced, evidence.find_centers(traced, at_depths=True), size)
    first, second = (maps / maps.mean((1, 2), keepdim=True).clamp_min(1e-12) for maps in (drawn, gated))
    return own * first + (1 - own) * second


VARIANTS: dict[str, Method | str] = {
    "faithcam": faithcam,
    "gradcam": "gradcam",
    "fullgrad": "fullgrad",
    "6 depths": partial(_vary, depths=6),
    "8 depths": partial(_vary, depths=8),
    "floor of 0.1": partial(_vary, floor=0.1),
    "softer gate": partial(_vary, power=0.75, focus=0.125),
    "competition at each depth": partial(_vary, power=1.0, competition=1.0),
    "some competition, softer gate": partial(_vary, power=0.75, competition=0.5),
    "fullgrad, gated": _gate_fullgrad,
    "mean of both": partial(_gate_fullgrad, own=0.5),
}
"""Names, and methods of camtool or functions of evidence."""


# --------------------------------------------------------------------------------------------------------- measures


@dataclass(frozen=True)
class Question:
    """A prepared photo ``(1, C, H, W)``, its class, its probability, and the drops of the logit without parts of it."""

    inputs: Tensor
    index: int
    score: ClassScore
    cells: Tensor
    fine: Tensor
    masks: Tensor


class Bench:
    """Photos that a network recognizes.

    Args:
        loaded: The network.
        photos: Photos and their classes; None for the class of the highest probability.
    """

    def __init__(self, loaded: camtool.Loaded, photos: list[tuple[Image.Image, int | None]]) -> None:
        self._model: nn.Module = loaded.model
        self._questions, confident = list[Question](), list[tuple[float, Question]]()
        for question, probability in self._ask(loaded, photos):
            self._questions.append(question)
            if probability >= _CONFIDENT and question.index not in {other.index for _, other in confident}:
                confident.append((probability, question))
        self._confident = [question for _, question in confident[:_MOSAICS]]

    def _ask(
        self, loaded: camtool.Loaded, photos: list[tuple[Image.Image, int | None]]
    ) -> Iterator[tuple[Question, float]]:
        assert loaded.transform is not None
        folded = FoldedModel(self._model, torch.as_tensor(loaded.transform(photos[0][0]))[None])
        for image, index in photos:
            inputs = torch.as_tensor(loaded.transform(image))[None].clone()
            with torch.inference_mode():
                probabilities = self._model(inputs)[0].softmax(0)
            label = int(probabilities.argmax()) if index is None else index
            if probabilities[label] < _LEAST:
                continue
            score = ClassScore(folded, inputs, label, "logit")
            cells = faithfulness.measure_cell_drops(score, inputs)
            fine = faithfulness.measure_cell_drops(score, inputs, cells=7, removal="blur")
            masks = faithfulness.measure_mask_drops(score, inputs)
            probability = ClassScore(folded, inputs, label)
            yield Question(inputs, label, probability, cells, fine, masks), float(probabilities[label])

    def measure(self, method: Method | str) -> dict[str, Maps]:
        """Return each measure of a method, one value for each photo or for each photo of a mosaic."""
        rows = [self._judge(self._explain(method, question.inputs, [question.index]), question) for question in
                self._questions]  # fmt: skip
        classes = torch.tensor([question.index for question in self._confident])
        images = torch.cat([question.inputs for question in self._confident])
        pointing = compute_grid_pointing(
            lambda mosaics, of: self._explain(method, mosaics, classes[of].tolist()), images, classes, grid=2, chunk=1
        )
        measured = {measure: np.array([row[measure] for row in rows]) for measure in rows[0]}
        return measured | {"pointing": pointing.double().numpy()}

    def _explain(self, method: Method | str, inputs: Tensor, classes: list[int]) -> Tensor:
        results = camtool.explain(self._model, inputs, classes, method=method)
        return torch.from_numpy(np.stack([result.heatmap for result in results]))

    def _judge(self, maps: Tensor, question: Question) -> dict[str, float]:
        inserted = faithfulness.compute_insertion(question.score, question.inputs, maps, steps=_STEPS)
        deleted = faithfulness.compute_deletion(question.score, question.inputs, maps, steps=_STEPS, removal="blur")
        return {
            "cells": float(faithfulness.compare_with_cell_drops(maps, question.cells)),
            "fine": float(faithfulness.compare_with_cell_drops(maps, question.fine, cells=7)),
            "masks": float(faithfulness.compare_with_mask_drops(maps, question.masks)),
            "insertion": float(inserted - deleted),
        }


if __name__ == "__main__":
    typer.run(main)
