"""The page without a server in Chromium: ``python -m benchmarks page_browser``.

Three things that only a browser shows, all with MobileNetV2, on photos that come with Python packages, on which nothing
was tuned: the seconds that an explanation takes with one thread and with two, by turns in two tabs; frames of the live
camera a second, with the browser's false camera; and how far files that browsers may decode in another way than Pillow
(JPEG, WebP, transparent PNG, a color profile) differ in pixels, logits and maps.
"""

from __future__ import annotations

import base64
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image, ImageCms
from playwright.sync_api import sync_playwright

import camtool
from benchmarks.networks import write_between
from benchmarks.package_photos import read_package_photos
from benchmarks.page import load_network
from benchmarks.paired import describe_machine
from camtool.app.web_page.building import find_runtime
from camtool.inputs.image_files import read_image
from camtool.models import Loaded
from tests.app.web_page.conftest import open_browser
from tests.app.web_page.page_tab import ISOLATED, Opened, encode, serve

_OUT = Path(__file__).with_suffix(".json")
_PAGE = Path(__file__).parents[1] / "docs" / "web-page.md"
_LARGEST_SIDE = 640
_CAMERA_SECONDS = 12

Values: TypeAlias = NDArray[np.float64]

# The pixels that the page reads from a file, beside the page's own code.
_DECODE = """
async (text) => {
  const {pixels} = await decodePhoto(new Blob([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))]));
  let letters = '';
  for (let at = 0; at < pixels.length; at += 4) letters += String.fromCharCode(...pixels.subarray(at, at + 3));
  return btoa(letters);
}
"""


def main(
    weights: Annotated[Path | None, typer.Option(help="Weights of MobileNetV2; random by default.")] = None,
    runtime: Annotated[Path | None, typer.Option(help="Folder dist of onnxruntime-web; by default by npm.")] = None,
    turns: Annotated[int, typer.Option(help="Turns of the times.")] = 15,
    photos: Annotated[int, typer.Option(help="Photos of which files are decoded.")] = 40,
) -> None:
    """Measure, print, and write the numbers to a JSON file."""
    torch.set_num_threads(1)
    loaded = camtool.load("mobilenet_v2", weights) if weights else load_network("mobilenet_v2")
    images = {name: read_image(photo, max_side=_LARGEST_SIDE) for name, photo in read_package_photos()}
    result: dict[str, Any] = {"machine": describe_machine(2), "weights": weights.stem if weights else "random"}
    result["photos"] = min(photos, len(images))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = camtool.export_page(loaded, Path(folder, "page"), runtime=find_runtime(runtime))
        for browser in open_browser(playwright, "--disable-gpu"):
            with serve(page) as one, serve(page, ISOLATED) as two:
                tabs = {1: Opened(browser, one), 2: Opened(browser, two)}
                result |= _measure_threads(tabs, [encode(image) for image in images.values()], turns)
                result["decoders"] = _measure_decoders(tabs[1], loaded, dict([*images.items()][:photos]))
    print(json.dumps(result, indent=1))
    _OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_between(_PAGE, "page-browser", format_tables(result))


def _measure_threads(tabs: dict[int, Opened], contents: list[bytes], turns: int) -> dict[str, Any]:
    """Return seconds of an explanation, and frames a second, by the number of threads."""
    seconds: dict[int, list[float]] = {count: [] for count in tabs}
    for turn in range(turns):
        for count, tab in tabs.items():
            tab.choose((f"{turn}.png", contents[turn % len(contents)]))
            seconds[count].append(tab.tab.evaluate("answers.at(-1).seconds"))
    ratios = [two / one for one, two in zip(seconds[1], seconds[2], strict=True)]
    frames = {count: _measure_camera(tab) for count, tab in tabs.items()}
    return {
        "seconds": {str(count): round(statistics.median(values), 4) for count, values in seconds.items()},
        "fastest": {str(count): round(min(values), 4) for count, values in seconds.items()},
        "ratio": describe(ratios),
        "frames": {str(count): describe(values) for count, values in frames.items()},
    }


def _measure_camera(tab: Opened) -> list[float]:
    """Return the frames of each second."""
    tab.tab.click("#camera")
    values = []
    for _ in range(_CAMERA_SECONDS):
        tab.tab.wait_for_timeout(1100)
        text = tab.tab.locator("#status").inner_text()
        values += [float(text.split()[0])] if "frames" in text else []
    tab.tab.click("#camera")
    return values[1:]


def _swap_red_and_green(profile: bytes) -> bytes:
    """Return an ICC profile of sRGB whose red and green primaries are swapped: whoever uses it sees other colors."""
    table = {profile[at : at + 4]: at for at in range(132, 132 + 12 * int.from_bytes(profile[128:132], "big"), 12)}
    red, green = table[b"rXYZ"], table[b"gXYZ"]
    swapped = bytearray(profile)
    swapped[red + 4 : red + 12], swapped[green + 4 : green + 12] = (
        profile[green + 4 : green + 12],
        profile[red + 4 : red + 12],
    )
    return bytes(swapped)


def _make_transparent(image: Image.Image) -> bytes:
    """Return a PNG file that becomes transparent from top to bottom."""
    clear = image.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(image.size))
    return encode(clear)


def _measure_decoders(tab: Opened, loaded: Loaded, images: dict[str, Image.Image]) -> dict[str, Any]:
    """Return kind of file → differences of pixels, logits and maps between page and Python."""
    profile = _swap_red_and_green(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    kinds: dict[str, Callable[[Image.Image], bytes]] = {
        "PNG": encode,
        "JPEG, quality 90": lambda image: encode(image, "JPEG", quality=90),
        "JPEG, CMYK": lambda image: encode(image.convert("CMYK"), "JPEG", quality=90),
        "WebP, quality 80": lambda image: encode(image, "WEBP", quality=80),
        "JPEG with a color profile": lambda image: encode(image, "JPEG", quality=90, icc_profile=profile),
        "PNG, transparent": _make_transparent,
    }
    library = (files("camtool.app.web_page") / "assets" / "camtool.js").read_text(encoding="utf-8")
    tab.tab.evaluate(f"{{ {library.replace('export ', '')}; window.decodePhoto = decodePhoto; 0; }}")
    rows = {}
    for kind, write in kinds.items():
        found = np.array([_compare(tab, loaded, name, write(image)) for name, image in images.items()])
        rows[kind] = dict(zip(("pixels", "logits", "maps"), found.max(0).round(2).tolist(), strict=True))
        print(kind, rows[kind], flush=True)
    return rows


def _compare(tab: Opened, loaded: Loaded, name: str, content: bytes) -> tuple[float, float, float]:
    """Return the largest difference of pixels, and of logits and maps in millionths of the largest."""
    image = read_image(content)
    pixels = base64.b64decode(tab.tab.evaluate(_DECODE, base64.b64encode(content).decode()))
    apart = np.abs(np.frombuffer(pixels, np.uint8).astype(int) - np.asarray(image).ravel())
    tab.choose((name, content))
    logits, maps = tab.read_answer()
    assert loaded.transform is not None
    with torch.no_grad():
        expected = loaded.model(loaded.transform(image)[None])[0].numpy()
    raw = camtool.explain(loaded, image, int(logits.argmax())).raw
    return float(apart.max()), _to_millionths(logits, expected), _to_millionths(maps["gradcam"], raw)


def _to_millionths(values: Values, expected: NDArray[Any]) -> float:
    return float(1e6 * np.abs(values - expected).max() / np.abs(expected).max())


def describe(values: list[float]) -> dict[str, float]:
    """Return mean and standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": round(statistics.mean(values), 4), "error": round(error, 4), "count": len(values)}


def format_tables(result: dict[str, Any]) -> str:
    """Return the table of threads and camera, and a sentence about the decoders."""
    mark = "<!-- numbers: benchmarks/page_browser.json -->"
    lines = [mark, "| threads | seconds, median | seconds, fastest | frames a second |", "|---:|---:|---:|---:|"]
    for count, frames in result["frames"].items():
        shown = f"{frames['mean']} ± {frames['error']}"
        lines.append(f"| {count} | {result['seconds'][count]} | {result['fastest'][count]} | {shown} |")
    decoders = result["decoders"]
    pixels, logits, maps = (max(row[key] for row in decoders.values()) for key in ("pixels", "logits", "maps"))
    differences = f"{pixels:g} gray levels, {logits} millionths of the largest logit, {maps} of the map's peak"
    lines += ["", f"Largest differences between Chromium and Pillow, of files ({'; '.join(decoders)}): {differences}."]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
