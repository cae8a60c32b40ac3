"""The cost of Grad-CAM by each engine over an eager forward pass: ``python -m benchmarks engines``.

Each engine explains a prepared batch, in turns with the plain forward pass of PyTorch in ``inference_mode``. Rows of
"maps" are Grad-CAM alone, by ``Explainer.compute_maps``; the others make explanations, with the photo, probabilities
and warnings of each image. The numbers are medians of the turns' ratios. Run nothing else meanwhile.

* The limit for single images: an explanation takes at least the engine's own forward pass, which stands beside it, and
  the milliseconds outside of the engine, e.g. to check that no weight has changed.
* With ``OMP_WAIT_POLICY=passive``, as ``camtool`` sets it for folders, the rows are named so. With
  ``MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000`` they are named "memory kept": the C library
  then gives large blocks back to PyTorch instead of the system, which makes its forward pass of batches faster.
* With ``--device cuda`` the engines are ``prepared`` and ``torch.compile``, as the others run on the CPU. The forward
  pass of ``torch.compile(model)`` and overlays that stay on the device are measured, too.
* ``--zoo`` exports the zoo's classifiers of torchvision and timm instead, and compares the maps of ONNX Runtime and
  OpenVINO with the model's.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool
from benchmarks.paired import DeviceOption, compute_ratio, describe_machine, make_forward, measure_in_turns, time_run
from camtool.engines import compiled
from camtool.engines.compiled import CompiledModel
from camtool.engines.compiled import _run as run_session
from camtool.engines.engine_runner import list_engines
from camtool.engines.prepared import PreparedModel, copy_for_capture
from camtool.engines.program import FORWARD, capture_program, write_program
from camtool.engines.runtimes import RUNTIMES, TorchGraph, open_session
from camtool.errors import CamtoolError
from tests.zoo.catalogue import SMALLEST, TORCHVISION, Entry, picture

_MODELS = ("mobilenet_v2", "resnet18", "resnet50")
_FIVE = ["gradcam", "gradcam++", "xgradcam", "layercam", "hirescam"]
_OUT = Path(__file__).with_suffix(".json")


def main(
    turns: Annotated[int, typer.Option(help="Measurements of each engine.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads for torch and the engines.")] = 2,
    device: DeviceOption = "cpu",
    only: Annotated[list[str], typer.Option(help="Model; may be repeated.")] = [],  # noqa: B006
    zoo: Annotated[bool, typer.Option("--zoo", help="Export classifiers instead.")] = False,  # noqa: FBT002
    first: Annotated[int, typer.Option(help="First classifier of the zoo.")] = 0,
    count: Annotated[int, typer.Option(help="Number of classifiers of the zoo.")] = 1000,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file; rows of other models are kept."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    result = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    machine = "machine" if device == "cpu" else f"machine, {device}"
    result |= {machine: describe_machine(threads, device), "turns": turns}
    if zoo:
        found = result.setdefault("zoo", {})
        for name, entry in [*_list_classifiers().items()][first : first + count]:
            found[name] = _export(entry)
            print(f"{name:50} {found[name]}", flush=True)
            _save(result)
        return
    # Whether threads of torch that wait keep their core busy, which the engine's threads then lack.
    policy = ", passive" if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive" else ""
    # Whether the C library keeps large blocks of memory, which PyTorch would otherwise get anew for each batch.
    policy += ", memory kept" if "MALLOC_MMAP_THRESHOLD_" in os.environ else ""
    where = "" if device == "cpu" else f", {device}"
    for name in only or _MODELS:
        for batch_size in (1, 8) if device == "cpu" else (1, 8, 64):
            row = _measure(name, batch_size, turns, device)
            result.setdefault("rows", {})[f"{name}, batch {batch_size}{policy}{where}"] = row
            print(name, batch_size, json.dumps(row, indent=1), flush=True)
            _save(result)


def _save(result: dict[str, Any]) -> None:
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _measure(name: str, batch_size: int, turns: int, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).eval().to(device)
    batch = torch.randn(batch_size, 3, 224, 224).to(device)
    # The map of a class that the model does not see may be empty, and empty maps confirm no engine.
    classes = [int(model(batch)[0].detach().argmax())] * batch_size
    engines = ["eager", *(list_engines("auto") if device == "cpu" else ["prepared"]), "torch.compile"]
    explainers = {engine: camtool.Explainer(model, engine=engine) for engine in engines}
    runs: dict[str, Callable[[], object]] = {"forward": make_forward(model, batch)}
    runs |= {engine: partial(explainer, batch, classes) for engine, explainer in explainers.items()}
    runs |= {
        f"{engine}, maps": partial(explainer.compute_maps, batch, classes) for engine, explainer in explainers.items()
    }
    runs |= {f"{engine}, forward": make_engine_forward(engine, model, batch) for engine in engines[1:]}
    if device != "cpu":
        runs["torch.compile of the model, forward"] = make_forward(torch.compile(model), batch)  # type: ignore[arg-type]
        runs["overlays on the device"] = partial(explainers["eager"].draw_overlays, batch, classes)
    best = engines[1]
    runs["five methods"] = partial(camtool.Explainer(model, _FIVE, engine=best), batch, classes)
    runs["five classes"] = partial(explainers[best], batch, [[1, 2, 3, 4, 5]] * batch_size)
    times = measure_in_turns(runs, turns, warm_up=3, again=True)
    row: dict[str, Any] = {"forward_ms": round(1000 * statistics.median(times["forward"]), 2)}
    row |= {f"{engine} / forward": compute_ratio(times, engine, "forward") for engine in engines}
    others = [key for key in runs if key.endswith((", forward", ", maps", " on the device"))]
    row |= {f"{key} / forward": compute_ratio(times, key, "forward") for key in others}
    for each in engines[1:]:
        for key in (each, f"{each}, maps"):
            row[f"{key} / its forward"] = compute_ratio(times, key, f"{each}, forward")
    row |= {f"{key} / one, {best}": compute_ratio(times, key, best) for key in ("five methods", "five classes")}
    inside = [key for each in engines if each in RUNTIMES for key in (each, f"{each}, maps")]
    return row | {f"{key}, ms outside of it": _measure_outside(runs[key], turns) for key in inside}


def _measure_outside(run: Callable[[], object], turns: int) -> float:
    """Return the milliseconds of an explanation that are not spent in the engine: the work of camtool and PyTorch."""
    inside: list[float] = []

    def run_timed(session: Any, tensors: Any) -> Any:
        started = time.perf_counter()
        found = run_session(session, tensors)
        inside.append(time.perf_counter() - started)
        return found

    outside = []
    with mock.patch.object(compiled, "_run", run_timed):
        for _ in range(3 * turns):
            inside.clear()
            outside.append(time_run(run) - sum(inside))
    return round(1000 * statistics.median(outside), 2)


def make_engine_forward(engine: str, model: nn.Module, batch: Tensor) -> Callable[[], object]:
    """Return the plain forward pass of an engine, without any layer's output."""
    if engine == "prepared":
        prepared = PreparedModel(model, batch, [])
        return lambda: prepared.run([], batch, grad=False)
    program = capture_program(copy_for_capture(model, batch, []), batch, [])
    if engine == "torch.compile":
        graph = TorchGraph(program.graphs[FORWARD])
        return lambda: graph.run([batch])
    folder = Path(tempfile.mkdtemp())
    write_program(program, folder)
    model_of_engine = CompiledModel.open(engine, folder, torch.empty(0), torch.get_num_threads())
    return lambda: model_of_engine.run(batch, grad=False)


def _list_classifiers() -> dict[str, Entry]:
    """Return the classifiers of the project's own zoo: of torchvision, and the smallest of each family of timm."""
    return {f"{entry.library}:{entry}": entry for entry in [*TORCHVISION, *SMALLEST]}


def _export(entry: Entry) -> dict[str, Any]:
    """Export one classifier, and return how far its maps in other runtimes are from the model's."""
    started = time.perf_counter()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        model = entry.build()
        _settle_norms(model, picture(0, entry.size, entry.size, count=4))
        try:
            path = camtool.export(model, Path(folder) / "model.onnx", size=(entry.size, entry.size))
        except CamtoolError as error:
            return {"refused": str(error).replace(f"{folder}/", "")[:200]}
        found = {"seconds": round(time.perf_counter() - started, 1)}
        images = picture(1, entry.size, entry.size, count=2)
        expected = camtool.explain(model, images)
        for runtime in RUNTIMES:
            _, maps = open_session(runtime, path).run([images.numpy(), np.array([-1, -1])])
            errors = [
                np.abs(ours - theirs.raw).max() / max(np.abs(theirs.raw).max(), 1e-30)
                for ours, theirs in zip(maps, expected, strict=True)
            ]
            found[runtime] = float(f"{max(errors):.2g}")
        return found


def _settle_norms(model: nn.Module, images: Tensor) -> None:
    """Let batch norms normalize: with random weights, activations of deep models grow until rounding decides all."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


if __name__ == "__main__":
    typer.run(main)
