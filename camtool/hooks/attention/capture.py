"""Capture the attention matrices of a model, on the graph.

Fused kernels never store the attention matrix, and no module returns it. But every call of a torch function passes
through torch's function modes. So :func:`capture_attention` runs the model once within a mode and inspects the calls:

* ``scaled_dot_product_attention`` is computed from its own arguments as ``softmax(q kᵀ · scale + mask) v``, and the
  model continues with that: the same numbers up to rounding, and the score depends on the matrix.
* A ``softmax`` of a product that is multiplied with values afterwards is attention written out. The products are matrix
  products or ``torch.einsum``, whose equation says which axes are queries and keys; transposed axes are followed.
* ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` do not use their native kernels within a mode. The
  function that they call instead is run so that the mode sees its calls.

So no module is changed, no table of architectures is needed, and other threads are not affected. The calls of compiled
and scripted code are not visible to a mode.

As in ``run_with_hooks`` the model runs without a graph up to the first attention, so the trunk takes the time and
memory of inference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from camtool.hooks.model_passes import run_model
from camtool.hooks.private_torch import FunctionMode, run_without_override_check
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.nested_tensors import ModelInputs, find_main_tensor, map_tensors
from camtool.hooks.structures.tensor_table import TensorTable
from camtool.hooks.tensor_products import PRODUCTS, Product, is_einsum, iterate_tensors, read_equation, read_product
from camtool.hooks.tracing import add_module_hooks
from camtool.maps import upcast

_Mode = TypeVar("_Mode", bound="AttentionMode")


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of attention: T queries attend to S keys, in each of H heads.

    Attributes:
        name: The dotted name of the module that made the call.
        source: The name of the module whose unchanged output is the input of this one, or None.
        matrix: ``(N, H, T, S)``, the output of the softmax, on the graph. Each row sums to 1.
        output: ``(N, H, T, D)``, the matrix times the values, on the graph.
        queries: ``(N, H, T, D)``, as they are multiplied with the keys: rotated, normalized, in some models scaled.
        keys: ``(N, H, S, D)``.
        values: ``(N, H, S, D)``.
        logits: A function that returns ``(N, H, T, S)``, the input of the softmax: scaled products with mask and bias.
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
class AttentionBlock:
    """The largest module in which exactly one call of attention ran, e.g. a block of a transformer.

    Attributes:
        name: Its dotted name.
        call_index: Which of its calls it was, 0 for the first.
        output: The floating tensor that it returned, on the graph.
    """

    name: str
    call_index: int
    output: Tensor


@dataclass(frozen=True, eq=False)
class CapturedAttention:
    """The result of :func:`capture_attention`.

    Attributes:
        output: The output of the model, of any structure, on the graph.
        calls: All calls of attention that depend on the image, in the order in which they ran.
        blocks: The block of each call. ``None`` if it returned no floating tensor.
    """

    output: Any
    calls: list[AttentionCall]
    blocks: list[AttentionBlock | None]


def capture_attention(model: nn.Module, inputs: ModelInputs, *, hold_inputs: bool = False) -> CapturedAttention:
    """Run ``model`` once, in evaluation mode, and keep all its attention to the image.

    Attention that does not depend on the image (:func:`find_main_tensor` of the inputs) is not kept, e.g. that of a
    text. Dropout that a model requests from the fused function even in evaluation mode is left out.

    Args:
        model: Any module. Its state is preserved.
        inputs: The inputs of the model.
        hold_inputs: Treat the queries, keys and values of every self-attention as constants, so that gradients take
            only the skip connections and the MLPs. A last attention that pools the tokens is not treated so, because
            no skip connection goes around it.

    Returns:
        The output and the attention, connected by a graph that begins at the first attention; with ``hold_inputs`` at
        every self-attention.

    Raises:
        CamtoolError: The model was built in ``torch.inference_mode``, so autograd cannot use its parameters.
    """
    captured, is_connected = _capture(model, inputs, hold_inputs=hold_inputs, grad_in_trunk=False)
    if not is_connected:  # the model switches grad mode itself, see run_with_hooks
        captured, _ = _capture(model, inputs, hold_inputs=hold_inputs, grad_in_trunk=True)
    return captured


def visit_attention(model: nn.Module, inputs: ModelInputs, visit: Callable[[AttentionCall], None]) -> Any:
    """Run ``model`` once, in evaluation mode and without a graph, and call ``visit`` with each attention to the image.

    Nothing is kept, so this takes the memory of inference and of one attention matrix.

    Args:
        model: Any module. Its state is preserved.
        inputs: The inputs of the model.
        visit: Function that gets the calls in the order in which they run.

    Returns:
        The output of the model.
    """
    return run_in_mode(partial(AttentionMode, visit=visit), model, inputs)[1]


def record_softmax(model: nn.Module, inputs: ModelInputs) -> list[Tensor]:
    """Run ``model`` once, in evaluation mode and without a graph, and return the outputs of every softmax, in order.

    The axis over which an output sums to 1 is its last one.
    """
    mode = _SoftmaxMode()
    with guard(model), torch.no_grad(), mode:
        run_model(model, inputs)
    return mode.outputs


def _capture(
    model: nn.Module, inputs: ModelInputs, *, hold_inputs: bool, grad_in_trunk: bool
) -> tuple[CapturedAttention, bool]:
    """Return the attention, and True if the graph is connected from the first attention to the output."""
    make_mode = partial(AttentionMode, hold_inputs=hold_inputs)
    mode, output = run_in_mode(make_mode, model, inputs, grad_in_trunk=grad_in_trunk)
    tensor = find_main_tensor(output)
    is_connected = not mode.is_cut and (not mode.calls or tensor is None or tensor.requires_grad)
    return CapturedAttention(output, mode.calls, mode.blocks), is_connected


def run_in_mode(
    make_mode: Callable[[Tensor | None], _Mode], model: nn.Module, inputs: ModelInputs, *, grad_in_trunk: bool = False
) -> tuple[_Mode, Any]:
    """Run ``model`` once, in evaluation mode, while an attention mode inspects the calls.

    Args:
        make_mode: Returns the mode for an image, the main tensor of the inputs.
        model: Any module. Its state is preserved.
        inputs: The inputs of the model.
        grad_in_trunk: Record the graph before the first attention, too.

    Returns:
        The mode and the output of the model.
    """
    with guard(model) as cleanup, torch.set_grad_enabled(grad_in_trunk):
        mode = make_mode(find_main_tensor(inputs))
        add_module_hooks(cleanup, model, mode.enter, mode.leave)
        with mode:
            output = run_model(model, inputs)
    return mode, output


# ------------------------------------------------------------------------------------------ the function mode

_SOFTMAX = frozenset({torch.softmax, Tensor.softmax, functional.softmax})


class _SoftmaxMode(FunctionMode):
    """A function mode that keeps what each softmax in this thread returns."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _SOFTMAX:
            axis = (kwargs or {}).get("dim", args[1] if len(args) > 1 else -1)
            self.outputs.append(result.detach().movedim(-1 if axis is None else axis, -1).clone())
        return result


# Functions that return their first argument with its axes in another order.
_TRANSPOSITIONS = frozenset(
    {
        *(torch.permute, torch.transpose, torch.swapaxes, torch.swapdims, torch.movedim, torch.moveaxis, torch.adjoint),
        *(Tensor.permute, Tensor.transpose, Tensor.swapaxes, Tensor.swapdims, Tensor.movedim, Tensor.moveaxis),
        *(Tensor.adjoint, Tensor.T.__get__, Tensor.H.__get__, Tensor.mT.__get__, Tensor.mH.__get__),  # type: ignore[attr-defined]
    }
)

# The usual axes of an attention matrix: queries and keys.
_LAST_TWO = -2, -1


@dataclass(frozen=True, eq=False)
class _Product:
    """Queries and keys. A tensor with this role is their product, on its way to a softmax.

    Attributes:
        queries: ``(..., T, D)``.
        keys: ``(..., S, D)``.
        axes: The axes of the queries and the keys in the tensor, negative numbers.
    """

    queries: Tensor
    keys: Tensor
    axes: tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Weights:
    """An attention matrix. A tensor with this role is the matrix, on its way to the values.

    Attributes:
        product: The queries and the keys.
        matrix: ``(N, H, T, S)``, on the graph.
        logits: ``(..., T, S)``.
        axes: The axes of the queries and the keys in the tensor, negative numbers.
    """

    product: _Product
    matrix: Tensor
    logits: Tensor
    axes: tuple[int, int]


_Role: TypeAlias = "_Product | _Weights | None"


@dataclass
class _Frame:
    """A call of a module that has not ended yet.

    Attributes:
        name: The name of the module.
        call_index: Which of the module's calls it is.
        source: See :class:`AttentionCall`.
        before: The number of calls of attention before it.
    """

    name: str
    call_index: int
    source: str | None
    before: int


class AttentionMode(FunctionMode):
    """A function mode that keeps every call of attention, in this thread, that depends on the image.

    Args:
        image: The main tensor of the inputs, ``(N, C, H, W)``.
        hold_inputs: See :func:`capture_attention`.
        visit: Function that gets each call. Then no call is kept, and no graph begins.

    Attributes:
        calls: The calls.
        blocks: The block of each call.
        is_cut: The graph is not connected, as the model switched grad mode off in between.
    """

    def __init__(
        self, image: Tensor | None, *, hold_inputs: bool = False, visit: Callable[[AttentionCall], None] | None = None
    ) -> None:
        super().__init__()
        self._hold_inputs, self._visit = hold_inputs, visit
        self.calls: list[AttentionCall] = []
        self.blocks: list[AttentionBlock | None] = []
        self.is_cut = False
        self._batch_size = 1 if image is None else len(image)
        self._started = False
        self._frames: list[_Frame] = [_Frame("", 0, None, 0)]
        self._latest: tuple[str, Tensor | None] = "", None
        self._call_indices: dict[str, int] = {}
        # All tensors that depend on the image, each with its role in an attention, or None. The dictionary is weak, so
        # that tensors are freed when the model has no more use for them.
        self._roles: MutableMapping[Tensor, Any] = TensorTable()
        if image is not None:
            self._roles[image] = None

    def enter(self, name: str, _: nn.Module, *given: Any) -> None:
        """Note that the call of a module begins."""
        call_index = self._call_indices[name] = self._call_indices.get(name, -1) + 1
        ended, returned = self._latest
        source = ended if returned is not None and find_main_tensor(given) is returned else None
        self._frames.append(_Frame(name, call_index, source, len(self.calls)))

    def leave(self, name: str, _: nn.Module, output: Any) -> None:
        """Note that the call of a module ends. Keep its output if it is the largest so far around one attention."""
        frame, tensor = self._frames.pop(), find_main_tensor(output)
        self._latest = name, tensor
        if len(self.calls) == frame.before + 1 and tensor is not None:
            # A clone, as the model may write to what it returned.
            copied = tensor.dequantize() if tensor.is_quantized else tensor.clone()
            self.blocks[-1] = AttentionBlock(name, frame.call_index, copied)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with self:
                return run_without_override_check(func, *args, **kwargs)
        given = [tensor for tensor in iterate_tensors((args, kwargs)) if tensor in self._roles]
        if not given:
            return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._replace_fused(*args, **kwargs)
        if func in PRODUCTS:
            return self._run_product(func, args, kwargs)
        return self._note_result(func, args, kwargs, given)

    def _note_result(self, func: Any, args: Any, kwargs: Any, given: Sequence[Tensor]) -> Any:
        """Run another function on tensors that have roles in an attention, and give its result the role it has then."""
        result = func(*args, **kwargs)
        if func in _SOFTMAX:
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            return self._handle_softmax(given[0], axis, result)
        if func in _TRANSPOSITIONS:
            return self._set_role(result, _transpose_role(self._roles[given[0]], given[0].ndim, func, args[1:], kwargs))
        self._copy_roles(given, args[:1] if func is Tensor.__setitem__ else result)
        return result

    # ----------------------------------------------------------------------------------------- kinds of calls

    def _replace_fused(
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
        """Compute attention step by step. The arguments are those of ``scaled_dot_product_attention``."""
        if enable_gqa:  # several heads of queries share one head of keys
            key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        bias = _compute_bias(attn_mask, query, key, is_causal=is_causal)
        weights = _compute_softmax(_compute_logits(query, key, scale, bias), bias)
        matrix = self._connect(weights)
        value = value.detach() if self._is_held(matrix) else value
        output = matrix.reshape(weights.shape).to(value.dtype) @ value
        q, k = self._split_heads(query.detach()), self._split_heads(key.detach())
        mask = None if bias is None else self._split_heads(bias)
        logits = partial(_compute_logits, q, k, scale, mask)
        return self._set_role(self._keep_call(output, matrix, _Product(query, key, _LAST_TWO), value, logits))

    def _handle_softmax(self, given: Tensor, axis: int | None, result: Tensor) -> Tensor:
        """Handle a softmax. Over products of queries with keys it makes an attention matrix."""
        product = self._roles[given]
        if not isinstance(product, _Product) or axis is None:
            return self._set_role(result)
        from_end = axis if axis < 0 else axis - result.ndim
        if from_end == product.axes[0]:  # the model multiplied keys with queries
            product = _Product(product.keys, product.queries, product.axes[::-1])
        if from_end != product.axes[1]:
            return self._set_role(result)
        by_query = result.movedim(product.axes, _LAST_TWO)
        matrix = self._connect(by_query)
        weights = _Weights(product, matrix, given.detach().movedim(product.axes, _LAST_TWO), product.axes)
        returned = matrix.reshape(by_query.shape).movedim(_LAST_TWO, product.axes)
        return self._set_role(returned.clone(), weights)

    def _run_product(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a product: of an attention matrix and the values, or possibly of queries and keys."""
        product = read_product(func, args, kwargs)
        if product is None:
            result = func(*args, **kwargs)
            return self._set_role(result, self._carry_role(args) if is_einsum(func) else None)
        operands = self._find_weights(product)
        if operands is not None:
            weights, values = operands
            if self._is_held(weights.matrix):
                held = values.detach()
                args, kwargs = map_tensors((args, kwargs), lambda tensor: held if tensor is values else tensor)
            return self._keep_product(product, weights, func(*args, **kwargs))
        result = func(*args, **kwargs)
        are_batches = product.left.ndim >= 3 and product.right.ndim >= 3
        has_weights = any(isinstance(self._roles.get(factor), _Weights) for factor in (product.left, product.right))
        if not are_batches or has_weights:
            return self._set_role(result)
        order = product.equation.output
        queries, keys = product.arrange_left(order).detach(), product.arrange_right(order).detach()
        return self._set_role(result, _Product(queries, keys, product.output_axes))

    def _copy_roles(self, given: Sequence[Tensor], result: Any) -> None:
        """Handle any other call. A result with as many elements (masked, scaled, reshaped) has the same role."""
        part = next((tensor for tensor in given if self._roles[tensor] is not None), None)
        for tensor in iterate_tensors(result):
            role: _Role = None
            if part is not None and tensor.numel() == part.numel():
                role = self._roles[part]
                # In another shape, the axes are known only if they are the last ones: heads are split from the images.
                role = role if tensor.shape == part.shape or role.axes == _LAST_TWO else None
            self._roles[tensor] = role

    def _carry_role(self, args: Any) -> _Role:
        """Return the role of the result of an einsum that mixes heads or applies a mask; None for anything else."""
        equation = read_equation(args)
        if equation is None:
            return None
        for term, tensor in zip(equation.terms, iterate_tensors(args), strict=True):
            role = self._roles.get(tensor)
            if role is not None and len(term) == len(equation.output):
                axes = [equation.output.find(term[axis]) for axis in role.axes]
                return None if min(axes) < 0 else replace(role, axes=tuple(axis - len(term) for axis in axes))
        return None

    # ------------------------------------------------------------------------------------------ constant inputs

    def _is_held(self, matrix: Tensor) -> bool:
        """Return True if the inputs of an attention matrix ``(..., T, S)`` are constants: those of a self-attention."""
        return self._hold_inputs and matrix.shape[-2] == matrix.shape[-1]

    # ------------------------------------------------------------------------------------------------- results

    def _set_role(self, tensor: Tensor, role: _Role = None) -> Tensor:
        self._roles[tensor] = role
        return tensor

    def _connect(self, matrix: Tensor) -> Tensor:
        """Return an attention matrix by head, on the graph. The graph begins here if it has not begun before."""
        if self._visit is not None:
            return self._split_heads(matrix)
        self.is_cut = self.is_cut or (self._started and not torch.is_grad_enabled())
        self._started = True
        torch.set_grad_enabled(True)  # until the forward pass' own grad mode ends
        by_head = self._split_heads(matrix)
        has_begun = by_head.requires_grad and not self._is_held(by_head)
        return by_head if has_begun else by_head.detach().requires_grad_()

    def _keep_call(
        self, output: Tensor, matrix: Tensor, product: _Product, values: Tensor, logits: Callable[[], Tensor]
    ) -> Tensor:
        """Keep a call of attention, and return a clone of the output, as the model may write to it."""
        by_head = self._split_heads(output)
        q, k, v = (self._split_heads(tensor.detach()) for tensor in (product.queries, product.keys, values))
        frame = self._frames[-1]
        call = AttentionCall(frame.name, frame.source, matrix, by_head, q, k, v, logits)
        if self._visit is not None:
            self._visit(call)
        else:
            self.calls.append(call)
            self.blocks.append(None)
        return by_head.reshape(output.shape).clone()

    def _find_weights(self, product: Product) -> tuple[_Weights, Tensor] | None:
        """Return the attention matrix in a product and the values: the sum is over its keys. None without a matrix."""
        left, right = self._roles.get(product.left), self._roles.get(product.right)
        if isinstance(left, _Weights) and left.axes == product.left_axes:
            return left, product.right
        if isinstance(right, _Weights) and right.axes == product.right_axes:
            return right, product.left
        return None

    def _keep_product(self, product: Product, weights: _Weights, result: Tensor) -> Tensor:
        """Keep the product of an attention matrix, on either side, with the values; return it on the graph."""
        is_left = self._roles.get(product.left) is weights
        order = product.equation.terms[0 if is_left else 1]
        values = product.arrange_right(order) if is_left else product.arrange_left(order)
        output = product.arrange_output(result, order)
        logits = self._split_heads(weights.logits)
        kept = self._keep_call(
            output if is_left else output.mT, weights.matrix, weights.product, values.mT, lambda: logits
        )
        return self._set_role(
            self._restore_output(lambda given: product.restore_output(given if is_left else given.mT, order), kept)
        )

    def _restore_output(self, restore: Callable[[Tensor], Tensor], kept: Tensor) -> Tensor:
        """Return a kept output with its axes as the model gets them."""
        return restore(kept)

    def _split_heads(self, tensor: Tensor) -> Tensor:
        """Reshape ``(N · H, T, D)``, as some models have it, to ``(N, H, T, D)``. Other shapes are not changed."""
        if tensor.ndim != 3 or len(tensor) % self._batch_size:
            return tensor
        return tensor.reshape(self._batch_size, len(tensor) // self._batch_size, *tensor.shape[1:])


def _transpose_role(role: _Role, count: int, func: Any, args: Any, kwargs: dict[str, Any]) -> _Role:
    """Return the role of a tensor of ``count`` axes after a function that changes the order of its axes."""
    if role is None:
        return None
    sizes = range(1, count + 1)  # all different, so that the result's shape shows the order
    shape = func(torch.empty(*sizes, device="meta"), *args, **kwargs).shape
    first, second = (shape.index(sizes[axis]) - count for axis in role.axes)
    return replace(role, axes=(first, second))


def _compute_bias(mask: Tensor | None, query: Tensor, key: Tensor, *, is_causal: bool) -> Tensor | None:
    """Return the bias of the logits: the numbers of a mask, or minus infinity where a mask forbids attention."""
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)


def _compute_logits(query: Tensor, key: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    logits = query @ key.mT * scale
    return logits if bias is None else logits + bias


def _compute_softmax(logits: Tensor, bias: Tensor | None) -> Tensor:
    """Return the softmax over the keys, at least in float32; zeros for a fully masked query, as fused kernels do."""
    logits = upcast(logits)
    if bias is None:
        return logits.softmax(-1)
    blind = logits.isneginf().all(-1, keepdim=True)
    return logits.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
