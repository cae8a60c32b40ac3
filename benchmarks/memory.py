"""Peak memory of an explanation over that of a plain forward pass: ``python -m benchmarks memory``.

Each runs three times in a process of its own. The peak is the largest resident memory of the process, less what it had
before the first run, when torch, the model and the batch were loaded already: the worst comparison for an explanation.
The peak of the whole process is given as well. A detector is also compared with its forward and backward pass; the maps
of a vision-language model's words are compared with the generation of the answer. With ``--device cuda`` the numbers
are those of PyTorch's allocator on the GPU.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer

import camtool
from benchmarks import language_model
from benchmarks.paired import DeviceOption, describe_machine, make_forward
from camtool.engines.runtimes import RUNTIMES

_CLASSIFIER = ("forward", "overlays", "eager", "onnxruntime", "openvino")
_DETECTOR = ("forward", "forward and backward", "survey", "eager")
_WORDS = ("generate", "tokens, projector", "tokens", "tokens, tam", "tokens, raw-attention")
_MODELS = {
    "resnet50": _CLASSIFIER,
    "mobilenet_v2": _CLASSIFIER,
    "fasterrcnn_resnet50_fpn": _DETECTOR,
    "maskrcnn_resnet50_fpn": _DETECTOR,
    "llava": _WORDS,
}
"""Model to what is measured: first what the rest is divided by, last names of engines. Detectors and language models
get one photo."""
_OUT = Path(__file__).with_suffix(".json")


def main(
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 8,
    threads: Annotated[int, typer.Option(help="Threads for torch and the engines.")] = 2,
    device: DeviceOption = "cpu",
    only: Annotated[list[str], typer.Option(help="Model; may be repeated.")] = [],  # noqa: B006
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure, print, and write the numbers to a JSON file; rows of other models and devices are kept."""
    if one:
        _run_once(*one.split(",", 1), batch_size=batch_size, threads=threads, device=device)
        return
    result = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    for model in only or _MODELS:
        kinds = [kind for kind in _MODELS[model] if device == "cpu" or kind not in RUNTIMES]
        found = {kind: _measure_process(f"{model},{kind}", batch_size, threads, device) for kind in kinds}
        base = kinds[0]
        row = {kind: _describe(peaks, found[base], base) for kind, peaks in found.items()}
        if "forward and backward" in found:
            training = found["forward and backward"]
            for kind in kinds:
                row[kind] |= _compare(found[kind], training, "forward and backward")
        result.setdefault("rows", {})[model if device == "cpu" else f"{model}, {device}"] = row
        print(model, json.dumps(row, indent=1), flush=True)
    machine = "machine" if device == "cpu" else f"machine, {device}"
    result |= {machine: describe_machine(threads, device), "batch size": batch_size}
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _describe(peaks: tuple[float, float], others: tuple[float, float], name: str) -> dict[str, float]:
    own, whole = peaks
    return {"MiB": round(own), "process MiB": round(whole)} | _compare(peaks, others, name)


def _compare(peaks: tuple[float, float], others: tuple[float, float], name: str) -> dict[str, float]:
    return {f"/ {name}": round(peaks[0] / others[0], 3), f"process / {name}": round(peaks[1] / others[1], 3)}


def _measure_process(what: str, batch_size: int, threads: int, device: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks", "memory", "--one", what, "--device", device]
    command += ["--batch-size", str(batch_size), "--threads", str(threads)]
    # The first process may compile; its peak is not that of an explanation.
    for _ in range(2 if what.partition(",")[2] in RUNTIMES else 1):
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, peak = json.loads(text)
    return peak - before, peak


def _run_once(name: str, kind: str, *, batch_size: int, threads: int, device: str) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    run = _make_run(name, kind, batch_size, device)
    on_gpu = torch.device(device).type == "cuda"
    before = torch.cuda.memory_allocated() / 2**20 if on_gpu else _read_memory("VmRSS")
    for _ in range(3):
        run()
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else _read_peak()
    print(json.dumps([before, peak]))


def _make_run(name: str, kind: str, batch_size: int, device: str) -> Callable[[], object]:
    if _MODELS[name] is _WORDS:
        return _make_run_of_words(kind, device)
    is_detector = _MODELS[name] is _DETECTOR
    # A detector would download the weights of its backbone.
    options: dict[str, Any] = {"weights_backbone": None} if is_detector else {}
    model = torchvision.models.get_model(name, weights=None, **options).eval().to(device)
    batch = torch.rand(1 if is_detector else batch_size, 3, 224, 224).to(device)
    if kind == "forward":
        return make_forward(model, batch)
    if kind == "forward and backward":
        return lambda: sum(each.sum() for each in model(batch)[0].values() if each.is_floating_point()).backward()
    if kind == "survey":
        return partial(camtool.candidate_layers, model, batch)
    if kind == "overlays":
        return partial(camtool.Explainer(model).draw_overlays, batch)
    targets = [None if is_detector else 281] * len(batch)
    return partial(camtool.Explainer(model, engine=kind), batch, targets)  # type: ignore[call-overload]


def _make_run_of_words(kind: str, device: str) -> Callable[[], object]:
    model, processor = language_model.make_llava()
    model, photo = model.to(device), language_model.make_photo()
    if kind == "generate":
        return partial(language_model.generate, model, processor, photo)
    settings: dict[str, Any] = {
        "tokens": {},
        "tokens, projector": {"layer": "model.multi_modal_projector"},
        "tokens, tam": {"method": "tam"},
        "tokens, raw-attention": {"method": "raw-attention"},
    }[kind]
    return partial(
        camtool.tokens,
        model,
        processor,
        photo,
        language_model.PROMPT,
        max_new_tokens=language_model.WORDS,
        **settings,
    )


def _read_peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _read_memory(name: str) -> float:
    """Return a number of the kernel about this process, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


if __name__ == "__main__":
    typer.run(main)
