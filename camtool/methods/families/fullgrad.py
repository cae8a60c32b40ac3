"""FullGrad: the decomposition of the score into contributions of the pixels and of the biases.

The score of a piecewise linear network, such as one of convolutions and ReLUs, is a sum of two kinds of terms: each
input times its gradient, and each bias times the gradient of the tensor that it is added to. The first kind alone is
``inputxgradient``, which ignores the biases of deep layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import functional

from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import count_rows_at_once
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import draw_heat
from camtool.hooks.private_torch import FunctionMode
from camtool.hooks.structures.graph_nodes import find_reachable, get_inputs, list_nodes
from camtool.layers.centers import read_centers
from camtool.maps import scale_min_max, upcast
from camtool.methods.families.input_gradient import compute_gradients, get_row_inputs
from camtool.methods.registry import method


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
        if evidence.forward_pass.placement == "centers":
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
_INPUT_AXES = {function: 3 + rank for kind in (_CONVOLUTIONS, _TRANSPOSED) for rank, function in enumerate(kind)}
"""The number of axes of a convolution's batched input."""

_AFFINE = frozenset({*_CONVOLUTIONS, *_TRANSPOSED, functional.linear, functional.batch_norm, functional.instance_norm})
"""Functions that add a bias to a linear function of their input; batch and instance norm do with fixed statistics."""

_NORMS_OF_INPUT = frozenset({functional.layer_norm, functional.group_norm})
"""Norms that always use the statistics of their own input."""


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
