"""Candidates of the kinds *property* and *color*: the photos of a class are bluer or sharper; they have blue parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, max_pool2d

from camtool.evaluation.audit.cues.candidates import Change, CueCandidate, Discovery, RegionCandidate
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import ALPHA
from camtool.evaluation.photo_properties import PROPERTIES, leave_out, measure_parts
from camtool.inputs.prepared_inputs import PreparedInput

# Side to which photos are made smaller to measure their colors.
_SIDE = 64

# Degrees from hue to hue in CIELAB, and how far the hues of one color are apart.
_STEP, _WIDTH = 15, 30

# Ranges of chroma in CIELAB: pale and strong.
_CHROMA = ((12.0, 40.0), (30.0, 200.0))

# Ranges of lightness in CIELAB of what has less chroma than that of grays.
_GRAYS = (("black", 0, 35), ("gray", 35, 75), ("white", 75, 101))

_GRAY = 15.0

# Share of an image that a part has at most: more is its tint. Shares above the cap count alike, or one large object
# would count as much as many small parts.
_MOST_SHARE, _CAP = 0.3, 0.05

_MOST_PER_CLASS = 2

# Share of the parts of a photo that need not have a property that was added to it, e.g. black ones have no tint.
_STRAY = 0.1

# Standard deviations within classes by which all parts of the photos of a class differ from those of others.
_LEAST_DISTANCE = 0.5

# Distance of a class from the nearest other one, as a share of the distance between the others. In seven worlds (see
# ``CHOSEN_ON`` in ``benchmarks/audit_worlds_scenes.py``) half of it tells tints from the colors of objects.
_LEAST_GAP = 0.5

# Standard deviation of a property that counts as none, e.g. of the tint of gray photos.
_LEAST_DEVIATION = 1e-6

# Share of a pixel of the photo from which on it is outside of a region of the input: rims of the region do not count.
_OUTSIDE = 0.99

# Hue in CIELAB up to which a color has a name.
_NAMES = (
    (15, "pink"),
    (50, "red"),
    (80, "orange"),
    (110, "yellow"),
    (165, "green"),
    (235, "turquoise"),
    (312, "blue"),
    (340, "purple"),
    (360, "pink"),
)


@dataclass(frozen=True, eq=False)
class PropertyCandidate(CueCandidate):
    """A property of the whole photo.

    Attributes:
        number: Its place in :data:`PROPERTIES`.
        sign: 1 if the class has more of it, -1 for less.
        of_class: Its mean in the class.
        of_others: Its mean in the other classes.
        kept: Parts of the images that neither count nor are changed, see :meth:`leave_region`; None for none.
        is_outlier: True if the class stands out by it, see :func:`_mark_outliers`.
    """

    kind: ClassVar[str] = "property"
    fills: ClassVar[tuple[str, ...]] = ("a shift to the mean of the other classes",)
    compares_images: ClassVar[bool] = True
    compares_classes: ClassVar[bool] = True
    # Photos differ in brightness or tint for many reasons, so few of a class are beyond nearly all others.
    present: ClassVar[float] = 0.5

    number: int
    sign: int
    of_class: float
    of_others: float
    kept: RegionCandidate | None = None
    is_outlier: bool = False

    @property
    def suspicion(self) -> str:
        """The reason why it is no part of an object: the class stands out by it."""
        return "a property of the whole photo" if self.is_outlier else ""

    def encode(self) -> bytes:
        """Return the two means, and what is not changed."""
        kept = b"" if self.kept is None else self.kept.key.encode()
        return np.array([self.of_class, self.of_others]).tobytes() + kept

    def leave_region(self, other: CueCandidate, discovery: Discovery) -> PropertyCandidate | None:
        """Return the property of all but the region of another candidate, with its means; None if that has none."""
        if not isinstance(other, RegionCandidate):
            return None
        rest = replace(self, kept=other)
        values = np.array([[rest.measure(discovery.images, record)] for record in discovery.records])
        _, _, of_class, of_others, _ = discovery.test_class(self.target, self.sign * values)
        return replace(rest, of_class=float(of_class[0]), of_others=float(of_others[0]))

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the property, positive in the direction of the class."""
        if self.kept is None:
            return self.sign * float(record.properties[self.number])
        photo = leave_out(images.prepare(record.index).photo, self._find_counted(images, record.index))
        return self.sign * PROPERTIES[self.number].measure(photo)

    def _find_counted(self, images: AuditImages, index: int) -> NDArray[np.bool_] | None:
        """Return the pixels of a photo that the model sees outside of what is kept, ``(H, W)``; None for all."""
        if self.kept is None:
            return None
        image = images.prepare(index)
        outside = ~self.kept.locate_change(images, image).cpu()
        return image.geometry.place_on_photo(outside.double()).numpy() > _OUTSIDE

    def compare_moves(
        self, images: AuditImages, record: ImageRecord, others: Sequence[ImageRecord], random: np.random.Generator
    ) -> list[Tensor] | None:
        """Shift photos of the class, and of other classes, as far as the means are apart: a change may hurt any."""
        pairs = []
        for each in (record, *others):
            changed = self._shift(images, each.index, self.of_others - self.of_class)
            if changed is None:
                return None
            pairs.append(torch.stack([images.prepare(each.index).tensor, changed]))
        return pairs

    def remove(self, change: Change) -> Tensor | None:
        """Return the photo shifted to the mean of the other classes; for the controls see :meth:`compare_moves`."""
        changed = self._shift(change.images, change.image, self.of_others - self.of_class)
        return None if changed is None else changed[None, None]

    def transplant(self, change: Change) -> Tensor | None:
        """Return the photo shifted to the mean of the class; what this does to other classes is the control."""
        changed = self._shift(change.images, change.image, self.of_class - self.of_others)
        return None if changed is None else changed[None]

    def edit(self, change: Change, *, gives: bool, turn: int) -> Tensor | None:
        """Return the photo with the property of its partner: means of a class alone would leave what else tinted it."""
        photo, partner = (change.images.prepare(index).photo for index in (change.image, change.partner))
        changed = PROPERTIES[self.number].imitate(photo, partner, change.random)
        return self._replace(change.images, change.image, changed)

    def _shift(self, images: AuditImages, index: int, step: float) -> Tensor | None:
        """Return the input for a photo with more or less of the property, ``(C, H, W)``; None if impossible."""
        photo, kind = images.prepare(index).photo, PROPERTIES[self.number]
        counted = self._find_counted(images, index)
        if counted is not None and not counted.any():
            return None
        value = kind.measure(leave_out(photo, counted))
        return self._replace(images, index, kind.shift(photo, value, value + step, counted))

    def _replace(self, images: AuditImages, index: int, pixels: NDArray[np.uint8] | None) -> Tensor | None:
        """Return the input for changed pixels of a photo, ``(C, H, W)``; None without any, or if the size differs."""
        image = images.prepare(index)
        changed = None if pixels is None else images.make_input(image, pixels)
        if changed is None or changed.shape != image.tensor.shape:
            return None
        if self.kept is None:
            return changed
        return torch.where(self.kept.locate_change(images, image), image.tensor, changed)

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> PropertyCandidate:
        """Return another property, drawn at random, with the means of another class."""
        number = int(random.choice([number for number in range(len(PROPERTIES)) if number != self.number]))
        is_drawn = discovery.draw_other(self.target, random)
        numbers = np.array([record.properties[number] for record in discovery.records])
        return _build(self.target, number, self.clarity, numbers[is_drawn].mean(), numbers[~is_drawn].mean())


def _build(target: int, number: int, clarity: float, of_class: float, of_others: float) -> PropertyCandidate:
    kind, sign = PROPERTIES[number], 1 if of_class > of_others else -1
    name = f"{kind.high if sign > 0 else kind.low} ({kind.name})"
    return PropertyCandidate(target, name, clarity, number, sign, float(of_class), float(of_others))


def find_properties(discovery: Discovery) -> Iterable[PropertyCandidate]:
    """Return the properties in which a class differs from the others, by a permuted maximum statistic."""
    candidates, values = [], np.stack([record.properties for record in discovery.records])
    for target, _, mean, mean_of_others, tested in discovery.test_classes(np.concatenate([values, -values], 1)):
        for column in np.flatnonzero(tested.p <= ALPHA).tolist():
            number = column % len(PROPERTIES)
            candidates.append(_build(target, number, float(tested.z[column]), mean[number], mean_of_others[number]))
    return _mark_outliers(discovery, candidates) if candidates else ()


def _mark_outliers(discovery: Discovery, candidates: Sequence[PropertyCandidate]) -> Iterator[PropertyCandidate]:
    """Yield candidates, with a mark on those by which the class stands out.

    All parts of its photos must have the property, those with least and those with most of it, or it may be one of an
    object, and more of it than all other classes: where classes are kinds of photos, all differ. What is no color must
    be farther from the others than any of these is from the rest by any property. A tint need not: it changes how far
    the other classes are from the rest as well, and classes whose objects have a color are far without it.
    """
    photos = (discovery.images.prepare(record.index).photo for record in discovery.records)
    parts = np.stack([*map(measure_parts, photos)])
    signed = np.stack([np.quantile(sign * parts, _STRAY, axis=1) for sign in (1, -1)], 1)
    for candidate in candidates:
        ends = signed[:, :: candidate.sign, candidate.number] * (1, -1)
        own, _, is_beyond = _measure_distances(ends, discovery, candidate.target)
        _, others, _ = _measure_distances(signed.reshape(len(parts), -1), discovery, candidate.target)
        is_alone = PROPERTIES[candidate.number].is_color or own[0] > others.max(initial=0)
        is_outlier = is_alone and is_beyond.all() and own.min() >= _LEAST_DISTANCE
        yield replace(candidate, is_outlier=bool(is_outlier))


def _measure_distances(
    values: NDArray[np.float64], discovery: Discovery, target: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return how far the mean of a class is above that of the others ``(M,)``, and each other class above the rest.

    The distances are in standard deviations within classes, and the rest is without the class. The third array is
    True where the class is beyond all others, by a share of how far these are apart.

    Args:
        values: ``(N, M)``, of the records.
        discovery: The discovery half.
        target: The class.
    """
    classes, rows, counts = np.unique(discovery.classes, return_inverse=True, return_counts=True)
    sums = np.zeros((len(classes), values.shape[1]))
    np.add.at(sums, rows, values)
    means, counts = sums / counts[:, None], counts[:, None]
    scale = np.maximum((values - means[rows]).std(0), _LEAST_DEVIATION)
    is_own = classes == target
    rest, count = sums[~is_own].sum(0), counts[~is_own].sum()
    is_compared = np.isin(classes, discovery.targets) & ~is_own & (counts[:, 0] < count)
    compared = means[is_compared]
    others = compared - (rest - sums[is_compared]) / (count - counts[is_compared])
    highest, lowest = compared.max(0, initial=-np.inf), compared.min(0, initial=np.inf)
    is_beyond = means[is_own][0] - highest >= _LEAST_GAP * (highest - lowest)
    return (means[is_own][0] - rest / count) / scale, others / scale, is_beyond


@dataclass(frozen=True, eq=False)
class ColorCandidate(RegionCandidate):
    """The parts of an image that have one color.

    Attributes:
        number: Its place among the colors.
        share: The share of the images of the class that it is.
    """

    kind: ClassVar[str] = "color"
    likeness: ClassVar[str] = "one color in all images"
    # Objects of other classes may have the color as well.
    present: ClassVar[float] = 0.8

    number: int
    share: float

    @property
    def area(self) -> float:
        """Share of the input that it covers."""
        return self.share

    def encode(self) -> bytes:
        """Return the number of the color."""
        return bytes([self.number])

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the share of the image that has the color."""
        return float(read_colors(images, record.index)[self.number])

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the parts that have the color in most of their surroundings, with their rims."""
        height, width = image.tensor.shape[-2:]
        has_color = torch.from_numpy(find_pixels(image.photo, 2 * _SIDE)[self.number]).float()
        radius = max(1, round(min(height, width) / _SIDE))
        shares = image.geometry.to_input_mask(has_color, (height, width))[None, None]
        solid = (avg_pool2d(shares, 2 * radius + 1, 1, radius) > 0.5).float()
        return max_pool2d(solid, 4 * radius + 1, 1, 2 * radius)[0, 0].to(image.tensor.device) > 0

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> ColorCandidate:
        """Return another color, drawn by how much of it the images of another class have."""
        is_drawn = discovery.draw_other(self.target, random)
        colors = [read_colors(discovery.images, record.index) for record in discovery.records]
        shares = np.stack(colors)[is_drawn].mean(0)
        shares[self.number] = 0
        weights = shares + 1e-9
        number = int(random.choice(len(shares), p=weights / weights.sum()))
        return ColorCandidate(self.target, _name(number), self.clarity, number, float(shares[number]))


def find_colors(discovery: Discovery) -> Iterator[ColorCandidate]:
    """Yield the colors that a class has more of than the others, by a permuted maximum statistic over colors."""
    shares = np.stack([read_colors(discovery.images, record.index) for record in discovery.records])
    for target, is_own, _, _, tested in discovery.test_classes(shares.clip(max=_CAP)):
        of_class = shares[is_own].mean(0)
        z = np.where((tested.p <= ALPHA) & (of_class <= _MOST_SHARE), tested.z, 0)
        for _ in range(_MOST_PER_CLASS):
            number = int(z.argmax())
            if z[number] <= 0:
                break
            yield ColorCandidate(target, _name(number), float(z[number]), number, float(of_class[number]))
            z[_list_near(number)] = 0


def read_colors(images: AuditImages, index: int) -> NDArray[np.float64]:
    """Return the share that has each color of what the model sees of a photo, see :func:`find_pixels`."""
    if index not in images.colors:
        image = images.prepare(index)
        top, left, bottom, right = (max(0, round(side)) for side in image.geometry.box)
        images.colors[index] = find_pixels(image.photo[top:bottom, left:right], _SIDE).mean((1, 2))
    return images.colors[index]


_HUES = 360 // _STEP


def find_pixels(photo: NDArray[np.uint8], side: int) -> NDArray[np.bool_]:
    """Return where a photo ``(H, W, 3)`` has each color, ``(colors, h, w)``; it is made smaller to at most a side.

    The colors are those of :data:`_CHROMA`, of each hue in steps of 15 degrees, then :data:`_GRAYS`.
    """
    from skimage.color import rgb2lab

    values = torch.from_numpy(photo / 255).permute(2, 0, 1)
    height, width = (min(length, side) for length in photo.shape[:2])
    rgb = adaptive_avg_pool2d(values, (height, width)).numpy()
    lightness, red, yellow = rgb2lab(rgb, channel_axis=0)
    hue, chroma = np.degrees(np.arctan2(yellow, red)) % 360, np.hypot(red, yellow)
    starts = np.arange(0, 360, _STEP)
    of_hue = (hue - starts[:, None, None]) % 360 < _WIDTH
    of_chroma = [(low <= chroma) & (chroma < high) for low, high in _CHROMA]
    grays = [(low <= lightness) & (lightness < high) & (chroma < _GRAY) for _, low, high in _GRAYS]
    return np.concatenate([*(of_hue & band for band in of_chroma), np.stack(grays)])


def _list_near(number: int) -> list[int]:
    """Return the colors that share hues with one, pale and strong; a gray alone."""
    if number >= len(_CHROMA) * _HUES:
        return [number]
    steps = range(-_WIDTH // _STEP, _WIDTH // _STEP + 1)
    return [(number + step) % _HUES + _HUES * level for step in steps for level in range(len(_CHROMA))]


def _name(number: int) -> str:
    level, hue = divmod(number, _HUES)
    if level == len(_CHROMA):
        return f"{_GRAYS[hue][0]} parts"
    middle = (hue * _STEP + _WIDTH / 2) % 360
    word = next(name for most, name in _NAMES if middle < most)
    return f"{'pale ' if level == 0 else ''}{word} parts"
