"""Attention: the one room that sees a model attend, and brings the matrices back on the graph.

Fused kernels never write the attention matrix down, and no module's output holds it. But every call passes by torch's
function modes, so :func:`capture` runs the model once within one and looks at the calls:

* ``scaled_dot_product_attention`` is computed anew from its own arguments, as ``softmax(q kᵀ · scale + mask) v``, and
  the model goes on with that: the same numbers up to rounding, and the score now depends on the matrix.
* A ``softmax`` of a product, whose own product with the values follows, is attention written out.
* ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` leave their native kernels by themselves where a mode is
  watching, and what they call instead is let run in sight of it.

So no module is touched, no table of architectures is needed, and other threads see nothing. Compiled and scripted code
runs out of sight.

As in :func:`camtool.hooks.observe` the model runs without a graph up to the first attention: the trunk costs what
inference costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode
from torch.utils.weak import WeakTensorKeyDictionary

from camtool.guards import keep_function_modes, left_as_found, outside_inference_mode
from camtool.hooks import call, watch_modules
from camtool.maps import widened
from camtool.structures import Inputs, main_tensor

__all__ = ["Attention", "Block", "Captured", "capture"]


@dataclass(frozen=True, eq=False)
class Attention:
    """One call of attention: T queries look at S keys, in each of H heads.

    Attributes:
        name: The dotted name of the module that made the call.
        source: That of the module that returned what this one was given, untouched; ``None`` where there is none.
        matrix: ``(N, H, T, S)``, what the softmax gave, on the graph; each row sums to 1.
        output: ``(N, H, T, D)``, the matrix times the values, on the graph.
        queries: ``(N, H, T, D)``, as they met the keys: rotated, normed, and some models scale them here.
        keys: ``(N, H, S, D)``.
        values: ``(N, H, S, D)``.
        logits: Gives ``(N, H, T, S)``, what the softmax was taken of: products, scaled, with mask and bias.
    """

    name: str
    source: str | None
    matrix: Tensor
    output: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    logits: Callable[[], Tensor]


@dataclass(frozen=True, eq=False)
class Block:
    """The largest part of the model in which one call of attention, and no other, ran.

    Attributes:
        name: Its dotted name.
        nth: Which of its calls it was, 0 for the first.
        output: The floating tensor that it returned, on the graph.
    """

    name: str
    nth: int
    output: Tensor


@dataclass(frozen=True, eq=False)
class Captured:
    """What one forward showed.

    Attributes:
        output: What the model returned, whatever its structure, on the graph.
        calls: All the calls of attention that depend on the picture, in the order in which they ran.
        blocks: The block of each; ``None`` where it returned no floating tensor.
    """

    output: Any
    calls: list[Attention]
    blocks: list[Block | None]


def capture(model: nn.Module, inputs: Inputs, *, hold_inputs: bool = False) -> Captured:
    """Run ``model`` once, in evaluation mode, and keep all its attention to the picture.

    Attention that does not depend on the picture (:func:`camtool.structures.main_tensor` of the inputs), a text's say,
    is not kept. Dropout that a model asks of the fused function even in evaluation is left out.

    Args:
        model: Any module. It is left as it was found.
        inputs: What it is called with.
        hold_inputs: Treat the queries, keys and values of every self-attention as constants, so that gradients pass by
            skip connections and MLPs only. A last attention that pools the tokens is not held: no skip connection
            passes it.

    Returns:
        The output and the attention, joined by a graph that begins at the first attention; with ``hold_inputs`` at
        every self-attention.

    Raises:
        CamtoolError: The model was built in ``torch.inference_mode``, so autograd cannot use its parameters.
    """
    captured, whole = _capture(model, inputs, hold_inputs=hold_inputs, grad_in_trunk=False)
    if not whole:  # the model switches grad mode by itself: see observe
        captured, _ = _capture(model, inputs, hold_inputs=hold_inputs, grad_in_trunk=True)
    return captured


def _capture(model: nn.Module, inputs: Inputs, *, hold_inputs: bool, grad_in_trunk: bool) -> tuple[Captured, bool]:
    """Return what was seen, and True if its graph leads in one piece from the first attention to the output."""
    with (
        left_as_found(model) as cleanup,
        outside_inference_mode(model, inputs, grad=True) as inputs,
        torch.set_grad_enabled(grad_in_trunk),
    ):
        watch = _Watch(main_tensor(inputs), hold_inputs=hold_inputs)
        watch_modules(cleanup, model, watch.enter, watch.leave)
        keep_function_modes(cleanup)
        with watch:
            output = call(model, inputs)
    tensor = main_tensor(output)
    whole = not watch.cut and (not watch.calls or tensor is None or tensor.requires_grad)
    return Captured(output, watch.calls, watch.blocks), whole


# ------------------------------------------------------------------------------------------------------ watching

_SOFTMAX = frozenset({torch.softmax, Tensor.softmax, functional.softmax})
_PRODUCTS = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm}
)
"""Products of matrices, whose factors are the last two tensors that they are given."""


@dataclass(frozen=True, eq=False)
class _Compared:
    """Queries and keys whose product is on its way to a softmax."""

    queries: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False)
class _Weighed:
    """An attention matrix on its way to the values."""

    compared: _Compared
    matrix: Tensor
    logits: Tensor


@dataclass
class _Frame:
    """A module's call that has not ended yet.

    Attributes:
        name: The module's.
        nth: Which of the module's calls it is.
        source: See :class:`Attention`.
        before: How many calls of attention came before it.
    """

    name: str
    nth: int
    source: str | None
    before: int


class _Watch(TorchFunctionMode):
    """Within the block, in this thread, keep every call of attention that depends on the picture.

    Args:
        picture: The main tensor of the inputs, ``(N, C, H, W)``.
        hold_inputs: See :func:`capture`.

    Attributes:
        calls: The calls.
        blocks: The block of each.
        cut: The graph is not in one piece, as the model switched grad mode off in between.
    """

    def __init__(self, picture: Tensor | None, *, hold_inputs: bool) -> None:
        super().__init__()
        self._hold_inputs = hold_inputs
        self.calls: list[Attention] = []
        self.blocks: list[Block | None] = []
        self.cut = False
        self._images = 1 if picture is None else len(picture)
        self._started = False
        self._frames: list[_Frame] = [_Frame("", 0, None, 0)]
        self._latest: tuple[str, Tensor | None] = "", None
        self._times: dict[str, int] = {}
        # What was made of the picture, and which part of an attention it is, if it is one. Tensors that the model lets
        # go of are not held.
        self._made: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        if picture is not None:
            self._made[picture] = None

    def __exit__(self, *_: object) -> None:
        """Leave the mode, unless torch has left it: an interrupt may come while torch has taken it off for a call."""
        if _get_current_function_mode() is self:
            _pop_mode()

    def enter(self, name: str, given: Any) -> None:
        """A module's call begins."""
        nth = self._times[name] = self._times.get(name, -1) + 1
        ended, returned = self._latest
        source = ended if returned is not None and main_tensor(given) is returned else None
        self._frames.append(_Frame(name, nth, source, len(self.calls)))

    def leave(self, name: str, output: Any) -> None:
        """A module's call ends; where it is the largest so far around one attention, its output is kept."""
        frame, tensor = self._frames.pop(), main_tensor(output)
        self._latest = name, tensor
        if len(self.calls) == frame.before + 1 and tensor is not None:
            self.blocks[-1] = Block(name, frame.nth, tensor.clone())  # to what it returned the model may write

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with self:
                return _in_sight(func)(*args, **kwargs)
        given = [tensor for tensor in _tensors((args, kwargs)) if tensor in self._made]
        if not given:
            return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._fused(*args, **kwargs)
        if func in _PRODUCTS:
            args, kwargs = self._with_held_values(args, kwargs)
        result = func(*args, **kwargs)
        if func in _SOFTMAX:
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            return self._softmax(given[0], axis, result)
        if func in _PRODUCTS:
            *_, left, right = _tensors((args, kwargs))
            return self._product(left, right, result)
        self._follow(given, args[:1] if func is Tensor.__setitem__ else result)
        return result

    # ---------------------------------------------------------------------------------------- what the calls are

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002, torch's own signature
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention, computed in sight; the arguments are those of ``scaled_dot_product_attention``."""
        if enable_gqa:  # several heads of queries share one of keys
            key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        bias = _bias(attn_mask, query, key, is_causal=is_causal)
        weights = _softmax(_logits(query, key, scale, bias), bias)
        matrix = self._on_graph(weights)
        value = value.detach() if self._is_held(matrix) else value
        output = matrix.reshape(weights.shape).to(value.dtype) @ value
        q, k = self._by_head(query.detach()), self._by_head(key.detach())
        mask = None if bias is None else self._by_head(bias)
        return self._kept(output, matrix, _Compared(query, key), value, partial(_logits, q, k, scale, mask))

    def _softmax(self, given: Tensor, axis: int | None, result: Tensor) -> Tensor:
        """A softmax; over products of queries with keys it makes an attention matrix."""
        compared = self._made[given]
        if not isinstance(compared, _Compared) or axis not in (-1, result.ndim - 1):
            return self._marked(result)
        matrix = self._on_graph(result)
        return self._marked(matrix.reshape(result.shape).clone(), _Weighed(compared, matrix, given.detach()))

    def _product(self, left: Tensor, right: Tensor, result: Tensor) -> Tensor:
        """A product of matrices: of an attention matrix and the values, or of what may be queries and keys."""
        weighed = self._made.get(left)
        if isinstance(weighed, _Weighed):
            logits = self._by_head(weighed.logits)
            return self._kept(result, weighed.matrix, weighed.compared, right, lambda: logits)
        are_batches = left.ndim >= 3 and right.ndim >= 3
        return self._marked(result, _Compared(left.detach(), right.detach().mT) if are_batches else None)

    def _follow(self, given: Sequence[Tensor], result: Any) -> None:
        """Another call: what keeps the number of elements (a mask, a scale, another shape) is still the same part."""
        part = next((tensor for tensor in given if self._made[tensor] is not None), None)
        for tensor in _tensors(result):
            is_same = part is not None and tensor.numel() == part.numel()
            self._made[tensor] = self._made[part] if is_same else None

    # ---------------------------------------------------------------------------------------------------- holding

    def _is_held(self, matrix: Tensor) -> bool:
        """Return True if an attention matrix ``(..., T, S)`` has inputs that count as constants: a self-attention's."""
        return self._hold_inputs and matrix.shape[-2] == matrix.shape[-1]

    def _with_held_values(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of a product of matrices, with detached values if the attention over them is held."""
        *_, left, right = _tensors((args, kwargs))
        weighed = self._made.get(left)
        if not isinstance(weighed, _Weighed) or not self._is_held(weighed.matrix):
            return args, kwargs
        values = right.detach()
        held_args = tuple(values if each is right else each for each in args)
        return held_args, {name: values if each is right else each for name, each in kwargs.items()}

    # ---------------------------------------------------------------------------------------------------- keeping

    def _marked(self, tensor: Tensor, part: _Compared | _Weighed | None = None) -> Tensor:
        self._made[tensor] = part
        return tensor

    def _on_graph(self, matrix: Tensor) -> Tensor:
        """Return an attention matrix by head, on a graph that begins here or, unless it is held, has begun before."""
        self.cut = self.cut or (self._started and not torch.is_grad_enabled())
        self._started = True
        torch.set_grad_enabled(True)  # until the forward's own grad mode ends
        by_head = self._by_head(matrix)
        has_begun = by_head.requires_grad and not self._is_held(by_head)
        return by_head if has_begun else by_head.detach().requires_grad_()

    def _kept(
        self, output: Tensor, matrix: Tensor, compared: _Compared, values: Tensor, logits: Callable[[], Tensor]
    ) -> Tensor:
        """Keep a call of attention; the model gets a clone of the output, to which it may write."""
        by_head = self._by_head(output)
        q, k, v = (self._by_head(each.detach()) for each in (compared.queries, compared.keys, values))
        frame = self._frames[-1]
        self.calls.append(Attention(frame.name, frame.source, matrix, by_head, q, k, v, logits))
        self.blocks.append(None)
        return self._marked(by_head.reshape(output.shape).clone())

    def _by_head(self, tensor: Tensor) -> Tensor:
        """``(N · H, T, D)``, as some models have it, as ``(N, H, T, D)``; other shapes as they are."""
        if tensor.ndim != 3 or len(tensor) % self._images:
            return tensor
        by_head: Tensor = tensor.unflatten(0, (self._images, -1))
        return by_head


def _tensors(structure: Any) -> Iterator[Tensor]:
    """The tensors in a function's arguments or results."""
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, (tuple, list)):
        for item in structure:
            yield from _tensors(item)
    elif isinstance(structure, dict):
        yield from _tensors(tuple(structure.values()))


def _in_sight(func: Any) -> FunctionType:
    """The same function, but for its first question, whether a mode is watching: it would hand itself to it again."""
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)


def _bias(mask: Tensor | None, query: Tensor, key: Tensor, *, is_causal: bool) -> Tensor | None:
    """What is added to the products: a mask's own numbers, or minus infinity where a query may not look."""
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)


def _logits(query: Tensor, key: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    logits = query @ key.mT * scale
    return logits if bias is None else logits + bias


def _softmax(logits: Tensor, bias: Tensor | None) -> Tensor:
    """The softmax over the keys, in float32 at least; zeros for a query that may look at none, as fused kernels do."""
    logits = widened(logits)
    if bias is None:
        return logits.softmax(-1)
    blind = logits.isneginf().all(-1, keepdim=True)
    return logits.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
