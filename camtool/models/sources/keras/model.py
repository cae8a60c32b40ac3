"""A Keras model as a module whose layers are modules too."""

from __future__ import annotations

import copy
import sys
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from typing_extensions import Self

from camtool.errors import ModelError
from camtool.hooks.private_torch import convert_tensors_of_module, find_hooked_modules, has_global_hooks
from camtool.hooks.structures.nested_tensors import find_tensors, map_tensors
from camtool.models.sources.keras.layers import (
    KerasLayer,
    find_activation,
    get_original,
    make_layer,
    move_channels,
    take_calls,
)
from camtool.outputs.class_scores import FoundLink

# The module of each Keras model that was explained, for as long as that lives.
_MODULES: WeakKeyDictionary[nn.Module, KerasModel] = WeakKeyDictionary()


def is_keras(model: object) -> bool:
    """Return True for a model or layer of Keras, of any backend and version; Keras is not imported for it."""
    return any(
        base.__name__ == "Layer" and base.__module__.partition(".")[0] in ("keras", "tf_keras", "tensorflow")
        for base in type(model).__mro__
    )


def check_backend(model: object) -> None:
    """Check that a model is none of Keras on another backend than torch.

    Raises:
        ModelError: It is. The message says how to explain it.
    """
    if is_keras(model) and not isinstance(model, nn.Module):
        raise ModelError(
            "the model is one of Keras on another backend than torch; a .keras file is the same for all of them: "
            'model.save("m.keras"), then camtool.load("m.keras") in a Python with Keras 3 where KERAS_BACKEND=torch, '
            "or: python -m camtool photos/ --model m.keras"
        )


def get_keras_module(whole: Any) -> KerasModel:
    """Return the module of a Keras model that the caller keeps alive, the same each time.

    Raises:
        ModelError: The model has no weights yet, or a layer is quantized.
    """
    known = _MODULES.get(whole)
    if known is None or not known.is_current():
        if not whole.built:
            raise ModelError("the Keras model has no weights yet; call it once with a batch of images before.")
        known = _MODULES[whole] = KerasModel(whole, keep=False)
    return known


class KerasModel(nn.Module):
    """A Keras model that takes and returns images as ``(N, C, H, W)``, with a module for each of its layers.

    The layers have the names that they have in Keras, those of a nested model below its name; a dot becomes ``_``. It
    runs in evaluation mode always. If the model ends in a softmax or a sigmoid, the output is the logits before that.

    Args:
        whole: The model.
        keep: Keep the model alive; otherwise the caller must.

    Attributes:
        ends: The layers that compute the outputs; None before the first forward pass.
        known_link: What its outputs are; None if its last layer does not show it.
    """

    _whole: weakref.ref[nn.Module]

    def __init__(self, whole: nn.Module, *, keep: bool = True) -> None:
        super().__init__()
        self.__dict__["_whole"], self.__dict__["_kept"] = weakref.ref(whole), whole if keep else None
        formats = _list_formats(whole)
        # That of the images; layers that do not say it have the same, unless layers disagree.
        self._format = formats[0] if formats else sys.modules["keras"].config.image_data_format()
        self.has_channels_last, self._is_certain = self._format == "channels_last", len({*formats}) < 2
        self.ends: list[KerasLayer] | None = None
        self.known_link: FoundLink | None = None
        self._known: dict[int, KerasLayer] = {}
        self._add_layers(self, whole)
        self._steps = [id(step) for step in _list_steps(whole)]
        self.eval()

    @property
    def keras_model(self) -> Any:
        """The model of Keras."""
        whole = self._whole()
        if whole is None:
            raise ReferenceError("the Keras model is gone; keep it for as long as it is explained.")
        return whole

    def is_current(self) -> bool:
        """Return True if the model has the layers that it had when this module was made."""
        return [id(step) for step in _list_steps(self.keras_model)] == self._steps

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
        import keras

        args, named = self._to_keras(args), self._to_keras(named)
        if isinstance(self.keras_model, (keras.Sequential, keras.src.models.Functional)):
            args, named = ((named,) if named else args if len(args) == 1 else ([*args],)), {}
        device = next(iter(find_tensors((args, named)))).device
        with keras.device(str(device)):
            if self.ends is None:
                self._find_ends(args, named)
            return self._run(args, named)

    def _run(self, args: Any, named: Any) -> Any:
        logits: list[tuple[Any, Any]] = []

        def run(layer: KerasLayer, *given: Any, **options: Any) -> Any:
            output, before = layer.run(*given, **options)
            logits.append((output, before))
            return output

        hooked = find_hooked_modules(self._known.values()) if not has_global_hooks() else [*self._known.values()]
        taken = dict.fromkeys([*hooked, *(layer for layer in self.ends or () if layer.is_final)])
        with take_calls((layer.operation, partial(run, layer)) for layer in taken):
            output = self.keras_model(*args, **named, training=False)
        replaced = {id(after): before for after, before in logits if before is not None}
        output = map_tensors(output, lambda tensor: replaced.get(id(tensor), tensor))
        return move_channels(output, -1, 1) if self.has_channels_last else output

    def _find_ends(self, args: Any, named: Any) -> None:
        """Find the layers that compute the outputs, and the softmax or sigmoid in them, by a forward pass."""
        makers: dict[int, tuple[KerasLayer, Tensor]] = {}

        def note(layer: KerasLayer, *given: Any, **options: Any) -> Any:
            output = get_original(layer.operation)(*given, **options)
            makers[id(output)] = layer, output  # which keeps it, so that its id is not used again
            return output

        candidates = [layer for layer in self._known.values() if find_activation(layer.operation)]
        with torch.no_grad(), take_calls((layer.operation, partial(note, layer)) for layer in candidates):
            output = self.keras_model(*args, **named, training=False) if candidates else None
        self.ends = [makers[id(tensor)][0] for tensor in find_tensors(output) if id(tensor) in makers]
        for layer in self.ends:
            layer.is_final = find_activation(layer.operation) != "linear"
        if self.ends:
            kind, left_out = find_activation(self.ends[0].operation), self.ends[0].is_final
            has_labels = kind == "sigmoid" and self.ends[0].classes != 1
            self.known_link = FoundLink("sigmoid" if has_labels else "softmax", left_out=str(kind) if left_out else "")

    def _to_keras(self, structure: Any) -> Any:
        return move_channels(structure, 1, -1) if self.has_channels_last else structure

    def _add_layers(self, parent: nn.Module, operation: Any) -> None:
        for step in _list_steps(operation):
            layer = self._known.get(id(step))
            if layer is None:
                layout = getattr(step, "data_format", None) or (self._format if self._is_certain else None)
                layer = self._known[id(step)] = make_layer(
                    step, has_channels_last=None if layout is None else layout == "channels_last"
                )
                self._add_layers(layer, step)
            name = step.name.replace(".", "_")
            while hasattr(parent, name):
                name += "_"
            parent.add_module(name, layer)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        # The parameters are those of Keras' own variables, which this keeps.
        convert_tensors_of_module(self.keras_model, *args, **kwargs)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> KerasModel:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Keras reads weights as NumPy 2 will not allow
            return KerasModel(copy.deepcopy(self.keras_model, memo))


def get_graph(operation: Any) -> Any | None:
    """Return what has the operations of a functional or a Sequential model in their order; None for others."""
    graph = getattr(operation, "_functional", None) or operation
    return graph if hasattr(graph, "operations") else None


def _list_steps(operation: Any) -> Iterator[Any]:
    """Yield the layers and operations that a model or a layer calls, but for its inputs."""
    graph = get_graph(operation)
    for step in getattr(operation, "_layers", ()) if graph is None else graph.operations:
        if type(step).__name__ != "InputLayer":
            yield step


def _list_formats(whole: Any) -> list[str]:
    """Return the orders of axes that layers say; Flatten has that of the settings, in any model."""
    layers = (layer for layer in whole._flatten_layers() if type(layer).__name__ != "Flatten")
    return [*filter(None, (getattr(layer, "data_format", None) for layer in layers))]
