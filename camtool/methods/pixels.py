"""Methods on the grid of the pixels: what the score's gradient towards the picture itself says.

``x`` is the picture ``(C, *size)`` as the model gets it, ``f`` the score. The gradient of a pixel has a value for each
colour channel. Where it tells how sensitive the score is, its absolute values are summed, as either sign means that the
pixel matters. Where it tells how much a pixel contributes, the contributions of its colours are summed first, and the
positive part is kept: what is left speaks for the target, as in Grad-CAM.

A few pixels have gradients so much larger than all others that a picture scaled by them is empty. So, as Smilkov et al.
(2017) advise, values above a high percentile of the map are cut down to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from camtool.errors import MethodError
from camtool.evidence import Evidence
from camtool.guards import with_gradients
from camtool.maps import resize, widened
from camtool.methods.gradient import gradcam
from camtool.methods.options import check_count, check_number
from camtool.methods.registry import method, weighted
from camtool.rng import noisy
from camtool.streaming import in_chunks

__all__ = [
    "guided_backprop",
    "guided_gradcam",
    "input_x_gradient",
    "integrated_gradients",
    "own_pictures",
    "slopes",
    "slopes_at",
    "smoothgrad",
]


# -------------------------------------------------------------------------------------------- how much it matters


@method("smoothgrad", paper="arXiv 1706.03825", needs="gradients at the input", cost="many passes", at_input=True)
def smoothgrad(
    evidence: Evidence, *, samples: int = 50, noise: float = 0.15, seed: int = 0, cap: float = 0.99
) -> Tensor:
    """Average pixel gradients over noisy copies.

    ``|1/n Σ ∂f/∂x (x + ε)|``, summed over the colours, with Gaussian ``ε`` of standard deviation
    ``noise · (max x - min x)`` (Smilkov et al. 2017). The gradients are averaged with their signs and shown without, as
    in the paper's pictures.

    Args:
        evidence: What the model showed.
        samples: How many noisy copies, ``n``; each costs a forward and a backward pass.
        noise: The standard deviation, in units of the picture's own range; the paper advises 0.1 to 0.2, and 0 gives
            the plain gradient.
        seed: Of the noise, which is the same for every picture up to that range.
        cap: The percentile, as a part of 1, at which the map's values are cut off; 1 cuts none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: An option is out of range, or no gradient reaches the picture.
    """
    check_count("samples", samples)
    check_number("cap", cap, above=0, most=1)
    check_number("noise", noise, least=0)
    check_count("seed", seed, least=0)
    pictures = own_pictures(evidence)
    copies, total = noisy(pictures, samples, noise, seed), torch.zeros_like(pictures)
    for _ in in_chunks(samples, 1):
        total += slopes(evidence, next(copies))
    return _sensitivity(total / samples, cap)


@method("guided-backprop", paper="arXiv 1412.6806", needs="ReLUs", at_input=True)
def guided_backprop(evidence: Evidence, *, cap: float = 0.99) -> Tensor:
    """Pass only positive gradients back to pixels.

    ``|R|`` summed over the colours, where ``R`` is ``∂f/∂x`` with each ReLU's backward pass replaced by
    ``R_in = 1[z > 0] · 1[R_out > 0] · R_out`` (Springenberg et al. 2015, figure 1). It shows fine detail, but hardly
    depends on the class: multiplied with a map that does it becomes ``guided-gradcam``.

    A ReLU is ``nn.ReLU``, ``nn.ReLU6`` and the functions and tensor methods of that name, in place or not. The model's
    modules stay as they are. Compiled and scripted code runs out of sight.

    Args:
        evidence: What the model showed.
        cap: The percentile, as a part of 1, at which the map's values are cut off; 1 cuts none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: The model runs no ReLU, no gradient reaches the picture, or an option is out of range.
    """
    check_number("cap", cap, above=0, most=1)
    return _sensitivity(_guided(evidence), cap)


@method("guided-gradcam", paper="arXiv 1610.02391", needs="gradients, ReLUs")
def guided_gradcam(evidence: Evidence, *, cap: float = 0.99) -> Tensor:
    """Multiply guided backprop by Grad-CAM.

    The product of ``guided-backprop`` and of ``gradcam`` brought to the picture's size (Selvaraju et al. 2017,
    section 3.2).

    Args:
        evidence: What the model showed.
        cap: The percentile, as a part of 1, at which the map's values are cut off; 1 cuts none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: The model runs no ReLU, no gradient reaches the picture, or an option is out of range.
    """
    check_number("cap", cap, above=0, most=1)
    cam = weighted(gradcam(evidence), evidence.activations).relu()
    fine = _guided(evidence) * resize(cam, evidence.inputs.shape[2:])[:, None]
    return _sensitivity(fine, cap)


# ---------------------------------------------------------------------------------------- how much it contributes


@method("inputxgradient", paper="arXiv 1605.01713", needs="gradients at the input", at_input=True)
def input_x_gradient(evidence: Evidence, *, cap: float = 0.99, signed: bool = False) -> Tensor:
    """Multiply each pixel by its gradient.

    ``relu(Σ_c x_c · ∂f/∂x_c)`` over the colours ``c`` (Shrikumar et al. 2016). ``x`` is what the model gets, so a pixel
    of the data's mean colour, 0 after the usual preparation, contributes nothing.

    Args:
        evidence: What the model showed.
        cap: The percentile, as a part of 1, at which the map's values are cut off; 1 cuts none.
        signed: Keep what speaks against the target, as negative values, and cut off none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: No gradient reaches the picture, or an option is out of range.
    """
    check_number("cap", cap, above=0, most=1)
    pictures = own_pictures(evidence)
    return _contribution(pictures * slopes(evidence, pictures), cap, signed=signed)


@method(
    "integrated-gradients", paper="arXiv 1703.01365", needs="gradients at the input", cost="many passes", at_input=True
)
def integrated_gradients(evidence: Evidence, *, steps: int = 50, cap: float = 0.99, signed: bool = False) -> Tensor:
    """Integrate pixel gradients from black.

    ``relu(Σ_c (x_c - x'_c) · ∫ ∂f/∂x_c (x' + α (x - x')) dα)`` over the colours ``c``, with ``α`` from 0 to 1
    (Sundararajan et al. 2017, section 3). ``x'`` is black, or zeros where the preparation is not known. Signed, a map
    sums up to ``f(x) - f(x')``: the paper's completeness.

    The integral is the mean at the middles of ``steps`` equal parts of the way. The paper takes their ends: the middles
    cost the same and come closer.

    Args:
        evidence: What the model showed.
        steps: How many parts; the paper advises 20 to 300, and each costs a forward and a backward pass.
        cap: The percentile, as a part of 1, at which the map's values are cut off; 1 cuts none.
        signed: Keep what speaks against the target, as negative values, and cut off none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: An option is out of range, or no gradient reaches the picture.
    """
    check_count("steps", steps)
    check_number("cap", cap, above=0, most=1)
    pictures, start = own_pictures(evidence), widened(evidence.black_pictures[evidence.images])
    way, total = pictures - start, torch.zeros_like(pictures)
    for part in in_chunks(steps, 1):
        total += slopes(evidence, start + (part.start + 0.5) / steps * way)
    return _contribution(way * total / steps, cap, signed=signed)


# ------------------------------------------------------------------------------------------- gradients at pictures


def own_pictures(evidence: Evidence) -> Tensor:
    """Each row's picture, ``(R, C, *size)``, in float32 at least."""
    return widened(evidence.inputs[evidence.images])


def slopes(evidence: Evidence, pictures: Tensor) -> Tensor:
    """How each row's score depends on the picture, at pictures ``(R, C, *size)``, in their shape.

    Raises:
        MethodError: No gradient reaches the picture.
    """
    return slopes_at(evidence, pictures, lambda _: [])[0]


def slopes_at(evidence: Evidence, pictures: Tensor, on_the_way: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """The same, and how the scores depend on tensors of the pass, in one backward pass.

    Args:
        evidence: Whose scores.
        pictures: ``(R, C, *size)``.
        on_the_way: Names the tensors once the pass is done. It is given the pictures that the graph begins with.

    Raises:
        MethodError: No gradient reaches the picture.
    """
    with with_gradients():
        leaf = pictures.to(evidence.inputs.dtype, copy=True).requires_grad_()
        scores = evidence.on_graph(leaf.clone())  # a model may write to what it is given, but not to a leaf
        wanted = [leaf, *on_the_way(leaf)]
        ones = torch.ones_like(scores)
        found = torch.autograd.grad(scores, wanted, ones, allow_unused=True) if scores.requires_grad else ()
    if not found or found[0] is None:
        raise MethodError(
            "no gradient passes from the score to the picture, which this method needs: the model or the target "
            "detaches it, or runs under torch.no_grad. Look at a layer behind that instead, with method='gradcam' say."
        )
    return [widened(torch.zeros_like(at) if slope is None else slope) for at, slope in zip(wanted, found, strict=True)]


def _sensitivity(gradients: Tensor, cap: float) -> Tensor:
    return _capped(gradients.abs().sum(1), cap)


def _contribution(contributions: Tensor, cap: float, *, signed: bool) -> Tensor:
    total = contributions.sum(1)
    return total if signed else _capped(total.relu(), cap)


def _capped(maps: Tensor, cap: float) -> Tensor:
    """Each map with its largest values cut down to the one at the percentile."""
    flat = maps.flatten(1)
    highest = flat.kthvalue(math.ceil(cap * flat.shape[1]), dim=1, keepdim=True).values
    return torch.where(flat > highest, highest, flat).reshape(maps.shape)


# -------------------------------------------------------------------------------------------------- guided ReLUs


def _guided(evidence: Evidence) -> Tensor:
    """The guided gradients at the rows' pictures, ``(R, C, *size)``."""
    with _GuidedReLUs() as relus:  # the backward pass as well, in which a model that saves memory runs parts again
        gradients = slopes(evidence, own_pictures(evidence))
    if not relus.met:
        raise MethodError(
            "guided backprop changes what passes back through ReLUs, and this model runs none that can be seen "
            "(GELU, SiLU and their like are others). Use method='smoothgrad', which works on any model."
        )
    return gradients


_RELUS = frozenset({torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu, functional.relu6})


class _GuidedReLUs(TorchFunctionMode):
    """Within the block, in this thread, ReLUs pass back only what is positive; forwards they are what they were."""

    met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        is_relu6 = func is functional.hardtanh and kwargs.get("min_val") == 0  # this is what nn.ReLU6 calls
        if func not in _RELUS and not is_relu6:
            return func(*args, **kwargs)
        self.met = True
        given, *others = args or (kwargs.pop("input"),)
        copied = given.clone()
        rectified = func(copied, *others, **kwargs)
        guided = _PassPositive.apply(rectified)
        return given.copy_(guided) if rectified is copied else guided  # what ran in place still does


class _PassPositive(torch.autograd.Function):
    """The identity, through which only positive gradients pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.relu()
