"""A function mode that treats attention weights, normalizers and gates as constants in the backward pass.

The gradient ``g`` of such a network is conservative: with the remaining operations linear, piecewise linear or
products, ``Σ x g`` over the input is the score minus ``Σ b g`` over the bias terms ``b``. So it is at every depth. This
is the identity behind AttnLRP (arXiv 2402.05602) and LibraGrad (arXiv 2411.16760). Outputs do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from camtool.hooks.private_torch import FunctionMode, run_without_override_check
from camtool.hooks.structures.nested_tensors import map_tensors
from camtool.hooks.structures.tensor_table import TensorTable
from camtool.hooks.tensor_products import PRODUCTS, is_einsum, iterate_tensors


class ConservativeMode(FunctionMode):
    """Make gradients conservative in this thread: of graphs that are recorded, and differentiated, within the block.

    * Attention weights, and gates that multiply a tensor, get no gradient: softmax, sigmoid, tanh, erf, and powers.
    * LayerNorm, GroupNorm, InstanceNorm and RMSNorm divide by a constant, and so does every division.
    * ``x φ(x)`` is x times a constant: GELU, SiLU, Hardswish, Mish.
    * The gradients of n factors that are none of these are divided by n, so that the product counts once.

    What depends on parameters alone is a constant in any case. An output that multiplies nothing, as class
    probabilities, keeps its plain gradient.

    Attributes:
        has_acted: True after the gradient of an operation was replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_acted = False
        # Tensors that become constants if they multiply another one, each with the switches before it.
        self._gates: MutableMapping[Tensor, Any] = TensorTable()
        self._of_parameters = TensorTable()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _IN_STEPS:
            with self:
                return run_without_override_check(func, *args, **kwargs)
        tensors = [*iterate_tensors((args, kwargs))] if torch.is_grad_enabled() else []
        graphed = [tensor for tensor in tensors if tensor.requires_grad]
        live = self._list_live(graphed)
        if not live:
            result = func(*args, **kwargs)
            self._of_parameters.update((tensor, True) for tensor in iterate_tensors(result) if graphed)
            return result
        return self._run(func, args, kwargs, live)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any], live: Sequence[Tensor]) -> Any:
        """Run a function on tensors, of which some depend on the image, by its kind."""
        name = getattr(func, "__name__", "")
        if func is functional.scaled_dot_product_attention:
            return self._run_fused_attention(*args, **kwargs)
        if func in _REPLACEMENTS:
            given = args or (kwargs.pop("input"),)
            return self._replace(func, *given, **kwargs)
        if func in PRODUCTS or name in _MULTIPLICATIONS:
            return self._multiply(func, args, kwargs)
        if name in _DIVISIONS:
            return self._divide(func, args, kwargs)
        if name in _GATES or (name == "pow" and _is_root(args, kwargs)):
            return self._run_before_gate(func, args, kwargs)
        result = func(*args, **kwargs)
        if self._makes_gate(name, live):
            self._note_gate(result, live)
        return result

    def _makes_gate(self, name: str, live: Sequence[Tensor]) -> bool:
        """Check that the result of a function is a gate, as all of its tensors are that depend on the image."""
        if not all(tensor in self._gates for tensor in live):
            return False
        switches = [switch for gate in live for switch in self._gates[gate]]
        return name in _KEEPING or (name in _MIXING and all(switch.is_attention for switch in switches))

    def _list_live(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        of_image = (tensor for tensor in tensors if tensor not in self._of_parameters)
        return [tensor for tensor in of_image if tensor.requires_grad and not isinstance(tensor, nn.Parameter)]

    # ------------------------------------------------------------------------------------------- kinds of calls

    def _run_fused_attention(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run fused attention whose weights are constants: those of constant queries, keys and masks."""
        self.has_acted = True
        args, kwargs = map_tensors((args, kwargs), Tensor.detach)
        return functional.scaled_dot_product_attention(query.detach(), key.detach(), value, *args, **kwargs)

    def _replace(self, func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run a normalizer or a gate, with the gradient of its replacement."""
        self.has_acted = True
        is_in_place = kwargs.pop("inplace", False) or (args[:1] == (True,) and func in _HAVE_INPLACE)
        args = () if is_in_place else args
        value = tensor.detach()
        replaced: Tensor = _ReplaceGradient.apply(
            _REPLACEMENTS[func](tensor, *args, **kwargs), lambda: func(value, *args, **kwargs)
        )
        return tensor.copy_(replaced) if is_in_place else replaced

    def _multiply(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a product: gates are constants beside other factors; without gates each factor counts in part."""
        tensors = [*iterate_tensors((args, kwargs))]
        live = self._list_live(tensors if is_einsum(func) else tensors[-2:])
        gates = [tensor for tensor in live if tensor in self._gates]
        if len(live) < 2:
            return self._note_gate(func(*args, **kwargs), gates)
        self.has_acted = True
        if gates and len(gates) < len(live):
            for switch in chain.from_iterable(self._gates[gate] for gate in gates):
                switch.is_blocking = True
            return self._forget_gate(func(*args, **kwargs))
        return self._note_gate(self._share(func, args, kwargs, live), gates)

    def _share(self, func: Any, args: Any, kwargs: dict[str, Any], live: Sequence[Tensor]) -> Any:
        """Run a product of which each factor gets an equal part of the gradient."""
        scale = partial(change_gradient, change=lambda gradient: gradient / len(live))
        if getattr(func, "__name__", "").endswith("_"):  # in place: what is saved for the backward pass is a copy
            return args[0].copy_(torch.mul(*(scale(factor.clone()) for factor in live)))
        args, kwargs = map_tensors(
            (args, kwargs), lambda tensor: scale(tensor) if any(tensor is factor for factor in live) else tensor
        )
        return func(*args, **kwargs)

    def _divide(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a division by a constant."""
        numerator, denominator = (*args, *kwargs.values())[:2]
        if isinstance(denominator, Tensor) and self._list_live([denominator]):
            self.has_acted = True
            args, kwargs = map_tensors(
                (args, kwargs), lambda tensor: tensor.detach() if tensor is denominator else tensor
            )
        gates = [numerator] if isinstance(numerator, Tensor) and numerator in self._gates else []
        return self._note_gate(func(*args, **kwargs), gates)

    # ------------------------------------------------------------------------------------------------- gates

    def _run_before_gate(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function whose result may become a gate: the gradient passes until it multiplies a tensor."""
        switch = _GradientSwitch(is_attention=func.__name__ == "softmax")
        first = next(iterate_tensors((args, kwargs)))
        args, kwargs = map_tensors(
            (args, kwargs), lambda tensor: change_gradient(tensor, switch.pass_or_block) if tensor is first else tensor
        )
        result = func(*args, **kwargs)
        self._gates[result] = [switch]
        return result

    def _note_gate(self, result: Any, gates: Sequence[Tensor]) -> Any:
        """Note that a result is a gate if it was made from gates."""
        switches = [switch for gate in gates for switch in self._gates[gate]]
        if not switches:
            return self._forget_gate(result)
        self._gates.update((tensor, switches) for tensor in iterate_tensors(result))
        return result

    def _forget_gate(self, result: Any) -> Any:
        for tensor in iterate_tensors(result):  # a result in place may have been one
            self._gates.pop(tensor, None)
        return result


@dataclass(eq=False)
class _GradientSwitch:
    """A switch that stops the gradient of a gate."""

    is_attention: bool
    is_blocking: bool = False

    def pass_or_block(self, gradient: Tensor) -> Tensor | None:
        """Return the gradient while the switch is open."""
        return None if self.is_blocking else gradient


class _ChangeGradient(torch.autograd.Function):
    """Identity whose backward pass changes the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, change: Callable[[Tensor], Tensor | None]) -> Tensor:
        ctx.change = change
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.change(gradient), None


def change_gradient(tensor: Tensor, change: Callable[[Tensor], Tensor | None]) -> Tensor:
    """Return a view of a tensor whose gradient is changed in the backward pass, once; ``None`` stops it."""
    return _ChangeGradient.apply(tensor, change)  # type: ignore[no-any-return]


class _ReplaceGradient(torch.autograd.Function):
    """The value of a function, with the gradient of a tensor that has the same values."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        ctx.dtype = tensor.dtype
        return compute()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.to(ctx.dtype), None


# --------------------------------------------------------------------------------------------------- replacements

_Function: TypeAlias = Callable[..., Tensor]


def _divide_by_deviation(tensor: Tensor, axes: list[int], eps: float, *, centers: bool = True) -> Tensor:
    """Return a tensor, centered or not, divided by its constant root mean square over some axes."""
    centered = tensor - tensor.mean(axes, keepdim=True) if centers else tensor
    factor: Tensor = (centered.detach().square().mean(axes, keepdim=True) + eps).rsqrt()
    return centered * factor


def _scale_and_shift(tensor: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = tensor if weight is None else tensor * weight
    return scaled if bias is None else scaled + bias


def _layer_norm(
    tensor: Tensor, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return _scale_and_shift(_divide_by_deviation(tensor, [*range(-len(shape), 0)], eps), weight, bias)


def _rms_norm(tensor: Tensor, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Tensor:
    eps = torch.finfo(tensor.dtype).eps if eps is None else eps
    return _scale_and_shift(_divide_by_deviation(tensor, [*range(-len(shape), 0)], eps, centers=False), weight, None)


def _group_norm(tensor: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    divided = _divide_by_deviation(tensor.reshape(len(tensor), groups, -1), [-1], eps).reshape(tensor.shape)
    by_channel = [given if given is None else given.reshape(-1, *[1] * (tensor.ndim - 2)) for given in (weight, bias)]
    return _scale_and_shift(divided, *by_channel)


def _instance_norm(
    tensor: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,  # noqa: FBT001, FBT002, torch's own signature
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return functional.instance_norm(tensor, running_mean, running_var, weight, bias, use_input_stats=False, eps=eps)
    return _group_norm(tensor, tensor.shape[1], weight, bias, eps)


def _gelu(tensor: Tensor, approximate: str = "none") -> Tensor:
    x = tensor.detach()
    cubic = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    gate: Tensor = torch.special.ndtr(x) if approximate == "none" else cubic
    return tensor * gate


def _glu(tensor: Tensor, dim: int = -1) -> Tensor:
    values, gates = tensor.chunk(2, dim)
    return values * gates.detach().sigmoid()


# Functions whose gradient is that of another function with the same values.
_REPLACEMENTS: dict[Any, _Function] = {
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.group_norm: _group_norm,
    functional.instance_norm: _instance_norm,
    functional.gelu: _gelu,
    functional.glu: _glu,
    functional.silu: lambda tensor: tensor * tensor.detach().sigmoid(),
    functional.hardswish: lambda tensor: tensor * functional.hardsigmoid(tensor.detach()),
    functional.mish: lambda tensor: tensor * functional.softplus(tensor.detach()).tanh(),
}

# Those whose second argument says that they work in place.
_HAVE_INPLACE = frozenset({functional.silu, functional.hardswish, functional.mish})

# Functions of Python that are run, so that the mode sees the operations that they are made of.
_IN_STEPS = frozenset({functional.multi_head_attention_forward, functional.normalize})

_MULTIPLICATIONS = frozenset({"mul", "multiply", "mul_", "multiply_", "__rmul__", "mm"})
_DIVISIONS = frozenset({"div", "divide", "true_divide", "div_", "divide_", "true_divide_"})
# Names of functions whose results are gates and normalizers where they multiply another tensor.
_GATES = frozenset(
    {
        *("softmax", "sigmoid", "hardsigmoid", "tanh", "erf", "exp"),
        *("rsqrt", "sqrt", "reciprocal", "__rdiv__", "__rtruediv__"),
        *("norm", "linalg_norm", "linalg_vector_norm", "std", "var"),
    }
)

# Names of functions that make gates of gates.
_KEEPING = frozenset(
    {
        *("add", "sub", "rsub", "__radd__", "__rsub__", "neg", "clamp", "clamp_min", "masked_fill", "nan_to_num"),
        *("where", "cat", "stack", "pad", "roll", "flip", "dropout", "clone", "contiguous", "repeat"),
        *("view", "reshape", "permute", "transpose", "movedim", "swapaxes", "flatten", "unflatten", "squeeze"),
        *("unsqueeze", "expand", "expand_as", "broadcast_to", "chunk", "split", "unbind", "__getitem__", "__get__"),
        *("repeat_interleave", "to", "type", "type_as", "float", "half", "double", "bfloat16"),
    }
)

# Names of functions that mix the attention weights of several heads; after another gate they begin a new layer.
_MIXING = frozenset({"linear", "conv1d", "conv2d"})


def _is_root(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Check that a power is that of a normalizer: a root, or a negative one."""
    exponent = (*args, *kwargs.values())[1]
    return isinstance(exponent, (int, float)) and exponent < 1
