"""What recording costs beside a plain forward: ``python benchmarks/recording.py``.

A model's layers are recorded where they arise, forward after forward into the same :class:`camtool.Recorder`; against
the same model's plain forward in ``inference_mode``, in turns. What is timed is the second of two forwards in a row,
as it is in a loop. The figure is the median of the turns' ratios.

Beside each stand two kinds of hooks that a person would write by hand. The bare ones put each output aside, which
cannot be had for less: they keep memory from being used again, and that is most of what it costs to record many layers.
But where a ReLU writes to what came before it, they end up with what it wrote. The careful ones clone each output, and
so are right as the recorder is. Run nothing else meanwhile.
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
from paired import forward, in_turns, machine, ratio
from torch import nn

import camtool
from camtool.recorder import select

_STAGES = ["layer1", "layer2", "layer3", "layer4"]

_WAYS: dict[str, tuple[Any, str]] = {
    "stages": (_STAGES, "last"),
    "convolutions": (nn.Conv2d, "last"),
    "all modules": (None, "last"),
    "stages, mean": (_STAGES, "mean"),
    "stages, max": (_STAGES, "max"),
    "stages, histogram": (_STAGES, "histogram"),
}
"""What is measured: how it is called → which layers, and what is kept of them."""

_BY_HAND: dict[str, Callable[[Any], Any]] = {"bare": lambda output: output, "careful": torch.clone}
"""Hooks by hand: what they are called → what they keep of an output."""

_MEASURED_BY_HAND = ["stages", "convolutions", "all modules"]


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
    run = forward(model, torch.randn(batch_size, 3, 224, 224))
    blocks: dict[str, AbstractContextManager[Any]] = {}
    for way, (layers, keep) in _WAYS.items():
        blocks[way] = camtool.Recorder(model, layers, keep=keep)  # type: ignore[arg-type]
    hooks = {
        f"{way}, {name}": _Hooks(model, _WAYS[way][0], kept)
        for way in _MEASURED_BY_HAND
        for name, kept in _BY_HAND.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", camtool.recorder.SeveralCallsWarning)  # a block's ReLU runs twice
        times = in_turns(dict.fromkeys(["forward", *blocks, *hooks], run), turns, inside=blocks | hooks, again=True)
    return {
        "model": name,
        "batch": batch_size,
        "forward_ms": round(1000 * statistics.median(times["forward"]), 1),
        "ratios": {way: ratio(times, way, "forward") for way in _WAYS},
        "by_hand": {
            way: {name: ratio(times, f"{way}, {name}", "forward") for name in _BY_HAND} for way in _MEASURED_BY_HAND
        },
    }


class _Hooks:
    """Hooks that put something of each output aside, in the place of the one before, and do nothing else."""

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
    print("| model | batch | forward | " + " | ".join(_WAYS) + " |")
    print("|---|---|---|" + "---|" * len(_WAYS))
    for row in rows:
        ratios = " | ".join(_cell(row, way) for way in _WAYS)
        print(f"| {row['model']} | {row['batch']} | {row['forward_ms']:.0f} ms | {ratios} |")


def _cell(row: dict[str, Any], way: str) -> str:
    by_hand = ", ".join(f"{name} {ratio:.3f}" for name, ratio in row["by_hand"].get(way, {}).items())
    return f"{row['ratios'][way]:.3f} x" + (f" ({by_hand})" if by_hand else "")


if __name__ == "__main__":
    typer.run(main)
