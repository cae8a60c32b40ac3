"""What an explanation costs beside a plain forward: ``python benchmarks/overhead.py``.

Grad-CAM on a prepared batch, by camtool and, where they are installed, by grad-cam and torchcam, each against the plain
forward in ``inference_mode`` of the same model and batch. All are measured in one process, in turns, so that a slow
moment of the machine hits all alike; the figure is the median of the ratios of each turn. Run nothing else meanwhile.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool

_LAYERS = {"resnet50": "layer4", "mobilenet_v2": "features"}
_CLASS = 281


def main(
    turns: Annotated[int, typer.Option(help="How often each is measured.")] = 30,
    threads: Annotated[int, typer.Option(help="Threads torch may use.")] = 2,
    peers: Annotated[bool, typer.Option(help="Measure grad-cam and torchcam too.")] = True,  # noqa: FBT002
) -> None:
    """Measure, print a table, and keep the numbers beside this script."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows = [_measure(name, batch_size, turns, peers=peers) for name in _LAYERS for batch_size in (1, 8)]
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "camtool": camtool.__version__,
    }
    result = {"turns": turns, "machine": machine, "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _print_table(rows)


def _measure(name: str, batch_size: int, turns: int, *, peers: bool) -> dict[str, Any]:
    model = torchvision.models.get_model(name, weights=None).eval()
    batch = torch.randn(batch_size, 3, 224, 224)
    runs = {"forward": lambda: _forward(model, batch), "camtool": lambda: camtool.explain(model, batch, _CLASS)}
    if peers:
        layer = model.get_submodule(_LAYERS[name])
        runs |= {"torchcam": _torchcam(model, layer, batch), "grad-cam": _gradcam(model, layer, batch)}
    for run in runs.values():  # the first run loads, allocates, and resolves the layer
        run()
        run()
    times: dict[str, list[float]] = {key: [] for key in runs}
    for turn in range(turns):
        order = list(runs) if turn % 2 else list(runs)[::-1]
        for key in order:
            times[key].append(_seconds(runs[key]))
    forward = statistics.median(times["forward"])
    ratios = {
        key: round(statistics.median(t / f for t, f in zip(times[key], times["forward"], strict=True)), 3)
        for key in runs
        if key != "forward"
    }
    return {"model": name, "batch": batch_size, "forward_ms": round(forward * 1000, 1), "ratios": ratios}


def _forward(model: nn.Module, batch: Tensor) -> None:
    with torch.inference_mode():
        model(batch)


def _torchcam(model: nn.Module, layer: nn.Module, batch: Tensor) -> Callable[[], object]:
    from torchcam.methods import GradCAM

    def run() -> None:
        with GradCAM(model, layer) as extractor:
            extractor(_CLASS, model(batch))

    return run


def _gradcam(model: nn.Module, layer: nn.Module, batch: Tensor) -> Callable[[], object]:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    wanted = [ClassifierOutputTarget(_CLASS)] * len(batch)

    def run() -> None:
        with GradCAM(model=model, target_layers=[layer]) as extractor:
            extractor(input_tensor=batch, targets=wanted)

    return run


def _seconds(run: Callable[[], object]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        run()
        return time.perf_counter() - started


def _print_table(rows: list[dict[str, Any]]) -> None:
    libraries = list(rows[0]["ratios"])
    print("| model | batch | forward | " + " | ".join(libraries) + " |")
    print("|---|---|---|" + "---|" * len(libraries))
    for row in rows:
        ratios = " | ".join(f"{row['ratios'][library]:.2f} x" for library in libraries)
        print(f"| {row['model']} | {row['batch']} | {row['forward_ms']:.0f} ms | {ratios} |")


if __name__ == "__main__":
    typer.run(main)
