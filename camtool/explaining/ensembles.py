"""Mean and spread of the maps of several models, or of one model with its dropout active: :func:`explain_ensemble`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from camtool.arguments.checks import check_count, check_integer
from camtool.arguments.explain_arguments import explain_foreign_arguments
from camtool.errors import ImageError, ModelError, TargetError
from camtool.explaining.explainer import Explainer, predict
from camtool.explaining.explanation import Explanation
from camtool.explaining.types import Arrays, Model, OneImage, OneMethod, OneTarget
from camtool.geometry.crop_and_resize import Geometry
from camtool.hooks.registration import activate_dropout
from camtool.hooks.state.guard import guard
from camtool.models import to_loaded
from camtool.rendering.views import Photo
from camtool.targets.resolving import Top

_MOST_CLASSES = 2**20


@explain_foreign_arguments
def explain_ensemble(
    models: Model | Sequence[Model],
    img: OneImage | Arrays,
    target_class: OneTarget = None,
    *,
    samples: int = 0,
    seed: int = 0,
    method: OneMethod = "gradcam",
    **options: Any,
) -> Explanation:
    """Explain one image by several models, or by one model whose dropout is active: mean and spread of the maps.

        result = camtool.explain_ensemble([first, second, third], "photo.jpg")
        result.uncertainty  # standard deviation of each cell over the members
        result.uncertainty_overlay()
        camtool.explain_ensemble(model, "photo.jpg", samples=20)  # Monte-Carlo dropout, arXiv 1506.02142

    Each map is divided by its largest magnitude, so that all members count alike. The models are left as they were.

    Args:
        models: One model or several, of any architectures with the same classes.
        img: One image, as for :func:`camtool.explain`.
        target_class: As for :func:`camtool.explain`; ``None`` is the class with the highest mean probability.
        samples: The number of passes of each model with random dropout masks; 0 for one pass without dropout. Modules
            such as ``nn.Dropout`` are made active, calls of ``torch.nn.functional.dropout`` are not.
        seed: The seed of the first sample; each next one has the next.
        method: As for :func:`camtool.explain`.
        **options: Options of the method, and settings of :func:`camtool.explain`.

    Returns:
        An explanation whose ``raw`` is the mean map, of the members' grid if they share it and else of the photo's
        pixels, and ``uncertainty`` its standard deviation over the members; ``score`` and ``probability`` are means.

    Raises:
        ImageError: ``img`` is not one image.
        ModelError: There is one model and no sample, a model without dropout is to be sampled, or two models have other
            labels, or the same in another order.
        TargetError: The members explain other classes, e.g. each that of the highest score at a place.
        CamtoolError: As for :func:`camtool.explain`.
    """
    check_count("samples", samples, least=0)
    check_integer("seed", seed)
    several: list[Model] = list(models) if isinstance(models, Sequence) else [models]
    if len(several) * max(samples, 1) < 2:
        raise ModelError("models: a spread needs several models, or samples= of one with dropout.")
    if "labels" not in options:
        _check_labels(several)
    if target_class is None and len(several) > 1:
        target_class = _find_class(several, img, options)
    members: list[Explanation] = []
    for model in several:
        members += _explain_member(model, img, target_class, method, options, samples, seed)
    _check_same_target(members)
    return _join(members)


def _stack_maps(members: Sequence[Explanation]) -> tuple[Explanation, NDArray[Any]]:
    """Return the first member, and the maps ``(M, *grid)`` on its grid; where that differs, both on the photo."""
    first = members[0]
    if all(_have_same_grid(first, member) for member in members):
        return first, np.stack([_scale(member.raw) for member in members])
    placed = [_scale(member.view.to_heatmap(member.raw, member.centers)) for member in members]
    on_photo = replace(first, view=Photo(first.photo, Geometry.whole(*first.view.size)), centers=None)
    return on_photo, np.stack(placed)


def _join(members: Sequence[Explanation]) -> Explanation:
    """Return the explanation with mean and spread of the members' maps, on their grid or on the photo's pixels."""
    joined, stacked = _stack_maps(members)
    probabilities = [member.probability for member in members if member.probability is not None]
    return replace(
        joined,
        raw=stacked.mean(0),
        uncertainty=stacked.std(0, ddof=1),
        score=float(np.mean([member.score for member in members])),
        probability=float(np.mean(probabilities)) if len(probabilities) == len(members) else None,
        passes=len(members),
        layer=" | ".join(dict.fromkeys(member.layer for member in members)),
        warnings=tuple(dict.fromkeys(warning for member in members for warning in member.warnings)),
        source=None,
    )


def _have_same_grid(first: Explanation, second: Explanation) -> bool:
    """Check that the cells of two maps are at the same places of the photo."""
    is_alike = first.raw.shape == second.raw.shape and first.centers == second.centers
    return is_alike and first.geometry == second.geometry


def _check_labels(models: Sequence[Model]) -> None:
    """Check that an index is the same class in all models that name their classes.

    Raises:
        ModelError: It is not.
    """
    labeled = [loaded.labels for loaded in map(to_loaded, models) if loaded.labels is not None]
    for labels in labeled[1:]:
        pairs = zip_longest(labeled[0], labels)
        other = next(((at, *pair) for at, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        if other is not None:
            raise ModelError(
                f"models: class {other[0]} is {other[1]!r} in one model and {other[2]!r} in another; give models of "
                "the same classes in the same order, or labels= if only the words differ."
            )


def _check_same_target(members: Sequence[Explanation]) -> None:
    """Check that the members explain the same: each resolves a place, a detection or the top class for itself.

    Raises:
        TargetError: They do not.
    """
    for member in members[1:]:
        pairs = (members[0].index, member.index), (members[0].label, member.label)
        # Members without labels name the same class by its number.
        if pairs[0][0] != pairs[0][1] or (member.index is None and pairs[1][0] != pairs[1][1]):
            raise TargetError(
                f"target_class: the members explain {members[0].label!r} and {member.label!r}; give the class, by name "
                "or index."
            )


def _find_class(models: Sequence[Model], img: Any, options: dict[str, Any]) -> int:
    """Return the class with the highest mean probability.

    Raises:
        ModelError: A model has no probabilities, or another number of classes.
    """
    settings = {name: options[name] for name in ("transform", "labels", "device") if name in options}
    totals: dict[int | None, float] = {}
    counts = set()
    for model in models:
        ranked = predict(model, img, Top(_MOST_CLASSES), **settings)
        counts.add(len(ranked))
        for candidate in ranked:
            if candidate.probability is None:
                raise ModelError("models: a member has no probabilities of classes; give target_class=.")
            totals[candidate.index] = totals.get(candidate.index, 0.0) + candidate.probability
    best = max(totals, key=lambda index: totals[index])
    if len(counts) > 1 or best is None:
        raise ModelError(f"models: the members have {sorted(counts)} classes; an ensemble shares its classes.")
    return best


def _explain_member(
    model: Model, img: Any, target: Any, method: OneMethod, options: dict[str, Any], samples: int, seed: int
) -> Iterator[Explanation]:
    """Yield the explanation of one model, or those of its samples."""
    plain = _explain_one(Explainer(model, method, **options), img, target)
    if not samples:
        yield plain
        return
    module = to_loaded(model).model
    options = {"layer": plain.layer.split(" + ") or None, **options} if plain.layer else options
    target = plain.index if target is None else target
    with guard(module) as cleanup:
        if not activate_dropout(cleanup, module):
            raise ModelError(f"samples={samples}: {type(module).__name__} has no dropout module; give several models.")
        for number in range(samples):
            torch.manual_seed(seed + number)
            yield _explain_one(Explainer(model, method, **options), img, target)


def _explain_one(explainer: Explainer[Explanation], img: Any, target: Any) -> Explanation:
    result: Any = explainer(img, target)
    results = result if isinstance(result, list) else [result]
    if len(results) != 1 or not isinstance(results[0], Explanation):
        raise ImageError(f"img, target_class: {len(results)} maps came; an ensemble explains one target of one image.")
    return results[0]


def _scale(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a map divided by its largest magnitude."""
    return raw / (np.abs(raw).max() or 1)
