"""The candidate for a cue: how strongly an image has it, and how images look without it, and with it.

A kind of candidates is one file with a function ``find_...(discovery) -> candidates`` in ``KINDS`` of
:mod:`camtool.evaluation.audit.cues.kinds`, and a subclass of :class:`CueCandidate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from camtool.evaluation.audit.cues.sameness import UsualImage, find_usual_image
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import MaximumTest, average_units, run_maximum_test
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.trust.metrics.removal import impute_linear

# Images of other classes that are changed as an image of the class, where these are the controls.
COMPARED_IMAGES = 9

# The fills that cover regions. Another image of the same class would bring the cue back.
FILLS = ("inpainting", "an image of another class")

# Share of a control region that may be in the candidate's.
_MOST_OVERLAP = 0.25

# Share of the smaller of two regions in the larger one from which on they are one cue.
_SAME_CUE = 0.5

# Share of the input up to which a cue is small.
_SMALL = 0.1

# Images of a class of which the usual one is the median, and as many of the others.
_MOST_COMPARED = 40

# Decoys of each candidate.
DECOYS = 9

# Places along each side at which a control region may lie.
_STEPS = 20


class ClassTest(NamedTuple):
    """The test of a class in the discovery half.

    Attributes:
        target: The class.
        is_own: ``(N,)``, True for the records of the class.
        mean: ``(M,)``, the mean of its units, see :func:`average_units`.
        mean_of_others: ``(M,)``, that of the other units.
        test: The maximum statistic of their difference, corrected for all values. The confirmation half has the last
            word.
    """

    target: int
    is_own: NDArray[np.bool_]
    mean: NDArray[np.float64]
    mean_of_others: NDArray[np.float64]
    test: MaximumTest


@dataclass(frozen=True, eq=False)
class Discovery:
    """The discovery half, in which candidates are found.

    Attributes:
        images: All images.
        records: Those of the discovery half.
        groups: The group of each of these.
        targets: The classes with enough images.
        seed: The seed of all that is random.
    """

    images: AuditImages
    records: Sequence[ImageRecord]
    groups: Sequence[int]
    targets: Sequence[int]
    seed: int
    _usual: dict[int, UsualImage] = field(default_factory=dict, init=False, repr=False)

    @property
    def classes(self) -> NDArray[np.int_]:
        """The class of each record."""
        return np.array([record.target for record in self.records])

    def test_classes(self, values: NDArray[np.float64]) -> Iterator[ClassTest]:
        """Yield for each class how it differs from the others in values ``(N, M)`` of the records."""
        for target in self.targets:
            yield self.test_class(target, values)

    def test_class(self, target: int, values: NDArray[np.float64]) -> ClassTest:
        """Return how a class differs from the others in values ``(N, M)`` of the records."""
        is_own = self.classes == target
        units, is_unit = average_units(values, self.groups, is_own)
        test = run_maximum_test(units, is_unit, seed=self.seed)
        return ClassTest(target, is_own, units[is_unit].mean(0), units[~is_unit].mean(0), test)

    def find_usual_image(self, target: int) -> UsualImage:
        """Return what the inputs of a class show, which is found once."""
        if target not in self._usual:
            is_own = self.classes == target
            chosen = (np.flatnonzero(mask)[:_MOST_COMPARED].tolist() for mask in (is_own, ~is_own))
            inputs = ([self.images.prepare(self.records[row].index).tensor for row in rows] for rows in chosen)
            self._usual[target] = find_usual_image(*inputs)
        return self._usual[target]

    def draw_other(self, target: int, random: np.random.Generator) -> NDArray[np.bool_]:
        """Return True for the records of another class, which is drawn at random."""
        return np.asarray(self.classes == random.choice(np.unique(self.classes[self.classes != target])))


class Change(NamedTuple):
    """The images that a cue is removed from or given to, and the controls.

    Attributes:
        images: All images.
        image: The index of the image that is changed.
        partner: That of another image: one of another class to remove the cue, one that has it to give it.
        controls: The number of controls.
        random: Draws the controls.
    """

    images: AuditImages
    image: int
    partner: int
    controls: int
    random: np.random.Generator


@dataclass(frozen=True, eq=False)
class CueCandidate(ABC):
    """A cue by which a class may be recognized.

    Attributes:
        target: The class.
        name: Its description, e.g. ``"the lower right corner"``.
        clarity: How clearly it was seen in the discovery half; the highest are tested first.
    """

    kind: ClassVar[str]
    fills: ClassVar[tuple[str, ...]]
    # An image has it if it has it more strongly than this share of the images of other classes.
    present: ClassVar[float] = 0.95
    # True if the controls of removing it are other images, see :meth:`compare_moves`.
    compares_images: ClassVar[bool] = False
    # True if giving it to an image is compared between classes, as the same change may raise any of them.
    compares_classes: ClassVar[bool] = False
    # Property that all images of the class share, e.g. the place.
    likeness: ClassVar[str] = ""

    target: int
    name: str
    clarity: float

    @property
    def key(self) -> str:
        """The name of the candidate in files: two audits of a model that find the same give it the same name."""
        return f"{self.target} {self.kind} {self.name} {blake2b(self.encode(), digest_size=6).hexdigest()}"

    @property
    def title(self) -> str:
        """The description without names of images, which change if images are added."""
        return self.name

    @abstractmethod
    def encode(self) -> bytes:
        """Return what differs between candidates of a class that have one name."""

    @property
    def suspicion(self) -> str:
        """The reason why it is no part of an object; empty if it may be one."""
        return ""

    @property
    def area(self) -> float | None:
        """Share of the input that it covers; None if it has no place."""
        return None

    @property
    def changed_layer(self) -> str | None:
        """The layer whose activations ``remove`` and ``transplant`` return changed; None for the model's input."""
        return None

    @abstractmethod
    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return how strongly an image has it."""

    @abstractmethod
    def remove(self, change: Change) -> Tensor | None:
        """Return an image without it, and without each control: ``(fills, columns, C, H, W)``; None if impossible."""

    @abstractmethod
    def transplant(self, change: Change) -> Tensor | None:
        """Return an image of another class with it, and with each control: ``(columns, C, H, W)``, or None."""

    def edit(self, change: Change, *, gives: bool, turn: int) -> Tensor | None:
        """Return one image to learn from, ``(C, H, W)``: with the cue, or without it; None if impossible.

        Each turn takes another of the fills that cover a region.
        """
        variants = self.transplant(change) if gives else self.remove(change)
        if variants is None:
            return None
        return variants[0] if gives else variants[turn % len(variants), 0]

    def compare_moves(
        self, images: AuditImages, record: ImageRecord, others: Sequence[ImageRecord], random: np.random.Generator
    ) -> list[Tensor] | None:
        """Return an image unchanged and without it, then images of other classes unchanged and changed alike.

        These are the controls where a change of the same image would remove the cue too, e.g. each move of an object
        from its place. Each entry is ``(2, C, H, W)``. None where the controls are in the same image.
        """
        return None

    @abstractmethod
    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> CueCandidate | None:
        """Return a candidate of the same size for the same class, which was drawn from another class."""

    def is_same_cue(self, other: CueCandidate, images: AuditImages, indices: Sequence[int]) -> bool:
        """Return True if two candidates of a class are one cue in these images, which have both."""
        return False

    def leave_region(self, other: CueCandidate, discovery: Discovery) -> CueCandidate | None:
        """Return the candidate for all but the region of another one, to tell whether it is an effect of that.

        None if it stands on its own.
        """
        return None

    def isolate(self, images: AuditImages, donor: int) -> Tensor | None:
        """Return a blank input with the candidate of a donor alone, ``(C, H, W)``; None if impossible."""
        return None

    def measure_outside(self, images: AuditImages, indices: Sequence[int]) -> float | None:
        """Return the mean share of it that is outside of the masks of images; None without a place or masks."""
        return None

    def measure_sameness(self, images: AuditImages, indices: Sequence[int]) -> float | None:
        """Return the share of its pixels that look the same in images which have it; None if it has no fixed form."""
        return None

    @property
    def is_at_border(self) -> bool:
        """True if it touches the border of the input in all images."""
        return False

    def list_facts(self) -> list[str]:
        """Return what its shape alone tells of it."""
        is_small = self.area is not None and self.area <= _SMALL
        facts = {self.likeness: True, "at the border": self.is_at_border, "small": is_small}
        return [fact for fact, holds in facts.items() if fact and holds]


@dataclass(frozen=True, eq=False)
class RegionCandidate(CueCandidate):
    """A candidate that is a region of each image."""

    fills: ClassVar[tuple[str, ...]] = FILLS

    @abstractmethod
    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the region in an image, ``(H, W)`` boolean."""

    def locate_change(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the region that is covered and pasted, ``(H, W)`` boolean."""
        return self.locate(images, image)

    def remove(self, change: Change) -> Tensor | None:
        """Cover the region, and regions of its shape elsewhere, by inpainting and by an image of another class."""
        images, index, partner, controls, random = change
        image = images.prepare(index)
        mask, source = self.locate_change(images, image), _resize(images.prepare(partner).tensor, image.tensor)
        if not 0 < int(mask.sum()) < mask.numel():
            return None
        masks = torch.stack([torch.roll(mask, shift, (0, 1)) for shift in draw_shifts(mask, controls, random)])
        copies = image.tensor.expand(len(masks), *image.tensor.shape)
        return torch.stack([impute_linear(copies, masks), torch.where(masks[:, None], source, copies)])

    def transplant(self, change: Change) -> Tensor | None:
        """Paste what is in the region of the donor, and what is elsewhere in it, all at the place of the region."""
        images, index, donor, controls, random = change
        image, donated = images.prepare(index).tensor, images.prepare(donor)
        source = _resize(donated.tensor, image)
        mask = _resize(self.locate_change(images, donated)[None].float(), image)[0] > 0.5
        if not 0 < int(mask.sum()) < mask.numel():
            return None
        shifts = draw_shifts(mask, controls, random)
        contents = [torch.roll(source, (-down, -across), (1, 2)) for down, across in shifts]
        return torch.stack([torch.where(mask, content, image) for content in contents])

    def is_same_cue(self, other: CueCandidate, images: AuditImages, indices: Sequence[int]) -> bool:
        """Return True if what is covered for one is covered for the other by half or more, on average over the images.

        That is by the smaller of the two regions.
        """
        if not isinstance(other, RegionCandidate):
            return other.is_same_cue(self, images, indices)
        shares = []
        for image in map(images.prepare, indices):
            own, theirs = self.locate_change(images, image), other.locate_change(images, image)
            shares.append(float((own & theirs).sum() / torch.minimum(own.sum(), theirs.sum()).clamp_min(1)))
        return float(np.mean(shares)) >= _SAME_CUE

    def measure_outside(self, images: AuditImages, indices: Sequence[int]) -> float | None:
        """Return the mean share of the region that is outside of the masks of images; None without masks."""
        shares = []
        for index in indices:
            image = images.prepare(index)
            mask = images.read_mask(index, image)
            if mask is not None and (region := self.locate(images, image)).any():
                shares.append(float((region & ~mask.to(region.device)).sum() / region.sum()))
        return float(np.mean(shares)) if shares else None

    def isolate(self, images: AuditImages, donor: int) -> Tensor | None:
        """Return the region of the donor on an input of its mean color."""
        source = images.prepare(donor)
        blank = source.tensor.mean((1, 2), keepdim=True)
        return torch.where(self.locate(images, source), source.tensor, blank)


def _resize(image: Tensor, like: Tensor) -> Tensor:
    """Return an image ``(C, h, w)`` in the size of another one."""
    size = like.shape[-2:]
    return image if image.shape[-2:] == size else interpolate(image[None], size, mode="bilinear", antialias=True)[0]


def draw_shifts(mask: Tensor, count: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """Return no shift, then shifts of a region ``(H, W)`` to control regions, down and across in pixels.

    The control regions lie inside the image and hardly overlap with the region. Where there are too few such places,
    e.g. for a border, the region is shifted around the edges of the image, and those that overlap least are taken.
    """
    height, width = mask.shape
    region = mask.cpu().numpy()
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    steps = (max(1, height // _STEPS), max(1, width // _STEPS))
    overlaps = _measure_overlaps(region)

    def list_overlaps(downs: range, acrosses: range) -> list[tuple[float, tuple[int, int]]]:
        shifts = [(down, across) for down in downs for across in acrosses if (down, across) != (0, 0)]
        return [(float(overlaps[down, across]), (down, across)) for down, across in shifts]

    inside = list_overlaps(
        range(-int(rows[0]), height - int(rows[-1]), steps[0]),
        range(-int(columns[0]), width - int(columns[-1]), steps[1]),
    )
    apart = [shift for overlap, shift in inside if overlap <= _MOST_OVERLAP]
    if len(apart) < count:
        around = list_overlaps(range(0, height, steps[0]), range(0, width, steps[1]))
        around.sort(key=lambda entry: entry[0])
        apart += [shift for _, shift in around if shift not in apart][: count - len(apart)]
    chosen = random.choice(len(apart), count, replace=len(apart) < count)
    return [(0, 0), *(apart[number] for number in chosen.tolist())]


def _measure_overlaps(region: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of a region ``(H, W)`` that lies in it when it is rolled by each shift, ``(H, W)``."""
    # The autocorrelation, which takes one transform for all shifts. It counts pixels, so rounding makes it exact.
    counts = np.fft.irfft2(np.abs(np.fft.rfft2(region)) ** 2, region.shape)
    return np.asarray(np.rint(counts) / region.sum())


def _name_third(share: float, first: str, last: str) -> str:
    """Return the word for the third that a share from 0 to 1 is in; none for the middle one."""
    if share < 1 / 3:
        return first
    return last if share > 2 / 3 else ""


def describe_place(mask: NDArray[np.bool_]) -> str:
    """Return words for the place of a region ``(H, W)``: a corner, an edge, the border, the center."""
    height, width = mask.shape
    rows, columns = np.nonzero(mask)
    sides = (rows.min() == 0, rows.max() == height - 1, columns.min() == 0, columns.max() == width - 1)
    if all(sides):
        return "the border" if not mask[height // 3 : -(height // 3), width // 3 : -(width // 3)].any() else "all over"
    words = [
        _name_third((rows.mean() + 0.5) / height, "upper", "lower"),
        _name_third((columns.mean() + 0.5) / width, "left", "right"),
    ]
    if not any(words):
        return "the center"
    if all(words):
        last = "corner" if any(sides[:2]) and any(sides[2:]) else "part"
    else:
        last = "edge" if any(sides) else "part"
    return f"the {' '.join(filter(None, [*words, last]))}"
