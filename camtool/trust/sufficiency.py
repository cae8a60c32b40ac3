"""Smallest parts of an image that keep a share of a score, or take it away, each confirmed by forward passes.

A part is a set of cells of a grid. Its *value* is measured: the share of the score that the part alone keeps, or that
is lost without it. The search looks for a small part whose value is high enough:

1. Bisection: the hottest blocks of 4 x 4 cells of a map, as few as hold.
2. Delta debugging on these blocks, then on blocks of 2 x 2 cells, then on cells: one pass without each, the coldest
   first. Those whose loss costs least are dropped together, as many of them as possible, and the rest is measured
   again. Among those that cost about the same the colder one goes first. Where passes are few, several cells are one
   chunk.
3. The part is minimal if no single cell can be dropped, each of which one pass has shown. Where the passes did not
   suffice for that, the result says so.

Values need not fall with the part: a part may hold although a larger one does not. The result is therefore a local
minimum, never a proof that no smaller part exists; see docs/sufficient.md.

Sources: delta debugging, ddmin, Zeller and Hildebrandt, IEEE Transactions on Software Engineering 28, 2002; sufficient
input subsets, arXiv 1810.03805; minimal sufficient explanations, arXiv 2011.04821.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.message_parts import format_count, format_percent
from camtool.rendering import image_writing, regions
from camtool.rendering.views import View

Cells: TypeAlias = NDArray[np.bool_]
Measure: TypeAlias = Callable[[Cells], NDArray[np.float64]]

# The smallest number of values of a search.
FEWEST_PASSES = 16

# Cells along each side of a block, one search after the other.
_BLOCKS = (4, 2, 1)

# Sizes that one round of the bisection measures.
_POINTS = 6

# Numbers of chunks to drop together that one round measures.
_DROP_POINTS = 3

# Chunks that a round tries to drop: this share of those not tried yet, those first whose loss cost least before.
_FEWEST_TRIED, _TRIED_SHARE = 4, 0.5

# Share of the passes left that a round may take to try chunks; the others find out how many can go together.
_ROUND_SHARE = 0.7

# Cost that is added for the highest heat, where the other cost is the share of the score that a loss takes: cells
# beside an object often cost no more than cells of it, and are colder.
_HEAT_COST = 0.1

# Share of the gray photo that is left outside of a region, and the gray that it fades to.
_FADED, _PAPER = 0.3, 235

_COLORS = ((255, 255, 255), (90, 200, 250), (255, 190, 60), (150, 230, 120))


class _Search:
    """Values that are measured at most once each, up to a number of passes.

    Args:
        measure: Returns the values ``(M,)`` of parts ``(M, h, w)``.
        goal: The least value of a part that holds.
        passes: The number of values that may be measured.
        heat: ``(h, w)``, which cells are likely needed, from 0 to 1.

    Attributes:
        left: How many still may.
    """

    def __init__(self, measure: Measure, goal: float, passes: int, heat: NDArray[np.floating]) -> None:
        self._measure, self.goal, self.left, self.heat = measure, goal, passes, heat
        self._values: dict[bytes, float] = {}

    def find_values(self, parts: Sequence[Cells]) -> list[float]:
        """Return the values of parts; minus infinity for those that no passes are left for."""
        by_key = {part.tobytes(): part for part in parts}
        new = [key for key in by_key if key not in self._values][: self.left]
        if new:
            self.left -= len(new)
            values = self._measure(np.stack([by_key[key] for key in new]))
            self._values.update(zip(new, map(float, values), strict=True))
        return [self._values.get(part.tobytes(), -math.inf) for part in parts]

    def find_last(self, parts: Sequence[Cells], points: int) -> int:
        """Return the index of the last of parts that holds, as if values fell along them; the first one does."""
        lowest, end = 0, len(parts)
        while end - lowest > 1 and self.left:
            spread = {lowest + max(1, round((end - lowest) * step / (points + 1))) for step in range(1, points + 1)}
            tried = sorted(spread - {end})
            values = self.find_values([parts[at] for at in tried])
            lowest = max((at for at, value in zip(tried, values, strict=True) if value >= self.goal), default=lowest)
            end = min((at for at in tried if at > lowest), default=end)
        return lowest

    def drop(self, part: Cells, units: Sequence[Cells]) -> tuple[Cells, bool]:
        """Return the part without the units that can go, and True if no single one of the others can.

        Args:
            part: A part that holds.
            units: Parts of it that have no cell in common.
        """
        heat = _HEAT_COST * np.array([float(self.heat[unit].mean()) for unit in units])
        costs, fresh, kept = heat.copy(), set[int](), list(range(len(units)))
        is_first_round = True
        while kept and self.left:
            untried = sorted(sorted({*kept} - fresh), key=costs.__getitem__)
            if not untried:
                return part, True
            chunks = self._split_untried(untried, is_first_round=is_first_round)
            is_first_round = False
            are_single = len(chunks[0]) == 1
            if not are_single and self.left < _FEWEST_TRIED:
                break
            values = self.find_values([_remove(part, units, chunk) for chunk in chunks])
            for chunk, value in zip(chunks, values, strict=True):
                costs[chunk] = heat[chunk] - value
            # A chunk of several tells nothing of each, but no passes are left to ask again.
            fresh.update(*chunks)
            if max(values) >= self.goal:
                part, gone = self._drop_in_order(part, units, self._rank(chunks, values, costs))
                kept, fresh = sorted({*kept} - gone), set()
            elif not are_single:
                break
        return part, not kept

    def _split_untried(self, untried: list[int], *, is_first_round: bool) -> list[list[int]]:
        """Return the units to try next, in at most as many chunks as one round has passes."""
        count = len(untried)
        if not is_first_round:  # in the first one nothing is known but the map
            count = min(count, max(_FEWEST_TRIED, math.ceil(_TRIED_SHARE * count)))
        size = math.ceil(count / max(1, int(_ROUND_SHARE * self.left)))
        return [untried[start : start + size] for start in range(0, count, size)]

    def _rank(
        self, chunks: Sequence[list[int]], values: Sequence[float], costs: NDArray[np.float64]
    ) -> list[list[int]]:
        """Return the chunks without which the part holds before the others, and first what costs least."""
        losses = [float(costs[chunk].mean()) for chunk in chunks]
        order = sorted(range(len(chunks)), key=lambda index: (values[index] < self.goal, losses[index]))
        return [chunks[index] for index in order]

    def _drop_in_order(
        self, part: Cells, units: Sequence[Cells], chunks: Sequence[Sequence[int]]
    ) -> tuple[Cells, set[int]]:
        """Return the part without as many of the first chunks as can go, and their units."""
        nested = [part]
        for chunk in chunks:
            nested.append(_remove(nested[-1], units, chunk))
        last = self.find_last(nested[1:], _DROP_POINTS)
        return nested[last + 1], {at for chunk in chunks[: last + 1] for at in chunk}


def _remove(part: Cells, units: Sequence[Cells], chosen: Sequence[int]) -> Cells:
    kept: Cells = part & ~np.any([units[at] for at in chosen], axis=0)
    return kept


def find_part(
    measure: Measure, heat: NDArray[np.floating], goal: float, passes: int, allowed: Cells | None = None
) -> tuple[Cells, bool, int] | None:
    """Return a small part whose value reaches a goal, True if no single cell can be dropped, and the passes it took.

    Args:
        measure: Returns the values ``(M,)`` of parts ``(M, h, w)``, booleans.
        heat: ``(h, w)``, which cells are likely needed.
        goal: The least value of the part.
        passes: The largest number of values that are measured.
        allowed: ``(h, w)``, the cells that it may have; by default all.

    Returns:
        Part, minimality and number of values; ``None`` if all allowed cells together do not reach the goal.
    """
    relative = (heat - heat.min()) / max(float(np.ptp(heat)), np.finfo(np.float64).tiny)
    search, none = _Search(measure, goal, passes, relative), np.zeros(heat.shape, bool)
    part, is_minimal = np.ones(heat.shape, bool) if allowed is None else allowed, False
    of_none, of_all = search.find_values([none, part])
    if of_none >= goal:
        return none, True, passes - search.left
    if of_all < goal:
        return None
    for size in _BLOCKS:
        units = _divide(part, size)
        units.sort(key=lambda unit: float(heat[unit].mean()))
        if size == _BLOCKS[0]:
            nested = [part]
            for unit in units[:-1]:
                nested.append(nested[-1] & ~unit)
            last = search.find_last(nested, _POINTS)
            part, units = nested[last], units[last:]
        part, is_minimal = search.drop(part, units)
    return part, is_minimal, passes - search.left


def _divide(part: Cells, size: int) -> list[Cells]:
    """Return the cells of a part in blocks of ``size`` x ``size``, as parts."""
    rows, columns = (np.arange(length) // size for length in part.shape)
    numbers = rows[:, None] * (columns[-1] + 1) + columns
    return [part & (numbers == number) for number in np.unique(numbers[part])]


# ----------------------------------------------------------------------------------------------------------- the result


@dataclass(frozen=True, eq=False)
class VerifiedRegion(image_writing.Displayable):
    """A part of a photo that keeps, or takes away, a share of the score; forward passes of the model confirm it.

    Attributes:
        kind: ``"sufficient"`` or ``"necessary"``.
        mask: ``(H, W)`` booleans on the photo, True in the region.
        cells: ``(h, w)`` booleans, the region on the grid of the search, which is stretched over the model's input.
        share: The share of the model's input that the region is, from 0 to 1.
        score: The score of the whole image: the probability, or for a target without one its own score.
        score_alone: The score with all outside replaced; the lowest one, if there are several fills.
        score_without: The score with the region replaced; the highest one, if there are several fills.
        by_fill: Name of a fill to the score of the region alone and that without it.
        other_fill: Where one fill was asked for: the name of another one, and the score with it, of the region alone if
            it is sufficient, and without it if it is necessary. The claim need not hold for it. Else ``None``.
        passes: The forward passes that were used, for all of :attr:`others` together.
        is_minimal: True if no single cell can be dropped; False if the passes did not suffice to find out.
        label: What is explained.
        answer: The label of the class that the model answers for the whole image, if it is another one; else ``None``.
        is_probability: True if the scores are probabilities.
        view: The photo and how it became the model's input.
        others: Further regions for which the same holds, with no cell in common with this one or with each other.
    """

    kind: str
    mask: Cells = field(repr=False)
    cells: Cells = field(repr=False)
    share: float
    score: float
    score_alone: float
    score_without: float
    by_fill: dict[str, tuple[float, float]]
    other_fill: tuple[str, float] | None
    passes: int
    is_minimal: bool
    label: str
    answer: str | None
    is_probability: bool
    view: View = field(repr=False)
    others: tuple[VerifiedRegion, ...] = ()

    @property
    def sentence(self) -> str:
        """The region in words: what it is enough for, what is left without it, and what was not found out."""
        text = self._describe_effect()
        if not self.is_minimal:
            text += " It may be smaller still: the passes did not suffice to try each cell."
        if self.others:
            shares = " and ".join(format_percent(other.share) for other in self.others)
            text += f" The same holds for {format_count(len(self.others), 'other part')}, of {shares}."
        if self.answer is not None:
            text += f" For the whole photo the model answers {self.answer!r}, not {self.label!r}."
        return text

    def _describe_effect(self) -> str:
        """Say what the region is enough for, and what is left without it."""
        photo = "the photo" if self.view.seen.all() else "what the model sees"
        score = f"{'probability' if self.is_probability else 'score'} of {self.label!r}"
        fills = " or ".join(map(_describe_fill, self.by_fill))
        alone, without = format_percent(self.score_alone / self.score), format_percent(self.score_without / self.score)
        share = "Less than 1%" if 0 < self.share < 0.005 else format_percent(self.share)
        other = self._describe_other()
        if not self.cells.any():
            return f"Nothing of {photo} is needed: all of it {fills}, {alone} of the {score} is left{other}."
        if self.kind == "sufficient":
            gives = f"{share} of {photo} alone, the rest {fills}, gives {alone} of the {score}{other}"
            return f"{gives}; without it {without} is left."
        return f"Without {share} of {photo}, {fills}, {without} of the {score} is left{other}; it alone gives {alone}."

    def _describe_other(self) -> str:
        """Say in brackets how much of the score is left with another fill."""
        if self.other_fill is None:
            return ""
        name, score = self.other_fill
        return f" ({format_percent(score / self.score)} if {_describe_fill(name)})"

    def overlay(self) -> NDArray[np.uint8]:
        """Return the photo with all but the region faded and gray, ``(H, W, 3)`` uint8; each region has an outline.

        A small photo is enlarged, as for :meth:`camtool.Explanation.save`.
        """
        times, photo = self.view.enlargement, self.view.enlarge().photo
        masks = [np.kron(region.mask, np.ones((times, times), bool)) for region in (self, *self.others)]
        faded = np.rint(_FADED * photo.mean(2, keepdims=True) + (1 - _FADED) * _PAPER).astype(np.uint8)
        pixels = np.where(np.any(masks, axis=0)[..., None], photo, faded)
        for number, mask in enumerate(masks):
            lines = regions.find_contours(mask.astype(np.float32), threshold=0.5) if mask.any() else []
            pixels = regions.draw_contours(pixels, lines, color=_COLORS[number % len(_COLORS)])
        return pixels

    def to_pixels(self) -> NDArray[np.uint8]:
        """Return :meth:`overlay`, which is saved and shown."""
        return self.overlay()

    def __str__(self) -> str:
        return self.sentence


# Name of a fill to how it is said in a sentence.
_FILL_WORDS = {"blur": "blurred", "mean": "in its mean color", "zero": "at zero", "inpaint": "inpainted"}


def _describe_fill(name: str) -> str:
    return _FILL_WORDS.get(name, f"replaced by {name}")
