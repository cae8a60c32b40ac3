"""camtool's methods beside grad-cam's and torchcam's: ``python benchmarks/against_peers.py``.

Each comparison is made in one process, in turns, on random weights (what a method costs does not depend on them), and
the figure is the median of the turns' ratios. The peak of the memory is that of a fresh process for each library, less
what the process had before. Takes a quarter of an hour; run nothing else meanwhile.
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
from paired import Run, forward, in_turns, machine, ratio
from torch import Tensor, nn

import camtool
from camtool.streaming import Twin

_CLASS = 281
_LAYER = "layer4"
_CHEAP = [name for name, each in camtool.METHODS.items() if each.cost == "a pass" and not each.at_input]

app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    turns: Annotated[int, typer.Option(help="How often the cheap methods are measured.")] = 20,
    dear_turns: Annotated[int, typer.Option(help="How often the perturbing methods are.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads torch may use.")] = 2,
) -> None:
    """Measure, print tables, and keep the numbers beside this script."""
    if context.invoked_subcommand:
        return
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    result: dict[str, Any] = {"machine": machine(threads)}
    result["cheap"] = [_cheap(name, turns) for name in ("resnet18", "resnet50")]
    result["dear"] = [
        _dear("ablationcam", "resnet18", dear_turns),
        _dear("ablationcam", "resnet50", 1),
        _dear("scorecam", "resnet18", dear_turns),
    ]
    result["memory"] = {library: _peak_of(library, threads) for library in ("camtool", "grad-cam", "torchcam")}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _print(result)


def _cheap(name: str, turns: int) -> dict[str, Any]:
    """Methods that cost a backward pass or less, against the plain forward."""
    model, batch = _model(name), torch.randn(1, 3, 224, 224)
    runs = {method: _camtool(model, batch, method) for method in _CHEAP}
    times = in_turns({"forward": forward(model, batch)} | runs, turns)
    return {
        "model": name,
        "forward_ms": round(1000 * statistics.median(times["forward"]), 1),
        "ratios": {method: ratio(times, method, "forward") for method in runs},
        "rivalcam_to_gradcam": ratio(times, "rivalcam", "gradcam"),
    }


def _dear(method: str, name: str, turns: int) -> dict[str, Any]:
    """A method that perturbs, against the peers that have it."""
    model, batch = _model(name), torch.randn(1, 3, 224, 224)
    runs = {"camtool": _camtool(model, batch, method), "grad-cam": _gradcam(model, batch, method)}
    if method == "scorecam":
        runs |= {"torchcam": _torchcam(model, batch), "the passes alone": _passes_alone(model, batch)}
    times = in_turns(runs, turns, warm_up=1 if turns > 1 else 0)
    return {
        "method": method,
        "model": name,
        "seconds": {library: round(statistics.median(each), 3) for library, each in times.items()},
        "times_faster": {library: ratio(times, library, "camtool") for library in runs if library != "camtool"},
    }


def _passes_alone(model: nn.Module, batch: Tensor) -> Run:
    """What no Score-CAM can be faster than: as many pictures as the layer has channels through the folded network."""
    twin = Twin(model, batch)
    pictures = torch.randn(512, *batch.shape[1:]).contiguous(memory_format=torch.channels_last)

    def run() -> None:
        for part in pictures.split(twin.most_at_once):
            twin(part)

    return run


def _model(name: str) -> nn.Module:
    return torchvision.models.get_model(name, weights=None).eval()


def _camtool(model: nn.Module, batch: Tensor, method: str) -> Run:
    return lambda: camtool.explain(model, batch, _CLASS, method=method, layer=_LAYER)


def _gradcam(model: nn.Module, batch: Tensor, method: str) -> Run:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    kind = {"ablationcam": pytorch_grad_cam.AblationCAM, "scorecam": pytorch_grad_cam.ScoreCAM}[method]

    def run() -> None:
        with kind(model=model, target_layers=[model.get_submodule(_LAYER)]) as extractor:
            extractor(input_tensor=batch, targets=[ClassifierOutputTarget(_CLASS)])

    return run


def _torchcam(model: nn.Module, batch: Tensor) -> Run:
    from torchcam.methods import ScoreCAM

    def run() -> None:
        with torch.no_grad(), ScoreCAM(model, _LAYER) as extractor:
            extractor(_CLASS, model(batch))

    return run


# ------------------------------------------------------------------------------------------------------- memory


@app.command()
def peak(library: str, threads: int = 2) -> None:
    """Print by how many megabytes Score-CAM on resnet18 raises the memory of this process at its peak."""
    torch.set_num_threads(threads)
    model, batch = _model("resnet18"), torch.randn(1, 3, 224, 224)
    kinds = {"camtool": _camtool(model, batch, "scorecam"), "torchcam": _torchcam(model, batch)}
    run = kinds[library] if library in kinds else _gradcam(model, batch, "scorecam")
    camtool.explain(model, batch, _CLASS, layer=_LAYER)  # what is loaded and allocated for any forward
    before = _megabytes()
    run()
    print(_megabytes() - before)


def _peak_of(library: str, threads: int) -> int:
    """The median of three processes: what memory the allocator gives back, and when, is not always the same."""
    return int(statistics.median(_peak_once(library, threads) for _ in range(3)))


def _peak_once(library: str, threads: int) -> int:
    command = [sys.executable, __file__, "peak", library, "--threads", str(threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _megabytes() -> int:
    """The most memory that this process has had at once; Linux counts it from the program's start."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


# ------------------------------------------------------------------------------------------------------- tables


def _print(result: dict[str, Any]) -> None:
    for row in result["cheap"]:
        print(f"\n{row['model']}, forward {row['forward_ms']} ms; rivalcam {row['rivalcam_to_gradcam']} x gradcam")
        for method, times in row["ratios"].items():
            print(f"  {method:22} {times:.2f} x a forward")
    for row in result["dear"]:
        print(f"\n{row['method']} on {row['model']}: {row['seconds']['camtool']} s")
        for library, times in row["times_faster"].items():
            print(f"  {library:16} {row['seconds'][library]:8.2f} s, {times:.2f} times as long as camtool")
    print(f"\npeak memory of scorecam on resnet18, MB: {result['memory']}")


if __name__ == "__main__":
    app()
