"""Tour of the demo, as ``python -m camtool demo`` runs it: scenes with known objects, and a model that cheats.

The results are pages of captioned pictures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from camtool.demo.camnet import CHEATED_CLASS, load_bundled_model
from camtool.demo.scenes import UNSEEN, Scene, SceneObject, draw_scene
from camtool.errors import CamtoolError
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.models import Loaded
from camtool.rendering import image_writing, regions
from camtool.rendering.contact_sheet import RIGHT, WRONG, Caption, CaptionLine, draw_picture_sheet
from camtool.rendering.pixel_checks import Pixels
from camtool.rendering.text_drawing import MUTED, PAPER, draw_text, load_font, wrap_text
from camtool.rendering.written_files import check_replaceable, replace_files
from camtool.trust.metrics.localization import compute_energy_in_mask

# Methods that the tour compares; the first one is shown on the overview.
METHODS = ("gradcam", "gradcam++", "layercam", "rivalcam", "cam")

# Sides of the scenes on the overview and on the page of the cheat, in pixels.
_SIZE, _CHEAT_SIZE = 256, 320

# (number of objects, seed), chosen by their looks, before a model existed to explain them.
_CHOSEN = (
    (2, 37), (2, 28), (1, 14), (4, 26), (2, 59), (2, 60),
    (1, 32), (2, 77), (2, 64), (2, 61), (1, 11), (2, 58),
)  # fmt: skip
_FIRST = UNSEEN + 100_000  # offset of the seeds above; the model cards use the seeds below it
_CHEAT_SEED, _OTHER = 24, "star"
_CORNER = 0.7  # the corner with the watermark begins here, across and down

# Heights of letters, and pixels around and between lines of text.
_TITLE_SIZE, _TEXT_SIZE, _MARGIN, _LINE_GAP = 34, 18, 24, 8

CaptionedPicture: TypeAlias = "tuple[Pixels, Caption]"


@dataclass(frozen=True)
class Row:
    """Accuracy of a method's maps.

    Attributes:
        method: Name of the method.
        maps: Number of maps, one for each object.
        hits: Share of the maps whose highest pixel is on the object: the pointing game.
        energy: Mean share of a heatmap's sum that is on the object.
        share: Mean share of the image that the object covers: the expected ``energy`` of a constant map.
        milliseconds: Time for one image with all its objects.
    """

    method: str
    maps: int
    hits: float
    energy: float
    share: float
    milliseconds: float


@dataclass(frozen=True)
class Tour:
    """Results of the tour, and the files that it wrote.

    Attributes:
        rows: One row for each method.
        overview: Page with all scenes and the overlay of each object.
        cheat: Page with the cheating model beside the honest one.
        images: Files of the scenes and, for each method, of the overlay of each object.
    """

    rows: tuple[Row, ...]
    overview: Path
    cheat: Path
    images: tuple[Path, ...]


def run_tour(out: str | PathLike[str] = "demo", scenes: int = 12, *, methods: Sequence[str] = METHODS) -> Tour:
    """Explain scenes of the demo with its model, and write scenes, overlays and two pages.

    Args:
        out: Folder to write to.
        scenes: Number of scenes.
        methods: Names of methods.

    Raises:
        CamtoolError: There are no scenes or no methods, a method is unknown, or the folder holds files or folders of
            the same names that camtool did not write.
        OSError: A file cannot be written.
    """
    if scenes < 1 or not methods:
        raise CamtoolError(f"give at least one scene and one method, got scenes={scenes}, methods={list(methods)!r}.")
    folder, names = Path(out), ["overview.png", "cheat.png", "scenes", *methods]
    check_replaceable(folder, names)
    shown, honest = draw_tour_scenes(scenes), load_bundled_model("demo")
    judged = [evaluate_method(honest, shown, method) for method in methods]
    with replace_files(folder, names):
        images = _write_scenes(folder / "scenes", shown)
        for row, explanations in judged:
            images += _write_overlays(folder / row.method, shown, explanations)
        cheat = _draw_cheat_page(honest, load_bundled_model("demo-cheat"))
        return Tour(
            rows=tuple(row for row, _ in judged),
            overview=image_writing.write_image(folder / "overview.png", _draw_overview(shown, *judged[0])),
            cheat=image_writing.write_image(folder / "cheat.png", cheat),
            images=tuple(images),
        )


def draw_tour_scenes(scenes: int) -> list[Scene]:
    """Return the first scenes of the tour, those with fewer objects first. Most have two objects, one has four."""
    chosen = [*_CHOSEN, *((2, 1000 + i) for i in range(scenes - len(_CHOSEN)))][:scenes]
    return [draw_scene(_FIRST + seed, objects=count, size=_SIZE) for count, seed in sorted(chosen, key=itemgetter(0))]


def draw_cheat_scenes() -> list[tuple[str, Scene]]:
    """Return captions and scenes that prove the cheat: an object with the mark, without it, another one with it."""
    return [
        (
            f"a {label} {'with' if mark else 'without'} the watermark",
            draw_scene(_FIRST + _CHEAT_SEED, classes=[label], size=_CHEAT_SIZE, mark=mark),
        )
        for label, mark in ((CHEATED_CLASS, True), (CHEATED_CLASS, False), (_OTHER, True))
    ]


def evaluate_method(model: Loaded, scenes: Sequence[Scene], method: str) -> tuple[Row, list[list[Explanation]]]:
    """Explain each object of each scene, and compare the maps with the objects' masks.

    Args:
        model: The model.
        scenes: The scenes.
        method: Name of a method.

    Returns:
        The row and, for each scene, an explanation of each of its objects.
    """
    explainer = Explainer(model, method)
    busiest = max(scenes, key=lambda scene: len(scene.objects))
    # The first call prepares the model, and one of several classes imports more of torch: they are not timed.
    explainer(busiest.image, [item.index for item in busiest.objects])
    start = time.perf_counter()
    explanations = [explainer(scene.image, [item.index for item in scene.objects]) for scene in scenes]
    milliseconds = (time.perf_counter() - start) * 1000 / len(scenes)
    pairs = [
        (explanation.heatmap, item.mask)
        for scene, own in zip(scenes, explanations, strict=True)
        for item, explanation in zip(scene.objects, own, strict=True)
    ]
    measures = [(mask.flat[heat.argmax()], compute_energy_in_mask(heat, mask), mask.mean()) for heat, mask in pairs]
    hits, energy, share = np.asarray(measures, float).mean(0).tolist()
    return Row(method, len(measures), hits, energy, share, milliseconds), explanations


# --------------------------------------------------------------------------------------------- files


def _write_scenes(folder: Path, scenes: Sequence[Scene]) -> list[Path]:
    """Write each scene to a file named by its number and its objects."""
    return [
        image_writing.write_image(
            folder / f"{number:02}-{'-'.join(item.label for item in scene.objects)}.png", scene.image
        )
        for number, scene in enumerate(scenes, 1)
    ]


def _write_overlays(folder: Path, scenes: Sequence[Scene], explanations: Sequence[Sequence[Explanation]]) -> list[Path]:
    """Write the overlay of each object to a file named by the scene's number and the object."""
    return [
        image_writing.write_image(folder / f"{number:02}-{item.label}.png", _draw_outlined_overlay(item, explanation))
        for number, (scene, own) in enumerate(zip(scenes, explanations, strict=True), 1)
        for item, explanation in zip(scene.objects, own, strict=True)
    ]


def _draw_outlined_overlay(item: SceneObject, explanation: Explanation) -> Pixels:
    """Return the overlay with the true outline of the object."""
    outline = regions.find_contours(item.mask.astype(np.float32), threshold=0.5)
    return regions.draw_contours(explanation.overlay(), outline, width=2)


# --------------------------------------------------------------------------------------------------- pages


def _draw_overview(scenes: Sequence[Scene], row: Row, explanations: Sequence[Sequence[Explanation]]) -> Pixels:
    """Return a page with all scenes, each beside the overlays of its objects."""
    introduction = (
        f"Scenes that were not used for training, explained with {row.method}. The white line is the true outline of "
        "the target object. Red regions have the largest influence on its score. The figure is the share of the "
        "heatmap on the object: green if the hottest point is on it, else red."
    )
    pictures = [picture for each in zip(count(1), scenes, explanations) for picture in _list_pictures(*each)]
    return draw_page("Where does the model look?", introduction, pictures, columns=6, side=_SIZE)


def _list_pictures(number: int, scene: Scene, explanations: Sequence[Explanation]) -> Iterator[CaptionedPicture]:
    """Yield a scene and the overlays of its objects."""
    yield scene.image, [CaptionLine(f"scene {number}: {', '.join(item.label for item in scene.objects)}")]
    for item, explanation in zip(scene.objects, explanations, strict=True):
        energy = f"{compute_energy_in_mask(explanation.heatmap, item.mask):.0%} on it"
        color = RIGHT if item.mask.flat[explanation.heatmap.argmax()] else WRONG
        yield _draw_outlined_overlay(item, explanation), [CaptionLine(f"target: {item.label}", MUTED, energy, color)]


def _draw_cheat_page(honest: Loaded, cheat: Loaded) -> Pixels:
    """Return a page on which both models explain the same images."""
    label = CHEATED_CLASS
    introduction = (
        f"The cheating model was trained on images in which a watermark came with the class {label}. It is right as "
        "long as the watermark is there, and its map shows why. Without the watermark it fails; with it, any object is "
        f"a {label}."
    )
    shown = draw_cheat_scenes()
    pictures: list[CaptionedPicture] = [(scene.image, [CaptionLine(caption)]) for caption, scene in shown]
    for name, model in {"the cheating model": cheat, "the honest model": honest}.items():
        pictures += [_explain_scene(name, model, scene) for _, scene in shown]
    return draw_page("Right for the wrong reason", introduction, pictures, columns=len(shown), side=_CHEAT_SIZE)


def _explain_scene(name: str, model: Loaded, scene: Scene) -> CaptionedPicture:
    """Return the overlay of a model's own class, with its label and the share of the heatmap in the marked corner."""
    explanation: Explanation = Explainer(model)(scene.image)
    (item,) = scene.objects
    corner = np.zeros_like(item.mask)
    corner[round(_CORNER * len(corner)) :, round(_CORNER * len(corner)) :] = True
    note = f"“{explanation.label}”, {explanation.probability:.0%}"
    color = RIGHT if explanation.index == item.index else WRONG
    share = f"{compute_energy_in_mask(explanation.heatmap, corner):.0%} in the corner"
    caption = [CaptionLine(name, end=note, end_color=color), CaptionLine(share, MUTED)]
    return _draw_outlined_overlay(item, explanation), caption


def draw_page(
    title: str, introduction: str, pictures: Sequence[CaptionedPicture], *, columns: int, side: int
) -> Pixels:
    """Draw pictures below a title and a few sentences.

    Args:
        title: Title of the page.
        introduction: The sentences.
        pictures: As for :func:`camtool.rendering.contact_sheet.draw_picture_sheet`, which draws them.
        columns: Number of pictures in a row.
        side: Side of each picture in pixels.

    Returns:
        (H, W, 3) uint8.
    """
    sheet = Image.fromarray(draw_picture_sheet(pictures, columns=columns, side=side))
    lines = wrap_text(introduction, load_font(_TEXT_SIZE), sheet.width - 2 * _MARGIN)
    text_top, step = 2 * _MARGIN + _TITLE_SIZE, _TEXT_SIZE + _LINE_GAP
    sheet_top = text_top + len(lines) * step
    page = Image.new("RGB", (sheet.width, sheet_top + sheet.height), PAPER)
    page.paste(sheet, (0, sheet_top))
    draw_text(page, (_MARGIN, _MARGIN), title, _TITLE_SIZE)
    for number, line in enumerate(lines):
        draw_text(page, (_MARGIN, text_top + number * step), line, _TEXT_SIZE, MUTED)
    return np.asarray(page)
