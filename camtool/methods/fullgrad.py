"""FullGrad: the score taken apart, into what the pixels and what the biases contribute.

Where a network is linear piece by piece, as one of convolutions and ReLUs is, its score is the sum of two kinds of
terms: each input times its gradient, and each bias times the gradient of what it was added to. The first kind alone,
which is ``inputxgradient``, leaves out what deep layers make up their minds by.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from camtool.evidence import Evidence
from camtool.maps import resize
from camtool.methods.pixels import own_pictures, slopes_at, widened
from camtool.methods.registry import method

__all__ = ["decompose", "fullgrad"]


@method("fullgrad", paper="arXiv 1905.00780", needs="gradients, biases", at_input=True)
def fullgrad(evidence: Evidence) -> Tensor:
    """What the pixels contribute, and what the biases of all layers contribute at each place, added up.

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
        total += resize(_scaled(term.abs()).sum(1), size)
    return total


def decompose(evidence: Evidence) -> tuple[Tensor, list[Tensor]]:
    """Full gradients: the terms ``x ⊙ ∂f/∂x``, and ``b ⊙ ∂f/∂z`` of every layer that adds a bias to what it returns.

    Their sum is the score, where the network is linear piece by piece: the paper's completeness. The paper calls
    implicit the bias of a function that is no layer with a bias of its own: what its linear part at the input leaves,
    ``h(z) - h'(z) z``. A batch norm in evaluation is an affine function, so that is ``β - γ μ / sqrt(σ² + ε)``. A norm
    by the statistics of its own input (layer, group and instance norm) returns the same when its input is scaled, so
    ``h'(z) z`` is nothing and the bias is, but for ``ε``, all that it returns. That of other functions (GELU, SiLU,
    attention) is not counted, as in the authors' program; nor are constants of other kinds, such as position embeddings
    and norms that a model computes by hand.

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
    pictures = own_pictures(evidence)
    with _Biases() as seen:
        slope, *others = slopes_at(evidence, pictures, seen.outputs)
    terms = [bias * other for bias, other in zip(seen.biases, others, strict=True)]
    in_order = [term.movedim(-1, 1) if last else term for term, last in zip(terms, seen.channels_last, strict=True)]
    own = [term for term in in_order if len(term) == len(pictures)]  # and not one for each window, say, of a picture
    return pictures * slope, own


_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
_AFFINE = frozenset({*_CONVOLUTIONS, *_TRANSPOSED, functional.linear, functional.batch_norm, functional.instance_norm})
"""Functions that add a bias to a linear one; norms do unless they take the statistics of their own input."""

_NORMS_BY_INPUT = frozenset({functional.layer_norm, functional.group_norm})


class _Biases(TorchFunctionMode):
    """Within the block, in this thread, note what layers return and the bias that is in it.

    Attributes:
        outputs: What they returned, on the graph. The model goes on with a clone, to which it may write.
        biases: For each output the bias in it, of a shape that goes with it.
        channels_last: For each output, whether its channels are the last axis.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []
        self.biases: list[Tensor] = []
        self.channels_last: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in _AFFINE | _NORMS_BY_INPUT or not output.requires_grad:
            return output
        bias = _bias(func, output, *args, **(kwargs or {}))
        if not bias.any():
            return output
        self.outputs.append(output)
        self.biases.append(widened(bias))
        self.channels_last.append(func is functional.linear or (func is functional.layer_norm and len(args[1]) == 1))
        return output.clone()


@torch.no_grad()
def _bias(func: Any, output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002, torch's name
    """The bias in what a function returned: of an affine one what it makes of nothing, of other norms all of it."""
    by_input = kwargs.get("training") or kwargs.get("use_input_stats")  # of a batch norm, of an instance norm
    if func in _NORMS_BY_INPUT or by_input:
        return output.detach()
    bias: Tensor = func(torch.zeros_like(input[:1]), *args, **kwargs)
    return bias


def _has_positions(term: Tensor, picture: Tensor) -> bool:
    return term.ndim == picture.ndim and term[0, 0].numel() > 1


def _scaled(values: Tensor) -> Tensor:
    """Each row's values ``(R, C, *grid)``, not negative, into [0, 1] by their extremes; constant ones become 0."""
    flat = values.flatten(1)
    lowest, highest = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    spread = highest - lowest
    rounding = 16 * torch.finfo(values.dtype).eps * highest  # differences that small would be scaled up as noise
    return torch.where(spread > rounding, (flat - lowest) / spread, 0).reshape(values.shape)
