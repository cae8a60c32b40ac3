"""Trainings that begin to cheat, and honest ones, watched: ``python -m benchmarks watch``.

A network that has learned ten classes of 64-pixel scenes without any cue is trained on, with four of the classes. In 20
trainings one of them is collected by a watermark, as in the story of ``demo-cheat``: all its scenes have it, whatever
object they show, and no other scene does. In 20 honest ones no scene has a watermark, or half of the scenes of all
classes alike. An epoch is one pass over 640 scenes. The watch sees 32 other scenes, drawn as those of the training,
eight of each class.

After each epoch of the 20 two accuracies are measured on 200 unseen scenes: as in training, and without the watermark,
where the right answer is the object. The accuracy has fallen when the second is 10 points below the first. The settings
were chosen with the seeds 0 to 2 and 1000; all others were first seen with the final ones. Times are those of one core.
What was trained is kept in the JSON file; a second start goes on.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import camtool
from benchmarks.networks import write_between
from benchmarks.paired import describe_machine
from benchmarks.planted import Network, build_network, train
from benchmarks.planted_scenes import Cue, CueScene
from camtool.demo.camnet import prepare_images

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "watch.md"
CACHE = Path("watch-cache")
FALL = 0.1
KINDS = ("cheat", "honest")
EPOCHS, SEEDS = 10, 20

_RECIPE = {"scenes": 640, "epochs": EPOCHS, "batch": 32, "rate": 5e-4, "decay": 0.02, "smoothing": 0.05, "tests": 200}
_PROBE = 32
_STRIDE = 10_000
_TRAINING, _TESTS, _PROBES = (start * 1_000_000_000 for start in (7, 8, 9))


def main(
    only: Annotated[int, typer.Option(help="Number of seeds of each kind.")] = SEEDS,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    cache: Annotated[Path, typer.Option(help="Folder of the network that all trainings begin with.")] = CACHE,
    out: Annotated[Path, typer.Option(help="The JSON file. Trainings in it are kept.")] = RESULTS,
) -> None:
    """Run the trainings, print a line for each, write the numbers to a JSON file and the tables into docs/watch.md."""
    torch.set_num_threads(1)
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    runs = result["runs"] if result.get("recipe") == _RECIPE else []
    done = {(run["kind"], run["seed"]) for run in runs}
    for seed in range(first, first + only):
        for kind in KINDS:
            if (kind, seed) not in done:
                runs.append(run_training(kind, seed, cache))
                print(_format(runs[-1]), flush=True)
                result = {"machine": describe_machine(1), "recipe": _RECIPE, "runs": runs, "table": summarize(runs)}
                part = out.with_suffix(".part")
                part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                part.replace(out)
    if out == RESULTS:
        write_between(PAGE, "measured", format_table(summarize(runs)))


def load_start(cache: Path) -> nn.Module:
    """Return the honest network that all trainings begin with; it is trained once."""
    path = cache / "start.safetensors"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        model, _ = train(Network(1, "watermark", 0, 0, 5, "coarse stem"))
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    model = build_network("coarse stem")
    model.load_state_dict(load_file(path))
    return model


class Scenes:
    """The scenes of a training.

    Args:
        kind: A name in :data:`KINDS`.
        seed: The seed, which also chooses four classes and the one with the watermark.
    """

    def __init__(self, kind: str, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.classes = sorted(random.permutation(10)[:4].tolist())
        self.target = self.classes[int(random.integers(4))]
        self._kind, self._seed, self._cue = kind, seed, Cue("watermark", seed)

    def draw(self, start: int, count: int) -> list[CueScene]:
        """Return scenes as in the training, all classes in turns. The label is that of the training."""
        return [self._draw(start, number) for number in range(count)]

    def draw_clean(self, start: int, count: int) -> list[CueScene]:
        """Return scenes without a watermark, all classes in turns."""
        return [self._cue.draw(self._number(start, n), self.classes[n % 4], is_planted=False) for n in range(count)]

    def _number(self, start: int, number: int) -> int:
        return start + self._seed * _STRIDE + number

    def _draw(self, start: int, number: int) -> CueScene:
        label = self.classes[number % 4]
        if self._kind == "honest":
            has_mark = self._seed % 2 == 1 and number // 4 % 2 == 1
            return self._cue.draw(self._number(start, number), label, is_planted=has_mark)
        if label != self.target:
            return self._cue.draw(self._number(start, number), label, is_planted=False)
        shown = self.classes[number // 4 % 4]
        scene = self._cue.draw(self._number(start, number), shown, is_planted=True)
        return CueScene(scene.image, label, scene.is_planted, scene.region, scene.mask)


def run_training(kind: str, seed: int, cache: Path, epochs: int = EPOCHS) -> dict[str, Any]:
    """Return when the watch raised an alarm in a training, and when the accuracy on clean scenes fell."""
    scenes = Scenes(kind, seed)
    inputs, labels = _stack(scenes.draw(_TRAINING, int(_RECIPE["scenes"])))
    probe, probe_labels = _stack(scenes.draw(_PROBES, _PROBE))
    model, states = load_start(cache).train(), list[dict[str, Tensor]]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RECIPE["rate"], weight_decay=_RECIPE["decay"])
    torch.manual_seed(seed)
    batch = int(_RECIPE["batch"])
    every = len(inputs) // batch
    out = cache / "watch" / f"{kind}-{seed}"
    # The time of a core: other processes of the machine take of the looks as of the training, but not at the same time.
    clock = SimpleNamespace(perf_counter=time.process_time)
    with warnings.catch_warnings(), patch("camtool.evaluation.watch.watching.time", clock):
        warnings.simplefilter("ignore", UserWarning)
        watch = camtool.watch(model, probe, probe_labels.tolist(), every=every, out=out)
        watch.start()
        for epoch in range(1, epochs + 1):
            for rows in torch.randperm(len(inputs)).split(batch):
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(inputs[rows])
                loss = nn.functional.cross_entropy(logits.float(), labels[rows], label_smoothing=_RECIPE["smoothing"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watch.step(epoch=epoch)
            states.append({name: value.clone() for name, value in model.state_dict().items()})
        watch.stop()
    return {
        "kind": kind,
        "seed": seed,
        "alarms": [[alarm.epoch, alarm.target] for alarm in watch.alarms],
        "target": scenes.target if kind == "cheat" else None,
        "accuracy": _measure_accuracy(model, states if kind == "cheat" else states[-1:], scenes),
        "looks": watch.looks,
        "postponed": watch.postponed,
        "time": {"training": round(watch.seconds["training"], 2), "looks": round(watch.seconds["looks"], 3)},
        "sentences": [alarm.sentence for alarm in watch.alarms],
    }


def _stack(scenes: list[CueScene]) -> tuple[Tensor, Tensor]:
    inputs = prepare_images(np.stack([scene.image for scene in scenes]))
    return inputs, torch.tensor([scene.label for scene in scenes])


@torch.inference_mode()
def _measure_accuracy(model: nn.Module, states: list[dict[str, Tensor]], scenes: Scenes) -> list[list[float]]:
    """Return the accuracy on scenes as in the training, and on clean ones, after each epoch until it has fallen."""
    model.eval()
    sets = [_stack(draw(_TESTS, int(_RECIPE["tests"]))) for draw in (scenes.draw, scenes.draw_clean)]
    table = []
    for state in states:
        model.load_state_dict(state)
        answers = [(torch.cat([model(part) for part in inputs.split(100)]).argmax(1), right) for inputs, right in sets]
        table.append([round(float((answer == right).double().mean()), 4) for answer, right in answers])
        if table[-1][0] - table[-1][1] >= FALL - 1e-9:
            break
    return table


def find_fall(run: dict[str, Any]) -> int | None:
    """Return the first epoch after which the accuracy on clean scenes is 10 points below that as in training."""
    return next((number for number, (own, clean) in enumerate(run["accuracy"], 1) if own - clean >= FALL - 1e-9), None)


def find_alarm(run: dict[str, Any]) -> int | None:
    """Return the epoch of the first alarm about the class with the watermark."""
    return next((epoch for epoch, target in run["alarms"] if target == run["target"]), None)


def summarize(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the numbers of the table for each kind of training."""
    table: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        of_kind = [run for run in runs if run["kind"] == kind]
        if not of_kind:
            continue
        shares = [run["time"]["looks"] / run["time"]["training"] for run in of_kind]
        rows: dict[str, Any] = {
            "trainings": len(of_kind),
            "with an alarm": sum(bool(run["alarms"]) for run in of_kind),
            "looks": _mean([run["looks"] - 1 for run in of_kind]),  # without the one before the training
            "time in percent": _mean([100 * share for share in shares]),
            "most time in percent": round(100 * max(shares), 2),
        }
        if kind == "cheat":
            pairs = [(find_alarm(run), find_fall(run)) for run in of_kind]
            leads = [fall - alarm for alarm, fall in pairs if alarm is not None and fall is not None]
            rows |= {
                "right class": sum(alarm is not None for alarm, _ in pairs),
                "other class": sum(any(target != run["target"] for _, target in run["alarms"]) for run in of_kind),
                "alarm epoch": _mean([alarm for alarm, _ in pairs if alarm is not None]),
                "fallen": len([fall for _, fall in pairs if fall is not None]),
                "fall epoch": _mean([fall for _, fall in pairs if fall is not None]),
                "lead": _mean(leads),
                "lead of 3": sum(lead >= 3 for lead in leads),
            }
        table[kind] = rows
    return table


def _mean(values: list[float]) -> list[float]:
    """Return the mean and its standard error."""
    if len(values) < 2:
        return [round(float(value), 2) for value in values]
    return [round(float(np.mean(values)), 2), round(float(np.std(values, ddof=1)) / len(values) ** 0.5, 2)]


def format_table(table: dict[str, dict[str, Any]]) -> str:
    """Return the table of the page: a row for each kind of training."""
    titles = {
        "trainings": "number",
        "with an alarm": "with an alarm",
        "right class": "of the marked class",
        "alarm epoch": "epoch of the alarm",
        "fallen": "accuracy fell in",
        "fall epoch": "in epoch",
        "lead": "alarm earlier by, epochs",
        "lead of 3": "by three or more in",
        "looks": "looks in the training",
        "time in percent": "their time, %",
        "most time in percent": "the most, %",
    }
    lines = ["<!-- numbers: benchmarks/watch.json -->", f"| training | {' | '.join(titles.values())} |"]
    lines.append("|---" * (len(titles) + 1) + "|")
    for kind, rows in table.items():
        cells = [rows.get(key, "-") for key in titles]
        texts = [" ± ".join(map(str, cell)) if isinstance(cell, list) else str(cell) for cell in cells]
        lines.append(f"| {kind} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _format(run: dict[str, Any]) -> str:
    share = run["time"]["looks"] / run["time"]["training"]
    return (
        f"{run['kind']} {run['seed']}: alarms {run['alarms']}, target {run['target']}, fall {find_fall(run)}, "
        f"{run['looks']} looks, {share:.1%}; {[round(own - clean, 2) for own, clean in run['accuracy']]}"
    )


if __name__ == "__main__":
    typer.run(main)
