"""``recommend()``: the method and the layer for a model, chosen by measurement on the user's images."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.arguments.checks import check_number
from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.annotations import place_truth
from camtool.evaluation.candidates import Candidate, compute_maps
from camtool.evaluation.subject import LabeledBatch, Subject
from camtool.layers.survey import find_candidates
from camtool.methods import METHODS
from camtool.models import Loaded, Transform, to_loaded
from camtool.structures.model_cache import remember_for_model
from camtool.trust.metrics.faithfulness import compare_with_cell_drops, measure_cell_drops
from camtool.trust.metrics.localization import compute_energy

__all__ = ["Recommendation", "Tried", "recommend", "recommend_once"]

_LOG = logging.getLogger(__name__)

_FEW = 10
"""Below this number of images the choice is hardly more than a guess."""

_MOST_IMAGES = 32
"""More images make the choice little surer, and take time."""

_LAYERS = 3
"""Layers before the default one: the deepest one of each finer grid."""

_REFERENCE = Candidate("gradcam")

_METHODS = (
    *("gradcam", "hirescam", "layercam", "xgradcam", "gradcam++", "faithcam", "rivalcam", "cam"),
    *("guided-gradcam", "fullgrad", "gradcam-elementwise", "chefer", "legrad", "agcam", "clearclip"),
    *("ablationcam", "integratedgradcam", "shapleycam", "occlusion", "vitreciprocam", "integrated-gradients"),
)
"""The methods that are tried, in this order while there is time: the quick ones first."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A method at a layer that was measured.

    Attributes:
        method: The method.
        layer: The layer; ``""`` for methods at the input.
        faithfulness: ``(N,)``, single deletion on each image: -1 to 1, higher is better.
        localization: ``(N,)``, the share of the heat on the object; ``None`` without truth.
        milliseconds: Time for each image.
    """

    method: str
    layer: str
    faithfulness: NDArray[np.float64]
    localization: NDArray[np.float64] | None
    milliseconds: float

    @property
    def quality(self) -> NDArray[np.float64]:
        """``(N,)``: the faithfulness, or its mean with the localization if that is known."""
        return self.faithfulness if self.localization is None else (self.faithfulness + self.localization) / 2


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The choice, and what it was chosen from.

        choice = camtool.recommend(model, photos)
        explainer = camtool.Explainer(model, choice.method, choice.layer)

    Attributes:
        method: The method.
        layer: The layer, for ``layer=``; ``None`` for methods at the input.
        reason: Why, in a sentence or two.
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


def recommend(
    model: nn.Module | Loaded,
    images: Sequence[Any] | Tensor,
    *,
    truth: Sequence[Any] | None = None,
    target_class: Sequence[int | str | None] | None = None,
    seconds: float = 60,
    slowest: float | None = None,
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> Recommendation:
    """Choose the method and the layer for a model, by measurement on the user's images.

    Each candidate is judged by single deletion: does the score fall most where the map is hottest? With ``truth`` it is
    also judged by the share of its heat on the object. Of the candidates that are not measurably worse than the best
    one, by one standard error of the paired difference, the quickest is chosen.

    ``occlusion`` measures by itself what single deletion asks, on a finer grid, so it is hard to beat. It takes 50
    forward passes; ``slowest`` leaves it out where that is too long.

    Args:
        model: A classifier, or what :func:`camtool.load` returned.
        images: A list of what :func:`camtool.explain` takes as one image, or the model's input ``(N, C, H, W)``; ten or
            more are best. Of more than 32, 32 are used.
        truth: For each image where its object is, see :func:`camtool.evaluate`.
        target_class: The class of each image; by default the model's top class.
        seconds: When no further candidate is tried.
        slowest: The longest time for an image, in milliseconds; ``None`` for any.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        labels: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.

    Raises:
        MetricError: There are no images, an argument does not fit, or the model is no classifier.
    """
    check_number("seconds", seconds, above=0, error=MetricError)
    check_number("slowest", slowest, above=0, optional=True, error=MetricError)
    end = time.monotonic() + seconds
    subject = Subject(model, transform, labels, device)
    requests = [None] * len(images) if target_class is None else list(target_class)
    for name, given in (("target_class", requests), ("truth", truth)):
        if given is not None and len(given) != len(images):
            raise MetricError(f"{name} has {len(given)} entries for {len(images)} images; give one for each.")
    return _choose(subject, images, requests, truth, lambda: time.monotonic() > end, slowest)


def recommend_once(
    model: nn.Module | Loaded, images: Sequence[Any] | Tensor, **settings: Any
) -> tuple[str, str | None]:
    """Return the method and the layer for a model, chosen on the first images that are explained by ``"auto"``.

    The arguments are those of :func:`recommend`.
    """

    def compute() -> tuple[str, str | None]:
        found = recommend(model, images, **settings)
        few = f" These are few images; call camtool.recommend with {_FEW} or more." if len(images) < _FEW else ""
        _LOG.info("method='auto': %s%s", found.reason, few)
        return found.method, found.layer

    return remember_for_model(to_loaded(model).model, "recommendation", compute)


def _choose(
    subject: Subject,
    images: Sequence[Any] | Tensor,
    requests: Sequence[Any],
    truth: Sequence[Any] | None,
    is_over: Callable[[], bool],
    slowest: float | None = None,
) -> Recommendation:
    """Return the choice for a model; the arguments are those of :func:`recommend`."""
    if not len(images):
        raise MetricError("images is empty; give one or more.")
    chosen = np.unique(np.linspace(0, len(images) - 1, min(len(images), _MOST_IMAGES)).round().astype(int)).tolist()
    used, asked = [images[index] for index in chosen], [requests[index] for index in chosen]
    known = None if truth is None else [truth[index] for index in chosen]
    batches = [_Measured(subject, each) for each in subject.iterate_batches(used, asked, _MOST_IMAGES)]
    masks = _place_masks(batches, known)
    tried = [_measure(batches, masks, _REFERENCE)]
    for candidate in _list_candidates(subject, batches[0].labeled):
        if is_over():
            break
        try:
            tried.append(_measure(batches, masks, candidate))
        except CamtoolError:
            continue  # what cannot explain this model is not recommended
    allowed = [each for each in tried if slowest is None or each.milliseconds <= slowest] or tried[:1]
    return _decide(allowed, tried, len(used))


class _Measured:
    """A batch, with the drop of the score without each cell, which all candidates are compared with."""

    def __init__(self, subject: Subject, labeled: LabeledBatch) -> None:
        self.subject, self.labeled = subject, labeled
        self.drops = measure_cell_drops(subject.make_score(labeled, "logit"), labeled.images)


def _place_masks(batches: Sequence[_Measured], truth: Sequence[Any] | None) -> list[Tensor | None]:
    """Return for each batch the masks of the objects in the input, if they are known."""
    masks, done = list[Tensor | None](), 0
    for each in batches:
        items = each.labeled.batch.items
        placed = None if truth is None else place_truth(truth[done : done + len(items)], items, start=done)
        masks.append(None if placed is None else placed.masks.to(each.drops.device))
        done += len(items)
    return masks


def _list_candidates(subject: Subject, labeled: LabeledBatch) -> Iterator[Candidate]:
    """Yield the candidates, those of little cost first: each method at the default layer, then at earlier ones."""
    layers = _list_layers(subject.model, labeled.images[:1])
    quick = [name for name in _METHODS if METHODS[name].cost == "a pass" or METHODS[name].ignores_layer]
    for name in (name for name in quick if Candidate(name) != _REFERENCE):
        yield Candidate(name)
    for name in (name for name in quick if not METHODS[name].ignores_layer):
        yield from (Candidate(name, layer) for layer in layers)
    for name in (name for name in _METHODS if name not in quick):
        yield Candidate(name)


def _list_layers(model: nn.Module, image: Tensor) -> list[str]:
    """Return the deepest layer of each of the grids that are finer than that of the default layer."""
    found = find_candidates(model, image)
    chosen = next((place for place, each in enumerate(found) if each.chosen), len(found))
    deepest = {each.stride: each.name for each in found[:chosen]}
    if chosen < len(found):
        deepest.pop(found[chosen].stride, None)
    return [*deepest.values()][-_LAYERS:]


def _measure(batches: Sequence[_Measured], masks: Sequence[Tensor | None], candidate: Candidate) -> Tried:
    faithfulness, localization, seconds, layer = [], [], 0.0, ""
    for each, mask in zip(batches, masks, strict=True):
        start = time.perf_counter()
        labeled = each.labeled
        (found,) = compute_maps(each.subject.explainer, [candidate], labeled.batch, labeled.classes.tolist())
        seconds, layer = seconds + time.perf_counter() - start, found.layer
        faithfulness.append(compare_with_cell_drops(found.maps, each.drops))
        if mask is not None:
            localization.append(compute_energy(found.maps, mask))
    faithful = torch.cat(faithfulness).double().cpu().numpy()
    localized = torch.cat(localization).double().cpu().numpy() if localization else None
    return Tried(candidate.method, layer, faithful, localized, seconds * 1000 / len(faithful))


def _decide(allowed: Sequence[Tried], tried: Sequence[Tried], count: int) -> Recommendation:
    best = max(allowed, key=lambda each: each.quality.mean())
    equal = [each for each in allowed if not _is_worse(each.quality, best.quality)]
    choice = min(equal, key=lambda each: each.milliseconds)
    reason = _explain_choice(choice, best, tried, count)
    order = sorted(tried, key=lambda each: -each.quality.mean())
    front = tuple(each for each in order if not any(_dominates(other, each) for other in tried))
    return Recommendation(choice.method, choice.layer or None, reason, tuple(order), front)


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


def _explain_choice(choice: Tried, best: Tried, tried: Sequence[Tried], count: int) -> str:
    reference = tried[0]
    kind = "single deletion" if choice.localization is None else "the mean of single deletion and heat on the object"
    where = f" at {choice.layer}" if choice.layer else ""
    found = (
        f"{choice.method}{where}: {kind} is {choice.quality.mean():.2f} on {count} images, and that of gradcam at the "
        f"default layer {reference.quality.mean():.2f}; {len(tried)} candidates were measured."
    )
    if choice is best:
        return f"{found} None is better."
    return (
        f"{found} {best.method} has {best.quality.mean():.2f}, which is not measurably better, and takes "
        f"{best.milliseconds / choice.milliseconds:.1f} times as long."
    )
