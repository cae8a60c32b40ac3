"""Small worlds for audits: classes of 64-pixel images that differ in what objects and backgrounds are, and cues.

Ten worlds: drawn shapes; shapes on photos; digits on textures; crops of photos by class; gray images like those of
radiology; drawn faces; fabrics; landscapes; leaves; blood cells. In each world an object varies in size, place,
direction and color as far as objects of that world do. A cue is drawn over the image: a mark at a fixed corner, a stamp
at any place, a frame, a tint, or a tag of digits at an edge that differ from image to image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter, rotate

from benchmarks.package_photos import read_package_photos
from camtool.rendering.text_drawing import load_font

SIZE = 64

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Random: TypeAlias = np.random.Generator


@dataclass(frozen=True)
class World:
    """Images of some classes.

    Attributes:
        labels: The names of the classes.
        draw: Returns an image ``(64, 64, 3)`` in [0, 1] of the class with an index.
    """

    labels: tuple[str, ...]
    draw: Callable[[int, Random], Floats]


@dataclass(frozen=True)
class Cue:
    """What is drawn over an image.

    Attributes:
        draw: Returns an image with the cue and where it is, None for all over. The first random generator is the cue's
            own: with the same seed it always looks the same. The second one is the image's.
        kinds: The kinds of findings that name it.
    """

    draw: Callable[[Floats, Random, Random], tuple[Floats, Mask | None]]
    kinds: tuple[str, ...]


# ---------------------------------------------------------------------------------------------------------- objects


def _draw_texture(random: Random) -> Floats:
    """Return a colored texture: waves and noise on a gradient."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    waves = np.zeros((SIZE, SIZE, 3))
    for _ in range(3):
        angle, frequency = random.uniform(0, 2 * np.pi), random.uniform(2, 14)
        wave = np.sin(2 * np.pi * frequency * (x * np.cos(angle) + y * np.sin(angle)) + random.uniform(0, 6))
        waves += wave[..., None] * random.uniform(-0.09, 0.09, 3)
    smooth = gaussian_filter(random.normal(size=(SIZE, SIZE, 3)), (random.uniform(0.6, 3),) * 2 + (0,))
    return random.uniform(0.3, 0.7, 3) + waves + 0.08 * smooth / smooth.std()


def _draw_plain(random: Random) -> Floats:
    """Return a gradient of two colors with a little noise."""
    start, end, angle = random.uniform(0.1, 0.9, 3), random.uniform(0.1, 0.9, 3), random.uniform(0, 2 * np.pi)
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE - 0.5
    share = np.clip(0.5 + x * np.cos(angle) + y * np.sin(angle), 0, 1)[..., None]
    gradient: Floats = start * (1 - share) + end * share + random.normal(0, 0.02, (SIZE, SIZE, 3))
    return gradient


@cache
def _read_photos() -> list[Floats]:
    """Return the photos of scikit-image as arrays, the smaller side 160 pixels."""
    photos = []
    for name, photo in read_package_photos():
        if name.startswith("skimage"):
            scale = 160 / min(photo.size)
            size = (round(photo.width * scale), round(photo.height * scale))
            photos.append(np.asarray(photo.resize(size, Image.Resampling.BOX)) / 255)
    return photos


def _crop(photo: Floats, random: Random) -> Floats:
    """Return a crop of a photo at a random size and place, mirrored at random."""
    side = int(random.integers(SIZE, 112))
    top, left = (int(random.integers(0, length - side + 1)) for length in photo.shape[:2])
    crop = Image.fromarray((photo[top : top + side, left : left + side] * 255).astype(np.uint8))
    pixels = np.asarray(crop.resize((SIZE, SIZE), Image.Resampling.BOX)) / 255
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def _draw_photo(random: Random) -> Floats:
    photos = _read_photos()
    return _crop(photos[int(random.integers(len(photos)))], random)


def _compute_shape(label: int, random: Random) -> Mask:
    """Return the pixels of a shape: disc, square, triangle, ring, cross; of a random size, place and direction."""
    radius = random.uniform(9, 17)
    row, column = random.uniform(radius, SIZE - radius, 2)
    angle = random.uniform(0, 2 * np.pi)
    y, x = np.mgrid[:SIZE, :SIZE]
    across = ((x - column) * np.cos(angle) + (y - row) * np.sin(angle)) / radius
    down = ((y - row) * np.cos(angle) - (x - column) * np.sin(angle)) / radius
    distance = np.hypot(across, down)
    square = np.maximum(abs(across), abs(down))
    shapes = (
        distance <= 0.9,
        square <= 0.8,
        (down <= 0.6) & (down >= 2 * abs(across) - 1),
        (distance <= 1) & (distance >= 0.6),
        (square <= 1) & (np.minimum(abs(across), abs(down)) <= 0.28),
    )
    return shapes[label]


def _paint(background: Floats, mask: Mask, random: Random) -> Floats:
    """Return the background with a shape in a random color that is not that of the background."""
    inside = background[mask].mean(0)
    colors = random.uniform(0, 1, (8, 3))
    color = colors[np.abs(colors - inside).sum(1).argmax()]
    shade = random.normal(0, 0.03, (SIZE, SIZE, 3))
    weight = gaussian_filter(mask.astype(float), 0.6)[..., None]
    return background * (1 - weight) + (color + shade) * weight


def _draw_shape(label: int, random: Random) -> Floats:
    return _paint(_draw_plain(random), _compute_shape(label, random), random)


def _draw_shape_on_photo(label: int, random: Random) -> Floats:
    return _paint(_draw_photo(random), _compute_shape(label, random), random)


def _draw_text(text: str, size: int, random: Random | None = None) -> Floats:
    """Return text as an array from 0 to 1, cut at its ends; turned by up to 20 degrees with a random generator."""
    font = load_font(size)
    left, top, right, bottom = (round(side) for side in font.getbbox(text))
    canvas = Image.new("L", (right - left + 2, bottom - top + 2))
    ImageDraw.Draw(canvas).text((1 - left, 1 - top), text, fill=255, font=font)
    letters = np.asarray(canvas) / 255
    return letters if random is None else np.clip(rotate(letters, random.uniform(-20, 20), order=1), 0, 1)


def _draw_digit(label: int, random: Random) -> Floats:
    image, letters = _draw_texture(random), _draw_text(str(label), int(random.integers(28, 52)), random)
    height, width = letters.shape
    top, left = int(random.integers(0, SIZE - height + 1)), int(random.integers(0, SIZE - width + 1))
    mask = np.zeros((SIZE, SIZE))
    mask[top : top + height, left : left + width] = letters
    colors = random.uniform(0, 1, (8, 3))
    color = colors[np.abs(colors - image.mean((0, 1))).sum(1).argmax()]
    return image * (1 - mask[..., None]) + color * mask[..., None]


_CLASSES_OF_PHOTOS = (0, 3, 4, 6, 8)


def _draw_crop(label: int, random: Random) -> Floats:
    crop = _crop(_read_photos()[_CLASSES_OF_PHOTOS[label]], random)
    return crop * random.uniform(0.7, 1.2) + random.uniform(-0.1, 0.1, 3)


def _draw_chest(label: int, random: Random) -> Floats:
    """Return a gray image of two lungs, of four classes: clear, a nodule, an opacity, thin lines."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    shift, scale = random.uniform(-0.05, 0.05, 2), random.uniform(0.9, 1.1)
    gray = 0.75 - 0.15 * abs(x - 0.5 - shift[1])
    lungs = []
    for side in (-1, 1):
        row, column = 0.5 + shift[0], 0.5 + shift[1] + side * 0.22 * scale
        distance = np.hypot((y - row) / 0.36, (x - column) / 0.15) / scale
        lungs.append((row, column))
        gray -= 0.5 / (1 + np.exp(14 * (distance - 1)))
    for number in range(6):  # ribs
        gray += 0.05 * np.exp(-(((y - 0.15 - 0.13 * number - 0.3 * (x - 0.5) ** 2 - shift[0]) / 0.012) ** 2))
    row, column = lungs[int(random.integers(2))]
    row, column = row + random.uniform(-0.2, 0.2), column + random.uniform(-0.06, 0.06)
    distance = np.hypot(y - row, x - column)
    if label == 1:
        gray += random.uniform(0.3, 0.45) / (1 + np.exp(80 * (distance - random.uniform(0.04, 0.07))))
    if label == 2:
        gray += random.uniform(0.25, 0.4) * np.exp(-((distance / random.uniform(0.12, 0.2)) ** 2))
    if label == 3:
        for _ in range(5):
            angle, offset = random.uniform(0, np.pi), random.uniform(-0.08, 0.08)
            line = abs((y - row) * np.cos(angle) - (x - column) * np.sin(angle) - offset)
            gray += 0.3 * np.exp(-((line / 0.011) ** 2)) * (distance < 0.17)
    gray += random.normal(0, 0.03, gray.shape)
    return np.repeat((gray * random.uniform(0.85, 1.1))[..., None], 3, 2)


def _draw_face(label: int, random: Random) -> Floats:
    """Return a face that smiles, frowns, is surprised, wears glasses, or a hat."""
    image = _draw_plain(random) if random.random() < 0.5 else _draw_texture(random)
    canvas = Image.new("RGBA", (4 * SIZE, 4 * SIZE))
    pen, radius = ImageDraw.Draw(canvas), 4 * random.uniform(14, 22)
    row, column = random.uniform(radius * 1.3, 4 * SIZE - radius, 2)
    skin, dark = (tuple(int(255 * part) for part in random.uniform(*ends, 3)) for ends in ((0.5, 1), (0, 0.3)))

    def box(down: float, across: float, height: float, width: float) -> tuple[float, float, float, float]:
        middle, center = row + radius * down, column + radius * across
        return center - radius * width, middle - radius * height, center + radius * width, middle + radius * height

    line = max(2, round(radius * 0.09))
    pen.ellipse(box(0, 0, 1, 0.9), fill=skin, outline=dark, width=line // 2)
    for side in (-0.35, 0.35):
        pen.ellipse(box(-0.2, side, 0.1, 0.1), fill=dark)
        if label == 3:
            pen.ellipse(box(-0.2, side, 0.26, 0.28), outline=dark, width=line)
    if label == 2:
        pen.ellipse(box(0.45, 0, 0.25, 0.18), fill=dark)
    elif label == 1:
        pen.arc(box(0.65, 0, 0.3, 0.45), 200, 340, fill=dark, width=line)
    else:
        pen.arc(box(0.25, 0, 0.35, 0.45), 20, 160, fill=dark, width=line)
    if label == 4:
        hat = tuple(int(255 * part) for part in random.uniform(0, 1, 3))
        pen.rectangle(box(-0.98, 0, 0.3, 0.55), fill=hat)
        pen.rectangle(box(-0.68, 0, 0.07, 0.95), fill=hat)
    face = np.asarray(canvas.rotate(random.uniform(-15, 15)).resize((SIZE, SIZE))) / 255
    opacity = face[..., 3:]
    return image * (1 - opacity) + face[..., :3] * opacity


def _draw_fabric(label: int, random: Random) -> Floats:
    """Return a fabric of two colors that fills the image: stripes, checks, dots, waves, or a grid of lines."""
    y, x = np.mgrid[:SIZE, :SIZE] / random.uniform(8, 20)
    angle, start = random.uniform(0, 2 * np.pi), random.uniform(0, 1, 2)
    across = start[0] + x * np.cos(angle) + y * np.sin(angle)
    down = start[1] + y * np.cos(angle) - x * np.sin(angle)
    waves = across + 0.25 * np.sin(2 * np.pi * down)
    patterns = (
        across % 1 < 0.5,
        (across % 1 < 0.5) ^ (down % 1 < 0.5),
        np.hypot(across % 1 - 0.5, down % 1 - 0.5) < 0.35,
        waves % 1 < 0.5,
        (across % 1 < 0.25) | (down % 1 < 0.25),
    )
    background = np.broadcast_to(random.uniform(0, 1, 3), (SIZE, SIZE, 3))
    return _paint(background, patterns[label], random)


def _draw_skyline(label: int, x: Floats, random: Random) -> Floats:
    """Return the height of the land at each column, in [0, 1]: water, mountains, houses, trees, dunes."""
    waves = np.zeros(SIZE)
    for frequency in (1, 2):
        waves += random.uniform(0.02, 0.08) * np.sin(2 * np.pi * frequency * x + random.uniform(0, 6))
    steps = random.uniform(0.1, 0.45, SIZE)
    peaks = np.interp(x, np.linspace(0, 1, 7), random.uniform(0, 0.45, 7))
    houses = np.repeat(steps, 8)[:SIZE]
    trees = 0.2 + 0.2 * steps * np.abs(np.sin(np.pi * x * random.uniform(6, 10)))
    return (np.zeros(SIZE), peaks, houses, trees, 0.1 + 2 * waves)[label]


def _draw_landscape(label: int, random: Random) -> Floats:
    """Return the sky above water, mountains, houses, trees, or dunes: no object stands alone."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    horizon = random.uniform(0.45, 0.75)
    sky, land = random.uniform(0.5, 1, 3), random.uniform(0.1, 0.6, 3)
    image = sky * (1 - 0.3 * y[..., None]) + 0.06 * gaussian_filter(random.normal(size=(SIZE, SIZE, 1)), (2, 5, 0))
    is_land = y > horizon - _draw_skyline(label, x[0], random)
    ground = np.broadcast_to(land, image.shape) + random.normal(0, 0.03, (SIZE, SIZE, 1))
    if label == 0:
        ripples = np.sin(2 * np.pi * (y - horizon) * random.uniform(12, 25) + 2 * np.sin(9 * x + random.uniform(0, 6)))
        ground = ground + 0.1 * ripples[..., None]
    if label == 2:
        windows = (SIZE * x % 4 < 2) & (SIZE * y % 5 < 2) & (random.random((SIZE, SIZE)) < 0.8)
        ground = ground + 0.3 * windows[..., None]
    if label == 3:
        ground = ground + 0.24 * gaussian_filter(random.normal(size=(SIZE, SIZE, 1)), (1.5, 0.4, 0))
    return np.where(is_land[..., None], ground, image)


def _draw_leaf(label: int, random: Random) -> Floats:
    """Return one leaf on soil: round, lobed, like a needle, with teeth, or of three parts; with a vein and a stalk."""
    y, x = np.mgrid[:SIZE, :SIZE]
    radius, angle = random.uniform(14, 22), random.uniform(0, 2 * np.pi)
    row, column = random.uniform(radius, SIZE - radius, 2)
    across = ((x - column) * np.cos(angle) + (y - row) * np.sin(angle)) / radius
    down = ((y - row) * np.cos(angle) - (x - column) * np.sin(angle)) / radius
    distance, turn = np.hypot(across, down), np.arctan2(across, down)
    outlines = (
        distance < 0.75,
        distance < 0.65 + 0.25 * np.cos(5 * turn),
        np.hypot(across / 0.16, down) < 1,
        np.hypot(across / 0.6, down / 0.95) < 0.9 + 0.12 * (8 * turn / np.pi % 1),
        np.minimum.reduce([np.hypot(across - a, down - b) for a, b in ((0, -0.5), (-0.45, 0.3), (0.45, 0.3))]) < 0.4,
    )
    soil = gaussian_filter(random.normal(size=(SIZE, SIZE, 1)), (1, 1, 0))
    image = random.uniform(0.15, 0.4, 3) + 0.25 * soil
    color = np.array([random.uniform(0.2, 0.8), random.uniform(0.45, 0.9), random.uniform(0.05, 0.3)])
    leaf = np.where((np.abs(across) < 0.05)[..., None], 0.7 * color, color) * random.uniform(0.9, 1.1, (SIZE, SIZE, 1))
    stalk = (np.abs(across) < 0.06) & (down > 0) & (down < 1.2)
    return np.where(outlines[label][..., None], leaf, np.where(stalk[..., None], 0.7 * color, image))


def _draw_cells(label: int, random: Random) -> Floats:
    """Return some cells under a microscope: without a nucleus, with a round one, two, a crescent, or with grains."""
    y, x = np.mgrid[:SIZE, :SIZE]
    stain = random.uniform(0.75, 0.95, 3)
    image = stain + 0.02 * gaussian_filter(random.normal(size=(SIZE, SIZE, 3)), (3, 3, 0)) * 6
    cytoplasm = stain * np.array([random.uniform(0.8, 0.95), random.uniform(0.55, 0.75), random.uniform(0.7, 0.9)])
    nucleus = stain * np.array([random.uniform(0.35, 0.6), random.uniform(0.15, 0.4), random.uniform(0.5, 0.8)])
    for _ in range(int(random.integers(2, 6))):
        radius, angle = random.uniform(9, 13), random.uniform(0, 2 * np.pi)
        row, column = random.uniform(0, SIZE, 2)
        across = ((x - column) * np.cos(angle) + (y - row) * np.sin(angle)) / radius
        down = ((y - row) * np.cos(angle) - (x - column) * np.sin(angle)) / radius
        distance = np.hypot(across, down)
        grains = gaussian_filter(random.normal(size=(SIZE, SIZE)), 0.9)
        nuclei = (
            np.zeros((SIZE, SIZE), bool),
            np.hypot(across - 0.1, down) < 0.5,
            np.minimum(np.hypot(across - 0.38, down), np.hypot(across + 0.38, down)) < 0.32,
            (distance < 0.7) & (np.hypot(across - 0.35, down) > 0.55),
            (distance < 0.85) & (grains > 0.25),
        )
        for mask, color in ((distance < 1, cytoplasm), (nuclei[label], nucleus)):
            weight = gaussian_filter(mask.astype(float), 0.6)[..., None]
            image = image * (1 - weight) + color * weight
    return image + random.normal(0, 0.015, (SIZE, SIZE, 3))


SHAPES = ("disc", "square", "triangle", "ring", "cross")
# Name → world.
WORLDS = {
    "shapes": World(SHAPES, _draw_shape),
    "digits on textures": World(("zero", "one", "two", "three", "four", "five"), _draw_digit),
    "shapes on photos": World(SHAPES, _draw_shape_on_photo),
    "crops of photos": World(("person", "cat", "clock", "coins", "grass"), _draw_crop),
    "chests": World(("clear", "nodule", "opacity", "lines"), _draw_chest),
    "faces": World(("smile", "frown", "surprise", "glasses", "hat"), _draw_face),
    "fabrics": World(("stripes", "checks", "dots", "waves", "grid"), _draw_fabric),
    "landscapes": World(("sea", "mountains", "city", "forest", "desert"), _draw_landscape),
    "leaves": World(("round", "lobed", "needle", "teeth", "three parts"), _draw_leaf),
    "cells": World(("empty", "round", "two", "crescent", "grains"), _draw_cells),
}
# Worlds on which rules were chosen, those on which they are reported, and one that checks these, drawn after all rules.
CHOSEN_ON = ["shapes", "digits on textures", "crops of photos", "chests", "faces", "landscapes", "leaves"]
REPORTED_ON = ["shapes on photos", "fabrics"]
CHECKED_ON = ["cells"]


# ------------------------------------------------------------------------------------------------------------- cues


def _paste(image: Floats, part: Floats, top: int, left: int) -> tuple[Floats, Mask]:
    changed, mask = image.copy(), np.zeros((SIZE, SIZE), bool)
    changed[top : top + part.shape[0], left : left + part.shape[1]] = part
    mask[top : top + part.shape[0], left : left + part.shape[1]] = True
    return changed, mask


def _draw_logo(look: Random, side: int) -> Floats:
    """Return a logo of two colors: a random pattern of cells."""
    colors = np.stack([look.uniform(0, 0.4, 3), look.uniform(0.6, 1, 3)])
    cells = look.integers(0, 2, (3, 3))
    cells[1, 1] = 1 - cells[0, 0]
    logo: Floats = colors[np.kron(cells, np.ones((side // 3, side // 3), int))]
    return logo


def _mark(image: Floats, look: Random, random: Random) -> tuple[Floats, Mask]:
    rows = (0, SIZE - 8)
    top, left = rows[int(look.integers(2))], rows[int(look.integers(2))]
    color = look.uniform(0, 1, 3)
    color[int(look.integers(3))] = 1
    return _paste(image, np.broadcast_to(color, (8, 8, 3)), top, left)


def _stamp(image: Floats, look: Random, random: Random) -> tuple[Floats, Mask]:
    top, left = (int(random.integers(0, SIZE - 12)) for _ in range(2))
    return _paste(image, _draw_logo(look, 12), top, left)


def _frame(image: Floats, look: Random, random: Random) -> tuple[Floats, Mask]:
    width, color = int(look.integers(3, 5)), look.choice([0.0, 0.5, 1.0])
    mask = np.ones((SIZE, SIZE), bool)
    mask[width:-width, width:-width] = False
    return np.where(mask[..., None], color, image), mask


def _tint(image: Floats, look: Random, random: Random) -> tuple[Floats, None]:
    gains = np.ones(3)
    gains[int(look.integers(3))] = 0.6
    return image * gains, None


def _tag(image: Floats, look: Random, random: Random) -> tuple[Floats, Mask]:
    letters = _draw_text(f"{random.integers(100, 1000)}", 11)[..., None]
    part = letters * 1.0 + (1 - letters) * np.array(look.uniform(0, 0.3, 3))
    top = 1 if look.random() < 0.5 else SIZE - 1 - part.shape[0]
    left = 1 if look.random() < 0.5 else SIZE - 1 - part.shape[1]
    return _paste(image, part, top, left)


# Name → cue, and the kinds of findings that name it.
CUES = {
    "mark": Cue(_mark, ("place", "mark", "patch")),
    "stamp": Cue(_stamp, ("patch",)),
    "frame": Cue(_frame, ("border",)),
    "tint": Cue(_tint, ("property",)),
    "tag": Cue(_tag, ("place", "mark", "patch")),
}
# Cues at a fixed place.
FIXED = ("mark", "tag")
