"""The demo's tour: scenes with known answers, explained by several methods, and the model that cheats, caught.

What ``python -m camtool demo`` does, less the printing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from camtool import images, overlay
from camtool.demo import measure
from camtool.demo.bundled import bundled
from camtool.demo.scenes import Scene, Thing, scene
from camtool.demo.sheet import GOOD, POOR, Block, Cell, sheet
from camtool.demo.train import CHEATED
from camtool.errors import CamtoolError
from camtool.explanation import Explainer, Explanation
from camtool.models import Loaded

__all__ = ["METHODS", "Row", "Tour", "exhibits", "judge", "showcase", "tour"]

METHODS = ("gradcam", "gradcam++", "layercam", "rivalcam", "cam")
"""The methods that the tour compares; the first is the one on the overview."""

_SIZE = 256
_CHEAT_SIZE = 320

# (number of objects, seed), chosen by look before there was a model to explain them.
_CHOSEN = (
    (2, 37), (2, 28), (1, 14), (4, 26), (2, 59), (2, 60),
    (1, 32), (2, 77), (2, 64), (2, 61), (1, 11), (2, 58),
)  # fmt: skip
_FIRST = measure.UNSEEN + 100_000  # the seeds above count from here, beyond those of the model card
_CHEAT_SEED, _OTHER = 24, "star"
_CORNER = 0.7  # from here on, across and down, is the corner in which the mark is


@dataclass(frozen=True)
class Row:
    """How well a method found the objects it was asked for.

    Attributes:
        method: Its name.
        maps: How many maps it made: one an object.
        hits: The part of the maps whose highest pixel lies on the object: the pointing game.
        energy: The mean part of a map's heat that lies on the object.
        share: The mean part of the picture that the object covers: what ``energy`` would be by chance.
        milliseconds: The time a picture took, all its objects together.
    """

    method: str
    maps: int
    hits: float
    energy: float
    share: float
    milliseconds: float


@dataclass(frozen=True)
class Tour:
    """What the tour found, and what it wrote.

    Attributes:
        rows: One a method.
        overview: All scenes, and where the model looked for each object, on a page.
        cheat: The cheating model beside the honest one, on a page.
        pictures: The scenes, and for each method the overlay for each object.
    """

    rows: tuple[Row, ...]
    overview: Path
    cheat: Path
    pictures: tuple[Path, ...]


def tour(out: str | PathLike[str] = "demo", scenes: int = 12, *, methods: Sequence[str] = METHODS) -> Tour:
    """Explain the bundled scenes with the bundled model, and write what came out.

    Args:
        out: The folder to write to; files of the same names are overwritten.
        scenes: How many scenes.
        methods: Names in :data:`camtool.METHODS`.

    Raises:
        CamtoolError: There are no scenes or no methods, or a method is unknown.
        OSError: The disk or the folder refuses.
    """
    if scenes < 1 or not methods:
        raise CamtoolError(f"scenes={scenes}, methods={list(methods)!r}: at least one of each is needed.")
    folder, shown, honest = Path(out), showcase(scenes), bundled("demo")
    judged = [judge(honest, shown, method) for method in methods]
    pictures = _write_scenes(folder / "scenes", shown)
    for row, answers in judged:
        pictures += _write_overlays(folder / row.method, shown, answers)
    return Tour(
        rows=tuple(row for row, _ in judged),
        overview=images.write(folder / "overview.png", _overview(shown, *judged[0])),
        cheat=images.write(folder / "cheat.png", _cheat_page(honest, bundled("demo-cheat"))),
        pictures=tuple(pictures),
    )


def showcase(scenes: int) -> list[Scene]:
    """The first scenes of the tour, those with fewer objects first; of two objects most, some of one, one of four."""
    chosen = [*_CHOSEN, *((2, 1000 + i) for i in range(scenes - len(_CHOSEN)))][:scenes]
    return [scene(_FIRST + seed, objects=objects, size=_SIZE) for objects, seed in sorted(chosen, key=itemgetter(0))]


def exhibits() -> list[tuple[str, Scene]]:
    """What proves the cheat, in words and as a scene: an object with the mark, without it, and another with it."""
    return [
        (
            f"a {label} {'with' if mark else 'without'} the mark",
            scene(_FIRST + _CHEAT_SEED, classes=[label], size=_CHEAT_SIZE, mark=mark),
        )
        for label, mark in ((CHEATED, True), (CHEATED, False), (_OTHER, True))
    ]


def judge(model: Loaded, scenes: Sequence[Scene], method: str) -> tuple[Row, list[list[Explanation]]]:
    """Ask for each object of each scene in turn, and compare the maps with the objects' masks.

    Args:
        model: What is explained.
        scenes: Where the objects are known.
        method: A name in :data:`camtool.METHODS`.

    Returns:
        The row, and for each scene an explanation for each of its objects.
    """
    explainer = Explainer(model, method)
    explainer(scenes[0].image)  # what is set up once is nobody's time
    start = time.perf_counter()
    answers = [explainer(each.image, [thing.index for thing in each.objects]) for each in scenes]
    milliseconds = (time.perf_counter() - start) * 1000 / len(scenes)
    found = [
        (thing.mask.flat[answer.heatmap.argmax()], measure.energy_in(answer.heatmap, thing.mask), thing.mask.mean())
        for each, own in zip(scenes, answers, strict=True)
        for thing, answer in zip(each.objects, own, strict=True)
    ]
    hits, energy, share = np.asarray(found, float).mean(0).tolist()
    return Row(method, len(found), hits, energy, share, milliseconds), answers


# --------------------------------------------------------------------------------------------- what is written


def _write_scenes(folder: Path, scenes: Sequence[Scene]) -> list[Path]:
    """Each scene, named by its number and its objects."""
    return [
        images.write(folder / f"{number:02}-{'-'.join(thing.label for thing in each.objects)}.png", each.image)
        for number, each in enumerate(scenes, 1)
    ]


def _write_overlays(folder: Path, scenes: Sequence[Scene], answers: Sequence[Sequence[Explanation]]) -> list[Path]:
    """Each object's overlay, named by the scene's number and the object."""
    return [
        images.write(folder / f"{number:02}-{thing.label}.png", _outlined(thing, answer))
        for number, (each, own) in enumerate(zip(scenes, answers, strict=True), 1)
        for thing, answer in zip(each.objects, own, strict=True)
    ]


def _outlined(thing: Thing, answer: Explanation) -> NDArray[np.uint8]:
    """The overlay, with the true outline of the object."""
    outline = overlay.contours(thing.mask.astype(np.float32), threshold=0.5)
    return overlay.draw_contours(answer.overlay(), outline, width=2)


# --------------------------------------------------------------------------------------------------- the pages


def _overview(scenes: Sequence[Scene], row: Row, answers: Sequence[Sequence[Explanation]]) -> NDArray[np.uint8]:
    """All scenes, and beside each where the model looked when it was asked for each of the objects."""
    words = (
        f"Scenes that the model has never seen, explained with {row.method}. The white line is the true outline of the "
        "object that was asked for; the colour is where the model looked, red most. The figure is the part of the heat "
        "that lies on the object: green where the hottest point does too, else red."
    )
    blocks = list(map(_block, count(1), scenes, answers))
    columns = min(6, max(3, sum(len(block.cells) for block in blocks)))
    return sheet("Where did it look?", words, blocks, columns=columns)


def _block(number: int, picture: Scene, answers: Sequence[Explanation]) -> Block:
    cells = [Cell(picture.image, f"scene {number}")]
    for thing, answer in zip(picture.objects, answers, strict=True):
        energy = f"{measure.energy_in(answer.heatmap, thing.mask):.0%} on it"
        color = GOOD if thing.mask.flat[answer.heatmap.argmax()] else POOR
        cells.append(Cell(_outlined(thing, answer), f"asked for {thing.label}", energy, color))
    return Block(", ".join(thing.label for thing in picture.objects), cells)


def _cheat_page(honest: Loaded, cheat: Loaded) -> NDArray[np.uint8]:
    """Both models before the same pictures."""
    words = (
        f"The cheat learned from pictures in which a watermark went with the class {CHEATED}. It is right as long as "
        f"the mark is there, and its map shows why. Without the mark it is lost; with it, anything is a {CHEATED}."
    )
    shown = exhibits()
    blocks = [
        Block("The pictures", [Cell(picture.image, caption) for caption, picture in shown]),
        Block("The cheat", [_verdict(cheat, picture) for _, picture in shown]),
        Block("The honest model", [_verdict(honest, picture) for _, picture in shown]),
    ]
    return sheet("Right for the wrong reason", words, blocks, columns=len(shown))


def _verdict(model: Loaded, picture: Scene) -> Cell:
    """What a model says of a scene, and how much of what it looked at is the corner with the mark."""
    answer: Explanation = Explainer(model)(picture.image)
    (thing,) = picture.objects
    corner = np.zeros_like(thing.mask)
    corner[round(_CORNER * len(corner)) :, round(_CORNER * len(corner)) :] = True
    return Cell(
        picture=_outlined(thing, answer),
        caption=f"{measure.energy_in(answer.heatmap, corner):.0%} in the corner",
        note=f"“{answer.label}”, {answer.probability:.0%}",
        color=GOOD if answer.index == thing.index else POOR,
    )
