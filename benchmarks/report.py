"""Seconds to write and open the report of many explanations: ``python -m benchmarks report``.

The overlays are generated: photos of 500 x 375 pixels, which are their own thumbnails, and with ``--large`` photos of
4000 x 3000, which get thumbnails. The page is open when all pictures in view are decoded. Needs ``camtool[dev]`` and
Chromium. Run nothing else meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image

from benchmarks.paired import describe_machine
from camtool.rendering import blend
from camtool.rendering.image_writing import write_image
from camtool.runs.report import write_report

_OUT = Path(__file__).with_suffix(".json")
_SMALL, _LARGE = (500, 375), (4000, 3000)
_DISTINCT = 10  # overlays that are drawn; the others are copies
_LABELS = 1000

# Resolves when every picture in the window is decoded.
_WAIT_FOR_PICTURES = """async () => {
    const inView = [...document.querySelectorAll('.frame img')].filter((image) => {
        const box = image.getBoundingClientRect();
        return box.top < innerHeight && box.bottom > 0;
    });
    if (!inView.length) throw new Error('no picture in view');
    await Promise.all(inView.map((image) => image.decode()));
    return performance.now();
}"""

# Scrolls through 40 screens in equal steps and returns the milliseconds of each frame.
_SCROLL = """async () => {
    const times = [];
    for (let screen = 1; screen <= 40; screen++) {
        const started = performance.now();
        scrollTo(0, screen * innerHeight);
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        times.push(performance.now() - started);
    }
    return times;
}"""

_SEARCH = """() => {
    const started = performance.now();
    const field = document.getElementById('search');
    field.value = 'class 77';
    field.dispatchEvent(new Event('input'));
    const nextFrame = (then) => requestAnimationFrame(() => requestAnimationFrame(then));
    return new Promise((done) => nextFrame(() => done(performance.now() - started)));
}"""


def main(
    count: Annotated[int, typer.Option(help="Explanations.")] = 5000,
    turns: Annotated[int, typer.Option(help="Times that the page is opened.")] = 5,
    large: Annotated[bool, typer.Option("--large", help="Photos of 12 megapixels.")] = False,  # noqa: FBT002
) -> None:
    """Measure, print, and write the numbers to a JSON file; those of the other size are kept."""
    size = _LARGE if large else _SMALL
    result = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        out = _write_run(Path(folder), count, size)
        row = _measure_writing(out, count) | _measure_opening(out / "index.html", turns)
    result["machine"] = describe_machine(1)
    # Processes that wanted a core; above the number of cores, the times are too long.
    row["load average"] = round(os.getloadavg()[0], 1)
    result[f"{count} explanations of {size[0]} x {size[1]}"] = row
    print(json.dumps(row, indent=1))
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _write_run(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Write the results of a run, and its photos beside them; return its folder."""
    out, photos = folder / "out", folder / "photos"
    out.mkdir()
    photos.mkdir()
    lines = []
    for number in range(count):
        name, first = f"{number:05}", number % _DISTINCT
        if number < _DISTINCT:
            photo, overlay = _draw(number, size)
            write_image(photos / f"{name}.jpg", photo)
            write_image(out / f"{name}.gradcam.jpg", overlay)
        else:
            shutil.copy(photos / f"{first:05}.jpg", photos / f"{name}.jpg")
            shutil.copy(out / f"{first:05}.gradcam.jpg", out / f"{name}.gradcam.jpg")
        lines.append(json.dumps(_build_line(number, photos / f"{name}.jpg")))
    (out / "explanations.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out


def _draw(seed: int, size: tuple[int, int]) -> tuple[Any, Any]:
    """Return a photo of colored noise, with about the detail of a photo, and its overlay."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noise = rng.integers(-20, 20, (size[1], size[0], 3))
    photo = (np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)
    heat = Image.fromarray(rng.random((7, 7), np.float32)).resize(size, Image.Resampling.BICUBIC)
    return photo, blend(photo, np.asarray(heat).clip(0, 1))


def _build_line(number: int, photo: Path) -> dict[str, Any]:
    warnings = ["The model ranks this class 17th."] if number % 20 == 0 else []
    return {
        "image": str(photo),
        "method": "gradcam",
        "layer": "layer4",
        "label": f"class {number % _LABELS}",
        "index": number % _LABELS,
        "score": number % 97 / 7,
        "probability": number % 101 / 100,
        "warnings": warnings,
        "box": None,
        "files": {"overlay": f"{number:05}.gradcam.jpg"},
        "warning_codes": ["low-rank" for _ in warnings],
        "predicted_label": f"class {number % _LABELS}",
        "true_label": f"class {number % (_LABELS - number % 3)}",
        "correct": number % (_LABELS - number % 3) == number % _LABELS,
    }


def _measure_writing(out: Path, count: int) -> dict[str, Any]:
    times = []
    for _ in range(2):  # the second finds the thumbnails of the first
        started = time.perf_counter()
        written = write_report(out)
        times.append(time.perf_counter() - started)
    return {
        "writing, seconds": round(times[0], 2),
        "writing, milliseconds each": round(times[0] / count * 1000, 2),
        "writing again, seconds": round(times[1], 2),
        "page, MB": round(written.path.stat().st_size / 1e6, 2),
    }


def _measure_opening(page: Path, turns: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    measured = []
    with sync_playwright() as playwright:
        for _ in range(turns):  # each in a new process, without a cache
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            tab = browser.new_page(viewport={"width": 1440, "height": 900})
            tab.goto(page.as_uri())
            opened = tab.evaluate(_WAIT_FOR_PICTURES)
            frames = tab.evaluate(_SCROLL)
            search = tab.evaluate(_SEARCH)
            measured.append((opened, statistics.median(frames), max(frames), search))
            version = browser.version
            browser.close()
    opened, frame, worst, search = (statistics.median(column) for column in zip(*measured, strict=True))
    return {
        "open with pictures, seconds": round(opened / 1000, 3),
        "slowest opening, seconds": round(max(each[0] for each in measured) / 1000, 3),
        "scrolling a screen, milliseconds": round(frame, 1),
        "slowest screen, milliseconds": round(worst, 1),
        "search, milliseconds": round(search, 1),
        "chromium": version,
    }


if __name__ == "__main__":
    typer.run(main)
