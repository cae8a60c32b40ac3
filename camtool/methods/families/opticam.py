"""Opti-CAM: the weights of the channels are optimized so that the masked image keeps the highest score."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from camtool.arguments.checks import Count, Positive
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import score_with_graph
from camtool.geometry.cell_centers import Placement
from camtool.hooks.chunks import iterate_chunks
from camtool.hooks.model_passes import differentiate
from camtool.hooks.state.guard import enable_gradients
from camtool.maps import find_peaks, scale_min_max
from camtool.methods.families.scorecam import get_enlargement
from camtool.methods.registry import method


@method("opticam", paper="arXiv 2301.07002", needs=("gradients", "forwards"), cost="many passes")
def opticam(evidence: Evidence, *, steps: Count = 100, rate: Positive = 0.1, masks: Placement = "stretch") -> Tensor:
    """Optimize a mask to keep the score highest.

    ``S_u = Σ_k softmax(u)_k A_k``, where Adam, starting from ``u = 0``, maximizes the score of ``x ⊙ n(up(S_u))``.
    ``up`` resizes the map to the input's size and ``n`` scales it to [0, 1] (Zhang et al. 2024). Each row has its own
    ``u``, the only tensor that is optimized.

    The gradient is divided by its peak at the first step, row by row. Adam depends only on the direction of the
    gradient, except for the constant 1e-8 in its denominator. The paper's map therefore depends slightly on the units
    of the score; this one does not.

    Args:
        evidence: The activations, and the model to run on masked inputs.
        steps: The number of steps of Adam; each needs a forward and a backward pass.
        rate: The learning rate of Adam.
        masks: ``"stretch"`` as in the paper: the grid is stretched over the input. ``"centers"``: each cell masks the
            pixels around its center.

    Returns:
        Maps ``S_u`` ``(R, *grid)``, in the units of the activations.

    Raises:
        MethodError: ``steps`` is less than 1, or ``rate`` is not positive.
    """
    enlarge = get_enlargement(evidence, masks)
    with enable_gradients():
        A, inputs = evidence.activations.clone(), evidence.inputs[evidence.images]

        def combine_channels(u: Tensor) -> Tensor:
            return torch.einsum("rc,rc...->r...", u.softmax(1), A)

        def compute_gradient(u: Tensor) -> Tensor:
            u = u.requires_grad_()
            scaled = scale_min_max(enlarge(combine_channels(u)))
            scores = score_with_graph(evidence, inputs * scaled[:, None].to(inputs))
            return differentiate(scores.sum(), u)[0]

        u = _maximize_by_adam(compute_gradient, A.new_zeros(A.shape[:2]), steps, rate)
        return combine_channels(u).detach()


def _maximize_by_adam(compute_gradient: Callable[[Tensor], Tensor], start: Tensor, steps: int, rate: float) -> Tensor:
    """Maximize by Adam with its default constants (arXiv 1412.6980, algorithm 1), relative to the first gradient."""
    u, first, second, unit = start, torch.zeros_like(start), torch.zeros_like(start), torch.ones_like(start)
    for part in iterate_chunks(steps, 1):
        # A score that overflows has no direction: the step is skipped.
        gradient = compute_gradient(u.detach()).nan_to_num()
        unit = find_peaks(gradient) if part.start == 0 else unit
        gradient = (gradient / unit).nan_to_num()
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        first_corrected, second_corrected = first / (1 - 0.9**part.stop), second / (1 - 0.999**part.stop)
        u = u.detach() + rate * first_corrected / (second_corrected.sqrt() + 1e-8)
    return u
