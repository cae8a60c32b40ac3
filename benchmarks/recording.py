"""The cost of recording layers in units of a plain forward pass: ``python -m benchmarks recording``.

:class:`camtool.Recorder` records the outputs of a model's layers on their device, forward pass after forward pass,
against the plain forward pass of the same model in ``inference_mode``, in turns. The second of two forward passes in a
row is timed, as in a loop. The numbers are the medians of the turns' ratios.

The recorder is compared with two kinds of hand-written hooks. Bare hooks keep a reference to each output. This is the
least possible cost: it prevents torch from reusing the memory, which is most of the cost of recording many layers. But
an in-place ReLU after the layer changes what they hold. Careful hooks clone each output, so they are as correct as the
recorder. Run nothing else meanwhile.
"""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import nn

import camtool
from benchmarks.paired import compute_ratio, describe_machine, make_forward, measure_in_turns
from camtool.recorder import select

_STAGES = ["layer1", "layer2", "layer3", "layer4"]

_SETTINGS: dict[str, tuple[Any, str]] = {
    "stages": (_STAGES, "last"),
    "convolutions": (nn.Conv2d, "last"),
    "all modules": (None, "last"),
    "stages, mean": (_STAGES, "mean"),
    "stages, max": (_STAGES, "max"),
    "stages, histogram": (_STAGES, "histogram"),
}
"""Name → the layers, and what the recorder keeps of their outputs."""

_HAND_WRITTEN: dict[str, Callable[[Any], Any]] = {"bare": lambda output: output, "careful": torch.clone}
"""Name of the hand-written hooks → what they keep of an output."""

_SETTINGS_BY_HAND = ["stages", "convolutions", "all modules"]


def main(
    turns: Annotated[int, typer.Option(help="Measurements of each setting.")] = 30,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows = [_measure(name, batch_size, turns) for name in ("resnet18", "resnet50") for batch_size in (1, 8)]
    result = {"turns": turns, "machine": describe_machine(threads), "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _print_table(rows)


def _measure(name: str, batch_size: int, turns: int) -> dict[str, Any]:
    model = torchvision.models.get_model(name, weights=None).eval()
    run = make_forward(model, torch.randn(batch_size, 3, 224, 224))
    blocks: dict[str, AbstractContextManager[Any]] = {}
    for way, (layers, keep) in _SETTINGS.items():
        blocks[way] = camtool.Recorder(model, layers, keep=keep)  # type: ignore[arg-type]
    hooks = {
        f"{way}, {name}": _HandWrittenHooks(model, _SETTINGS[way][0], kept)
        for way in _SETTINGS_BY_HAND
        for name, kept in _HAND_WRITTEN.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", camtool.recorder.SeveralCallsWarning)  # a block's ReLU runs twice
        times = measure_in_turns(
            dict.fromkeys(["forward", *blocks, *hooks], run), turns, inside=blocks | hooks, again=True
        )
    return {
        "model": name,
        "batch": batch_size,
        "forward_ms": round(1000 * statistics.median(times["forward"]), 1),
        "ratios": {way: compute_ratio(times, way, "forward") for way in _SETTINGS},
        "by_hand": {
            way: {name: compute_ratio(times, f"{way}, {name}", "forward") for name in _HAND_WRITTEN}
            for way in _SETTINGS_BY_HAND
        },
    }


class _HandWrittenHooks:
    """Hooks that keep the latest output of each layer, and do nothing else."""

    def __init__(self, model: nn.Module, layers: Any, kept: Callable[[Any], Any]) -> None:
        self._what = kept
        self._modules = {name: model.get_submodule(name) for name in select(model, layers)}
        self._kept: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> None:
        for name, module in self._modules.items():
            self._stack.callback(module.register_forward_hook(self._hook(name)).remove)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_module: nn.Module, _args: Any, output: Any) -> None:
            self._kept[name] = self._what(output)

        return keep


def _print_table(rows: list[dict[str, Any]]) -> None:
    print("| model | batch | forward | " + " | ".join(_SETTINGS) + " |")
    print("|---|---|---|" + "---|" * len(_SETTINGS))
    for row in rows:
        ratios = " | ".join(_format_cell(row, way) for way in _SETTINGS)
        print(f"| {row['model']} | {row['batch']} | {row['forward_ms']:.0f} ms | {ratios} |")


def _format_cell(row: dict[str, Any], way: str) -> str:
    by_hand = ", ".join(f"{name} {value:.3f}" for name, value in row["by_hand"].get(way, {}).items())
    return f"{row['ratios'][way]:.3f} x" + (f" ({by_hand})" if by_hand else "")


if __name__ == "__main__":
    typer.run(main)
