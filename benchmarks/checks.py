"""False alarms and found faults of checks: ``python -m benchmarks checks --weights NAME=FILE``.

Every run of the first part is sound: a trained model with its own preparation explains its top class. So each finding
with the severity "warning" is a false alarm. The photos are those of ``benchmarks.package_photos``, on some of which
thresholds were chosen, those of the folders that are given, and random crops of them with another brightness, half of
them mirrored. Without ``--weights`` only the demo's models are checked, on scenes of seeds that nothing else uses.

The second part (``--faults``) plants wrong transforms, last layers and layers, and counts how many are named: by
the checks of one explanation, and by the mean over folders drawn at random. The photos of ``--tuned`` folders and each
fourth of the others are those on which thresholds were chosen; the rest are held out.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torchvision.transforms import v2

import camtool
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.trust.checks import check_list
from camtool.trust.checks.input_checks import FolderTrials

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
    faults: Annotated[bool, typer.Option("--faults", help="Plant faults instead.")] = False,  # noqa: FBT002
    tuned: Annotated[list[Path], typer.Option(help="Folder on which thresholds were chosen; for --faults.")] = [],  # noqa: B006
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
) -> None:
    """Check sound runs, print the alarms by code, and write them to a JSON file."""
    torch.set_num_threads(threads)
    rows, names = list[dict[str, Any]](), methods.split(",")
    sets = {each.name: [*_read_folder(each)] for each in folder}
    if packages:
        sets["packages"] = [*read_package_photos()]
    if faults:
        _plant(dict(each.split("=", 1) for each in weights), sets, [*map(_read_folder, tuned)], out, threads)
        return
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


# ------------------------------------------------------------------------------------------------------ planted faults

_QUICK = ("transform", "last layer", "depth")
"""Checks that look at the transform, the last layer and the layer; the others take seconds and are counted above."""

_RIGHT = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
_IMAGENET = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
_HALF = v2.Normalize([0.5] * 3, [0.5] * 3)
_BYTES = v2.Lambda(partial(torch.mul, other=255))
_EARLY = "features.3"
_FOLDERS, _SIZES = 200, (8, 16, 32)
"""Folders that are drawn of each size."""


def _add(*steps: Callable[[Tensor], Tensor]) -> v2.Compose:
    return v2.Compose([_RIGHT, *steps])


_TRANSFORMS: dict[str, tuple[Callable[[Image.Image], Tensor], set[str]]] = {
    "values from 0 to 255": (_add(_BYTES), {"byte-range", "other-normalization"}),
    "normalized twice": (_add(_IMAGENET, _IMAGENET), {"unusual-range", "other-normalization"}),
    "not normalized": (_RIGHT, {"other-normalization", "scale-misfit"}),
    "mean and std 0.5": (_add(_HALF), {"other-normalization", "scale-misfit"}),
    "BGR": (_add(_IMAGENET, v2.Lambda(lambda values: values.flip(0))), {"channels-swapped"}),
    "upside down": (_add(_IMAGENET, v2.Lambda(lambda values: values.flip(1, 2))), {"upside-down"}),
    "squashed": (
        v2.Compose([v2.Resize((224, 224)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), _IMAGENET]),
        {"aspect-changed"},
    ),
}
"""Wrong transform → the function, and the codes that name it."""


class _Normalizing(nn.Module):
    """A classifier that takes values in another range, and normalizes them as ImageNet itself."""

    def __init__(self, net: nn.Module, scale: float, shift: float) -> None:
        super().__init__()
        self.net, self.scale, self.shift, self.norm = net, scale, shift, _IMAGENET

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``(N, K)``."""
        scores: Tensor = self.net(self.norm(images * self.scale + self.shift))
        return scores


def _plant(
    weights: dict[str, str], sets: dict[str, list[Named]], tuned: list[Iterator[Named]], out: Path, threads: int
) -> None:
    """Count found faults and false alarms of each network, print them, and add them to the JSON file."""
    others = [photo for photos in sets.values() for photo in photos]
    parts = {
        "tuned": [*(photo for photos in tuned for photo in photos), *others[::4]],
        "held out": [photo for place, photo in enumerate(others) if place % 4],
    }
    rows = list[dict[str, Any]]()
    for name, file in weights.items():
        for part, photos in parts.items():
            loaded = camtool.load(name, file)
            for row in (*_count_found(loaded, photos), *_count_in_folders(loaded.model, photos)):
                rows.append({"model": name, "photos": part} | row)
                print(rows[-1], flush=True)
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    counts = {part: len(photos) for part, photos in parts.items()}
    stored["faults"] = {"machine": describe_machine(threads), "photos": counts, "rows": rows}
    out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def _count_found(loaded: camtool.Loaded, photos: Sequence[Named]) -> Iterator[dict[str, Any]]:
    """Yield for each fault in how many explanations a code names it, and for each sound run how many have a warning."""
    net, right = loaded.model, _add(_IMAGENET)
    known = {name: found for name, found in check_list.CHECKS.items() if name in _QUICK}
    # The bare model does not say which transform it was trained with.
    runs = {name: (net, {"transform": wrong}, codes) for name, (wrong, codes) in _TRANSFORMS.items()}
    for kind, code in {"negated": "negated-layer", "shuffled": "labels-mixed-up"}.items():
        runs[f"last layer {kind}"] = (_spoil_last_layer(loaded, kind), {"transform": right}, {code})
    runs["early layer"] = (loaded, {"layer": _EARLY}, {"early-layer"})
    sound = {
        "right": (net, {"transform": right}, set()),
        "right, model takes [0, 1]": (_Normalizing(net, 1, 0), {"transform": _RIGHT}, set()),
        "right, model takes [-1, 1]": (_Normalizing(net, 0.5, 0.5), {"transform": _add(_HALF)}, set()),
        "right, model takes [0, 255]": (_Normalizing(net, 1 / 255, 0), {"transform": _add(_BYTES)}, set()),
        "right, early layer by layercam": (loaded, {"layer": _EARLY, "method": "layercam"}, set()),
    }
    for title, (model, options, codes) in {**runs, **sound}.items():
        explainer, named, alarms, notes = camtool.Explainer(model, **options), 0, 0, Counter[str]()
        check_list.CHECKS = known
        # A square photo stays as it is.
        shown = [photo for photo in photos if title != "squashed" or max(photo[1].size) > 1.1 * min(photo[1].size)]
        for _, photo in shown:
            report = explainer(photo).check()
            named += bool(codes & {*report.codes})
            alarms += not report.ok
            notes.update(report.codes)
        check_list.CHECKS = _ALL
        yield {"fault": title, "runs": len(shown), "named": named if codes else None, "warned": alarms, "codes": notes}


_ALL = check_list.CHECKS


def _spoil_last_layer(loaded: camtool.Loaded, kind: str) -> camtool.Loaded:
    """Return the model with a last layer that is negated, or has its classes in another order."""
    model = copy.deepcopy(loaded.model)
    last = [module for module in model.modules() if getattr(module, "weight", None) is not None][-1]
    order = torch.randperm(len(last.weight), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.copy_(-parameter if kind == "negated" else parameter[order].clone())
    return camtool.Loaded(model, loaded.transform, loaded.labels)


def _count_in_folders(net: nn.Module, photos: Sequence[Named]) -> Iterator[dict[str, Any]]:
    """Yield for each transform how many folders that are drawn of the photos get a warning, and the gain of one photo.

    The checks know neither the photos nor the transform here, as if files were wrong and not the transform.
    """
    generator = np.random.default_rng(0)
    of_faults = {name: wrong for name, (wrong, _) in _TRANSFORMS.items() if wrong is not _TRANSFORMS["squashed"][0]}
    gains = {
        name: _measure_gains(net, wrong, photos) for name, wrong in {**of_faults, "right": _add(_IMAGENET)}.items()
    }
    for name, of_photos in gains.items():
        warned = {}
        for size in (size for size in _SIZES if size <= len(photos)):
            codes = Counter[str]()
            for _ in range(_FOLDERS):
                drawn = generator.choice(len(photos), size, replace=False)
                trials = FolderTrials(
                    {change: [values[place] for place in drawn] for change, values in of_photos.items()}
                )
                codes.update(warning.code for warning in trials.find_warnings())
            warned[size] = dict(codes)
        yield {"folders of": name, "folders": _FOLDERS, "warned": warned, "one photo": _compare_one(name, gains)}


def _measure_gains(
    net: nn.Module, transform: Callable[[Image.Image], Tensor], photos: Sequence[Named]
) -> dict[str, list[float]]:
    """Return the gain of each photo by each change, see ``FolderTrials``."""
    explainer, gains = camtool.Explainer(net, transform=transform), dict[str, list[float]]()
    for _, photo in photos:
        item, trials = explainer.prepare(photo), FolderTrials()
        with torch.no_grad():
            trials.add(item.tensor[None], item, net)
        for change, values in trials.gains.items():
            gains.setdefault(change, []).extend(values)
    return {change: values for change, values in gains.items() if len(values) == len(photos)}


_CORRECTIONS = {
    "BGR": "channels-swapped",
    "upside down": "upside-down",
    "mean and std 0.5": "scale-misfit ImageNet's mean and standard deviation",
    "not normalized": "scale-misfit ImageNet's mean and standard deviation",
}
_REVERSE = {"mean and std 0.5": "scale-misfit [-1, 1]", "not normalized": "scale-misfit [0, 1]"}


def _compare_one(fault: str, gains: dict[str, dict[str, list[float]]]) -> float | None:
    """Return the share of single photos whose gain by the right change exceeds 98 % of those by the wrong change."""
    if fault not in _CORRECTIONS:
        return None
    change = _CORRECTIONS[fault]
    limit = np.quantile(gains["right"][_REVERSE.get(fault, change)], 0.98)
    return float(np.mean(np.array(gains[fault][change]) > limit))


if __name__ == "__main__":
    typer.run(main)
