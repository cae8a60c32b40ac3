"""The cost of an explanation in units of a plain forward pass: ``python -m benchmarks overhead``.

Grad-CAM on a prepared batch with camtool, grad-cam and torchcam, each against the plain forward pass of the same model
and batch in ``inference_mode``, in turns. The numbers are the medians of the turns' ratios. Run nothing else meanwhile.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool
from benchmarks.paired import DeviceOption, compute_ratio, describe_machine, make_forward, measure_in_turns

_LAYERS = {"resnet50": "layer4", "mobilenet_v2": "features"}
_CLASS = 281
_OUT = Path(__file__).with_suffix(".json")


def main(
    turns: Annotated[int, typer.Option(help="Measurements of each library.")] = 30,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    device: DeviceOption = "cpu",
    peers: Annotated[bool, typer.Option(help="Also measure grad-cam and torchcam.")] = True,  # noqa: FBT002
) -> None:
    """Measure, print a table, and write the numbers to a JSON file in this folder; those of other devices are kept."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows = [_measure(name, batch_size, turns, device, peers=peers) for name in _LAYERS for batch_size in (1, 8)]
    measured = {"turns": turns, "machine": describe_machine(threads, device), "rows": rows}
    kept = json.loads(_OUT.read_text(encoding="utf-8"))
    result = kept | (measured if device == "cpu" else {device: measured})
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _print_table(rows)


def _measure(name: str, batch_size: int, turns: int, device: str, *, peers: bool) -> dict[str, Any]:
    model = torchvision.models.get_model(name, weights=None).eval().to(device)
    batch = torch.randn(batch_size, 3, 224, 224).to(device)
    runs = {"forward": make_forward(model, batch), "camtool": lambda: camtool.explain(model, batch, _CLASS)}
    if peers:
        layer = model.get_submodule(_LAYERS[name])
        runs |= {"torchcam": _make_torchcam(model, layer, batch), "grad-cam": _make_gradcam(model, layer, batch)}
    times = measure_in_turns(runs, turns)
    return {
        "model": name,
        "batch": batch_size,
        "forward_ms": round(1000 * statistics.median(times["forward"]), 1),
        "ratios": {key: compute_ratio(times, key, "forward") for key in runs if key != "forward"},
    }


def _make_torchcam(model: nn.Module, layer: nn.Module, batch: Tensor) -> Callable[[], object]:
    from torchcam.methods import GradCAM

    def run() -> None:
        with GradCAM(model, layer) as extractor:
            extractor(_CLASS, model(batch))

    return run


def _make_gradcam(model: nn.Module, layer: nn.Module, batch: Tensor) -> Callable[[], object]:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    wanted = [ClassifierOutputTarget(_CLASS)] * len(batch)

    def run() -> None:
        with GradCAM(model=model, target_layers=[layer]) as extractor:
            extractor(input_tensor=batch, targets=wanted)

    return run


def _print_table(rows: list[dict[str, Any]]) -> None:
    libraries = list(rows[0]["ratios"])
    print("| model | batch | forward | " + " | ".join(libraries) + " |")
    print("|---|---|---|" + "---|" * len(libraries))
    for row in rows:
        ratios = " | ".join(f"{row['ratios'][library]:.2f} x" for library in libraries)
        print(f"| {row['model']} | {row['batch']} | {row['forward_ms']:.0f} ms | {ratios} |")


if __name__ == "__main__":
    typer.run(main)
