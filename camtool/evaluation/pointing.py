"""Localization without annotations: the grid pointing game on mosaics of the images that the model recognizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from camtool.errors import CamtoolError
from camtool.evaluation.candidates import Candidate
from camtool.evaluation.subject import LabeledBatch, Subject
from camtool.trust.metrics.mosaics import compute_grid_pointing

_GRID = 2
_MOSAICS = 6
"""Each has four times the pixels of an image, so more would take longer than the rest of the measurement."""

_CONFIDENT = 0.5
"""Least probability of the images in mosaics: what the model does not recognize has no right place."""


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
    images, classes = (torch.cat([getattr(each, name) for each in batches]) for name in ("images", "classes"))
    chosen = _choose_images(classes, torch.cat([each.probabilities for each in batches]))
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
