"""Candidates of the kind *property*: a class is brighter, bluer, sharper or more compressed than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.evaluation.audit.candidates import CueCandidate, Discovery
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import run_maximum_test
from camtool.evaluation.photo_properties import PROPERTIES, Photo

_ALPHA = 0.01
"""Level of the maximum statistic of a class, corrected for the properties and both directions."""


@dataclass(frozen=True, eq=False)
class PropertyCandidate(CueCandidate):
    """A property of the whole photo.

    Attributes:
        number: Its place in :data:`PROPERTIES`.
        sign: 1 if the class has more of it, -1 for less.
        of_class: Its mean in the class.
        of_others: Its mean in the other classes.
    """

    kind: ClassVar[str] = "property"
    fills: ClassVar[tuple[str, ...]] = ("a shift to the mean of the other classes",)
    present: ClassVar[float] = 0.5
    # Photos differ in brightness or tint for many reasons, so few of a class are beyond nearly all others.

    number: int
    sign: int
    of_class: float
    of_others: float

    def encode(self) -> bytes:
        """Return the two means."""
        return np.array([self.of_class, self.of_others]).tobytes()

    def count_columns(self, controls: int) -> int:
        """Return 2: a change has one control."""
        return 2

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the property, positive in the direction of the class."""
        return self.sign * float(record.properties[self.number])

    def remove(
        self, images: AuditImages, index: int, other: int, controls: int, random: np.random.Generator
    ) -> Tensor | None:
        """Shift the photo to the mean of the other classes, and as a control as far into the other direction."""
        changed = self._shift(images, index, self.of_others - self.of_class, random)
        return None if changed is None else changed[None]

    def transplant(
        self, images: AuditImages, index: int, donor: int, controls: int, random: np.random.Generator
    ) -> Tensor | None:
        """Shift the photo to the mean of the class, and as a control as far into the other direction."""
        return self._shift(images, index, self.of_class - self.of_others, random)

    def _shift(self, images: AuditImages, index: int, step: float, random: np.random.Generator) -> Tensor | None:
        image, kind = images.prepare(index), PROPERTIES[self.number]
        photo, value = image.photo, kind.measure(image.photo.astype(float))
        changed = kind.shift(photo, value, value + step)
        if changed is None:
            return None
        opposite = kind.shift(photo, value, value - step)
        if opposite is None:
            opposite = _add_noise(photo, changed, random)
        inputs = [images.make_input(image, pixels) for pixels in (changed, opposite)]
        made = [tensor for tensor in inputs if tensor is not None and tensor.shape == image.tensor.shape]
        return torch.stack(made) if len(made) == len(inputs) else None

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> PropertyCandidate:
        """Return another property, drawn at random, with the means of another class."""
        number = int(random.choice([number for number in range(len(PROPERTIES)) if number != self.number]))
        classes = np.array([record.target for record in discovery.records])
        is_drawn = classes == random.choice(np.unique(classes[classes != self.target]))
        numbers = np.array([record.properties[number] for record in discovery.records])
        values = numbers[is_drawn].mean(), numbers[~is_drawn].mean()
        sign = 1 if values[0] > values[1] else -1
        return _build(self.target, number, sign, self.promise, float(values[0]), float(values[1]))


def _build(target: int, number: int, sign: int, promise: float, of_class: float, of_others: float) -> PropertyCandidate:
    kind = PROPERTIES[number]
    name = f"{kind.high if sign > 0 else kind.low} ({kind.name})"
    return PropertyCandidate(target, name, promise, number, sign, of_class, of_others)


def _add_noise(photo: Photo, changed: Photo, random: np.random.Generator) -> Photo:
    """Return a photo with noise that is as strong as a change, where that has no opposite, e.g. compression."""
    strength = float(np.sqrt(((changed.astype(float) - photo) ** 2).mean()))
    noisy = photo + random.normal(0, strength, photo.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def find_properties(discovery: Discovery) -> list[PropertyCandidate]:
    """Return the properties in which a class differs from the others, by a permuted maximum statistic."""
    candidates = []
    for target in discovery.targets:
        values: NDArray[np.float64] = np.stack([record.properties for record in discovery.records])
        units, is_class = discovery.average_units(np.concatenate([values, -values], 1), target)
        tested = run_maximum_test(units, is_class, alpha=_ALPHA, seed=discovery.seed)
        means = units[is_class].mean(0), units[~is_class].mean(0)
        for column in np.flatnonzero(tested.p <= _ALPHA).tolist():
            number, sign = column % len(PROPERTIES), 1 if column < len(PROPERTIES) else -1
            of_class, of_others = (float(mean[number]) for mean in means)
            candidates.append(_build(target, number, sign, float(tested.z[column]), of_class, of_others))
    return candidates
