"""Hooks: the one room that looks inside a running model, and leaves it as it was.

Two ways in, on the same ground:

* :func:`observe` runs a model once and brings back what chosen layers returned, joined to the output by a graph of
  the tail alone. Every explanation stands on it. :func:`resume` is its counterpart: it runs only the tail, on other
  activations.
* :class:`Recorder` is a ``with`` block for people: inputs, outputs and gradients of named layers, over as many
  forwards as run inside it.

Three rules hold for all. A hook acts only in the thread that registered it. What is kept is the tensor itself, and
what the model works on from there is a clone, so an in-place operation after the layer cannot change the record.
Whatever happens, ``finally`` removes every hook.

The trick of :func:`observe` is to start with grad mode off. When the first chosen layer returns, its hook makes the
output a leaf and switches grad mode on, so autograd records only what follows. The trunk costs what inference costs,
in time and in memory, and ``torch.autograd.grad`` towards the leaf touches no parameter's ``.grad``.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from camtool.errors import CamtoolError, LayerError, near
from camtool.rng import generators_kept

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = [
    "Call",
    "Inputs",
    "Observation",
    "Record",
    "Recorder",
    "call",
    "left_as_found",
    "main_tensor",
    "map_tensors",
    "module_named",
    "modules_by_name",
    "name_of",
    "observe",
    "resume",
    "trace",
]

Inputs: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one tensor, positional arguments, or keyword arguments."""


# --------------------------------------------------------------------------------------------------- observing


@dataclass(frozen=True)
class Observation:
    """What one forward showed.

    Attributes:
        output: What the model returned, whatever its structure. Behind it lies the graph of the tail.
        calls: For each layer the tensors it returned, one a call, each on the graph: with
            ``torch.autograd.grad(score, observation.calls["layer4"][-1])`` comes the gradient at the layer.
    """

    output: Any
    calls: dict[str, list[Tensor]]


def observe(model: nn.Module, layers: Sequence[str], inputs: Inputs, *, grad: bool = True) -> Observation:
    """Run ``model`` once, in evaluation mode, and keep what ``layers`` return.

    Args:
        model: Any module. It is left as it was found, see :func:`left_as_found`.
        layers: Dotted module names, in any order.
        inputs: A tensor, a sequence of positional arguments, or a mapping of keyword arguments.
        grad: Record the graph from the earliest of the layers to the output. Without it this is plain inference.

    Returns:
        The output and the layers' tensors.

    Raises:
        LayerError: A name is unknown, a layer did not run, or returned no floating tensor.
        CamtoolError: The model was built in ``torch.inference_mode``, so autograd cannot use its parameters.
    """
    observation, whole = _observe(model, layers, inputs, grad=grad, grad_in_trunk=False)
    if grad and not whole:
        # The model switches grad mode off itself, around a frozen backbone say, and where its block ended it undid
        # what our hook had switched on. So start with grad mode on: dearer, but what such a block restores is "on".
        observation, _ = _observe(model, layers, inputs, grad=True, grad_in_trunk=True)
    return observation


def _observe(
    model: nn.Module, layers: Sequence[str], inputs: Inputs, *, grad: bool, grad_in_trunk: bool
) -> tuple[Observation, bool]:
    """The observation, and whether its graph leads, in one piece, from the first layer that ran to the output."""
    calls: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    cut = False

    def keep(layer: str, _: nn.Module, output: Any) -> Any:
        nonlocal cut
        kept = main_tensor(output)
        if kept is None:
            kind = type(output).__name__
            raise LayerError(f"layer {layer!r} returned no floating tensor but a {kind}; choose another layer.")
        if grad:
            cut = cut or (any(calls.values()) and not torch.is_grad_enabled())
            torch.set_grad_enabled(True)  # until the forward's own grad mode ends, below
            kept = kept if kept.requires_grad else kept.detach().requires_grad_()
        calls[layer].append(kept)
        return _with_main_tensor(output, kept.clone())

    with left_as_found(model), _outside_inference_mode(model, inputs, grad=grad) as inputs, ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad_in_trunk))
        for layer in calls:
            stack.enter_context(_forward_hook(module_named(model, layer), partial(keep, layer)))
        output = call(model, inputs)
    for layer, tensors in calls.items():
        if not tensors:
            raise LayerError(f"layer {layer!r} did not run in this forward; choose one that the model uses.")
    return Observation(output, calls), not cut and _on_a_graph(output)


def resume(model: nn.Module, layer: str, activations: Tensor, inputs: Inputs, *, nth: int = 0) -> Any:
    """Run on from ``layer`` with other activations: the trunk once on one image, the tail on all the variants.

    Args:
        model: Any module; it runs in evaluation mode, without a graph, and is left as it was found.
        layer: The dotted name of the layer whose output is replaced.
        activations: ``(M, ...)`` in the layer's own layout: M variants of what it returned for one image.
        inputs: The inputs of that one image, batch dimension included.
        nth: Which call of the layer is replaced, where it runs more than once.

    Returns:
        The model's output for the M variants.

    Raises:
        LayerError: The name is unknown, or the layer does not run that often.
    """
    variants = len(activations)
    try:
        output = _resume(model, layer, activations, inputs, nth)
    except (RuntimeError, ValueError):
        if variants == 1:
            raise
    else:
        tensor = main_tensor(output)
        if tensor is not None and len(tensor) == variants:
            return output
    # The model fixed the batch size before the layer (a transformer that expanded its class token, say), so a tail
    # larger than its trunk does not fit. Give the trunk as many images: dearer, and the same answer.
    expanded = map_tensors(inputs, lambda tensor: tensor.expand(variants, *tensor.shape[1:]))
    return _resume(model, layer, activations, expanded, nth)


def _resume(model: nn.Module, layer: str, activations: Tensor, inputs: Inputs, nth: int) -> Any:
    ran = 0

    def replace(_: nn.Module, output: Any) -> Any:
        nonlocal ran
        ran += 1
        return _with_main_tensor(output, activations.clone()) if ran == nth + 1 else None

    with left_as_found(model), torch.no_grad(), _forward_hook(module_named(model, layer), replace):
        output = call(model, inputs)
    if ran <= nth:
        raise LayerError(f"layer {layer!r} ran {ran} times, so there is no call {nth} to replace.")
    return output


@dataclass(frozen=True)
class Call:
    """One call of one module, as :func:`trace` lists it.

    Attributes:
        name: The module's dotted name; the model itself is ``""``.
        module: The module.
        shape: The shape of what it returned; ``None`` where that was no floating tensor.
        handed_on: It returned, untouched, what the call before it in the list had returned, or a view of all of it.
        follows: It was given, untouched, what the call before it in the list had returned.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...] | None
    handed_on: bool
    follows: bool


def trace(model: nn.Module, inputs: Inputs) -> list[Call]:
    """Run ``model`` once, without a graph, and list its modules' calls in the order in which they ended.

    Only shapes are kept, so this costs an inference in time and in memory. The model is left as it was found.
    """
    calls: list[Call] = []
    latest: tuple[Tensor | None, object] = (None, None)  # the tensor is held so that its memory is not given to another
    following: set[str] = set()

    def meet(name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
        tensor = main_tensor(args)
        if tensor is not None and _content(tensor) == latest[1]:
            following.add(name)

    def note(name: str, module: nn.Module, output: Any) -> None:
        nonlocal latest
        tensor = main_tensor(output)
        shape = None if tensor is None else tuple(tensor.shape)
        content = None if tensor is None else _content(tensor)
        handed_on = content is not None and content == latest[1]
        calls.append(Call(name, module, shape, handed_on=handed_on, follows=name in following))
        following.discard(name)
        latest = tensor, content

    with (
        left_as_found(model),
        _outside_inference_mode(model, inputs, grad=False) as inputs,  # where tensors tell whether they were written to
        torch.no_grad(),
        ExitStack() as stack,
    ):
        for name, module in modules_by_name(model).items():
            stack.enter_context(_forward_pre_hook(module, partial(meet, name)))
            stack.enter_context(_forward_hook(module, partial(note, name)))
        call(model, inputs)
    return calls


def _content(tensor: Tensor) -> tuple[int, int, int]:
    """What tells whether two tensors hold the same numbers at the same place, neither written to in between."""
    return tensor.data_ptr(), tensor.numel(), _version(tensor)


# --------------------------------------------------------------------------------------------------- recording


@dataclass
class Record:
    """What one layer was seen to do; every list has one entry a call.

    Attributes:
        inputs: The positional tensors the layer was given, unpacked from the tuple that hooks receive.
        outputs: The tensor it returned (the first floating one where it returned several).
        grad_inputs: The gradients that left the layer towards each of its inputs; ``None`` where none was asked.
        grad_outputs: The gradient that reached its output; ``None`` until a backward pass brought it.
    """

    inputs: list[tuple[Tensor, ...]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    grad_inputs: list[list[Tensor | None]] = field(default_factory=list)
    grad_outputs: list[Tensor | None] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the latest output, ``None`` before the first."""
        return tuple(self.outputs[-1].shape) if self.outputs else None


class Recorder:
    """Record what layers receive, return, and get as gradients, for as long as the ``with`` block lasts.

    The model runs just as it would without the recorder: nothing of it is changed, its training mode included. With
    ``gradients=True`` a layer is handed copies of its inputs, because the gradient at the copy is what this layer, and
    no other, sends back; so a layer that writes to its input does not change it for others who use it later.

        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> with Recorder(net, ["0"], inputs=True, gradients=True) as recorder:
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> recorder["0"].inputs[0][0].tolist(), recorder["0"].shape
        ([[1.0, 1.0]], (1, 2))

    Args:
        model: Any module.
        layers: A dotted module name, or several. All modules where it is left out.
        inputs: Record what the layers receive.
        outputs: Record what the layers return.
        gradients: Record the gradients at the layers' inputs and outputs when a backward pass runs in the block.
        device: Where records are kept, ``"cpu"`` say; by default where they arise.
        last_only: Keep the latest call alone, so that a long run holds its memory.

    Raises:
        LayerError: A name is unknown.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str] | None = None,
        *,
        inputs: bool = False,
        outputs: bool = True,
        gradients: bool = False,
        device: torch.device | str | None = None,
        last_only: bool = False,
    ) -> None:
        names = modules_by_name(model) if layers is None else [layers] if isinstance(layers, str) else layers
        self._modules = {name: module_named(model, name) for name in names}
        self._records = {name: Record() for name in self._modules}
        self._inputs, self._outputs, self._gradients = inputs, outputs, gradients
        self._device, self._last_only = device, last_only
        self._stack = ExitStack()
        self._recording = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # all hooks or, should one fail to register, none
            for name, module in self._modules.items():
                record = self._records[name]
                if self._inputs or self._gradients:
                    stack.enter_context(_forward_pre_hook(module, partial(self._see_inputs, record)))
                if self._outputs or self._gradients:
                    stack.enter_context(_forward_hook(module, partial(self._see_output, record)))
            self._stack = stack.pop_all()
        self._recording = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recording = False
        self._stack.close()

    def __getitem__(self, layer: str) -> Record:
        if layer not in self._records:
            raise LayerError(f"layer {layer!r} is not recorded.{near(layer, self._records)}")
        return self._records[layer]

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        return iter(self._records.items())

    def __len__(self) -> int:
        return len(self._records)

    def _see_inputs(self, record: Record, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._inputs:  # a copy is kept, as the layer may write to what it was given
            self._append(record.inputs, tuple(self._kept(arg).clone() for arg in args if isinstance(arg, Tensor)))
        if not self._gradients:
            return None
        handed_on = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
        tensors = [arg for arg in handed_on if isinstance(arg, Tensor)]
        gradients: list[Tensor | None] = [None] * len(tensors)
        self._append(record.grad_inputs, gradients)
        for slot, tensor in enumerate(tensors):
            self._on_gradient(tensor, gradients, slot)
        return handed_on

    def _see_output(self, record: Record, _: nn.Module, output: Any) -> Any:
        tensor = main_tensor(output)
        if tensor is None:
            return None
        if self._outputs:
            self._append(record.outputs, self._kept(tensor))
        if self._gradients:
            if self._last_only:
                record.grad_outputs = []  # a new list: the gradient of an earlier call, still to come, has the old one
            record.grad_outputs.append(None)
            self._on_gradient(tensor, record.grad_outputs, len(record.grad_outputs) - 1)
        return _with_main_tensor(output, tensor.clone())

    def _on_gradient(self, tensor: Tensor, gradients: list[Tensor | None], slot: int) -> None:
        def keep(gradient: Tensor) -> None:
            if self._recording:  # this hook sits on the user's graph, not on the model, and goes when the graph goes
                gradients[slot] = self._kept(gradient)

        if tensor.requires_grad:
            tensor.register_hook(keep)

    def _append(self, calls: list[Any], call: Any) -> None:
        if self._last_only:
            calls.clear()
        calls.append(call)

    def _kept(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self._device) if self._device is not None else tensor.detach()


# ------------------------------------------------------------------------------------------- leaving no trace


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Run the block with ``model`` in evaluation mode, and put back whatever a forward may change.

    That is every module's own ``training`` flag (not only the root's: a frozen batch norm stays frozen), the buffers,
    and the global random states of torch, numpy and Python. Flags are set as attributes, because ``train()`` may be
    overridden to do more; a model that is in evaluation mode already is not written to at all, so threads may share it.
    """
    modules = _all_modules(model)
    training = [(module, module.training) for module in modules]
    at_risk = [module for module in modules if type(module).__module__ not in _NEVER_WRITE_BUFFERS]
    buffers = [_buffers(module) if module._buffers else {} for module in at_risk]
    with generators_kept():
        try:
            for module, was_training in training:
                if was_training:
                    module.training = False
            yield
        finally:
            for module, was_training in training:
                if module.training is not was_training:
                    module.training = was_training
            for module, before in zip(at_risk, buffers, strict=True):
                if module._buffers or before:
                    _put_back(module, before)


_Buffers: TypeAlias = dict[str, tuple[Tensor, Tensor, int] | None]
"""A module's buffers by name: the tensor itself, a copy of its values, and its version; ``None`` for an empty one."""


_NEVER_WRITE_BUFFERS = ("torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
"""Where the classes live that leave their buffers alone in evaluation mode. Other code may write to any module's, a
plain ``nn.Sequential``'s included."""


def _buffers(module: nn.Module) -> _Buffers:
    return {
        name: None if buffer is None else (buffer, buffer.clone(), _version(buffer))
        for name, buffer in module._buffers.items()
    }


@torch.inference_mode()  # there, tensors of either kind may be written to
def _put_back(module: nn.Module, before: _Buffers) -> None:
    """Give the module the buffers it had; what is as it was is not touched, because other threads may be reading it."""
    for name in module._buffers.keys() - before.keys():
        delattr(module, name)
    for name, known in before.items():
        buffer, value, version = known or (None, None, 0)
        if buffer is not None and value is not None and (buffer.is_inference() or buffer._version != version):
            buffer.copy_(value)
        if module._buffers.get(name) is not buffer:
            module._buffers[name] = buffer


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; tensors made in inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def _outside_inference_mode(model: nn.Module, inputs: Inputs, *, grad: bool) -> Iterator[Inputs]:
    """Make gradients possible where the caller works in ``torch.inference_mode``; yields inputs that allow them."""
    with torch.inference_mode(False):
        try:
            yield map_tensors(inputs, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
        except RuntimeError as error:
            if grad and any(parameter.is_inference() for parameter in model.parameters()):
                raise CamtoolError(
                    "the model's parameters were made in torch.inference_mode, so no gradient can pass through it; "
                    "build or load the model outside of inference_mode."
                ) from error
            raise


@contextmanager
def _forward_hook(module: nn.Module, see: Callable[[nn.Module, Any], Any]) -> Iterator[None]:
    """Call ``see(module, output)`` after the module's calls in this thread; what it returns replaces the output.

    ``module`` may be running in other threads while hooks come and go. Torch reads a call's hooks first and asks only
    then which of them take keyword arguments, so a hook of ours must take its arguments in either form.
    """
    owner = threading.get_ident()

    def hook(module: nn.Module, *args: Any) -> Any:
        return see(module, args[-1]) if threading.get_ident() == owner else None

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _forward_pre_hook(module: nn.Module, see: Callable[[nn.Module, tuple[Any, ...]], Any]) -> Iterator[None]:
    """Call ``see(module, args)`` before the module's calls in this thread; what it returns replaces the arguments."""
    owner = threading.get_ident()

    def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return see(module, args) if threading.get_ident() == owner else None

    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


# ---------------------------------------------------------------------------------------- models and structures


def call(model: nn.Module, inputs: Inputs) -> Any:
    """``model(inputs)``, with a sequence spread over positional and a mapping over keyword arguments.

    The model gets copies, as it may write to what it is given, a ReLU in place say.
    """
    inputs = map_tensors(inputs, Tensor.clone)
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Each module once, under the first of its dotted names; the model itself is ``""``."""
    return dict(model.named_modules())


def module_named(model: nn.Module, layer: str) -> nn.Module:
    """The module of that dotted name; a module with several names is found by each.

    Raises:
        LayerError: There is none; the message suggests near names.
    """
    try:
        return model.get_submodule(layer)
    except AttributeError:
        raise LayerError(f"the model has no layer {layer!r}.{near(layer, modules_by_name(model))}") from None


def name_of(model: nn.Module, layer: str | nn.Module) -> str:
    """The dotted name of a module of the model; a name stands for itself.

    Raises:
        LayerError: The module is not part of the model, or there is none of that name.
    """
    if isinstance(layer, str):
        module_named(model, layer)
        return layer
    for name, module in modules_by_name(model).items():
        if module is layer:
            return name
    raise LayerError(f"layer: this {type(layer).__name__} is not a module of the model; take it from the model itself.")


def _all_modules(model: nn.Module) -> list[nn.Module]:
    """What ``model.modules()`` gives, in another order and several times faster: every explanation asks for it."""
    found, stack = {id(model): model}, [model]
    while stack:
        for module in stack.pop()._modules.values():
            if module is not None and id(module) not in found:
                found[id(module)] = module
                stack.append(module)
    return list(found.values())


def main_tensor(output: Any) -> Tensor | None:
    """The first floating tensor in a module's output, searched depth first through tuples, lists and mappings."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((tensor for item in output if (tensor := main_tensor(item)) is not None), None)
    return None


def _with_main_tensor(output: Any, tensor: Tensor) -> Any:
    """``output`` with :func:`main_tensor` of it replaced, in the same structure."""
    old = main_tensor(output)
    return map_tensors(output, lambda item: tensor if item is old else item)


def map_tensors(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure of tuples, named tuples, lists and dictionaries, with each tensor changed."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, Mapping) and not isinstance(structure, MutableMapping):
        return {key: map_tensors(item, change) for key, item in structure.items()}
    if isinstance(structure, MutableMapping):
        changed = copy.copy(structure)
        for key, item in structure.items():
            changed[key] = map_tensors(item, change)
        return changed
    if isinstance(structure, (tuple, list)):
        items = [map_tensors(item, change) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)
    return structure


def _on_a_graph(output: Any) -> bool:
    tensor = main_tensor(output)
    return tensor is None or tensor.requires_grad
