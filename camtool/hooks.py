"""Hooks: the one room that looks inside a running model, and leaves it as it was.

:func:`observe` runs a model once and brings back what chosen layers returned, joined to the output by a graph of the
tail alone. Every explanation stands on it. :func:`resume` is its counterpart: it runs only the tail, on other
activations. The hooks themselves, each for the length of a ``with`` block, serve other rooms too; with them
:mod:`camtool.recorder` records for people.

Three rules hold for all. A hook acts only in the thread that registered it. What :func:`observe` keeps is the tensor
itself, and what the model works on from there is a clone, so an in-place operation after the layer cannot change it.
Whatever happens, ``finally`` removes every hook.

The trick of :func:`observe` is to start with grad mode off. When the first chosen layer returns, its hook makes the
output a leaf and switches grad mode on, so autograd records only what follows. The trunk costs what inference costs,
in time and in memory, and ``torch.autograd.grad`` towards the leaf touches no parameter's ``.grad``.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from camtool.errors import CamtoolError, ForwardError, LayerError, near
from camtool.rng import generators_kept

__all__ = [
    "Call",
    "Inputs",
    "Observation",
    "Shared",
    "call",
    "forward_hook",
    "forward_pre_hook",
    "gradient_hook",
    "left_as_found",
    "main_tensor",
    "map_batch",
    "map_tensors",
    "module_named",
    "modules_by_name",
    "name_of",
    "node_hook",
    "nth_call",
    "observe",
    "outside_inference_mode",
    "preparation_of",
    "prepared",
    "resume",
    "tensors_in",
    "trace",
    "watched",
    "with_main_tensor",
]

Inputs: TypeAlias = Tensor | Sequence[Any] | Mapping[Any, Any]
"""What a model is called with: one tensor, positional arguments, or a mapping of keyword arguments, in which whole
numbers stand for positions. Its :func:`main_tensor` is the picture; in a mapping that is the entry that comes first."""

_T = TypeVar("_T")

_LATEST = 8
"""How many of the latest outputs a trace knows again: a query, a key and a value are made of the same."""


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
        ForwardError: The model fails on these inputs.
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
            # A tensor of its own: what the layer made of this one besides, a pooled output say, is no way from it.
            kept = kept.view_as(kept) if kept.requires_grad else kept.detach().requires_grad_()
        calls[layer].append(kept)
        return with_main_tensor(output, kept.clone())

    with left_as_found(model), outside_inference_mode(model, inputs, grad=grad) as inputs, ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad_in_trunk))
        for layer in calls:
            stack.enter_context(forward_hook(module_named(model, layer), partial(keep, layer), first=True))
        output = _answer(model, inputs)
    for layer, tensors in calls.items():
        nth_call(layer, tensors, -1)
    return Observation(output, calls), not cut and _on_a_graph(output)


def resume(
    model: nn.Module, layer: str, activations: Tensor, inputs: Inputs, *, nth: int = 0, grad: bool = False
) -> Any:
    """Run on from ``layer`` with other activations: the trunk once on one image, the tail on all the variants.

    Args:
        model: Any module; it runs in evaluation mode, and is left as it was found.
        layer: The dotted name of the layer whose output is replaced.
        activations: ``(M, ...)`` in the layer's own layout: M variants of what it returned for one image.
        inputs: The inputs of that one image, batch dimension included.
        nth: Which call of the layer is replaced, where it runs more than once.
        grad: Record the graph from the activations to the output.

    Returns:
        The model's output for the M variants.

    Raises:
        LayerError: The name is unknown, or the layer does not run that often.
    """
    variants = len(activations)
    counts_pictures = preparation_of(model) is not None  # it knows a size for each, and would misplace others' boxes
    try:
        output = None if counts_pictures else _resume(model, layer, activations, inputs, nth, grad=grad)
    except (RuntimeError, ValueError):
        if variants == 1:
            raise
    else:
        if _batch_length(output) == variants:
            return output
    # The model fixed the batch size before the layer (a transformer that expanded its class token, say), so a tail
    # larger than its trunk does not fit. Give the trunk as many images: dearer, and the same answer.
    expanded = map_batch(inputs, lambda tensor: tensor.expand(variants, *tensor.shape[1:]))
    return _resume(model, layer, activations, expanded, nth, grad=grad)


def _resume(model: nn.Module, layer: str, activations: Tensor, inputs: Inputs, nth: int, *, grad: bool) -> Any:
    ran = 0

    def replace(_: nn.Module, output: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran != nth + 1:
            return None
        torch.set_grad_enabled(grad)  # until the forward's own grad mode ends, below
        return with_main_tensor(output, activations.clone())

    with left_as_found(model), torch.no_grad(), forward_hook(module_named(model, layer), replace, first=True):
        output = call(model, inputs)
    if ran <= nth:
        raise LayerError(f"layer {layer!r} ran {ran} times, so there is no call {nth} to replace.")
    return output


def nth_call(layer: str, calls: Sequence[_T], nth: int) -> _T:
    """One of a layer's calls in a forward; 0 is the first, -1 the last.

    Raises:
        LayerError: The layer did not run, or not so often.
    """
    if not calls:
        raise LayerError(f"layer {layer!r} did not run in this forward; choose one that the model uses.")
    if not -len(calls) <= nth < len(calls):
        raise LayerError(
            f"layer {layer!r} ran {len(calls)} times in one forward, so there is no call={nth}; "
            f"choose {-len(calls)} to {len(calls) - 1}."
        )
    return calls[nth]


def _batch_length(output: Any) -> int | None:
    """How many images an output is about: detectors list a dictionary for each, others stack them."""
    if isinstance(output, (tuple, list)) and output and all(isinstance(each, Mapping) for each in output):
        return len(output)
    tensor = main_tensor(output)
    return len(tensor) if tensor is not None and tensor.ndim else None


@dataclass(frozen=True)
class Call:
    """One call of one module, as :func:`trace` lists it.

    Attributes:
        name: The module's dotted name; the model itself is ``""``.
        module: The module.
        shape: The shape of what it returned; ``None`` where that was no floating tensor.
        handed_on: It returned, untouched, what the call before it in the list had returned, or a view of all of it.
        follows: It was given, untouched, what the call before it in the list had returned.
        given: The place in the list of the call, one of the latest few, whose output it was given untouched; ``None``
            where it was given something else.
        returned: What the model itself returned, as it was; of a module within it only the shape is kept.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...] | None
    handed_on: bool
    follows: bool
    given: int | None
    returned: Any = None


def trace(model: nn.Module, inputs: Inputs) -> list[Call]:
    """Run ``model`` once, without a graph, and list its modules' calls in the order in which they ended.

    Only shapes are kept, so this costs an inference in time and in memory. The model is left as it was found.

    Raises:
        ForwardError: The model fails on these inputs.
    """
    calls: list[Call] = []
    # What the latest calls returned: the tensors are held so that their memory is not given to others.
    latest: deque[tuple[Tensor | None, object]] = deque(maxlen=_LATEST)
    given: dict[str, tuple[int, bool]] = {}

    def meet(name: str, _: nn.Module, *arguments: Any) -> None:
        tensor = main_tensor(arguments)
        content = None if tensor is None else _content(tensor)
        for back, (_kept, known) in enumerate(reversed(latest), start=1):
            if content is not None and content == known:
                given[name] = len(calls) - back, back == 1
                return

    def note(name: str, module: nn.Module, output: Any) -> None:
        tensor = main_tensor(output)
        shape = None if tensor is None else tuple(tensor.shape)
        content = None if tensor is None else _content(tensor)
        handed_on = content is not None and bool(latest) and content == latest[-1][1]
        place, follows = given.pop(name, (None, False))
        returned = None if name else output
        calls.append(Call(name, module, shape, handed_on, follows, place, returned))
        latest.append((tensor, content))

    with (
        left_as_found(model),
        outside_inference_mode(model, inputs, grad=False) as inputs,  # where tensors tell whether they were written to
        torch.no_grad(),
        ExitStack() as stack,
    ):
        for name, module in _watchable(model):
            stack.enter_context(forward_pre_hook(module, partial(meet, name)))
            stack.enter_context(forward_hook(module, partial(note, name)))
        output = _answer(model, inputs)
    if not calls:
        note("", model, output)
    return calls


@contextmanager
def watched(model: nn.Module, before: Callable[[str, Any], None], after: Callable[[str, Any], None]) -> Iterator[None]:
    """Call ``before(name, given)`` ahead of every module's calls in this thread, ``after(name, output)`` behind them.

    What is given are the positional arguments and the keyword arguments, in this order.
    """

    def ahead(name: str, _: nn.Module, *given: Any) -> None:
        before(name, given)

    def behind(name: str, _: nn.Module, output: Any) -> None:
        after(name, output)

    with ExitStack() as stack:
        for name, module in _watchable(model):
            stack.enter_context(forward_pre_hook(module, partial(ahead, name)))
            stack.enter_context(forward_hook(module, partial(behind, name)))
        yield


def _content(tensor: Tensor) -> tuple[int, int, int]:
    """What tells whether two tensors hold the same numbers at the same place, neither written to in between."""
    return tensor.data_ptr(), tensor.numel(), _version(tensor)


# ------------------------------------------------------------------------------------------- leaving no trace


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Run the block with ``model`` in evaluation mode, and put back whatever a forward may change.

    That is every module's own ``training`` flag (not only the root's: a frozen batch norm stays frozen), the buffers,
    and the global random states of torch, numpy and Python. Flags are set as attributes, because ``train()`` may be
    overridden to do more; a model that is in evaluation mode already is not written to at all, so threads may share it.

    What a model sets up for good at its first forward, whoever runs it, stays: Hugging Face's put hooks of their own on
    their blocks, and note that these are there. Other threads' forwards may be relying on them by then.
    """
    modules = _all_modules(model)
    training = [(module, getattr(module, "training", False)) for module in modules]  # a frozen script has no flag
    at_risk = [module for module in modules if type(module).__module__ not in _NEVER_WRITE_BUFFERS]
    buffers = [_buffers(module) if module._buffers else {} for module in at_risk]
    with generators_kept(), _as_written(modules):
        try:
            for module, was_training in training:
                if was_training:
                    module.training = False
            yield
        finally:
            for module, was_training in training:
                if getattr(module, "training", False) is not was_training:
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
    present = dict(module._buffers.items())  # a scripted module has less than a dictionary there
    for name in present.keys() - before.keys():
        delattr(module, name)
    for name, known in before.items():
        buffer, value, version = known or (None, None, 0)
        if buffer is not None and value is not None and (buffer.is_inference() or buffer._version != version):
            buffer.copy_(value)
        if present.get(name) is not buffer:
            module._buffers[name] = buffer


@contextmanager
def _as_written(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Run compiled modules as they were written: their compiled form does not know of hooks that came after it."""
    is_compiled = any(module._compiled_call_impl is not None or "_orig_mod" in module._modules for module in modules)
    if is_compiled and hasattr(torch.compiler, "set_stance"):  # torch 2.5 has none
        with _EAGERLY:
            yield
    else:
        yield


class _Eagerly:
    """A ``with`` block in which nothing compiled runs. It holds for all threads, so the last to leave ends it."""

    def __init__(self) -> None:
        self._lock, self._inside, self._stance = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._stance.close()


_EAGERLY = _Eagerly()


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; tensors made in inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def outside_inference_mode(model: nn.Module, inputs: Inputs, *, grad: bool) -> Iterator[Inputs]:
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
def forward_hook(
    module: nn.Module, see: Callable[[nn.Module, Any], Any], *, first: bool = False, always: bool = False
) -> Iterator[None]:
    """Call ``see(module, output)`` after the module's calls in this thread; what it returns replaces the output.

    What replaces it must be what all the rest of the model works on, and some models collect their blocks' outputs by
    hooks of their own (Hugging Face's, for the heads that look at several depths): ``first`` goes before those. With
    ``always`` it is called with ``None`` where the module fails.

    ``module`` may be running in other threads while hooks come and go. Torch reads a call's hooks first and asks only
    then which of them take keyword arguments, so a hook of ours must take its arguments in either form.
    """
    owner = threading.get_ident()

    def hook(module: nn.Module, *args: Any) -> Any:
        return see(module, args[-1]) if threading.get_ident() == owner else None

    handle = module.register_forward_hook(hook, prepend=first, always_call=always)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def forward_pre_hook(
    module: nn.Module, see: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[Any, dict[str, Any]] | None]
) -> Iterator[None]:
    """Call ``see(module, args, kwargs)`` before the module's calls in this thread; what it returns replaces both."""
    owner = threading.get_ident()

    def hook(module: nn.Module, args: tuple[Any, ...], *kwargs: dict[str, Any]) -> Any:  # in either form, as above
        return see(module, args, *kwargs) if threading.get_ident() == owner else None

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def gradient_hook(tensor: Tensor, see: Callable[[Tensor], Tensor | None]) -> Callable[[], None]:
    """Call ``see(gradient)`` whenever a backward pass has the tensor's whole gradient; what it returns replaces it.

    The hook lies on the graph and goes when the graph goes. Only a leaf has none, and keeps the hook until the function
    that comes back is called.
    """
    remove: Callable[[], None] = tensor.register_hook(see).remove
    return remove


def node_hook(node: Node, see: Callable[[tuple[Tensor | None, ...]], None]) -> None:
    """Call ``see(gradients)`` with what a node of the graph sends to each of its inputs as a backward pass comes by.

    The hook goes when the graph goes.
    """
    node.register_hook(lambda gradients, _: see(gradients))


# ---------------------------------------------------------------------------------------- models and structures


def call(model: nn.Module, inputs: Inputs) -> Any:
    """``model(inputs)``, with a sequence spread over positional arguments and a mapping over those it names.

    The model gets copies, as it may write to what it is given, a ReLU in place say.
    """
    inputs = map_tensors(inputs, Tensor.clone)
    if isinstance(inputs, Tensor):
        return model(inputs if preparation_of(model) is None else list(inputs))
    if not isinstance(inputs, Mapping):
        return model(*inputs)
    positions = sorted(key for key in inputs if isinstance(key, int))
    given = {key: value.copied() if isinstance(value, Shared) else value for key, value in inputs.items()}
    named = {key: value for key, value in given.items() if not isinstance(key, int)}
    return model(*(given[position] for position in positions), **named)


def _answer(model: nn.Module, inputs: Inputs) -> Any:
    """What :func:`call` gives, for inputs of which nobody knows yet whether the model takes them.

    Raises:
        ForwardError: It does not; want of memory is no fault of theirs, and stays torch's own error.
    """
    try:
        return call(model, inputs)
    except (CamtoolError, torch.OutOfMemoryError):
        raise
    except _REFUSALS as error:
        picture, reason = main_tensor(inputs), str(error).partition("\n")[0]
        shape = "" if picture is None else f" of shape {tuple(picture.shape)}"
        hint = ". A model of several inputs is given camtool.Inputs(...)" if isinstance(error, TypeError) else ""
        raise ForwardError(
            f"the model cannot run on an input{shape}: {type(error).__name__}: {reason}{hint}"
        ) from error


_REFUSALS = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""What models raise at inputs that do not suit them."""


class Shared:
    """What a model is given for all images alike, in a mapping of inputs: it is never cut or multiplied with them."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def copied(self) -> Any:
        """A copy, as a model may write to what it is given."""
        return map_tensors(self._value, Tensor.clone)


def preparation_of(model: nn.Module) -> nn.Module | None:
    """The module with which a detector prepares its pictures itself, as torchvision's do; ``None`` for other models.

    Such a model is called with a list of pictures ``(C, H, W)``, of any size and with values in [0, 1]. Its
    ``transform`` normalises and resizes them, and puts them into one batch, padded at the bottom and on the right.
    """
    transform = getattr(model, "transform", None)
    knows_how = all(hasattr(transform, name) for name in ("batch_images", "postprocess", "min_size", "max_size"))
    return transform if isinstance(transform, nn.Module) and knows_how else None


def prepared(model: nn.Module, pictures: Tensor) -> Tensor:
    """What pictures ``(N, C, H, W)`` become before a model's layers see them: another size, where it is a detector."""
    preparation = preparation_of(model)
    if preparation is None:
        return pictures
    with left_as_found(model), torch.no_grad():
        batch: Tensor = preparation(list(pictures))[0].tensors
    return batch


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Each module once, under the first of its dotted names; the model itself is ``""``."""
    return dict(model.named_modules())


def _watchable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that take hooks: those of TorchScript do not."""
    return ((name, each) for name, each in model.named_modules() if not isinstance(each, torch.jit.ScriptModule))


def module_named(model: nn.Module, layer: str) -> nn.Module:
    """The module of that dotted name; a module with several names is found by each.

    Raises:
        LayerError: There is none; the message suggests near names.
    """
    module: Any = model
    for name in layer.split(".") if layer else ():  # as get_submodule goes, which TorchScript has not
        module = getattr(module, name, None)
        if not isinstance(module, nn.Module):
            raise LayerError(f"the model has no layer {layer!r}.{near(layer, modules_by_name(model))}")
    found: nn.Module = module
    return found


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
    """The first floating tensor in a module's output, searched depth first.

    Tuples, lists, mappings and data classes are looked into.
    """
    return next((tensor for tensor in tensors_in(output) if tensor.is_floating_point()), None)


def tensors_in(structure: Any) -> list[Tensor]:
    """The tensors of a structure, depth first: in the order in which :func:`map_tensors` meets them."""
    if isinstance(structure, Tensor):
        return [structure]
    return [tensor for part in _parts(structure) for tensor in tensors_in(part)]


def _parts(structure: Any) -> Iterable[Any]:
    if isinstance(structure, Mapping):
        return structure.values()
    if isinstance(structure, (tuple, list)):
        return structure
    return [getattr(structure, each.name) for each in fields(structure)] if _is_data(structure) else ()


def with_main_tensor(output: Any, tensor: Tensor) -> Any:
    """``output`` with its :func:`main_tensor` replaced, in the same structure."""
    old = main_tensor(output)
    return map_tensors(output, lambda item: tensor if item is old else item)


def map_tensors(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure of tuples, named tuples, lists, dictionaries and data classes, with each tensor changed."""
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
    if _is_data(structure):
        changed = copy.copy(structure)
        for each in fields(structure):
            object.__setattr__(
                changed, each.name, map_tensors(getattr(structure, each.name), change)
            )  # it may be frozen
        return changed
    return structure


def _is_data(structure: Any) -> bool:
    """Whether it is a data class' instance; those that are mappings too, as Hugging Face's, are taken for mappings."""
    return is_dataclass(structure) and not isinstance(structure, (type, Mapping))


def map_batch(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same inputs, with each tensor changed that has an entry for each image.

    The rest belongs to no image, a temperature or a table of constants say, and is handed on as it is.
    """
    picture = main_tensor(inputs)
    count = None if picture is None else len(picture)

    def part(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.ndim and count in (None, len(tensor)) else tensor

    changed: Inputs = map_tensors(inputs, part)
    return changed


def _on_a_graph(output: Any) -> bool:
    tensor = main_tensor(output)
    return tensor is None or tensor.requires_grad
