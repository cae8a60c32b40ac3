"""What recording costs beside a plain forward: ``python benchmarks/recording.py``.

A model's layers are recorded, where they arise, by a :class:`camtool.Recorder` that stays open as it would over a
loader, each way on a copy of the model of its own; against the plain forward in ``inference_mode``, in turns. The
figure is the median of the turns' ratios. Run nothing else meanwhile.
"""

from __future__ import annotations

import copy
import json
import statistics
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from paired import forward, in_turns, machine, ratio

import camtool

_STAGES = ["layer1", "layer2", "layer3", "layer4"]

_WAYS: dict[str, dict[str, Any]] = {
    "stages": {"layers": _STAGES, "keep": "last"},
    "stages, mean": {"layers": _STAGES, "keep": "mean"},
    "convolutions": {"layers": torch.nn.Conv2d, "keep": "last"},
    "all modules": {"layers": None, "keep": "last"},
}
"""What is measured: how it is called → what the recorder is given."""


def main(
    turns: Annotated[int, typer.Option(help="How often each is measured.")] = 30,
    threads: Annotated[int, typer.Option(help="Threads torch may use.")] = 2,
) -> None:
    """Measure, print a table, and keep the numbers beside this script."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows = [_measure(name, batch_size, turns) for name in ("resnet18", "resnet50") for batch_size in (1, 8)]
    result = {"turns": turns, "machine": machine(threads), "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _print_table(rows)


def _measure(name: str, batch_size: int, turns: int) -> dict[str, Any]:
    model = torchvision.models.get_model(name, weights=None).eval()
    batch = torch.randn(batch_size, 3, 224, 224)
    runs = {"forward": forward(model, batch)}
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore", camtool.recorder.SeveralCallsWarning)  # a block's ReLU runs twice
        for way, options in _WAYS.items():
            twin = copy.deepcopy(model)
            stack.enter_context(camtool.Recorder(twin, **options))
            runs[way] = forward(twin, batch)
        times = in_turns(runs, turns)
        stack.close()
    return {
        "model": name,
        "batch": batch_size,
        "forward_ms": round(1000 * statistics.median(times["forward"]), 1),
        "ratios": {way: ratio(times, way, "forward") for way in _WAYS},
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    print("| model | batch | forward | " + " | ".join(_WAYS) + " |")
    print("|---|---|---|" + "---|" * len(_WAYS))
    for row in rows:
        ratios = " | ".join(f"{row['ratios'][way]:.3f} x" for way in _WAYS)
        print(f"| {row['model']} | {row['batch']} | {row['forward_ms']:.0f} ms | {ratios} |")


if __name__ == "__main__":
    typer.run(main)
