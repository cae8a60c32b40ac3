"""Methods that weigh activations by the gradient of the score.

``A`` are the activations and ``g`` the gradient of the score towards them, both ``(R, C, *grid)``. A method is its
weights; the map is the positive part of the weighted sum, ``relu(Σ_k w_k A_k)``: what is left speaks for the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.evidence import Evidence
from camtool.methods.registry import weighting

__all__ = ["gradcam", "gradcam_plus_plus", "hirescam", "layercam", "over_positions", "xgradcam"]


@weighting("gradcam", paper="arXiv 1610.02391", needs="gradients")
def gradcam(evidence: Evidence) -> Tensor:
    """Each channel counts as much as its mean gradient.

    ``w_k`` is the mean of ``g_k`` over the positions (Selvaraju et al. 2017, eq. 1 and 2).

    Returns:
        The weights ``(R, C, 1, ...)``.
    """
    return over_positions(evidence.gradients, "mean")


@weighting("gradcam++", paper="arXiv 1710.11063", needs="gradients")
def gradcam_plus_plus(evidence: Evidence) -> Tensor:
    """Positive gradients weigh a channel, less so where it fires in many places.

    ``w_k = Σ α relu(g)`` with ``α = g² / (2 g² + g³ Σ A)``, summed over the positions
    (Chattopadhay et al. 2018, eq. 19, which takes the score through an exponential). ``g²`` cancels, so
    ``α = 1 / (2 + g Σ A)`` is computed: the same number, and no underflow where ``g²`` and ``g³`` vanish in single
    precision. ``α`` is 0 where ``g`` is not positive, as the ReLU leaves nothing of it there, and where the denominator
    is 0: the paper takes rectified activations, for which it is 2 or more.

    Returns:
        The weights ``(R, C, 1, ...)``.
    """
    A, g = evidence.activations, evidence.gradients
    denominator = 2 + g * over_positions(A, "sum")
    usable = (g > 0) & (denominator.abs() > torch.finfo(g.dtype).eps)
    alpha = torch.where(usable, 1 / torch.where(usable, denominator, 1), 0)
    return over_positions(alpha * g.relu(), "sum")


@weighting("xgradcam", paper="arXiv 2008.02312", needs="gradients")
def xgradcam(evidence: Evidence) -> Tensor:
    """Gradients are averaged where the channel fires, not everywhere.

    ``w_k = Σ g A / Σ A`` over the positions (Fu et al. 2020, eq. 8). A channel whose activations sum to nothing gets no
    weight.

    Returns:
        The weights ``(R, C, 1, ...)``.
    """
    A, g = evidence.activations, evidence.gradients
    total = over_positions(A, "sum")
    fires = total.abs() > torch.finfo(A.dtype).eps * over_positions(A.abs(), "sum")
    return torch.where(fires, over_positions(g * A, "sum") / torch.where(fires, total, 1), 0)


@weighting("hirescam", paper="arXiv 2011.08891", needs="gradients")
def hirescam(evidence: Evidence) -> Tensor:
    """Gradient times activation, position by position: what the score used.

    ``w_k = g_k`` (Draelos and Carin 2020, eq. 4, whose map is signed; the ReLU keeps, as in Grad-CAM, what speaks for
    the target).

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients


@weighting("layercam", paper="10.1109/TIP.2021.3089943", needs="gradients")
def layercam(evidence: Evidence) -> Tensor:
    """Positive gradients weigh each position by itself, for fine maps from shallow layers.

    ``w_k = relu(g_k)`` (Jiang et al. 2021, eq. 4 and 5).

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients.relu()


def over_positions(tensor: Tensor, how: str) -> Tensor:
    """The sum or the mean over the grid, ``(R, C, 1, ...)``."""
    axes = tuple(range(2, tensor.ndim))
    return tensor.sum(axes, keepdim=True) if how == "sum" else tensor.mean(axes, keepdim=True)
