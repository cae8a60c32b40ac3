"""Methods that weigh activations by the gradient of the score.

``A`` are the activations and ``g`` the gradient of the score towards them, both ``(R, C, *grid)``. A method is its
weights; the map is the positive part of the weighted sum, ``relu(Σ_k w_k A_k)``: what is left speaks for the target.
All of them look at the picture itself; those that look at other pictures too are in :mod:`camtool.methods.paths`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.evidence import Evidence
from camtool.methods.options import check_number
from camtool.methods.registry import method, weighting

__all__ = [
    "gradcam",
    "gradcam_elementwise",
    "gradcam_plus_plus",
    "hirescam",
    "layercam",
    "liftcam",
    "odam",
    "over_positions",
    "shapleycam",
    "xgradcam",
    "zoomcam",
]

_INCOMPLETE = 1e-3
"""The most by which contributions may miss the score's change, in units of what they all come to in magnitude."""

_INCOMPLETE_IN_HALF = 3e-2


@weighting("gradcam", paper="arXiv 1610.02391", needs="gradients")
def gradcam(evidence: Evidence) -> Tensor:
    """Weigh channels by their mean gradient.

    ``w_k`` is the mean of ``g_k`` over the positions (Selvaraju et al. 2017, eq. 1 and 2).

    Returns:
        The weights ``(R, C, 1, ...)``.
    """
    return over_positions(evidence.gradients, "mean")


@weighting("gradcam++", paper="arXiv 1710.11063", needs="gradients")
def gradcam_plus_plus(evidence: Evidence) -> Tensor:
    """Weigh channels by their positive gradients.

    A channel that fires in many places counts less.

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
    """Weigh channels by gradient where they fire.

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
    """Multiply gradient and activation everywhere.

    The map shows what the score used.

    ``w_k = g_k`` (Draelos and Carin 2020, eq. 4, whose map is signed; the ReLU keeps, as in Grad-CAM, what speaks for
    the target).

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients


@weighting("layercam", paper="10.1109/TIP.2021.3089943", needs="gradients")
def layercam(evidence: Evidence) -> Tensor:
    """Weigh each position by its positive gradient.

    Maps of shallow layers are fine.

    ``w_k = relu(g_k)`` (Jiang et al. 2021, eq. 4 and 5).

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients.relu()


@method("gradcam-elementwise", paper="arXiv 1610.02391", needs="gradients")
def gradcam_elementwise(evidence: Evidence) -> Tensor:
    """Sum gradient x activation where positive.

    ``Σ_k relu(g_k A_k)``. No paper has it: it is a variant of Grad-CAM (Selvaraju et al. 2017) that the library
    pytorch-grad-cam made known. Next to HiResCAM, ``relu(Σ_k g_k A_k)``, no channel can speak against another.

    Returns:
        The maps ``(R, *grid)``.
    """
    return (evidence.gradients * evidence.activations).relu().sum(1)


@weighting("zoomcam", paper="arXiv 2010.08644", needs="gradients")
def zoomcam(evidence: Evidence) -> Tensor:
    """Combine gradient x activation of many depths.

    ``w_k = g_k`` (Shi et al. 2020). At one layer this is HiResCAM; what the paper adds is to look at several layers and
    to take, at each position, the largest value that one of the normalised maps has there. That is
    ``layer=[several], merge="max"``. Each map is then divided by its peak rather than scaled between its extremes.

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients


@weighting("odam", paper="arXiv 2304.06354", needs="gradients")
def odam(evidence: Evidence, *, smoothing: float = 1.0) -> Tensor:
    """Weigh positions by gradients, for detections.

    ``w_k`` is ``g_k`` behind a Gaussian (Zhao and Chan 2023), so the map is HiResCAM's with smoothed gradients. A
    detector reads a thing off few positions, whose gradients are ragged: their mean, as in Grad-CAM, would light up
    everything else of the kind, and taken singly they leave gaps. The paper's width of the Gaussian goes with its
    detectors' maps; here it is an option. At the border the bell is cut off and what is left of it made to sum to 1.

    Args:
        evidence: What the model shows.
        smoothing: The Gaussian's standard deviation, in positions; 0 is HiResCAM.

    Returns:
        The weights ``(R, C, *grid)``.
    """
    check_number("smoothing", smoothing, least=0)
    weights = evidence.gradients
    if smoothing > 0:
        for axis, length in enumerate(weights.shape[2:], start=2):
            offsets = torch.arange(length).to(weights)
            bells = (-((offsets[:, None] - offsets) ** 2) / (2 * smoothing**2)).exp()
            weights = (weights.movedim(axis, -1) @ (bells / bells.sum(1, keepdim=True)).T).movedim(-1, axis)
    return weights


@weighting("shapleycam", paper="arXiv 2501.06261", needs="gradients, second derivatives", cost="some passes")
def shapleycam(evidence: Evidence) -> Tensor:
    """Weigh channels by estimated Shapley values.

    ``w_k`` is the mean of ``g_k - (H A)_k / 2`` over the positions, where ``H`` is the Hessian of the score towards the
    activations (Cai 2025): what is left of a Taylor series about ``A``, up to the second order, when activations are
    taken away. Where the score is linear piece by piece, as a logit behind ReLUs is, ``H`` is 0 and this is Grad-CAM.

    The score is the target that was asked for. The paper proposes the logit plus the log-probability (ReST), which
    curves behind any net: ``target_class=lambda output: output[c] + output.log_softmax(0)[c]``. Tokens that stand
    before the grid's are not taken away.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: Torch has no second derivative of an operation behind the layer.
    """
    A, g = evidence.activations, evidence.gradients
    return over_positions(g - evidence.curvature(A) / 2, "mean")


@weighting("liftcam", paper="arXiv 2102.05228", needs="gradients, a tail without bends", cost="some passes")
def liftcam(evidence: Evidence) -> Tensor:
    """Weigh channels by their DeepLIFT contribution.

    ``w_k = Σ g A`` over the positions, DeepLIFT's contribution of channel ``k`` towards activations of zero (Jung and
    Oh 2021), for which ``Σ_k w_k`` is the score less the score of activations of zero. DeepLIFT comes to gradient times
    activation, exactly, where the score is an affine function of the activations, as behind global average pooling and
    a linear layer, or where it grows in proportion to them, as behind ReLUs without biases. Whether it does is measured
    by that sum; elsewhere DeepLIFT depends on how the tail is built, and the method refuses.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: The contributions do not come to the whole score.
    """
    contributions = evidence.gradients * evidence.activations
    _check_complete(evidence, contributions.flatten(1))
    return over_positions(contributions, "sum")


def _check_complete(evidence: Evidence, contributions: Tensor) -> None:
    """See that the contributions ``(R, numbers)`` make up the difference to the score of activations of zero."""
    change = evidence.scores - _scores_of_nothing(evidence)
    is_half = evidence.scores.dtype in (torch.float16, torch.bfloat16)
    leeway = (_INCOMPLETE_IN_HALF if is_half else _INCOMPLETE) * (contributions.abs().sum(1) + change.abs())
    if ((contributions.sum(1) - change).abs() > leeway).any():
        raise MethodError(
            "method 'liftcam' needs a score whose parts come to the whole, as behind global average pooling and one "
            f"linear layer; between layer {evidence.layer!r} and this score something bends. "
            "Use method='ablationcam' or 'shapleycam', or explain a class score at the last layer before the pooling."
        )


def _scores_of_nothing(evidence: Evidence) -> Tensor:
    """Each row's score where the activations are zero, ``(R,)``."""
    nothing, head = torch.zeros_like(evidence.activations[:1]), evidence.shortcut
    scores = torch.empty_like(evidence.scores)
    for rows in evidence.by_image:
        if head is None:
            scores[rows] = evidence.tails(rows, 1, lambda _: nothing)[0]
        else:
            scores[rows] = evidence.of_logits(rows, head.bias[None])[0].to(scores)
    return scores


def over_positions(tensor: Tensor, how: str) -> Tensor:
    """The sum or the mean over the grid, ``(R, C, 1, ...)``."""
    axes = tuple(range(2, tensor.ndim))
    return tensor.sum(axes, keepdim=True) if how == "sum" else tensor.mean(axes, keepdim=True)
