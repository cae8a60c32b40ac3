"""False alarms of checks and warnings: ``python -m benchmarks checks --weights NAME=FILE``.

Every run is sound: a trained model with its own preparation explains its top class. So each finding with the severity
"warning" is a false alarm. The photos are those of ``benchmarks.package_photos``, on some of which thresholds were
chosen, those of the folders that are given, and random crops of them with another brightness, half of them mirrored.
Without ``--weights`` only the demo's models are checked, on scenes of seeds that nothing else uses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image, ImageEnhance

import camtool
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from camtool.demo.scenes import UNSEEN, draw_scene

RESULTS = Path(__file__).with_suffix(".json")

_DEMO = ("demo", "demo-cheat")
_FIRST_SCENE = UNSEEN + 700_000
"""Seed of the first scene; tests and model cards use lower ones."""

Named = tuple[str, Image.Image]


def main(
    weights: Annotated[list[str], typer.Option(help="NAME=FILE of an architecture; may be repeated.")] = [],  # noqa: B006
    folder: Annotated[list[Path], typer.Option(help="Folder of more photos; may be repeated.")] = [],  # noqa: B006
    packages: Annotated[bool, typer.Option(help="Check the photos of packages, too.")] = True,  # noqa: FBT002
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "gradcam,layercam,faithcam",
    crops: Annotated[int, typer.Option(help="Crops of each photo, besides the photo itself.")] = 3,
    scenes: Annotated[int, typer.Option(help="Scenes for each of the demo's models.")] = 100,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
) -> None:
    """Check sound runs, print the alarms by code, and write them to a JSON file."""
    torch.set_num_threads(threads)
    rows, names = list[dict[str, Any]](), methods.split(",")
    sets = {each.name: [*_read_folder(each)] for each in folder}
    if packages:
        sets["packages"] = [*read_package_photos()]
    for name, file in (each.split("=", 1) for each in weights):
        for source, photos in sets.items():
            images = [*_vary_all(photos, crops)]
            rows += [_check(name, source, camtool.load(name, file), method, images) for method in names]
    seeds = range(_FIRST_SCENE, _FIRST_SCENE + scenes)
    drawn = [(str(seed), Image.fromarray(draw_scene(seed).image)) for seed in seeds]
    for name in _DEMO:
        rows += [_check(name, "scenes", camtool.load(name), method, drawn) for method in names]
    runs, alarms = sum(row["runs"] for row in rows), sum(row["alarms"] for row in rows)
    print(f"{alarms} false alarms in {runs} runs, {alarms / runs:.2%}")
    counts = {name: len(photos) for name, photos in sets.items()}
    result = {"machine": describe_machine(threads), "photos": counts, "runs": runs, "alarms": alarms}
    out.write_text(json.dumps(result | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


def _read_folder(folder: Path) -> Iterator[Named]:
    for path in sorted(each for each in folder.iterdir() if each.suffix.lower() in (".jpg", ".jpeg", ".png")):
        with Image.open(path) as image:
            image.thumbnail((1024, 1024))  # wallpapers have many megapixels, of which the model gets 224 x 224
            yield path.name, image.convert("RGB")


def _vary_all(photos: Sequence[Named], crops: int) -> Iterator[Named]:
    """Yield each photo and crops of it; the same crops in each run."""
    generator = np.random.default_rng(0)
    for name, image in photos:
        yield name, image
        for number in range(crops):
            yield f"{name}, crop {number}", _vary(image, generator)


def _vary(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return a crop of 30 to 90 % of each side, at random, with 0.7 to 1.3 of the brightness; half are mirrored."""
    share, brightness = generator.uniform(0.3, 0.9), generator.uniform(0.7, 1.3)
    width, height = (max(round(share * side), 32) for side in image.size)
    left, top = (
        int(generator.integers(0, total - side + 1)) for total, side in zip(image.size, (width, height), strict=True)
    )
    crop = ImageEnhance.Brightness(image.crop((left, top, left + width, top + height))).enhance(brightness)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else crop


def _check(name: str, source: str, model: camtool.Loaded, method: str, images: Sequence[Named]) -> dict[str, Any]:
    """Return how many runs raised an alarm, how often each code was raised, and where."""
    explainer, codes, where = camtool.Explainer(model, method), Counter[str](), dict[str, list[str]]()
    for title, image in images:
        report = explainer(image).check()
        codes.update(report.codes)
        if not report.ok:
            where[title] = sorted({each.code for each in report.warnings})
    row: dict[str, Any] = {
        "model": name,
        "images": source,
        "method": method,
        "runs": len(images),
        "alarms": len(where),
        "codes": dict(codes),
    }
    print(row, flush=True)
    for title, found in where.items():
        print(f"    {title}: {', '.join(found)}")
    return row | {"where": where}


if __name__ == "__main__":
    typer.run(main)
