"""``recommend()``: the method and the layer for a model, chosen by measurement on the user's images."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.arguments.checks import check_number
from camtool.arguments.explain_arguments import read_by_position
from camtool.arguments.message_parts import format_count
from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.annotations import InputTruth, place_truth
from camtool.evaluation.subject import Candidate, LabeledBatch, Subject, map_candidates, read_requests, spread_indices
from camtool.explaining.explainer import FEW_IMAGES
from camtool.explaining.types import Model
from camtool.layers.survey import find_candidates
from camtool.methods import METHODS
from camtool.models import Transform
from camtool.progress import follow_step
from camtool.trust.metrics import faithfulness
from camtool.trust.metrics.localization import compute_energy
from camtool.trust.metrics.mosaics import compute_grid_pointing

# The candidate that the others are compared with: Grad-CAM at the default layer.
REFERENCE = Candidate("gradcam")

# Masks of each size: with the cells, 48 forward passes for an image.
_MASKS = 5

# Methods that remove the cells of single deletion, so it would compare them with themselves.
_OF_CELLS = frozenset({"occlusion"})

_GRID = 2
# Each has four times the pixels of an image, so more would take longer than the rest of the measurement.
_MOSAICS = 6

# Least probability of the images in mosaics: what the model does not recognize has no right place.
_CONFIDENT = 0.5


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
        truth: The objects in the inputs, if they are known.
    """

    def __init__(self, subject: Subject, labeled: LabeledBatch, truth: InputTruth | None) -> None:
        self.subject, self.labeled = subject, labeled
        score = subject.make_score(labeled, "logit")
        self.cell_drops = faithfulness.measure_cell_drops(score, labeled.images)
        self.mask_drops = faithfulness.measure_mask_drops(score, labeled.images, masks=_MASKS)
        self.mask = None if truth is None else truth.masks.to(self.cell_drops.device)


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


class CandidateMeter:
    """Measures candidates on all batches.

    Args:
        batches: The images.
        deadline: The end of the time.
    """

    def __init__(self, batches: Sequence[MeasuredBatch], deadline: Deadline) -> None:
        self._batches, self._deadline = batches, deadline
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
        correlations, deletion, localization, seconds, layer = [], [], [], 0.0, ""
        for batch in self._batches:
            start, labeled = time.perf_counter(), batch.labeled
            with time_step():
                (maps,) = map_candidates(batch.subject.explainer, [candidate], labeled.batch, labeled.classes.tolist())
            seconds, layer = seconds + time.perf_counter() - start, maps.layer
            correlations.append(faithfulness.compare_with_mask_drops(maps.maps, batch.mask_drops))
            deletion.append(faithfulness.compare_with_cell_drops(maps.maps, batch.cell_drops))
            if batch.mask is not None:
                localization.append(compute_energy(maps.maps, batch.mask))
        faithful = _to_array(correlations)
        deleted = None if candidate.method in _OF_CELLS else _to_array(deletion)
        localized = _to_array(localization) if localization else None
        milliseconds, has_truth = seconds * 1000 / len(faithful), localized is not None
        return Tried(candidate.method, layer, faithful, deleted, localized, milliseconds, has_truth=has_truth)


def _to_array(values: Sequence[Tensor]) -> NDArray[np.float64]:
    return torch.cat([*values]).cpu().double().numpy()


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
    with suppress(CamtoolError):
        return game, game.play(reference)
    return None


def _choose_images(classes: Tensor, probabilities: Tensor) -> list[int]:
    """Return the rows of the most certain images: one of each class first, then the others."""
    certain = [row for row in probabilities.argsort(descending=True).tolist() if probabilities[row] >= _CONFIDENT]
    labels = [int(classes[row]) for row in certain]
    first = [row for index, row in enumerate(certain) if labels[index] not in labels[:index]]
    return [*first, *(row for row in certain if row not in first)][:_MOSAICS]


# ---------------------------------------------------------------------------------------------------------- the choice


# More images make the choice little surer, and take time.
_MOST_IMAGES = 32

# Images that are explained together. Between batches the time is looked at.
_BATCH = 4

# Share of the time that is left for a method whose first batch takes longer than all before.
_MARGIN = 0.05

# Share of the time for the drops of the score, which all candidates are compared with.
_PREPARATION = 1 / 3

# Layers before the default one: the deepest one of each finer grid.
_LAYERS = 3

# The methods that are tried, in this order while there is time: the quick ones first.
_METHODS = (
    *("gradcam", "hirescam", "layercam", "xgradcam", "gradcam++", "faithcam", "rivalcam", "cam"),
    *("guided-gradcam", "fullgrad", "gradcam-elementwise", "chefer", "legrad", "agcam", "clearclip"),
    *("ablationcam", "integratedgradcam", "shapleycam", "occlusion", "vitreciprocam", "integrated-gradients"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation:
    """The choice, and what it was chosen from.

        choice = camtool.recommend(model, photos)
        explainer = camtool.Explainer(model, choice.method, choice.layer)

    Attributes:
        method: The method.
        layer: The layer, for ``layer=``; ``None`` for methods at the input.
        reason: Why, in a sentence or two. It says so if there were too few images for a choice.
        tried: All that was measured, the best first.
        front: Those of it that nothing beats in faithfulness, single deletion, localization and time together.
    """

    method: str
    layer: str | None
    reason: str
    tried: tuple[Tried, ...]
    front: tuple[Tried, ...]

    def __str__(self) -> str:
        return self.reason

    def __repr__(self) -> str:
        chosen = Candidate(self.method, self.layer or "")
        return f"<Recommendation: {chosen}, of {len(self.tried)} that were tried>"


def recommend(
    model: Model,
    images: Sequence[Any] | Tensor,
    *,
    truth: Sequence[Any] | None = None,
    target_class: Sequence[int | str | None] | int | str | None = None,
    seconds: float = 60,
    slowest: float | None = None,
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> Recommendation:
    """Choose the method and the layer for a model, by measurement on the user's images.

    Each candidate is judged by its faithfulness: does the score fall more under those random masks under which the map
    is hotter? No method removes what these masks do, so none is compared with itself. Its localization is measured,
    too: in mosaics of four images that the model recognizes, the share of the heat on the image whose class is
    explained; with ``truth`` the share of the heat on the object, which then counts as much as the faithfulness. Of
    the candidates that are not measurably worse than the best one, by one standard error of the paired difference,
    those are left that are not measurably worse in localization, and of these the quickest is chosen. What another
    candidate beats in everything is not chosen, nor what is less faithful than Grad-CAM at the default layer or, by one
    standard error, behind it in single deletion or localization. With fewer than ten images Grad-CAM is the choice.

    Single deletion is not known for ``occlusion``, which measures the same by itself: 16 of its 49 windows
    are the metric's own cells, with the same fill.

    Args:
        model: A classifier, or what :func:`camtool.load` returned.
        images: A list of what :func:`camtool.explain` takes as one image, or the model's input ``(N, C, H, W)``; ten or
            more are needed for a choice. Of more than 32, 32 are used, and less if the model is so slow that to remove
            parts of them, 48 forward passes for each, would take more than a third of the time; twelve at least.
        truth: For each image where its object is, see :func:`camtool.evaluate`.
        target_class: The class that is explained, see :func:`camtool.evaluate`.
        seconds: The time. A candidate that is not measured to the end by then is left out.
        slowest: The longest time for an image, in milliseconds; ``None`` for any.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        labels: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.

    Raises:
        MetricError: There are no images, an argument does not fit, or the model is no classifier.
    """
    check_number("seconds", seconds, above=0, error=MetricError)
    check_number("slowest", slowest, above=0, optional=True, error=MetricError)
    requests = read_requests(images, target_class, truth)
    deadline = Deadline((1 - _MARGIN) * seconds)
    subject = Subject(model, transform, labels, device)
    with follow_step("Choosing the method"):
        batches = _measure_batches(subject, images, requests, truth, deadline)
        meter = CandidateMeter(batches, deadline)
        tried = [meter.measure_reference(), *_try_all(meter, _list_candidates(subject, batches[0].labeled), deadline)]
    # If nothing is that quick, all are compared as without the limit.
    allowed = [trial for trial in tried if slowest is None or trial.milliseconds <= slowest] or tried
    return _decide(allowed, tried, len(tried[0].faithfulness))


def _measure_batches(
    subject: Subject, images: Sequence[Any] | Tensor, requests: Sequence[Any], truth: Any, deadline: Deadline
) -> list[MeasuredBatch]:
    """Return the images that the time suffices for, measured; the arguments are those of :func:`recommend`."""
    chosen = spread_indices(len(images), _MOST_IMAGES)
    # Where the time is short, the first ones count: they are spread over all.
    chosen = [*chosen[::2], *chosen[1::2]]
    images, truth = read_by_position(images), read_by_position(truth)
    used, asked = ([given[index] for index in chosen] for given in (images, requests))
    batches = list[MeasuredBatch]()
    for labeled in subject.iterate_batches(used, asked, _BATCH):
        if len(batches) * _BATCH >= FEW_IMAGES and deadline.get_share() * (1 + 1 / len(batches)) > _PREPARATION:
            break
        placed = place_truth(truth, labeled.batch.items, [chosen[row] for row in labeled.rows])
        batches.append(MeasuredBatch(subject, labeled, placed))
    return batches


def _try_all(meter: CandidateMeter, candidates: Iterable[Candidate], deadline: Deadline) -> Iterator[Tried]:
    """Yield the measurements of candidates until the time is over."""
    for candidate in candidates:
        if deadline.is_over():
            return
        # What cannot explain this model, or takes longer than there is time, is not recommended.
        with suppress(CamtoolError):
            yield meter.measure(candidate)


def _list_candidates(subject: Subject, labeled: LabeledBatch) -> Iterator[Candidate]:
    """Yield the candidates, those of little cost first: each method at the default layer, then at earlier ones."""
    layers = _list_layers(subject.model, labeled.images[:1])
    quick = [name for name in _METHODS if METHODS[name].cost == "a pass" or METHODS[name].ignores_layer]
    yield from (Candidate(name) for name in quick if Candidate(name) != REFERENCE)
    at_layers = (name for name in quick if not METHODS[name].ignores_layer)
    yield from itertools.starmap(Candidate, itertools.product(at_layers, layers))
    yield from (Candidate(name) for name in _METHODS if name not in quick)


def _list_layers(model: nn.Module, image: Tensor) -> list[str]:
    """Return the deepest layer of each of the grids that are finer than that of the default layer."""
    candidates = find_candidates(model, image)
    chosen = next((index for index, candidate in enumerate(candidates) if candidate.chosen), len(candidates))
    deepest = {candidate.stride: candidate.name for candidate in candidates[:chosen]}
    if chosen < len(candidates):
        deepest.pop(candidates[chosen].stride, None)
    return [*deepest.values()][-_LAYERS:]


def _decide(allowed: Sequence[Tried], tried: Sequence[Tried], count: int) -> Recommendation:
    order, reference = tuple(sorted(tried, key=lambda trial: -trial.quality.mean())), tried[0]
    front = tuple(trial for trial in order if not any(_dominates(other, trial) for other in tried))
    if count < FEW_IMAGES:
        reason = (
            f"{_describe(reference, tried, count)} It is the default: a choice among them needs {FEW_IMAGES} images or "
            f"more, and {count} came."
        )
        return Recommendation(reference.method, reference.layer or None, reason, order, front)
    possible = _list_possible(front, allowed, reference)
    best = max(possible, key=lambda trial: trial.quality.mean())
    choice = min(_list_equal(possible, best), key=lambda trial: trial.milliseconds)
    reason = _explain_choice(choice, best, tried, count)
    return Recommendation(choice.method, choice.layer or None, reason, order, front)


def _list_equal(possible: Sequence[Tried], best: Tried) -> list[Tried]:
    """Return those that are no less faithful than the best, without those that miss the right place more often."""
    equal = [trial for trial in possible if not _is_worse(trial.quality, best.quality)]
    if best.localization is None:
        return equal
    sharpest = max(equal, key=lambda tried: float(_get_localization(tried).mean()))
    return [trial for trial in equal if not _is_worse(_get_localization(trial), _get_localization(sharpest))]


def _list_possible(front: Sequence[Tried], allowed: Sequence[Tried], reference: Tried) -> list[Tried]:
    """Return those that may be chosen: what is less faithful than the reference, or measurably behind it, may not."""
    possible = [trial for trial in front if trial in allowed]
    if reference not in allowed:
        return possible
    return [
        trial
        for trial in possible
        if trial.quality.mean() >= reference.quality.mean()
        and not _is_worse(trial.single_deletion, reference.single_deletion)
        and not _is_worse(trial.localization, reference.localization)
    ]


def _get_localization(tried: Tried) -> NDArray[np.float64]:
    assert tried.localization is not None  # of all candidates or of none
    return tried.localization


def _is_worse(values: NDArray[np.float64] | None, best: NDArray[np.float64] | None) -> bool:
    """Return True if both are known and the mean paired difference is more than one standard error."""
    if values is None or best is None:
        return False
    difference = best - values
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return bool(difference.mean() > error)


def _dominates(first: Tried, second: Tried) -> bool:
    """Return True if one is at least as good in everything, and better in something."""
    pairs = [(first.faithfulness.mean(), second.faithfulness.mean()), (-first.milliseconds, -second.milliseconds)]
    for name in ("single_deletion", "localization"):
        values, others = getattr(first, name), getattr(second, name)
        if values is not None and others is not None:
            pairs.append((values.mean(), others.mean()))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _describe(choice: Tried, tried: Sequence[Tried], count: int) -> str:
    reference, images = tried[0], format_count(count, "image")
    return (
        f"{Candidate(choice.method, choice.layer)}: faithfulness is {choice.faithfulness.mean():.2f} on {images} "
        f"(gradcam at the default layer: {reference.faithfulness.mean():.2f}), "
        f"{_describe_deletion(choice, reference)}{_describe_localization(choice, reference)}, and an "
        f"image takes {choice.milliseconds:.0f} ms ({reference.milliseconds:.0f}); {len(tried)} candidates were "
        "measured."
    )


def _explain_choice(choice: Tried, best: Tried, tried: Sequence[Tried], count: int) -> str:
    facts = _describe(choice, tried, count)
    if choice is best:
        return f"{facts} None that keeps up with gradcam in each measure is better."
    measure = "the mean of both" if choice.has_truth else "faithfulness"
    if best.milliseconds > choice.milliseconds:
        but = f"takes {best.milliseconds / choice.milliseconds:.1f} times as long"
    else:
        but = "less of its heat is in the right place"
    return f"{facts} {best.method} has {best.quality.mean():.2f} in {measure}, not measurably better, and {but}."


def _describe_deletion(choice: Tried, reference: Tried) -> str:
    if choice.single_deletion is None or reference.single_deletion is None:
        return ""
    return f"single deletion {choice.single_deletion.mean():.2f} ({reference.single_deletion.mean():.2f}), "


def _describe_localization(choice: Tried, reference: Tried) -> str:
    if choice.localization is None or reference.localization is None:
        return "localization was not measured, as mosaics take four classes that the model is sure of"
    located = "the object" if choice.has_truth else "the right image of mosaics"
    return f"{choice.localization.mean():.0%} of the heat is on {located} ({reference.localization.mean():.0%})"
