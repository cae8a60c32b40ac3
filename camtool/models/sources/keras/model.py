"""A Keras model as a module whose layers and operations are modules, too, whose calls hooks of torch see.

A Keras model does not list its layers as submodules, and some of its operations are no modules. While a model runs,
each call of an operation that has hooks goes through a module of its own, :class:`KerasLayer`. Images and grids are
``(N, C, H, W)`` there, as in torch: Keras' own ``(N, H, W, C)`` are permuted, which copies nothing.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from camtool.errors import ModelError
from camtool.hooks.private_torch import find_hooked_modules
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.nested_tensors import find_tensors, map_tensors
from camtool.outputs.class_scores import FoundLink
from camtool.warning_codes import MapWarning

# Axes of a batch of images; a batch of volumes has one more.
_IMAGE_AXES = 4

# Keras' name of a class → the class of torch that the rules of camtool know. It means the same, and runs other code.
_TORCH_NAMES = {"Conv": "Conv", "MaxPooling": "MaxPool", "AveragePooling": "AvgPool"}
_TORCH_KINDS: dict[str, type[nn.Module]] = {
    f"{name}{axes}D": getattr(nn, f"{of_torch}{axes}d") for name, of_torch in _TORCH_NAMES.items() for axes in (2, 3)
}

# Calls of layers: each layer, its output as in Keras and, of a softmax or sigmoid at the end of a model, the logits.
_Calls: TypeAlias = "list[tuple[KerasLayer, Any, Any]]"

# Layers and operations that may end a model in a softmax or a sigmoid, which can be left out.
_ENDS = ("Activation", "Conv1D", "Conv2D", "Conv3D", "Dense", "EinsumDense", "Sigmoid", "Softmax")


# What to do with a model that runs on another backend.
OTHER_BACKEND = (
    "and camtool needs torch's. A .keras file is the same for all: model.save('m.keras'), then python -m camtool "
    "photos/ --model m.keras, or camtool.load('m.keras') where KERAS_BACKEND=torch is set before Keras is imported."
)


def is_keras(model: object) -> bool:
    """Return True for a model or layer of Keras, of any backend and version; Keras is not imported for it."""
    homes = [base.__module__.partition(".")[0] for base in model.__class__.__mro__ if base.__name__ == "Layer"]
    return any(home in ("keras", "tf_keras", "tensorflow") for home in homes)


def check_backend(model: object) -> None:
    """Check that a model is none of Keras on another backend than torch.

    Raises:
        ModelError: It is. The message says how to explain it.
    """
    if is_keras(model) and not isinstance(model, nn.Module):
        raise ModelError(f"the model is one of Keras on another backend, {OTHER_BACKEND}")


def get_keras_module(whole: nn.Module) -> KerasModel:
    """Return the module of a Keras model that the caller keeps alive, the same each time.

    Raises:
        ModelError: The model has no weights yet, or a layer is quantized.
    """
    return remember_for_model(whole, "Keras", lambda: KerasModel(cast(nn.Module, weakref.proxy(whole))))


def get_graph(operation: Any) -> Any | None:
    """Return what has the operations of a functional or a Sequential model in their order; None for others."""
    graph = getattr(operation, "_functional", None) or operation
    return graph if hasattr(graph, "operations") else None


def read_format(whole: Any) -> tuple[bool, bool]:
    """Return whether the channels of images are the last axis in a Keras model, and whether no layer disagrees."""
    # Flatten has the order of the settings, in any model.
    layers = [layer for layer in whole._flatten_layers() if type(layer).__name__ != "Flatten"]
    formats = [*filter(None, (getattr(layer, "data_format", None) for layer in layers))]
    first = formats[0] if formats else sys.modules["keras"].config.image_data_format()
    return first == "channels_last", len({*formats}) < 2


def _to_keras(module: Any, structure: Any) -> Any:
    """Return nested tensors with the axes that they have in Keras, as ``module.has_channels_last`` says."""
    return _move_channels(structure, 1, -1) if module.has_channels_last else structure


def _from_keras(module: Any, structure: Any) -> Any:
    """Return nested tensors of Keras with the axes that they have in torch, as ``module.has_channels_last`` says."""
    return _move_channels(structure, -1, 1) if module.has_channels_last else structure


def _move_channels(structure: Any, start: int, end: int) -> Any:
    return map_tensors(structure, lambda tensor: tensor.movedim(start, end) if tensor.ndim >= _IMAGE_AXES else tensor)


class KerasLayer(nn.Module):
    """One layer or operation of a Keras model as a module, which runs that of Keras.

    Attributes:
        operation: The layer or operation.
        has_channels_last: Whether its images are ``(N, H, W, C)`` in Keras; None if that is not certain.
        axes_without_grid: The most axes of an output that is not certainly ``(N, C, H, W)``, or a volume, here.
        is_end: Whether it computes an output of the model.
    """

    operation: Any

    def __init__(self, operation: Any, *, has_channels_last: bool | None) -> None:
        nn.Module.__init__(self)  # and not that of the class of torch beside this one
        # Past nn.Module.__setattr__, which would register Keras' own module as a part of this one.
        self.__dict__["operation"] = operation
        self.has_channels_last, self.axes_without_grid = has_channels_last, 99 if has_channels_last is None else 3
        self.is_end = False
        for kind in ("_trainable_variables", "_non_trainable_variables"):
            for variable in getattr(operation, kind, ()):
                self.register_parameter(variable.name.replace(".", "_"), variable.value)
        if isinstance(self, (nn.Conv2d, nn.Conv3d)):
            *self.kernel_size, channels, self.out_channels = operation.kernel.shape
            self.in_channels, self.stride = channels * operation.groups, operation.strides

    @property
    def activation(self) -> str:
        """The softmax or sigmoid that it ends in, if that can be left out; empty for any other layer."""
        kind = type(self.operation)
        function = getattr(self.operation, "activation", None)
        name = str(getattr(function, "__name__", kind.__name__.lower()))
        is_known = kind.__name__ in _ENDS and kind.__module__.startswith("keras.")
        return name if is_known and name in ("softmax", "sigmoid") else ""

    @property
    def is_final(self) -> bool:
        """True if its softmax or sigmoid is an output of the model, which :meth:`forward` does not apply."""
        return self.is_end and self.activation != ""

    @property
    def weight(self) -> Tensor | None:
        """The kernel in the order of torch, ``(out, in, *size)``; None for layers without one."""
        kernel = self._parameters.get("kernel")
        return None if kernel is None or kernel.ndim < 2 else kernel.movedim((-1, -2), (0, 1))

    def extra_repr(self) -> str:
        """Return the name that the layer has in Keras."""
        return str(self.operation.name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the layer; of the last one of a model that before its softmax or sigmoid."""
        call = self._compute_logits if self.is_final else _get_original(self.operation)
        return _from_keras(self, call(*_to_keras(self, args), **_to_keras(self, kwargs)))

    def run_original(self, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        """Run the layer without hooks, on tensors of Keras; return its output, and no logits."""
        return _get_original(self.operation)(*args, **kwargs), None

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Run the module, with its hooks, on tensors of Keras; return the layer's output there and, if last, logits."""
        output = _to_keras(self, self(*_from_keras(self, args), **_from_keras(self, kwargs)))
        if not self.is_final:
            return output, None
        step = getattr(self.operation, "activation", None) or partial(type(self.operation).call, self.operation)
        return step(output), output

    def _compute_logits(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what the layer computes before its softmax or sigmoid, from its own weights."""
        if not hasattr(self.operation, "kernel"):
            return inputs  # it is that function alone
        kind = type(self.operation)
        twin = object.__new__(kind)
        vars(twin).update(vars(self.operation) | {"activation": None})
        return kind.call(twin, inputs, *args, **kwargs)


def _make_layer(operation: Any, *, usual: bool | None) -> KerasLayer:
    """Return the module of a layer or operation. Its class has Keras' name, and is one of torch's that means the same.

    Args:
        operation: The layer or operation.
        usual: Whether the channels are last if it does not say it; None if that is not certain.

    Raises:
        ModelError: The layer is quantized.
    """
    if getattr(operation, "quantization_mode", None) is not None:
        raise ModelError(f"layer {operation.name!r} is quantized, so no gradient passes it; give the model before.")
    kind, layout = type(operation), getattr(operation, "data_format", None)
    known = [of_torch for name, of_torch in _TORCH_KINDS.items() if kind is getattr(sys.modules["keras"].layers, name)]
    make = type(kind.__name__, (KerasLayer, *known), {})
    layer: KerasLayer = make(operation, has_channels_last=layout == "channels_last" if layout else usual)
    return layer


class KerasModel(nn.Module):
    """A Keras model that takes and returns images as ``(N, C, H, W)``, with a module for each of its layers.

    The layers have the names that they have in Keras, those of a nested model below its name; a dot becomes ``_``. It
    runs in evaluation mode always. If the model ends in a softmax or a sigmoid, the output is the logits before that.

    Attributes:
        whole: The model.
        has_channels_last: Whether images are ``(N, H, W, C)`` in Keras.
        ends: The layer whose softmax or sigmoid is an output, for each output; None before the first forward pass.

    Raises:
        ModelError: The model has no weights yet, or a layer is quantized.
    """

    whole: Any

    def __init__(self, whole: Any) -> None:
        super().__init__()
        if not whole.built:
            raise ModelError("the Keras model has no weights yet; call it once with a batch of images before.")
        # Past nn.Module.__setattr__, which would register Keras' own module as a part of this one.
        self.__dict__["whole"] = whole
        self.has_channels_last, is_certain = read_format(whole)
        self.ends: list[KerasLayer | None] | None = None
        self._known: dict[int, KerasLayer] = {}
        # Layers that do not say it have the order of the images, unless layers disagree.
        self._add_layers(self, whole, usual=self.has_channels_last if is_certain else None)
        self.eval()

    @property
    def known_link(self) -> FoundLink:
        """Function from the first output to probabilities, with a note if the model itself applies it."""
        end = (self.ends or [None])[0]
        if end is None or not end.is_final:
            return FoundLink("softmax")
        has_labels = end.activation == "sigmoid" and (end.weight is None or len(end.weight) > 1)
        text = f"The model ends in a {end.activation}; the score is the logit before it, of the layer's own weights."
        notes = (MapWarning(text, "logit-before-activation"),)
        return FoundLink("sigmoid" if has_labels else "softmax", notes=notes)

    def find_layer(self, layer: str | nn.Module) -> str | nn.Module:
        """Return the module of a layer of Keras, or of the only one with this name; others as they are.

        A name is that in Keras, also of a layer in a nested model, whose own name may stand before it.
        """
        if not isinstance(layer, str):
            return self._known.get(id(layer), layer)
        names, path = [name for name, _ in self.named_modules()], layer.replace(".", "_")
        alike = [name for name in names if path in (name.rpartition(".")[2], name.replace(".", "_"))]
        return alike[0] if len(alike) == 1 and layer not in names else layer

    def forward(self, *args: Any, **named: Any) -> Any:
        """Return what the model returns for its inputs, by position or by name, with logits for probabilities.

        Images come as ``(N, C, H, W)``, and so do score planes in the output.
        """
        args, named = _to_keras(self, args), _to_keras(self, named)
        if get_graph(self.whole) is not None:  # it takes its inputs as one structure
            args, named = ((named or (args[0] if len(args) == 1 else [*args])),), {}
        with sys.modules["keras"].device(str(next(iter(find_tensors((args, named)))).device)):
            if self.ends is None:
                self.ends = self._find_ends(args, named)
            hooked = {*find_hooked_modules(self._known.values())}
            taken = (layer for layer in self._known.values() if layer in hooked or layer.is_final)
            output, calls = self._run(taken, KerasLayer.run, args, named)
        logits = {id(made): before for _, made, before in calls if before is not None}
        return _from_keras(self, map_tensors(output, lambda tensor: logits.get(id(tensor), tensor)))

    def _find_ends(self, args: Any, named: Any) -> list[KerasLayer | None]:
        """Find the layer whose softmax or sigmoid is an output, for each output, by a forward pass."""
        layers = [layer for layer in self._known.values() if layer.activation]
        with torch.no_grad():
            output, calls = self._run(layers, KerasLayer.run_original, args, named)
        makers = {id(made): layer for layer, made, _ in calls}
        ends = [makers.get(id(tensor)) for tensor in find_tensors(output)]
        for end in filter(None, ends):
            end.is_end = True
        return ends

    def _run(self, layers: Iterable[KerasLayer], run: Callable[..., Any], args: Any, named: Any) -> tuple[Any, _Calls]:
        """Run the model, and some of its layers by a function; return the output, and the calls of these layers."""
        calls: _Calls = []

        def note(layer: KerasLayer, *given: Any, **options: Any) -> Any:
            calls.append((layer, *run(layer, *given, **options)))
            return calls[-1][1]

        with _take_calls((layer.operation, partial(note, layer)) for layer in layers):
            return self.whole(*args, **named, training=False), calls

    def _add_layers(self, parent: nn.Module, operation: Any, *, usual: bool | None) -> None:
        graph = get_graph(operation)
        for step in getattr(operation, "_layers", ()) if graph is None else graph.operations:
            if type(step).__name__ == "InputLayer":
                continue
            layer = self._known.get(id(step))
            if layer is None:
                layer = self._known[id(step)] = _make_layer(step, usual=usual)
                self._add_layers(layer, step, usual=usual)
            name = step.name.replace(".", "_")
            while hasattr(parent, name):
                name += "_"
            parent.add_module(name, layer)

    def __deepcopy__(self, memo: dict[int, Any]) -> KerasModel:
        return KerasModel(copy.deepcopy(self.whole, memo))


# ------------------------------------------------------------------------------------------ calls through modules

# One forward pass at a time replaces calls: two could have layers in common.
_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    # Another thread may hold it when a process forks.
    os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]


class _Route:
    """Replaces ``call`` of an operation: another function runs in the thread of the model, the method in others."""

    def __init__(self, operation: Any, take: Callable[..., Any]) -> None:
        self.original, self.take, self.thread = operation.call, take, threading.get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.take if self.thread == threading.get_ident() else self.original
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            # Keras would raise another error in its place, with the arguments of the call in the message.
            error._keras_call_info_injected = True  # type: ignore[attr-defined]
            raise


@contextmanager
def _take_calls(calls: Iterable[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Let functions take the calls of operations that this thread makes during the block.

    Args:
        calls: Pairs of an operation and a function with the arguments of its ``call``.
    """
    with _LOCK, ExitStack() as stack:
        for operation, take in calls:
            stack.callback(_restore, vars(operation), vars(operation).get("call"))
            vars(operation)["call"] = _Route(operation, take)
        yield


def _get_original(operation: Any) -> Callable[..., Any]:
    """Return the method ``call`` of an operation itself."""
    call: Callable[..., Any] = operation.call
    while isinstance(call, _Route):
        call = call.original
    return call


def _restore(attributes: dict[str, Any], before: Any) -> None:
    attributes.pop("call", None)
    if before is not None:
        attributes["call"] = before
