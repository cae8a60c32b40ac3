"""Cost of a photo in a run on Ray, and bytes of a row: ``python -m benchmarks cluster PHOTOS``.

The photos are JPEG files of 500 x 375 pixels, each another part of a given photo. "In this process" is the batch class
in a loop on one core. On Ray, two workers of one core each are watched after their first shards and before their last
ones, so that neither their start nor the end counts. Processor time depends little on what else the machine does.
``--bytes`` measures the size of rows and pictures, ``--plan`` the planning of many files.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import psutil
import torch
import torchvision
import typer
from PIL import Image
from torchvision.transforms._presets import ImageClassification

import camtool
from benchmarks.paired import describe_machine
from camtool.runs.cluster import rows
from camtool.runs.cluster.cluster_plan import divide_inputs, list_inputs
from camtool.runs.cluster.cluster_run import ClusterRun
from camtool.runs.cluster.explain_batch import ExplainBatch, ShardWorker
from camtool.runs.cluster.remote_files import OutputFolder
from camtool.runs.save_kinds import OutputSettings

_MODELS = ("mobilenet_v2", "resnet50")
_ENGINES = ("eager", "onnxruntime")
_SHARD = 16
_OUT = Path(__file__).with_suffix(".json")


class _RandomModel:
    """A factory of a torchvision model with random weights: the time does not depend on them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> camtool.Loaded:
        torch.manual_seed(0)
        model = torchvision.models.get_model(self.name, weights=None).eval()
        return camtool.Loaded(model, ImageClassification(crop_size=224), name=self.name)


def main(
    photos: Annotated[Path, typer.Argument(help="Folder with JPEG photos.")],
    count: Annotated[int, typer.Option(help="Photos in a run.")] = 512,
    turns: Annotated[int, typer.Option(help="Measurements of each.")] = 3,
    only: Annotated[list[str], typer.Option(help="Model; may be repeated.")] = [],  # noqa: B006
    weights: Annotated[Path | None, typer.Option(help="Weights of mobilenet_v2, for --bytes.")] = None,
    sizes: Annotated[bool, typer.Option("--bytes", help="Measure the bytes of rows and pictures.")] = False,  # noqa: FBT002
    plan: Annotated[bool, typer.Option("--plan", help="Measure the planning of 100,000 files.")] = False,  # noqa: FBT002
) -> None:
    """Measure, print, and write the numbers to a JSON file; what is not measured is kept."""
    torch.set_num_threads(1)
    result = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    result["machine"] = describe_machine(1) | {"ray workers": 2}
    if sizes:
        result["bytes"] = _measure_bytes(photos, weights)
    elif plan:
        result["plan"] = _measure_plan()
    else:
        for name in only or _MODELS:
            for engine in _ENGINES:
                row = _measure(name, engine, photos, count, turns)
                result.setdefault("rows", {})[f"{name}, {engine}"] = row
                row["load of the machine meanwhile"] = round(os.getloadavg()[1], 1)
                print(name, engine, json.dumps(row, indent=1), flush=True)
                _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({key: result[key] for key in ("bytes", "plan") if key in result}, indent=1))


def _measure(name: str, engine: str, photos: Path, count: int, turns: int) -> dict[str, float]:
    settings = {"model": _RandomModel(name), "engine": engine, "threads": 1}
    explain = ExplainBatch(**settings)  # type: ignore[arg-type]
    alone, costs = [], []
    with _make_photos(photos, count) as folder, _start_ray():
        paths = sorted(map(str, folder.iterdir()))
        explain({"path": paths[:_SHARD]})  # compiles
        for _ in range(turns):
            started = time.process_time()
            explain({"path": paths[: 4 * _SHARD]})
            alone.append((time.process_time() - started) / (4 * _SHARD))
            costs.append(_measure_run(paths, settings))
    return {
        "in this process, processor ms a photo": round(1000 * median(alone), 2),
        "workers, processor ms a photo": round(1000 * median(each.workers for each in costs), 2),
        "workers / in this process": round(median(b.workers / a for a, b in zip(alone, costs, strict=True)), 3),
        "photos a core-second of the workers": round(1 / median(each.workers for each in costs), 1),
        "cores used by Ray and the driver": round(median(each.others / each.elapsed for each in costs), 3),
        "elapsed ms a photo, 2 workers": round(1000 * median(each.elapsed for each in costs), 2),
        "until the first shard, elapsed seconds": round(median(each.start for each in costs), 1),
    }


@dataclass(frozen=True)
class _Cost:
    """Seconds a photo: of the processors in the workers, in all other processes of Ray and here, and elapsed."""

    workers: float
    others: float
    elapsed: float
    start: float


def _measure_run(paths: list[str], settings: dict[str, Any]) -> _Cost:
    """Return what a photo costs between the first shards of the workers and their last ones."""
    moments: list[tuple[float, float, float]] = []
    used: dict[tuple[int, float], tuple[bool, float]] = {}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        run = ClusterRun(divide_inputs(list_inputs(paths), _SHARD), OutputFolder.find(out), settings)
        for outcome in run.start():
            assert outcome.failures == 0
            _read_cpu_times(used)
            workers = sum(seconds for is_worker, seconds in used.values() if is_worker)
            everything = sum(seconds for _, seconds in used.values())
            moments.append((workers, everything - workers, time.perf_counter() - started))
    first, last = moments[3], moments[-3]  # two workers have written two shards, and each has one more to do
    photos = _SHARD * (len(moments) - 6)
    workers, others, elapsed = ((after - before) / photos for before, after in zip(first, last, strict=True))
    return _Cost(workers, others, elapsed, moments[0][2])


def _read_cpu_times(used: dict[tuple[int, float], tuple[bool, float]]) -> None:
    """Note for this process and all its descendants whether it is a worker, and its processor seconds."""
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            times = process.cpu_times()
            key = process.pid, process.create_time()
            is_worker = used.get(key, (False, 0.0))[0] or "".join(process.cmdline()[:1]).startswith("ray::MapWorker")
            used[key] = is_worker, times.user + times.system


@contextmanager
def _start_ray() -> Iterator[None]:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _make_photos(photos: Path, count: int) -> Iterator[Path]:
    """Make a folder with so many photos of 500 x 375 pixels, all different: copies would make rows too small."""
    sources = [Image.open(path).convert("RGB").resize((600, 450)) for path in sorted(photos.glob("*.jpg"))]
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            left, top = chance.randrange(100), chance.randrange(75)
            part = sources[number % len(sources)].crop((left, top, left + 500, top + 375))
            part.save(Path(folder) / f"{number:06}.jpg", quality=90)
        yield Path(folder)


def _measure_bytes(photos: Path, weights: Path | None) -> dict[str, float]:
    """Return the bytes of a photo, of a row in Parquet, and of an overlay."""
    model: dict[str, Any] = {"model": "mobilenet_v2", "weights": None if weights is None else str(weights)}
    found: dict[str, float] = {}
    with _make_photos(photos, 1000) as folder, tempfile.TemporaryDirectory() as out:
        paths = sorted(map(str, folder.iterdir()))
        found["JPEG file of 500 x 375"] = round(sum(Path(path).stat().st_size for path in paths) / len(paths))
        columns = ExplainBatch(**model)({"path": paths})
        for count in (100, 1000):
            part = {name: values[:count] for name, values in columns.items()}
            size = len(rows.encode_parquet(part, {"photos": count}))
            found[f"gradcam, 7 x 7, row in a shard of {count}"] = round(size / count)
        columns = ExplainBatch(**model, method="smoothgrad", samples=2)({"path": paths[:100]})
        found["smoothgrad, 224 x 224, row in a shard of 100"] = round(len(rows.encode_parquet(columns, {})) / 100)
        for suffix in ("png", "jpg"):
            worker = ShardWorker(model, OutputFolder.find(f"{out}/{suffix}"), OutputSettings(Path(), format=suffix))
            worker.compute_shard(divide_inputs(list_inputs(paths[:24])).shards[0])
            sizes = [path.stat().st_size for path in Path(out).glob(f"{suffix}/overlays/*/*")]
            found[f"overlay, {suffix}"] = round(sum(sizes) / len(sizes))
    return found


def _measure_plan(count: int = 100_000) -> dict[str, float]:
    """Return the seconds and the memory that the planning of many local files takes."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            (Path(folder) / f"{number:08}.jpg").touch()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        plan = divide_inputs(list_inputs([folder]))
        seconds = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "files": count,
        "shards": len(plan.shards),
        "processor seconds": round(seconds, 2),
        "MiB of memory": round((peak - before) / 1024),
    }


if __name__ == "__main__":
    typer.run(main)
