"""Input gradient methods: the gradient of the score with respect to the pixels, also called saliency; and FullGrad.

``x`` is the input ``(C, *size)`` of the model and ``f`` the score. The gradient of a pixel has one value per color
channel. Methods of sensitivity sum the absolute values over the channels, because both signs mean that the pixel
matters. Methods of contribution sum the signed contributions first and keep the positive part: the evidence for the
target, as in Grad-CAM.

A few pixels have gradients so much larger than all others that a map scaled by them looks empty. Values above a high
percentile of the map are therefore clipped to it, as Smilkov et al. (2017) recommend.

FullGrad decomposes the score into contributions of the pixels and of the biases. The score of a piecewise linear
network, such as one of convolutions and ReLUs, is a sum of two kinds of terms: each input times its gradient, and each
bias times the gradient of the tensor that it is added to. The first kind alone is ``inputxgradient``, which ignores the
biases of deep layers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import functional

from camtool.arguments.checks import Count, CountOrZero, NotNegative, Share
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import count_rows_at_once, iterate_noisy_copies, score_with_graph
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import draw_heat
from camtool.hooks.chunks import iterate_chunks
from camtool.hooks.conservative_gradients import change_gradient
from camtool.hooks.model_passes import differentiate
from camtool.hooks.private_torch import FunctionMode
from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.structures.graph_nodes import find_reachable, get_inputs, list_nodes
from camtool.layers.centers import read_centers
from camtool.maps import scale_min_max, upcast
from camtool.methods.families.gradient import gradcam
from camtool.methods.registry import method

# -------------------------------------------------------------------------------------------------- sensitivity


@method("smoothgrad", paper="arXiv 1706.03825", needs="gradients at the input", cost="many passes", ignores_layer=True)
def smoothgrad(
    evidence: Evidence, *, samples: Count = 50, noise: NotNegative = 0.15, seed: CountOrZero = 0, cap: Share = 0.99
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
    inputs = get_row_inputs(evidence)
    copies, total = iterate_noisy_copies(inputs, samples, noise, seed), torch.zeros_like(inputs)
    for _ in iterate_chunks(samples, 1):
        total += compute_input_gradients(evidence, next(copies))
    return _compute_sensitivity(total / samples, cap)


@method("guided-backprop", paper="arXiv 1412.6806", needs="ReLUs", ignores_layer=True)
def guided_backprop(evidence: Evidence, *, cap: Share = 0.99) -> Tensor:
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
    return _compute_sensitivity(_compute_guided_gradients(evidence), cap)


@method("guided-gradcam", paper="arXiv 1610.02391", needs=("gradients", "ReLUs"), at_input_size=True)
def guided_gradcam(evidence: Evidence, *, cap: Share = 0.99) -> Tensor:
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
    cam = (gradcam(evidence) * evidence.activations).sum(1).relu()
    guided = _compute_guided_gradients(evidence)
    fine = guided * evidence.resize_to_input(cam)[:, None].to(guided.device)  # a layer may lie on another device
    return _compute_sensitivity(fine, cap)


# ------------------------------------------------------------------------------------------------- contribution


@method("inputxgradient", paper="arXiv 1605.01713", needs="gradients at the input", ignores_layer=True)
def input_x_gradient(evidence: Evidence, *, cap: Share = 0.99, signed: bool = False) -> Tensor:
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
    inputs = get_row_inputs(evidence)
    return _compute_contribution(inputs * compute_input_gradients(evidence, inputs), cap, signed=signed)


@method(
    "integrated-gradients",
    paper="arXiv 1703.01365",
    needs="gradients at the input",
    cost="many passes",
    ignores_layer=True,
)
def integrated_gradients(evidence: Evidence, *, steps: Count = 50, cap: Share = 0.99, signed: bool = False) -> Tensor:
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


@method("fullgrad", paper="arXiv 1905.00780", needs=("gradients", "biases"), ignores_layer=True)
def fullgrad(evidence: Evidence) -> Tensor:
    """Add up gradients of the pixels and the biases.

    ``ψ(x ⊙ ∂f/∂x) + Σ_l Σ_c ψ(b_l ⊙ ∂f/∂z_l)_c`` over the layers ``l`` and their channels ``c``, with the terms of
    :func:`compute_full_gradients`; the first is summed over the color channels (Srinivas and Fleuret 2019). ``ψ`` takes
    absolute values, scales them to [0, 1] and resizes them to the image's size.

    The values of a layer are scaled by the extremes of all its channels together, as in the authors' code: scaled one
    by one, a channel with a negligible contribution would count as much as the strongest. They are resized linearly
    between the centers of cells, like all maps of camtool; the authors' code aligns the corners. As in the paper,
    layers without positions (the linear head) are not drawn, and neither are tokens: the method is for convolutional
    networks.

    Args:
        evidence: The model and its inputs.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: No gradient reaches the input.
    """
    return torch.cat([_draw_terms(*terms) for terms in _compute_placed_terms(evidence)])


def _draw_terms(from_pixels: Tensor, from_biases: Sequence[tuple[Tensor, CellCenters | None]]) -> Tensor:
    """Return the sum of some rows' terms, each scaled to [0, 1] and resized to the image's size."""
    total = scale_min_max(from_pixels.abs()).sum(1)
    for term, centers in from_biases:
        if term.ndim == from_pixels.ndim and term[0, 0].numel() > 1:  # it has positions
            total += draw_heat(scale_min_max(term.abs()).sum(1), centers, total.shape[1:]).to(total)
    return total


def compute_full_gradients(evidence: Evidence) -> tuple[Tensor, list[Tensor]]:
    """Return the terms ``x ⊙ ∂f/∂x`` of the pixels, and ``b ⊙ ∂f/∂z`` of every layer that adds a bias.

    For a piecewise linear network their sum is the score: the paper's completeness.

    The paper also counts implicit biases: what the linear part of a function at its input leaves, ``h(z) - h'(z) z``.

    * A batch norm in evaluation mode is affine, so its implicit bias is ``β - γ μ / sqrt(σ² + ε)``.
    * A norm that uses the statistics of its own input (layer, group and instance norm) returns the same for a scaled
      input. Hence ``h'(z) z`` is 0, and the bias is the whole output, up to ``ε``.
    * Other functions (GELU, SiLU, attention) are not counted, as in the authors' code. Neither are other constants: for
      example position embeddings, results of parameters alone, and norms that a model computes itself.

    The calls of functions are counted (``conv``, ``linear``, norms), whether or not a module makes them. A module that
    runs twice counts twice. Compiled and scripted code cannot be observed.

    Args:
        evidence: The model and its inputs.

    Returns:
        The term of the pixels, ``(R, C, *size)``, and the terms of the biases, ``(R, C, ...)`` each, in the order in
        which the layers ran.

    Raises:
        MethodError: No gradient reaches the input.
    """
    parts = _compute_placed_terms(evidence)
    by_call = zip(*([term for term, _ in from_biases] for _, from_biases in parts), strict=True)
    return torch.cat([from_pixels for from_pixels, _ in parts]), [torch.cat(terms) for terms in by_call]


def _compute_placed_terms(evidence: Evidence) -> list[tuple[Tensor, list[tuple[Tensor, CellCenters | None]]]]:
    """Return :func:`compute_full_gradients` with the centers of each term's cells; ``None`` for a stretched grid.

    The list has one entry for all rows, or one for each row if a layer does not run on all of them together.
    """
    if len(evidence.images) > count_rows_at_once(evidence):
        return _compute_row_by_row(evidence)
    inputs, calls, fewer = get_row_inputs(evidence), list[_BiasedCall](), list[_BiasedCall]()
    centers: list[CellCenters | None] = []

    def find_outputs(leaf: Tensor) -> list[Tensor]:
        dependent = _select_dependent(recorded.calls, leaf)
        calls.extend(call for call in dependent if len(call.output) == len(inputs))
        fewer.extend(call for call in dependent if len(call.output) < len(inputs))
        if evidence.forward_pass.settings.placement == "centers":
            centers.extend(read_centers([(call.output, call.get_grid()) for call in calls], leaf))
        return [call.output for call in calls]

    with _RecordBiases() as recorded:
        input_gradient, *gradients = compute_gradients(evidence, inputs, find_outputs)
    if fewer:  # the model runs a layer on one image after the other, or on some of them alone
        return _compute_row_by_row(evidence)
    placed = zip(calls, gradients, centers or [None] * len(calls), strict=True)
    return [(inputs * input_gradient, [(call.compute_term(slope), center) for call, slope, center in placed])]


def _compute_row_by_row(evidence: Evidence) -> list[tuple[Tensor, list[tuple[Tensor, CellCenters | None]]]]:
    """Return the terms of each row. In a pass of several, a call that runs for each row would be recorded as many."""
    rows = zip(evidence.targets, evidence.images, strict=True)
    return [_compute_placed_terms(evidence.for_targets([target], [image]))[0] for target, image in rows]


@dataclass(frozen=True)
class _BiasedCall:
    """One call of a function with a bias.

    Attributes:
        output: What it returned, on the graph.
        bias: The bias in the output, of a shape that broadcasts with it.
        channels_last: Whether the last axis of the output is that of the channels; else it is the second.
    """

    output: Tensor
    bias: Tensor
    channels_last: bool

    def get_grid(self) -> torch.Size:
        """Return the size of the output's grid."""
        return self.output.shape[1:-1] if self.channels_last else self.output.shape[2:]

    def compute_term(self, gradient: Tensor) -> Tensor:
        """Return the bias times the gradient, ``(R, C, ...)``."""
        term = self.bias * gradient
        return term.movedim(-1, 1) if self.channels_last else term


def _select_dependent(calls: Sequence[_BiasedCall], inputs: Tensor) -> list[_BiasedCall]:
    """Return the calls whose output has at most one entry per input and depends on the inputs.

    Others compute with parameters alone, or with windows of several inputs in one axis.
    """
    batched = [call for call in calls if call.output.ndim > 1 and len(call.output) <= len(inputs)]
    dependent = _find_dependent_nodes(inputs, [call.output for call in batched])
    return [call for call in batched if call.output.grad_fn in dependent]


def _find_dependent_nodes(leaf: Tensor, tensors: Sequence[Tensor]) -> set[Node]:
    """Return the nodes of the graph between a leaf and some tensors that depend on the leaf."""
    # The graph leads from outputs to inputs. Reverse its edges, then walk from the leaf.
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in list_nodes(tensors):
        for source in get_inputs(node):
            users[source].append(node)
    return find_reachable([get_gradient_edge(leaf).node], users.__getitem__)


_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
# The number of axes of a convolution's batched input.
_INPUT_AXES = {function: 3 + rank for kind in (_CONVOLUTIONS, _TRANSPOSED) for rank, function in enumerate(kind)}

# Functions that add a bias to a linear function of their input; batch and instance norm do with fixed statistics.
_AFFINE = frozenset({*_CONVOLUTIONS, *_TRANSPOSED, functional.linear, functional.batch_norm, functional.instance_norm})

# Norms that always use the statistics of their own input.
_NORMS_OF_INPUT = frozenset({functional.layer_norm, functional.group_norm})


class _RecordBiases(FunctionMode):
    """Record the outputs of layers and the biases in them, within the block and in this thread.

    Attributes:
        calls: One entry per call, in order. The model continues with a clone of the output, because it may write to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_BiasedCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func not in _AFFINE | _NORMS_OF_INPUT or not output.requires_grad:
            return output
        bias = _compute_bias(func, output, *args, **kwargs)
        if not bias.any():
            return output
        channels_last = func is functional.linear or (func is functional.layer_norm and len(args[1]) == 1)
        self.calls.append(_BiasedCall(output, upcast(bias), channels_last))
        return output.clone()


@torch.no_grad()
def _compute_bias(func: Any, output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002, torch's name
    """Return the bias in an output: the value at 0 for affine functions, the whole output for norms of their input."""
    # Batch norm has the argument `training`, instance norm `use_input_stats`.
    uses_own_statistics = kwargs.get("training") or kwargs.get("use_input_stats")
    if func in _NORMS_OF_INPUT or uses_own_statistics:
        return output.detach()
    # Convolutions and linear layers also accept a single input without a batch axis.
    is_batched = input.ndim >= _INPUT_AXES.get(func, 2)
    bias: Tensor = func(torch.zeros_like(input[:1] if is_batched else input), *args, **kwargs)
    return bias
