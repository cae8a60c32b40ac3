"""Warnings on a map: reasons not to trust it. To add one, write a function and list it in ``MAP_WARNINGS``.

Warnings that depend on the kind of target belong to the target: see :meth:`camtool.targets.Target.get_warnings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from camtool import maps
from camtool.evidence.evidence import Evidence
from camtool.targets import ScoreContext, Target
from camtool.warning_codes import MapWarning, to_map_warning

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HIGHEST_RANKS = 5
"""A class below these ranks gets a warning. Top-5 accuracy is the usual measure of what a classifier considers at all;
the map of a class that the model does not believe in says little."""


@dataclass(frozen=True, eq=False)
class ExplainedRow:
    """One target on one image, with its map and its evidence.

    Attributes:
        evidence: The evidence that the method got, one per layer.
        raw: The method's map, ``(*grid)``.
        row: The row of the evidence.
        target: The target.
        context: The target's score and the probabilities of the classes.
        has_zero_gradient: True if the method read gradients, and they are zero at all layers.
        is_finite: True if the map holds no NaN and no infinite values.
    """

    evidence: Sequence[Evidence]
    raw: NDArray[Any]
    row: int
    target: Target
    context: ScoreContext
    has_zero_gradient: bool
    is_finite: bool


Check: TypeAlias = Callable[[ExplainedRow], Iterator[MapWarning]]
"""A function that yields the warnings of one kind."""


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
    used = [each for each in evidence if each.uses_gradients]
    has_zero_gradient = bool(used) and all(each.has_zero_gradient[row] for each in used)
    is_finite = bool(np.isfinite(raw).all())
    explained = ExplainedRow(evidence, raw, row, target, context, has_zero_gradient, is_finite)
    warnings: list[MapWarning] = []
    for check in MAP_WARNINGS.values():
        warnings.extend(check(explained))
    return warnings


def _check_gradient(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn if the gradient is zero."""
    if not explained.has_zero_gradient:
        return
    if any(each.uses_gradients and each.has_gradient_beside_cells(explained.row) for each in explained.evidence):
        yield MapWarning(
            "The score's gradient is zero at all cells of the layer: behind it, only other tokens are read, e.g. the "
            "class token, so the map says nothing.",
            "cells-not-read",
        )
    else:
        yield MapWarning(
            "The score's gradient at the layer is zero everywhere, so the map says nothing.", "zero-gradient"
        )


def _check_values(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn if the map holds NaN or infinite values, unless the gradient explains that."""
    if not explained.is_finite and not explained.has_zero_gradient:
        yield MapWarning("The map holds values that are not finite, so it is shown as empty.", "not-finite")


def _check_contrast(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn if the map is constant, unless one of the warnings above says why."""
    if explained.is_finite and not explained.has_zero_gradient and not maps.has_contrast(explained.raw):
        yield MapWarning(
            "The map is constant: no part of the image speaks for the target more than the rest.", "constant-map"
        )


def _check_link(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn if the score of a class is a probability, or may be one, unless the user asks for a probability."""
    target, index = explained.target, explained.target.get_class_index()
    if index is None:
        return
    if explained.context.link == "identity":
        yield MapWarning(
            "The score is a probability, whose gradient vanishes close to 1: let the model return its logits, without "
            "the softmax or sigmoid at its end.",
            "probability-score",
        )
    if target.to_probability() is not target and any(
        each.forward_pass.is_link_assumed() for each in explained.evidence
    ):
        yield MapWarning(
            "The scores are between 0 and 1, and nothing shows whether they are probabilities; they were taken for "
            f'logits. If they are probabilities, pass target_class=Probability({index}, of="identity").',
            "assumed-logits",
        )


def _check_rank(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn if the model ranks the class low. What speaks against a class of low rank (Negated) is a fair question."""
    index, probabilities = explained.target.get_class_index(), explained.context.probabilities
    if index is None or probabilities is None or probabilities.ndim > 1 or explained.target.traits.opposes_class:
        return
    # Probabilities, not scores: with sigmoids and softmax alike, the order is that of the model's belief.
    higher = int((probabilities > probabilities[index]).sum())
    if higher >= _HIGHEST_RANKS:
        yield MapWarning(
            f"The model ranks this class only {higher + 1} of {len(probabilities)}, so little speaks for it.",
            "low-rank",
        )


def _check_presence(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn if a segmenter predicts the class at no position, so that the score is about the whole image."""
    probabilities = explained.context.probabilities
    if probabilities is None or probabilities.ndim == 1 or not explained.target.traits.is_class_score:
        return
    if not (probabilities.argmax(0) == explained.target.get_class_index()).any():
        yield MapWarning(
            "The model predicts this class nowhere in the image, so the map is of its score summed over the image.",
            "class-nowhere",
        )


def _check_target(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Return the target's own warnings."""
    for warning in explained.target.get_warnings(explained.context):
        yield to_map_warning(warning, "target-warning")


def _check_other_paths(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn of a layer that other paths pass by."""
    # Several layers may be those of all branches, and a detection is read from some layers of a detector.
    if len(explained.evidence) > 1 or explained.target.traits.reads != "scores" or explained.has_zero_gradient:
        return
    evidence = explained.evidence[0]
    if evidence.layer and evidence.forward_pass.find_place(evidence.get_layer()).has_other_paths:
        yield MapWarning(
            f"The image reaches the scores by other branches of the model, too, and not only through layer "
            f"{evidence.layer!r}; the map shows nothing of these.",
            "other-paths",
        )


def _check_calls(explained: ExplainedRow) -> Iterator[MapWarning]:
    """Warn of each layer that ran several times, unless the user chose a call."""
    for each in explained.evidence:
        # A layer that runs several times has several outputs, and a map shows only one of them.
        if each.call_count > 1 and not each.forward_pass.is_call_chosen:
            yield MapWarning(
                f"Layer {each.layer!r} ran {each.call_count} times in one forward pass; the map is of the last call. "
                f"Choose another with call_index=: 0 is the first, {each.call_count - 1} the last.",
                "several-calls",
            )


MAP_WARNINGS: Mapping[str, Check] = MappingProxyType(
    {
        "zero gradient": _check_gradient,
        "values that are not finite": _check_values,
        "constant map": _check_contrast,
        "score is or may be a probability": _check_link,
        "low rank": _check_rank,
        "class predicted nowhere": _check_presence,
        "the target's own": _check_target,
        "other paths beside the layer": _check_other_paths,
        "several calls of a layer": _check_calls,
    }
)
"""All warnings, in the order in which they are shown: name and function."""
