"""Time and memory of an audit of real size: ``python -m benchmarks audit_speed MOBILENET_WEIGHTS``.

``camtool audit`` runs in a process of its own on 2,000 images of 10 classes with MobileNetV2, without an engine and in
each runtime that is installed. An image is a part of a photo that comes with a Python package, at a random place on a
part of another such photo; the class is what the model answers for the first one. The images of the first class have a
white square at a corner. So images are no near-duplicates, and there are candidates of all kinds. Run nothing else
meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from camtool.engines.runtimes import RUNTIMES, is_installed

_CLASSES = {
    "skimage/camera.png": 872,
    "skimage/chelsea.png": 282,
    "skimage/coffee.png": 967,
    "skimage/motorcycle_right.png": 665,
    "skimage/rocket.jpg": 657,
    "sklearn/china.jpg": 698,
    "sklearn/flower.jpg": 599,
    "ultralytics/bus.jpg": 654,
    "gradio/cheetah.jpg": 293,
    "gradio/lion.jpg": 291,
}
"""The photo of each class → the index of what MobileNetV2 answers for it."""

_SIDE = 256
_OUT = Path(__file__).with_suffix(".json")
_SECONDS_BETWEEN_LOOKS = 0.2


def main(
    weights: Annotated[Path, typer.Argument(help="Weights of MobileNetV2 on ImageNet.", exists=True)],
    images: Annotated[int, typer.Option(help="Images of all classes together.")] = 2000,
    passes: Annotated[int, typer.Option(help="--passes of the audit.")] = 20_000,
    threads: Annotated[int, typer.Option(help="Threads for torch and the engines.")] = 2,
    engine: Annotated[list[str] | None, typer.Option(help="Engine; may be repeated. By default all installed.")] = None,
) -> None:
    """Measure, print, and write the numbers to a JSON file; rows of other engines are kept."""
    result = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    result["machine"] = describe_machine(threads)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder, "images"), images)
        for name in engine or ["eager", *filter(is_installed, RUNTIMES)]:
            row = _measure(Path(folder), weights, passes, threads, name)
            result.setdefault("rows", {})[f"{name}, {images} images, {passes} passes"] = row
            print(name, json.dumps(row), flush=True)
            _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def write_images(folder: Path, count: int) -> None:
    """Write so many JPEG files of 256 pixels into folders named by the index of the class."""
    photos, random = dict(read_package_photos()), np.random.default_rng(0)
    others = [name for name in photos if name not in _CLASSES]
    for number in range(count):
        name = list(_CLASSES)[number % len(_CLASSES)]
        ground = _cut(photos[others[random.integers(len(others))]], random, 0.2, 0.6).resize((_SIDE, _SIDE))
        part = _cut(photos[name], random, 0.7, 1.0)
        side = int(random.integers(140, 220))
        place = tuple(random.integers(0, _SIDE - side, 2).tolist())
        ground.paste(part.resize((side, side)), place)
        if number % len(_CLASSES) == 0:
            ground.paste((255, 255, 255), (200, 200, 230, 230))
        path = folder / str(_CLASSES[name]) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        ground.save(path, quality=90)


def _cut(photo: Image.Image, random: np.random.Generator, least: float, most: float) -> Image.Image:
    """Return a square part of a photo, mirrored in half of the cases."""
    side = round(min(photo.size) * random.uniform(least, most))
    left, top = (int(random.integers(0, length - side + 1)) for length in photo.size)
    part = photo.crop((left, top, left + side, top + side))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part


def _measure(folder: Path, weights: Path, passes: int, threads: int, engine: str) -> dict[str, float]:
    """Return minutes, processor minutes, passes, and the largest memory in each half of the time, in MiB."""
    out = folder / engine
    command = [sys.executable, "-m", "camtool", "audit", str(folder / "images"), "--model", "mobilenet_v2"]
    command += ["--weights", str(weights), "--truth", "imagefolder", "--passes", str(passes), "--out", str(out)]
    command += ["--engine", engine, "--device", "cpu", "--quiet"]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    sizes = list[tuple[float, int]]()
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        size = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
        sizes.append((time.perf_counter() - started, size // 1024))
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"The audit with {engine} ended with the exit code {process.returncode}.")
    audit = json.loads((out / "audit.json").read_text(encoding="utf-8"))
    return {
        "minutes": round(seconds / 60, 2),
        "passes": audit["passes"],
        "tested": len(audit["findings"]) + len(audit["rejected"]) + len(audit["decoys"]),
        "findings": len(audit["findings"]),
        "MiB, first half": max(size for when, size in sizes if when < seconds / 2),
        "MiB, second half": max(size for when, size in sizes if when >= seconds / 2),
    }


if __name__ == "__main__":
    typer.run(main)
