"""Photos a second of a folder run over those of the bare model: ``python -m benchmarks folder_run PHOTOS``.

The run reads JPEG files of 500 x 375 pixels, explains them and writes JPEG overlays. The bare model is eager PyTorch in
``inference_mode`` on batches of tensors in memory. Both take turns. ``--scale`` measures the time and the largest
memory of runs of 100 to 10,000 photos instead, each in a process of its own. ``--large`` measures photos of 4000 x 3000
pixels, whole and with ``--max-side``. Run nothing else meanwhile.
"""

from __future__ import annotations

from camtool.runs.process_settings import tune_process

# As `camtool run` does, before torch starts its threads. The bare model gains from it, too.
tune_process()

import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torchvision
import typer
from PIL import Image
from torch import nn
from torchvision.transforms._presets import ImageClassification

import camtool
from benchmarks.paired import DeviceOption, describe_machine, measure_in_turns
from camtool.engines.engine_runner import list_engines
from camtool.runs.executor import count_workers, run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.result_writer import Success
from camtool.runs.save_kinds import OutputSettings
from camtool.targets import Top

_MODELS = ("mobilenet_v2", "resnet50")
_BATCH = 8
_OUT = Path(__file__).with_suffix(".json")


def main(
    photos: Annotated[Path, typer.Argument(help="Folder with JPEG photos.")],
    turns: Annotated[int, typer.Option(help="Measurements of each.")] = 5,
    count: Annotated[int, typer.Option(help="Photos in a run.")] = 64,
    threads: Annotated[int, typer.Option(help="Threads for torch and the engines.")] = 2,
    device: DeviceOption = "cpu",
    only: Annotated[list[str], typer.Option(help="Model; may be repeated.")] = [],  # noqa: B006
    large: Annotated[bool, typer.Option("--large", help="Photos of 12 megapixels.")] = False,  # noqa: FBT002
    scale: Annotated[bool, typer.Option("--scale", help="Measure long runs.")] = False,  # noqa: FBT002
    one: Annotated[bool, typer.Option("--one", hidden=True)] = False,  # noqa: FBT002
) -> None:
    """Measure, print, and write the numbers to a JSON file; rows of other models are kept."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if one:
        _run_once(photos, count)
        return
    result = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    machine = "machine" if device == "cpu" else f"machine, {device}"
    result[machine] = describe_machine(threads, device) | {"workers": count_workers()}
    if large:
        result["large"] = _measure_large(photos, turns)
        print(json.dumps(result["large"], indent=1), flush=True)
    elif scale:
        result["scale"] = {each: _measure_process(photos, each, threads) for each in (100, 1000, 10_000)}
    else:
        result["turns"], result["photos"] = turns, count
        for name in only or _MODELS:
            row = _measure(name, photos, turns, count, device)
            result.setdefault("rows", {})[name if device == "cpu" else f"{name}, {device}"] = row
            print(name, json.dumps(row, indent=1), flush=True)
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _measure(name: str, photos: Path, turns: int, count: int, device: str) -> dict[str, float]:
    model = torchvision.models.get_model(name, weights=None).eval().to(device)
    batches = torch.randn(count, 3, 224, 224).to(device).split(_BATCH)

    def run_bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(batch)

    with _copy_photos(photos, count) as folder:
        engines = ["eager", *(list_engines("auto") if device == "cpu" else ["prepared"])]
        runs: dict[str, Any] = {engine: partial(_run_folder, model, folder, engine) for engine in engines}
        runs["one after the other"] = partial(_run_folder, model, folder, engines[1], workers=0)
        times = measure_in_turns({"bare": run_bare} | runs, turns, warm_up=1)
    row = {"bare, photos a second": round(count / statistics.median(times["bare"]), 1)}
    for each in runs:
        ratios = [bare / own for bare, own in zip(times["bare"], times[each], strict=True)]
        row[f"{each} / bare"] = round(statistics.median(ratios), 3)
    return row


def _measure_large(photos: Path, turns: int) -> dict[str, float]:
    """Return the seconds for a photo of a phone, whole and reduced, with the best engine."""
    model = torchvision.models.mobilenet_v2(weights=None).eval()
    engine = list_engines("auto")[0]
    with _copy_photos(photos, _BATCH, (4000, 3000)) as folder:
        runs = {
            "whole": partial(_run_folder, model, folder, engine),
            **{
                f"--max-side {side}": partial(_run_folder, model, folder, engine, max_side=side) for side in (1920, 640)
            },
        }
        times = measure_in_turns(runs, turns, warm_up=1)
    return {f"{name}, milliseconds a photo": round(1000 * statistics.median(times[name]) / _BATCH, 1) for name in runs}


def _run_folder(
    model: nn.Module, folder: Path, engine: str, workers: int | None = None, max_side: int | None = None
) -> None:
    explainer = _EXPLAINERS.get((model, engine))
    if explainer is None:
        loaded = camtool.Loaded(model, ImageClassification(crop_size=224))
        explainer = _EXPLAINERS[model, engine] = camtool.Explainer(loaded, engine=engine)  # type: ignore[call-overload]
    jobs = plan_run([str(folder)]).jobs
    with tempfile.TemporaryDirectory() as out:
        output = OutputSettings(Path(out), format="jpg", max_side=max_side)
        outcomes = list(run_jobs(explainer, jobs, [Top(1)], output, batch_size=_BATCH, workers=workers))
    assert all(isinstance(each, Success) for each in outcomes)


_EXPLAINERS: dict[tuple[nn.Module, str], Any] = {}
"""An explainer remembers its graphs, so it is made once."""


@contextmanager
def _copy_photos(photos: Path, count: int, size: tuple[int, int] = (500, 375)) -> Iterator[Path]:
    """Make a folder with so many photos of a size."""
    sources = sorted(photos.glob("*.jpg"))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            path = Path(folder) / f"{number:06}.jpg"
            if number < len(sources):
                Image.open(sources[number]).convert("RGB").resize(size).save(path, quality=90)
            else:
                shutil.copyfile(Path(folder) / f"{number % len(sources):06}.jpg", path)
        yield Path(folder)


def _measure_process(photos: Path, count: int, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks", "folder_run", str(photos), "--one"]
    command += ["--count", str(count), "--threads", str(threads)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"{count:6} photos: {found}", flush=True)
    return found


def _run_once(photos: Path, count: int) -> None:
    """Run mobilenet_v2 with the best engine once over some photos, and print time and memory as JSON."""
    model = torchvision.models.mobilenet_v2(weights=None).eval()
    engine = list_engines("auto")[0]
    with _copy_photos(photos, _BATCH) as folder:
        _run_folder(model, folder, engine)  # compiles
    with _copy_photos(photos, count) as folder:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        _run_folder(model, folder, engine)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"seconds": round(seconds, 2), "milliseconds a photo": round(1000 * seconds / count, 2)}
    print(json.dumps(found | {"peak MiB": round(peak / 1024), "peak MiB before": round(before / 1024)}))


if __name__ == "__main__":
    typer.run(main)
