"""Input gradient methods: the gradient of the score with respect to the pixels, also called saliency.

``x`` is the input ``(C, *size)`` of the model and ``f`` the score. The gradient of a pixel has one value per color
channel. Methods of sensitivity sum the absolute values over the channels, because both signs mean that the pixel
matters. Methods of contribution sum the signed contributions first and keep the positive part: the evidence for the
target, as in Grad-CAM.

A few pixels have gradients so much larger than all others that a map scaled by them looks empty. Values above a high
percentile of the map are therefore clipped to it, as Smilkov et al. (2017) recommend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import iterate_noisy_copies, score_with_graph
from camtool.hooks.chunks import iterate_chunks
from camtool.hooks.conservative_gradients import change_gradient
from camtool.hooks.model_call import differentiate
from camtool.hooks.private_torch import FunctionMode
from camtool.hooks.state.guard import enable_gradients
from camtool.maps import upcast
from camtool.methods.families.gradient import gradcam
from camtool.methods.options import check_count, check_number
from camtool.methods.registry import method

# -------------------------------------------------------------------------------------------------- sensitivity


@method("smoothgrad", paper="arXiv 1706.03825", needs="gradients at the input", cost="many passes", ignores_layer=True)
def smoothgrad(
    evidence: Evidence, *, samples: int = 50, noise: float = 0.15, seed: int = 0, cap: float = 0.99
) -> Tensor:
    """Average pixel gradients over noisy copies.

    ``|1/n Σ ∂f/∂x (x + ε)|``, summed over the color channels, with Gaussian ``ε`` of standard deviation
    ``noise · (max x - min x)`` (Smilkov et al. 2017). As in the paper's figures, the gradients are averaged with their
    signs, and the absolute values are shown.

    Args:
        evidence: The model and its inputs.
        samples: The number ``n`` of noisy copies; each needs a forward and a backward pass.
        noise: The standard deviation, relative to the range of the image's values. The paper recommends 0.1 to 0.2; 0
            gives the plain gradient.
        seed: The seed of the noise, which is the same for every image up to that range.
        cap: The percentile, as a fraction of 1, to which larger values are clipped; 1 clips none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: An option is out of range, or no gradient reaches the input.
    """
    check_count("samples", samples)
    check_number("cap", cap, above=0, most=1)
    check_number("noise", noise, least=0)
    check_count("seed", seed, least=0)
    inputs = get_row_inputs(evidence)
    copies, total = iterate_noisy_copies(inputs, samples, noise, seed), torch.zeros_like(inputs)
    for _ in iterate_chunks(samples, 1):
        total += compute_input_gradients(evidence, next(copies))
    return _compute_sensitivity(total / samples, cap)


@method("guided-backprop", paper="arXiv 1412.6806", needs="ReLUs", ignores_layer=True)
def guided_backprop(evidence: Evidence, *, cap: float = 0.99) -> Tensor:
    """Pass only positive gradients back to pixels.

    ``|R|`` summed over the color channels, where ``R`` is ``∂f/∂x`` with each ReLU's backward pass replaced by ``R_in =
    1[z > 0] · 1[R_out > 0] · R_out`` (Springenberg et al. 2015, figure 1). The map shows fine detail but hardly depends
    on the class; multiplied by a map that does, it becomes ``guided-gradcam``.

    A ReLU is ``nn.ReLU``, ``nn.ReLU6``, and the functions and tensor methods of these names, in place or not. The
    model's modules are not changed. Compiled and scripted code cannot be observed.

    Args:
        evidence: The model and its inputs.
        cap: The percentile, as a fraction of 1, to which larger values are clipped; 1 clips none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: The model runs no ReLU, no gradient reaches the input, or an option is out of range.
    """
    check_number("cap", cap, above=0, most=1)
    return _compute_sensitivity(_compute_guided_gradients(evidence), cap)


@method("guided-gradcam", paper="arXiv 1610.02391", needs=("gradients", "ReLUs"), at_input_size=True)
def guided_gradcam(evidence: Evidence, *, cap: float = 0.99) -> Tensor:
    """Multiply guided backprop by Grad-CAM.

    The product of ``guided-backprop`` and of ``gradcam`` resized to the image's size (Selvaraju et al. 2017, section
    3.2).

    Args:
        evidence: The activations and gradients, the model and its inputs.
        cap: The percentile, as a fraction of 1, to which larger values are clipped; 1 clips none.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: The model runs no ReLU, no gradient reaches the input, or an option is out of range.
    """
    check_number("cap", cap, above=0, most=1)
    cam = (gradcam(evidence) * evidence.activations).sum(1).relu()
    guided = _compute_guided_gradients(evidence)
    fine = guided * evidence.resize_to_input(cam)[:, None].to(guided.device)  # a layer may lie on another device
    return _compute_sensitivity(fine, cap)


# ------------------------------------------------------------------------------------------------- contribution


@method("inputxgradient", paper="arXiv 1605.01713", needs="gradients at the input", ignores_layer=True)
def input_x_gradient(evidence: Evidence, *, cap: float = 0.99, signed: bool = False) -> Tensor:
    """Multiply each pixel by its gradient.

    ``relu(Σ_c x_c · ∂f/∂x_c)`` over the color channels ``c`` (Shrikumar et al. 2016). ``x`` is the model's input: a
    pixel of the mean color is 0 after the usual normalization and contributes nothing.

    Args:
        evidence: The model and its inputs.
        cap: The percentile, as a fraction of 1, to which larger values are clipped; 1 clips none.
        signed: Keep negative contributions, which speak against the target, and clip no value.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: No gradient reaches the input, or an option is out of range.
    """
    check_number("cap", cap, above=0, most=1)
    inputs = get_row_inputs(evidence)
    return _compute_contribution(inputs * compute_input_gradients(evidence, inputs), cap, signed=signed)


@method(
    "integrated-gradients",
    paper="arXiv 1703.01365",
    needs="gradients at the input",
    cost="many passes",
    ignores_layer=True,
)
def integrated_gradients(evidence: Evidence, *, steps: int = 50, cap: float = 0.99, signed: bool = False) -> Tensor:
    """Integrate pixel gradients from black.

    ``relu(Σ_c (x_c - x'_c) · ∫ ∂f/∂x_c (x' + α (x - x')) dα)`` over the color channels ``c``, with ``α`` from 0 to 1
    (Sundararajan et al. 2017, section 3). ``x'`` is black, or zeros if the preprocessing is not known. The values of a
    signed map sum to ``f(x) - f(x')``: the paper's completeness.

    The integral is the mean at the midpoints of ``steps`` equal parts of the path. The paper uses their endpoints;
    midpoints cost the same and are more accurate.

    Args:
        evidence: The model and its inputs.
        steps: The number of parts; each needs a forward and a backward pass. The paper recommends 20 to 300.
        cap: The percentile, as a fraction of 1, to which larger values are clipped; 1 clips none.
        signed: Keep negative contributions, which speak against the target, and clip no value.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: An option is out of range, or no gradient reaches the input.
    """
    check_count("steps", steps)
    check_number("cap", cap, above=0, most=1)
    inputs, start = get_row_inputs(evidence), upcast(evidence.select_rows(evidence.black_inputs))
    path, total = inputs - start, torch.zeros_like(inputs)
    for part in iterate_chunks(steps, 1):
        total += compute_input_gradients(evidence, start + (part.start + 0.5) / steps * path)
    return _compute_contribution(path * total / steps, cap, signed=signed)


# -------------------------------------------------------------------------------------------- gradients at inputs


def get_row_inputs(evidence: Evidence) -> Tensor:
    """Return each row's input, ``(R, C, *size)``, in float32 or wider."""
    return upcast(evidence.select_rows(evidence.inputs))


def compute_input_gradients(evidence: Evidence, inputs: Tensor) -> Tensor:
    """Return the gradient of each row's score at inputs ``(R, C, *size)``, in their shape.

    Raises:
        MethodError: No gradient reaches the input.
    """
    return compute_gradients(evidence, inputs, lambda _: [])[0]


def compute_gradients(
    evidence: Evidence, inputs: Tensor, find_tensors: Callable[[Tensor], Sequence[Tensor]]
) -> list[Tensor]:
    """Return the gradients of the rows' scores with respect to the inputs and to tensors of the forward pass.

    Args:
        evidence: The model and the targets.
        inputs: ``(R, C, *size)``.
        find_tensors: Returns the tensors after the forward pass; it receives the leaf from which the graph starts.

    Returns:
        The gradient of the inputs, then that of each tensor, in float32 or wider.

    Raises:
        MethodError: No gradient reaches the input.
    """
    with enable_gradients():
        leaf = inputs.to(evidence.inputs.dtype, copy=True).requires_grad_()
        # The model gets a clone, because it may write to its input, which torch forbids for a leaf.
        scores = score_with_graph(evidence, leaf.clone())
        tensors = [leaf, *find_tensors(leaf)]
        ones = torch.ones_like(scores)
        gradients = differentiate(scores, tensors, ones, allow_unused=True) if scores.requires_grad else ()
    if not gradients or gradients[0] is None:
        raise MethodError(
            "no gradient passes from the score to the input, which this method needs: the model or the target detaches "
            "it, or runs under torch.no_grad or torch.inference_mode. Explain a layer after that operation instead, "
            "e.g. with method='gradcam', or use method='occlusion', which needs no gradient."
        )
    return [
        upcast(torch.zeros_like(tensor) if gradient is None else gradient)
        for tensor, gradient in zip(tensors, gradients, strict=True)
    ]


def _compute_sensitivity(gradients: Tensor, cap: float) -> Tensor:
    return _clip_to_percentile(gradients.abs().sum(1), cap)


def _compute_contribution(contributions: Tensor, cap: float, *, signed: bool) -> Tensor:
    total = contributions.sum(1)
    return total if signed else _clip_to_percentile(total.relu(), cap)


def _clip_to_percentile(maps: Tensor, cap: float) -> Tensor:
    """Return each map, nonnegative, with values above the percentile clipped to it.

    A map whose few positive pixels are all above the percentile is not clipped: it would be empty.
    """
    flat = maps.flatten(1)
    highest = flat.kthvalue(math.ceil(cap * flat.shape[1]), dim=1, keepdim=True).values
    return torch.where((highest > 0) & (flat > highest), highest, flat).reshape(maps.shape)


# --------------------------------------------------------------------------------------------------- guided ReLUs


def _compute_guided_gradients(evidence: Evidence) -> Tensor:
    """Return the guided gradients at the rows' inputs, ``(R, C, *size)``."""
    # The block includes the backward pass, in which gradient checkpointing runs parts of the model again.
    with _GuideReLUs() as relus:
        gradients = compute_input_gradients(evidence, get_row_inputs(evidence))
    if not relus.have_run:
        raise MethodError(
            "guided backprop changes the gradient of ReLUs, and no ReLU was observed in this model (GELU, SiLU and "
            "similar functions do not count). Use method='smoothgrad', which works on any model."
        )
    return gradients


_RELUS = frozenset({torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu, functional.relu6})


class _GuideReLUs(FunctionMode):
    """Make ReLUs pass only positive gradients back, within the block and in this thread; outputs do not change.

    Attributes:
        have_run: True after a ReLU ran.
    """

    have_run = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        # nn.ReLU6 calls hardtanh.
        is_relu6 = func is functional.hardtanh and kwargs.get("min_val") == 0
        if func not in _RELUS and not is_relu6:
            return func(*args, **kwargs)
        self.have_run = True
        tensor, *others = args or (kwargs.pop("input"),)
        copied = tensor.clone()
        rectified = func(copied, *others, **kwargs)
        guided = change_gradient(rectified, Tensor.relu)
        # A ReLU in place returned the copy; write the result to the original, so that it stays in place.
        return tensor.copy_(guided) if rectified is copied else guided
