"""Regions to which heat moved, found on the discovery half, and their tests on the confirmation half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from camtool.evaluation.audit import statistics
from camtool.evaluation.audit.cues.candidates import describe_place
from camtool.evaluation.audit.cues.place import find_regions, grow
from camtool.evaluation.audit.images import GRID
from camtool.evaluation.audit.trials import ANSWER_FLOOR, LEAST_GROUPS, PROBABILITY_FLOOR, Effect, Tester, hash_parts
from camtool.evaluation.diff.pairs import PairedImages, PairRecord
from camtool.evaluation.leaderboard.table import Interval, bootstrap_mean

# Least share of the heat that has moved to or from a place, on average over the images.
HEAT_FLOOR = 0.02

ANYWHERE = "no fixed place"

# A small difference of a cell: half of what each cell has if the heat is even.
_CELL_FLOOR = 0.005

# Share of the largest difference of an image down to which its cells belong to the region.
_OF_PEAK = 0.3

# Least share of the heat that has moved to or from a region which is chosen for each image.
_LEAST_MOVED = 0.25

_MOST_PER_CLASS = 2

# The outermost cells, together one more place: a frame around the photo has little heat in each of them.
_BORDER = np.pad(np.zeros((GRID - 2, GRID - 2), bool), 1, constant_values=True)


@dataclass(frozen=True, eq=False)
class MovedRegion:
    """A region of a class to which heat moved, or from which it did.

    Attributes:
        target: The class.
        sign: 1 if the new model has more heat there, -1 if it has less.
        name: The place, in words.
        clarity: How clearly it was seen in the discovery half; the highest are tested first.
        cells: ``(GRID, GRID)``; None if it is chosen for each image.
    """

    target: int
    sign: int
    name: str
    clarity: float
    cells: NDArray[np.bool_] | None

    @property
    def key(self) -> str:
        """A name that no other region has."""
        cells = "" if self.cells is None else np.packbits(self.cells).tobytes().hex()
        return f"{self.target} {self.sign} {self.name} {cells}"

    @property
    def box(self) -> tuple[float, float, float, float] | None:
        """Top, left, bottom and right of the cells as shares; None if they are chosen for each image."""
        if self.cells is None:
            return None
        rows, columns = (np.flatnonzero(self.cells.any(axis)).tolist() for axis in (1, 0))
        return rows[0] / GRID, columns[0] / GRID, (rows[-1] + 1) / GRID, (columns[-1] + 1) / GRID

    def locate(self, record: PairRecord) -> NDArray[np.bool_]:
        """Return the cells in an image."""
        if self.cells is not None:
            return self.cells
        gain = self.sign * record.difference
        peak = np.unravel_index(int(gain.argmax()), gain.shape)
        return grow(peak, gain >= max(_OF_PEAK * gain[peak], 1e-12))

    def measure(self, record: PairRecord) -> float:
        """Return the share of the heat that moved as ``sign`` says, below 0 if it moved the other way."""
        return float(self.sign * record.difference[self.locate(record)].sum())

    def has_moved(self, record: PairRecord) -> bool:
        """Return True if the heat of an image moved by more than a floor."""
        return self.measure(record) >= (_LEAST_MOVED if self.cells is None else HEAT_FLOOR)


@dataclass(frozen=True, eq=False)
class RegionOutcome:
    """The result of the tests of a region on the confirmation half.

    Attributes:
        region: The region.
        present: Images in which heat moved, by number.
        class_count: Images of the class.
        heat: The mean share of the heat in the region, of the old model and the new one.
        moved_p: The p-value of the heat that moved.
        old: The effect of covering the region in the old model, with the fill that shows the difference less.
        new: The same in the new model.
        difference: The share of the answers that change in the new model and not in the old one, beyond controls, with
            its bootstrap interval; below 0 if more change in the old one.
        probability: The same for the drop of the probability.
        p: The p-value of the whole claim.
        reason: Why it was not tested; empty if it was.
    """

    region: MovedRegion
    present: tuple[int, ...] = ()
    class_count: int = 0
    heat: tuple[float, float] = (0.0, 0.0)
    moved_p: float = 1.0
    old: Effect | None = None
    new: Effect | None = None
    difference: Interval | None = None
    probability: Interval | None = None
    p: float = 1.0
    reason: str = ""

    @property
    def is_large(self) -> bool:
        """True if the heat and the effect of covering differ by more than the floors."""
        if self.difference is None or self.probability is None:
            return False
        sign = self.region.sign
        moved = sign * (self.heat[1] - self.heat[0]) >= HEAT_FLOOR
        reacts = sign * self.difference.mean >= ANSWER_FLOOR or sign * self.probability.mean >= PROBABILITY_FLOOR
        return moved and reacts


def find_moved_regions(
    records: Sequence[PairRecord], groups: Sequence[int], targets: Sequence[int], seed: int
) -> Iterator[MovedRegion]:
    """Yield the regions of the discovery half to or from which the heat of a class moved.

    Places are those of a maximum statistic over cells and the border, with the models of each image swapped at random.
    If heat moved in many images, but to other places in each, the region is the cells around its largest gain in each.
    """
    for target in targets:
        own = [(record, group) for record, group in zip(records, groups, strict=True) if record.target == target]
        yield from _find_regions_of(target, own, seed)


def _find_regions_of(target: int, own: Sequence[tuple[PairRecord, int]], seed: int) -> Iterator[MovedRegion]:
    """Yield the regions of a class, from its records with their groups."""
    differences = np.stack([record.difference for record, _ in own])
    units = statistics.average_groups(differences, [group for _, group in own]).reshape(-1, GRID**2)
    windows = np.column_stack([units, units[:, _BORDER.ravel()].sum(1)])
    tested = statistics.run_swap_test(windows, floor=_CELL_FLOOR, seed=seed)
    for sign in (1, -1):
        gain, z = (sign * part[: GRID**2].reshape(GRID, GRID) for part in (windows.mean(0), tested.z))
        for cells, peak in _find_places(gain, z, sign * float(tested.z[-1]), tested.critical):
            yield MovedRegion(target, sign, describe_place(cells), peak, cells)
        anywhere = MovedRegion(target, sign, ANYWHERE, 0.0, None)
        if len({group for record, group in own if anywhere.has_moved(record)}) >= LEAST_GROUPS:
            yield anywhere


def _find_places(
    gain: NDArray[np.float64], z: NDArray[np.float64], z_of_border: float, critical: float
) -> Iterator[tuple[NDArray[np.bool_], float]]:
    """Yield the cells of each place with enough gain, and its largest z."""
    places = [cells for cells in find_regions(gain, z > critical)[:_MOST_PER_CLASS] if gain[cells].sum() >= HEAT_FLOOR]
    yield from ((cells, float(z[cells].max())) for cells in places)
    # A corner is a part of the border, but no change of all of it.
    rest = gain[_BORDER & ~np.any([np.zeros_like(_BORDER), *places], 0)].sum()
    if z_of_border > critical and rest >= max(HEAT_FLOOR, gain[_BORDER].sum() / 2):
        yield _BORDER, z_of_border


@dataclass(eq=False, kw_only=True)
class RegionTester(Tester[PairRecord]):
    """Tests regions on the images of the confirmation half.

    Attributes:
        images: All images, and the models.
    """

    images: PairedImages

    def test(self, region: MovedRegion) -> RegionOutcome:
        """Cover a region in both models."""
        rows = [row for row, record in enumerate(self.records) if record.target == region.target]
        present = [row for row in rows if region.has_moved(self.records[row])]
        # For a region that is chosen by what moved in each image this test is void: it would always pass.
        shown, moved_p = present, 0.0
        if region.cells is not None:
            moved = np.array([region.measure(self.records[row]) for row in rows])
            shown = rows
            moved_p = statistics.run_sign_flip_test(moved, [self.groups[row] for row in rows], seed=self.seed)
        indices, heat = tuple(self.records[row].index for row in present), self._measure_heat(region, shown)
        outcome = RegionOutcome(region, indices, len(rows), heat, moved_p)
        return self._cover(outcome, [row for row in shown if region.target in self.records[row].answers])

    def _measure_heat(self, region: MovedRegion, rows: Sequence[int]) -> tuple[float, float]:
        """Return the mean share of the heat in a region, of the old and the new model."""
        records = [self.records[row] for row in rows]
        inside = [record.heat[:, region.locate(record)].sum(1) for record in records]
        old, new = np.mean(inside, 0).tolist() if inside else (0.0, 0.0)
        return old, new

    def _cover(self, outcome: RegionOutcome, rows: Sequence[int]) -> RegionOutcome:
        region, results, groups = outcome.region, list[NDArray[np.float64]](), list[int]()
        partners = [record.index for record in self.records if record.target != region.target]
        for row in self.draw(rows, region.key):
            values = self._score_covered(region, self.records[row], partners)
            self.passes += len(values) // 2
            if values:
                results.append(np.asarray(values).reshape(2, 2, -1, self.controls + 2))
                groups.append(self.groups[row])
        if len({*groups}) < LEAST_GROUPS:
            count = f"independent images in the confirmation half that have it: {len({*groups})}"
            return replace(outcome, reason=f"{count}; {LEAST_GROUPS} are needed")
        return self._compare_fills(outcome, results, groups)

    def _score_covered(self, region: MovedRegion, record: PairRecord, partners: Sequence[int]) -> list[float]:
        """Return the numbers of an image without a region, see :meth:`PairedImages.score_covered`."""
        number = hash_parts(self.seed, region.key, record.index, "cover")
        partner = partners[number % len(partners)] if partners else None

        def score() -> list[float]:
            random = np.random.default_rng(number)
            return self.images.score_covered(record, partner, region.locate(record), self.controls, random)

        return self.remember(f"{region.key} {record.index}", score)

    def _compare_fills(
        self, outcome: RegionOutcome, results: Sequence[NDArray[np.float64]], groups: Sequence[int]
    ) -> RegionOutcome:
        """Return the outcome with the fill that shows the difference less."""
        fills = min(result.shape[2] for result in results)
        # (old or new, margin or probability, fill, image, unchanged and columns)
        stacked = np.stack([result[:, :, :fills] for result in results], 3)
        outcomes = [self._compare(outcome, stacked[:, :, fill], groups) for fill in range(fills)]
        return max(outcomes, key=lambda each: (each.p, -abs(each.difference.mean) if each.difference else 0))

    def _compare(self, outcome: RegionOutcome, values: NDArray[np.float64], groups: Sequence[int]) -> RegionOutcome:
        """Return the outcome with the effects of covering with a fill.

        Margins count in standard deviations of a model's logits, so a model of higher temperature is no other model.
        """
        sign, drops = outcome.region.sign, values[..., :1] - values[..., 1:]
        deviations = np.mean([record.deviations for record in self.records], 0)
        margins = sign * (drops[1, 0] / deviations[1] - drops[0, 0] / deviations[0])
        contrast = statistics.average_groups(margins, groups)
        beyond = statistics.subtract_controls(contrast)
        place_p = statistics.run_control_test(contrast, seed=self.seed)
        swap_p = statistics.run_sign_flip_test(beyond, seed=self.seed) if outcome.region.cells is not None else 0.0
        is_lost = ((values[:, 0, :, :1] > 0) & (values[:, 0, :, 1:] <= 0)).astype(float)
        lost, shifts = (
            np.stack([statistics.average_groups(part, groups) for part in both]) for both in (is_lost, drops[:, 1])
        )
        p_values = [statistics.run_control_test(drop, groups, seed=self.seed) for drop in drops[:, 0]]
        sides = zip(lost, shifts, p_values, strict=True)
        old, new = (Effect.summarize(len(margins), *side, self.seed) for side in sides)
        apart = [part[1] - part[0] for part in (lost, shifts)]
        intervals = [bootstrap_mean(statistics.subtract_controls(part), self.seed) for part in apart]
        p = max(outcome.moved_p, place_p, swap_p)
        return replace(outcome, old=old, new=new, difference=intervals[0], probability=intervals[1], p=p)
