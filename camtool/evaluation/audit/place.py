"""Candidates of the kind *place*: the heat of a class is at a place of the photo where the other classes have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.evaluation.audit.candidates import Discovery, RegionCandidate, describe_place
from camtool.evaluation.audit.images import GRID, AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import average_groups, run_maximum_test
from camtool.inputs.prepared_inputs import PreparedInput

_ALPHA = 0.01
"""Level of the maximum statistic of a class, corrected for its cells. The confirmation half has the last word."""

_LEAST_OF_PEAK = 0.3
"""Share of the largest difference of heat down to which cells belong to a region: its tails are left out."""

_MOST_PER_CLASS = 3


@dataclass(frozen=True, eq=False)
class PlaceCandidate(RegionCandidate):
    """The same cells of each input.

    Attributes:
        cells: ``(GRID, GRID)``, True in the region.
    """

    kind: ClassVar[str] = "place"

    cells: NDArray[np.bool_]

    @property
    def area(self) -> float:
        """Share of the input that it covers."""
        return float(self.cells.mean())

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the share of the heat that is in the region."""
        return float(record.heat[self.cells].sum())

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the pixels of the cells."""
        height, width = image.tensor.shape[-2:]
        rows, columns = np.arange(height) * GRID // height, np.arange(width) * GRID // width
        return torch.from_numpy(self.cells[np.ix_(rows, columns)]).to(image.tensor.device)

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> PlaceCandidate:
        """Return the region at the place where another class, drawn at random, has most heat."""
        others = [record for record in discovery.records if record.target != self.target]
        target = random.choice(sorted({record.target for record in others}))
        heat = np.mean([record.heat for record in others if record.target == target], 0)
        rows, columns = np.nonzero(self.cells)
        goal = np.array(np.unravel_index(int(heat.argmax()), heat.shape))
        low, high = np.array([-rows.min(), -columns.min()]), GRID - 1 - np.array([rows.max(), columns.max()])
        down, across = np.clip(goal - np.rint([rows.mean(), columns.mean()]).astype(int), low, high).tolist()
        cells = np.roll(self.cells, (down, across), (0, 1))
        return PlaceCandidate(self.target, describe_place(cells), self.promise, cells)

    def list_facts(self) -> list[str]:
        """Return that the place is the same everywhere, and whether it is small or at the border."""
        facts = ["same place in all images"]
        edges = (self.cells[0], self.cells[-1], self.cells[:, 0], self.cells[:, -1])
        facts += ["at the border"] * any(edge.any() for edge in edges)
        return facts + ["small"] * (self.area <= 0.1)


def find_places(discovery: Discovery) -> list[PlaceCandidate]:
    """Return the places at which a class has more heat than the others, by a permuted maximum statistic over cells."""
    candidates = []
    for target in discovery.targets:
        values, is_class = average_units(
            np.stack([record.heat.ravel() for record in discovery.records]), discovery, target
        )
        tested = run_maximum_test(values, is_class, alpha=_ALPHA, seed=discovery.seed)
        z = tested.z.reshape(GRID, GRID)
        difference = (values[is_class].mean(0) - values[~is_class].mean(0)).reshape(GRID, GRID)
        regions = _find_regions(difference, z > tested.critical)[:_MOST_PER_CLASS]
        candidates += [PlaceCandidate(target, describe_place(cells), float(z[cells].max()), cells) for cells in regions]
    return candidates


def average_units(
    values: NDArray[np.float64], discovery: Discovery, target: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean of the values of each group, those of a class apart from the others, and which are of the class.

    A group of two classes, e.g. a patient with both, is two units.
    """
    is_class = np.array([record.target == target for record in discovery.records])
    units = [
        average_groups(values[part], np.asarray(discovery.groups)[part].tolist()) for part in (is_class, ~is_class)
    ]
    return np.concatenate(units), np.arange(len(units[0]) + len(units[1])) < len(units[0])


def _find_regions(difference: NDArray[np.float64], is_significant: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return the connected regions around significant peaks, the hottest first."""
    rest, regions = is_significant.copy(), list[NDArray[np.bool_]]()
    while rest.any():
        peak = np.unravel_index(int(np.where(rest, difference, -np.inf).argmax()), rest.shape)
        # Tails of the heat that are not significant with few images belong to it as well, if they are as hot.
        region = _grow(peak, difference >= _LEAST_OF_PEAK * difference[peak])
        if not any((region & other).any() for other in regions):
            regions.append(region)
        rest &= ~region & ~_grow(peak, rest)
    return regions


def _grow(seed: tuple[np.intp, ...], allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the allowed cells that are connected with a cell, also at corners."""
    region = np.zeros_like(allowed)
    region[seed] = True
    while True:
        padded = np.pad(region, 1)
        near = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).any((2, 3)) & allowed
        near[seed] = True
        if (near == region).all():
            return region
        region = near
