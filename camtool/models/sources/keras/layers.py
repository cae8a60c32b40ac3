"""The layers and operations of a Keras model as modules, whose calls hooks of torch see.

Keras overrides ``__call__``, so no hook of torch runs on its layers, although they are modules. While a model runs,
each call of an operation that has hooks goes through a module of its own, :class:`KerasLayer`. Images and grids are
``(N, C, H, W)`` there, as in torch: Keras' own ``(N, H, W, C)`` are permuted, which copies nothing.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Literal

from torch import Tensor, nn

from camtool.errors import ModelError
from camtool.hooks.structures.nested_tensors import map_tensors

# Axes of a batch of images; a batch of volumes has one more.
_IMAGE_AXES = 4

# Keras' name of a class → the class of torch that the rules of camtool know. It means the same, and runs other code.
_TORCH_KINDS: dict[str, type[nn.Module]] = {
    "Embedding": nn.Embedding,
    **{
        f"{name}{axes}D": getattr(nn, f"{of_torch}{axes}d")
        for name, of_torch in (("Conv", "Conv"), ("MaxPooling", "MaxPool"), ("AveragePooling", "AvgPool"))
        for axes in (2, 3)
    },
}

# Layers whose activation may be the softmax at the end of a model.
_WITH_ACTIVATION = ("Activation", "Conv1D", "Conv2D", "Conv3D", "Dense", "EinsumDense")


class KerasLayer(nn.Module):
    """One layer or operation of a Keras model as a module, which runs that of Keras.

    Attributes:
        operation: The layer or operation.
        has_channels_last: Whether its images are ``(N, H, W, C)`` in Keras; None if that is not certain.
        has_channels_first: Whether images in its output are certainly ``(N, C, H, W)`` here.
        is_final: Whether its softmax or sigmoid is the last step of the model. It is then left out here.
    """

    operation: Any

    def __init__(self, operation: Any, *, has_channels_last: bool | None) -> None:
        nn.Module.__init__(self)  # and not that of the class of torch beside this one
        # Past nn.Module.__setattr__, which would register Keras' own module as a part of this one.
        self.__dict__["operation"] = operation
        self.has_channels_last, self.has_channels_first = has_channels_last, has_channels_last is not None
        self.is_final = False
        for variable in (*getattr(operation, "_trainable_variables", ()), *_list_fixed_variables(operation)):
            if isinstance(variable.value, nn.Parameter):
                self.register_parameter(variable.name.replace(".", "_"), variable.value)
        kernel = self._parameters.get("kernel")
        if kernel is not None and isinstance(self, (nn.Conv2d, nn.Conv3d)):
            self.groups, self.stride, self.dilation = operation.groups, operation.strides, operation.dilation_rate
            self.in_channels, self.out_channels = kernel.shape[-2] * operation.groups, kernel.shape[-1]
            self.kernel_size = tuple(kernel.shape[:-2])

    @property
    def classes(self) -> int | None:
        """The number of channels that its kernel makes; None for a layer without one."""
        kernel = self._parameters.get("kernel")
        return None if kernel is None else kernel.shape[-1]

    @property
    def weight(self) -> Tensor | None:
        """The kernel in the order of torch, ``(out, in, *size)``; None for layers without one."""
        kernel = self._parameters.get("kernel")
        return None if kernel is None or kernel.ndim < 2 else kernel.movedim((-1, -2), (0, 1))

    def extra_repr(self) -> str:
        """Return the name that the layer has in Keras."""
        return str(self.operation.name)

    def to_keras(self, structure: Any) -> Any:
        """Return nested tensors with the axes that they have in Keras."""
        return move_channels(structure, 1, -1) if self.has_channels_last else structure

    def from_keras(self, structure: Any) -> Any:
        """Return nested tensors of Keras with the axes that they have here."""
        return move_channels(structure, -1, 1) if self.has_channels_last else structure

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the layer; of the last one of a model that before its softmax or sigmoid."""
        call = partial(_compute_logits, self.operation) if self.is_final else get_original(self.operation)
        return self.from_keras(call(*self.to_keras(args), **self.to_keras(kwargs)))

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Run the module, with its hooks, on tensors of Keras; return the layer's output there and, if last, logits."""
        output = self.to_keras(self(*self.from_keras(args), **self.from_keras(kwargs)))
        return (_get_last_step(self.operation)(output), output) if self.is_final else (output, None)


def _list_fixed_variables(operation: Any) -> Iterable[Any]:
    variables: Iterable[Any] = getattr(operation, "_non_trainable_variables", ())
    return variables


def move_channels(structure: Any, start: int, end: int) -> Any:
    """Return nested tensors with an axis moved of those that may be images or volumes."""
    return map_tensors(structure, lambda tensor: tensor.movedim(start, end) if tensor.ndim >= _IMAGE_AXES else tensor)


def make_layer(operation: Any, *, has_channels_last: bool | None) -> KerasLayer:
    """Return the module of a layer or operation. Its class has Keras' name, and is one of torch's that means the same.

    Raises:
        ModelError: The layer is quantized, so no gradient passes it.
    """
    if getattr(operation, "quantization_mode", None) is not None:
        raise ModelError(
            f"layer {operation.name!r} is quantized, so no gradient passes it; give the model before that."
        )
    name = type(operation).__name__
    is_known = name in _TORCH_KINDS and type(operation).__module__.startswith("keras.")
    bases = (KerasLayer, _TORCH_KINDS[name]) if is_known else (KerasLayer,)
    layer: KerasLayer = type(name, bases, {})(operation, has_channels_last=has_channels_last)
    return layer


# ------------------------------------------------------------------------------------------ the softmax at the end


def find_activation(operation: Any) -> Literal["softmax", "sigmoid", "linear"] | None:
    """Return the function that a layer or operation of Keras' own ends in; None for any other."""
    kind = type(operation)
    if not kind.__module__.startswith("keras."):
        return None
    name = kind.__name__.lower()
    if kind.__name__ in _WITH_ACTIVATION:
        name = getattr(operation.activation, "__name__", "")
    return name if name in ("softmax", "sigmoid", "linear") else None  # type: ignore[return-value]


def _compute_logits(operation: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a layer computes before its softmax or sigmoid, from its own weights."""
    if not hasattr(operation, "kernel"):
        return inputs  # it is that function alone
    from keras.activations import linear

    twin = object.__new__(type(operation))
    twin.__dict__.update(vars(operation) | {"activation": linear})
    twin.__dict__.pop("call", None)
    return twin.call(inputs, *args, **kwargs)


def _get_last_step(operation: Any) -> Callable[[Any], Any]:
    """Return the softmax or the sigmoid that a layer or operation ends in."""
    step: Callable[[Any], Any] = operation.activation if hasattr(operation, "kernel") else type(operation).call
    return step if hasattr(operation, "kernel") else partial(step, operation)


# ------------------------------------------------------------------------------------------ calls through modules


class _Running(threading.local):
    """What takes the calls of the operations in this thread, by their id."""

    def __init__(self) -> None:
        self.calls: dict[int, Callable[..., Any]] = {}


_RUNNING = _Running()
# How many forward passes, of all threads, take the calls of an operation, by its id.
_COUNTS: Counter[int] = Counter()
_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    # Another thread may hold it when a process forks.
    os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]


class _Route:
    """What stands in for ``call`` of an operation: in a thread that takes its calls that, else the method itself."""

    def __init__(self, operation: Any) -> None:
        self.key, self.original = id(operation), operation.call
        wraps(self.original)(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        take = _RUNNING.calls.get(self.key)
        try:
            return self.original(*args, **kwargs) if take is None else take(*args, **kwargs)
        except BaseException as error:
            # Keras would raise another error in its place, with the arguments of the call in the message.
            error._keras_call_info_injected = True  # type: ignore[attr-defined]
            raise


@contextmanager
def take_calls(calls: Iterable[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Let functions take the calls of operations that this thread makes during the block.

    Args:
        calls: Pairs of an operation and a function with the arguments of its ``call``.
    """
    pairs, before = list(calls), _RUNNING.calls
    with _LOCK:
        for operation, _ in pairs:
            _COUNTS[id(operation)] += 1
            if _COUNTS[id(operation)] == 1:
                vars(operation)["call"] = _Route(operation)
    _RUNNING.calls = before | {id(operation): take for operation, take in pairs}
    try:
        yield
    finally:
        _RUNNING.calls = before
        with _LOCK:
            for operation, _ in pairs:
                _COUNTS[id(operation)] -= 1
                if not _COUNTS[id(operation)]:
                    del _COUNTS[id(operation)]
                    _restore(operation)


def get_original(operation: Any) -> Callable[..., Any]:
    """Return the method ``call`` of an operation itself."""
    call = operation.call
    return call.original if isinstance(call, _Route) else call  # type: ignore[no-any-return]


def _restore(operation: Any) -> None:
    original = vars(operation).pop("call").original
    if getattr(original, "__self__", None) is not operation:  # the user had set one on this instance
        vars(operation)["call"] = original
