"""``recommend()``: the method and the layer for a model, chosen by measurement on the user's images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.arguments.checks import check_number
from camtool.arguments.explain_arguments import read_by_position
from camtool.arguments.messages import format_count
from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.candidates import Candidate
from camtool.evaluation.subject import LabeledBatch, Subject, check_image_list, check_truth, match_requests
from camtool.evaluation.trials import REFERENCE, Bench, Deadline, MeasuredBatch, Tried, place_masks
from camtool.explaining.explainer import FEW_IMAGES
from camtool.explaining.types import Model
from camtool.layers.survey import find_candidates
from camtool.methods import METHODS
from camtool.models import Transform
from camtool.progress import follow_step

_MOST_IMAGES = 32
"""More images make the choice little surer, and take time."""

_BATCH = 4
"""Images that are explained together. Between batches the time is looked at."""

_MARGIN = 0.05
"""Share of the time that is left for a method whose first batch takes longer than all before."""

_PREPARATION = 1 / 3
"""Share of the time for the drops of the score, which all candidates are compared with."""

_LAYERS = 3
"""Layers before the default one: the deepest one of each finer grid."""

_METHODS = (
    *("gradcam", "hirescam", "layercam", "xgradcam", "gradcam++", "faithcam", "rivalcam", "cam"),
    *("guided-gradcam", "fullgrad", "gradcam-elementwise", "chefer", "legrad", "agcam", "clearclip"),
    *("ablationcam", "integratedgradcam", "shapleycam", "occlusion", "vitreciprocam", "integrated-gradients"),
)
"""The methods that are tried, in this order while there is time: the quick ones first."""


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
        front: Those of it that nothing beats in faithfulness, localization and time together.
    """

    method: str
    layer: str | None
    reason: str
    tried: tuple[Tried, ...]
    front: tuple[Tried, ...]

    def __str__(self) -> str:
        return self.reason

    def __repr__(self) -> str:
        where = f" at {self.layer}" if self.layer else ""
        return f"<Recommendation: {self.method}{where}, of {len(self.tried)} that were tried>"


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
    candidate beats in everything is not chosen, nor what is less faithful than Grad-CAM at the default layer, which is
    the choice if there are fewer than ten images.

    Single deletion is told beside it, but for ``occlusion``, which measures the same by itself: 16 of its 49 windows
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
    check_image_list(images)
    requests = match_requests(target_class, len(images))
    check_truth(truth, len(images))
    deadline = Deadline((1 - _MARGIN) * seconds)
    subject = Subject(model, transform, labels, device)
    with follow_step("Choosing the method"):
        return _choose(subject, images, requests, truth, deadline, slowest)


def _choose(
    subject: Subject,
    images: Sequence[Any] | Tensor,
    requests: Sequence[Any],
    truth: Sequence[Any] | None,
    deadline: Deadline,
    slowest: float | None = None,
) -> Recommendation:
    """Return the choice for a model; the arguments are those of :func:`recommend`."""
    chosen = np.unique(np.linspace(0, len(images) - 1, min(len(images), _MOST_IMAGES)).round().astype(int)).tolist()
    # Where the time is short, the first ones count: they are spread over all.
    chosen = [*chosen[::2], *chosen[1::2]]
    images, truth = read_by_position(images), read_by_position(truth)
    used, asked = [images[index] for index in chosen], [requests[index] for index in chosen]
    batches = list[MeasuredBatch]()
    for batch in subject.iterate_batches(used, asked, _BATCH):
        if len(batches) * _BATCH >= FEW_IMAGES and deadline.get_share() * (1 + 1 / len(batches)) > _PREPARATION:
            break
        batches.append(MeasuredBatch(subject, batch))
    count = sum(len(batch.labeled.classes) for batch in batches)
    bench = Bench(batches, place_masks(batches, truth, chosen), deadline)
    tried = [bench.measure_reference()]
    for candidate in _list_candidates(subject, batches[0].labeled):
        if deadline.is_over():
            break
        try:
            tried.append(bench.measure(candidate))
        except CamtoolError:
            continue  # what cannot explain this model, or takes longer than there is time, is not recommended
    # If nothing is that quick, all are compared as without the limit.
    allowed = [trial for trial in tried if slowest is None or trial.milliseconds <= slowest] or tried
    return _decide(allowed, tried, count)


def _list_candidates(subject: Subject, labeled: LabeledBatch) -> Iterator[Candidate]:
    """Yield the candidates, those of little cost first: each method at the default layer, then at earlier ones."""
    layers = _list_layers(subject.model, labeled.images[:1])
    quick = [name for name in _METHODS if METHODS[name].cost == "a pass" or METHODS[name].ignores_layer]
    for name in (name for name in quick if Candidate(name) != REFERENCE):
        yield Candidate(name)
    for name in (name for name in quick if not METHODS[name].ignores_layer):
        yield from (Candidate(name, layer) for layer in layers)
    for name in (name for name in _METHODS if name not in quick):
        yield Candidate(name)


def _list_layers(model: nn.Module, image: Tensor) -> list[str]:
    """Return the deepest layer of each of the grids that are finer than that of the default layer."""
    candidates = find_candidates(model, image)
    chosen = next((place for place, candidate in enumerate(candidates) if candidate.chosen), len(candidates))
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
    least = reference.quality.mean() if reference in allowed else -np.inf
    possible = [trial for trial in front if trial in allowed and trial.quality.mean() >= least]
    best = max(possible, key=lambda trial: trial.quality.mean())
    choice = min(_list_equal(possible, best), key=lambda trial: trial.milliseconds)
    reason = _explain_choice(choice, best, tried, count)
    return Recommendation(choice.method, choice.layer or None, reason, order, front)


def _list_equal(possible: Sequence[Tried], best: Tried) -> list[Tried]:
    """Return those that are no less faithful than the best, without those that miss the right place more often."""
    equal = [trial for trial in possible if not _is_worse(trial.quality, best.quality)]
    if best.localization is None:
        return equal
    sharpest = max(equal, key=lambda one: float(_get_localization(one).mean()))
    return [trial for trial in equal if not _is_worse(_get_localization(trial), _get_localization(sharpest))]


def _get_localization(one: Tried) -> NDArray[np.float64]:
    assert one.localization is not None  # of all candidates or of none
    return one.localization


def _is_worse(one: NDArray[np.float64], best: NDArray[np.float64]) -> bool:
    """Return True if the mean paired difference is more than one standard error."""
    difference = best - one
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return bool(difference.mean() > error)


def _dominates(one: Tried, other: Tried) -> bool:
    """Return True if one is at least as good in everything, and better in something."""
    pairs = [(one.faithfulness.mean(), other.faithfulness.mean()), (-one.milliseconds, -other.milliseconds)]
    if one.localization is not None and other.localization is not None:
        pairs.append((one.localization.mean(), other.localization.mean()))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _describe(choice: Tried, tried: Sequence[Tried], count: int) -> str:
    reference = tried[0]
    where = f" at {choice.layer}" if choice.layer else ""
    images = format_count(count, "image")
    return (
        f"{choice.method}{where}: faithfulness is {choice.faithfulness.mean():.2f} on {images} "
        f"(gradcam at the default layer: {reference.faithfulness.mean():.2f}), "
        f"{_describe_deletion(choice, reference)}{_describe_localization(choice, reference)}, and an "
        f"image takes {choice.milliseconds:.0f} ms ({reference.milliseconds:.0f}); {len(tried)} candidates were "
        "measured."
    )


def _explain_choice(choice: Tried, best: Tried, tried: Sequence[Tried], count: int) -> str:
    facts = _describe(choice, tried, count)
    if choice is best:
        return f"{facts} None is better."
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
    place = "the object" if choice.has_truth else "the right image of mosaics"
    return f"{choice.localization.mean():.0%} of the heat is on {place} ({reference.localization.mean():.0%})"
