"""FullGrad: the score taken apart, into what the pixels and what the biases contribute.

Where a network is linear piece by piece, as one of convolutions and ReLUs is, its score is the sum of two kinds of
terms: each input times its gradient, and each bias times the gradient of what it was added to. The first kind alone,
which is ``inputxgradient``, leaves out what deep layers make up their minds by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from camtool.evidence import Evidence
from camtool.maps import min_max, resize, widened
from camtool.methods.pixels import own_pictures, slopes_at
from camtool.methods.registry import method

__all__ = ["decompose", "fullgrad"]


@method("fullgrad", paper="arXiv 1905.00780", needs="gradients, biases", at_input=True)
def fullgrad(evidence: Evidence) -> Tensor:
    """Add up gradients of the pixels and the biases.

    ``ψ(x ⊙ ∂f/∂x) + Σ_l Σ_c ψ(b_l ⊙ ∂f/∂z_l)_c`` over the layers ``l`` and their channels ``c``, with the terms of
    :func:`decompose`, of which the first is summed over the colours (Srinivas and Fleuret 2019). ``ψ`` takes absolute
    values, scales them into [0, 1] and brings them to the picture's size.

    The values of a layer are scaled by the least and the largest of all its channels together, as the authors' own
    program does: scaled one by one, a channel that contributes next to nothing would count as much as the strongest.
    They are brought to size linearly between the centres of cells, as all maps here are, where the authors' program
    aligns the corners. As in the paper, layers without positions (the linear head) are not drawn, and nor are tokens:
    this is a method for convolutional networks.

    Args:
        evidence: What the model showed.

    Returns:
        Maps ``(R, *size)``.

    Raises:
        MethodError: No gradient reaches the picture.
    """
    from_pixels, from_biases = decompose(evidence)
    size = from_pixels.shape[2:]
    placed = [term for term in from_biases if _has_positions(term, from_pixels)]
    total = torch.zeros_like(from_pixels[:, 0])
    for term in (from_pixels, *placed):
        total += resize(min_max(term.abs()).sum(1), size)
    return total


def decompose(evidence: Evidence) -> tuple[Tensor, list[Tensor]]:
    """Full gradients: the terms ``x ⊙ ∂f/∂x``, and ``b ⊙ ∂f/∂z`` of every layer that adds a bias to what it returns.

    Their sum is the score, where the network is linear piece by piece: the paper's completeness. The paper calls
    implicit the bias of a function that is no layer with a bias of its own: what its linear part at the input leaves,
    ``h(z) - h'(z) z``. A batch norm in evaluation is an affine function, so that is ``β - γ μ / sqrt(σ² + ε)``. A norm
    by the statistics of its own input (layer, group and instance norm) returns the same when its input is scaled, so
    ``h'(z) z`` is nothing and the bias is, but for ``ε``, all that it returns. That of other functions (GELU, SiLU,
    attention) is not counted, as in the authors' program; nor are constants of other kinds, such as position
    embeddings, what a net in the model makes of its parameters alone, and norms that a model computes by hand.

    What counts is the call of a function (``conv``, ``linear``, a norm), so it does not matter what module made it, or
    if one did; a module that runs twice counts twice. Compiled and scripted code runs out of sight.

    Args:
        evidence: What the model showed.

    Returns:
        The term of the input, ``(R, C, *size)``, and those of the biases, ``(R, C, ...)`` each, in the order in which
        the layers ran.

    Raises:
        MethodError: No gradient reaches the picture.
    """
    pictures, own = own_pictures(evidence), list[_Biased]()

    def outputs(leaf: Tensor) -> list[Tensor]:
        own.extend(_own(seen.met, leaf))
        return [each.output for each in own]

    with _Biases() as seen:
        slope, *others = slopes_at(evidence, pictures, outputs)
    return pictures * slope, [each.term(other) for each, other in zip(own, others, strict=True)]


@dataclass(frozen=True)
class _Biased:
    """What a layer returned, on the graph; the bias in it, of a shape that goes with it; where its channels are."""

    output: Tensor
    bias: Tensor
    channels_last: bool

    def term(self, slope: Tensor) -> Tensor:
        """The bias times the gradient, ``(R, C, ...)``."""
        term = self.bias * slope
        return term.movedim(-1, 1) if self.channels_last else term


def _own(met: Sequence[_Biased], pictures: Tensor) -> list[_Biased]:
    """Those that are made of the pictures, one for each, and not of parameters alone, nor of each window of them."""
    one_each = [each for each in met if each.output.ndim > 1 and len(each.output) == len(pictures)]
    made_of_them = _followers(pictures, [each.output for each in one_each])
    return [each for each in one_each if each.output.grad_fn in made_of_them]


def _followers(leaf: Tensor, tensors: Sequence[Tensor]) -> set[Node]:
    """The steps of the graph, of those that lead to the tensors, that follow from a leaf."""
    takers: dict[Node, list[Node]] = defaultdict(list)
    for step in _reached([tensor.grad_fn for tensor in tensors if tensor.grad_fn], _sources):
        for source in _sources(step):
            takers[source].append(step)
    return _reached([get_gradient_edge(leaf).node], takers.__getitem__)


def _sources(step: Node) -> list[Node]:
    return [source for source, _ in step.next_functions if source is not None]


def _reached(start: Sequence[Node], onwards: Callable[[Node], list[Node]]) -> set[Node]:
    reached, new = set(start), list(start)
    while new:
        found = [step for step in onwards(new.pop()) if step not in reached]
        reached.update(found)
        new.extend(found)
    return reached


_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
_AXES = {function: 3 + rank for kind in (_CONVOLUTIONS, _TRANSPOSED) for rank, function in enumerate(kind)}
"""How many axes a convolution's input has, where the first one counts the rows."""

_AFFINE = frozenset({*_CONVOLUTIONS, *_TRANSPOSED, functional.linear, functional.batch_norm, functional.instance_norm})
"""Functions that add a bias to a linear one; norms do unless they take the statistics of their own input."""

_NORMS_BY_INPUT = frozenset({functional.layer_norm, functional.group_norm})


class _Biases(TorchFunctionMode):
    """Within the block, in this thread, note what layers return and the bias that is in it.

    Attributes:
        met: One for each call, in order. The model goes on with a clone of the output, to which it may write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.met: list[_Biased] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func not in _AFFINE | _NORMS_BY_INPUT or not output.requires_grad:
            return output
        bias = _bias(func, output, *args, **kwargs)
        if not bias.any():
            return output
        last = func is functional.linear or (func is functional.layer_norm and len(args[1]) == 1)
        self.met.append(_Biased(output, widened(bias), last))
        return output.clone()


@torch.no_grad()
def _bias(func: Any, output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002, torch's name
    """The bias in what a function returned: of an affine one what it makes of nothing, of other norms all of it."""
    by_input = kwargs.get("training") or kwargs.get("use_input_stats")  # of a batch norm, of an instance norm
    if func in _NORMS_BY_INPUT or by_input:
        return output.detach()
    has_rows = input.ndim >= _AXES.get(func, 2)  # convolutions and linear layers take a single one as it is, too
    bias: Tensor = func(torch.zeros_like(input[:1] if has_rows else input), *args, **kwargs)
    return bias


def _has_positions(term: Tensor, picture: Tensor) -> bool:
    return term.ndim == picture.ndim and term[0, 0].numel() > 1
