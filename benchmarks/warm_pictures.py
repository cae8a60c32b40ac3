"""Heat on pictures of its own colors: ``python -m benchmarks warm_pictures --photos FOLDER --weights NAME=FILE``.

The overlay of the default color map turns its photo gray if heat would look like a part of it: orange on orange fur.
For each picture, with the Grad-CAM map of its top class: the median difference (CIEDE2000) in the hottest tenth of the
map between overlay and photo, in color and on gray, and which of them :func:`camtool.rendering.blend` draws. The
pictures are photos of the folder and of scikit-image, and drawn ones. ``pairs`` are small copies of all of them, as
they are and with their colors moved halfway to red, orange, yellow or green, each with the maps of all pictures.

``--table`` only writes the file by which ``blend`` and the page decide. Its limit is 16, not 12, as the file knows only
16 levels of each channel: with 14, less than 12 was left on 11 of 2,500 pictures of a single color, with 16 on 2. With
14 the robin, on whose breast the heat cannot be told from the feathers, would stay in color.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import cv2
import numpy as np
import skimage
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from skimage.color import deltaE_ciede2000, rgb2lab

import camtool
from benchmarks.networks import PhotosOption, WeightsOption
from benchmarks.paired import compute_ratio, describe_machine, measure_in_turns
from benchmarks.photos import read_labels
from camtool.demo.scenes import draw_scene
from camtool.rendering.colormaps import DEFAULT_COLORMAP, compute_opacity, get_default_alpha, get_palette
from camtool.rendering.overlay import blend, needs_gray

RESULTS = Path(__file__).with_suffix(".json")
TABLE = Path(camtool.__file__).parent / "rendering" / "faint_heat.txt"

LEAST = 12
"""Median difference that heat must have from the photo below it, or the photo is gray."""

_LIMIT = 16
"""Difference at the middle of a cell of the table up to which heat counts as faint."""

_INCLUDED = ("astronaut", "chelsea", "coffee", "rocket", "retina", "ihc", "color")
"""Photos of scikit-image that need no download, by the beginnings of their names."""

_TINTS = ((230, 40, 30), (240, 120, 20), (220, 170, 20), (60, 130, 30))
"""Red, orange, yellow and green."""

_SHARE = 0.5
"""How far all colors of a picture are moved toward a tint."""

_SIDE, _SMALL = 360, 64
"""Width and height of drawn pictures, and of those in pairs."""

Pixels: TypeAlias = NDArray[np.uint8]
Map: TypeAlias = NDArray[np.float32]
Picture: TypeAlias = tuple[str, Pixels, Map]


def main(
    weights: WeightsOption = [],  # noqa: B006
    photos: PhotosOption = None,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
    sheet: Annotated[Path | None, typer.Option(help="Folder for each picture: photo, in color, by the rule.")] = None,
    *,
    table: Annotated[bool, typer.Option("--table", help="Only write the file by which the rule decides.")] = False,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file."""
    if table:
        TABLE.write_bytes(b64encode(compute_faint_heat()) + b"\n")
        return
    torch.set_num_threads(threads)
    name, _, file = weights[0].partition("=")
    explainer = camtool.Explainer(camtool.load(name, file), "gradcam")
    pictures = [(title, pixels, explainer(pixels).heatmap) for title, pixels in _iterate_pictures(photos)]
    rows = [{"picture": title, **_measure(pixels, heat)} for title, pixels, heat in pictures]
    for row in rows:
        print("  ".join(f"{value:24}" if key == "picture" else f"{key} {value}" for key, value in row.items()))
    if sheet is not None:
        _draw(pictures, sheet)
    result = {"machine": describe_machine(threads), "network": name, "least": LEAST, "pictures": rows}
    result |= {"pairs": _measure_pairs(pictures), "cost": _measure_cost(pictures)}
    print(result["pairs"], result["cost"])
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def compute_faint_heat() -> bytes:
    """Return a byte for each photo color, whose bits say at which heat the overlay is like the photo."""
    steps = 16 * np.arange(16) + 7.5
    colors = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 1, 3)
    levels = 96 + 20 * np.arange(8) + 10
    opacity = get_default_alpha(DEFAULT_COLORMAP) * compute_opacity(levels / 255, DEFAULT_COLORMAP)[:, None]
    overlays = (1 - opacity) * colors + opacity * get_palette(DEFAULT_COLORMAP)[levels]
    is_faint = compute_difference(colors, overlays) <= _LIMIT
    return np.packbits(is_faint, axis=1, bitorder="little").tobytes()


def compute_difference(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Return the difference (CIEDE2000) of colors ``(..., 3)`` from 0 to 255."""
    difference: NDArray[np.float64] = deltaE_ciede2000(rgb2lab(one / 255), rgb2lab(other / 255))
    return difference


def measure_difference(photo: Pixels, heat: Map, overlay: Pixels) -> float:
    """Return the median difference of an overlay from what is below it, in the hottest tenth of the map."""
    is_hot = heat >= np.quantile(heat, 0.9)
    return float(np.median(compute_difference(photo[is_hot][None], overlay[is_hot][None])))


def make_gray(photo: Pixels) -> Pixels:
    """Return a photo in the gray of the rule."""
    levels = (photo.astype(int) @ (77, 150, 29) + 128) >> 8
    return np.repeat(levels[..., None], 3, 2).astype(np.uint8)


def _measure(photo: Pixels, heat: Map) -> dict[str, Any]:
    """Return the differences in color and by the rule."""
    is_gray = needs_gray(photo, heat)
    # A part of a larger picture is never gray.
    in_color = measure_difference(photo, heat, blend(photo, heat, is_part=True))
    gray = make_gray(photo)
    on_gray = measure_difference(gray, heat, blend(gray, heat))
    return {"in color": round(in_color, 1), "on gray": round(on_gray, 1), "is gray": is_gray}


def _measure_pairs(pictures: list[Picture]) -> dict[str, Any]:
    """Return how small the differences are where photos stay in color, and how large where they are gray."""
    rows = list[dict[str, Any]]()
    for _, photo, _ in pictures:
        small = cv2.resize(photo, (_SMALL, _SMALL), interpolation=cv2.INTER_AREA)
        tinted = [small * (1 - _SHARE) + np.array(tint) * _SHARE for tint in _TINTS]
        for pixels in [small, *(np.rint(each).astype(np.uint8) for each in tinted)]:
            rows += [_measure(pixels, cv2.resize(heat, (_SMALL, _SMALL))) for *_, heat in pictures]
    in_color, gray = ([row for row in rows if row["is gray"] is asked] for asked in (False, True))
    low = [row for row in in_color if row["in color"] < LEAST]
    return {
        "pictures": len(rows),
        "in color": len(in_color),
        "in color below the least": len(low),
        "of these at least as much on gray": sum(row["on gray"] >= LEAST for row in low),
        "smallest difference of the others": min(row["in color"] for row in in_color if row not in low),
        "gray": len(gray),
        "median in color": float(np.median([row["in color"] for row in gray])),
        "median on gray": float(np.median([row["on gray"] for row in gray])),
        "largest in color": max(row["in color"] for row in gray),
    }


def _measure_cost(pictures: list[Picture]) -> dict[str, float]:
    """Return the time of an overlay with the rule, divided by that without, for a picture in color and a gray one."""
    cost = dict[str, float]()
    for is_gray in (False, True):
        photo, heat = next((photo, heat) for _, photo, heat in pictures if needs_gray(photo, heat) is is_gray)
        runs = {"rule": lambda p=photo, h=heat: blend(p, h), "none": lambda p=photo, h=heat: blend(p, h, is_part=True)}
        cost["gray" if is_gray else "in color"] = compute_ratio(measure_in_turns(runs, 60), "rule", "none")
    return cost


def _iterate_pictures(folder: Path | None) -> Iterator[tuple[str, Pixels]]:
    """Yield the names and pixels of photos and of drawn pictures."""
    paths = [path for path, _ in read_labels(folder)] if folder is not None else []
    data = Path(skimage.__file__).parent / "data"
    paths += sorted(path for path in data.iterdir() if path.stem.startswith(_INCLUDED) and path.suffix != ".py")
    for path in paths:
        yield path.name, np.asarray(Image.open(path).convert("RGB"))
    yield from draw_warm_pictures()


def draw_warm_pictures() -> Iterator[tuple[str, Pixels]]:
    """Yield pictures of fur, a sunset, a fire, a robin and a forest, drawn of noise and gradients."""
    random, (y, x) = np.random.default_rng(0), np.mgrid[:_SIDE, :_SIDE] / _SIDE

    def mix(*stops: tuple[float, tuple[int, int, int]], at: NDArray[Any]) -> NDArray[Any]:
        places, colors = zip(*stops, strict=True)
        return np.stack([np.interp(at, places, channel) for channel in np.transpose(colors)], -1)

    def make_noise(cells: int) -> NDArray[Any]:
        coarse = random.random((cells, cells))
        return np.asarray(cv2.resize(coarse, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC)).clip(0, 1)

    fur = mix((0, (150, 70, 20)), (1, (245, 140, 50)), at=0.5 * make_noise(90) + 0.5 * make_noise(8))
    sky = mix((0, (90, 40, 60)), (0.4, (220, 80, 30)), (0.7, (255, 160, 40)), (1, (80, 30, 20)), at=y)
    flames = (1.6 * make_noise(12) * y + 0.4 * y).clip(0, 1)
    fire = mix((0, (20, 8, 5)), (0.35, (190, 30, 5)), (0.7, (255, 130, 10)), (1, (255, 240, 150)), at=flames)
    leaves = mix((0, (15, 40, 10)), (0.6, (60, 120, 30)), (1, (150, 190, 60)), at=make_noise(60))
    breast = np.hypot(x - 0.5, y - 0.55) < 0.22
    robin = np.where(
        breast[..., None],
        fur + np.array((10, -10, -15)),
        mix((0, (70, 80, 60)), (1, (150, 150, 130)), at=make_noise(10)),
    )
    drawn = {"fur": fur, "sunset": sky, "fire": fire, "robin": robin, "forest": leaves, "scene": draw_scene(0).image}
    for name, pixels in drawn.items():
        yield f"drawn {name}", np.rint(np.clip(pixels, 0, 255)).astype(np.uint8)


def _draw(pictures: list[Picture], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, photo, heat in pictures:
        parts = photo, blend(photo, heat, is_part=True), blend(photo, heat), blend(make_gray(photo), heat)
        scale = 390 / photo.shape[1]
        Image.fromarray(np.hstack(parts)).resize((4 * 390, round(scale * photo.shape[0]))).save(folder / f"{name}.png")


if __name__ == "__main__":
    typer.run(main)
