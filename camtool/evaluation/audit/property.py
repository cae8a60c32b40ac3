"""Candidates of the kind *property*: a class is brighter, bluer, sharper or more compressed than the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.evaluation.audit.candidates import COMPARED_IMAGES, CueCandidate, Discovery
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import run_maximum_test
from camtool.evaluation.photo_properties import PROPERTIES

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
    compares_images: ClassVar[bool] = True
    compares_classes: ClassVar[bool] = True
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
        """Return one more than the number of images that are changed alike."""
        return COMPARED_IMAGES + 1

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the property, positive in the direction of the class."""
        return self.sign * float(record.properties[self.number])

    def compare_moves(
        self, images: AuditImages, record: ImageRecord, others: Sequence[ImageRecord], random: np.random.Generator
    ) -> list[Tensor] | None:
        """Shift photos of the class, and of other classes, as far as the means are apart: a change may hurt any."""
        pairs = []
        for one in (record, *others):
            changed = self._shift(images, one.index, self.of_others - self.of_class)
            if changed is None:
                return None
            pairs.append(torch.stack([images.prepare(one.index).tensor, changed]))
        return pairs

    def remove(
        self, images: AuditImages, index: int, other: int, controls: int, random: np.random.Generator
    ) -> Tensor | None:
        """Return the photo shifted to the mean of the other classes; for the controls see :meth:`compare_moves`."""
        changed = self._shift(images, index, self.of_others - self.of_class)
        return None if changed is None else changed[None, None]

    def transplant(
        self, images: AuditImages, index: int, donor: int, controls: int, random: np.random.Generator
    ) -> Tensor | None:
        """Return the photo shifted to the mean of the class; what this does to other classes is the control."""
        changed = self._shift(images, index, self.of_class - self.of_others)
        return None if changed is None else changed[None]

    def _shift(self, images: AuditImages, index: int, step: float) -> Tensor | None:
        """Return the input for a photo with more or less of the property, ``(C, H, W)``; None if impossible."""
        image, kind = images.prepare(index), PROPERTIES[self.number]
        value = kind.measure(image.photo.astype(float))
        pixels = kind.shift(image.photo, value, value + step)
        changed = None if pixels is None else images.make_input(image, pixels)
        return changed if changed is not None and changed.shape == image.tensor.shape else None

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
