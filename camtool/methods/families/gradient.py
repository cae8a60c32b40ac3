"""Gradient methods: weigh the activations of one layer by the gradient of the score.

``A`` are the activations and ``g`` the gradient of the score with respect to them, both ``(R, C, *grid)``. Most methods
here are registered by their weights ``w``, of which :meth:`camtool.methods.registry.WeightingMethod.compute_raw_maps`
makes the map ``relu(Σ_k w_k A_k)``. The ReLU keeps the evidence for the target. The methods use the image itself; those
that average over other images are in :mod:`camtool.methods.families.averaged_gradient`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.arguments.checks import NotNegative
from camtool.errors import MethodError
from camtool.evidence.deeplift import compute_deeplift_contributions
from camtool.evidence.evidence import Evidence
from camtool.evidence.linear_head import compute_class_weights, find_scoring_head, get_linear_head
from camtool.evidence.rescoring import score_activations, score_logits
from camtool.hooks.conservative_gradients import ConservativeMode
from camtool.hooks.observation import run_with_hooks
from camtool.methods.registry import Method, method, weighting, wrapper


@method("cam", paper="arXiv 1512.04150", needs="a pooled linear head")
def cam(evidence: Evidence) -> Tensor:
    """Weigh channels by the linear head's weights.

    ``M = Σ_k w_k A_k`` (Zhou et al. 2016, eq. 2), where ``w`` is the row of the head's weights for the class. As in the
    paper there is no ReLU, so negative values speak against the class. The bias is the same everywhere and left out.

    Returns:
        Signed maps ``(R, *grid)`` whose mean is the score minus the bias.

    Raises:
        MethodError: The model has another kind of head.
    """
    head = get_linear_head(evidence)
    return torch.einsum("nc,nc...->n...", compute_class_weights(evidence, head), head.maps)


@weighting("gradcam", paper="arXiv 1610.02391", needs="gradients")
def gradcam(evidence: Evidence) -> Tensor:
    """Weigh channels by their mean gradient.

    ``w_k`` is the mean of ``g_k`` over the positions (Selvaraju et al. 2017, eq. 1). This function returns the weights;
    :meth:`camtool.methods.registry.WeightingMethod.compute_raw_maps` makes the map of them: it applies the ReLU to the
    weighted sum, ``relu(Σ_k w_k A_k)`` (eq. 2).

    Returns:
        The weights ``(R, C, 1, ...)``.
    """
    return average_over_positions(evidence.gradients)


@method("signed-gradcam", paper="arXiv 1610.02391", needs="gradients")
def signed_gradcam(evidence: Evidence) -> Tensor:
    """Show what speaks for the class and against it.

    ``M = Σ_k w_k A_k`` with the weights of Grad-CAM, without the ReLU of its eq. 2. Draw it with
    :meth:`camtool.Explanation.signed_overlay`, in which 0 has no color; in a heatmap 0 may be anywhere.

    Returns:
        Signed maps ``(R, *grid)``.
    """
    return (average_over_positions(evidence.gradients) * evidence.activations).sum(1)


@weighting("gradcam++", paper="arXiv 1710.11063", needs="gradients")
def gradcam_plus_plus(evidence: Evidence) -> Tensor:
    """Weigh channels by their positive gradients.

    A channel that is active at many positions gets less weight.

    ``w_k = Σ α relu(g)`` with ``α = g² / (2 g² + g³ Σ A)``, summed over the positions (Chattopadhay et al. 2018, eq.
    19, which takes the exponential of the score). Canceling ``g²`` gives ``α = 1 / (2 + g Σ A)``: the same value
    without underflow of ``g²`` and ``g³`` in single precision. ``α`` is 0 where ``g`` is not positive, because the ReLU
    removes these positions.

    The paper has activations behind a ReLU. At layers that have negative ones (ConvNeXt, U-Nets, transformers) the
    denominator could be negative, and the map upside down, so ``Σ |A|`` is taken there.

    Returns:
        The weights ``(R, C, 1, ...)``.
    """
    A, g = evidence.activations, evidence.gradients.relu()
    return sum_over_positions(g / (2 + g * sum_over_positions(A.abs())))


@weighting("xgradcam", paper="arXiv 2008.02312", needs="gradients")
def xgradcam(evidence: Evidence) -> Tensor:
    """Weigh channels by gradient where they fire.

    ``w_k = Σ g A / Σ A`` over the positions (Fu et al. 2020, eq. 8). A channel whose activations sum to 0 up to
    rounding gets no weight.

    Returns:
        The weights ``(R, C, 1, ...)``.
    """
    A, g = evidence.activations, evidence.gradients
    total = sum_over_positions(A)
    # Below this bound the sum is rounding noise: dividing by it would give an arbitrary weight.
    is_active = total.abs() > torch.finfo(A.dtype).eps * sum_over_positions(A.abs())
    return torch.where(is_active, sum_over_positions(g * A) / torch.where(is_active, total, 1), 0)


@weighting("hirescam", paper="arXiv 2011.08891", needs="gradients")
def hirescam(evidence: Evidence) -> Tensor:
    """Multiply gradient and activation everywhere.

    The map shows what the score used.

    ``w_k = g_k`` (Draelos and Carin 2020, eq. 4). The paper's map is signed; here the ReLU keeps the evidence for the
    target, as in Grad-CAM.

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients


@weighting("layercam", paper="10.1109/TIP.2021.3089943", needs="gradients")
def layercam(evidence: Evidence) -> Tensor:
    """Weigh each position by its positive gradient.

    The maps of shallow layers are fine-grained.

    ``w_k = relu(g_k)`` (Jiang et al. 2021, eq. 4 and 5).

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients.relu()


@method("gradcam-elementwise", paper="arXiv 1610.02391", needs="gradients")
def gradcam_elementwise(evidence: Evidence) -> Tensor:
    """Sum gradient x activation where positive.

    ``Σ_k relu(g_k A_k)``. This variant of Grad-CAM (Selvaraju et al. 2017) comes from the library pytorch-grad-cam, not
    from a paper. Unlike in HiResCAM, ``relu(Σ_k g_k A_k)``, negative channels cannot cancel positive ones.

    Returns:
        The maps ``(R, *grid)``.
    """
    return (evidence.gradients * evidence.activations).relu().sum(1)


@weighting("zoomcam", paper="arXiv 2010.08644", needs="gradients")
def zoomcam(evidence: Evidence) -> Tensor:
    """Combine gradient x activation of many depths.

    ``w_k = g_k`` (Shi et al. 2020). At one layer this is HiResCAM. The paper combines several layers: at each position
    it takes the largest value of the normalized maps. Use ``layer=[several], merge="max"`` for this. Each map is then
    divided by its peak; the paper scales it by its extremes.

    Returns:
        The weights ``(R, C, *grid)``.
    """
    return evidence.gradients


@weighting("odam", paper="arXiv 2304.06354", needs="gradients")
def odam(evidence: Evidence, *, smoothing: NotNegative = 1.0) -> Tensor:
    """Weigh positions by gradients, for detections.

    ``w_k`` is ``g_k`` smoothed by a Gaussian (Zhao and Chan 2023): HiResCAM with smoothed gradients. A detector reads
    an object from few positions, whose gradients are irregular. Their mean, as in Grad-CAM, would highlight all similar
    objects, and the unsmoothed gradients leave gaps. In the paper the width of the Gaussian depends on the map; here it
    is an option. At the border the Gaussian is cut off and normalized to a sum of 1.

    Args:
        evidence: The activations and gradients.
        smoothing: The standard deviation of the Gaussian, in positions; 0 gives HiResCAM.

    Returns:
        The weights ``(R, C, *grid)``.

    Raises:
        MethodError: ``smoothing`` is negative.
    """
    weights = evidence.gradients
    if smoothing > 0:
        # The Gaussian is separable, so the axes are smoothed one after the other.
        for axis, length in enumerate(weights.shape[2:], start=2):
            offsets = torch.arange(length, device="cpu").to(weights)
            kernels = (-((offsets[:, None] - offsets) ** 2) / (2 * smoothing**2)).exp()
            weights = (weights.movedim(axis, -1) @ (kernels / kernels.sum(1, keepdim=True)).T).movedim(-1, axis)
    return weights


@weighting("shapleycam", paper="arXiv 2501.06261", needs=("gradients", "second derivatives"), cost="some passes")
def shapleycam(evidence: Evidence) -> Tensor:
    """Weigh channels by estimated Shapley values.

    ``w_k`` is the mean of ``g_k - (H A)_k / 2`` over the positions, where ``H`` is the Hessian of the score with
    respect to the activations (Cai 2025). It is the second-order Taylor estimate of the score that is lost when
    activations are removed. If the score is piecewise linear, as a logit of a ReLU network is, ``H`` is 0 and the map
    is Grad-CAM's.

    The score is that of the target. The paper proposes the logit plus the log-probability (ReST), which is not linear
    for any network: ``target_class=lambda output: output[c] + output.log_softmax(0)[c]``. Prefix tokens are not
    removed.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: Torch has no second derivative of an operation after the layer.
    """
    A, g = evidence.activations, evidence.gradients
    return average_over_positions(g - evidence.hessian_vector_product(A) / 2)


@weighting("liftcam", paper="arXiv 2102.05228", needs=("gradients", "captum for nonlinear tails"), cost="some passes")
def liftcam(evidence: Evidence) -> Tensor:
    """Weigh channels by their DeepLIFT contribution.

    ``w_k = Σ m A`` over the positions: the DeepLIFT contribution of channel ``k`` with activations of zero as the
    reference (Jung and Oh 2021), where ``m`` are DeepLIFT's multipliers (Shrikumar et al. 2017, by the Rescale rule).
    ``Σ_k w_k`` is then the score minus the score of the reference.

    The multipliers are the gradient if the score is an affine function of the activations, as after global average
    pooling and a linear layer, or if it is proportional to them, as after ReLUs without biases. For other tails captum
    computes them. It needs activation functions that are modules, e.g. ``nn.ReLU``, and run once each. The method
    checks the sum of the contributions in any case.

    Returns:
        The weights ``(R, C, 1, ...)``.

    Raises:
        MethodError: The tail is neither affine nor homogeneous, and captum is not installed or cannot explain it.
    """
    contributions = evidence.gradients * evidence.activations
    change = evidence.scores - _score_zero_activations(evidence)
    if not _is_complete(contributions, change):
        contributions = compute_deeplift_contributions(evidence)
        if not _is_complete(contributions, change):
            raise MethodError(
                f"captum's DeepLIFT does not explain what follows layer {evidence.layer!r}: its contributions do not "
                "sum to the change of the score. It needs ReLU, LeakyReLU, ELU, Softplus, Tanh or Sigmoid modules "
                "between linear layers, and a class score. Use method='ablationcam' or 'shapleycam', or a later layer."
            )
    return sum_over_positions(contributions)


# The largest accepted error of the sum of contributions, relative to the sum of their magnitudes.
#
# It is far above the rounding error of float32, and small enough that the weights are exact for any practical purpose.
_LARGEST_SUM_ERROR = 1e-3

# The same for float16 and bfloat16, with their larger rounding errors.
_LARGEST_SUM_ERROR_IN_HALF = 3e-2


@wrapper("conservative", paper="arXiv 2402.05602", needs="attention weights, norms or gates")
def conservative(evidence: Evidence, method: Method) -> Tensor:
    """Hold attention, norms and gates constant.

    In the backward pass alone, softmax weights that multiply values, the ``1/σ`` of LayerNorm, RMSNorm, GroupNorm and
    InstanceNorm, every denominator, and the gate ``φ`` of GELU, SiLU and other ``x φ(x)`` are constants; a product of
    ``n`` other factors passes ``1/n`` of its gradient to each. So ``Σ x g`` over the input, or over a layer without
    ways around it, is the score minus ``Σ b g`` over the bias terms after it: the completeness that LayerNorm and
    softmax break. The forward pass does not change. Normalizers, gates and products follow AttnLRP (Achtibat et al.
    2024), which passes relevance through attention weights, too; here that path is pruned, an idea of LibraGrad (Mehri
    et al. 2025, arXiv 2411.16760).

    The images run once more. Compiled and scripted code cannot be observed.

    Returns:
        The method's maps ``(R, *grid)``.

    Raises:
        MethodError: No such operation runs on the way from the layer to the score.
    """
    with ConservativeMode() as mode:
        maps = method(evidence.for_inputs(evidence.inputs, run_with_hooks))
    if not mode.has_acted:
        where = f"after layer {evidence.layer!r}" if evidence.layer else "in this model"
        raise MethodError(
            f"wrapper 'conservative' changes nothing: no attention, norm of the image's own statistics or gate was "
            f"observed {where}, so the map is that of the method alone; leave the wrapper out, or choose an earlier "
            "layer."
        )
    return maps


def _is_complete(contributions: Tensor, change: Tensor) -> bool:
    """Check that contributions ``(R, C, *grid)`` sum to the change of the scores ``(R,)``, up to rounding."""
    is_half = change.dtype in (torch.float16, torch.bfloat16)
    tolerance = _LARGEST_SUM_ERROR_IN_HALF if is_half else _LARGEST_SUM_ERROR
    by_row = contributions.flatten(1)
    magnitude = by_row.abs().sum(1) + change.abs()
    return bool(((by_row.sum(1) - change).abs() <= tolerance * magnitude).all())


def _score_zero_activations(evidence: Evidence) -> Tensor:
    """Return each row's score for activations of zero, ``(R,)``."""
    zeros, head = torch.zeros_like(evidence.activations[:1]), find_scoring_head(evidence)
    scores = torch.empty_like(evidence.scores)
    for rows in evidence.rows_by_image:
        if head is None:
            scores[rows] = score_activations(evidence, rows, 1, lambda _: zeros)[0]
        else:
            scores[rows] = score_logits(evidence, rows, head.bias[None])[0].to(scores)
    return scores


def average_over_positions(tensor: Tensor) -> Tensor:
    """Return the mean of a tensor ``(R, C, *grid)`` over the grid, ``(R, C, 1, ...)``."""
    return tensor.mean(tuple(range(2, tensor.ndim)), keepdim=True)


def sum_over_positions(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor ``(R, C, *grid)`` over the grid, ``(R, C, 1, ...)``."""
    return tensor.sum(tuple(range(2, tensor.ndim)), keepdim=True)
