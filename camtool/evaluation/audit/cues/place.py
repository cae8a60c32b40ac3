"""Candidates of the kinds *place*, *border* and *position*: where the heat is, a frame, and where the object is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d, max_pool2d

from camtool.evaluation.audit.cues.candidates import Change, CueCandidate, Discovery, RegionCandidate, describe_place
from camtool.evaluation.audit.cues.sameness import UsualImage, measure_sameness
from camtool.evaluation.audit.images import GRID, AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import ALPHA
from camtool.inputs.prepared_inputs import PreparedInput

# Share of the largest difference of heat down to which cells belong to a region: its tails are left out.
_LEAST_OF_PEAK = 0.3

_MOST_PER_CLASS = 3

# Draws of which a decoy is that which is least like its candidate.
_DRAWS = 5

# Spread of the centers of a class, as a share of the median one of the others: in landscapes all lie at fixed places.
# Chosen on networks of ``python -m benchmarks planted`` with the cue *position* and on honest ones of landscapes.
_MOST_SPREAD = 0.5

# Rim of what is drawn over an image, as a share of the input's side.
_RIM = 1 / 64

# Standard deviation of a row of a frame, as a share of that of the image: compression leaves a little.
_FLAT = 0.05


@dataclass(frozen=True, eq=False)
class PlaceCandidate(RegionCandidate):
    """The same cells of each input.

    Attributes:
        cells: ``(GRID, GRID)``, True in the region.
    """

    kind: ClassVar[str] = "place"
    likeness: ClassVar[str] = "same place in all images"

    cells: NDArray[np.bool_]

    @property
    def area(self) -> float:
        """Share of the input that it covers."""
        return float(self.cells.mean())

    def encode(self) -> bytes:
        """Return the cells."""
        return self.cells.tobytes()

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the share of the heat that is in the region."""
        return float(record.heat[self.cells].sum())

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the pixels of the cells."""
        height, width = image.tensor.shape[-2:]
        rows, columns = np.arange(height) * GRID // height, np.arange(width) * GRID // width
        return torch.from_numpy(self.cells[np.ix_(rows, columns)]).to(image.tensor.device)

    def measure_sameness(self, images: AuditImages, indices: Sequence[int]) -> float | None:
        """Return the share of the pixels of the cells that look the same."""
        inputs = [images.prepare(index) for index in indices]
        parts = [image.tensor[:, self.locate(images, image)][..., None] for image in inputs]
        return measure_sameness(images, indices, parts, 0)

    def leave_region(self, other: CueCandidate, discovery: Discovery) -> PlaceCandidate | None:
        """Return the cells without the frame that the other one is; None if it is none."""
        if not isinstance(other, FrameCandidate):
            return None
        return FramedPlace(self.target, self.name, self.clarity, self.cells, other)

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> PlaceCandidate:
        """Return the region at a place that is drawn with the heat of another class as its probability."""
        heats = np.stack([record.heat for record in discovery.records])
        heat = heats[discovery.draw_other(self.target, random)].mean(0)
        rows, columns = np.nonzero(self.cells)
        low, high = np.array([-rows.min(), -columns.min()]), GRID - 1 - np.array([rows.max(), columns.max()])
        shifted = []
        for drawn in np.searchsorted(heat.cumsum(), random.random(_DRAWS) * heat.sum()).tolist():
            goal = np.array(np.unravel_index(min(drawn, heat.size - 1), heat.shape))
            step = np.clip(goal - np.rint([rows.mean(), columns.mean()]).astype(int), low, high).tolist()
            shifted.append(np.roll(self.cells, step, (0, 1)))
        # In the place of the candidate it would be no false one.
        cells = min(shifted, key=lambda moved: int((moved & self.cells).sum()))
        return PlaceCandidate(self.target, describe_place(cells), self.clarity, cells)

    @property
    def is_at_border(self) -> bool:
        """True if a cell is at an edge."""
        return any(edge.any() for edge in (self.cells[0], self.cells[-1], self.cells[:, 0], self.cells[:, -1]))


def find_places(discovery: Discovery) -> Iterator[PlaceCandidate]:
    """Yield the places at which a class has more heat than the others, by a permuted maximum statistic over cells."""
    heats = np.stack([record.heat.ravel() for record in discovery.records])
    for target, _, mean, mean_of_others, tested in discovery.test_classes(heats):
        z, difference = tested.z.reshape(GRID, GRID), (mean - mean_of_others).reshape(GRID, GRID)
        for cells in find_regions(difference, z > tested.critical)[:_MOST_PER_CLASS]:
            yield PlaceCandidate(target, describe_place(cells), float(z[cells].max()), cells)


@dataclass(frozen=True, eq=False)
class PositionCandidate(CueCandidate):
    """The position of what is hot: the whole content of images is moved, and what leaves one side enters the other.

    Attributes:
        center: Down and across from 0 to 1, the mean center of the heat of the class.
        goals: ``(N, 2)``, the centers in images of other classes.
        usual: What the class shows: what stands still in its images, e.g. a mark in a corner, is not moved.
        is_fixed: True if the place varies less than in the other classes, see :data:`_MOST_SPREAD`.
    """

    kind: ClassVar[str] = "position"
    fills: ClassVar[tuple[str, ...]] = ("a move to where the other classes are",)
    compares_images: ClassVar[bool] = True
    present: ClassVar[float] = 0.8

    center: NDArray[np.float64]
    goals: NDArray[np.float64]
    usual: UsualImage
    is_fixed: bool = False

    @property
    def suspicion(self) -> str:
        """The reason why it is no part of an object: it is fixed, while other classes are at any place."""
        return "the same place in all images" if self.is_fixed else ""

    def encode(self) -> bytes:
        """Return the center."""
        return self.center.tobytes()

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return minus the distance of the center of the heat from that of the class."""
        return -float(np.linalg.norm(self._find_center(record.heat) - self.center))

    def compare_moves(
        self, images: AuditImages, record: ImageRecord, others: Sequence[ImageRecord], random: np.random.Generator
    ) -> list[Tensor]:
        """Move what is hot in the image to the center of another one, and the other images as far."""
        step = self._draw_step(images, record.index, random)
        inputs = [images.prepare(each.index).tensor for each in (record, *others)]
        return [torch.stack([image, self._move(image, step)]) for image in inputs]

    def remove(self, change: Change) -> None:
        """Return None: the controls are in other images, see :meth:`compare_moves`."""

    def transplant(self, change: Change) -> Tensor:
        """Move the object to the place of the class, and to the places of objects of other classes."""
        images, index, _, controls, random = change
        image, start = images.prepare(index).tensor, self._find_center(images.heats[index])
        goals = self.goals[random.integers(len(self.goals), size=controls)]
        return torch.stack([self._move(image, goal - start) for goal in (self.center, *goals)])

    def edit(self, change: Change, *, gives: bool, turn: int) -> Tensor:
        """Move the object to the place of the class, or to that of another class."""
        step = self._draw_step(change.images, change.image, change.random)
        return self.transplant(change)[0] if gives else self._move(change.images.prepare(change.image).tensor, step)

    def _draw_step(self, images: AuditImages, index: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return the way from what is hot in an image to the center of one of another class."""
        goal = self.goals[int(random.integers(len(self.goals)))]
        return np.asarray(goal - self._find_center(images.heats[index]))

    def _move(self, image: Tensor, step: NDArray[np.float64]) -> Tensor:
        """Return an input ``(C, H, W)`` with its content moved, but for what stands still in the class."""
        height, width = image.shape[-2:]
        moving = torch.where(self.usual.find_still(image), image.mean((1, 2), keepdim=True), image)
        moved = torch.roll(moving, (round(step[0] * height), round(step[1] * width)), (1, 2))
        return self.usual.keep_still(image, moved)

    def _find_center(self, heat: NDArray[np.float64]) -> NDArray[np.float64]:
        return compute_center(np.where(find_still_cells(self.usual), 0, heat))

    def is_same_cue(self, other: CueCandidate, images: AuditImages, indices: Sequence[int]) -> bool:
        """Return True for a region that holds the center of the heat in half of the images: it is what is moved."""
        if not isinstance(other, RegionCandidate):
            return False
        inside = []
        for index in indices:
            region = other.locate(images, images.prepare(index))
            down, across = self._find_center(images.heats[index])
            inside.append(bool(region[int(down * region.shape[0]), int(across * region.shape[1])]))
        return float(np.mean(inside)) >= 0.5

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> PositionCandidate:
        """Return the center in an image of another class, one that is not near."""
        drawn = self.goals[random.integers(len(self.goals), size=_DRAWS)]
        center = drawn[np.linalg.norm(drawn - self.center, axis=1).argmax()]
        return PositionCandidate(self.target, _name_position(center), self.clarity, center, self.goals, self.usual)


def compute_center(heat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the center ``(2,)`` of the hotter half of the heat, down and across from 0 to 1; the middle without."""
    hot = np.where(heat >= heat.max() / 2, heat, 0)
    at = (np.arange(GRID) + 0.5) / GRID
    return np.array([hot.sum(1) @ at, hot.sum(0) @ at]) / hot.sum() if hot.sum() > 0 else np.full(2, 0.5)


def _name_position(center: NDArray[np.float64]) -> str:
    cells = np.zeros((GRID, GRID), bool)
    cells[tuple(np.minimum((center * GRID).astype(int), GRID - 1))] = True
    return f"the object in {describe_place(cells)}"


def find_still_cells(usual: UsualImage) -> NDArray[np.bool_]:
    """Return the cells ``(GRID, GRID)`` with something that stands still in a class, and those beside them.

    Their heat says nothing about the position of what moves.
    """
    still = max_pool2d(adaptive_max_pool2d(usual.still[None].float(), GRID), 3, 1, 1)[0] > 0
    return np.asarray(still.cpu())


def find_positions(discovery: Discovery) -> Iterator[PositionCandidate]:
    """Yield the classes whose heat has another center than that of the others, by a permuted maximum statistic.

    The heat of what stands still in a class, e.g. of a mark in a corner, is left out.
    """
    for target in discovery.targets:
        usual = discovery.find_usual_image(target)
        still = find_still_cells(usual)
        centers = np.stack([compute_center(np.where(still, 0, record.heat)) for record in discovery.records])
        _, is_own, _, _, tested = discovery.test_class(target, np.concatenate([centers, -centers], 1))
        if tested.p.min() <= ALPHA:
            center, z = np.median(centers[is_own], 0), float(tested.z.max())
            rest = np.unique(discovery.classes[~is_own])
            others = [_measure_spread(centers[discovery.classes == other]) for other in rest]
            is_fixed = _measure_spread(centers[is_own]) <= _MOST_SPREAD * np.median(others)
            name, goals = _name_position(center), centers[~is_own]
            yield PositionCandidate(target, name, z, center, goals, usual, bool(is_fixed))


def _measure_spread(centers: NDArray[np.float64]) -> float:
    """Return the median distance of centers ``(N, 2)`` from the median center."""
    return float(np.median(np.linalg.norm(centers - np.median(centers, 0), axis=1)))


@dataclass(frozen=True, eq=False)
class FrameCandidate(RegionCandidate):
    """A frame of one color along sides of the input.

    Attributes:
        widths: ``(4,)``, pixels at the upper, lower, left and right side; 0 for a side without.
    """

    kind: ClassVar[str] = "border"
    suspicion: ClassVar[str] = "a frame is no part of an object"
    # A frame is there or not, and many photos of other classes may have one.
    present: ClassVar[float] = 0.5

    widths: NDArray[np.int_]

    def encode(self) -> bytes:
        """Return the widths."""
        return self.widths.astype(np.int64).tobytes()

    @property
    def is_at_border(self) -> bool:
        """True."""
        return True

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the share of the widths that is of one color in an image."""
        measured = np.minimum(measure_frame(images.prepare(record.index).tensor), self.widths)
        return float(measured.sum() / self.widths.sum())

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the frame of an image, or where it would be."""
        measured, region = measure_frame(image.tensor), torch.zeros(image.tensor.shape[-2:], dtype=torch.bool)
        usual = np.where((measured > 0) & (self.widths > 0), np.minimum(measured, 2 * self.widths), self.widths)
        top, bottom, left, right = usual.tolist()
        region[:top] = region[:, :left] = True
        region[region.shape[0] - bottom :] = region[:, region.shape[1] - right :] = True
        return region.to(image.tensor.device)

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> PlaceCandidate:
        """Return as many cells as the frame has at a place where another class has heat."""
        cells = np.zeros((GRID, GRID), bool)
        side = max(1, round(GRID * float(self.widths.sum()) ** 0.5 / 16))
        cells[: min(side, 4), : min(side, 4)] = True
        return PlaceCandidate(self.target, "", self.clarity, cells).make_decoy(discovery, random)


@dataclass(frozen=True, eq=False)
class FramedPlace(PlaceCandidate):
    """The same cells of each input without a frame.

    Attributes:
        frame: The frame.
    """

    frame: FrameCandidate

    def encode(self) -> bytes:
        """Return the cells and the widths of the frame."""
        return super().encode() + self.frame.encode()

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the pixels of the cells outside of the frame and its rim, which would be inpainted further."""
        return super().locate(images, image) & ~add_rim(self.frame.locate(images, image))


def add_rim(region: Tensor) -> Tensor:
    """Return a region ``(H, W)`` with a rim, which resizing and compression have mixed with what is beside it."""
    rim = max(1, round(min(region.shape) * _RIM))
    return max_pool2d(region[None, None].float(), 2 * rim + 1, 1, rim)[0, 0] > 0


def measure_frame(image: Tensor) -> NDArray[np.int_]:
    """Return the pixels of one color at the upper, lower, left and right side of an input ``(C, H, W)``.

    A row counts if its standard deviation is below a twentieth of that of the image; at most a quarter of a side does.
    """
    limit, counts = _FLAT * image.std(), []
    for axis in (2, 1):
        flat = (image.std(axis) < limit).all(0)
        most = len(flat) // 4
        counts += [int(part[:most].long().cumprod(0).sum()) for part in (flat, flat.flip(0))]
    return np.array(counts)


def find_frames(discovery: Discovery) -> Iterator[FrameCandidate]:
    """Yield the classes whose images have a frame, or a wider one than those of other classes."""
    widths = np.stack([measure_frame(discovery.images.prepare(record.index).tensor) for record in discovery.records])
    for target, is_own, _, _, tested in discovery.test_classes(widths.astype(float)):
        usual = [
            int(np.median(column[column > 0])) if p <= ALPHA else 0
            for column, p in zip(widths[is_own].T, tested.p, strict=True)
        ]
        if any(usual):
            sides = [side for side, width in zip(("upper", "lower", "left", "right"), usual, strict=True) if width]
            name = f"a frame of one color ({'all sides' if len(sides) == 4 else ', '.join(sides)})"
            yield FrameCandidate(target, name, float(tested.z.max()), np.array(usual))


def find_regions(difference: NDArray[np.float64], is_significant: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return the connected regions around significant peaks, the hottest first."""
    rest, regions = is_significant.copy(), list[NDArray[np.bool_]]()
    while rest.any():
        peak = np.unravel_index(int(np.where(rest, difference, -np.inf).argmax()), rest.shape)
        # Tails of the heat that are not significant with few images belong to it as well, if they are as hot.
        region = grow(peak, difference >= _LEAST_OF_PEAK * difference[peak])
        if not any((region & other).any() for other in regions):
            regions.append(region)
        rest &= ~region & ~grow(peak, rest)
    return regions


def grow(seed: tuple[np.intp, ...], allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the allowed cells that are connected with a cell, also at corners."""
    from skimage.segmentation import flood

    allowed = allowed.copy()
    allowed[seed] = True
    return np.asarray(flood(allowed, seed))  # type: ignore[no-untyped-call]
