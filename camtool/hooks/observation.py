"""Run a model once and keep the outputs of layers (:func:`run_with_hooks`), or run its tail again (:func:`resume`).

:func:`run_with_hooks` starts the forward pass with grad mode off. When the first chosen layer returns, its hook turns
the output into a leaf and switches grad mode on, so autograd records only the tail. The trunk takes the time and memory
of inference, and ``torch.autograd.grad`` with respect to the leaf does not change the ``.grad`` of any parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from camtool.arguments.explain_arguments import HasModel, get_module
from camtool.arguments.message_parts import add_article, format_count
from camtool.errors import ForwardError, LayerError, raise_interrupt
from camtool.hooks.model_passes import NEED_GRADIENTS, retry_with_gradients, run_model
from camtool.hooks.recomputed_blocks import recompute_blocks
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.modules import WeightStates, find_detector_transform, find_module, lacks_gradients
from camtool.hooks.structures.nested_tensors import (
    ModelInputs,
    find_main_tensor,
    map_batch,
    map_tensors,
    replace_main_tensor,
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class EntriesPerImage:
    """Several entries of a layer's batch for each image, items along its first axis.

    They are the frames of a clip, or the images that a model stacks.

    Attributes:
        count: Number of entries of each image.
        in_turn: True if the entries of one image follow each other, as ``torch.stack(images, 1)`` folds them; False if
            they are apart, as ``torch.cat(images)`` leaves them.
    """

    count: int
    in_turn: bool = True

    def split(self, tensor: Tensor) -> Tensor:
        """Return a tensor ``(N·count, ...)`` as ``(N, count, ...)``; another call of the layer may get one each."""
        if len(tensor) % self.count:
            return tensor
        split: Tensor = tensor.unflatten(0, (-1, self.count) if self.in_turn else (self.count, -1))
        return split if self.in_turn else split.transpose(0, 1)

    def join(self, tensor: Tensor) -> Tensor:
        """Return a tensor ``(N, count, ...)`` as ``(N·count, ...)``."""
        return (tensor if self.in_turn else tensor.transpose(0, 1)).flatten(0, 1)


_SINGLE_ENTRIES: Mapping[str, EntriesPerImage] = {}

Repeat: TypeAlias = "Callable[[Sequence[int], Collection[str]], Observation]"


@dataclass(frozen=True)
class Observation:
    """The result of :func:`run_with_hooks`.

    Attributes:
        output: The output of the model, of any structure, with the graph of the tail.
        calls: For each layer the tensors that it returned, one per call, in order. ``torch.autograd.grad(score,
            observation.calls["layer4"][-1])`` returns the gradient at the layer.
        repeat: Makes an observation of some of the images, named by their indices and each as often as it is named,
            with a graph from some of the layers to the output; ``None`` if that takes another forward pass.
        missing_graph: Why no graph leads from the layers to the output, if that is known.
        weights: The states of all weights of the model, if an engine compared them for this pass.
        limit_threads: Makes the block in which torch works on the outputs: if an engine ran the model, in one thread,
            which leaves the cores to the engine.
    """

    output: Any
    calls: dict[str, list[Tensor]]
    repeat: Repeat | None = None
    missing_graph: str | None = None
    weights: WeightStates | None = None
    limit_threads: Callable[[], AbstractContextManager[object]] = nullcontext


class Runner(Protocol):
    """:func:`run_with_hooks`, or another way to run a model that returns the same."""

    def __call__(
        self,
        model: nn.Module,
        layers: Sequence[str],
        inputs: ModelInputs,
        *,
        grad: bool = True,
        entries: Mapping[str, EntriesPerImage] = _SINGLE_ENTRIES,
    ) -> Observation:
        """Run the model once."""


def run_with_hooks(
    model: nn.Module | HasModel,
    layers: Sequence[str],
    inputs: ModelInputs,
    *,
    grad: bool = True,
    entries: Mapping[str, EntriesPerImage] = _SINGLE_ENTRIES,
    without_graph: Collection[str] = (),
) -> Observation:
    """Run ``model`` once, in evaluation mode, and keep the outputs of ``layers``, in :func:`_run_once_with_hooks`.

    Args:
        model: Any module. Its state is preserved, see :func:`camtool.hooks.state.guard.guard`.
        layers: Dotted module names, in any order.
        inputs: A tensor, a sequence of positional arguments, or a mapping of keyword arguments.
        grad: Record the graph from the earliest of the layers to the output. Without it this is plain inference.
        entries: Layer name to the entries of each image, for layers whose batch has several. Their tensors
            ``(N·T, ...)`` are returned as ``(N, T, ...)``.
        without_graph: Further layers, whose outputs are kept, but start no graph.

    Returns:
        The output of the model and the tensors of the layers. Layers of quantized models give real values, not on a
        graph to the output.

    Raises:
        LayerError: A name is unknown, a layer did not run, or a layer returned no floating tensor.
        ForwardError: The model fails on these inputs.
        CamtoolError: The model was built in ``torch.inference_mode``, so autograd cannot use its parameters.
    """
    model = get_module(model)
    further = [name for name in dict.fromkeys(without_graph) if name not in layers]
    run = partial(_run_once_with_hooks, model, layers, inputs, entries, further, grad=grad)
    try:
        observation, is_connected = run(grad_in_trunk=model in NEED_GRADIENTS)
    except ForwardError as error:
        observation, is_connected = retry_with_gradients(model, partial(run, grad_in_trunk=True), error)
    # A second pass does not connect a quantized model, as its operators have no backward pass.
    if grad and not is_connected and model not in NEED_GRADIENTS and not lacks_gradients(model):
        # The model switches grad mode off itself, e.g. around a frozen backbone. The end of its block undid what the
        # hook had switched on. If grad mode is on from the start, such a block restores "on". That costs more.
        observation, _ = run(grad_in_trunk=True)
    return observation


def _run_once_with_hooks(
    model: nn.Module,
    layers: Sequence[str],
    inputs: ModelInputs,
    entries: Mapping[str, EntriesPerImage],
    without_graph: Sequence[str],
    *,
    grad: bool,
    grad_in_trunk: bool,
) -> tuple[Observation, bool]:
    """Register the hooks, run the model and remove the hooks.

    Returns:
        The observation, and True if the graph is connected from the first layer that ran to the output.
    """
    hooks = _Hooks((*layers, *without_graph), entries)
    with guard(model) as cleanup, torch.set_grad_enabled(grad_in_trunk):
        for layer in hooks.calls:
            hook = hooks.start_graph if grad and layer not in without_graph else hooks.keep_values
            add_forward_hook(cleanup, find_module(model, layer), partial(hook, layer), prepend=True)
        if grad and isinstance(inputs, dict) and inputs.get("use_cache") is False:
            recompute_blocks(cleanup, model, layers)
        output = run_model(model, inputs)
    # The end of the block has removed the hooks.
    for layer, tensors in hooks.calls.items():
        get_call(layer, tensors, -1)
    output = output if grad else map_tensors(output, Tensor.detach)
    return Observation(output, hooks.calls), hooks.is_connected(output)


class _Hooks:
    """Functions of the forward hooks, which collect the outputs of layers during a forward pass.

    Attributes:
        calls: Layer to what it returned, call by call.
        grad_modes: Whether grad mode was on as each call of a layer ended, of those that start the graph.
    """

    def __init__(self, layers: Sequence[str], entries: Mapping[str, EntriesPerImage]) -> None:
        self.calls: dict[str, list[Tensor]] = {layer: [] for layer in layers}
        self.grad_modes: list[bool] = []
        self._entries = entries

    def is_connected(self, output: Any) -> bool:
        """Return False if a block that ended the grad mode of an earlier layer's hook has cut the graph."""
        tensor = find_main_tensor(output)
        return all(self.grad_modes[1:]) and (tensor is None or tensor.requires_grad)

    def keep_values(self, layer: str, _: nn.Module, output: Any) -> None:
        """Keep what a layer returned, without a graph."""
        tensor = _get_tensor(layer, output).detach().clone()
        self.calls[layer].append(self._entries[layer].split(tensor) if layer in self._entries else tensor)

    def start_graph(self, layer: str, _: nn.Module, output: Any) -> Any:
        """Keep what a layer returned as a leaf, switch grad mode on, and let the model go on with a copy."""
        tensor = _get_tensor(layer, output)
        kept = self._entries[layer].split(tensor) if layer in self._entries else tensor
        self.grad_modes.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)  # until the forward pass' own grad mode ends, in _run_once_with_hooks
        # A separate tensor, so that other results that the layer derived from this one, e.g. a pooled output, get no
        # gradient from here. Behind an earlier layer it is on that one's graph, and no leaf.
        kept = kept.view_as(kept) if kept.requires_grad else kept.detach().requires_grad_()
        self.calls[layer].append(kept)
        joined = kept if kept.ndim == tensor.ndim else self._entries[layer].join(kept)
        return replace_main_tensor(output, joined.clone())


def run_with_full_graph(
    model: nn.Module | HasModel,
    layers: Sequence[str],
    inputs: ModelInputs,
    *,
    grad: bool = True,
    entries: Mapping[str, EntriesPerImage] = _SINGLE_ENTRIES,
) -> Observation:
    """Run ``model`` as :func:`run_with_hooks` does, with a graph from weights and inputs to the outputs of ``layers``.

    It takes the memory of training. ``grad`` is there for the protocol; the graph is recorded in any case.

    Raises:
        LayerError: A name is unknown, a layer did not run, or a layer returned no floating tensor.
        ForwardError: The model fails on these inputs.
    """
    model = get_module(model)
    calls: dict[str, list[Tensor]] = {layer: [] for layer in layers}

    def keep_output(layer: str, _: nn.Module, output: Any) -> Any:
        tensor = _get_tensor(layer, output)
        kept = entries[layer].split(tensor) if layer in entries else tensor
        calls[layer].append(kept)
        # The model goes on with a clone, as an in-place operation would move the kept tensor to a later node.
        return replace_main_tensor(output, (kept if kept.ndim == tensor.ndim else entries[layer].join(kept)).clone())

    with guard(model) as cleanup, torch.enable_grad():
        for layer in calls:
            add_forward_hook(cleanup, find_module(model, layer), partial(keep_output, layer), prepend=True)
        output = run_model(model, inputs)
    for layer, tensors in calls.items():
        get_call(layer, tensors, -1)
    return Observation(output, calls)


def run_and_keep_input(
    model: nn.Module, layer: str, inputs: ModelInputs, *, grad: bool = False
) -> tuple[Any, list[Tensor]]:
    """Run a model once, in evaluation mode, and return its output, and what each call of a layer received.

    Args:
        model: Any module. Its state is preserved.
        layer: The dotted name of the layer.
        inputs: A tensor, a sequence of positional arguments, or a mapping of keyword arguments.
        grad: Record the graph from the parameters of the model.

    Raises:
        LayerError: The name is unknown.
        ForwardError: The model fails on these inputs.
    """
    received = list[Tensor]()

    def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        received.extend(tensor for tensor in (*args, *kwargs.values())[:1] if isinstance(tensor, Tensor))

    with guard(model) as cleanup, torch.set_grad_enabled(grad):
        add_forward_pre_hook(cleanup, find_module(model, layer), keep_input)
        output = run_model(model, inputs)
    return output, received


def run_with_graph_from_image(
    model: nn.Module | HasModel, layers: Sequence[str], inputs: ModelInputs
) -> tuple[Tensor, Observation]:
    """Run ``model`` once on the first image, with a graph from the image to the outputs of ``layers`` and of the model.

    Args:
        model: Any module. It runs in evaluation mode, and its state is preserved.
        layers: Dotted module names.
        inputs: The inputs of the model.

    Returns:
        The image input, a leaf of the graph, ``(1, C, *size)``; for a detector the image as its own transform resized
        it. And the output of the model, with the tensors that each layer returned.

    Raises:
        LayerError: A name is unknown.
    """
    model = get_module(model)
    calls: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    leaves: list[Tensor] = []

    def keep_output(layer: str, _: nn.Module, output: Any) -> Any:
        kept = find_main_tensor(output)
        if kept is None:
            return None
        calls[layer].append(kept)
        # The model goes on with a clone, as an in-place operation would move the kept tensor to a later node.
        return replace_main_tensor(output, kept.clone())

    def start_graph(_: nn.Module, output: Any) -> Any:
        images = output[0]
        images.tensors = images.tensors.detach().clone().requires_grad_()
        leaves.append(images.tensors)
        return output

    with guard(model) as cleanup, torch.enable_grad():
        first = map_batch(inputs, lambda tensor: tensor[:1].detach())
        transform = find_detector_transform(model)
        if transform is not None:
            add_forward_hook(cleanup, transform, start_graph)
        else:
            main = find_main_tensor(first)
            leaves += [] if main is None else [main.clone().requires_grad_()]
            first = replace_main_tensor(first, leaves[0]) if leaves else first
        for layer in calls:
            add_forward_hook(cleanup, find_module(model, layer), partial(keep_output, layer), prepend=True)
        output = run_model(model, first)
    return leaves[0], Observation(output, calls)


def resume(
    model: nn.Module | HasModel,
    layer: str,
    activations: Tensor,
    inputs: ModelInputs,
    *,
    call_index: int = 0,
    grad: bool = False,
    entries: EntriesPerImage | None = None,
) -> Any:
    """Run the tail behind ``layer`` with other activations: the trunk once on one image, the tail on all variants.

    Args:
        model: Any module. It runs in evaluation mode, and its state is preserved.
        layer: The dotted name of the layer whose output is replaced.
        activations: ``(M, ...)``, M variants of the output of the layer for one image, ``(M, T, ...)`` with
            ``entries``. They are quantized as that output, if it is.
        inputs: The inputs of that one image, with batch dimension.
        call_index: Which call of the layer is replaced, if it runs more than once.
        grad: Record the graph from the activations to the output.
        entries: The entries of each image, if the batch of the layer has several.

    Returns:
        The output of the model for the M variants.

    Raises:
        LayerError: The name is unknown, or the layer has no call of this index.
        ForwardError: The model runs the layer on one image after the other, which takes one variant at a time.
    """
    model, variants = get_module(model), len(activations)
    activations = activations if entries is None else entries.join(activations)
    # A detector stores the size of each image in the trunk, and would scale the boxes of the other variants wrongly.
    stores_image_sizes = find_detector_transform(model) is not None
    shapes: list[torch.Size] = []
    run = partial(_resume, model, {layer: activations}, call_indices=[call_index], grad=grad, shapes=shapes)
    try:
        output = None if stores_image_sizes else run(inputs)
    except (RuntimeError, ValueError) as error:
        raise_interrupt(error)
        if variants == 1:
            raise
    else:
        if _find_batch_size(output) == variants:
            return output
    # The model fixed the batch size before the layer, e.g. a transformer that expanded its class token. Then a tail of
    # M variants does not fit to a trunk of one image. Run the trunk on M copies: slower, with the same result.
    expanded = map_batch(inputs, lambda tensor: tensor.expand(variants, *tensor.shape[1:]))
    output = run(expanded)
    if shapes[1:] == shapes[:1]:  # of one image and of M
        raise ForwardError(f"the model runs layer {layer!r} on one image after the other; pass batch_size=1.")
    return output


def run_with_held_layers(
    model: nn.Module | HasModel, held: Mapping[str, Tensor], inputs: ModelInputs, call_indices: Sequence[int]
) -> Any:
    """Return the output of the model for some inputs, while layers return what they are told, without a graph.

    Args:
        model: Any module. It runs in evaluation mode, and its state is preserved.
        held: Dotted name of a layer to its output for all images of the inputs, in the layer's own layout.
        inputs: The inputs of the model.
        call_indices: Which call of each layer is replaced, 0 for the first.

    Raises:
        LayerError: A name is unknown, or a layer has no call of its index.
    """
    return _resume(get_module(model), held, inputs, call_indices, grad=False)


def _resume(
    model: nn.Module,
    replaced: Mapping[str, Tensor],
    inputs: ModelInputs,
    call_indices: Sequence[int],
    *,
    grad: bool,
    shapes: list[torch.Size] | None = None,
) -> Any:
    """Return the output of the model, and add the shapes of the outputs that were replaced to ``shapes``."""
    ran: Counter[str] = Counter()

    def replace_output(layer: str, call_index: int, _: nn.Module, output: Any) -> Any:
        ran[layer] += 1
        if ran[layer] != call_index + 1:
            return None
        if shapes is not None:
            shapes.append(_get_tensor(layer, output).shape)
        torch.set_grad_enabled(grad or needs_graph)  # until the forward pass' own grad mode ends, below
        tensor = replaced[layer].clone()
        return replace_main_tensor(output, tensor.requires_grad_() if needs_graph else tensor)

    needs_graph = model in NEED_GRADIENTS
    with guard(model) as cleanup, torch.set_grad_enabled(grad and needs_graph):
        for layer, call_index in zip(replaced, call_indices, strict=True):
            hook = partial(replace_output, layer, call_index)
            add_forward_hook(cleanup, find_module(model, layer), hook, prepend=True)
        output = run_model(model, inputs)
    for layer, call_index in zip(replaced, call_indices, strict=True):
        if ran[layer] <= call_index:
            raise LayerError(
                f"layer {layer!r} ran {format_count(ran[layer], 'time')}, so there is no call {call_index} to replace."
            )
    return output


def _get_tensor(layer: str, output: Any) -> Tensor:
    """Return the main tensor of a layer's output; of a quantized one its real values.

    Raises:
        LayerError: There is none.
    """
    tensor = find_main_tensor(output)
    if tensor is None:
        kind = add_article(type(output).__name__)
        raise LayerError(f"layer {layer!r} returned no floating tensor but {kind}; choose another layer.")
    return tensor.dequantize() if tensor.is_quantized else tensor


def get_call(layer: str, calls: Sequence[_T], call_index: int) -> _T:
    """Return one call of a layer in a forward pass. 0 is the first, -1 the last.

    Raises:
        LayerError: The layer did not run, or has no call of this index.
    """
    if not calls:
        raise LayerError(
            f"layer {layer!r} did not run in this forward pass; choose a layer that the model "
            "uses, and that it calls as a module: hooks do not see calls of .forward(...)."
        )
    if not -len(calls) <= call_index < len(calls):
        raise LayerError(
            f"layer {layer!r} ran {len(calls)} times in one forward pass, so there is no call_index={call_index}; "
            f"choose {-len(calls)} to {len(calls) - 1}."
        )
    return calls[call_index]


def _find_batch_size(output: Any) -> int | None:
    """Return the number of images in an output. Detectors return a list of dictionaries, other models tensors."""
    if isinstance(output, (tuple, list)) and output and all(isinstance(detections, Mapping) for detections in output):
        return len(output)
    tensor = find_main_tensor(output)
    return len(tensor) if tensor is not None and tensor.ndim else None
