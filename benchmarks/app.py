"""Seconds from a click on the page to what it shows: ``python -m benchmarks app --weights FILE``.

Chromium without a window opens the page of ``camtool app`` and clicks: on a class that was not explained before, and on
opacity and colors. Times are from the click to the new picture on the screen. Run nothing else meanwhile.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.paired import describe_machine

_OUT = Path(__file__).with_suffix(".json")

_BARS = {"first map": 1.5, "first map, compiled": 0.5, "opacity": 0.15, "colors": 0.15}
"""Seconds that are allowed on two cores."""

_TIME = """async ([act, value]) => {
    const before = document.querySelector('#map').src;
    const started = performance.now();
    if (act === 'class') document.querySelectorAll('.bar')[value].click();
    else {
        const control = document.querySelector('#alpha input[type=range]');
        control.value = value;
        control.dispatchEvent(new Event('input', {bubbles: true}));
    }
    while (document.querySelector('#map').src === before) await new Promise(requestAnimationFrame);
    await document.querySelector('#map').decode();
    await new Promise(requestAnimationFrame);
    return (performance.now() - started) / 1000;
}"""

_TIME_COLORS = """async (name) => {
    const before = document.querySelector('#map').src;
    const option = [...document.querySelectorAll('[role=option]')].find((each) => each.textContent.includes(name));
    const started = performance.now();
    option.dispatchEvent(new MouseEvent('mousedown', {bubbles: true}));
    while (document.querySelector('#map').src === before) await new Promise(requestAnimationFrame);
    await document.querySelector('#map').decode();
    await new Promise(requestAnimationFrame);
    return (performance.now() - started) / 1000;
}"""


def main(
    weights: Annotated[
        Path | None, typer.Option(help="File of weights of the model; by default they are downloaded.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model.")] = "mobilenet_v2",
    photo: Annotated[Path | None, typer.Option(help="A photo; by default the scenes of the demo.")] = None,
    turns: Annotated[int, typer.Option(min=1, max=4, help="Images on which each time is measured.")] = 4,
    threads: Annotated[int, typer.Option(help="Threads for torch and the engines.")] = 2,
) -> None:
    """Measure, print, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    result: dict[str, Any] = {"machine": describe_machine(threads), "model": model, "turns": turns}
    rows: dict[str, Any] = {}
    for engine, mark in (("eager", ""), ("auto", ", compiled")):
        times = _measure(model, weights, photo, engine, turns)
        rows[f"first map{mark}"] = times["class"]
        if not mark:
            rows |= {name: times[name] for name in ("opacity", "colors")}
    for name, seconds in rows.items():
        result[name] = {"median": statistics.median(seconds), "largest": max(seconds), "bar": _BARS[name]}
        print(f"{name:<20} {statistics.median(seconds):.3f} s, at most {max(seconds):.3f} s; bar {_BARS[name]} s")
    _OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _measure(model: str, weights: Path | None, photo: Path | None, engine: str, turns: int) -> dict[str, list[float]]:
    from playwright.sync_api import sync_playwright

    from camtool.app.server import AppServer, ServerSettings

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    files = {} if weights is None else {model: str(weights)}
    settings = ServerSettings(models=[model], weights=files, port=0, engine=engine)
    with AppServer(settings) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(server.url)
        page.wait_for_selector("#map", timeout=120_000)
        if photo is not None:
            _wait_for_change(page, lambda: page.locator("#image-box input[type=file]").set_input_files(photo))
        found = _time_all(page, turns, uses_scenes=photo is None)
        browser.close()
    return found


def _time_all(page: Any, turns: int, *, uses_scenes: bool) -> dict[str, list[float]]:
    """Return the seconds of each kind of click."""
    times: dict[str, list[float]] = {"class": [], "opacity": [], "colors": []}
    for turn in range(turns):
        if uses_scenes and turn:
            scene = page.locator(".thumbnails button").nth(turn)
            _wait_for_change(page, scene.click)
        # The map of each class is computed at its first click, so each turn takes another.
        times["class"].append(page.evaluate(_TIME, ["class", 1 + turn]))
        for alpha in (0.1, 0.9):
            times["opacity"].append(page.evaluate(_TIME, ["opacity", alpha]))
        for name in ("turbo", "magma"):
            page.locator("#colormap input").first.click()
            page.get_by_role("option").first.wait_for()
            times["colors"].append(page.evaluate(_TIME_COLORS, name))
            page.wait_for_timeout(300)
    return times


def _wait_for_change(page: Any, act: Callable[[], object]) -> None:
    before = page.locator("#map").get_attribute("src")
    act()
    page.wait_for_function("(before) => document.querySelector('#map').src !== before", arg=before, timeout=120_000)


if __name__ == "__main__":
    typer.run(main)
