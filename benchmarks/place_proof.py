"""The test of places, on right and wrong places: ``python -m benchmarks place_proof``.

``explanation.check()`` compares where the hottest cell of a map is drawn with the centroid of the pixels that the cell
depends on. Three parts: networks with random weights on one image of noise, whose places are read or measured; trained
networks (``--weights NAME=FILE``) on the photos of ``--photos`` and of ``benchmarks.package_photos``, where a finding
is a false alarm; and places that are wrong on purpose, drawn with ``placement="stretch"`` behind a crop, a mirror or a
zoom that follows the content, and models whose cells have no places on a grid.

No threshold of the test was chosen on any of the photos. "Beyond" is the distance less the spread, in cells; there is a
finding above 1.5. Cells that see the whole image are judged by how many times as much they
depend on the pixels there as on any pixel.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast
from unittest.mock import patch

import numpy as np
import torch
import torchvision
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

import camtool
from benchmarks.networks import TITLES, PhotosOption, WeightsOption, write_between
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from benchmarks.photos import read_labels
from camtool.evaluation.audit.statistics import compute_share
from camtool.layers.places.cell_responses import CellResponse
from camtool.trust.checks import map_checks

RESULTS = Path(__file__).with_suffix(".json")
_SMALL = "small network, "

RANDOM = {
    "ResNet-18": "resnet18",
    "MobileNetV2": "tv:mobilenet_v2",
    "VGG-11-BN": "tv:vgg11_bn",
    "DenseNet-121": "tv:densenet121",
    "SqueezeNet 1.1": "tv:squeezenet1_1",
    "ShuffleNetV2": "tv:shufflenet_v2_x1_0",
    "ConvNeXt-T": "tv:convnext_tiny",
    "RegNetX-002": "regnetx_002",
    "EfficientNet-Lite0": "tf_efficientnet_lite0",
    "ViT-Ti": "vit_tiny_patch16_224",
    "Swin-T": "swin_tiny_patch4_window7_224",
    "DeiT3-S": "deit3_small_patch16_224",
    "XCiT-nano": "xcit_nano_12_p16_224",
    "LeViT-128S": "levit_128s",
    "PoolFormer-S12": "poolformer_s12",
    "PVTv2-B0": "pvt_v2_b0",
    "CoaT-Lite-Ti": "coat_lite_tiny",
    "Hiera-T": "hiera_tiny_224",
}
"""Name of each network to its name in timm, or in torchvision."""

SIDE = 96
"""Side of the images of the networks that look at a part."""

PLACES = tuple((row, column) for row in (12, 30, 66, 84) for column in (57, 72))
"""Row and column of what is bright in them: at the right, so that the mirror moves all of them."""

WRONG = 2.0
"""Distance in cells from its place from which a cell is drawn wrongly."""

_SPOT = 6
_HELD_OUT = "unseen photos"


def main(
    weights: WeightsOption = [],  # noqa: B006
    photos: PhotosOption = None,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
    page: Annotated[Path | None, typer.Option(help="Page whose table is written, e.g. docs/placement.md.")] = None,
) -> None:
    """Measure, print the tables, and write the numbers to a JSON file."""
    torch.set_num_threads(threads)
    folders = _read_images(photos)
    loaded = {name: camtool.load(name, file) for name, file in (pair.split("=", 1) for pair in weights)}
    measured = [*_measure_random()]
    random, tested = [row for row, _ in measured], [one for _, one in measured]
    print("\n".join(map(json.dumps, random)))
    right = [{"name": f"{len(random)} networks with random weights, noise"} | summarize(tested)]
    right += _measure_trained(loaded, folders)
    print(json.dumps(right), flush=True)
    wrong = [*_measure_parts(), *_measure_trained_parts(loaded, folders[_HELD_OUT])]
    result = {"machine": describe_machine(threads), "random": random, "right": right, "wrong": wrong}
    text = format_table(result)
    print(text)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if page is not None:
        write_between(page, "place-proof", text)


@dataclass(frozen=True)
class Tested:
    """What the test of places measured of one explanation.

    Attributes:
        center: Where the hottest cell is drawn, in pixels.
        strides: The distance between neighboring cells as drawn, in pixels.
        response: The pixels that the cell depends on.
        numbers: Distance and spread in cells, and the distance less the spread. For a cell that sees the whole image
            also ``times``: how many times as much it depends on a pixel there as on any.
        code: The finding of the test, or an empty text.
    """

    center: NDArray[np.float64]
    strides: NDArray[np.float64]
    response: CellResponse
    numbers: dict[str, float]
    code: str

    @property
    def is_warned(self) -> bool:
        """True if the test found that heat lies elsewhere, or nowhere."""
        return self.code in ("heat-elsewhere", "no-places")

    def count_cells_to(self, right: Tested) -> float:
        """Return how far from its right place the cell is drawn."""
        return float(np.linalg.norm((self.center - right.center) / self.strides))


def examine(result: camtool.Explanation) -> Tested | None:
    """Return what the test measures of an explanation; ``None`` if it cannot run, e.g. on a constant map.

    A report has the finding of the test only if the map has no warning of its own about the same, so the numbers are
    taken where the test judges by them.
    """
    kept: list[Tested] = []

    def judge(response: Any, drawn: Any, places: Any) -> list[Any]:
        findings = [*real(response, drawn, places)]
        distance = float(np.linalg.norm((response.center - drawn.center) / drawn.strides))
        spread = float(np.linalg.norm(response.spread / drawn.strides))
        numbers = {"distance": distance, "spread": spread, "beyond": distance - spread}
        if response.sees_all:
            numbers["times"] = map_checks._compare_with_all(response, drawn)
        kept.append(Tested(drawn.center, drawn.strides, response, numbers, findings[0].code if findings else ""))
        return findings

    real, source = map_checks._judge, result.get_source("the test of places")
    with patch.object(map_checks, "_judge", judge):
        source.check(result, only=("place",))
    return kept[0] if kept else None


def summarize(tested: Sequence[Tested | None]) -> dict[str, Any]:
    """Return how many were tested and warned about, and the minimum, median and maximum of each number."""
    known = [one for one in tested if one is not None]
    codes = Counter(one.code or "nothing" for one in known)
    warned = sum(one.is_warned for one in known)
    summary: dict[str, Any] = {"tested": len(known), "skipped": len(tested) - len(known), "codes": dict(codes)}
    summary |= {"warned": warned, "share": [round(float(value), 4) for value in compute_share(warned, len(known))]}
    for name in ("distance", "spread", "beyond"):
        values = [one.numbers[name] for one in known] or [float("nan")]
        summary[name] = [round(float(value), 2) for value in (min(values), np.median(values), max(values))]
    return summary


# ----------------------------------------------------------------------------------------------------- right places


def build_random(name: str) -> nn.Module:
    """Return a network of :data:`RANDOM` with random weights; a head of zeros would have no gradient."""
    import timm

    torch.manual_seed(0)
    known = RANDOM[name].partition("tv:")[2]
    model = torchvision.models.get_model(known, weights=None) if known else timm.create_model(RANDOM[name])
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.01)
    built: nn.Module = model.eval()
    return built


def _measure_random() -> Iterator[tuple[dict[str, Any], Tested | None]]:
    """Yield what the test says of each network with random weights, on one image of noise."""
    noise = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    for name in RANDOM:
        (result,) = camtool.explain(build_random(name), noise)
        tested = examine(result)
        numbers = {} if tested is None else {key: round(value, 2) for key, value in tested.numbers.items()}
        yield (
            {"name": name, "layer": str(result.layer), **numbers, "code": tested.code if tested else "skipped"},
            tested,
        )


def _read_images(photos: Path | None) -> dict[str, list[Image.Image]]:
    """Return the photos of each set."""
    read = [] if photos is None else [Image.open(path).convert("RGB") for path, _ in read_labels(photos)]
    return {"samples of ImageNet": read, _HELD_OUT: [image for _, image in read_package_photos()]}


def _measure_trained(
    loaded: Mapping[str, camtool.Loaded], folders: Mapping[str, Sequence[Image.Image]]
) -> Iterator[dict[str, Any]]:
    """Yield what the test says of trained networks on each set of photos, at their right places."""
    for network, model in loaded.items():
        explainer = camtool.Explainer(model)
        for name, images in folders.items():
            if images:
                tested = summarize([examine(explainer(image)) for image in images])
                yield {"name": f"{TITLES[network]}, {name}"} | tested


# ----------------------------------------------------------------------------------------------------- wrong places


class PartNet(nn.Module):
    """A network whose class 0 responds to bright pixels, behind a step that prepares the image.

    Args:
        step: What it does to images before its first layer.
    """

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.head = step, nn.Linear(8, 2)
        first = nn.Conv2d(3, 8, 3, 2, 1)
        assert first.bias is not None
        nn.init.constant_(first.weight[:4], 1 / 27)
        nn.init.constant_(first.bias[:4], -0.3)
        self.features = nn.Sequential(first, nn.ReLU())
        self.head.weight = nn.Parameter(torch.tensor([[1.0] * 4 + [0.0] * 4, [-1.0] * 4 + [0.0] * 4]))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(N, 2)``."""
        logits: Tensor = self.head(self.features(self.step(x)).mean((2, 3)))
        return logits


def paint(row: int, column: int) -> Tensor:
    """Return an image ``(1, 3, 96, 96)`` with a bright square around a place."""
    image = torch.full((1, 3, SIDE, SIDE), 0.2)
    image[..., row - _SPOT : row + _SPOT, column - _SPOT : column + _SPOT] = 1.0
    return image


def crop(x: Tensor) -> Tensor:
    """Return the brightest quarter."""
    quarter = int(functional.adaptive_avg_pool2d(x.mean((0, 1))[None], 2).flatten().argmax())
    top, left, half = quarter // 2 * x.shape[2] // 2, quarter % 2 * x.shape[3] // 2, x.shape[2] // 2
    return x[..., top : top + half, left : left + half]


def select_columns(x: Tensor) -> Tensor:
    """Return half of the columns, those around the brightest one."""
    half = x.shape[3] // 2
    first = x.mean((0, 1, 2)).argmax().clamp(half // 2, x.shape[3] - half // 2) - half // 2
    return x.index_select(3, first + torch.arange(half))


def mirror(x: Tensor) -> Tensor:
    """Return images whose right half is darker."""
    left, right = x.chunk(2, 3)
    return x if left.mean() >= right.mean() else x.flip(-1)


def zoom(x: Tensor) -> Tensor:
    """Return an image enlarged twofold, toward what is bright."""
    light = (x.mean(1) - 0.2).clamp(min=0)
    share, places = light / light.sum(), torch.linspace(-1, 1, x.shape[2])
    middle = torch.stack([(share.sum(axis) * places).sum() for axis in (1, 2)])[None].clamp(-0.5, 0.5)
    matrix = torch.cat([torch.eye(2)[None] / 2, middle[:, :, None]], 2)
    return functional.grid_sample(x, functional.affine_grid(matrix, [*x.shape], False), align_corners=False)


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "crop": crop,
    "columns": select_columns,
    "mirror": mirror,
    "zoom": zoom,
}
"""What moves the image, by its content."""

NOWHERE: dict[str, Callable[[Tensor], Tensor]] = {
    "turn by 90 degrees": lambda x: x.mT.flip(-1),
    "transposition": lambda x: x.mT,
    "Fourier transform": lambda x: torch.fft.fft2(x).abs().log1p(),
}
"""What places no grid on the image."""


def _measure_parts() -> Iterator[dict[str, Any]]:
    """Yield what the test says of each step before a small network, with places that are wrong on purpose."""
    for name, step in (STEPS | NOWHERE).items():
        model, images = PartNet(step).eval(), [paint(*place) for place in PLACES]
        yield {"name": f"{_SMALL}{name}"} | _measure_wrong(model, images, has_places=name in STEPS)


def _measure_trained_parts(
    loaded: Mapping[str, camtool.Loaded], images: Sequence[Image.Image]
) -> Iterator[dict[str, Any]]:
    """Yield the same of trained networks on photos, behind the steps whose right places take no measurement."""
    for network, model in loaded.items():
        prepare = cast("Callable[[Image.Image], Tensor]", model.transform)
        prepared = [torch.as_tensor(prepare(image))[None] for image in images]
        for name, step in {"crop": crop, "mirror of all": lambda x: x.flip(-1)}.items():
            behind = nn.Sequential(Step(step), model.model).eval()
            yield {"name": f"{TITLES[network]}, {name}"} | _measure_wrong(behind, prepared, has_places=True)


class Step(nn.Module):
    """What moves the image, as a module."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        """Return the moved images."""
        return self.step(x)


def _measure_wrong(model: nn.Module, images: Sequence[Tensor], *, has_places: bool) -> dict[str, Any]:
    """Return what the test says of hottest cells that are drawn more than :data:`WRONG` cells beside their places.

    The other ones, e.g. near to the axis of a mirror, are right by chance, and are counted apart. So are those that
    are drawn at their places.
    """
    wrong, right = list[Tested | None](), list[Tested | None]()
    for image in images:
        drawn = [camtool.explain(model, image, placement=kind)[0] for kind in ("stretch", "centers")]
        stretched, centered = map(examine, drawn)
        is_wrong = stretched and centered and stretched.count_cells_to(centered) > WRONG
        if is_wrong or not has_places:
            wrong.append(stretched)
        if has_places:
            right.append(centered)
    known = [one for one in right if one is not None]
    warned = sum(one.is_warned for one in known)
    return summarize(wrong) | {"images": len(images), "right places": len(known), "warned at right places": warned}


# ------------------------------------------------------------------------------------------------------------ tables


def format_table(result: Mapping[str, Any]) -> str:
    """Return a table of right and wrong places in Markdown, each with the difference that is nearest to the limit."""
    lines = [f"<!-- numbers: benchmarks/{RESULTS.name} -->"]
    lines.append("| | drawn | maps | warned about | distance | spread | distance less spread |")
    lines.append("|---" * 7 + "|")
    # Small networks of which all maps are warned about are a sentence.
    certain = [row for row in result["wrong"] if row["name"].startswith(_SMALL) and row["warned"] == row["tested"]]
    for drawn, key, end in (("there", "right", 2), ("elsewhere", "wrong", 0)):
        for row in [row for row in result[key] if row not in certain]:
            _, low, high = row["share"]
            cells = [row["name"], drawn, row["tested"], f"{row['warned']} ({low:.1%} to {high:.1%})".replace("%", " %")]
            cells += [f"{row[name][1]:.2f}" for name in ("distance", "spread")] + [f"{row['beyond'][end]:.2f}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    counts = [f"{row['name'].removeprefix(_SMALL)} {row['tested']}" for row in certain]
    lines += ["", f"Of small networks, all maps that are drawn elsewhere are warned about behind: {', '.join(counts)}."]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
