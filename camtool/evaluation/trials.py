"""Trials of candidates for :func:`camtool.recommend`: how faithful, how well localized and how quick each is.

Localization needs no annotations: the grid pointing game on mosaics of the images that the model recognizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.annotations import place_truth
from camtool.evaluation.candidates import Candidate, map_candidates
from camtool.evaluation.subject import LabeledBatch, Subject
from camtool.trust.metrics.faithfulness import (
    compare_with_cell_drops,
    compare_with_mask_drops,
    measure_cell_drops,
    measure_mask_drops,
)
from camtool.trust.metrics.localization import compute_energy
from camtool.trust.metrics.mosaics import compute_grid_pointing

REFERENCE = Candidate("gradcam")
"""The candidate that the others are compared with: Grad-CAM at the default layer."""

_MASKS = 5
"""Masks of each size: with the cells, 48 forward passes for an image."""

_OF_CELLS = frozenset({"occlusion"})
"""Methods that remove the cells of single deletion, so it would compare them with themselves."""

_GRID = 2
_MOSAICS = 6
"""Each has four times the pixels of an image, so more would take longer than the rest of the measurement."""

_CONFIDENT = 0.5
"""Least probability of the images in mosaics: what the model does not recognize has no right place."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A method at a layer that was measured.

    Attributes:
        method: The method.
        layer: The layer; ``""`` for methods at the input.
        faithfulness: ``(N,)``, the correlation with the drops under random masks, which no method uses: -1 to 1, higher
            is better. See :func:`camtool.trust.metrics.faithfulness.compute_faithfulness_correlation`.
        single_deletion: ``(N,)``, from -1 to 1; ``None`` for a method that removes the same cells itself.
        localization: The share of the heat on the object, ``(N,)``; without truth, in mosaics of the images, the share
            of the heat on the image of the explained class, one value for each mosaic. ``None`` if there are no
            mosaics, because fewer than four classes were recognized with confidence.
        milliseconds: Time for each image.
        has_truth: Whether it is known where the objects are.
    """

    method: str
    layer: str
    faithfulness: NDArray[np.float64] = field(repr=False)
    single_deletion: NDArray[np.float64] | None = field(repr=False)
    localization: NDArray[np.float64] | None = field(repr=False)
    milliseconds: float
    has_truth: bool = False

    @property
    def quality(self) -> NDArray[np.float64]:
        """``(N,)``: the faithfulness, or its mean with the localization if the truth is known."""
        if self.localization is None or not self.has_truth:
            return self.faithfulness
        return (self.faithfulness + self.localization) / 2


class MeasuredBatch:
    """A batch, with the drops of the score without parts of the images, which all candidates are compared with.

    Args:
        subject: The model.
        labeled: The images and their classes.
    """

    def __init__(self, subject: Subject, labeled: LabeledBatch) -> None:
        self.subject, self.labeled = subject, labeled
        score = subject.make_score(labeled, "logit")
        self.cell_drops = measure_cell_drops(score, labeled.images)
        self.mask_drops = measure_mask_drops(score, labeled.images, masks=_MASKS)


class Deadline:
    """The end of the time for all measurements. A step begins only if the longest one so far would end in time.

    Args:
        seconds: The time from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._start, self._seconds, self._longest = time.monotonic(), seconds, 0.0

    def get_share(self) -> float:
        """Return the share of the time that has passed."""
        return (time.monotonic() - self._start) / self._seconds

    def is_over(self) -> bool:
        """Return True if another step may end too late."""
        return time.monotonic() + self._longest > self._start + self._seconds

    @contextmanager
    def time_step(self) -> Iterator[None]:
        """Measure how long the block takes.

        Raises:
            MetricError: The time is over; the block is not run.
        """
        if self.is_over():
            raise MetricError("seconds: the time is over.")
        start = time.monotonic()
        yield
        self._longest = max(self._longest, time.monotonic() - start)


class Bench:
    """Measures candidates on all batches.

    Args:
        batches: The images.
        masks: The objects in each batch, if they are known.
        deadline: The end of the time.
    """

    def __init__(self, batches: Sequence[MeasuredBatch], masks: Sequence[Tensor | None], deadline: Deadline) -> None:
        self._batches, self._masks, self._deadline = batches, masks, deadline
        self._game: PointingGame | None = None

    def measure_reference(self) -> Tried:
        """Measure the reference without a time limit, and prepare the pointing game."""
        tried = self._measure(REFERENCE, nullcontext)
        if tried.has_truth or self._deadline.is_over():
            return tried
        prepared = prepare_pointing(self._batches[0].subject, [batch.labeled for batch in self._batches], REFERENCE)
        if prepared is None:
            return tried
        self._game, shares = prepared
        return replace(tried, localization=_to_array([shares]))

    def measure(self, candidate: Candidate) -> Tried:
        """Measure a candidate.

        Raises:
            CamtoolError: It cannot explain the model, or the time is over before all is measured.
        """
        tried = self._measure(candidate, self._deadline.time_step)
        if self._game is None:
            return tried
        return replace(tried, localization=_to_array([self._game.play(candidate, self._deadline.time_step)]))

    def _measure(self, candidate: Candidate, time_step: Callable[[], AbstractContextManager[None]]) -> Tried:
        faithfulness, deletion, localization, seconds, layer = [], [], [], 0.0, ""
        for batch, mask in zip(self._batches, self._masks, strict=True):
            start, labeled = time.perf_counter(), batch.labeled
            with time_step():
                (maps,) = map_candidates(batch.subject.explainer, [candidate], labeled.batch, labeled.classes.tolist())
            seconds, layer = seconds + time.perf_counter() - start, maps.layer
            faithfulness.append(compare_with_mask_drops(maps.maps, batch.mask_drops))
            deletion.append(compare_with_cell_drops(maps.maps, batch.cell_drops))
            if mask is not None:
                localization.append(compute_energy(maps.maps, mask))
        faithful = _to_array(faithfulness)
        deleted = None if candidate.method in _OF_CELLS else _to_array(deletion)
        localized = _to_array(localization) if localization else None
        milliseconds, has_truth = seconds * 1000 / len(faithful), localized is not None
        return Tried(candidate.method, layer, faithful, deleted, localized, milliseconds, has_truth=has_truth)


def _to_array(values: Sequence[Tensor]) -> NDArray[np.float64]:
    return torch.cat([*values]).cpu().double().numpy()


def place_masks(
    batches: Sequence[MeasuredBatch], truth: Sequence[Any] | None, order: Sequence[int]
) -> list[Tensor | None]:
    """Return for each batch the masks of the objects in the input, if they are known.

    Args:
        batches: The images.
        truth: The truth of the user's images.
        order: The places of the images in the user's list, batch after batch.
    """
    masks, done = list[Tensor | None](), 0
    for batch in batches:
        items = batch.labeled.batch.items
        placed = None if truth is None else place_truth(truth, items, order[done : done + len(items)])
        masks.append(None if placed is None else placed.masks.to(batch.cell_drops.device))
        done += len(items)
    return masks


@dataclass(frozen=True, eq=False)
class PointingGame:
    """Images of at least four classes that the model recognizes.

    Attributes:
        subject: The model.
        images: Its inputs, ``(M, C, H, W)``.
        classes: Their classes, ``(M,)``.
        is_shrunk: Whether mosaics have the size of one image, for models that take a single size.
    """

    subject: Subject
    images: Tensor
    classes: Tensor
    is_shrunk: bool = False

    def play(self, candidate: Candidate, time_step: Callable[[], AbstractContextManager[None]] = nullcontext) -> Tensor:
        """Return the share of the heat on the right image, ``(M,)``; the chance level is 0.25.

        Args:
            candidate: Who plays.
            time_step: Its block is around each mosaic; an exception ends the game.

        Raises:
            CamtoolError: The candidate cannot explain mosaics.
        """
        explain = self.subject.make_explain(candidate, self.classes)

        def explain_in_time(mosaics: Tensor, rows: Tensor) -> Tensor:
            with time_step():
                return explain(mosaics, rows)

        return compute_grid_pointing(
            explain_in_time, self.images, self.classes, grid=_GRID, shrink=self.is_shrunk, chunk=1
        )


def prepare_pointing(
    subject: Subject, batches: Sequence[LabeledBatch], reference: Candidate
) -> tuple[PointingGame, Tensor] | None:
    """Return the game, and how the reference plays it; ``None`` if it cannot be played.

    It takes images of four classes with a probability of at least 50 %, all of one size.
    """
    images, classes = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "classes"))
    chosen = _choose_images(classes, torch.cat([batch.probabilities for batch in batches]))
    if len({int(classes[row]) for row in chosen}) < _GRID**2:
        return None
    game = PointingGame(subject, images[chosen], classes[chosen])
    return _try(game, reference) or _try(replace(game, is_shrunk=True), reference)


def _try(game: PointingGame, reference: Candidate) -> tuple[PointingGame, Tensor] | None:
    """Return the game and how the reference plays it; ``None`` if the model does not take mosaics of this size."""
    try:
        return game, game.play(reference)
    except CamtoolError:
        return None


def _choose_images(classes: Tensor, probabilities: Tensor) -> list[int]:
    """Return the rows of the most certain images: one of each class first, then the others."""
    certain = [row for row in probabilities.argsort(descending=True).tolist() if probabilities[row] >= _CONFIDENT]
    labels = [int(classes[row]) for row in certain]
    first = [row for place, row in enumerate(certain) if labels[place] not in labels[:place]]
    return [*first, *(row for row in certain if row not in first)][:_MOSAICS]
