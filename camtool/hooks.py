"""Hooks: the only module that looks inside a running model; what it does there, the guards undo.

:func:`observe` runs a model once and brings back what chosen layers returned, joined to the output by a graph of the
tail alone. Every explanation stands on it. :func:`resume` is its counterpart: it runs only the tail, on other
activations. The hooks themselves, each for the length of a :class:`~camtool.cleanup.Cleanup`, serve other modules too,
e.g. :mod:`camtool.recorder`.

Three rules hold for all. A hook acts only in the thread that registered it. What :func:`observe` keeps is the tensor
itself, and what the model works on from there is a clone, so an in-place operation after the layer cannot change it.
The cleanup removes every hook, wherever an error or an interrupt arrives.

The trick of :func:`observe` is to start with grad mode off. When the first chosen layer returns, its hook makes the
output a leaf and switches grad mode on, so autograd records only what follows. The trunk costs what inference costs,
in time and in memory, and ``torch.autograd.grad`` towards the leaf touches no parameter's ``.grad``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from camtool.arguments import HasModel, as_module
from camtool.cleanup import Cleanup
from camtool.errors import CamtoolError, ForwardError, LayerError, add_article, format_count
from camtool.guards import left_as_found, outside_inference_mode, version
from camtool.modules import module_named, preparation_of, watchable
from camtool.structures import (
    Inputs,
    Shared,
    main_tensor,
    map_batch,
    map_tensors,
    with_main_tensor,
)

__all__ = [
    "Call",
    "Observation",
    "add_forward_hook",
    "add_forward_pre_hook",
    "call",
    "gradient_hook",
    "has_hooks_of_others",
    "node_hook",
    "nth_call",
    "observe",
    "prepared",
    "remove_gradient_hook",
    "resume",
    "trace",
    "watch_modules",
]

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


def observe(model: nn.Module | HasModel, layers: Sequence[str], inputs: Inputs, *, grad: bool = True) -> Observation:
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
    model = as_module(model)
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
            kind = add_article(type(output).__name__)
            raise LayerError(f"layer {layer!r} returned no floating tensor but {kind}; choose another layer.")
        if grad:
            cut = cut or (any(calls.values()) and not torch.is_grad_enabled())
            torch.set_grad_enabled(True)  # until the forward's own grad mode ends, below
            # A tensor of its own: what the layer made of this one besides, a pooled output say, is no way from it.
            kept = kept.view_as(kept) if kept.requires_grad else kept.detach().requires_grad_()
        calls[layer].append(kept)
        return with_main_tensor(output, kept.clone())

    with (
        left_as_found(model) as cleanup,
        outside_inference_mode(model, inputs, grad=grad) as inputs,
        torch.set_grad_enabled(grad_in_trunk),
    ):
        for layer in calls:
            add_forward_hook(cleanup, module_named(model, layer), partial(keep, layer), first=True)
        output = _answer(model, inputs)
    for layer, tensors in calls.items():
        nth_call(layer, tensors, -1)
    return Observation(output, calls), not cut and _on_a_graph(output)


def resume(
    model: nn.Module | HasModel, layer: str, activations: Tensor, inputs: Inputs, *, nth: int = 0, grad: bool = False
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
    model, variants = as_module(model), len(activations)
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

    with left_as_found(model) as cleanup, torch.no_grad():
        add_forward_hook(cleanup, module_named(model, layer), replace, first=True)
        output = call(model, inputs)
    if ran <= nth:
        raise LayerError(f"layer {layer!r} ran {format_count(ran, 'time')}, so there is no call {nth} to replace.")
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
        strides: The strides of what it returned, in numbers; empty where that was no floating tensor.
        given_strides: The strides of what it was given from ``given``: other than those of that call's output where
            it was given a view with the axes in another order. Empty where ``given`` is ``None``.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...] | None
    handed_on: bool
    follows: bool
    given: int | None
    returned: Any = None
    strides: tuple[int, ...] = ()
    given_strides: tuple[int, ...] = ()


def trace(model: nn.Module | HasModel, inputs: Inputs) -> list[Call]:
    """Run ``model`` once, without a graph, and list its modules' calls in the order in which they ended.

    Only shapes are kept, so this costs an inference in time and in memory. The model is left as it was found.

    Raises:
        ForwardError: The model fails on these inputs.
    """
    model = as_module(model)
    calls: list[Call] = []
    # What the latest calls returned: the tensors are held so that their memory is not given to others.
    latest: deque[tuple[Tensor | None, object]] = deque(maxlen=_LATEST)
    given: dict[str, tuple[int, bool, tuple[int, ...]]] = {}

    def meet(name: str, _: nn.Module, *arguments: Any) -> None:
        tensor = main_tensor(arguments)
        content = None if tensor is None else _content(tensor)
        for back, (_kept, known) in enumerate(reversed(latest), start=1):
            if tensor is not None and content == known:
                given[name] = len(calls) - back, back == 1, tensor.stride()
                return

    def note(name: str, module: nn.Module, output: Any) -> None:
        tensor = main_tensor(output)
        shape = None if tensor is None else tuple(tensor.shape)
        content = None if tensor is None else _content(tensor)
        handed_on = content is not None and bool(latest) and content == latest[-1][1]
        place, follows, given_strides = given.pop(name, (None, False, ()))
        returned = None if name else output
        strides = () if tensor is None else tensor.stride()
        calls.append(Call(name, module, shape, handed_on, follows, place, returned, strides, given_strides))
        latest.append((tensor, content))

    with (
        left_as_found(model) as cleanup,
        outside_inference_mode(model, inputs, grad=False) as inputs,  # where tensors tell whether they were written to
        torch.no_grad(),
    ):
        for name, module in watchable(model):
            add_forward_pre_hook(cleanup, module, partial(meet, name))
            add_forward_hook(cleanup, module, partial(note, name))
        output = _answer(model, inputs)
    if not calls:
        note("", model, output)
    return calls


def watch_modules(
    cleanup: Cleanup, model: nn.Module, before: Callable[[str, Any], None], after: Callable[[str, Any], None]
) -> None:
    """Call ``before(name, given)`` before every module's calls in this thread, ``after(name, output)`` after them.

    ``given`` holds the positional arguments and the keyword arguments, in this order. The hooks are removed at the end
    of the cleanup's block.
    """

    def ahead(name: str, _: nn.Module, *given: Any) -> None:
        before(name, given)

    def behind(name: str, _: nn.Module, output: Any) -> None:
        after(name, output)

    for name, module in watchable(model):
        add_forward_pre_hook(cleanup, module, partial(ahead, name))
        add_forward_hook(cleanup, module, partial(behind, name))


def _content(tensor: Tensor) -> tuple[int, int, int]:
    """What tells whether two tensors hold the same numbers at the same place, neither written to in between."""
    return tensor.data_ptr(), tensor.numel(), version(tensor)


# ------------------------------------------------------------------------------------------- leaving no trace


class _Hook:
    """A hook that acts in the thread that registered it, and nowhere else.

    The module may be running in other threads while hooks come and go. Torch reads a call's hooks first and asks only
    then which of them take keyword arguments, so a hook must take its arguments in either form. A copy of the module,
    or a pickle, holds a function of the standard library that does nothing: nobody would remove a hook from there.
    """

    def __init__(self, see: Callable[..., Any]) -> None:
        self._see = see
        self.owner: int | None = threading.get_ident()

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        return self._see(module, *args) if threading.get_ident() == self.owner else None

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def add_forward_hook(
    cleanup: Cleanup,
    module: nn.Module,
    see: Callable[[nn.Module, Any], Any],
    *,
    first: bool = False,
    always: bool = False,
) -> None:
    """Call ``see(module, output)`` after the module's calls in this thread; what it returns replaces the output.

    What replaces it must be what all the rest of the model works on, and some models collect their blocks' outputs by
    hooks of their own (Hugging Face's, for the heads that look at several depths): ``first`` goes before those. With
    ``always`` it is called with ``None`` where the module fails. The hook is removed at the end of the cleanup's block.
    """
    hook = _Hook(lambda module, *args: see(module, args[-1]))
    cleanup.push(partial(_remove, module, hook))
    module.register_forward_hook(hook, prepend=first, always_call=always)


def add_forward_pre_hook(
    cleanup: Cleanup,
    module: nn.Module,
    see: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[Any, dict[str, Any]] | None],
    *,
    first: bool = False,
) -> None:
    """Call ``see(module, args, kwargs)`` before the module's calls in this thread; what it returns replaces both.

    With ``first`` it goes ahead of the hooks that are there already. It is removed at the end of the cleanup's block.
    """
    hook = _Hook(see)
    cleanup.push(partial(_remove, module, hook))
    module.register_forward_pre_hook(hook, prepend=first, with_kwargs=True)


def has_hooks_of_others(module: nn.Module) -> bool:
    """Return whether the module has hooks on its forward that are not of this library, which another thread may use."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return not all(isinstance(each, _Hook) for each in hooks)


def _remove(module: nn.Module, hook: _Hook) -> None:
    """Remove a hook that may be registered: an interrupt may have come before torch returned a handle."""
    hook.owner = None
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key in [key for key, each in list(hooks.items()) if each is hook]:
            for flags in (module._forward_hooks_with_kwargs, module._forward_hooks_always_called):
                flags.pop(key, None)
            module._forward_pre_hooks_with_kwargs.pop(key, None)
            hooks.pop(key, None)


def gradient_hook(tensor: Tensor, see: Callable[[Tensor], Tensor | None]) -> None:
    """Call ``see(gradient)`` whenever a backward pass has the tensor's whole gradient; what it returns replaces it.

    The hook lies on the graph and goes when the graph goes. A leaf has none, and keeps the hook until
    :func:`remove_gradient_hook` is called with the same function.
    """
    tensor.register_hook(see)


def remove_gradient_hook(tensor: Tensor, see: Callable[[Tensor], Tensor | None]) -> None:
    """Remove the hook that :func:`gradient_hook` put on a leaf, if it is there."""
    hooks: dict[int, Any] = tensor._backward_hooks or {}
    for key in [key for key, each in list(hooks.items()) if each is see]:
        hooks.pop(key, None)


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


def prepared(model: nn.Module, pictures: Tensor) -> Tensor:
    """What pictures ``(N, C, H, W)`` become before a model's layers see them: another size, where it is a detector."""
    preparation = preparation_of(model)
    if preparation is None:
        return pictures
    with left_as_found(model), torch.no_grad():
        batch: Tensor = preparation(list(pictures))[0].tensors
    return batch


def _on_a_graph(output: Any) -> bool:
    tensor = main_tensor(output)
    return tensor is None or tensor.requires_grad
