"""The speed and memory against grad-cam and torchcam: ``python -m benchmarks against_peers``.

Each comparison runs in one process, in turns, with random weights (they do not change the cost). The numbers are the
medians of the turns' ratios. Peak memory is that of a new process for each library, minus the memory before the method
runs. This takes a quarter of an hour; run nothing else meanwhile.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool
from benchmarks.paired import Run, compute_ratio, describe_machine, make_forward, measure_in_turns
from camtool.hooks.fast_repeated_passes import FoldedModel

_CLASS = 281
_LAYER = "layer4"
_CHEAP_METHODS = [name for name, each in camtool.METHODS.items() if each.cost == "a pass" and not each.ignores_layer]

_ROOT = Path(__file__).parents[1]

app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    turns: Annotated[int, typer.Option(help="Measurements of each cheap method.")] = 20,
    expensive_turns: Annotated[int, typer.Option(help="Measurements of each perturbation method.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
) -> None:
    """Measure, print tables, and write the numbers to a JSON file in this folder."""
    if context.invoked_subcommand:
        return
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    result: dict[str, Any] = {"machine": describe_machine(threads)}
    result["cheap"] = [_measure_cheap(name, turns) for name in ("resnet18", "resnet50")]
    result["dear"] = [
        _measure_expensive("ablationcam", "resnet18", expensive_turns),
        _measure_expensive("ablationcam", "resnet50", 1),
        _measure_expensive("scorecam", "resnet18", expensive_turns),
    ]
    result["memory"] = {library: _measure_peak(library, threads) for library in ("camtool", "grad-cam", "torchcam")}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _print_tables(result)


def _measure_cheap(name: str, turns: int) -> dict[str, Any]:
    """Measure the methods that cost at most a backward pass against the plain forward pass."""
    model, batch = _build_model(name), torch.randn(1, 3, 224, 224)
    runs = {method: _make_camtool(model, batch, method) for method in _CHEAP_METHODS}
    times = measure_in_turns({"forward": make_forward(model, batch)} | runs, turns)
    return {
        "model": name,
        "forward_ms": round(1000 * statistics.median(times["forward"]), 1),
        "ratios": {method: compute_ratio(times, method, "forward") for method in runs},
        "rivalcam_to_gradcam": compute_ratio(times, "rivalcam", "gradcam"),
    }


def _measure_expensive(method: str, name: str, turns: int) -> dict[str, Any]:
    """Measure a perturbation method against the other libraries that have it."""
    model, batch = _build_model(name), torch.randn(1, 3, 224, 224)
    runs = {"camtool": _make_camtool(model, batch, method), "grad-cam": _make_gradcam(model, batch, method)}
    if method == "scorecam":
        runs |= {"torchcam": _make_torchcam(model, batch), "the passes alone": _make_folded_passes(model, batch)}
    times = measure_in_turns(runs, turns, warm_up=1 if turns > 1 else 0)
    return {
        "method": method,
        "model": name,
        "seconds": {library: round(statistics.median(each), 3) for library, each in times.items()},
        "times_faster": {library: compute_ratio(times, library, "camtool") for library in runs if library != "camtool"},
    }


def _make_folded_passes(model: nn.Module, batch: Tensor) -> Run:
    """Return the lower limit of Score-CAM: as many images as the layer has channels through the folded model."""
    folded = FoldedModel(model, batch)
    images = torch.randn(512, *batch.shape[1:]).contiguous(memory_format=torch.channels_last)

    def run() -> None:
        for part in images.split(folded.chunk_size):
            folded(part)

    return run


def _build_model(name: str) -> nn.Module:
    return torchvision.models.get_model(name, weights=None).eval()


def _make_camtool(model: nn.Module, batch: Tensor, method: str) -> Run:
    return lambda: camtool.explain(model, batch, _CLASS, method=method, layer=_LAYER)


def _make_gradcam(model: nn.Module, batch: Tensor, method: str) -> Run:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    kind = {"ablationcam": pytorch_grad_cam.AblationCAM, "scorecam": pytorch_grad_cam.ScoreCAM}[method]

    def run() -> None:
        with kind(model=model, target_layers=[model.get_submodule(_LAYER)]) as extractor:
            extractor(input_tensor=batch, targets=[ClassifierOutputTarget(_CLASS)])

    return run


def _make_torchcam(model: nn.Module, batch: Tensor) -> Run:
    from torchcam.methods import ScoreCAM

    def run() -> None:
        with torch.no_grad(), ScoreCAM(model, _LAYER) as extractor:
            extractor(_CLASS, model(batch))

    return run


# ------------------------------------------------------------------------------------------------------- memory


@app.command()
def peak(library: str, threads: int = 2) -> None:
    """Print by how many megabytes Score-CAM on resnet18 raises the peak memory of this process."""
    torch.set_num_threads(threads)
    model, batch = _build_model("resnet18"), torch.randn(1, 3, 224, 224)
    kinds = {"camtool": _make_camtool(model, batch, "scorecam"), "torchcam": _make_torchcam(model, batch)}
    run = kinds[library] if library in kinds else _make_gradcam(model, batch, "scorecam")
    camtool.explain(model, batch, _CLASS, layer=_LAYER)  # loads and allocates what every forward pass needs
    before = _read_peak_megabytes()
    run()
    print(_read_peak_megabytes() - before)


def _measure_peak(library: str, threads: int) -> int:
    """Return the median of three processes, as the allocator does not always return the same memory."""
    return int(statistics.median(_measure_peak_once(library, threads) for _ in range(3)))


def _measure_peak_once(library: str, threads: int) -> int:
    command = [sys.executable, "-m", "benchmarks", "against_peers", "peak", library, "--threads", str(threads)]
    return int(subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout.split()[-1])


def _read_peak_megabytes() -> int:
    """Return the peak memory of this process since its start; Linux only."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


# ------------------------------------------------------------------------------------------------------- tables


def _print_tables(result: dict[str, Any]) -> None:
    for row in result["cheap"]:
        print(f"\n{row['model']}; forward pass {row['forward_ms']} ms; rivalcam {row['rivalcam_to_gradcam']} x gradcam")
        for method, times in row["ratios"].items():
            print(f"  {method:22} {times:.2f} x a forward pass")
    for row in result["dear"]:
        print(f"\n{row['method']} on {row['model']}: {row['seconds']['camtool']} s")
        for library, times in row["times_faster"].items():
            print(f"  {library:16} {row['seconds'][library]:8.2f} s, {times:.2f} times as long as camtool")
    print(f"\npeak memory of scorecam on resnet18, MB: {result['memory']}")


if __name__ == "__main__":
    app()
