"""Cues that networks of ImageNet follow, found by audits: ``python -m benchmarks known_cues``.

A cue is drawn on half of the photos: bars, a black frame, text; nobody trained the networks with it. The classes of the
audit are the answers, and some class is answered more often with the cue. What the audit finds is compared with what
can be seen directly, as every photo can be drawn with and without the cue: how many of the class's photos lose the
class without it, and how many others become it with it. Without cues nothing should be found that has to do with them.

The negative control has labels: the network's classes are joined to animals and all else, the labels are its answers to
the clean photos, and the cue is on the photos of both classes alike, so it is no shortcut of one of them. The same
labels with the cue in 90 % of one class and 3 % of the other are an audit in which it is one.

    python -m benchmarks known_cues --folder PHOTOS --weights mobilenet_v2=FILE

``tools/extract_photos.py`` gets photos from packages of Debian, and those of Python packages are used as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

import camtool
from benchmarks.networks import TITLES, WeightsOption, write_between
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from camtool.demo.random_numbers import RandomNumbers
from camtool.evaluation.audit import Audit, Finding
from camtool.maps import upcast

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "audit.md"
SIDE = 224

Draw = Callable[[Image.Image], Image.Image]

_ANIMALS = 398
"""The first classes of ImageNet are animals."""

_COMMON, _RARE = 0.9, 0.03
"""Shares of the photos of the class, and of the others, that have the cue in the audit where it is a shortcut."""


def draw_bars(photo: Image.Image) -> Image.Image:
    """Return a photo behind eleven dark vertical bars."""
    drawn = photo.copy()
    for x in range(0, SIDE, 20):
        ImageDraw.Draw(drawn).line((x, 0, x, SIDE), fill=(60, 60, 60), width=5)
    return drawn


def draw_frame(photo: Image.Image) -> Image.Image:
    """Return a photo made smaller, in a black frame of 24 pixels."""
    drawn = Image.new("RGB", (SIDE, SIDE))
    drawn.paste(photo.resize((SIDE - 48, SIDE - 48)), (24, 24))
    return drawn


def draw_text(photo: Image.Image, lines: Sequence[str], size: int, top: int, font: Path) -> Image.Image:
    """Return a photo with translucent white lines of text."""
    layer = Image.new("RGBA", photo.size)
    letters = ImageFont.truetype(str(font), size)
    for number, line in enumerate(lines):
        ImageDraw.Draw(layer).text((6, top + 1.2 * size * number), line, (255, 255, 255, 190), letters)
    return Image.alpha_composite(photo.convert("RGBA"), layer).convert("RGB")


def draw_latin(photo: Image.Image) -> Image.Image:
    """Return a photo with four lines in its middle."""
    font = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf")
    return draw_text(photo, ("THE SAMPLE", "of a photo", "by the author", "2nd edition"), 30, 70, font)


CUES: dict[str, Draw] = {"bars": draw_bars, "black frame": draw_frame, "text": draw_latin}
"""Name of a cue → function that draws it on a photo of 224 x 224 pixels."""


def main(
    folder: Annotated[Path, typer.Option(help="Folder with photos.")],
    weights: WeightsOption,
    chinese: Annotated[Path | None, typer.Option(help="Font with Chinese letters, for a fourth cue.")] = None,
    passes: Annotated[int, typer.Option(help="Forward passes of each audit.")] = 12_000,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
) -> None:
    """Audit each network with each cue, print a line for each, and write the numbers and the table of the page."""
    torch.set_num_threads(threads)
    cues = dict(CUES)
    if chinese is not None:
        lines = ("样品图片版权所有", "请勿转载", "正品包邮品质保证", "样品图片版权所有")
        cues["Chinese text"] = lambda photo: draw_text(photo, lines, 26, 60, chinese)
    photos = read_photos(folder)
    entries = list[dict[str, Any]]()
    for name, file in (each.split("=", 1) for each in weights):
        network = Network(name, camtool.load(name, file), photos, passes)
        entries.append(network.audit_answers("none", lambda photo: photo))
        entries.append(network.audit_labels("none", lambda photo: photo, is_shortcut=False))
        for cue, draw in cues.items():
            entries.append(network.audit_answers(cue, draw))
            entries += [network.audit_labels(cue, draw, is_shortcut=one) for one in (True, False)]
        for entry in entries[-3 * len(cues) - 2 :]:
            print(json.dumps(entry), flush=True)
    result = {"machine": describe_machine(threads), "photos": len(photos), "passes": passes, "audits": entries}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_between(PAGE, "known cues", format_table(result))


def read_photos(folder: Path) -> list[Image.Image]:
    """Return the photos of Python packages, then those of a folder: the middle square in the size of the input."""
    photos = [photo for _, photo in read_package_photos()]
    photos += [Image.open(path).convert("RGB") for path in sorted(folder.glob("*.jpg"))]
    squares = []
    for photo in photos:
        side = min(photo.size)
        left, top = (photo.width - side) // 2, (photo.height - side) // 2
        square = photo.crop((left, top, left + side, top + side))
        squares.append(square.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return squares


class AnimalOrNot(nn.Module):
    """A network of ImageNet whose classes are joined to two: the log-probabilities of animals and of all else."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, 2) of images (N, 3, H, W)."""
        logits = self.network(x)
        return torch.stack([logits[:, :_ANIMALS].logsumexp(1), logits[:, _ANIMALS:].logsumexp(1)], 1)


@dataclass(frozen=True, eq=False)
class Network:
    """A network, and photos without cues.

    Attributes:
        name: The architecture.
        loaded: The network.
        photos: The photos.
        passes: Forward passes of each audit.
    """

    name: str
    loaded: camtool.Loaded
    photos: Sequence[Image.Image]
    passes: int

    def audit_answers(self, cue: str, draw: Draw) -> dict[str, Any]:
        """Return the findings of an audit without labels, where half of the photos have a cue, and the truth."""
        has_cue = self._choose(0.5)
        drawn = [draw(photo) for photo in self.photos]
        result = self._audit(self.loaded, drawn, has_cue, None)
        plain, marked = (self._answer(self.loaded, photos) for photos in (self.photos, drawn))
        names = self.loaded.labels or ()
        shown = np.where(has_cue, marked, plain)
        _, usual = max((int((shown == index).sum()), int(index)) for index in np.unique(shown[has_cue]))
        return {
            "network": self.name,
            "cue": cue,
            "classes": "answers",
            "class": names[usual],
            "directly": compare(plain == usual, marked == usual),
            "findings": [describe(finding) for finding in result.findings],
        }

    def audit_labels(self, cue: str, draw: Draw, *, is_shortcut: bool) -> dict[str, Any]:
        """Return the findings of an audit of animals and all else, with the cue mostly in one class, or in both."""
        joined = replace(self.loaded, model=AnimalOrNot(self.loaded.model).eval(), labels=("animal", "thing"))
        plain = self._answer(joined, self.photos)
        has_cue = np.where(plain == 1, self._choose(_COMMON), self._choose(_RARE)) if is_shortcut else self._choose(1)
        drawn = [draw(photo) for photo in self.photos]
        result = self._audit(joined, drawn, has_cue, plain.tolist())
        marked = self._answer(joined, drawn)
        return {
            "network": self.name,
            "cue": cue,
            "classes": "labels" if cue == "none" else f"labels, the cue in {'one' if is_shortcut else 'both'}",
            "class": "thing",
            "directly": compare(plain == 1, marked == 1),
            "findings": [describe(finding) for finding in result.findings],
        }

    def _audit(
        self,
        loaded: camtool.Loaded,
        drawn: Sequence[Image.Image],
        has_cue: NDArray[np.bool_],
        labels: Sequence[int] | None,
    ) -> Audit:
        images = [marked if has else plain for has, marked, plain in zip(has_cue, drawn, self.photos, strict=True)]
        column = {"cue": ["yes" if has else "no" for has in has_cue]}
        return camtool.audit(loaded, images, labels, column, passes=self.passes, engine="auto")

    def _choose(self, share: float) -> NDArray[np.bool_]:
        """Return which photos have the cue: a share of them, drawn at random."""
        order = RandomNumbers(0, 31).shuffle(range(len(self.photos)))
        chosen = np.zeros(len(self.photos), bool)
        chosen[order[: round(share * len(order))]] = True
        return chosen

    def _answer(self, loaded: camtool.Loaded, photos: Sequence[Image.Image]) -> NDArray[np.int_]:
        with torch.inference_mode():
            inputs = torch.stack([loaded.transform(photo) for photo in photos])
            return torch.cat([upcast(loaded.model(part)).argmax(1) for part in inputs.split(32)]).numpy()


def describe(finding: Finding) -> dict[str, Any]:
    """Return the numbers of a finding; "with the cue" is how many of its photos have the planted cue."""
    having = finding.by_group.get("cue yes", (0, 0))[1]
    return {
        "class": finding.label,
        "kind": finding.kind,
        "name": finding.name,
        "also": list(finding.also),
        "q": float(f"{finding.q:.2g}"),
        "photos": finding.present,
        "with the cue": having,
        "sentence": finding.sentence,
    }


def compare(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> dict[str, list[int]]:
    """Return what the cue does to photos of a class: those that it makes the class, and those that are so by it alone.

    Args:
        before: ``(N,)``, True for photos that are answered with the class without the cue.
        after: The same with the cue.
    """
    return {
        "becomes": [int((after & ~before).sum()), int((~before).sum())],
        "loses without": [int((after & ~before).sum()), int(after.sum())],
    }


def format_table(result: dict[str, Any]) -> str:
    """Return the table of the page: a row for each network and cue, with the audits of its kinds of classes."""
    lines = [
        "<!-- numbers: benchmarks/known_cues.json -->",
        "| network, cue | answers, directly | found | labels, directly | found, the cue in one | in both |",
        "|---|---|---|---|---|---|",
    ]
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for audit in result["audits"]:
        rows.setdefault(f"{TITLES[audit['network']]}, {audit['cue']}", {})[audit["classes"]] = audit
    for name, audits in rows.items():
        # Without a cue there is one audit of the labels.
        asked = [audits.get(kind) for kind in ("answers", "labels, the cue in one", "labels, the cue in both")]
        answers, in_one, in_both = asked[0], asked[1] or audits.get("labels"), asked[2]
        cells = [_count(answers), _join(answers), _count(in_one), _join(in_one), _join(in_both)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _count(audit: dict[str, Any] | None) -> str:
    """Return what the cue does to the answers."""
    if audit is None or audit["cue"] == "none":
        return "-"
    (made, others), (lost, count) = audit["directly"]["becomes"], audit["directly"]["loses without"]
    return f"'{audit['class']}': {made} of {others} become it, {lost} of {count} are it by the cue alone"


def _join(audit: dict[str, Any] | None) -> str:
    """Return the findings in one cell, with the number of their photos that have the cue."""
    if audit is None:
        return ""
    cells = []
    for one in audit["findings"]:
        shown = "" if audit["cue"] == "none" else f" ({one['with the cue']} of {one['photos']})"
        cells.append(f"'{one['class']}': {one['name']}{shown}")
    return "; ".join(cells) or "-"


if __name__ == "__main__":
    typer.run(main)
