"""Differentiable losses for training a classifier to look at the right place.

    explainer = camtool.Explainer(model, "gradcam")
    for images, classes, objects in loader:
        maps = explainer.compute_maps(images, classes, resize=True, differentiable=True)
        loss = cross_entropy(model(images), classes) + camtool.losses.heat_outside(maps, objects)

An image whose mask is zero everywhere counts as an image without a mask: it adds nothing. No function reads numbers
from the device. A map at the right place is no proof; see docs/training.md for the limits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

from camtool.arguments.checks import check_number
from camtool.errors import CamtoolError, TargetError
from camtool.maps import upcast
from camtool.outputs.class_scores import compute_class_scores, compute_probabilities, find_logits


def heat_outside(maps: Tensor, masks: Tensor) -> Tensor:
    """Return the share of the heat outside of the masks, from 0 to 1: look inside of the mask.

    ``Σ (1 - mask) · heat / Σ heat`` of each map, and the mean over the images that have a mask. A map without heat
    counts as 0. The share inside is the energy-based pointing game of Score-CAM, arXiv 1910.01279.

    Args:
        maps: ``(N, *size)``, e.g. of ``Explainer.compute_maps(..., resize=True, differentiable=True)``. Negative values
            are no heat.
        masks: The same shape, boolean or from 0 to 1: where the model may look.

    Raises:
        CamtoolError: The masks have another shape, or are integers.
    """
    return _compute_mean_share(maps, masks, 1 - _check_masks(maps, masks))


def heat_inside(maps: Tensor, masks: Tensor) -> Tensor:
    """Return the share of the heat inside of the masks, from 0 to 1: do not look there.

    ``Σ mask · heat / Σ heat`` of each map, and the mean over the images that have a mask.

    Args:
        maps: As for :func:`heat_outside`.
        masks: The same shape, boolean or from 0 to 1: where the model must not look.

    Raises:
        CamtoolError: The masks have another shape, or are integers.
    """
    return _compute_mean_share(maps, masks, _check_masks(maps, masks))


def right_reasons(outputs: Tensor, images: Tensor, masks: Tensor) -> Tensor:
    """Return the squared input gradients inside of the masks: the answer must not depend on these pixels.

    ``Σ (mask · ∂/∂x Σ_k log p_k)²`` over the pixels and channels of each image, and the mean over the images. A single
    output is the logit of class 1 of two classes.

        images.requires_grad_()
        outputs = model(images)
        loss = cross_entropy(outputs, classes) + weight * camtool.losses.right_reasons(outputs, images, masks)

    Source: Ross et al. 2017, arXiv 1703.03717, equation 1, which sums over the images.

    Args:
        outputs: What the model returned for the images, ``(N, K)`` logits.
        images: ``(N, C, *size)``, the model's input, which must require a gradient before the model runs.
        masks: ``(N, *size)``, boolean or from 0 to 1: where the model must not look.

    Raises:
        CamtoolError: The outputs do not depend on the images by a graph, or the masks do not fit.
    """
    weights = _check_masks(images[:, 0], masks)
    scores = upcast(compute_class_scores(outputs))
    logarithms = logsigmoid(scores) if find_logits(outputs).shape[1] == 1 else log_softmax(scores, 1)
    if not (images.requires_grad and logarithms.requires_grad):
        raise CamtoolError("images must require a gradient; call images.requires_grad_() before the model runs.")
    (gradients,) = torch.autograd.grad(logarithms.sum(), images, create_graph=True, materialize_grads=True)
    return (weights[:, None] * upcast(gradients)).square().sum() / len(images)


def attention_mining(
    model: nn.Module, images: Tensor, classes: Tensor, maps: Tensor, *, threshold: float = 0.5, scale: float = 10.0
) -> Tensor:
    """Return the mean probability of the classes when the heat is removed from the images: look at all evidence.

    ``p(x - T ⊙ x)`` with ``T = sigmoid(scale · (map - threshold))``, by one more forward pass of the model, in the mode
    that it is in. What is removed becomes the zero of the input. The maps learn to cover everything that the class
    can be recognized by, shortcuts included.

    Source: Li et al. 2018 (GAIN), arXiv 1802.10171, equations 3 to 5. There the score may be a logit, which has no
    lower bound; here it is the probability.

    Args:
        model: A classifier.
        images: ``(N, C, *size)``, its input.
        classes: ``(N,)``, the class of each image that the maps explain.
        maps: ``(N, *size)`` in [0, 1], of ``Explainer.compute_maps(..., resize=True, differentiable=True)``.
        threshold: The heat of which half is removed.
        scale: The steepness of the transition.

    Raises:
        CamtoolError: The maps do not have the size of the images, or a number is out of range.
        TargetError: There is another number of classes than of images.
    """
    check_number("threshold", threshold, least=0, most=1)
    check_number("scale", scale, above=0)
    if maps.shape != images[:, 0].shape:
        wanted = tuple(images[:, 0].shape)
        raise CamtoolError(f"maps must be {wanted}, as large as the images, got {tuple(maps.shape)}; use resize=True.")
    if classes.shape != images.shape[:1]:
        raise TargetError(f"classes must hold one class for each of the {len(images)} images, got {classes.shape}.")
    kept = 1 - torch.sigmoid(scale * (maps - threshold))
    probabilities = upcast(compute_probabilities(model(images * kept[:, None].to(images))))
    return probabilities.gather(1, classes[:, None]).mean()


def _compute_mean_share(maps: Tensor, masks: Tensor, weights: Tensor) -> Tensor:
    """Return the share of the heat at the weights, as the mean over the images that have a mask."""
    heat, has_mask = upcast(maps).clamp_min(0).flatten(1), masks.flatten(1).any(1)
    total = heat.sum(1)
    shares = (heat * weights.flatten(1)).sum(1) / torch.where(total > 0, total, 1)
    return (shares * has_mask).sum() / has_mask.sum().clamp_min(1)


def _check_masks(maps: Tensor, masks: Tensor) -> Tensor:
    """Return masks as floating weights that fit the maps."""
    if not isinstance(masks, Tensor) or not (masks.dtype == torch.bool or masks.is_floating_point()):
        kind = masks.dtype if isinstance(masks, Tensor) else type(masks).__name__
        raise CamtoolError(f"masks must be a boolean tensor, or a floating one from 0 to 1, got {kind}.")
    if masks.shape != maps.shape:
        raise CamtoolError(
            f"masks must have one mask for each image, {tuple(maps.shape)}, got {tuple(masks.shape)}; "
            "compute_maps(..., resize=True) returns maps as large as the images."
        )
    return masks.to(upcast(maps))
