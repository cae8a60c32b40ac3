"""Tour of the demo, as ``python -m camtool demo`` runs it: scenes with known objects, and a model that cheats.

The results are pages of captioned images in groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from camtool.demo.camnet import CHEATED_CLASS, load_bundled_model
from camtool.demo.scenes import UNSEEN, Scene, SceneObject, draw_scene
from camtool.errors import CamtoolError
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.models import Loaded
from camtool.rendering import image_writing, regions
from camtool.rendering.pixel_checks import Color, Pixels
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

# Colors of notes on correct and on wrong results.
CORRECT, WRONG = (22, 128, 84), (200, 44, 44)

# Color of the line above a group.
_RULE = (206, 209, 214)

# Heights of letters, in pixels.
_TITLE_SIZE, _TEXT_SIZE, _CAPTION_SIZE = 38, 21, 18

# Pixels around the page, between images, and between lines of text.
_MARGIN, _GAP, _LINE_GAP = 48, 16, 10

# Pixels above and below the images of a group, for its heading and the captions.
_HEADING_HEIGHT, _CAPTION_HEIGHT = 48, 54


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
    groups = list(map(_build_group, count(1), scenes, explanations))
    columns = min(6, max(3, sum(len(group.images) for group in groups)))
    return draw_page("Where does the model look?", introduction, groups, columns=columns)


def _build_group(number: int, scene: Scene, explanations: Sequence[Explanation]) -> ImageGroup:
    """Return a scene and the overlays of its objects as a group of images."""
    images = [CaptionedImage(scene.image, f"scene {number}")]
    for item, explanation in zip(scene.objects, explanations, strict=True):
        energy = f"{compute_energy_in_mask(explanation.heatmap, item.mask):.0%} on it"
        color = CORRECT if item.mask.flat[explanation.heatmap.argmax()] else WRONG
        images.append(CaptionedImage(_draw_outlined_overlay(item, explanation), f"target: {item.label}", energy, color))
    return ImageGroup(", ".join(item.label for item in scene.objects), images)


def _draw_cheat_page(honest: Loaded, cheat: Loaded) -> Pixels:
    """Return a page on which both models explain the same images."""
    label = CHEATED_CLASS
    introduction = (
        f"The cheating model was trained on images in which a watermark came with the class {label}. It is right as "
        "long as the watermark is there, and its map shows why. Without the watermark it fails; with it, any object is "
        f"a {label}."
    )
    shown = draw_cheat_scenes()
    groups = [
        ImageGroup("The images", [CaptionedImage(scene.image, caption) for caption, scene in shown]),
        ImageGroup("The cheating model", [_explain_scene(cheat, scene) for _, scene in shown]),
        ImageGroup("The honest model", [_explain_scene(honest, scene) for _, scene in shown]),
    ]
    return draw_page("Right for the wrong reason", introduction, groups, columns=len(shown))


def _explain_scene(model: Loaded, scene: Scene) -> CaptionedImage:
    """Return the overlay of a model's own class, its label, and the share of the heatmap in the marked corner."""
    explanation: Explanation = Explainer(model)(scene.image)
    (item,) = scene.objects
    corner = np.zeros_like(item.mask)
    corner[round(_CORNER * len(corner)) :, round(_CORNER * len(corner)) :] = True
    return CaptionedImage(
        image=_draw_outlined_overlay(item, explanation),
        caption=f"{compute_energy_in_mask(explanation.heatmap, corner):.0%} in the corner",
        note=f"“{explanation.label}”, {explanation.probability:.0%}",
        color=CORRECT if explanation.index == item.index else WRONG,
    )


@dataclass(frozen=True, eq=False)
class CaptionedImage:
    """Image with a caption and a note below it.

    Attributes:
        image: (S, S, 3) uint8; all images of a page have one size.
        caption: Text below it on the left.
        note: Text below it on the right.
        color: Color of the note.
    """

    image: Pixels
    caption: str
    note: str = ""
    color: Color = MUTED


@dataclass(frozen=True, eq=False)
class ImageGroup:
    """Images that belong together, side by side under a heading."""

    heading: str
    images: Sequence[CaptionedImage]


def draw_page(title: str, introduction: str, groups: Sequence[ImageGroup], *, columns: int) -> Pixels:
    """Draw groups of images below a title and an introduction.

    Args:
        title: Title of the page.
        introduction: A few sentences below the title.
        groups: Each group stays in one row. A row takes as many groups as fit.
        columns: Largest number of images in a row.

    Returns:
        (H, W, 3) uint8.
    """
    side = len(groups[0].images[0].image)
    width = columns * (side + _GAP) - _GAP
    lines, rows = wrap_text(introduction, load_font(_TEXT_SIZE), width), _fill_rows(groups, columns)
    lines_top = _MARGIN + _TITLE_SIZE + 20
    top = lines_top + len(lines) * (_TEXT_SIZE + _LINE_GAP) + 24
    row_height = _HEADING_HEIGHT + side + _CAPTION_HEIGHT
    page = Image.new("RGB", (width + 2 * _MARGIN, top + len(rows) * row_height + _MARGIN // 2), PAPER)
    draw_text(page, (_MARGIN, _MARGIN), title, _TITLE_SIZE)
    for i, line in enumerate(lines):
        draw_text(page, (_MARGIN, lines_top + i * (_TEXT_SIZE + _LINE_GAP)), line, _TEXT_SIZE, MUTED)
    for i, row in enumerate(rows):
        left = _MARGIN
        for group in row:
            _draw_group(page, group, left, top + i * row_height)
            left += len(group.images) * (side + _GAP)
    return np.asarray(page)


def _fill_rows(groups: Iterable[ImageGroup], columns: int) -> list[list[ImageGroup]]:
    """Return rows of groups: each group is in the first row that has space for it."""
    rows: list[list[ImageGroup]] = []
    for group in groups:
        for row in rows:
            if sum(len(neighbor.images) for neighbor in row) + len(group.images) <= columns:
                row.append(group)
                break
        else:
            rows.append([group])
    return rows


def _draw_group(page: Image.Image, group: ImageGroup, left: int, top: int) -> None:
    side = len(group.images[0].image)
    right = left + len(group.images) * (side + _GAP) - _GAP
    ImageDraw.Draw(page).line((left, top, right - 1, top), fill=_RULE, width=1)
    draw_text(page, (left, top + 13), group.heading, _TEXT_SIZE)
    for i, picture in enumerate(group.images):
        x, below = left + i * (side + _GAP), top + _HEADING_HEIGHT + side + 10
        page.paste(Image.fromarray(picture.image), (x, top + _HEADING_HEIGHT))
        draw_text(page, (x, below), picture.caption, _CAPTION_SIZE, MUTED)
        draw_text(page, (x + side, below), picture.note, _CAPTION_SIZE, picture.color, anchor="ra")
