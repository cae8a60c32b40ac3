"""A cheating network trained again with losses on its evidence: ``python -m benchmarks retraining``.

The bundled model "demo-cheat" calls everything with a watermark a heart. It is trained again on scenes on which every
heart has the watermark and nothing else has it, so that the cross-entropy alone has no reason to change anything. The
losses of ``camtool.losses`` get the place of the watermark. Everything is measured on scenes that neither a training
nor the choice of the settings has seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import camtool
from benchmarks.paired import describe_machine
from camtool import losses
from camtool.demo.camnet import CHEATED_CLASS, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.demo.shapes import LABELS

RESULTS = Path(__file__).with_suffix(".json")

HEART = LABELS.index(CHEATED_CLASS)
TRAINING = range(50_000, 51_500)
TESTS = range(UNSEEN + 10_000, UNSEEN + 10_600)
"""The settings were chosen on the first thousand scenes from ``UNSEEN`` on; these are others."""

BATCH, HEARTS, RATE, WEIGHT = 32, 8, 1e-3, 1.0

CASES = {
    "cross-entropy alone": None,
    "heat_inside, Grad-CAM, last layer": ("gradcam", None),
    "heat_inside, HiResCAM, stem": ("hirescam", "stem"),
    "right_reasons": "gradients",
}
"""Name → the method and the layer of the maps, or another loss."""


class Scenes(NamedTuple):
    """Scenes ``(N, 3, 128, 128)``, their classes ``(N,)`` and the places of their watermarks ``(N, 128, 128)``."""

    images: Tensor
    classes: Tensor
    marks: Tensor


def draw(seeds: Sequence[int], *, shown: str | None = None, marked: str = "none") -> Scenes:
    """Draw scenes of one object; the watermark is on ``"none"``, ``"all"`` or the ``"hearts"``."""
    scenes = []
    for seed in seeds:
        scene = draw_scene(seed, classes=None if shown is None else [shown])
        label = scene.objects[0].label
        if marked == "all" or (marked == "hearts" and label == CHEATED_CLASS):
            scene = draw_scene(seed, classes=[label], mark=True)
        scenes.append(scene)
    marks = torch.zeros(len(scenes), 128, 128, dtype=torch.bool)
    for mask, scene in zip(marks, scenes, strict=True):
        if scene.mark is not None:
            x0, y0, x1, y1 = scene.mark
            mask[y0:y1, x0:x1] = True
    classes = torch.tensor([scene.objects[0].index for scene in scenes])
    return Scenes(prepare_images(np.stack([scene.image for scene in scenes])), classes, marks)


def train(case: str, scenes: Scenes, steps: int, seed: int) -> nn.Module:
    """Return the cheating network, trained again; batch norms keep their statistics."""
    torch.manual_seed(seed)
    model, how = camtool.load("demo-cheat").model, CASES[case]
    explainer = camtool.Explainer(model, how[0], how[1]) if isinstance(how, tuple) else None
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    hearts = (scenes.classes == HEART).nonzero()[:, 0]
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = (
            RATE * min(1, (step + 1) / 10) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        )
        chosen = torch.cat(
            [torch.randint(len(scenes.images), (BATCH - HEARTS,)), hearts[torch.randint(len(hearts), (HEARTS,))]]
        )
        turns = int(torch.randint(4, ()))
        images, marks = scenes.images[chosen].rot90(turns, (2, 3)), scenes.marks[chosen].rot90(turns, (1, 2))
        classes = scenes.classes[chosen]
        outputs = model(images.requires_grad_(how == "gradients"))
        loss = cross_entropy(outputs, classes, label_smoothing=0.05)
        if explainer is not None:
            maps = explainer.compute_maps(images, classes, resize=True, differentiable=True)
            loss = loss + WEIGHT * losses.heat_inside(maps, marks)
        elif how == "gradients":
            loss = loss + WEIGHT * losses.right_reasons(outputs, images, marks)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def measure(model: nn.Module, tests: dict[str, Scenes]) -> dict[str, float]:
    """Return accuracies, how often the mark alone makes a heart, and the heat of Grad-CAM in the mark."""
    with torch.no_grad():
        answers = {
            name: torch.cat([model(part).argmax(1) for part in scenes.images.split(100)])
            for name, scenes in tests.items()
        }
    correct = {name: float((answers[name] == scenes.classes).float().mean()) for name, scenes in tests.items()}
    is_other = tests["all marked"].classes != HEART
    marked, explainer = tests["marked hearts"], camtool.Explainer(model, "gradcam")
    maps = torch.cat([explainer.compute_maps(part, HEART, resize=True) for part in marked.images.split(100)])
    return {
        "clean scenes": correct["clean"],
        "clean hearts": correct["clean hearts"],
        "marked hearts": correct["marked hearts"],
        "others called heart": float((answers["all marked"][is_other] == HEART).float().mean()),
        "heat in the mark": float(losses.heat_inside(maps, marked.marks)),
    }


def main(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 200,
    seeds: Annotated[int, typer.Option(help="Trainings of each kind.")] = 3,
    out: Annotated[Path, typer.Option(help="File for the numbers.")] = RESULTS,
) -> None:
    """Train the network again in several ways, and print and store what it does then."""
    torch.set_num_threads(1)
    training = draw(TRAINING, marked="hearts")
    tests = {
        "clean": draw(TESTS),
        "clean hearts": draw(TESTS[:200], shown=CHEATED_CLASS),
        "marked hearts": draw(TESTS[:200], shown=CHEATED_CLASS, marked="all"),
        "all marked": draw(TESTS[:300], marked="all"),
    }
    rows = {"before": [measure(camtool.load("demo-cheat").model, tests)]}
    for case in CASES:
        rows[case] = [measure(train(case, training, steps, seed), tests) for seed in range(seeds)]
        print(case, *rows[case], sep="\n  ", flush=True)
    results = {}
    for case, runs in rows.items():
        values = {name: [run[name] for run in runs] for name in runs[0]}
        results[case] = {
            name: {"mean": float(np.mean(each)), "error": float(np.std(each, ddof=1) / len(each) ** 0.5)}
            if len(each) > 1
            else {"mean": each[0]}
            for name, each in values.items()
        }
    stored = {"machine": describe_machine(1), "steps": steps, "seeds": seeds, "tests": str(TESTS), "cases": results}
    out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
