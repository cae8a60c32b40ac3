"""Methods that mask the picture by the activations: by each channel in turn, or by the best sum of them all.

A mask is a map on the picture's grid, scaled so that its lowest value is 0 and its highest 1. What it hides becomes 0
in the model's input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from camtool.evidence import Evidence
from camtool.guards import with_gradients
from camtool.maps import is_constant, min_max, peaks, per_row, resize
from camtool.methods.masking import probability_or_score
from camtool.methods.options import check_choice, check_count, check_number
from camtool.methods.registry import method, weighting
from camtool.streaming import in_chunks

__all__ = ["opticam", "polycam"]

Variant: TypeAlias = Literal["+", "-", "+-"]
"""Poly-CAM's weights: the rise of the score where a channel is shown, its drop where it is hidden, or their sum."""


# ------------------------------------------------------------------------------------------------------- one by one


@weighting("polycam", paper="arXiv 2204.13359", needs="forwards", cost="many passes")
def polycam(
    evidence: Evidence,
    *,
    variant: Variant = "+-",
    score: Literal["probability", "target"] = "probability",
    chunk: int | None = None,
) -> Tensor:
    """Weigh channels by score gained and lost.

    With the channel as a mask ``M_k`` on the picture ``x``, ``w+_k = f(x ⊙ M_k) - f(0)`` and
    ``w-_k = f(x) - f(x ⊙ (1 - M_k))``; ``w±_k`` is their sum (Englebert et al. 2022). What is negative counts as 0, as
    in the authors' code, which leaves ``f(0)`` out. A channel that is the same everywhere gets no weight.

    This is the map of one layer. The paper's fine maps are those of several, the last one before each change of the
    grid, which :class:`camtool.maps.Cascade` joins:
    ``explain(resnet, img, method="polycam", layer=["relu", "layer1", "layer2", "layer3", "layer4"], merge="polycam")``.

    Args:
        evidence: The activations, and the model that is run on masked pictures.
        variant: ``"+"``, ``"-"`` or ``"+-"``.
        score: What counts, ``f``: the ``"probability"`` of the class, as in the paper, where the target is a class'
            score or its probability; any other counts by its own score. Or the ``"target"``'s own score in any case.
        chunk: How many masked pictures run at once; by default as many as fit into memory.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: An option is out of its range.
    """
    check_choice("variant", variant, ("+", "-", "+-"))
    check_choice("score", score, ("probability", "target"))
    check_count("chunk", chunk, optional=True)
    A = evidence.activations
    ask = partial(evidence.passes, chunk=chunk, of=probability_or_score if score == "probability" else None)
    weights = A.new_zeros(A.shape[:2])
    for rows in evidence.by_image:
        weights[rows] = _gains(evidence, rows, variant, ask).relu().T.to(A)
    return per_row(weights, A)


def _gains(evidence: Evidence, rows: Sequence[int], variant: Variant, ask: Callable[..., Tensor]) -> Tensor:
    """The weight of each channel for the rows of one image, ``(C, rows)``; ``ask`` is :meth:`Evidence.passes`."""
    A, picture = evidence.activations[rows[0]], evidence.inputs[evidence.images[rows[0]]]
    varies = is_constant(A).logical_not().nonzero()[:, 0]

    def scores(count: int, share: Callable[[slice], Tensor]) -> Tensor:
        return ask(rows, count, lambda part: share(part)[:, None].to(picture) * picture).to(A)

    def shown(part: slice) -> Tensor:
        return min_max(resize(A[varies[part]], picture.shape[1:]))

    gains = A.new_zeros(len(A), len(rows))
    if len(varies):
        ends = A.new_tensor([0, 1]).reshape(2, *[1] * (A.ndim - 1))
        nothing, whole = scores(2, lambda part: ends[part])
        if "+" in variant:
            gains[varies] += scores(len(varies), shown) - nothing
        if "-" in variant:
            gains[varies] += whole - scores(len(varies), lambda part: 1 - shown(part))
    return gains


# ----------------------------------------------------------------------------------------------------- all together


@method("opticam", paper="arXiv 2301.07002", needs="gradients, forwards", cost="many passes")
def opticam(evidence: Evidence, *, steps: int = 100, rate: float = 0.1) -> Tensor:
    """Optimize a mask to keep the score highest.

    ``S_u = Σ_k softmax(u)_k A_k``, where ``u`` is what Adam finds in so many steps from zero on the way to the highest
    score of ``x ⊙ n(up(S_u))``; ``up`` brings the map to the picture's grid and ``n`` scales it into [0, 1]
    (Zhang et al. 2024). Each row has a ``u`` of its own, and only ``u`` is given a gradient.

    The gradient is taken in units of its peak at the first step, row by row. Adam goes by its direction alone but for
    the 1e-8 that it adds to its size, so the paper's map depends a little on the units of the score; this one does not.

    Args:
        evidence: The activations, and the model that is run on masked pictures.
        steps: How often ``u`` is bettered.
        rate: Adam's learning rate.

    Returns:
        Maps ``S_u`` ``(R, *grid)``, in the values of the activations.

    Raises:
        MethodError: ``steps`` is less than 1, or ``rate`` is not positive.
    """
    check_count("steps", steps)
    check_number("rate", rate, above=0)
    with with_gradients():
        A, pictures = evidence.activations.clone(), evidence.inputs[evidence.images]

        def combined(u: Tensor) -> Tensor:
            return torch.einsum("rc,rc...->r...", u.softmax(1), A)

        def slope(u: Tensor) -> Tensor:
            u = u.requires_grad_()
            masks = min_max(resize(combined(u), pictures.shape[2:]))
            scores = evidence.on_graph(pictures * masks[:, None].to(pictures))
            return torch.autograd.grad(scores.sum(), u)[0]

        return combined(_adam(slope, A.new_zeros(A.shape[:2]), steps, rate)).detach()


def _adam(slope: Callable[[Tensor], Tensor], start: Tensor, steps: int, rate: float) -> Tensor:
    """Go uphill by Adam, with its usual constants (arXiv 1412.6980, algorithm 1), in units of the first slope."""
    at, first, second, unit = start, torch.zeros_like(start), torch.zeros_like(start), torch.ones_like(start)
    for part in in_chunks(steps, 1):
        gradient = slope(at.detach()).nan_to_num()  # a score that overflows leads nowhere
        unit = peaks(gradient) if part.start == 0 else unit
        gradient = (gradient / unit).nan_to_num()
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        corrected = (first / (1 - 0.9**part.stop), second / (1 - 0.999**part.stop))
        at = at.detach() + rate * corrected[0] / (corrected[1].sqrt() + 1e-8)
    return at
