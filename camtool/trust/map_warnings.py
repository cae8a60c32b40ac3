"""Warnings on a map: reasons not to trust it, about the map itself, the score and the layers.

Warnings that depend on the kind of target belong to the target: see :meth:`camtool.targets.Target.get_warnings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from camtool.evidence.evidence import Evidence
from camtool.maps import find_limits
from camtool.outputs.class_scores import FoundLink, Link, find_predicted
from camtool.targets import ScoreContext, Target
from camtool.warning_codes import MapWarning, to_map_warning

# A class below these ranks gets a warning. Top-5 accuracy is the usual measure of what a classifier considers at all;
# the map of a class that the model does not believe in says little.
_HIGHEST_RANKS = 5

# Codes of warnings about the values of a map, which another map does not inherit.
OF_VALUES = frozenset({"not-finite", "constant-map", "zero-gradient", "cells-not-read"})


def find_map_warnings(
    evidence: Sequence[Evidence], raw: NDArray[Any], row: int, target: Target, context: ScoreContext
) -> list[MapWarning]:
    """Return reasons not to trust one row's map; [] if there are none.

    Args:
        evidence: The evidence that the method got, one per layer.
        raw: The method's map, ``(*grid)``.
        row: The row of the evidence.
        target: The target.
        context: The target's score and the probabilities of the classes.
    """
    # Reading the gradients would compute them, so methods that did not read them are left out.
    used = [of_layer for of_layer in evidence if of_layer.uses_gradients]
    has_zero_gradient = bool(used) and all(of_layer.has_zero_gradient[row] for of_layer in used)
    # Some methods read more than this gradient, e.g. those on a path from a black image: their maps may say something.
    is_empty = has_zero_gradient and find_limits(raw) is None
    return [
        *(_explain_zero_gradient(used, row) if is_empty else find_value_warnings(raw)),
        *_check_score(target, context, evidence[0].forward_pass.find_link()),
        *_check_layers(evidence, target, has_zero_gradient=has_zero_gradient),
    ]


def _explain_zero_gradient(used: Sequence[Evidence], row: int) -> Iterator[MapWarning]:
    """Warn that the gradient is zero; the values of the map need no warning of their own then."""
    if any(of_layer.has_gradient_beside_cells(row) for of_layer in used):
        yield MapWarning(
            "The score's gradient is zero at all cells of the layer: behind it, only other tokens are read, e.g. the "
            "class token, so the map says nothing.",
            "cells-not-read",
        )
    else:
        yield MapWarning("The score's gradient at the layer is zero everywhere, so the map is empty.", "zero-gradient")


def find_value_warnings(raw: NDArray[Any]) -> Iterator[MapWarning]:
    """Warn if the map holds NaN or infinite values, or is constant."""
    if not np.isfinite(raw).all():
        yield MapWarning("The map holds values that are not finite, so it is shown as empty.", "not-finite")
    elif find_limits(raw) is None:
        yield MapWarning(
            "The map is constant: no part of the image speaks for the target more than the rest.", "constant-map"
        )


def _check_score(target: Target, context: ScoreContext, found: FoundLink) -> Iterator[MapWarning]:
    """Warn of scores that are or may be probabilities, and of a class that is not predicted; tell all notes."""
    classes = _list_classes(target)
    if classes:
        yield from _check_link(target, context.link, found)
        yield from _check_rank(target, classes, context)
    yield from _check_presence(target, classes, context)
    for warning in (*found.notes, *target.get_warnings(context)):
        yield to_map_warning(warning, "target-warning")


def _list_classes(target: Target) -> list[int]:
    """Return the class of a target, or the classes of a group; nothing for other targets."""
    index = target.get_class_index()
    if index is not None:
        return [index]
    groups = target.list_groups(None) if target.traits.is_group else ()
    return [*groups[0]] if groups else []


def _name_kind(target: Target) -> str:
    return "group" if target.get_class_index() is None else "class"


def _check_link(target: Target, link: Link | None, found: FoundLink) -> Iterator[MapWarning]:
    """Warn if the score of classes is a probability, or if nothing shows that it is none."""
    if link == "identity":
        yield MapWarning(
            "The score is a probability, whose gradient vanishes close to 1: let the model return its logits, without "
            "the softmax or sigmoid at its end.",
            "probability-score",
        )
    # The target of a user who asks for a probability is its own.
    if found.is_assumed and target.to_probability() is not target:
        index = target.get_class_index()
        remedy = "return logits instead" if index is None else f'pass target_class=Probability({index}, of="identity")'
        yield MapWarning(
            "The scores are between 0 and 1, and nothing shows whether they are probabilities; they were taken for "
            f"logits. If they are probabilities, {remedy}.",
            "assumed-logits",
        )


def _check_rank(target: Target, classes: list[int], context: ScoreContext) -> Iterator[MapWarning]:
    """Warn if a classifier believes in several other classes more than in those of the target."""
    probabilities = context.probabilities
    # What speaks against a class of low rank (Negated) is a fair question.
    if probabilities is None or probabilities.ndim != 1 or target.traits.opposes_class:
        return
    # Probabilities, not scores: with sigmoids and softmax alike, the order is that of the model's belief. Those of
    # independent labels are not added.
    own = probabilities[classes]
    higher = int((probabilities > (own.max() if context.link == "sigmoid" else own.sum())).sum())
    if higher >= _HIGHEST_RANKS:
        ranked = f"this {_name_kind(target)} only {higher + 1} of {len(probabilities) - len(classes) + 1}"
        yield MapWarning(f"The model ranks {ranked}, so little speaks for it.", "low-rank")


def _check_presence(target: Target, classes: list[int], context: ScoreContext) -> Iterator[MapWarning]:
    """Warn if a segmenter predicts the classes nowhere."""
    if context.probabilities is None or context.probabilities.ndim < 2 or not target.traits.is_class_score:
        return
    if not _is_anywhere(classes, context.probabilities, context.link):
        yield MapWarning(
            f"The model predicts this {_name_kind(target)} nowhere in the image, so the map is of its score summed "
            "over the image.",
            "class-nowhere",
        )


def _describe_moved(layer: str, *, has_places: bool) -> MapWarning:
    if not has_places:
        return MapWarning(
            f"The cells of layer {layer!r} depend on the whole image alike, as behind a Fourier transform, so the map "
            "says nothing about where.",
            "no-places",
        )
    return MapWarning(
        f"The model mirrors, turns or moves the image before layer {layer!r}: its cells do not lie where they look, so "
        "the map marks wrong places.",
        "cells-elsewhere",
    )


def _is_anywhere(classes: list[int], probabilities: NDArray[Any], link: Link | None) -> bool:
    """Return True if a segmenter predicts one of the classes somewhere."""
    planes = torch.from_numpy(probabilities)
    return bool(find_predicted(planes.logit() if link == "sigmoid" else planes, link)[classes].any())


def _check_layers(evidence: Sequence[Evidence], target: Target, *, has_zero_gradient: bool) -> Iterator[MapWarning]:
    """Warn of a layer that other paths pass by, and of each layer that sees the image moved, or ran several times."""
    first = evidence[0]
    # Several layers may be those of all branches, and a detection is read from some layers of a detector.
    is_only_way = len(evidence) == 1 and target.traits.reads == "scores" and not has_zero_gradient
    if is_only_way and first.layer and first.forward_pass.find_place(first.get_layer()).has_other_paths:
        yield MapWarning(
            f"The image reaches the scores by other branches of the model, too, and not only through layer "
            f"{first.layer!r}; the map shows nothing of these.",
            "other-paths",
        )
    if first.layer and first.get_layer().passed_over:
        yield MapWarning(
            f"Layer {first.layer!r}, early in the model, is the last where the image's cells are found: later layers "
            f"up to {first.get_layer().passed_over!r} return tokens whose places are uncertain.",
            "shallow-layer",
        )
    for of_layer in evidence:
        place = of_layer.forward_pass.find_place(of_layer.get_layer()) if of_layer.layer else None
        if place is not None and place.is_moved:
            yield _describe_moved(of_layer.layer, has_places=place.has_places)
        # A layer that runs several times has several outputs, and a map shows only one of them.
        if of_layer.call_count > 1 and of_layer.forward_pass.settings.call_index is None:
            yield MapWarning(
                f"Layer {of_layer.layer!r} ran {of_layer.call_count} times in one forward pass; the map is of the last "
                f"call. Choose another with call_index=: 0 is the first, {of_layer.call_count - 1} the last.",
                "several-calls",
            )
